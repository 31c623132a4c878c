//! Rows of the table on their way to Kafka, where the log no longer has them. From the mapping on it is the road of the
//! stream: the same columns, topics, keys, headers and partitions, the same sink. Only the token is missing, because the
//! table knows no order of commits; the header of the origin stands in its place.
//!
//! Nothing here waits for ever without a word: what holds it up is logged every few seconds.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::ack::{AckTracker, Ticket};
use crate::config::{Config, OnPoison, OnRouteError};
use crate::lsn::Lsn;
use crate::outbox::{Field, Mapping, MappingError, row_json};
use crate::parking::{Aside, Limits, Position, Queues, Standing};
use crate::postgres::parked::{Lot, ParkedError};
use crate::postgres::{Client, ConnectError};
use crate::relay::condition::{STALLED_AFTER, TOPIC_PATIENCE};
use crate::router::{Origin, Record, Routed, Router, TemplateError};
use crate::sink::kafka::Busy;
use crate::sink::{Delivery, KafkaSink, Waiting};
use crate::source::table::{TableReader, TableRow};
use crate::source::{Relation, Row};

const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// While the sink has timers of its own.
const SINK_TURN_EVERY: Duration = Duration::from_millis(20);
/// What a row costs beside its bytes, roughly: its record and its place in the queues.
const ROW_OVERHEAD: usize = 128;
/// Rows that are put on the shelf with one statement.
const SHELF_MESSAGES: usize = 500;
/// Topics that are counted by name.
const TOPICS_MAX: usize = 1_000;
/// Stands for the others.
const OTHER_TOPICS: &str = "(other topics)";

/// What was read, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Became records. After [`publish`]: and Kafka has them.
    pub rows: u64,
    /// Left out, because the settings say so.
    pub skipped: u64,
    /// Parked already, or put behind a parked message of the same topic and key.
    pub parked: u64,
    /// Of the rows, those that a polling relay has marked as published.
    pub marked: u64,
    /// The `id` (or message id) of the first and the last of the rows, in the order in which they were read.
    pub first_id: Option<String>,
    pub last_id: Option<String>,
    pub topics: BTreeMap<Arc<str>, u64>,
}

/// A row that can never be sent as it is.
#[derive(Debug, thiserror::Error)]
#[error("a row cannot be published: {described}: {why}")]
pub struct Unsendable {
    pub described: String,
    pub reason: &'static str,
    pub why: String,
}

