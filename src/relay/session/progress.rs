//! The way back: record first, confirm second, and the feedback that carries what is confirmed.

use super::*;

impl<S: Wire> Session<'_, S> {
    /// Record first, confirm second: asks for the watermark to be committed to `walpost.checkpoint`.
    pub(super) fn record(&mut self, now: Instant) {
        if let Some((lsn, since)) = self.recording {
            if !self.unrecorded && now.saturating_duration_since(since) > RECORD_WITHIN {
                self.unrecorded = true;
                tracing::warn!(
                    "walpost.checkpoint could not be written for {} s: positions are confirmed without it, gap detection \
                     is off, and a restart before the next record will report a gap",
                    RECORD_WITHIN.as_secs()
                );
            }
            if self.unrecorded {
                let confirmable = self.confirmable();
                self.confirmed = self.confirmed.max(lsn).max(confirmable);
            }
            return;
        }
        let watermark = self.confirmable();
        let ahead = watermark.bytes_since(self.recorded);
        let waited = now.saturating_duration_since(self.record_asked_at);
        let ending = self.draining_until.is_some()
            || self.until.is_some_and(|until| self.confirmed < until && watermark >= until);
        let due = (self.rows_since_record || ahead >= IDLE_RECORD_BYTES) && waited >= RECORD_EVERY
            || waited >= IDLE_RECORD_EVERY
            || ending && self.tracker.is_idle()
            // Nothing more is read: this may be the last word before the process is replaced.
            || self.stop.is_some();
        if ahead > 0 && due {
            if planted!(ConfirmsBeforeTheRecord) {
                self.confirmed = watermark;
            }
            self.recording = Some((watermark, now));
            self.record_asked_at = now;
            self.rows_since_record = false;
            self.control.order(Order::Record(watermark));
        }
    }

    pub(super) async fn on_control(&mut self, event: Event) -> Result<Option<End>, Failure> {
        match event {
            Event::Recorded(lsn) => {
                if self.unrecorded {
                    tracing::info!("walpost.checkpoint is written again: gap detection is on");
                    self.unrecorded = false;
                }
                self.recording = None;
                self.recorded = self.recorded.max(lsn);
                self.committed = self.committed.max(lsn);
                self.confirmed = self.confirmed.max(lsn);
                self.lent.telemetry.confirmed_at(Instant::now());
                self.send_status(false).await?;
            }
            Event::PublicationChanged { reason, remedy } => {
                return Ok(Some(End::PublicationChanged { reason, remedy }));
            }
            Event::RecordGone(text) => return Err(Failure::Record(text)),
            Event::ServerStopping(text) => return Ok(Some(End::ServerStopping(text))),
            Event::Parked { added, flushed } => self.on_parked(added.messages, added.bytes, flushed),
            Event::ParkedSize(size) => self.on_parked_size(size.messages, size.bytes),
            Event::Work(found) => self.on_work(found, Instant::now()),
            Event::Settled { gone, empty } => self.on_settled(gone.messages, gone.bytes, &empty, Instant::now()),
            Event::Slot(slot) => {
                show_slot(self.lent.telemetry, slot.as_deref());
                self.silence.look(slot.as_deref(), self.stream.received(), Instant::now());
                self.slot = slot;
            }
            Event::Rows(rows) => self.lent.telemetry.metrics.outbox_rows.set(rows.unwrap_or(f64::NAN)),
            Event::Connected => {}
            Event::Disconnected(error) => {
                tracing::warn!(
                    error,
                    "the control connection to Postgres is lost; the stream goes on, the record waits"
                );
            }
        }
        Ok(None)
    }

    pub(super) fn status_update(&self, reply_requested: bool) -> StandbyStatusUpdate {
        StandbyStatusUpdate { reply_requested, ..StandbyStatusUpdate::new(self.stream.received(), self.confirmed) }
    }

    pub(super) async fn send_status(&mut self, reply_requested: bool) -> Result<(), Failure> {
        let update = self.status_update(reply_requested);
        Ok(self.stream.send_status(&update).await?)
    }

    pub(super) async fn give_feedback(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        // Asking is what lets an idle slot follow the log: the answer is the position up to which there was nothing for
        // us. While reading is closed the answer would go unread.
        let ask = self.tracker.is_idle() && self.reading_is_open(now);
        self.send_status(ask).await?;
        self.control.order(Order::Told(self.stream.received()));
        self.silence.asked(ask, now);
        self.show_state(now);
        Ok(())
    }
}

/// Puts the slot as it was seen into the status; None: there is none.
pub fn show_slot(telemetry: &Telemetry, slot: Option<&SlotFacts>) {
    telemetry.update(|status| {
        let name = status.slot.name.take();
        status.lag_bytes = slot.and_then(SlotFacts::lag_bytes);
        status.slot = slot.map_or_else(SlotStatus::default, slot_status);
        status.slot.name = name;
    });
    if let Some(spilled) = slot.and_then(|slot| u64::try_from(slot.spill_bytes?).ok()) {
        telemetry.metrics.spilled(spilled);
    }
}

/// What the status shows of a slot.
pub fn slot_status(slot: &SlotFacts) -> SlotStatus {
    SlotStatus {
        name: Some(slot.name.clone()),
        active: Some(slot.active),
        wal_status: slot.wal_status.and_then(|status| WalStatus::from_postgres(status.as_str())),
        restart_lsn: slot.restart_lsn,
        confirmed_flush_lsn: slot.confirmed_flush_lsn,
        retained_wal_bytes: slot.retained_bytes(),
        safe_wal_bytes: slot.safe_wal_size,
    }
}

/// The handle of a topic's metrics, looked up once.
pub(super) fn topic_metrics<'m>(lent: &'m mut Lent<'_>, topic: TopicId) -> &'m TopicMetrics {
    let index = topic.0 as usize;
    while lent.topics.len() <= index {
        let id = TopicId(u32::try_from(lent.topics.len()).unwrap_or(u32::MAX));
        let name = lent.sink.topic_name(id);
        lent.topics.push(lent.telemetry.metrics.topic(&name));
    }
    &lent.topics[index]
}
