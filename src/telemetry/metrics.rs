//! Every metric, defined once with its unit and its help. The registry is the relay's own, so that no library adds to
//! it. Labels are bounded: reasons are words of the code, topics are at most [`TOPICS_MAX`], never a key or an id.
//!
//! The loop counts up to half a million rows a second: it keeps a [`TopicMetrics`] for each topic and adds in batches.
//! Gauges that mirror the status are set by [`super::Telemetry`] alone, and are NaN while their value is not known.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Counter, CounterVec, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

use super::fine::FineLatencies;
use super::health::{State, Status, WalStatus};

/// Distinct values of the label `topic`; what comes after them is counted under [`OTHER`]. A template over columns can
/// make any number of topics, and each costs some twenty series.
pub const TOPICS_MAX: usize = 100;

/// The label `topic` of all topics beyond [`TOPICS_MAX`].
pub const OTHER: &str = "other";

/// Seconds. A quiet relay acknowledges in a few milliseconds; five minutes is an outage.
const LATENCY_BUCKETS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Why a connection to Postgres is tried again: the kinds of its errors.
const POSTGRES_RETRIES: [&str; 14] = [
    "unreachable",
    "shutting_down",
    "too_many_connections",
    "slot_in_use",
    "auth",
    "no_database",
    "not_permitted",
    "tls",
    "pooler",
    "read_only",
    "undefined_object",
    "object_not_in_state",
    "protocol",
    "other",
];

/// The two ends of the relay, as the label `target`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    Postgres,
    Kafka,
}

impl Target {
    pub fn as_str(self) -> &'static str {
        match self {
            Target::Postgres => "postgres",
            Target::Kafka => "kafka",
        }
    }
}

/// What the relay's loop does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Reading, routing, feeding, acknowledging.
    Work,
    /// There is nothing to read.
    WaitingForPostgres,
    /// Nothing more may be read: the window is full, or a record cannot be fed.
    WaitingForKafka,
    /// Nothing is to be read: the relay has stopped, is ending, has just taken over, or parks.
    Paused,
}

impl Doing {
    pub const ALL: [Doing; 4] = [Doing::Work, Doing::WaitingForPostgres, Doing::WaitingForKafka, Doing::Paused];

    pub fn as_str(self) -> &'static str {
        match self {
            Doing::Work => "work",
            Doing::WaitingForPostgres => "waiting_for_postgres",
            Doing::WaitingForKafka => "waiting_for_kafka",
            Doing::Paused => "paused",
        }
    }
}

/// The relay's metrics. Public fields are set by whoever knows their value; the rest has methods.
pub struct Metrics {
    registry: Registry,
    topics: Mutex<HashMap<String, TopicMetrics>>,
    end_to_end_latency: HistogramVec,
    /// From handing a record to the producer to the broker's confirmation.
    pub publish_latency: Histogram,
    pub messages_published: IntCounter,
    pub bytes_published: IntCounter,
    messages_failed: IntCounterVec,
    pub messages_parked: IntCounter,
    pub messages_skipped: IntCounter,
    /// Messages whose `available_at` lies more than a minute ahead; they are published all the same.
    pub messages_early: IntCounter,
    changes_ignored: IntCounterVec,
    retries: IntCounterVec,
    /// 1 while this relay holds the slot.
    pub leader: IntGauge,
    /// The planner's estimate; NaN until there is one.
    pub outbox_rows: Gauge,
    /// The server's clock minus ours.
    pub clock_skew: Gauge,
    /// Latencies from commit to acknowledgement, finer than a scrape needs. None: nobody has asked for them.
    fine_latencies: OnceLock<Mutex<FineLatencies>>,
    spill_bytes: IntCounter,
    loop_seconds: [Counter; Doing::ALL.len()],
    pub(super) in_flight_messages: IntGauge,
    pub(super) in_flight_bytes: IntGauge,
    pub(super) oldest_unconfirmed_age: Gauge,
    pub(super) confirmed_flush_age: Gauge,
    parked_messages: IntGauge,
    slot_lag_bytes: Gauge,
    slot_retained_wal_bytes: Gauge,
    slot_safe_wal_bytes: Gauge,
    slot_wal_status: IntGaugeVec,
    connected: IntGaugeVec,
    state: IntGaugeVec,
}

