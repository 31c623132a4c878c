//! Where records go: Kafka, through librdkafka. Records are fed in the order of the log; what comes back is a
//! [`Delivery`] for each, out of order across partitions.
//!
//! ```text
//!  kafka       the sink: feeds, and heals any failed report without a record lost or swapped
//!  client      what the sink needs of a Kafka client
//!  feed        the way of a record into librdkafka
//!  producer    one librdkafka producer and the mailbox its reports come back through
//!  topics      what is known of each topic
//!  librarian   the thread that asks the cluster while the loop goes on
//!  desk        the questions themselves: topics, limits, reachability
//!  tail        which of our records are there already, for the start of a session
//!  properties  librdkafka's settings, with the reason of each that a promise rests on
//!  origin      whence an address comes at which nobody answers
//!  refusal     what an error on a report means: poison, route, or neither
//!
//!  reader      a small consumer, for commands that show what has arrived
//!  stand_in    a broker for where no Kafka can be had; for the demo only
//! ```
//!
//! This is the only place that names the Kafka client.

use std::sync::Arc;

use tokio::time::Instant;

use crate::ack::Ticket;
use crate::router::Record;

pub mod client;
pub mod desk;
mod feed;
pub mod kafka;
pub mod librarian;
pub mod origin;
pub mod producer;
pub mod properties;
pub mod reader;
pub mod refusal;
pub mod stand_in;
pub mod tail;
pub mod topics;

pub use kafka::KafkaSink;

/// The fate of a record.
#[derive(Debug)]
pub enum Delivery {
    /// The broker has confirmed it.
    Delivered { ticket: Ticket, topic: TopicId, bytes: usize, publish_latency: std::time::Duration },
    /// It was not produced, because its topic holds it already.
    There { ticket: Ticket },
    /// The broker has proved that this record can never be stored as it is. It stays with the sink until
    /// [`KafkaSink::take`], [`KafkaSink::replace`] or [`KafkaSink::freeze`].
    Poison { ticket: Ticket, reason: &'static str, sentence: String, record: Box<Record> },
}

/// A topic by its number in this sink: [`KafkaSink::topic_name`] tells its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub u32);

/// What the sink waits for, for the state that the probes show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// A topic cannot be written to. `since` is how long it has been so; `refused_since`, how long the cluster has refused
    /// it: not where only nobody answers or leads.
    Topic { topic: String, problem: String, remedy: String, since: Instant, refused_since: Option<Instant> },
    /// A failed delivery is being healed: the producer is emptied and made anew.
    Rebuild { reason: String, since: Instant },
}

/// The oldest record that the broker has not confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oldest {
    pub ticket: Ticket,
    pub topic: Arc<str>,
    pub partition: u32,
}

/// Why a producer is made anew: the label of the metric.
pub const REBUILD_REASONS: [&str; 8] =
    ["too_large", "invalid_record", "route", "batch", "producer", "stalled", "batch_size", "isolation_over"];

/// librdkafka refuses a setting, or cannot start.
#[derive(Debug, thiserror::Error)]
#[error("Kafka's client cannot be made: {0}; see kafka.properties")]
pub struct SettingsRefused(pub String);

/// The version of librdkafka that is linked in.
pub fn librdkafka_version() -> String {
    rdkafka::util::get_rdkafka_version().1
}
