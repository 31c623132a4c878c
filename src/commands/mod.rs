//! One file per command. A command takes the configuration and its own options, writes results to standard output, and
//! says with its exit code how it went.

pub mod bench;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod parked;
pub mod recover;
pub mod run;
pub mod setup;
pub mod status;
pub mod teardown;
pub mod version;