/// The counters of one topic: look it up once, keep it, clone it freely.
#[derive(Clone)]
pub struct TopicMetrics {
    messages: IntCounter,
    bytes: IntCounter,
    end_to_end: Histogram,
}

impl TopicMetrics {
    /// `messages` records of together `bytes` (key, value and headers) were confirmed by the broker.
    pub fn published(&self, messages: u64, bytes: u64) {
        self.messages.inc_by(messages);
        self.bytes.inc_by(bytes);
    }

    /// `messages` rows that committed together were acknowledged `latency` after their commit.
    pub fn observe_end_to_end(&self, latency: Duration, messages: u64) {
        observe(&self.end_to_end, latency, messages);
    }

    /// How many end-to-end latencies were observed, and their sum in seconds.
    #[cfg(test)]
    pub(crate) fn observed(&self) -> (u64, f64) {
        (self.end_to_end.get_sample_count(), self.end_to_end.get_sample_sum())
    }
}

impl Metrics {
    /// `details` become labels of `walpost_build_info` beside `version`, such as `("librdkafka", "2.12.1")`.
    pub fn new(version: &str, details: &[(&str, &str)]) -> Metrics {
        let registry = Registry::new();
        #[cfg(target_os = "linux")]
        registry
            .register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
            .expect("the process metrics come first");

        let mut build = Opts::new("walpost_build_info", "1, with the version and what it was built with as labels.")
            .const_label("version", version);
        for (name, value) in details {
            build = build.const_label(*name, *value);
        }
        add(&registry, IntGauge::with_opts(build)).set(1);

        let counter = |name, help| add(&registry, IntCounter::new(name, help));
        let counters = |name, help, labels: &[&str]| add(&registry, IntCounterVec::new(Opts::new(name, help), labels));
        let gauge = |name, help| add(&registry, IntGauge::new(name, help));
        let gauges = |name, help, label| add(&registry, IntGaugeVec::new(Opts::new(name, help), &[label]));
        let unknown = |name, help| {
            let gauge = add(&registry, Gauge::new(name, help));
            gauge.set(f64::NAN);
            gauge
        };
        let latency = |name: &str, help: &str| HistogramOpts::new(name, help).buckets(LATENCY_BUCKETS.to_vec());

        let metrics = Metrics {
            topics: Mutex::default(),
            fine_latencies: OnceLock::new(),
            end_to_end_latency: add(
                &registry,
                HistogramVec::new(
                    latency(
                        "walpost_end_to_end_latency_seconds",
                        "Time from a row's commit to the broker's acknowledgement, by the clocks of both machines.",
                    ),
                    &["topic"],
                ),
            ),
            publish_latency: add(
                &registry,
                Histogram::with_opts(latency(
                    "walpost_publish_latency_seconds",
                    "Time from handing a record to the producer to the broker's acknowledgement.",
                )),
            ),
            messages_published: counter("walpost_messages_published_total", "Records that the broker acknowledged."),
            bytes_published: counter(
                "walpost_bytes_published_total",
                "Bytes of the acknowledged records: key, value and headers, before compression.",
            ),
            messages_failed: counters(
                "walpost_messages_failed_total",
                "Messages that could not be sent as they are, by reason. Each is parked, skipped, or stops the relay.",
                &["reason"],
            ),
            messages_parked: counter("walpost_messages_parked_total", "Messages that were set aside."),
            parked_messages: gauge("walpost_parked_messages", "Messages that are set aside now."),
            messages_skipped: counter(
                "walpost_messages_skipped_total",
                "Rows that were deliberately not published: found in the topic already, empty, or skipped by policy.",
            ),
            messages_early: counter(
                "walpost_messages_early_total",
                "Rows published more than a minute before their available_at: rows are published when they commit.",
            ),
            changes_ignored: counters(
                "walpost_changes_ignored_total",
                "Changes in the write-ahead log that are no inserted row and were passed over, by kind.",
                &["kind"],
            ),
            retries: counters(
                "walpost_retries_total",
                "Attempts that failed and are made again, by the end they went to and the reason.",
                &["target", "reason"],
            ),
            leader: gauge("walpost_leader", "1 while this relay holds the slot, 0 while it stands by."),
            outbox_rows: unknown("walpost_outbox_rows", "Rows of the outbox table as the planner estimates them."),
            clock_skew: unknown(
                "walpost_clock_skew_seconds",
                "The database server's clock minus this machine's. Added to every end-to-end latency.",
            ),
            spill_bytes: counter(
                "walpost_spill_bytes_total",
                "Bytes of large transactions that the server wrote to disk while decoding for the slot.",
            ),
            loop_seconds: {
                let opts = Opts::new(
                    "walpost_loop_seconds_total",
                    "What the relay's loop spent its time with: work, waiting for Postgres or for Kafka, or a pause of its own.",
                );
                let seconds = add(&registry, CounterVec::new(opts, &["doing"]));
                Doing::ALL.map(|doing| seconds.with_label_values(&[doing.as_str()]))
            },
            in_flight_messages: gauge("walpost_in_flight_messages", "Rows read and not yet acknowledged."),
            in_flight_bytes: gauge("walpost_in_flight_bytes", "Bytes of the rows read and not yet acknowledged."),
            oldest_unconfirmed_age: add(
                &registry,
                Gauge::new(
                    "walpost_oldest_unconfirmed_age_seconds",
                    "Age of the oldest row that was read and is not yet acknowledged; 0 when there is none.",
                ),
            ),
            confirmed_flush_age: unknown(
                "walpost_confirmed_flush_age_seconds",
                "Time since a position was last confirmed to the server, also one that had not moved.",
            ),
            slot_lag_bytes: unknown(
                "walpost_slot_lag_bytes",
                "Write-ahead log from the slot's confirmed position to its end: what the relay has yet to read.",
            ),
            slot_retained_wal_bytes: unknown(
                "walpost_slot_retained_wal_bytes",
                "Write-ahead log that the server keeps for the slot. Much more than the lag: an open transaction \
                 holds it, not the relay.",
            ),
            slot_safe_wal_bytes: unknown(
                "walpost_slot_safe_wal_bytes",
                "Write-ahead log that may still be written before the slot is invalidated; NaN without a cap.",
            ),
            slot_wal_status: gauges(
                "walpost_slot_wal_status",
                "1 for the slot's current wal_status, 0 for the others.",
                "status",
            ),
            connected: gauges("walpost_connected", "1 while the relay is connected to this end.", "target"),
            state: gauges("walpost_state", "1 for the relay's current state, 0 for the others.", "state"),
            registry,
        };
        metrics.name_what_is_known();
        metrics
    }

