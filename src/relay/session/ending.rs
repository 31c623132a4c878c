//! What the session says of itself, and when it is over.

use super::*;

/// How far an orderly end got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Rows that were read, and that Kafka did not confirm in time.
    pub undelivered: usize,
    /// Everything that was read is confirmed to Postgres: nothing will come again.
    pub confirmed: bool,
    /// The relay stood still at a row, which is not among the undelivered ones.
    pub stopped: bool,
}

impl<S: Wire> Session<'_, S> {
    pub(super) fn show_state(&mut self, now: Instant) {
        let oldest = self.oldest(now);
        let (connected, error) = self.lent.sink.connection();
        let kafka = EndStatus { connected: Some(connected), error: error.map(str::to_owned) };
        let facts = Facts {
            stopped: self.stop.as_ref().map(|stop| (stop.reason.as_str(), stop.remedy.as_str())),
            draining: self.draining_until.is_some(),
            waiting: self.lent.sink.waiting(),
            rows_wait: !self.tracker.is_idle()
                && (self.pending.is_some() || self.tracker.in_flight().0 > 0)
                && !planted!(NeverSaysStalled),
            since_delivery: now.saturating_duration_since(self.last_delivery),
            oldest,
            short: self.lent.sink.short().cloned(),
            kafka_error: error.map(str::to_owned),
            behind: self.commit_time.filter(|_| !self.tracker.is_idle()).and_then(|at| self.server_clock.age(at, now)),
            quiet: self.quiet_until.is_some(),
            server: self.silence.of(now),
        };
        if self.tracker.is_idle() {
            self.last_delivery = now;
        }
        let (state, reason, remedy) = condition::of(&facts);
        self.lent.telemetry.connected(Target::Kafka, kafka);
        if let Some(ahead) = self.server_clock.ahead_seconds(now) {
            self.lent.telemetry.metrics.clock_skew.set(ahead);
        }
        let oldest = self.tracker.oldest_commit_time().and_then(|at| self.server_clock.age(at, now));
        self.lent.telemetry.oldest_unconfirmed(oldest.and_then(|age| now.checked_sub(age)));
        self.lent.telemetry.set_state(state, reason, remedy);
        self.warn_of_held_log(state, now);
    }

    /// The record that has waited longest for the broker: since when is known as exactly as this is asked often.
    fn oldest(&mut self, now: Instant) -> Option<Waits> {
        let record = self.lent.sink.oldest()?;
        let before = self.oldest_since.filter(|(ticket, ..)| *ticket == record.ticket);
        let (_, began, since) = before.unwrap_or_else(|| (record.ticket, now, SystemTime::now()));
        self.oldest_since = Some((record.ticket, began, since));
        Some(Waits { record, lasts: now.saturating_duration_since(began), since })
    }

    /// `on_route_error`: a topic that takes no records ends the waiting, unless it is `wait`.
    pub(super) fn stop_at_bad_route(&mut self) {
        let policy = self.lent.config.on_route_error;
        if policy == OnRouteError::Wait || self.stop.is_some() {
            return;
        }
        // Brokers that are away are no fault of the topic: that passes by itself.
        if let Some(Waiting::Topic { topic, problem, remedy, refused_since: Some(since), .. }) =
            self.lent.sink.waiting()
            && since.elapsed() >= condition::TOPIC_PATIENCE
        {
            if policy == OnRouteError::Park && self.parking.is_possible() {
                if !self.park_topic(&topic, &problem) {
                    self.lent.sink.freeze_all();
                    self.stop_full(&format!("a row for the topic {topic:?}, which takes no records: {problem}"));
                }
                return;
            }
            self.lent.sink.freeze_all();
            let remedy = remedy.replace(GOES_ON, "then restart walpost, because on_route_error is \"stop\"");
            self.stop_at(format!("the topic {topic:?} takes no records: {problem}"), remedy);
        }
    }

    pub(super) fn begin_draining(&mut self, now: Instant, why: &str) {
        let timeout = self.lent.config.shutdown.timeout;
        tracing::info!(
            timeout_seconds = timeout.as_secs(),
            in_flight = self.tracker.in_flight().0,
            "{why}: the transaction in progress is read to its end and everything is delivered"
        );
        self.draining_until = Some(now + timeout);
        self.show_state(now);
    }

    pub(super) fn finished(&mut self, now: Instant) -> Option<End> {
        if self.insistence.is_of_a_shutdown() {
            return Some(End::ServerStopping("it asks for replies without a pause".to_owned()));
        }
        if self.room_again {
            return Some(End::RoomAgain);
        }
        if let Some(until) = self.until {
            let told = self.recording.is_none() && self.confirmable() <= self.confirmed;
            if self.stop.is_some() && self.nothing_left() && told {
                return Some(End::Stopped);
            }
            if self.draining_until.is_none() && self.confirmed >= until {
                self.begin_draining(now, "caught up");
            }
        }
        let deadline = self.draining_until?;
        let settled =
            self.transaction.is_none() && self.tracker.is_idle() && self.pending.is_none() && self.parking.is_idle();
        let recorded = self.recording.is_none() && self.confirmable() <= self.confirmed;
        if settled && recorded {
            return Some(End::Drained(Drained { undelivered: 0, confirmed: true, stopped: false }));
        }
        // Rows behind a poison message will not get through by waiting.
        let hopeless = self.stop.is_some() && recorded && self.nothing_left();
        let (undelivered, stopped) = (self.tracker.in_flight().0, self.stop.is_some());
        (now >= deadline || hopeless).then_some(End::Drained(Drained { undelivered, confirmed: false, stopped }))
    }

    /// While nothing is confirmed Postgres keeps the log for us: says how much, and what bounds it, once a minute.
    fn warn_of_held_log(&mut self, state: State, now: Instant) {
        let holding = matches!(state, State::Stalled | State::WaitingForTopic | State::Stopped);
        let Some(slot) = self.slot.as_ref().filter(|_| holding) else {
            self.held_log = None;
            return;
        };
        let retained = slot.retained_bytes().unwrap_or(0);
        let (said_at, before) = *self.held_log.get_or_insert((now, retained));
        let since = now.saturating_duration_since(said_at);
        if since < HELD_LOG_EVERY {
            return;
        }
        self.held_log = Some((now, retained));
        let grown = retained.saturating_sub(before);
        let (held, grown) = (human_bytes(retained), human_bytes(grown));
        match slot.safe_wal_size {
            Some(left) => tracing::warn!(
                retained_wal_bytes = retained,
                safe_wal_bytes = left,
                "Postgres keeps {held} of WAL for the slot, {grown} more than a minute ago; after {} more it gives the slot up \
                 (max_slot_wal_keep_size)",
                human_bytes(u64::try_from(left).unwrap_or(0))
            ),
            None => tracing::warn!(
                retained_wal_bytes = retained,
                "Postgres keeps {held} of WAL for the slot, {grown} more than a minute ago, and nothing bounds it but the \
                 disk (max_slot_wal_keep_size is -1)"
            ),
        }
    }

    /// After a stop: whatever may still be delivered is.
    fn nothing_left(&self) -> bool {
        self.tracker.in_flight().0 == 0 || self.lent.sink.only_frozen_left()
    }
}
