//! Rows of the table on their way to Kafka, where the log no longer has them. From the mapping on it is the road of the
//! stream: the same columns, topics, keys, headers and partitions, the same sink, the same places for what cannot be sent.
//! Only the token is missing, because the table knows no order of commits; the header of the origin stands in its place.
//!
//! Nothing here waits for ever without a word: what holds it up is logged every few seconds.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::ack::{AckTracker, ROW_OVERHEAD, Ticket};
use crate::config::{Config, OnPoison, OnRouteError};
use crate::lsn::Lsn;
use crate::outbox::row_json;
use crate::parking::reference::row_to_json;
use crate::parking::{Standing, Unit};
use crate::postgres::ConnectError;
use crate::postgres::parked::ParkedError;
use crate::relay::condition::{STALLED_AFTER, TOPIC_PATIENCE};
use crate::relay::dead_letter;
use crate::router::Record;
use crate::sink::kafka::Busy;
use crate::sink::{Delivery, KafkaSink, Waiting};
use crate::source::table::{TableReader, TableRow};

mod aside;
mod prepare;

pub use aside::Asides;
pub use prepare::{Parked, Prepared, Preparer, Tally, Unsendable};

const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// While the sink has timers of its own.
const SINK_TURN_EVERY: Duration = Duration::from_millis(20);

