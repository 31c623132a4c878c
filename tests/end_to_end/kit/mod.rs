//! The test kit: real servers, the built binary, workloads, and the comparison of what was committed with what arrived.
//! Nothing of walpost's library is used here, so that the tests see only what a user sees.

// Each test uses a part of the kit; what none uses is noticed in review.
#![allow(dead_code, unused_imports)]

mod broker;
mod case;
mod certs;
mod copies;
mod disk;
mod http;
mod kafka;
mod murmur2;
mod outbox;
mod postgres;
mod programs;
mod proxy;
mod read;
mod run;
mod scene;
mod sql;
mod upgrade;
mod verify;
mod wait;
mod walpost;
mod workload;

pub use broker::Broker;
pub use case::Case;
pub use certs::{Authority, Certificate};
pub use copies::ARCHIVING;
pub use disk::Disk;
pub use kafka::{AUTHORIZER, Kafka, SCRAM_PASSWORD, SCRAM_USER, alter_topic};
pub use murmur2::partition;
pub use outbox::{Message, TABLES, Table, insert};
pub use postgres::{Postgres, Stop, children_of, listening};
pub use programs::{Jvm, MAJOR, MAJORS, java, kafka_classpath, postgres_bindir, repository};
pub use proxy::Proxy;
pub use read::Seen;
pub use run::{Process, free_port, log_tail, new_dir, unique};
pub use scene::Scene;
pub use sql::{Sql, block_on, explain};
pub use verify::{Arrival, Expected, Report, Token, Verifier, verify};
pub use wait::{hold, pace, seconds, wait_for, wait_some};
pub use walpost::{Output, Walpost, WalpostCommand, walpost};
pub use workload::{Load, Random, Workload, noise};
