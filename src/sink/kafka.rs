//! The sink: feeds records to a producer in the order of the log, and heals every failed report.
//!
//! ```text
//!             a report says no                nothing is outstanding
//!   Feeding ────────────────────▶ Draining ─────────────────────────▶ Feeding, the held records first
//!                purge the queue every 20 ms        a new producer
//! ```
//!
//! A failed report, fatal or not, stops the line: what comes back is *held* and fed again in ticket order, so that a later
//! record of a key never counts before an earlier one. A record that waits only until its topic is known and open is held,
//! too, and later ones of that topic behind it, while those of other topics pass (`lanes`). A record that is proved to be poison stays held until the relay
//! decides on it. All methods return at once; only [`KafkaSink::release`] waits, with a bound.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::ack::Ticket;
use crate::config::Config;
use crate::error_text::ErrorText as _;
use crate::lsn::Lsn;
use crate::router::Record;
use crate::sink::client::{Client, Librdkafka, Produce};
use crate::sink::desk::{ClusterIdentity, Probed, Short};
use crate::sink::librarian::{Answer, Ask};
use crate::sink::producer::{FailedReport, Inbox, Mailbox};
use crate::sink::properties::{self, Kind};
use crate::sink::refusal::{Refusal, classify};
use crate::sink::topics::{NotReady, TopicBook};
use crate::sink::{Delivery, Oldest, SettingsRefused, TopicId, Waiting};

/// An error of a connection counts once records have waited for so long: one broker of several may be away.
const FAILING_AFTER: Duration = Duration::from_secs(2);
/// Without a report for so long while records are out, the producer itself is suspect.
const SILENT_AFTER: Duration = Duration::from_secs(10);
/// What was sent when the Postgres session is lost may take this long to be confirmed.
const RELEASE_WITHIN: Duration = Duration::from_secs(2);

mod feeding;
mod healing;
mod held;
mod lanes;
mod opened;
mod read_back;
mod scout;
#[cfg(test)]
mod scripted_tests;

use feeding::Fed;
use lanes::Lanes;
use opened::Opened;
use read_back::{Look, ReadBack};
use scout::Scout;

/// See the module.
pub struct KafkaSink {
    mailbox: Arc<Mailbox>,
    inbox: Inbox,
    client: Box<dyn Client>,
    producer: Option<Box<dyn Produce>>,
    scout: Scout,
    /// Of the newest producer made.
    generation: u32,
    /// Of the producer in use.
    current: u32,
    mode: Mode,
    topics: TopicBook,
    /// Of the producer in use.
    opened: Opened,
    read_back: ReadBack,
    /// Found in their topics; to be told with the next turn.
    there: Vec<Ticket>,
    /// What is out or held, by ticket from `first_ticket` on.
    sent: VecDeque<Sent>,
    first_ticket: usize,
    outstanding: usize,
    /// To be fed before anything new, or before anything new of their topics.
    held: Lanes,
    failed: Vec<FailedReport>,
    /// Poison that the relay has not decided on.
    undecided: BTreeSet<usize>,
    /// Nothing from this ticket on is fed any more.
    frozen_at: Option<usize>,
    /// Records still to succeed one by one before the usual producer comes back; 0 when it is in use.
    isolated_left: usize,
    /// Rebuilds since something was last delivered.
    attempts: u32,
    last_report: Instant,
    silent_after: Duration,
    probing: bool,
    probe_at: Option<Instant>,
    /// What the last probe saw.
    short: Option<Short>,
    cluster: Option<Result<ClusterIdentity, String>>,
    error: Option<String>,
    connected: bool,
    /// Rebuilds of the producer, for the metric: taken by the relay.
    rebuilds: Vec<&'static str>,
}

enum Mode {
    /// `not_before`: a pause between attempts.
    Feeding { not_before: Option<Instant> },
    /// Waiting for every report of the current producer.
    Draining { text: String, since: Instant, purge_at: Option<Instant>, dropped: bool },
    /// As above, and nothing is fed again.
    Released,
    /// Only the log can mend it. See [`KafkaSink::fault`].
    Broken(String),
}

/// What the sink remembers of a record that is out; the record itself is with librdkafka.
struct Sent {
    topic: TopicId,
    partition: u32,
    partition_hash: u32,
    bytes: usize,
    at: Instant,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// With the producer of this generation: a report will come.
    Out(u32),
    /// Came back, and is to be fed again.
    Back,
    /// Delivered, or given up.
    Settled,
}

