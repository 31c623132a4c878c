//! The servers of all measurements: one Postgres and one broker, with the disk's guarantees on, and what is asked of them:
//! tables, slots, topics, offsets. A slot that is made here is dropped here.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Message, Offset, TopicPartitionList};

use super::kit::{Jvm, Kafka, MAJOR, Postgres, Sql, block_on, seconds, unique, wait_for, wait_some, walpost};
use super::spec::{Peer, Spec};

/// Of both tables.
const COLUMNS: &str = "id bigint generated always as identity primary key, \
    message_id uuid not null default gen_random_uuid(), aggregate_type text not null, aggregate_id text not null, \
    event_type text not null, payload jsonb not null, created_at timestamptz not null default now()";

/// Of the table with all its columns, for everybody but walpost.
pub const FULL_PUBLICATION: &str = "bench_full";

pub struct Servers {
    pub postgres: Postgres,
    pub kafka: Kafka,
    pub sql: Sql,
    pub url: String,
    reader: BaseConsumer,
}

impl Servers {
    pub fn start() -> Servers {
        eprintln!("bench: starting Postgres {MAJOR} and Kafka");
        let postgres = Postgres::builder(MAJOR)
            .conf("fsync = on")
            .conf("shared_buffers = 512MB")
            .conf("max_wal_size = 8GB")
            .conf("log_min_messages = warning")
            .conf("log_replication_commands = off")
            .conf("shared_preload_libraries = 'pg_stat_statements'")
            .start();
        let kafka = Kafka::builder().heap("1g").jvm(Jvm::Lasting).start();
        let sql = postgres.create_database("bench");
        sql.execute("create extension pg_stat_statements");
        let url = postgres.url("bench");
        let mut config = kafka.client_config();
        config.set("group.id", "bench").set("enable.auto.commit", "false").set("fetch.wait.max.ms", "50");
        let reader = config.create().expect("a consumer");
        Servers { postgres, kafka, sql, url, reader }
    }

    // --- the table ---

    /// An empty table of the readers of the log; its old slots, publications and records are gone with it.
    pub fn fresh_table(&self) {
        for slot in self.sql.rows("select slot_name from pg_replication_slots") {
            self.drop_slot(slot[0].as_deref().expect("a name"));
        }
        let table = Peer::Walpost.table();
        self.sql.execute(&format!(
            "set client_min_messages = warning; drop publication if exists walpost, {FULL_PUBLICATION}; \
             drop table if exists {table}; create table {table} ({COLUMNS}); \
             create publication {FULL_PUBLICATION} for table {table} with (publish = 'insert')"
        ));
    }

    /// An empty table for the peer that polls; slots of the other one stay as they are.
    pub fn fresh_polled_table(&self) {
        self.drop_polled_table();
        let table = Peer::Polling.table();
        self.sql.execute(&format!(
            "create table {table} ({COLUMNS}, published_at timestamptz); \
             create index on {table} (id) where published_at is null"
        ));
    }

    pub fn drop_polled_table(&self) {
        self.sql.execute(&format!("set client_min_messages = warning; drop table if exists {}", Peer::Polling.table()));
    }

    /// Whichever of the two the peer reads.
    pub fn fresh_table_of(&self, peer: Peer) {
        match peer {
            Peer::Polling => self.fresh_polled_table(),
            _ => self.fresh_table(),
        }
    }

    /// walpost's publication, where it is missing, and a slot; one that exists already is taken over.
    pub fn set_up_walpost(&self, slot: &str) {
        walpost("setup").postgres(&self.postgres, "bench").kafka(&self.kafka).slot(slot).succeeds(seconds(60));
    }

