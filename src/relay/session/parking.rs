//! What becomes of messages that cannot be sent: set aside, and what comes later for their topic and key behind them;
//! published again, in order, when somebody asks for it.
//!
//! A message that is set aside stays in flight until the table has committed it, and its row is confirmed to Postgres only
//! when the stream has passed that commit: a standby that is promoted then has the one or the other.

use super::*;
use crate::ack::ROW_OVERHEAD;
use crate::outbox::{OutboxMessage, PoisonReason, Shown};
use crate::parking::reference::{Lookup, row_to_json};
use crate::parking::{Aside, Limits, Position, Queues, Standing, Unit, kept_bytes};
use crate::postgres::parked::{Outcome, Wish, Work};
use crate::relay::dead_letter;

mod republish;

/// What one order to the table carries at most; the first message always.
const ORDER_MESSAGES: usize = 1_000;
const ORDER_BYTES: u64 = 8 << 20;

/// The session's part of parking. See the module.
pub(super) struct Parking {
    /// None: there is nowhere to park.
    queues: Option<Queues>,
    limits: Limits,
    /// To be ordered.
    outgoing: VecDeque<(Ticket, Aside)>,
    outgoing_bytes: u64,
    /// Ordered and not committed.
    under_way: Vec<(Ticket, Position, Option<Unit>)>,
    under_way_bytes: u64,
    /// Committed: where the row stands, and what the stream must have passed before the row is confirmed.
    unpassed: VecDeque<(Lsn, Lsn)>,
    /// The newest of them, passed or not.
    flushed: Lsn,
    work: WorkInHand,
    look_at: Instant,
    /// Nothing is read before everything has been published or discarded that may be.
    first: bool,
}

/// Parked messages that are being published again.
enum WorkInHand {
    None,
    /// Asked for.
    Looking,
    Publishing {
        /// Not offered yet, in order.
        waiting: VecDeque<(i64, Option<Unit>, Record)>,
        /// With the sink.
        out: BTreeMap<Ticket, (i64, Option<Unit>)>,
        outcome: Outcome,
    },
    /// The outcome is being written.
    Settling,
}

impl Parking {
    pub(super) fn new(queues: Option<Queues>, first: bool, config: &Config, now: Instant) -> Parking {
        Parking {
            queues,
            limits: Limits { messages: config.parked.max_rows, bytes: config.parked.max_bytes },
            outgoing: VecDeque::new(),
            outgoing_bytes: 0,
            under_way: Vec::new(),
            under_way_bytes: 0,
            unpassed: VecDeque::new(),
            flushed: Lsn::INVALID,
            work: WorkInHand::None,
            look_at: now,
            first,
        }
    }

    pub(super) fn is_possible(&self) -> bool {
        self.queues.is_some()
    }

    /// Whether a row must wait behind one that is parked.
    pub(super) fn holds(&self, record: &Record, position: Position) -> bool {
        self.queues.as_ref().is_some_and(|queues| queues.holds(&record.topic, record.key.as_ref(), position))
    }

    /// Nothing waits to be written, and nothing is being published again.
    pub(super) fn is_idle(&self) -> bool {
        self.outgoing.is_empty()
            && self.under_way.is_empty()
            && !matches!(self.work, WorkInHand::Publishing { .. } | WorkInHand::Settling)
    }

    /// For so many messages more, of so many bytes together.
    pub(super) fn has_room(&self, messages: u64, bytes: u64) -> bool {
        let ordered = (self.outgoing.len() + self.under_way.len()) as u64;
        let bytes = bytes + self.outgoing_bytes + self.under_way_bytes;
        self.queues.as_ref().is_some_and(|queues| queues.has_room(self.limits, messages + ordered, bytes))
    }

    /// What may be published from it comes before anything new is read: where the session before had no more room, else it
    /// would run into the same wall; and when it is over half full.
    pub(super) fn comes_first(&self) -> bool {
        let Some(queues) = self.queues.as_ref().filter(|queues| !queues.is_empty()) else { return false };
        let tight = queues.messages() * 2 > self.limits.messages || queues.bytes() * 2 > self.limits.bytes;
        self.first || tight && !matches!(self.work, WorkInHand::None)
    }