/// A record that cannot be taken now. It must be offered again, before any later one.
#[derive(Debug)]
pub struct Busy(pub Record);

impl KafkaSink {
    /// Contacts no broker before it returns. Fails on settings that librdkafka refuses.
    pub fn start(config: Arc<Config>) -> Result<KafkaSink, SettingsRefused> {
        let mailbox = Arc::new(Mailbox::default());
        let client = Librdkafka::start(&config, &mailbox)?;
        KafkaSink::over(Box::new(client), &config, mailbox)
    }

    /// A sink over any client; what comes back from it comes through `mailbox`.
    pub fn over(client: Box<dyn Client>, config: &Config, mailbox: Arc<Mailbox>) -> Result<KafkaSink, SettingsRefused> {
        let batch_size = properties::wanted_batch_size(config);
        let mut sink = KafkaSink {
            mailbox,
            inbox: Inbox::default(),
            client,
            producer: None,
            scout: Scout::default(),
            generation: 0,
            current: 0,
            mode: Mode::Feeding { not_before: None },
            opened: Opened::default(),
            read_back: ReadBack::new(config),
            there: Vec::new(),
            topics: TopicBook::new(batch_size, config.kafka.brokers.clone().unwrap_or_default()),
            sent: VecDeque::new(),
            first_ticket: 0,
            outstanding: 0,
            held: Lanes::default(),
            failed: Vec::new(),
            undecided: BTreeSet::new(),
            frozen_at: None,
            isolated_left: 0,
            attempts: 0,
            last_report: Instant::now(),
            silent_after: SILENT_AFTER,
            probing: false,
            probe_at: None,
            short: None,
            cluster: None,
            error: None,
            connected: false,
            rebuilds: Vec::new(),
        };
        // Made early: a producer needs half a second to get its id.
        let producer = sink.create_producer();
        sink.producer = Some(producer.map_err(|error: KafkaError| SettingsRefused(error.to_string()))?);
        sink.client.ask(Ask::Cluster);
        Ok(sink)
    }

    fn create_producer(&mut self) -> Result<Box<dyn Produce>, KafkaError> {
        self.generation = self.generation.wrapping_add(1);
        self.current = self.generation;
        self.client.producer(self.kind(), self.generation)
    }

    fn kind(&self) -> Kind {
        match self.isolated_left {
            0 => Kind::Gapless { batch_size: self.topics.batch_size },
            _ => Kind::Isolating,
        }
    }

    /// Resolves when there is something for [`KafkaSink::turn`] to do. Cancel-safe.
    pub async fn woken(&self) {
        self.mailbox.woken().await;
    }

    /// Which cluster answered. None: no answer yet. After an error ask again with [`KafkaSink::ask_cluster`].
    pub fn cluster(&self) -> Option<&Result<ClusterIdentity, String>> {
        self.cluster.as_ref()
    }

    pub fn ask_cluster(&mut self) {
        self.cluster = None;
        self.client.ask(Ask::Cluster);
    }

    pub fn topic_name(&self, topic: TopicId) -> Arc<str> {
        self.topics.name(topic)
    }

    /// Whether the last thing heard of the brokers was good, and the newest error of a connection.
    pub fn connection(&self) -> (bool, Option<&str>) {
        // No report while there should be some: soon where a connection has failed, later where nothing is heard at all.
        let patience = if self.error.is_some() { FAILING_AFTER } else { SILENT_AFTER };
        let failing = self.outstanding > 0 && self.last_report.elapsed() > patience;
        (self.connected && !failing, self.error.as_deref())
    }

    /// What feeding waits for, if it is not just the brokers.
    pub fn waiting(&self) -> Option<Waiting> {
        if let Mode::Draining { text, since, .. } = &self.mode {
            return Some(Waiting::Rebuild { reason: text.clone(), since: *since });
        }
        self.topics.waiting()
    }

    /// Feeding again is not enough: the session must start over from the watermark, and publish again what it had published
    /// from there on.
    pub fn fault(&self) -> Option<&str> {
        match &self.mode {
            Mode::Broken(reason) => Some(reason),
            _ => None,
        }
    }