    /// A slot for the peer, made now.
    pub fn new_slot(&self, peer: Peer) -> String {
        let slot = format!("bench_{}", unique());
        match peer {
            Peer::Walpost => self.set_up_walpost(&slot),
            _ if peer.reads_slot() => {
                self.sql.execute(&format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
            }
            _ => {}
        }
        slot
    }

    /// A slot for the peer that begins where `master` does.
    pub fn copy_slot(&self, master: &str, peer: Peer) -> String {
        let slot = format!("bench_{}", unique());
        self.sql.execute(&format!("select pg_copy_logical_replication_slot('{master}', '{slot}')"));
        if peer == Peer::Walpost {
            self.set_up_walpost(&slot);
        }
        slot
    }

    pub fn drop_slot(&self, slot: &str) {
        let here = format!("from pg_replication_slots where slot_name = '{slot}'");
        self.sql.rows(&format!("select pg_terminate_backend(active_pid) {here} and active"));
        wait_for(seconds(30), "the slot to be free", || {
            self.sql.number(&format!("select count(*) {here} and active")) == 0
        });
        self.sql.execute(&format!("select pg_drop_replication_slot(slot_name) {here}"));
        if self.sql.is_true("select to_regclass('walpost.checkpoint') is not null") {
            self.sql.execute(&format!("delete from walpost.checkpoint where slot_name = '{slot}'"));
        }
    }

    /// Whether the slot's reader has confirmed all up to a position.
    pub fn confirmed_up_to(&self, slot: &str, lsn: &str) -> bool {
        self.sql.is_true(&format!(
            "select confirmed_flush_lsn >= '{lsn}' from pg_replication_slots where slot_name = '{slot}'"
        ))
    }

    /// The walsender that serves a slot.
    pub fn walsender(&self, slot: &str) -> Option<i32> {
        let active = format!("select active_pid from pg_replication_slots where slot_name = '{slot}'");
        self.sql.optional(&active)?.parse().ok()
    }

    // --- Kafka ---

    /// The topics of a measurement, empty, stamped by the broker as records are appended.
    pub fn fresh_topics(&self, spec: &Spec) {
        let admin: AdminClient<DefaultClientContext> = self.kafka.client_config().create().expect("an admin client");
        let options = AdminOptions::new().operation_timeout(Some(seconds(60))).request_timeout(Some(seconds(60)));
        let old = self.kafka.topics();
        let old: Vec<&str> = old.iter().map(String::as_str).collect();
        if !old.is_empty() {
            block_on(admin.delete_topics(&old, &options)).expect("an answer from Kafka");
            wait_for(seconds(120), "the old topics to be gone", || self.kafka.topics().is_empty());
        }
        let names = spec.topic_names();
        wait_for(seconds(120), "the new topics to be made", || {
            let there = self.kafka.topics();
            let absent = names.iter().filter(|name| !there.contains(name));
            let missing: Vec<NewTopic<'_>> = absent
                .map(|name| {
                    NewTopic::new(name, spec.partitions(), TopicReplication::Fixed(1))
                        .set("message.timestamp.type", "LogAppendTime")
                })
                .collect();
            if !missing.is_empty() {
                block_on(admin.create_topics(&missing, &options)).expect("an answer from Kafka");
            }
            missing.is_empty()
        });
        wait_for(seconds(120), "leaders of all partitions", || self.try_ends(spec).is_some());
    }

    /// The end offset of each partition, which is the number of its records.
    pub fn ends(&self, spec: &Spec) -> Vec<(String, i32, i64)> {
        wait_some(seconds(60), "the topics' ends", || self.try_ends(spec))
    }

    /// Records in all.
    pub fn delivered(&self, spec: &Spec) -> u64 {
        self.ends(spec).iter().map(|&(_, _, end)| end as u64).sum()
    }

    fn try_ends(&self, spec: &Spec) -> Option<Vec<(String, i32, i64)>> {
        let mut asked = TopicPartitionList::new();
        for topic in spec.topic_names() {
            for partition in 0..spec.partitions() {
                // Where a time is wanted, librdkafka hands this to the broker as "the latest".
                asked.add_partition_offset(&topic, partition, Offset::End).ok()?;
            }
        }
        let answer = self.reader.offsets_for_times(asked, seconds(10)).ok()?;
        let end = |offset| match offset {
            Offset::Offset(end) => Some(end),
            _ => None,
        };
        answer.elements().iter().map(|e| Some((e.topic().to_owned(), e.partition(), end(e.offset())?))).collect()
    }

    /// When the broker appended the first and the last record, in seconds since 1970.
    pub fn append_times(&self, ends: &[(String, i32, i64)]) -> (f64, f64) {
        let (mut first, mut last) = (f64::MAX, 0.0_f64);
        for (topic, partition, end) in ends.iter().filter(|(_, _, end)| *end > 0) {
            for offset in [0, end - 1] {
                let time = self.append_time(topic, *partition, offset);
                (first, last) = (first.min(time), last.max(time));
            }
        }
        (first, last)
    }

    fn append_time(&self, topic: &str, partition: i32, offset: i64) -> f64 {
        let mut one = TopicPartitionList::new();
        one.add_partition_offset(topic, partition, Offset::Offset(offset)).expect("an offset");
        self.reader.assign(&one).expect("an assignment");
        let time = wait_some(seconds(20), "a record", || {
            let message = self.reader.poll(Duration::from_millis(200))?.ok()?;
            (message.topic() == topic && message.partition() == partition && message.offset() == offset)
                .then(|| message.timestamp().to_millis())?
        });
        time as f64 / 1000.0
    }

    /// Lets go of what [`Servers::append_times`] reads, so that nothing is fetched during a measurement.
    pub fn rest(&self) {
        self.reader.unassign().expect("an assignment that can be ended");
    }
}