/// The settings do not fit the table.
#[derive(Debug, thiserror::Error)]
pub enum UnfitError {
    #[error("the settings do not fit the table")]
    Mapping(#[from] Box<MappingError>),
    #[error("route.topic cannot be used")]
    Template(#[from] TemplateError),
}

/// Makes the records of rows, and keeps the tally.
pub struct Preparer {
    router: Router,
    mapping: Mapping,
    origin: Origin,
    id_column: Option<usize>,
    /// The ids of messages that are parked: they stay where they are.
    pub parked: HashSet<String>,
    pub tally: Tally,
}

impl Preparer {
    pub fn new(config: &Config, relation: &Relation, origin: Origin) -> Result<Preparer, UnfitError> {
        let mapping = Mapping::resolve(relation, &config.columns, config.preset).map_err(Box::new)?;
        let mut router = Router::new(config)?;
        router.bind(relation, &mapping).map_err(Box::new)?;
        let id_column = mapping.column(Field::Id);
        Ok(Preparer { router, mapping, origin, id_column, parked: HashSet::new(), tally: Tally::default() })
    }

    /// The record of a row; None: it is left out.
    pub fn prepare(&mut self, read: &TableRow) -> Result<Option<Record>, Unsendable> {
        let row = &read.row;
        let unsendable = |described: String, poison: crate::outbox::Poison| Unsendable {
            described,
            reason: poison.reason.as_str(),
            why: poison.sentence,
        };
        let id = |row: &Row, message_id: &[u8]| {
            let id = self.id_column.and_then(|column| row.text(column));
            String::from_utf8_lossy(id.as_deref().unwrap_or(message_id)).into_owned()
        };
        let message = match self.mapping.message(row) {
            Ok(message) => message,
            Err(poison) => return Err(unsendable(format!("id {}", id(row, b"unknown")), poison)),
        };
        if !self.parked.is_empty() && self.parked.contains(&*String::from_utf8_lossy(&message.message_id)) {
            self.tally.parked += 1;
            return Ok(None);
        }
        let id = id(row, &message.message_id);
        let routed = self.router.route_from_table(&message, row, self.origin);
        let record = match routed.map_err(|poison| unsendable(message.describe().to_string(), poison))? {
            Routed::Publish(record) => record,
            Routed::Skip(_) => {
                self.tally.skipped += 1;
                return Ok(None);
            }
        };
        let tally = &mut self.tally;
        tally.rows += 1;
        tally.marked += u64::from(read.marked);
        tally.first_id.get_or_insert_with(|| id.clone());
        tally.last_id = Some(id);
        *tally.topic(&record.topic) += 1;
        Ok(Some(record))
    }
}

/// Where rows wait whose topic and key has parked messages. The relay publishes them in its time.
pub struct Shelf<'a> {
    client: &'a Client,
    lot: Lot,
    queues: Queues,
    limits: Limits,
    /// Behind everything that was streamed, before everything that will be.
    position: Lsn,
    ordinal: u32,
    outgoing: Vec<Aside>,
}

impl<'a> Shelf<'a> {
    pub async fn load(client: &'a Client, lot: Lot, config: &Config, position: Lsn) -> Result<Shelf<'a>, ParkedError> {
        let queues = lot.load(client).await?;
        let limits = Limits { messages: config.parked.max_rows, bytes: config.parked.max_bytes };
        Ok(Shelf { client, lot, queues, limits, position, ordinal: 0, outgoing: Vec::new() })
    }

    fn holds(&self, record: &Record) -> bool {
        self.queues.holds(&record.topic, record.key.as_ref(), Position { commit_lsn: self.position, ordinal: u32::MAX })
    }

    fn add(&mut self, record: Record, id_header: &str) {
        let message_id = record.header(id_header).map(|id| String::from_utf8_lossy(id).into_owned());
        let position = Position { commit_lsn: self.position, ordinal: self.ordinal };
        self.ordinal += 1;
        let Record { topic, key, value, headers, .. } = record;
        let standing = Standing::Waiting;
        self.outgoing.push(Aside {
            position,
            message_id,
            topic: Some(topic),
            key,
            value,
            headers,
            row: None,
            standing,
        });
    }

    async fn write(&mut self) -> Result<(), PublishError> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        let bytes = self.outgoing.iter().map(Aside::bytes).sum();
        if !self.queues.has_room(self.limits, self.outgoing.len() as u64, bytes) {
            return Err(PublishError::Full);
        }
        let (added, _) = self.lot.park(self.client, &self.outgoing).await?;
        self.queues.added(added.messages, added.bytes);
        self.outgoing.clear();
        Ok(())
    }
}

impl Tally {
    fn topic(&mut self, topic: &Arc<str>) -> &mut u64 {
        let known = self.topics.contains_key(topic) || self.topics.len() < TOPICS_MAX;
        self.topics.entry(if known { topic.clone() } else { OTHER_TOPICS.into() }).or_default()
    }
}

/// Why not all rows were published. Those that were stay in Kafka, and repeat when it is begun again.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("the table could not be read")]
    Read(#[from] Box<ConnectError>),
    #[error(transparent)]
    Unsendable(#[from] Unsendable),
    #[error("Kafka refuses a message: {described}: {sentence}")]
    Refused { described: String, reason: &'static str, topic: String, sentence: String },
    #[error("the topic {topic:?} takes no records: {problem}")]
    Topic { topic: String, problem: String, remedy: String },
    #[error("Kafka's client cannot tell what it has stored ({0})")]
    Sink(String),
    #[error(transparent)]
    Parked(#[from] ParkedError),
    #[error("no more can be parked (parked.max_rows, parked.max_bytes); see walpost parked list")]
    Full,
}

/// Publishes all rows that `reader` has open, and returns when Kafka has confirmed every one.
pub async fn publish(
    config: &Config,
    reader: &mut TableReader,
    preparer: &mut Preparer,
    sink: &mut KafkaSink,
    shelf: Option<Shelf<'_>>,
) -> Result<(), PublishError> {
    let now = Instant::now();
    let mut tracker = AckTracker::new(Lsn::INVALID);
    // The tracker is that of a stream: all rows are one transaction that never ends here.
    tracker.begin(Lsn(1), SystemTime::now());
    let publishing = Publishing {
        config,
        preparer,
        sink,
        shelf,
        tracker,
        pending: None,
        confirmed: 0,
        last_delivery: now,
        deliveries: Vec::new(),
    };
    publishing.run(reader).await
}

struct Publishing<'a> {
    config: &'a Config,
    preparer: &'a mut Preparer,
    sink: &'a mut KafkaSink,
    /// None: nothing is parked.
    shelf: Option<Shelf<'a>>,
    tracker: AckTracker,
    /// Read, and not taken by the sink yet.
    pending: Option<(Ticket, Record)>,
    confirmed: u64,
    last_delivery: Instant,
    deliveries: Vec<Delivery>,
}

impl Publishing<'_> {
    async fn run(mut self, reader: &mut TableReader) -> Result<(), PublishError> {
        let mut progress = interval_at(Instant::now() + PROGRESS_EVERY, PROGRESS_EVERY);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = Instant::now();
            self.take_deliveries(now)?;
            if let Some(reason) = self.sink.fault() {
                return Err(PublishError::Sink(reason.to_owned()));
            }
            self.stop_at_bad_route()?;
            if let Some(shelf) =
                self.shelf.as_mut().filter(|shelf| reader.is_at_end() || shelf.outgoing.len() >= SHELF_MESSAGES)
            {
                shelf.write().await?;
            }
            if reader.is_at_end() && self.pending.is_none() && self.tracker.in_flight().0 == 0 {
                return Ok(());
            }
            let open = self.pending.is_none()
                && self.tracker.window_messages() < self.config.window.messages
                && self.tracker.window_bytes() < self.config.window.bytes;
            if open && reader.wants_fetch() {
                reader.fetch().await.map_err(Box::new)?;
            }
            let turn = self.sink.needs_turns() || self.pending.is_some();
            tokio::select! {
                biased;
                _ = progress.tick() => self.say_progress(),
                // Deliveries make room: before anything new is read.
                () = self.sink.woken() => {}
                row = reader.row(), if open && !reader.is_at_end() => if let Some(row) = row.map_err(Box::new)? { self.on_row(&row, now)? },
                () = sleep(SINK_TURN_EVERY), if turn => {}
            }
        }
    }

    fn on_row(&mut self, read: &TableRow, now: Instant) -> Result<(), PublishError> {
        match self.preparer.prepare(read) {
            Ok(Some(record)) if self.shelf.as_ref().is_some_and(|shelf| shelf.holds(&record)) => {
                let tally = &mut self.preparer.tally;
                tally.rows = tally.rows.saturating_sub(1);
                tally.parked += 1;
                let of_topic = tally.topic(&record.topic);
                *of_topic = of_topic.saturating_sub(1);
                if let Some(shelf) = &mut self.shelf {
                    shelf.add(record, &self.config.headers.id);
                }
            }
            Ok(Some(record)) => {
                if self.tracker.in_flight().0 == 0 {
                    self.last_delivery = now;
                }
                let ticket = self.tracker.row(0, read.row.frame.len() + ROW_OVERHEAD);
                self.offer(ticket, record, now);
            }
            Ok(None) => {}
            // The row is in the table, where it can be corrected.
            Err(unsendable) if self.config.on_poison != OnPoison::Skip => return Err(unsendable.into()),
            Err(Unsendable { described, reason, why }) => {
                self.preparer.tally.skipped += 1;
                tracing::error!(
                    reason,
                    row = row_json(&read.row),
                    "skipped a row that cannot be published, as on_poison = \"skip\" asks: {described}: {why}"
                );
            }
        }
        Ok(())
    }

    fn offer(&mut self, ticket: Ticket, record: Record, now: Instant) {
        if let Err(Busy(record)) = self.sink.send(ticket, record, now) {
            self.pending = Some((ticket, record));
        }
    }

    fn take_deliveries(&mut self, now: Instant) -> Result<(), PublishError> {
        let mut deliveries = std::mem::take(&mut self.deliveries);
        self.sink.turn(now, &mut deliveries);
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Delivered { ticket, .. } => {
                    self.tracker.delivered(ticket);
                    self.confirmed += 1;
                    self.last_delivery = now;
                }
                // Never: a record without a token is not looked for.
                Delivery::There { ticket } => {
                    self.tracker.delivered(ticket);
                }
                Delivery::Poison { ticket, reason, sentence, record } => {
                    self.on_refused(ticket, reason, sentence, &record)?;
                }
            }
        }
        self.deliveries = deliveries;
        if let Some((ticket, record)) = self.pending.take() {
            self.offer(ticket, record, now);
        }
        Ok(())
    }

    /// The broker has proved that a record can never be stored as it is.
    fn on_refused(
        &mut self,
        ticket: Ticket,
        reason: &'static str,
        sentence: String,
        record: &Record,
    ) -> Result<(), PublishError> {
        let (described, topic) = (record.describe(), record.topic.to_string());
        if self.config.on_poison != OnPoison::Skip {
            return Err(PublishError::Refused { described, reason, topic, sentence });
        }
        tracing::error!(
            reason,
            topic,
            record = record.to_json(),
            "skipped a message that Kafka refuses, as on_poison = \"skip\" asks: {described}: {sentence}"
        );
        self.sink.take(ticket);
        self.tracker.delivered(ticket);
        let tally = &mut self.preparer.tally;
        tally.rows = tally.rows.saturating_sub(1);
        tally.skipped += 1;
        let of_topic = tally.topic(&record.topic);
        *of_topic = of_topic.saturating_sub(1);
        Ok(())
    }

    /// `on_route_error = "stop"`: a topic that takes no records ends the waiting.
    fn stop_at_bad_route(&self) -> Result<(), PublishError> {
        if self.config.on_route_error != OnRouteError::Stop {
            return Ok(());
        }
        match self.sink.waiting() {
            Some(Waiting::Topic { topic, problem, remedy, refused_since: Some(since), .. })
                if since.elapsed() >= TOPIC_PATIENCE =>
            {
                Err(PublishError::Topic { topic, problem, remedy })
            }
            _ => Ok(()),
        }
    }

    fn say_progress(&self) {
        let (confirmed, in_flight) = (self.confirmed, self.tracker.in_flight().0);
        let waits = in_flight > 0 || self.pending.is_some();
        if !waits || self.last_delivery.elapsed() < STALLED_AFTER {
            tracing::info!(confirmed, in_flight, "{confirmed} rows are published so far");
            return;
        }
        let why = match self.sink.waiting() {
            Some(Waiting::Topic { topic, problem, remedy, .. }) => {
                format!("the topic {topic:?} takes no records: {problem}; {remedy}")
            }
            Some(Waiting::Rebuild { reason, .. }) => format!("a failed delivery is being healed: {reason}"),
            None => match self.sink.connection().1 {
                Some(error) => format!("last error of a connection: {error}"),
                None => "the brokers do not answer; no connection error is known".to_owned(),
            },
        };
        tracing::warn!(
            confirmed,
            in_flight,
            "Kafka has confirmed nothing for over {} s, {confirmed} rows before: {why}",
            STALLED_AFTER.as_secs()
        );
    }
}
