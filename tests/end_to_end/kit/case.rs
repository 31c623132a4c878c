//! One outbox and one topic for a case of the catalogue (`docs/field-cases.md`): rows are numbered, so that what arrived can
//! be written down as a list.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::kafka::Kafka;
use super::outbox::Table;
use super::postgres::Postgres;
use super::run::unique;
use super::scene::Scene;
use super::sql::Sql;
use super::wait::{pace, seconds, wait_for};

pub struct Case<'a> {
    pub scene: Scene,
    pub topic: String,
    pub sql: Sql,
    kafka: &'a Kafka,
}

impl<'a> Case<'a> {
    /// A database with walpost's own table, set up; the topic has one partition, so that all rows have one order.
    pub fn new(postgres: &Postgres, kafka: &'a Kafka) -> Case<'a> {
        let case = Case::without_setup(postgres, kafka);
        case.scene.walpost("setup").succeeds(seconds(30));
        case
    }

    pub fn without_setup(postgres: &Postgres, kafka: &'a Kafka) -> Case<'a> {
        let scene = Scene::without_setup(postgres, kafka, Table::Walpost);
        let topic = format!("case-{}", unique());
        kafka.create_topic(&topic, 1, &[]);
        Case { sql: scene.sql(), scene, topic, kafka }
    }

    /// The statement that inserts these numbers, in their order, as rows of one key.
    pub fn row(&self, key: &str, numbers: impl IntoIterator<Item = u64>) -> String {
        let row = |number| format!("('a', '{key}', 'e', '{}', '{{\"n\": {number}}}')", self.topic);
        let rows: Vec<String> = numbers.into_iter().map(row).collect();
        format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload) values {};",
            rows.join(", ")
        )
    }

    /// The server was restarted.
    pub fn reconnect(&mut self) {
        self.sql = self.scene.sql();
    }

    /// Commits one row for each number, each in a transaction of its own.
    #[track_caller]
    pub fn insert(&self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.sql.execute(&self.row("k", [number]));
        }
    }

    /// The numbers in the topic, partition by partition, in their order.
    pub fn arrived(&self) -> Vec<u64> {
        let number = |value: &[u8]| serde_json::from_slice::<Value>(value).ok()?["n"].as_u64();
        let records = self.kafka.read(&[&self.topic]);
        records.iter().map(|record| record.value.as_deref().and_then(number).expect("a number")).collect()
    }

    /// Waits until these numbers are there, in this order, each once and nothing beside them.
    #[track_caller]
    pub fn wait_arrived(&self, numbers: &[u64]) {
        let (mut last, deadline) = (self.arrived(), Instant::now() + seconds(40));
        while last != numbers && last.len() <= numbers.len() && Instant::now() < deadline {
            pace(Instant::now() + Duration::from_millis(50));
            last = self.arrived();
        }
        assert_eq!(last, numbers, "what arrived, and what had to");
    }

    /// Waits until each of these numbers is there, whatever is beside them.
    #[track_caller]
    pub fn wait_contains(&self, numbers: impl IntoIterator<Item = u64>) {
        let wanted: HashSet<u64> = numbers.into_iter().collect();
        wait_for(seconds(120), "all rows to arrive", || {
            let there: HashSet<u64> = self.arrived().into_iter().collect();
            wanted.is_subset(&there)
        });
    }

    /// The slot's `confirmed_flush_lsn`.
    #[track_caller]
    pub fn confirmed(&self) -> String {
        let slot = &self.scene.name;
        self.sql.value(&format!("select confirmed_flush_lsn from pg_replication_slots where slot_name = '{slot}'"))
    }

    /// The end of the log now.
    #[track_caller]
    pub fn end_of_wal(&self) -> String {
        self.sql.value("select pg_current_wal_insert_lsn()")
    }

    /// Whether the slot has been told of everything up to this position.
    #[track_caller]
    pub fn is_confirmed(&self, lsn: &str) -> bool {
        self.sql.is_true(&format!("select '{}'::pg_lsn >= '{lsn}'::pg_lsn", self.confirmed()))
    }
}