    /// Why producers were made anew since the last call.
    pub fn take_rebuilds(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.rebuilds)
    }

    /// The record that has waited longest for the broker.
    pub fn oldest(&self) -> Option<Oldest> {
        let sent = self.sent.front()?;
        let (ticket, topic) = (Ticket(self.first_ticket), self.topic_name(sent.topic));
        Some(Oldest { ticket, topic, partition: sent.partition })
    }

    /// A partition that takes nothing, where the cluster shows why.
    pub fn short(&self) -> Option<&Short> {
        self.short.as_ref()
    }

    /// A session begins, from this position on.
    pub fn begin(&mut self, confirmed: Lsn) {
        self.read_back.begin(confirmed);
    }

    fn place(&mut self, ticket: usize) -> Option<&mut Sent> {
        self.sent.get_mut(ticket.checked_sub(self.first_ticket)?)
    }

    /// Takes all that has come from librdkafka's threads, which the window bounds, and moves on: purges, rebuilds, feeds
    /// what is held. Call it when woken and at least every 20 ms while [`KafkaSink::needs_turns`].
    pub fn turn(&mut self, now: Instant, deliveries: &mut Vec<Delivery>) {
        let mut inbox = std::mem::take(&mut self.inbox);
        self.mailbox.take(&mut inbox);
        if let Some(error) = inbox.error.take() {
            self.error = Some(self.topics.with_origin(error));
        }
        self.connected &= !inbox.all_brokers_down;
        for (generation, ticket) in inbox.delivered.drain(..) {
            self.on_delivered(generation, ticket, now, deliveries);
        }
        for report in inbox.failed.drain(..) {
            if planted!(CountsThePossiblyStored) && report.possibly_persisted {
                self.on_delivered(report.generation, report.ticket, now, deliveries);
                continue;
            }
            self.on_failed(report, now, deliveries);
        }
        for answer in inbox.answers.drain(..) {
            self.on_answer(answer, now);
        }
        for answer in inbox.tails.drain(..) {
            let topic = self.topics.id(&answer.topic);
            self.read_back.answered(topic, answer);
            self.held.wake(topic);
        }
        let dropped = std::mem::take(&mut inbox.dropped);
        self.inbox = inbox;
        self.drive(now, &dropped, deliveries);
        self.watch_silence(now);
        self.feed_held(now);
        self.feed_lanes(now);
        deliveries.extend(self.there.drain(..).map(|ticket| Delivery::There { ticket }));
    }

    /// Whether time alone may change something, so that [`KafkaSink::turn`] must be called without a wake.
    pub fn needs_turns(&self) -> bool {
        !matches!(self.mode, Mode::Feeding { not_before: None })
            || !self.held.is_empty()
            || !self.there.is_empty()
            || self.topics.asking()
    }

    fn on_delivered(&mut self, generation: u32, ticket: usize, now: Instant, deliveries: &mut Vec<Delivery>) {
        let Some(sent) = self.place(ticket).filter(|sent| sent.place == Place::Out(generation)) else { return };
        sent.place = Place::Settled;
        let (topic, bytes, publish_latency) = (sent.topic, sent.bytes, now.saturating_duration_since(sent.at));
        let partition = sent.partition;
        if !self.scout.returned(generation, ticket) {
            self.opened.delivered(topic, partition, ticket, now);
            self.held.wake(topic);
        }
        self.outstanding -= 1;
        deliveries.push(Delivery::Delivered { ticket: Ticket(ticket), topic, bytes, publish_latency });
        self.heard_well(now);
        self.topics.delivered(topic);
        self.forget_settled();
        if self.isolated_left > 0 {
            self.isolated_left -= 1;
            if self.isolated_left == 0 {
                self.drain("isolation_over", "records are sent in batches again".to_owned(), false, now);
            }
        }
    }

    fn heard_well(&mut self, now: Instant) {
        self.last_report = now;
        self.silent_after = SILENT_AFTER;
        self.attempts = 0;
        self.connected = true;
        self.error = None;
    }

    fn forget_settled(&mut self) {
        while self.sent.front().is_some_and(|sent| sent.place == Place::Settled) {
            self.sent.pop_front();
            self.first_ticket += 1;
        }
    }

    /// No record is with librdkafka.
    pub fn nothing_out(&self) -> bool {
        self.outstanding == 0
    }
}

/// What a record weighs in a batch: its bytes and the framing, rounded up.
fn weight(record: &Record) -> usize {
    let len = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map_or(0, bytes::Bytes::len);
    let headers: usize = record.headers.iter().map(|header| header.name.len() + len(&header.value) + 4).sum();
    len(&record.key) + len(&record.value) + headers + 32
}

/// Exponential, from the first to the second bound.
pub(super) fn pause((least, most): (Duration, Duration), attempts: u32) -> Duration {
    least.saturating_mul(1 << attempts.min(16)).min(most)
}
