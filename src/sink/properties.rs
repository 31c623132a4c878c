//! librdkafka's settings. What a promise rests on is set explicitly, with the reason beside it; what the user passes
//! through has been checked by `config` not to contradict it.

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use crate::config::{Config, TopicsCreate};

/// A batch of this size at most, unless a topic takes less. A record that is larger travels alone, so that a refusal names
/// its culprit.
pub const BATCH_SIZE: usize = 64_000;

/// How a producer is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The usual one: a failed batch stops everything behind it, so that a retry never swaps.
    Gapless { batch_size: usize },
    /// One record at a time, to find out which one of a batch was refused. Survives a refusal.
    Isolating,
}

/// What producer and librarian share: the address, the user's properties.
fn common(config: &Config) -> ClientConfig {
    let mut client = ClientConfig::new();
    client
        .set("bootstrap.servers", config.kafka.brokers.as_deref().unwrap_or_default())
        .set("client.id", "walpost")
        .set("socket.keepalive.enable", "true")
        .set("reconnect.backoff.max.ms", "5000")
        // An idle connection that the broker closes is no news.
        .set("log.connection.close", "false")
        .set("enable.metrics.push", "false");
    for (name, value) in &config.kafka.properties {
        client.set(name, value.expose());
    }
    client.set_log_level(RDKafkaLogLevel::Info);
    client
}

/// The settings of a producer of `kind`.
pub fn producer(config: &Config, kind: Kind) -> ClientConfig {
    let mut defaults = ClientConfig::new();
    // The window decides how much is in flight; the queue only has to be larger, or a full queue would hide a slot of it.
    let queue_kbytes = (config.window.bytes / 1024).saturating_mul(2).clamp(262_144, 2_097_151);
    let queue_messages = config.window.messages.saturating_mul(2).clamp(100_000, 10_000_000);
    defaults
        .set("linger.ms", "1")
        // The most that idempotence allows; a user may ask for less.
        .set("max.in.flight", "5")
        .set("batch.num.messages", "10000")
        // The topic's own limit decides; ours is only there because librdkafka must have one.
        .set("message.max.bytes", "100000000")
        .set("queue.buffering.max.messages", queue_messages.to_string())
        .set("queue.buffering.max.kbytes", queue_kbytes.to_string());
    let mut client = common(config);
    for (name, value) in defaults.config_map() {
        if client.get(name).is_none() {
            client.set(name, value);
        }
    }
    client
        // Nothing is lost: confirmed means stored by all in-sync replicas.
        .set("acks", "all")
        // Retries inside librdkafka neither repeat nor swap.
        .set("enable.idempotence", "true")
        // A timeout would fail a record that may have been stored, and let the one behind it pass. Stalls are ours to see.
        .set("message.timeout.ms", "0")
        // Else a producer re-creates a topic that somebody deleted, with the broker's defaults.
        .set("allow.auto.create.topics", "false");
    match kind {
        Kind::Gapless { batch_size } => {
            client.set("enable.gapless.guarantee", "true").set("batch.size", batch_size.to_string());
        }
        Kind::Isolating => {
            client.set("enable.gapless.guarantee", "false").set("linger.ms", "0");
        }
    }
    client
}

/// The batch size that the user asks for, or ours.
pub fn wanted_batch_size(config: &Config) -> usize {
    let asked = config.kafka.properties.get("batch.size").and_then(|value| value.expose().trim().parse().ok());
    asked.unwrap_or(BATCH_SIZE)
}

/// The settings of the client that asks the cluster about topics. It never produces, so it may be the one whose metadata
/// request lets the broker create a topic.
pub fn librarian(config: &Config) -> ClientConfig {
    let mut client = common(config);
    let creates = config.topics.create == TopicsCreate::Broker;
    client.set("allow.auto.create.topics", if creates { "true" } else { "false" });
    client
}

/// The settings of the consumer that reads back the ends of partitions: it holds little, joins no group and leaves no trace.
pub fn tail(config: &Config) -> ClientConfig {
    let mut client = common(config);
    // The nearest replica may lag behind the leader, and what it lacks would look like the end.
    client.remove("client.rack").remove("statistics.interval.ms");
    client
        // librdkafka insists on a name. It asks for the group's coordinator, and whether it may know that does not matter.
        .set("group.id", "walpost-tail")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // A look at a topic must not make it.
        .set("allow.auto.create.topics", "false")
        // Ours are not in transactions, and an open one of another writer must not hide what is behind it.
        .set("isolation.level", "read_uncommitted")
        // Where the log's start has moved past the place that was asked for.
        .set("auto.offset.reset", "earliest")
        // The last offsets may hold no record: markers of transactions, or what was compacted.
        .set("enable.partition.eof", "true")
        // What waits in memory, over all partitions, and what one answer of a broker adds to it.
        .set("queued.min.messages", "1000")
        .set("queued.max.messages.kbytes", "1024")
        .set("fetch.message.max.bytes", "262144")
        .set("fetch.max.bytes", "1048576")
        // librdkafka wants it no larger than the former; a larger record comes all the same.
        .set("message.max.bytes", "1000000")
        .set("receive.message.max.bytes", "2147483647")
        // A full queue is emptied within milliseconds; with the default, small limits cost a second each time.
        .set("fetch.queue.backoff.ms", "5")
        .set("fetch.error.backoff.ms", "50")
        // A broker that has something answers at once. This is for the end of a partition that ends in a gap.
        .set("fetch.wait.max.ms", "10");
    client
}
