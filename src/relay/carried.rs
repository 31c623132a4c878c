//! What a relay carries from one session to the next: how far it has confirmed and read, on which history of the log, and
//! what it has delivered above that. Pure, but for the clock that the caller reads.

use std::time::Duration;

use tokio::time::Instant;

use crate::ack::Remembered;
use crate::lsn::Lsn;
use crate::postgres::catalog::Identity;
use crate::postgres::checkpoint::{Checkpoint, State as RecordState};
use crate::postgres::history::Memory;
use crate::relay::session::Left;

/// Requests of an earlier holder that died may still reach the brokers for so long.
const QUIET: Duration = Duration::from_secs(5);

/// See the module.
pub struct Carried {
    /// Names this process in the record, so that it knows its own hand after a reconnect.
    holder: String,
    /// Of the history that the last session was on.
    memory: Option<Memory>,
    remembered: Remembered,
    epoch: Option<i64>,
    /// Another holder of the slot may have requests under way until then. Outlives a session that is cut meanwhile.
    quiet_until: Option<Instant>,
    /// The last session ended to make room for what is to be parked.
    makes_room: bool,
}

/// What was found and judged when the slot was taken, the record not signed on yet.
pub struct Taken<'a> {
    pub identity: &'a Identity,
    /// None: there is none, or nowhere to keep one.
    pub record: Option<&'a Checkpoint>,
    /// There is somewhere to keep the record.
    pub kept: bool,
    /// The session goes on in the history of the one before.
    pub same_history: bool,
    pub epoch: i64,
    /// Confirmed already.
    pub confirmed: Lsn,
    pub now: Instant,
}

impl Carried {
    /// `holder`: no two processes have the same.
    pub fn new(holder: String) -> Carried {
        Carried {
            holder,
            memory: None,
            remembered: Remembered::default(),
            epoch: None,
            quiet_until: None,
            makes_room: false,
        }
    }

    pub fn holder(&self) -> &str {
        &self.holder
    }

    pub fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    /// The epoch of the last session.
    pub fn epoch(&self) -> Option<i64> {
        self.epoch
    }

    /// What the next session on the same history need not publish.
    pub fn remembered(&self) -> &Remembered {
        &self.remembered
    }

    /// Where a session on the same history goes on: what was confirmed may be ahead of the record, where that could not be
    /// written.
    pub fn confirmed(&self, recorded: Lsn) -> Lsn {
        self.memory.as_ref().map_or(recorded, |memory| memory.confirmed.max(recorded))
    }

    /// Takes over what a session has left. `most`: rows and transactions that are remembered.
    pub fn keep(&mut self, left: Left, most: usize) {
        self.makes_room = left.makes_room;
        if let Some(memory) = &mut self.memory {
            memory.confirmed = memory.confirmed.max(left.confirmed);
            memory.received = memory.received.max(left.received);
            if planted!(StartsAhead) {
                memory.confirmed = memory.received;
            }
        }
        match left.remembered {
            Some(remembered) if !planted!(RemembersNothing) => self.remembered.merge(remembered),
            _ => self.remembered = Remembered::default(),
        }
        self.remembered.forget_below(left.confirmed);
        self.remembered.shorten(most);
    }

    /// The slot is ours, and a session is about to begin.
    pub fn begin(&mut self, taken: &Taken<'_>) {
        if self.epoch != Some(taken.epoch) && !planted!(RemembersAnotherHistory) {
            self.remembered = Remembered::default();
        }
        let quiet = match taken.record {
            // A record that begins here has no holder before us. Where none can be kept, nobody can have signed off.
            None => !taken.kept && self.memory.is_none(),
            Some(record) if record.state == RecordState::SignedOff => false,
            Some(record) => record.holder.as_deref() != Some(&self.holder),
        };
        // Before we sign on: after that the record no longer tells that somebody else was here.
        if quiet && !planted!(TakesOverAtOnce) {
            self.quiet_until = Some(taken.now + QUIET);
        }
        self.epoch = Some(taken.epoch);
        let before = self.memory.take().filter(|_| taken.same_history);
        let received = before.map_or(taken.confirmed, |memory| memory.received);
        self.memory = Some(Memory { confirmed: taken.confirmed, received, identity: taken.identity.clone() });
    }

    /// What is parked comes before anything new.
    pub fn parked_first(&self) -> bool {
        self.makes_room
    }

    /// Nothing may be produced before.
    pub fn quiet_until(&self, now: Instant) -> Option<Instant> {
        self.quiet_until.filter(|until| now < *until)
    }
}
