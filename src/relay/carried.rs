//! What a relay carries from one session to the next: how far it has confirmed and read, on which history of the log, and
//! what it has delivered above that. Pure, but for the clock that the caller reads.

use std::time::Duration;

use tokio::time::Instant;

use crate::ack::Remembered;
use crate::lsn::Lsn;
use crate::postgres::catalog::Identity;
use crate::postgres::checkpoint::{Checkpoint, State as RecordState};
use crate::postgres::history::{self, Memory, Seen, Verdict};
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
    /// The epoch in which the server was seen not to be what it was: nobody may go on in it.
    changed_in: Option<i64>,
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
            changed_in: None,
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

    /// Judges what was seen, and what of it this process remembers better; `seen.memory` is filled in here.
    ///
    /// What it remembers counts in its own epoch alone: who began another one, another relay or a command, knew better. And
    /// what was seen once stays so: a server that has lost some of its log looks whole again when that has grown.
    pub fn judge(&mut self, seen: Seen<'_>) -> Verdict {
        let epoch = seen.record.map_or(self.epoch, |record| Some(record.epoch));
        let older = epoch < self.epoch;
        if epoch != self.epoch {
            self.memory = None;
        }
        let verdict = history::judge(&Seen { memory: self.memory.as_ref(), ..seen });
        match verdict {
            Verdict::NewEpoch { .. } => self.changed_in = epoch,
            Verdict::Resume { .. } if older => {
                let why = "the record is of an epoch before the last one: the server is on an older copy of its disk";
                return Verdict::NewEpoch { why: why.to_owned() };
            }
            Verdict::Resume { .. } if epoch.is_some() && self.changed_in == epoch => {
                let why =
                    "the server was seen to have lost WAL, or to be another one, since the epoch began".to_owned();
                return Verdict::NewEpoch { why };
            }
            _ => {}
        }
        verdict
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
            memory.recorded = memory.recorded.max(left.recorded);
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
        let recorded = match taken.record {
            Some(record) if taken.same_history => record.confirmed_lsn,
            _ if taken.kept => taken.confirmed,
            _ => Lsn::INVALID,
        };
        self.memory = Some(Memory { confirmed: taken.confirmed, received, recorded, identity: taken.identity.clone() });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::slot::{SlotFacts, WalStatus};

    fn identity(flush_lsn: u64) -> Identity {
        Identity {
            system_identifier: "7300000000000000001".into(),
            timeline: Some(1),
            flush_lsn: Lsn(flush_lsn),
            database: "app".into(),
            database_oid: 5,
        }
    }

    fn slot(at: u64) -> SlotFacts {
        SlotFacts {
            name: "walpost".into(),
            plugin: Some("pgoutput".into()),
            database: Some("app".into()),
            temporary: false,
            active: false,
            active_pid: None,
            restart_lsn: Some(Lsn(at)),
            confirmed_flush_lsn: Some(Lsn(at)),
            wal_status: Some(WalStatus::Reserved),
            safe_wal_size: None,
            two_phase: false,
            conflicting: None,
            invalidation_reason: None,
            failover: false,
            synced: false,
            inactive_seconds: None,
            catalog_xmin_age: None,
            current_lsn: None,
            holder: None,
            spill_bytes: None,
        }
    }

    fn record(epoch: i64, confirmed: u64) -> Checkpoint {
        Checkpoint {
            slot_name: "walpost".into(),
            relay_name: "orders".into(),
            system_identifier: "7300000000000000001".into(),
            timeline: 1,
            database_oid: 5,
            table_oid: 16_400,
            kafka_cluster_id: None,
            fingerprint: "same".into(),
            epoch,
            confirmed_lsn: Lsn(confirmed),
            horizon: None,
            pending: None,
            state: RecordState::Streaming,
            holder: Some("us".into()),
            age_seconds: 1.0,
        }
    }

    fn judge(carried: &mut Carried, flush_lsn: u64, slot_at: u64, record: &Checkpoint) -> Verdict {
        carried.judge(Seen {
            relay: "orders",
            slot_name: "walpost",
            slot: Some(&slot(slot_at)),
            record: Some(record),
            identity: &identity(flush_lsn),
            memory: None,
            fingerprint: Some("same"),
            kafka_cluster_id: None,
        })
    }

    /// Has confirmed 0x500 and read up to 0x900 in epoch 7.
    fn streamed() -> Carried {
        let mut carried = Carried::new("us".into());
        let (identity, record) = (identity(0x900), record(7, 0x100));
        let (confirmed, now) = (Lsn(0x100), Instant::now());
        let (same_history, kept) = (true, true);
        carried.begin(&Taken {
            identity: &identity,
            record: Some(&record),
            kept,
            same_history,
            epoch: 7,
            confirmed,
            now,
        });
        let (confirmed, received, recorded) = (Lsn(0x500), Lsn(0x900), Lsn(0x100));
        let remembered = Some(Remembered::default());
        carried.keep(Left { confirmed, received, recorded, remembered, progressed: true, makes_room: false }, 10);
        carried
    }

    #[test]
    fn what_was_confirmed_and_could_not_be_recorded_is_remembered() {
        let verdict = judge(&mut streamed(), 0x1000, 0x500, &record(7, 0x100));
        assert_eq!(verdict, Verdict::Resume { start_lsn: Lsn(0x500) });
    }

    #[test]
    fn a_position_of_another_epoch_is_forgotten() {
        // Another relay has begun an epoch on a server that lost its log and has written on since.
        let verdict = judge(&mut streamed(), 0x2000, 0x200, &record(8, 0x300));
        assert_eq!(verdict, Verdict::Resume { start_lsn: Lsn(0x300) });
        let moved = judge(&mut streamed(), 0x2000, 0x400, &record(8, 0x300));
        assert!(matches!(moved, Verdict::Gap { .. }), "it does not hide that the slot was moved: {moved:?}");
    }

    #[test]
    fn a_record_of_an_older_epoch_is_an_older_copy_of_the_disk() {
        assert!(matches!(judge(&mut streamed(), 0x2000, 0x200, &record(6, 0x300)), Verdict::NewEpoch { .. }));
    }

    #[test]
    fn a_server_that_was_seen_to_have_lost_log_stays_so_when_its_log_has_grown_again() {
        let mut carried = streamed();
        assert!(matches!(judge(&mut carried, 0x600, 0x500, &record(7, 0x500)), Verdict::NewEpoch { .. }));
        // The slot was taken by somebody else, or the connection failed; meanwhile others have written.
        assert!(matches!(judge(&mut carried, 0x2000, 0x500, &record(7, 0x500)), Verdict::NewEpoch { .. }));
        let begun = judge(&mut carried, 0x2000, 0x500, &record(8, 0x500));
        assert_eq!(begun, Verdict::Resume { start_lsn: Lsn(0x500) }, "in the new epoch it is whole");
    }
}