    /// A counter that is absent until its first event hides that event from a rate: known labels start at 0.
    fn name_what_is_known(&self) {
        self.topic(OTHER);
        self.expect_failures(crate::outbox::PoisonReason::ALL.map(crate::outbox::PoisonReason::as_str));
        self.expect_retries(Target::Postgres, POSTGRES_RETRIES);
        for kind in ["update", "delete", "truncate", "message", "stream_abort"] {
            self.changes_ignored.with_label_values(&[kind]);
        }
    }

    /// Shows these reasons as 0 from the start.
    pub fn expect_failures(&self, reasons: impl IntoIterator<Item = &'static str>) {
        for reason in reasons {
            self.messages_failed.with_label_values(&[reason]);
        }
    }

    /// Shows these reasons as 0 from the start.
    pub fn expect_retries(&self, target: Target, reasons: impl IntoIterator<Item = &'static str>) {
        for reason in reasons {
            self.retries.with_label_values(&[target.as_str(), reason]);
        }
    }

    /// The counters of a topic. Takes a lock: for each topic once, not for each row.
    pub fn topic(&self, name: &str) -> TopicMetrics {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(topic) = topics.get(name) {
            return topic.clone();
        }
        // OTHER is among them and not one of the hundred.
        let label = if topics.len() > TOPICS_MAX { OTHER } else { name };
        let topic = TopicMetrics {
            messages: self.messages_published.clone(),
            bytes: self.bytes_published.clone(),
            end_to_end: self.end_to_end_latency.with_label_values(&[label]),
        };
        if label == name {
            topics.insert(name.to_owned(), topic.clone());
        }
        topic
    }

