//! One life of the replication connection: rows in, records out, acknowledgements back.
//!
//! One task owns the stream and the tracker, so there is no lock and no callback across modules. Nothing in the loop
//! waits for Kafka or for SQL: both answer through channels.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::ack::{AckTracker, ROW_OVERHEAD, Remembered, Ticket};
use crate::config::{self, Config, OnPoison, OnRouteError};
use crate::error_text::ErrorText as _;
use crate::lsn::Lsn;
use crate::outbox::{Mapping, Poison, row_json};
use crate::parking::Queues;
use crate::postgres::StreamError;
use crate::postgres::control::{Control, Event, Order};
use crate::postgres::dial::Socket;
use crate::postgres::slot::SlotFacts;
use crate::relay::condition::{self, Facts, Quiet, Waits};
use crate::relay::repeated::Unreadable;
use crate::relay::shutdown::Shutdown;
use crate::router::{Record, Routed, Router, Token};
use crate::sink::kafka::Busy;
use crate::sink::refusal::GOES_ON;
use crate::sink::{Delivery, KafkaSink, TopicId, Waiting};
use crate::source::decoder::Decoder;
use crate::source::protocol::{Frame, StandbyStatusUpdate};
use crate::source::stream::{Stream, Wire};
use crate::source::{Relation, Row, SourceEvent};
use crate::telemetry::{Doing, EndStatus, SlotStatus, State, Target, Telemetry, TopicMetrics, WalStatus, human_bytes};

mod clock;
mod ending;
mod parking;
mod progress;
mod reading;
mod rows;
mod silence;
mod tally;

use clock::ServerClock;
pub use ending::Drained;
use ending::say_goodbye;
use parking::Parking;
use progress::topic_metrics;
pub use progress::{show_slot, slot_status};
use reading::{Gulp, Insistence, Pump};
use silence::Silence;
use tally::Tally;

/// A keepalive's position is worth a record once it is so far past the last one: our own record is WAL, too.
const IDLE_RECORD_BYTES: u64 = 1 << 20;
const RECORD_EVERY: Duration = Duration::from_secs(1);
const IDLE_RECORD_EVERY: Duration = Duration::from_secs(60);
/// A record that cannot be written for so long must not hold the log: then Postgres is told without it.
const RECORD_WITHIN: Duration = Duration::from_secs(30);
/// While the sink has timers of its own.
const SINK_TURN_EVERY: Duration = Duration::from_millis(20);
/// The tasks that share the loop's thread wait no longer.
const YIELD_EVERY: Duration = Duration::from_millis(1);

/// While Postgres holds the log for us.
const HELD_LOG_EVERY: Duration = Duration::from_secs(60);
/// Rows that lie ahead in time are warned about once in so long.
const EARLY_EVERY: Duration = Duration::from_secs(60);

/// Why a session ended.
#[derive(Debug)]
pub enum End {
    /// Told to stop, or caught up.
    Drained(Drained),
    /// The connection or what it carried failed.
    Failed(Failure),
    /// The server is shutting down and must not wait for us.
    ServerStopping(String),
    /// What is published is no longer what the record says.
    PublicationChanged { reason: String, remedy: String },
    /// Nothing can be done before a person decides; only where the relay was told to end when caught up.
    Stopped,
    /// Nothing more could be parked, and somebody has decided on what is: there may be room again.
    RoomAgain,
}

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the replication connection failed")]
    Stream(#[from] StreamError),
    #[error("the server sent something that is no valid pgoutput")]
    Decode(#[from] crate::source::decoder::DecodeError),
    #[error(
        "Kafka's client cannot tell what it has stored ({0}); what is not confirmed is published again from the log"
    )]
    Sink(String),
    #[error("the record in walpost.checkpoint is gone or belongs to another epoch: {0}")]
    Record(String),
}

/// What a session borrows from the relay, which outlives it.
pub struct Lent<'a> {
    pub config: &'a Arc<Config>,
    pub telemetry: &'a Arc<Telemetry>,
    pub sink: &'a mut KafkaSink,
    pub router: &'a mut Router,
    pub topics: &'a mut Vec<TopicMetrics>,
    pub shutdown: &'a mut Shutdown,
    /// What the server could not send in the sessions before, as far as nothing is confirmed.
    pub unreadable: Option<&'a Unreadable>,
}

