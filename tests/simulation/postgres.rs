//! The server's side: the slot, the record in `walpost.checkpoint`, restarts, failovers. What a status frame or a record
//! says is checked here at once.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;
use walpost::lsn::Lsn;
use walpost::postgres::catalog::Identity;
use walpost::postgres::checkpoint::{Checkpoint, Recorded, Replaces, State as RecordState};
use walpost::postgres::slot::{SlotFacts, WalStatus};
use walpost::telemetry;

use crate::log::BEGINNING;
use crate::world::State;

const SYSTEM: &str = "7300000000000000001";
pub const SLOT: &str = "walpost";
/// A record that cannot be written for so long does not hold the log.
const RECORD_WITHIN: Duration = Duration::from_secs(30);
/// What a commit of the record adds to the log.
const RECORD_BYTES: u64 = 200;

/// See the module.
pub struct Postgres {
    pub timeline: u32,
    pub confirmed: Lsn,
    /// What a crash leaves of `confirmed`.
    pub on_disk: Lsn,
    /// The connection that holds the slot.
    pub holder: Option<u64>,
    pub connections: u64,
    pub record: Option<Checkpoint>,
    /// What it was before, and where the log ended when it was so no more.
    past: Vec<(Lsn, Option<Checkpoint>)>,
    pub fingerprint: u32,
    /// The furthest position that any session was told of.
    pub told: Lsn,
    /// Up to where a relay may confirm although that is not recorded.
    unrecorded: Lsn,
    /// Since when a relay waits for its record.
    pub asked_at: Option<Instant>,
    /// No statement ends before.
    pub blocked_until: Instant,
    /// A person has to decide: what a relay must say then.
    pub person: Option<telemetry::State>,
    /// Nothing is written before these relays have had a look at the server: what grows again meanwhile looks to them like
    /// what was lost.
    pub unaware: BTreeSet<u32>,
    /// Somebody has moved the slot.
    pub moved: bool,
    began: Instant,
}

impl Postgres {
    pub fn new(now: Instant) -> Postgres {
        Postgres {
            timeline: 1,
            confirmed: BEGINNING,
            on_disk: BEGINNING,
            holder: None,
            connections: 0,
            record: None,
            past: Vec::new(),
            fingerprint: 1,
            told: BEGINNING,
            unrecorded: Lsn::INVALID,
            asked_at: None,
            blocked_until: now,
            person: None,
            unaware: BTreeSet::new(),
            moved: false,
            began: now,
        }
    }

    fn fingerprint(&self) -> String {
        format!("version {}", self.fingerprint)
    }

    pub fn epoch(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.epoch.unsigned_abs())
    }

    /// Whether a relay may find the slot there, and not recorded.
    pub fn may_be_a_gap(&self, slot_at: Lsn) -> bool {
        self.moved || self.unrecorded >= slot_at
    }

    /// Changes the record, and remembers it as it was.
    fn write(&mut self, end: Lsn, record: Checkpoint) {
        let before = self.record.replace(record);
        self.past.push((end, before));
    }
}

/// What a look at the server finds.
pub struct Seeing {
    pub identity: Identity,
    pub slot: SlotFacts,
    pub record: Option<Checkpoint>,
    pub fingerprint: String,
}

impl State {
    /// What relay `number` sees.
    pub fn identity(&self) -> Identity {
        Identity {
            system_identifier: SYSTEM.to_owned(),
            timeline: Some(self.postgres.timeline),
            flush_lsn: self.log.end,
            database: "app".to_owned(),
            database_oid: 5,
        }
    }

    pub fn look(&mut self, number: u32) -> Seeing {
        self.postgres.unaware.remove(&number);
        let postgres = &self.postgres;
        Seeing {
            identity: self.identity(),
            slot: SlotFacts {
                name: SLOT.to_owned(),
                plugin: Some("pgoutput".to_owned()),
                database: Some("app".to_owned()),
                temporary: false,
                active: postgres.holder.is_some(),
                active_pid: postgres.holder.map(|pid| pid as i32),
                restart_lsn: Some(BEGINNING),
                confirmed_flush_lsn: Some(postgres.confirmed),
                wal_status: Some(WalStatus::Reserved),
                safe_wal_size: None,
                two_phase: false,
                conflicting: None,
                invalidation_reason: None,
                failover: false,
                synced: false,
                inactive_seconds: None,
                catalog_xmin_age: None,
                current_lsn: Some(self.log.end),
                holder: None,
                spill_bytes: None,
            },
            record: postgres.record.clone(),
            fingerprint: postgres.fingerprint(),
        }
    }

    /// A new epoch begins where the slot stands.
    /// None: the record is not of the epoch that may be replaced.
    pub fn begin_epoch(&mut self, relay: &str, cluster: Option<&str>, replaces: Replaces) -> Option<Checkpoint> {
        let before = self.postgres.record.as_ref();
        if !replaces.allows(before.map(|before| before.epoch)) {
            return None;
        }
        let clock = 1_750_000_000 + self.postgres.began.elapsed().as_secs().cast_signed();
        let record = Checkpoint {
            slot_name: SLOT.to_owned(),
            relay_name: relay.to_owned(),
            system_identifier: SYSTEM.to_owned(),
            timeline: self.postgres.timeline,
            database_oid: 5,
            table_oid: 16_400,
            kafka_cluster_id: cluster.map(str::to_owned),
            fingerprint: self.postgres.fingerprint(),
            epoch: before.map_or(clock, |before| clock.max(before.epoch + 1)),
            confirmed_lsn: self.postgres.confirmed,
            horizon: None,
            pending: None,
            state: RecordState::Streaming,
            age_seconds: 0.0,
            holder: before.and_then(|before| before.holder.clone()),
        };
        self.note(|| format!("record: epoch {} begins at {}", record.epoch, record.confirmed_lsn));
        self.postgres.write(self.log.end, record.clone());
        self.record_is_log_too();
        Some(record)
    }