    /// `messages` records were confirmed `latency` after they were handed to the producer.
    pub fn observe_publish(&self, latency: Duration, messages: u64) {
        observe(&self.publish_latency, latency, messages);
    }

    /// A message can not be sent as it is.
    pub fn failed(&self, reason: &'static str) {
        self.messages_failed.with_label_values(&[reason]).inc();
    }

    /// From here on every latency from commit to acknowledgement is kept as well, to a thousandth of itself. Takes what was
    /// kept so far.
    pub fn take_fine_latencies(&self) -> FineLatencies {
        let kept = self.fine_latencies.get_or_init(|| Mutex::new(FineLatencies::default()));
        std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// `messages` rows were acknowledged `latency` after their commit.
    pub fn observe_finely(&self, latency: Duration, messages: u64) {
        if let Some(kept) = self.fine_latencies.get() {
            kept.lock().unwrap_or_else(PoisonError::into_inner).add(latency, messages);
        }
    }

    /// The loop did this for so long.
    pub fn spent(&self, doing: Doing, time: Duration) {
        self.loop_seconds[doing as usize].inc_by(time.as_secs_f64());
    }

    /// Seconds that the loop has done this.
    pub fn seconds(&self, doing: Doing) -> f64 {
        self.loop_seconds[doing as usize].get()
    }

    /// An attempt failed and is made again.
    pub fn retry(&self, target: Target, reason: &'static str) {
        self.retries.with_label_values(&[target.as_str(), reason]).inc();
    }

    /// Something in the write-ahead log that is no inserted row was passed over.
    pub fn ignored(&self, kind: &'static str) {
        self.changes_ignored.with_label_values(&[kind]).inc();
    }

    /// The server's own count for the slot (`pg_stat_replication_slots.spill_bytes`), which its administrator may reset.
    pub fn spilled(&self, total_bytes: u64) {
        self.spill_bytes.reset();
        self.spill_bytes.inc_by(total_bytes);
    }

    /// Sets every gauge that mirrors the status.
    pub(super) fn mirror(&self, status: &Status) {
        let known = |value: Option<f64>| value.unwrap_or(f64::NAN);
        self.parked_messages.set(status.parked.messages.unwrap_or(0) as i64);
        self.slot_lag_bytes.set(known(status.lag_bytes.map(|bytes| bytes as f64)));
        self.slot_retained_wal_bytes.set(known(status.slot.retained_wal_bytes.map(|bytes| bytes as f64)));
        self.slot_safe_wal_bytes.set(known(status.slot.safe_wal_bytes.map(|bytes| bytes as f64)));

        let current = status.slot.wal_status.map_or("unknown", WalStatus::as_str);
        for word in WalStatus::ALL.map(WalStatus::as_str).into_iter().chain(["unknown"]) {
            self.slot_wal_status.with_label_values(&[word]).set((word == current).into());
        }
        for state in State::ALL.into_iter().filter(|state| *state != State::NotRunning) {
            self.state.with_label_values(&[state.as_str()]).set((state == status.state).into());
        }
        for (target, end) in [(Target::Postgres, &status.postgres), (Target::Kafka, &status.kafka)] {
            let connected = self.connected.with_label_values(&[target.as_str()]);
            connected.set((end.connected == Some(true)).into());
        }
    }

    /// The Prometheus text format.
    pub(super) fn text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// A histogram has no way to observe a value many times, but a local one only adds until it is flushed.
fn observe(histogram: &Histogram, latency: Duration, count: u64) {
    let seconds = latency.as_secs_f64();
    if count < 4 {
        for _ in 0..count {
            histogram.observe(seconds);
        }
        return;
    }
    let local = histogram.local();
    for _ in 0..count {
        local.observe(seconds);
    }
    local.flush();
}

/// Registers a metric and hands it back.
///
/// # Panics
///
/// Where a name or label is malformed or taken: a mistake in this file, which its tests would show.
fn add<M: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<M>) -> M {
    let metric = metric.expect("a well-formed metric");
    registry.register(Box::new(metric.clone())).expect("a metric of its own name");
    metric
}