/// Where a session begins.
pub struct Start<S = Socket> {
    pub stream: Stream<S>,
    pub control: Control,
    pub epoch: u64,
    /// Confirmed already, and recorded.
    pub confirmed: Lsn,
    /// Delivered by an earlier session of this process on the same history.
    pub remembered: Remembered,
    /// Nothing is produced before: the last holder of the slot may still have requests under way.
    pub quiet_until: Option<Instant>,
    /// End once this is confirmed.
    pub until: Option<Lsn>,
    /// What is parked; None: there is nowhere to park.
    pub queues: Option<Queues>,
    /// What may be published of it is, before anything is read: the last session had no more room.
    pub parked_first: bool,
}

/// What is left of a session, for the next one.
pub struct Left {
    pub confirmed: Lsn,
    /// The furthest position of which the server has told: up to there its log was read, or written for us.
    pub received: Lsn,
    /// Surely committed to the record.
    pub recorded: Lsn,
    /// None: nothing may be skipped when it comes again, whatever was delivered.
    pub remembered: Option<Remembered>,
    /// The confirmed position moved.
    pub progressed: bool,
    /// It ended to make room for what is to be parked.
    pub makes_room: bool,
}

/// The open transaction.
struct Transaction {
    commit_lsn: Lsn,
    /// Of the next row.
    ordinal: u32,
}

struct Table {
    relation: Arc<Relation>,
    mapping: Mapping,
}

/// A standstill that only a person ends.
struct Stop {
    reason: String,
    remedy: String,
}

pub struct Session<'a, S = Socket> {
    lent: Lent<'a>,
    stream: Stream<S>,
    control: Control,
    decoder: Decoder,
    tracker: AckTracker,
    remembered: Remembered,
    epoch: u64,
    table: Option<Table>,
    transaction: Option<Transaction>,
    /// The end of what was read: the last commit, or a later position that the server told of.
    read_to: Lsn,
    /// Read, and not taken by the sink yet. While there is one, nothing is read.
    pending: Option<(Ticket, Record)>,
    stop: Option<Stop>,
    parking: Parking,
    /// Nothing more can be parked until somebody makes room.
    full: bool,
    room_again: bool,
    quiet_until: Option<Instant>,
    until: Option<Lsn>,
    /// Committed to `walpost.checkpoint`, or confirmed before this session.
    recorded: Lsn,
    /// Committed to it by this session.
    committed: Lsn,
    /// Under way to it.
    recording: Option<(Lsn, Instant)>,
    record_asked_at: Instant,
    /// The record could not be written in time; confirmed without it.
    unrecorded: bool,
    rows_since_record: bool,
    /// In status frames since.
    confirmed: Lsn,
    begun_at: Lsn,
    draining_until: Option<Instant>,
    last_delivery: Instant,
    /// The record that waits longest, and since when it does.
    oldest_since: Option<(Ticket, Instant, SystemTime)>,
    commit_time: Option<SystemTime>,
    server_clock: ServerClock,
    insistence: Insistence,
    silence: Silence,
    /// As last seen.
    slot: Option<Box<SlotFacts>>,
    /// When the log that is held for us was last spoken of, and how much it was.
    held_log: Option<(Instant, u64)>,
    early_said_at: Option<Instant>,
    gulp: Gulp,
    deliveries: Vec<Delivery>,
    tally: Tally,
}

