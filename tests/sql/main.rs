//! Every statement of `sql/` on a real server. WALPOST_TEST_DATABASE_URL names a superuser on a server with nothing
//! else on it (wal_level = logical, a dozen free slots); each test makes a database of its own.

mod catalog;
mod doctor;
mod place;
mod parked;
mod record;
mod recovery;
mod setup;
mod shards;
mod slot;
mod teardown;