    /// Up to where the server's log was on disk when a message was last parked.
    pub(super) fn flushed(&self) -> Lsn {
        self.flushed
    }

    /// The stream has passed every commit that set a message aside.
    pub(super) fn is_passed(&self, received: Lsn) -> bool {
        self.unpassed.iter().all(|(_, flushed)| *flushed <= received)
    }

    /// What may be confirmed of `watermark`: nothing of a row whose place in the table the stream has not passed.
    fn confirmable(&mut self, watermark: Lsn, received: Lsn) -> Lsn {
        self.unpassed.retain(|(_, flushed)| *flushed > received);
        self.unpassed.iter().map(|(commit_lsn, _)| *commit_lsn).fold(watermark, Lsn::min)
    }
}

impl<S: Wire> Session<'_, S> {
    /// The position that may be recorded and confirmed.
    pub(super) fn confirmable(&mut self) -> Lsn {
        let (watermark, received) = (self.tracker.watermark(), self.stream.received());
        self.parking.confirmable(watermark, received)
    }

    /// Sets a message aside that has a ticket. There must be room.
    fn park(&mut self, ticket: Ticket, aside: Aside) {
        if let (Some(unit), Some(queues)) = (aside.unit(), &mut self.parking.queues) {
            queues.hold(unit, aside.position);
        }
        if let Standing::Parked { reason, error } = &aside.standing {
            tracing::error!(
                reason,
                topic = aside.topic.as_deref(),
                message_id = aside.message_id.as_deref(),
                commit_lsn = %aside.position.commit_lsn,
                "parked a message that cannot be sent as it is; later ones of its topic and key wait behind it (see walpost \
                 parked list): {error}"
            );
        }
        self.parking.outgoing_bytes += aside.bytes();
        let behind = self.parking.outgoing.iter().rposition(|(earlier, _)| *earlier < ticket);
        self.parking.outgoing.insert(behind.map_or(0, |behind| behind + 1), (ticket, aside));
    }

    /// Where a value is found again that is too large to be kept.
    fn lookup(&self) -> Option<Lookup> {
        self.table.as_ref().and_then(|table| Lookup::of(&table.relation, &table.mapping))
    }

    /// A record with a ticket that is not with the sink any more.
    fn park_record(&mut self, ticket: Ticket, record: Record, standing: Standing) {
        let position = self.tracker.position(ticket).unwrap_or_default();
        let message_id = record.header(&self.lent.config.headers.id);
        let message_id = message_id.map(|value| String::from_utf8_lossy(value).into_owned());
        let Record { topic, key, value, headers, .. } = record;
        let aside = Aside { position, message_id, topic: Some(topic), key, value, headers, row: None, standing };
        let aside = aside.by_reference(self.lookup().as_ref());
        self.park(ticket, aside);
    }

    /// A record of the stream that waits behind a parked one. False: there is no room for it.
    #[must_use]
    pub(super) fn park_behind(&mut self, record: Record, ordinal: u32, bytes: usize) -> bool {
        if !self.parking.has_room(1, value_bytes(&record)) {
            return false;
        }
        let ticket = self.tracker.row(ordinal, bytes);
        self.lent.sink.pass(ticket);
        self.park_record(ticket, record, Standing::Waiting);
        true
    }

    /// A row of the stream that cannot become a record. False: there is no room for it.
    #[must_use]
    pub(super) fn park_row(
        &mut self,
        row: &Row,
        message: Option<&OutboxMessage>,
        poison: &Poison,
        position: Position,
    ) -> bool {
        let message_id = message.map(|message| String::from_utf8_lossy(&message.message_id).into_owned());
        let aside = Aside {
            position,
            row: Some(row_to_json(row, self.lookup().as_ref(), message_id.as_deref())),
            message_id,
            topic: message.and_then(|message| self.lent.router.topic(message, row).ok()),
            key: message.and_then(|message| message.aggregate_id.clone()),
            value: None,
            headers: Vec::new(),
            standing: Standing::Parked { reason: poison.reason.as_str().to_owned(), error: poison.sentence.clone() },
        };
        if !self.parking.has_room(1, aside.bytes()) {
            return false;
        }
        let ticket = self.tracker.row(position.ordinal, row.frame.len() + ROW_OVERHEAD);
        self.lent.sink.pass(ticket);
        self.park(ticket, aside);
        true
    }

    /// A record that the broker refused, and what the sink holds behind it of the same topic and key. False: there is no room
    /// for all of them, and only the oldest were set aside.
    #[must_use]
    pub(super) fn park_refused(&mut self, ticket: Ticket, reason: &str, sentence: &str) -> bool {
        if self.republishing_failed(ticket, reason, sentence) {
            return true;
        }
        let Some(record) = self.lent.sink.held(ticket) else { return true };
        let Some(unit) = Unit::of(&record.topic, record.key.as_ref()) else {
            if !self.parking.has_room(1, value_bytes(record)) {
                return false;
            }
            let standing = Standing::Parked { reason: reason.to_owned(), error: sentence.to_owned() };
            if let Some(record) = self.lent.sink.take(ticket) {
                self.park_record(ticket, record, standing);
            }
            return true;
        };
        // They stay in the table; their turn comes after this one's.
        self.forget_republishing(&unit);
        let first = Standing::Parked { reason: reason.to_owned(), error: sentence.to_owned() };
        let standing =
            |_: &Queues, other: Ticket, _: &Record| if other == ticket { first.clone() } else { Standing::Waiting };
        let behind = |other: Ticket, record: &Record| other >= ticket && is_of(record, &unit);
        if self.park_all(behind, standing) {
            return true;
        }
        // As many as there is room for, the oldest first: somebody who then makes room finds something to discard.
        if let Some(last) = self.last_with_room(behind) {
            self.park_all(|other, record| other <= last && behind(other, record), standing);
        }
        false
    }

    /// The last of what is wanted and held, in its order, that there is room for with all before it.
    fn last_with_room(&self, wanted: impl Fn(Ticket, &Record) -> bool) -> Option<Ticket> {
        let (mut messages, mut bytes, mut last) = (0, 0, None);
        for (ticket, record) in self.lent.sink.all_held().filter(|(ticket, record)| wanted(*ticket, record)) {
            messages += 1;
            bytes += value_bytes(record);
            if !self.parking.has_room(messages, bytes) {
                break;
            }
            last = Some(ticket);
        }
        last
    }

    /// `on_route_error = "park"`: all that is held for a topic. False: there is no room for it.
    #[must_use]
    pub(super) fn park_topic(&mut self, topic: &str, problem: &str) -> bool {
        let republished: Vec<Ticket> = match &self.parking.work {
            WorkInHand::Publishing { out, .. } => out.keys().copied().collect(),
            _ => Vec::new(),
        };
        for ticket in republished {
            let pending = self.pending.as_ref().filter(|(pending, _)| *pending == ticket).map(|(_, record)| record);
            if self.lent.sink.held(ticket).or(pending).is_some_and(|record| &*record.topic == topic) {
                self.republishing_failed(ticket, "route", problem);
            }
        }
        self.park_all(
            |_, record| &*record.topic == topic,
            |queues, _, record| {
                let unit = Unit::of(&record.topic, record.key.as_ref());
                match unit {
                    Some(unit) if queues.has(&unit) => Standing::Waiting,
                    _ => Standing::Parked { reason: "route".to_owned(), error: problem.to_owned() },
                }
            },
        )
    }

    /// Parks what is wanted of all that is held, and of the record that waits for the sink. False: there is no room for all of
    /// it, and nothing is done.
    fn park_all(
        &mut self,
        wanted: impl Fn(Ticket, &Record) -> bool,
        standing: impl Fn(&Queues, Ticket, &Record) -> Standing,
    ) -> bool {
        let held = self.lent.sink.all_held().filter(|(ticket, record)| wanted(*ticket, record));
        let pending = self.pending.as_ref().filter(|(ticket, record)| wanted(*ticket, record));
        let weights = held.map(|(_, record)| record).chain(pending.map(|(_, record)| record)).map(value_bytes);
        let (messages, bytes) = weights.fold((0, 0), |(messages, bytes), more| (messages + 1, bytes + more));
        // With nothing to park the table may be over its limit: nothing is wanted of it.
        if messages > 0 && !self.parking.has_room(messages, bytes) {
            return false;
        }
        let mut taken = self.lent.sink.take_held(&wanted);
        if let Some((ticket, record)) = self.pending.take_if(|(ticket, record)| wanted(*ticket, record)) {
            self.lent.sink.pass(ticket);
            taken.push((ticket, record));
        }
        for (ticket, record) in taken {
            let Some(queues) = &self.parking.queues else { return false };
            let standing = standing(queues, ticket, &record);
            self.park_record(ticket, record, standing);
        }
        true
    }

    /// Gives the next order to the table. One at a time: what comes meanwhile goes with the next one.
    pub(super) fn order_parking(&mut self) {
        if !self.parking.under_way.is_empty() || self.parking.outgoing.is_empty() {
            return;
        }
        let (mut asides, mut bytes) = (Vec::new(), 0);
        while !self.is_ahead_of_its_key() {
            let Some((ticket, aside)) = self.parking.outgoing.pop_front() else { break };
            bytes += aside.bytes();
            if planted!(ConfirmsBeforeItIsParked) {
                self.tracker.delivered(ticket);
            }
            self.parking.under_way.push((ticket, aside.position, aside.unit()));
            asides.push(aside);
            if asides.len() >= ORDER_MESSAGES || bytes >= ORDER_BYTES {
                break;
            }
        }
        if asides.is_empty() {
            return;
        }
        self.parking.outgoing_bytes = self.parking.outgoing_bytes.saturating_sub(bytes);
        self.parking.under_way_bytes = bytes;
        self.control.order(Order::Park(asides));
    }

    /// Whether an earlier record of the topic and key of what is to be parked next is on its way. Were that refused, too, and
    /// the session cut between the two commits, somebody could ask for the later one to be published first.
    fn is_ahead_of_its_key(&mut self) -> bool {
        let Some((ticket, aside)) = self.parking.outgoing.front() else { return false };
        if aside.standing == Standing::Waiting {
            return false;
        }
        let Some(Unit { topic, key }) = aside.unit() else { return false };
        let hash = self.lent.router.partition_hash(Some(&key), &[]);
        self.lent.sink.waits_before(*ticket, &topic, hash)
    }

    /// The table has committed what was ordered.
    pub(super) fn on_parked(&mut self, messages: u64, bytes: u64, flushed: Lsn) {
        for (ticket, position, _) in std::mem::take(&mut self.parking.under_way) {
            self.tracker.delivered(ticket);
            self.parking.unpassed.push_back((position.commit_lsn, flushed));
            self.lent.telemetry.metrics.messages_parked.inc();
        }
        self.parking.under_way_bytes = 0;
        self.parking.flushed = self.parking.flushed.max(flushed);
        if let Some(queues) = &mut self.parking.queues {
            queues.added(messages, bytes);
        }
        self.rows_since_record = true;
        self.last_delivery = Instant::now();
        self.show_parked();
    }

    /// How much the table really holds.
    pub(super) fn on_parked_size(&mut self, messages: u64, bytes: u64) {
        if let Some(queues) = &mut self.parking.queues {
            // What was removed without our hearing of it is room, and nothing may be left there to be looked for.
            self.room_again |= self.full && (messages < queues.messages() || bytes < queues.bytes());
            queues.resize(messages, bytes);
        }
        self.show_parked();
    }

    pub(super) fn show_parked(&self) {
        let Some(queues) = &self.parking.queues else { return };
        self.lent.telemetry.parked(queues.messages(), queues.units() as u64);
    }

    /// The record for `dead_letter.topic`.
    pub(super) fn dead_letter(&self, record: Record, reason: &str, sentence: &str) -> Record {
        dead_letter::of(self.lent.config, record, reason, sentence)
    }
}

fn is_of(record: &Record, unit: &Unit) -> bool {
    record.topic == unit.topic && record.key.as_ref() == Some(&unit.key)
}

fn value_bytes(record: &Record) -> u64 {
    kept_bytes(record.value.as_ref())
}
