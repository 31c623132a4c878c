//! The way in: frames off the stream, as long as the window has room, and what they tell beside the rows.

use super::*;

/// Frames handled before the loop looks at its other duties.
const FRAMES_A_TURN: usize = 512;
/// While there is a backlog, what comes within this time is read at once: each read wakes the walsender.
const GULP: Duration = Duration::from_millis(2);
/// So many bytes in one read need no pause before the next one: the walsender is ahead.
const GULP_BYTES: usize = 64 * 1024;
/// So many bytes within [`BACKLOG_WITHIN`] are a backlog.
const BACKLOG_BYTES: usize = 64 * 1024;
const BACKLOG_WITHIN: Duration = Duration::from_millis(5);
/// So many reply-requested keepalives within so long, without a row between them, come only from a server that shuts down.
/// An idle one has little to ask, because it hears from us every second.
const DRAINING_KEEPALIVES: u32 = 50;
const DRAINING_WITHIN: Duration = Duration::from_secs(15);

impl<S: Wire> Session<'_, S> {
    /// Whether a row may be read now.
    pub(super) fn reading_is_open(&self, now: Instant) -> bool {
        let stopping = self.draining_until.is_some() && self.may_stop_here();
        !stopping
            && self.pending.is_none()
            && self.stop.is_none()
            // What is parked is published between transactions: in the middle of one, reading on is the way there.
            && (self.transaction.is_some() || !self.parking.comes_first())
            && self.quiet_until.is_none_or(|at| now >= at)
            && self.window_is_open()
    }

    /// Whether nothing that was delivered would come again to a relay that goes on from here, once all that was read is
    /// confirmed: not in the middle of a transaction, nor before what was delivered in a session that was cut, nor before
    /// what was parked can be confirmed.
    pub(super) fn may_stop_here(&self) -> bool {
        self.parking.is_passed(self.stream.received())
            && (self.transaction.is_none() || planted!(StopsInATransaction))
            && (!self.remembered.awaits(self.read_to) || planted!(StopsBeforeWhatItRemembers))
    }

    /// Whether one more record may be out.
    pub(super) fn window_is_open(&self) -> bool {
        let window = self.lent.config.window;
        (self.tracker.window_messages() < window.messages || planted!(ReadsWithoutBound))
            && self.tracker.window_bytes() < window.bytes
    }

    /// What the loop does while it selects.
    pub(super) fn doing(&self, pumped: &Pump) -> Doing {
        match pumped {
            Pump::More => Doing::Work,
            Pump::Empty => Doing::WaitingForPostgres,
            Pump::Closed if self.pending.is_some() || !self.window_is_open() => Doing::WaitingForKafka,
            Pump::Closed => Doing::Paused,
        }
    }

    /// Takes frames from the stream's buffer, as long as reading is open.
    pub(super) fn pump(&mut self, now: Instant) -> Result<Pump, Failure> {
        self.gulp.until = self.gulp.until.filter(|at| now < *at);
        self.quiet_until = self.quiet_until.filter(|at| now < *at);
        for _ in 0..FRAMES_A_TURN {
            if !self.reading_is_open(now) {
                return Ok(Pump::Closed);
            }
            match self.stream.next()? {
                None => return Ok(Pump::Empty),
                Some(Frame::XLogData { data, sent, .. }) => {
                    self.server_clock.heard(sent, now);
                    self.insistence = Insistence::default();
                    let event = self.decoder.decode(data)?;
                    if let Some(event) = event {
                        self.on_event(event, now);
                    }
                }
                Some(Frame::PrimaryKeepalive { wal_end, sent, reply_requested }) => {
                    if self.transaction.is_none() {
                        self.read_to = self.read_to.max(wal_end);
                    }
                    self.server_clock.heard(sent, now);
                    self.tracker.keepalive(wal_end);
                    if reply_requested {
                        self.insistence.reply_requested(now);
                    }
                }
            }
        }
        Ok(Pump::More)
    }

    fn on_event(&mut self, event: SourceEvent, now: Instant) {
        match event {
            SourceEvent::Begin { final_lsn, commit_time, .. } => {
                self.tracker.begin(final_lsn, commit_time);
                self.commit_time = Some(commit_time);
                self.transaction = Some(Transaction { commit_lsn: final_lsn, ordinal: 0 });
            }
            SourceEvent::Row(row) => self.on_row(&row, now),
            SourceEvent::Commit { end_lsn, .. } => {
                self.transaction = None;
                self.read_to = self.read_to.max(end_lsn);
                self.tracker.commit(end_lsn);
            }
            SourceEvent::Keepalive { wal_end, .. } => self.tracker.keepalive(wal_end),
            SourceEvent::Ignored(kind) => self.lent.telemetry.metrics.ignored(kind.as_str()),
        }
    }
}

/// What stopped the reading of frames.
#[derive(PartialEq, Eq)]
pub(super) enum Pump {
    /// The buffer has no whole frame: the socket must be read.
    Empty,
    /// Reading is closed for now.
    Closed,
    /// More frames are waiting; the other duties come first.
    More,
}

/// Whether rows come so fast that it pays to let them gather.
pub(super) struct Gulp {
    since: Instant,
    bytes: usize,
    pub(super) until: Option<Instant>,
}

impl Gulp {
    pub(super) fn new(now: Instant) -> Gulp {
        Gulp { since: now, bytes: 0, until: None }
    }

    /// So many bytes came with one read.
    pub(super) fn read(&mut self, bytes: usize, now: Instant) {
        if now.saturating_duration_since(self.since) > BACKLOG_WITHIN {
            self.since = now;
            self.bytes = 0;
        }
        self.bytes += bytes;
        if self.bytes > BACKLOG_BYTES && bytes < GULP_BYTES {
            self.until = Some(now + GULP);
            self.bytes = 0;
            self.since = now;
        }
    }
}

/// How urgently the server asks for replies: one that shuts down waits for us to have confirmed all, and asks without a pause.
#[derive(Default)]
pub(super) struct Insistence {
    /// Keepalives that asked for a reply without a row between them, and when the first of them came.
    asked: Option<(Instant, u32)>,
}

impl Insistence {
    fn reply_requested(&mut self, now: Instant) {
        let recent = self.asked.filter(|(since, _)| now.saturating_duration_since(*since) < DRAINING_WITHIN);
        let (since, count) = recent.unwrap_or((now, 0));
        self.asked = Some((since, count + 1));
    }

    pub(super) fn is_of_a_shutdown(&self) -> bool {
        self.asked.is_some_and(|(_, count)| count > DRAINING_KEEPALIVES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_asks_without_a_pause_is_shutting_down() {
        let (mut patient, mut urgent) = (Insistence::default(), Insistence::default());
        let mut now = Instant::now();
        for _ in 0..=DRAINING_KEEPALIVES {
            assert!(!urgent.is_of_a_shutdown());
            urgent.reply_requested(now);
        }
        assert!(urgent.is_of_a_shutdown());
        for _ in 0..10_000 {
            now += Duration::from_secs(1);
            patient.reply_requested(now);
            assert!(!patient.is_of_a_shutdown());
        }
    }
}