    /// Signs a holder on, or off.
    pub fn sign(&mut self, epoch: i64, holder: &str, on: bool) {
        let Some(record) = self.postgres.record.clone().filter(|record| record.epoch == epoch) else { return };
        if !on && record.holder.as_deref() != Some(holder) {
            return;
        }
        self.note(|| format!("record: {holder} signs {}", if on { "on" } else { "off" }));
        let process = holder.rsplit(' ').next().and_then(|number| number.parse().ok());
        let under_way = process.map_or(0, |process| self.under_way(process));
        if !on && under_way > 0 {
            self.violated(format!("{holder} signs off, and {under_way} requests of it are under way"));
        }
        let (state, holder) = match on {
            true => (RecordState::Streaming, Some(holder.to_owned())),
            false => (RecordState::SignedOff, None),
        };
        self.postgres.write(self.log.end, Checkpoint { state, holder, ..record });
        self.record_is_log_too();
    }

    /// Commits a position, as the statement does.
    pub fn record(&mut self, lsn: Lsn, epoch: i64) -> Recorded {
        let Some(record) = self.postgres.record.clone() else { return Recorded::Gone };
        let now = self.postgres.fingerprint();
        if record.epoch != epoch {
            return Recorded::Superseded { epoch: record.epoch, state: record.state.as_str().to_owned() };
        }
        if record.fingerprint != now {
            return Recorded::FingerprintChanged { recorded: record.fingerprint, now };
        }
        if record.confirmed_lsn > lsn {
            return Recorded::Behind { recorded: record.confirmed_lsn };
        }
        self.note(|| format!("record: {lsn}"));
        self.check_confirmed(lsn, "recorded");
        self.postgres.asked_at = None;
        self.postgres.write(self.log.end, Checkpoint { confirmed_lsn: lsn, ..record });
        self.record_is_log_too();
        Recorded::Done
    }

    fn record_is_log_too(&mut self) {
        if !self.is_log_held() {
            self.log.grow(RECORD_BYTES);
        }
    }

    /// Whether a living relay does not know yet that the server has lost some of its log.
    pub fn is_log_held(&self) -> bool {
        self.postgres.unaware.iter().any(|number| self.relays[*number as usize].alive)
    }

    /// A status frame: `flush` is what the server may forget.
    pub fn status(&mut self, write: Lsn, flush: Lsn) {
        if flush > self.postgres.confirmed {
            self.note(|| format!("confirmed: {flush}"));
        }
        self.check_confirmed(flush, "confirmed");
        let late = self.postgres.asked_at.is_some_and(|at| at.elapsed() > RECORD_WITHIN);
        if late {
            self.postgres.unrecorded = self.postgres.unrecorded.max(flush);
        }
        let recorded = self.postgres.record.as_ref().map_or(Lsn::INVALID, |record| record.confirmed_lsn);
        if flush > recorded.max(self.postgres.unrecorded) {
            self.violated(format!("{flush} is confirmed, and only {recorded} is recorded"));
        }
        if write < flush {
            self.violated(format!("a status frame says that {write} was received, and {flush} confirmed"));
        }
        self.postgres.confirmed = self.postgres.confirmed.max(flush);
    }

    /// Nothing before `lsn` is sent again: it must be settled.
    pub fn check_confirmed(&mut self, lsn: Lsn, how: &str) {
        if let Some(row) = self.ledger.lost_by(&self.log, lsn) {
            let at = self.log.rows[row].commit_lsn;
            self.violated(format!("{lsn} is {how}, and row {row} of the transaction at {at} is not in Kafka"));
        }
        if lsn > self.postgres.told {
            let told = self.postgres.told;
            self.violated(format!("{lsn} is {how}, and the server has told of no more than {told}"));
        }
    }

    /// A crash, or up to version 16 a restart: the slot is as it was last written to disk.
    pub fn slot_goes_back(&mut self) {
        let postgres = &mut self.postgres;
        postgres.confirmed = postgres.on_disk;
        let to = postgres.confirmed;
        self.note(|| format!("Postgres: the slot goes back to {to}"));
    }

    /// The server, or the one that takes its place, has only what was written up to `end`.
    pub fn lose_log(&mut self, end: Lsn, new_timeline: bool) {
        let epoch = self.postgres.epoch();
        self.note(|| format!("Postgres: what was written after {end} is lost"));
        self.log.lose(end, epoch);
        self.lose_shelf(end);
        self.ledger.lose();
        let postgres = &mut self.postgres;
        postgres.timeline += u32::from(new_timeline);
        let was_recorded = postgres.record.as_ref().map_or(Lsn::INVALID, |record| record.confirmed_lsn);
        while let Some((_, before)) = postgres.past.pop_if(|(written_at, _)| *written_at >= end) {
            postgres.record = before;
        }
        let most = postgres.on_disk.min(end);
        let recorded = postgres.record.as_ref().map_or(most, |record| record.confirmed_lsn);
        postgres.confirmed = most.min(recorded);
        postgres.on_disk = postgres.confirmed;
        postgres.told = postgres.told.min(end);
        // A relay that lives on remembers what the server does not.
        postgres.unrecorded = postgres.unrecorded.max(was_recorded).min(end);
        postgres.asked_at = None;
    }
}