/// Why not all rows were published. Those that were stay in Kafka, and repeat when it is begun again.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("the table could not be read")]
    Read(#[source] Box<ConnectError>),
    #[error(transparent)]
    Unsendable(#[from] Unsendable),
    #[error("Kafka refuses a message: {described}: {sentence}")]
    Refused { described: String, reason: &'static str, topic: String, sentence: String },
    #[error("the topic {topic:?} takes no records: {problem}")]
    Topic { topic: String, problem: String, remedy: String },
    #[error("no more can be parked (parked.max_rows {messages}, parked.max_bytes {bytes})")]
    Full { messages: u64, bytes: u64 },
    #[error("rows could not be parked")]
    Parked(#[from] ParkedError),
    #[error("a record was lost between walpost and librdkafka ({0})")]
    Sink(String),
}

fn read(error: ConnectError) -> PublishError {
    PublishError::Read(Box::new(error))
}

/// Publishes all rows that `reader` has open, and returns when Kafka has confirmed every one, and what had to be set aside is
/// committed. `asides` is None where nothing can be parked.
pub async fn publish(
    config: &Config,
    reader: &mut TableReader,
    preparer: &mut Preparer,
    sink: &mut KafkaSink,
    asides: Option<Asides<'_>>,
) -> Result<(), PublishError> {
    let now = Instant::now();
    let mut tracker = AckTracker::new(Lsn::INVALID);
    // The tracker is that of a stream: all rows are one transaction that never ends here.
    tracker.begin(Lsn(1), SystemTime::now());
    let publishing = Publishing {
        config,
        preparer,
        sink,
        asides,
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
    asides: Option<Asides<'a>>,
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
            self.mind_bad_route()?;
            let done = reader.is_at_end() && self.pending.is_none() && self.tracker.in_flight().0 == 0;
            if let Some(asides) = self.asides.as_mut().filter(|asides| done || asides.is_due()) {
                asides.write(self.preparer).await?;
            }
            if done {
                return Ok(());
            }
            let open = self.pending.is_none()
                && self.tracker.window_messages() < self.config.window.messages
                && self.tracker.window_bytes() < self.config.window.bytes;
            if open && reader.wants_fetch() {
                reader.fetch().await.map_err(read)?;
            }
            let turn = self.sink.needs_turns() || self.pending.is_some();
            tokio::select! {
                biased;
                _ = progress.tick() => self.say_progress(),
                // Deliveries make room: before anything new is read.
                () = self.sink.woken() => {}
                row = reader.row(), if open && !reader.is_at_end() => {
                    if let Some(row) = row.map_err(read)? {
                        self.on_row(&row, now)?;
                    }
                }
                () = sleep(SINK_TURN_EVERY), if turn => {}
            }
        }
    }

    /// `on_poison`, as far as it can be followed.
    fn policy(&self) -> OnPoison {
        match self.config.on_poison {
            OnPoison::Park if self.asides.is_none() => OnPoison::Stop,
            policy => policy,
        }
    }

    fn on_row(&mut self, read: &TableRow, now: Instant) -> Result<(), PublishError> {
        let bytes = read.row.frame.len() + ROW_OVERHEAD;
        match self.preparer.prepare(read) {
            Ok(Prepared::Send(record)) => self.send(record, bytes, now),
            Ok(Prepared::Wait(record)) => self.set_aside(record, Standing::Waiting)?,
            Ok(Prepared::Left) => {}
            Err(unsendable) => self.on_unsendable(read, unsendable, bytes, now)?,
        }
        Ok(())
    }

    fn send(&mut self, record: Record, bytes: usize, now: Instant) {
        if self.tracker.in_flight().0 == 0 {
            self.last_delivery = now;
        }
        let ticket = self.tracker.row(0, bytes);
        self.offer(ticket, record, now);
    }

    fn offer(&mut self, ticket: Ticket, record: Record, now: Instant) {
        if let Err(Busy(record)) = self.sink.send(ticket, record, now) {
            self.pending = Some((ticket, record));
        }
    }

    fn set_aside(&mut self, record: Record, standing: Standing) -> Result<(), PublishError> {
        let Some(asides) = &mut self.asides else { return Ok(()) };
        asides.record(self.preparer, self.config, record, standing)
    }

    /// A row that cannot become a record.
    fn on_unsendable(
        &mut self,
        read: &TableRow,
        unsendable: Unsendable,
        bytes: usize,
        now: Instant,
    ) -> Result<(), PublishError> {
        let (row, policy) = (&read.row, self.policy());
        let Unsendable { described, poison, message } = &unsendable;
        let reason = poison.reason.as_str();
        match policy {
            OnPoison::Stop => return Err(unsendable.into()),
            OnPoison::Park => {
                let topic = self.preparer.place(row, message.as_deref());
                let key = message.as_ref().and_then(|message| message.aggregate_id.clone());
                let id = message.as_ref().map(|message| String::from_utf8_lossy(&message.message_id).into_owned());
                let standing = Standing::Parked { reason: reason.to_owned(), error: poison.sentence.clone() };
                let aside = aside::of_row(
                    topic,
                    key,
                    id.clone(),
                    row_to_json(row, self.preparer.lookup.as_ref(), id.as_deref()),
                    standing,
                );
                if let Some(asides) = &mut self.asides {
                    asides.put(self.preparer, aside)?;
                }
                self.preparer.tally.set_aside += 1;
            }
            OnPoison::DeadLetter => {
                tracing::error!(
                    reason,
                    "sent a row to the dead letters that cannot be published: {described}: {poison}"
                );
                let Preparer { router, origin, .. } = &mut *self.preparer;
                let record = router.as_it_is_in_the_table(row, message.as_deref(), *origin);
                self.send(dead_letter::of(self.config, record, reason, &poison.sentence), bytes, now);
                self.preparer.tally.set_aside += 1;
            }
            OnPoison::Skip => {
                self.preparer.tally.skipped += 1;
                tracing::error!(
                    reason,
                    row = row_json(row),
                    "skipped a row that cannot be published, as on_poison = \"skip\" asks: {described}: {poison}"
                );
            }
        }
        Ok(())
    }

    fn take_deliveries(&mut self, now: Instant) -> Result<(), PublishError> {
        let mut deliveries = std::mem::take(&mut self.deliveries);
        self.sink.turn(now, &mut deliveries);
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Delivered { ticket, .. } | Delivery::There { ticket } => {
                    self.tracker.delivered(ticket);
                    self.confirmed += 1;
                    self.last_delivery = now;
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
        let described = record.describe();
        let is_letter = *record.topic == *self.config.dead_letter.topic;
        match self.policy() {
            OnPoison::Park => {
                let parked = Standing::Parked { reason: reason.to_owned(), error: sentence };
                self.take_back(ticket, parked)?;
                self.preparer.tally.set_aside += 1;
                if let Some(unit) = Unit::of(&record.topic, record.key.as_ref()) {
                    // What was read behind it, and is not stored yet.
                    self.take_back_all(|other, held| other > ticket && aside::is_of(held, &unit), Standing::Waiting)?;
                }
            }
            OnPoison::DeadLetter if !is_letter => {
                tracing::error!(
                    reason,
                    "sent a message to the dead letters that Kafka refuses: {described}: {sentence}"
                );
                self.preparer.tally.withdraw(&record.topic);
                self.preparer.tally.set_aside += 1;
                self.sink.replace(ticket, dead_letter::of(self.config, record.clone(), reason, &sentence));
            }
            OnPoison::Skip => {
                tracing::error!(
                    reason,
                    topic = &*record.topic,
                    record = record.to_json(),
                    "skipped a message that Kafka refuses, as on_poison = \"skip\" asks: {described}: {sentence}"
                );
                self.sink.take(ticket);
                self.tracker.delivered(ticket);
                self.preparer.tally.withdraw(&record.topic);
                self.preparer.tally.skipped += 1;
            }
            // Also a dead letter that is refused itself.
            OnPoison::Stop | OnPoison::DeadLetter => {
                let topic = record.topic.to_string();
                return Err(PublishError::Refused { described, reason, topic, sentence });
            }
        }
        Ok(())
    }

    /// Parks a record that the sink holds, or that waits for it.
    fn take_back(&mut self, ticket: Ticket, standing: Standing) -> Result<(), PublishError> {
        let record = match self.pending.take_if(|(pending, _)| *pending == ticket) {
            Some((_, record)) => {
                self.sink.pass(ticket);
                Some(record)
            }
            None => self.sink.take(ticket),
        };
        self.tracker.delivered(ticket);
        let Some(record) = record else { return Ok(()) };
        self.preparer.tally.withdraw(&record.topic);
        if standing == Standing::Waiting {
            self.preparer.tally.waiting += 1;
        }
        self.set_aside(record, standing)
    }

    fn take_back_all(
        &mut self,
        wanted: impl Fn(Ticket, &Record) -> bool,
        standing: Standing,
    ) -> Result<(), PublishError> {
        let held = self.sink.all_held().chain(self.pending.as_ref().map(|(ticket, record)| (*ticket, record)));
        let tickets: Vec<Ticket> = held.filter(|(at, record)| wanted(*at, record)).map(|(at, _)| at).collect();
        tickets.into_iter().try_for_each(|ticket| self.take_back(ticket, standing.clone()))
    }

    /// A topic that takes no records ends the waiting, or has its records parked, where `on_route_error` says so.
    fn mind_bad_route(&mut self) -> Result<(), PublishError> {
        let policy = self.config.on_route_error;
        if policy == OnRouteError::Wait {
            return Ok(());
        }
        let Some(Waiting::Topic { topic, problem, remedy, refused_since: Some(since), .. }) = self.sink.waiting()
        else {
            return Ok(());
        };
        if since.elapsed() < TOPIC_PATIENCE {
            return Ok(());
        }
        if policy == OnRouteError::Stop || self.asides.is_none() {
            return Err(PublishError::Topic { topic, problem, remedy });
        }
        let held = self.sink.all_held().chain(self.pending.as_ref().map(|(ticket, record)| (*ticket, record)));
        let of_topic: Vec<(Ticket, Option<Unit>)> = held
            .filter(|(_, record)| *record.topic == topic)
            .map(|(ticket, record)| (ticket, Unit::of(&record.topic, record.key.as_ref())))
            .collect();
        for (ticket, unit) in of_topic {
            let queues = self.preparer.parked.as_ref().map(|parked| &parked.queues);
            let standing = match unit.zip(queues).is_some_and(|(unit, queues)| queues.has(&unit)) {
                true => Standing::Waiting,
                false => Standing::Parked { reason: "route".to_owned(), error: problem.clone() },
            };
            self.preparer.tally.set_aside += u64::from(standing != Standing::Waiting);
            self.take_back(ticket, standing)?;
        }
        Ok(())
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