impl<'a, S: Wire> Session<'a, S> {
    pub fn new(lent: Lent<'a>, start: Start<S>) -> Session<'a, S> {
        let now = Instant::now();
        let parking = Parking::new(start.queues, start.parked_first, lent.config, now);
        Session {
            lent,
            stream: start.stream,
            control: start.control,
            decoder: Decoder::new(),
            tracker: AckTracker::new(start.confirmed),
            remembered: start.remembered,
            epoch: start.epoch,
            table: None,
            transaction: None,
            read_to: start.confirmed,
            pending: None,
            stop: None,
            parking,
            full: false,
            room_again: false,
            quiet_until: start.quiet_until,
            until: start.until,
            recorded: start.confirmed,
            committed: Lsn::INVALID,
            recording: None,
            record_asked_at: now.checked_sub(RECORD_EVERY).unwrap_or(now),
            unrecorded: false,
            rows_since_record: false,
            confirmed: start.confirmed,
            begun_at: start.confirmed,
            draining_until: None,
            last_delivery: now,
            oldest_since: None,
            commit_time: None,
            server_clock: ServerClock::new(now),
            insistence: Insistence::default(),
            silence: Silence::default(),
            slot: None,
            held_log: None,
            early_said_at: None,
            gulp: Gulp::new(now),
            deliveries: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Runs until the session is over, then lets go of Kafka.
    pub async fn run(mut self) -> (End, Left) {
        self.show_parked();
        self.lent.sink.begin(self.confirmed);
        let end = self.stream_rows().await.unwrap_or_else(End::Failed);
        let status = self.status_update(false);
        // What was parked is in the server's log, too.
        let received = self.stream.received().max(self.parking.flushed());
        // Of an earlier holder: what it had under way, our signing off would hide.
        let quiet = self.quiet_until.is_some_and(|until| Instant::now() < until);
        let Session {
            mut lent,
            stream,
            control,
            mut tracker,
            mut remembered,
            mut deliveries,
            confirmed,
            committed,
            begun_at,
            ..
        } = self;
        if matches!(end, End::Drained(_) | End::Stopped) {
            // What a poison message holds back is not under way.
            let nothing_out = lent.sink.nothing_out();
            say_goodbye(stream, &status, control, nothing_out && !quiet || planted!(SignsOffEarly)).await;
        } else {
            // Another relay may take the slot from here on.
            drop((stream, control));
        }
        deliveries.clear();
        lent.sink.release(&mut deliveries).await;
        for delivery in deliveries {
            if let Delivery::Delivered { ticket, topic, bytes, .. } = delivery {
                tracker.delivered(ticket);
                // It is remembered and will not come again, so it is counted here or never.
                topic_metrics(&mut lent, topic).published(1, bytes as u64);
            }
        }
        lent.telemetry.in_flight(0, 0);
        lent.telemetry.oldest_unconfirmed(None);
        remembered.merge(tracker.into_remembered());
        remembered.forget_below(confirmed);
        let remembered = (!matches!(end, End::Failed(Failure::Sink(_)))).then_some(remembered);
        let progressed = confirmed > begun_at;
        let makes_room = matches!(end, End::RoomAgain);
        (end, Left { confirmed, received, recorded: committed, remembered, progressed, makes_room })
    }

    async fn stream_rows(&mut self) -> Result<End, Failure> {
        let mut feedback = interval(self.lent.config.feedback.interval);
        feedback.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut yielded_at = Instant::now();
        loop {
            let mut now = Instant::now();
            if now.saturating_duration_since(yielded_at) > YIELD_EVERY {
                // Amid a backlog something is always ready, and the control session shares this thread.
                tokio::task::yield_now().await;
                now = Instant::now();
                yielded_at = now;
            }
            self.take_deliveries(now);
            self.work_on_parked(now);
            let pumped = self.pump(now)?;
            self.order_parking();
            self.record(now);
            self.lent.telemetry.turned();
            if let Some(reason) = self.lent.sink.fault() {
                return Err(Failure::Sink(reason.to_owned()));
            }
            if let Some(end) = self.finished(now) {
                return Ok(end);
            }
            let wake_at = self.wake_at(now);
            let waits_from = Instant::now();
            let doing = self.doing(&pumped);
            self.lent.telemetry.metrics.spent(Doing::Work, waits_from.saturating_duration_since(now));
            // In this order, because each may wait for the ones below it but never for the ones above.
            tokio::select! {
                biased;
                // A stop is a deadline: the sooner it is known, the more of it is left.
                () = self.lent.shutdown.asked(), if self.draining_until.is_none() => self.begin_draining(now, "told to stop"),
                // Feedback keeps the session alive, whatever Kafka does.
                _ = feedback.tick() => self.give_feedback().await?,
                // Deliveries open the window and move the watermark: before anything new is read.
                () = self.lent.sink.woken() => {}
                event = self.control.event() => if let Some(end) = self.on_control(event).await? { return Ok(end) },
                () = sleep_until(wake_at.unwrap_or(now)), if wake_at.is_some() => {}
                () = std::future::ready(()), if pumped == Pump::More => {}
                read = self.stream.readable(), if pumped == Pump::Empty && self.gulp.until.is_none() => {
                    self.gulp.read(read?, Instant::now());
                    self.silence.broken();
                }
            }
            // Rows, orders and deliveries are worked on at the top of the loop; here it has waited.
            self.lent.telemetry.metrics.spent(doing, waits_from.elapsed());
        }
    }

    /// The next moment at which something happens by time alone.
    fn wake_at(&self, now: Instant) -> Option<Instant> {
        let sink = (self.lent.sink.needs_turns() || self.pending.is_some()).then(|| now + SINK_TURN_EVERY);
        [sink, self.gulp.until, self.quiet_until, self.draining_until].into_iter().flatten().min()
    }

    fn take_deliveries(&mut self, now: Instant) {
        let mut deliveries = std::mem::take(&mut self.deliveries);
        self.lent.sink.turn(now, &mut deliveries);
        let (telemetry, clock) = (self.lent.telemetry, SystemTime::now());
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Delivered { ticket, topic, bytes, publish_latency } => {
                    let parked = self.republished(ticket);
                    let committed = self.tracker.delivered(ticket).filter(|_| !parked);
                    let lent = &mut self.lent;
                    self.tally.add(
                        (topic, committed, bytes),
                        publish_latency,
                        clock,
                        &telemetry.metrics,
                        move |topic| topic_metrics(lent, topic),
                    );
                    self.last_delivery = now;
                    self.rows_since_record = true;
                }
                Delivery::There { ticket } => {
                    self.tracker.delivered(ticket);
                    self.lent.telemetry.metrics.messages_skipped.inc();
                    self.last_delivery = now;
                    self.rows_since_record = true;
                }
                Delivery::Poison { ticket, reason, sentence, record } => {
                    self.on_refused(ticket, reason, &sentence, &record)
                }
            }
        }
        self.deliveries = deliveries;
        let lent = &mut self.lent;
        self.tally.end(clock, &telemetry.metrics, move |topic| topic_metrics(lent, topic));
        self.stop_at_bad_route();
        for reason in self.lent.sink.take_rebuilds() {
            self.lent.telemetry.metrics.retry(Target::Kafka, reason);
        }
        if let Some((ticket, record)) = self.pending.take() {
            self.offer(ticket, record, now);
        }
        let (messages, bytes) = self.tracker.in_flight();
        self.lent.telemetry.in_flight(messages as u64, bytes as u64);
    }

    fn offer(&mut self, ticket: Ticket, record: Record, now: Instant) {
        if let Err(Busy(record)) = self.lent.sink.send(ticket, record, now) {
            self.pending = Some((ticket, record));
        }
    }

    /// The broker has proved that a record can never be stored as it is.
    fn on_refused(&mut self, ticket: Ticket, reason: &'static str, sentence: &str, record: &Record) {
        self.lent.telemetry.metrics.failed(reason);
        if self.republishing_failed(ticket, reason, sentence) {
            return;
        }
        let row = record.describe();
        match self.policy() {
            OnPoison::Park if self.park_refused(ticket, reason, sentence) => {}
            OnPoison::Park => {
                self.lent.sink.freeze(ticket);
                self.stop_full(&row);
            }
            OnPoison::DeadLetter if *record.topic != *self.lent.config.dead_letter.topic => {
                tracing::error!(reason, "sent a message to the dead letters that Kafka refuses: {row}: {sentence}");
                let letter = self.dead_letter(record.clone(), reason, sentence);
                self.lent.sink.replace(ticket, letter);
            }
            OnPoison::Skip => {
                tracing::error!(
                    reason,
                    topic = &*record.topic,
                    record = record.to_json(),
                    "skipped a message that Kafka refuses, as on_poison = \"skip\" asks: {row}: {sentence}"
                );
                self.lent.sink.take(ticket);
                self.tracker.delivered(ticket);
                self.lent.telemetry.metrics.messages_skipped.inc();
                self.rows_since_record = true;
            }
            // Also a dead letter that is refused itself.
            OnPoison::Stop | OnPoison::DeadLetter => {
                self.lent.sink.freeze(ticket);
                let remedy = match reason {
                    "too_large" => format!(
                        "raise max.message.bytes of the topic {:?} and restart walpost, or restart it with \
                         on_poison = \"skip\" to leave the message out",
                        &*record.topic
                    ),
                    _ => "make the topic accept it and restart walpost, or restart it with on_poison = \"skip\" to \
                          leave the message out"
                        .to_owned(),
                };
                self.stop_at(format!("Kafka refuses a message: {row}: {sentence}"), remedy);
            }
        }
    }

    /// `on_poison`, as far as it can be followed.
    fn policy(&self) -> OnPoison {
        match self.lent.config.on_poison {
            OnPoison::Park if !self.parking.is_possible() => OnPoison::Stop,
            policy => policy,
        }
    }

    fn stop_full(&mut self, row: &str) {
        self.full = true;
        let config::Parked { max_rows, max_bytes } = self.lent.config.parked;
        self.stop_at(
            format!("no more can be parked (parked.max_rows {max_rows}, parked.max_bytes {max_bytes}), and there is {row}"),
            "see what is parked (walpost parked list), publish or discard it (walpost parked retry, walpost parked discard), or \
             raise the limits and restart walpost; it goes on by itself as soon as there is room"
                .to_owned(),
        );
    }

    fn stop_at(&mut self, reason: String, remedy: String) {
        if self.stop.is_none() {
            self.stop = Some(Stop { reason, remedy });
            self.show_state(Instant::now());
        }
    }
}
