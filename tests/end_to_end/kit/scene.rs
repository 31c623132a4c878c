//! An application's database with its outbox, and the command line of the relay that belongs to it.

use std::collections::HashSet;
use std::time::Duration;

use super::kafka::Kafka;
use super::outbox::Table;
use super::postgres::Postgres;
use super::run::unique;
use super::sql::Sql;
use super::verify::{Expected, Report, Verifier};
use super::wait::{seconds, wait_for};
use super::walpost::{WalpostCommand, walpost};
use super::workload::Workload;

/// Addresses only: the servers may be stopped and started meanwhile.
#[derive(Clone)]
pub struct Scene {
    /// The database's name, and the slot's: slots belong to the whole server.
    pub name: String,
    pub url: String,
    pub brokers: String,
    pub table: Table,
}

impl Scene {
    /// A database with an empty outbox, a slot and a publication.
    pub fn new(postgres: &Postgres, kafka: &Kafka, table: Table) -> Scene {
        let scene = Scene::without_setup(postgres, kafka, table);
        scene.walpost("setup").succeeds(seconds(30));
        scene
    }

    /// A database with an empty outbox, and nothing of walpost's.
    pub fn without_setup(postgres: &Postgres, kafka: &Kafka, table: Table) -> Scene {
        let name = format!("app{}", unique());
        table.create(&postgres.create_database(&name), "outbox_messages");
        Scene { url: postgres.url(&name), brokers: kafka.bootstrap(), name, table }
    }

    /// `walpost ARGUMENTS` with this scene's addresses and slot.
    pub fn walpost(&self, arguments: &str) -> WalpostCommand {
        walpost(arguments).env("WALPOST_DATABASE_URL", &self.url).env("WALPOST_BROKERS", &self.brokers).slot(&self.name)
    }

    #[track_caller]
    pub fn sql(&self) -> Sql {
        Sql::connect(&self.url)
    }

    pub fn workload(&self) -> Workload {
        Workload::new(&self.url, self.table)
    }

    /// Lets a relay read until everything committed before now is in Kafka.
    #[track_caller]
    pub fn catch_up(&self, bound: Duration) {
        self.walpost("run --until-caught-up").succeeds(bound);
    }

    /// The slot's `confirmed_flush_lsn` has come within 1.5 MB of everything written before now: nearer than that an idle
    /// slot need not follow. It says nothing of the latest rows; for those see [`Kafka::wait_arrived`].
    #[track_caller]
    pub fn wait_slot_follows(&self, bound: Duration) {
        let sql = self.sql();
        let target = sql.value("select pg_current_wal_insert_lsn()");
        let slot = &self.name;
        let query = format!(
            "select pg_wal_lsn_diff('{target}', confirmed_flush_lsn) < 1500000 from pg_replication_slots where slot_name = '{slot}'"
        );
        wait_for(bound, "the slot to follow", || sql.is_true(&query));
    }
}

impl Kafka {
    /// The workload's topics hold each of the committed rows.
    #[track_caller]
    pub fn wait_arrived(&self, workload: &Workload, committed: &[Expected], bound: Duration) {
        let topics = workload.topics();
        let topics = topics.each_ref().map(String::as_str);
        wait_for(bound, "all rows to arrive", || {
            // Counting is cheap, and tells most of the time that it is too early; a repeated row counts twice.
            self.count(&topics) >= committed.len() as u64 && {
                let seen: HashSet<_> = self.read(&topics).iter().filter_map(|record| record.header("id")).collect();
                committed.iter().all(|row| seen.contains(&row.id))
            }
        });
    }

    /// Compares what was committed with what is in the workload's topics.
    #[track_caller]
    pub fn verify(&self, workload: &Workload, expected: &[Expected]) -> Report {
        self.verify_shards(1, workload, expected)
    }

    /// The same where the rows were divided among so many streams.
    #[track_caller]
    pub fn verify_shards(&self, shards: usize, workload: &Workload, expected: &[Expected]) -> Report {
        let topics = workload.topics();
        let topics = topics.each_ref().map(String::as_str);
        let mut verifier = Verifier::new(expected, |topic: &str| self.partition_count(topic)).shards(shards);
        self.scan(&topics, |seen| {
            verifier.see(&seen);
        });
        verifier.finish()
    }
}
