//! Parked messages that are published again: in the order of their queues, between transactions, through the same line as all
//! other rows.

use super::*;
use crate::router::Header;

/// Between two looks for parked messages that somebody wants published or discarded.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Where messages come from that are not published as they were committed: the value of the header `origin`.
const ORIGIN: &[u8] = b"parked";

impl<S: Wire> Session<'_, S> {
    /// Publishes what somebody wants published: between transactions, through the same line as all other rows.
    pub(in crate::relay::session) fn work_on_parked(&mut self, now: Instant) {
        let stopping = self.draining_until.is_some() || self.stop.is_some();
        let ending = self.draining_until.is_some();
        match &mut self.parking.work {
            WorkInHand::None => {
                let any = self.parking.queues.as_ref().is_some_and(|queues| !queues.is_empty());
                if any && !ending && now >= self.parking.look_at {
                    self.parking.work = WorkInHand::Looking;
                    self.control.order(Order::FindWork);
                }
            }
            WorkInHand::Publishing { waiting, out, outcome } => {
                if stopping {
                    waiting.clear();
                }
                if waiting.is_empty() && out.is_empty() {
                    let outcome = std::mem::take(outcome);
                    self.parking.work = WorkInHand::Settling;
                    self.control.order(Order::Settle(outcome));
                    return;
                }
                while self.pending.is_none() && self.transaction.is_none() && self.window_is_open() {
                    let WorkInHand::Publishing { waiting, out, .. } = &mut self.parking.work else { return };
                    let Some((id, unit, record)) = waiting.pop_front() else { return };
                    let bytes = record.value.as_ref().map_or(0, Bytes::len) + ROW_OVERHEAD;
                    let ticket = self.tracker.aside(bytes, SystemTime::now());
                    out.insert(ticket, (id, unit));
                    self.offer(ticket, record, now);
                }
            }
            WorkInHand::Looking | WorkInHand::Settling => {}
        }
    }

    /// What may be published or discarded now.
    pub(in crate::relay::session) fn on_work(&mut self, found: Vec<Work>, now: Instant) {
        self.parking.look_at = now + LOOK_EVERY;
        self.parking.work = WorkInHand::None;
        if found.is_empty() {
            self.parking.first = false;
            return;
        }
        if self.full {
            // It may be in the middle of a transaction, where nothing else can be published: a new session begins with this.
            self.room_again = true;
            return;
        }
        if planted!(OpensAKeyEarly)
            && let Some(queues) = &mut self.parking.queues
        {
            found.iter().filter_map(Work::unit).for_each(|unit| queues.open(&unit));
        }
        let mut outcome = Outcome::default();
        let mut waiting = VecDeque::new();
        let mut blocked: Vec<Unit> = Vec::new();
        for work in found {
            let unit = work.unit();
            if unit.as_ref().is_some_and(|unit| blocked.contains(unit)) {
                continue;
            }
            if let Some(unit) = &unit
                && !outcome.units.contains(unit)
            {
                outcome.units.push(unit.clone());
            }
            if work.wish == Wish::Publish && self.stop.is_some() {
                continue;
            }
            if work.wish == Wish::Discard {
                tracing::warn!(
                    id = work.id,
                    message_id = work.message_id,
                    "a parked message is discarded, as somebody asked"
                );
                outcome.done.push(work.id);
                continue;
            }
            let id = work.id;
            match self.record_of(work) {
                Ok(record) => waiting.push_back((id, unit, record)),
                Err(poison) => {
                    outcome.failed.push((id, poison.reason.as_str().to_owned(), poison.sentence));
                    blocked.extend(unit);
                }
            }
        }
        self.parking.work = WorkInHand::Publishing { waiting, out: BTreeMap::new(), outcome };
    }

    /// The record of a parked message, made anew where none could be made before.
    fn record_of(&mut self, work: Work) -> Result<Record, Poison> {
        if let Some(why) = work.missing {
            return Err(Poison::new(PoisonReason::ValueGone, why));
        }
        let token = Token { epoch: work.epoch, commit_lsn: work.position.commit_lsn, ordinal: work.position.ordinal };
        let mut record = match (&work.row, work.topic, work.value) {
            (Some(columns), _, None) if work.headers.is_empty() => self.route_again(columns, token)?,
            (_, Some(topic), value) => {
                let partition_hash = self.lent.router.partition_hash(work.key.as_ref(), work.message_id.as_bytes());
                Record { topic: topic.into(), key: work.key, value, headers: work.headers, partition_hash }
            }
            (_, None, _) => {
                return Err(Poison::new(PoisonReason::BadTopic, "the parked message names no topic".to_owned()));
            }
        };
        let origin = &self.lent.config.headers.origin;
        if !origin.is_empty() {
            record.headers.push(Header { name: origin.as_str().into(), value: Some(Bytes::from_static(ORIGIN)) });
        }
        Ok(record)
    }

    fn route_again(&mut self, columns: &str, token: Token) -> Result<Record, Poison> {
        let unreadable = |why: String| Poison::new(PoisonReason::BadHeaders, why);
        let row =
            Row::from_json(columns).ok_or_else(|| unreadable("the parked row is no JSON object of texts".into()))?;
        let config = self.lent.config;
        let mapping = Mapping::resolve(&row.relation, &config.columns, config.preset)
            .map_err(|error| unreadable(format!("the parked row cannot be read as an outbox row: {error}")))?;
        let bound = self.lent.router.bind(&row.relation, &mapping);
        bound.map_err(|error| unreadable(format!("the parked row cannot be routed: {error}")))?;
        let message = mapping.message(&row)?;
        match self.lent.router.route(&message, &row, token)? {
            Routed::Publish(record) => Ok(record),
            Routed::Skip(_) => Err(unreadable(
                "the settings leave such rows out now: discard the parked one (walpost parked discard)".into(),
            )),
        }
    }

    /// A record was delivered. True: it was a parked one.
    pub(in crate::relay::session) fn republished(&mut self, ticket: Ticket) -> bool {
        let WorkInHand::Publishing { out, outcome, .. } = &mut self.parking.work else { return false };
        let Some((id, _)) = out.remove(&ticket) else { return false };
        outcome.done.push(id);
        true
    }

    /// A parked record was refused once more: the rest of its queue stays where it is. False: it is no parked one.
    pub(in crate::relay::session) fn republishing_failed(
        &mut self,
        ticket: Ticket,
        reason: &str,
        sentence: &str,
    ) -> bool {
        let WorkInHand::Publishing { out, outcome, .. } = &mut self.parking.work else { return false };
        let Some((id, unit)) = out.remove(&ticket) else { return false };
        outcome.failed.push((id, reason.to_owned(), sentence.to_owned()));
        match self.pending.take_if(|(pending, _)| *pending == ticket) {
            Some(_) => self.lent.sink.pass(ticket),
            None => drop(self.lent.sink.take(ticket)),
        }
        self.tracker.delivered(ticket);
        if let Some(unit) = unit {
            self.forget_republishing(&unit);
        }
        true
    }

    /// What of a queue is not out yet stays in the table.
    pub(super) fn forget_republishing(&mut self, unit: &Unit) {
        let WorkInHand::Publishing { waiting, out, .. } = &mut self.parking.work else { return };
        waiting.retain(|(_, other, _)| other.as_ref() != Some(unit));
        let ours = |ticket: Ticket, _: &Record| out.get(&ticket).is_some_and(|(_, of)| of.as_ref() == Some(unit));
        let mut taken: Vec<Ticket> = self.lent.sink.take_held(ours).into_iter().map(|(ticket, _)| ticket).collect();
        if let Some((ticket, _)) = self.pending.take_if(|(ticket, record)| ours(*ticket, record)) {
            self.lent.sink.pass(ticket);
            taken.push(ticket);
        }
        for ticket in taken {
            out.remove(&ticket);
            self.tracker.delivered(ticket);
        }
    }

    /// The outcome is written, and these queues have no message left in the table.
    pub(in crate::relay::session) fn on_settled(&mut self, messages: u64, bytes: u64, empty: &[Unit], now: Instant) {
        self.parking.work = WorkInHand::None;
        // There may be more.
        self.parking.look_at = if messages > 0 { now } else { now + LOOK_EVERY };
        let ordered = self.parking.under_way.iter().filter_map(|(_, _, unit)| unit.clone());
        let ordered: Vec<Unit> =
            ordered.chain(self.parking.outgoing.iter().filter_map(|(_, aside)| aside.unit())).collect();
        let Some(queues) = &mut self.parking.queues else { return };
        queues.removed(messages, bytes);
        // What was ordered behind stands after the look at the table.
        for unit in empty.iter().filter(|unit| !ordered.contains(unit)) {
            queues.open(unit);
            tracing::info!(topic = &*unit.topic, key = %Shown(&unit.key), "nothing is parked any more for this key: its messages flow again");
        }
        self.show_parked();
    }
}
