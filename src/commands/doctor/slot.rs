//! Is the slot there, is it ours, is it whole, who holds it, and how much does it hold?

use super::{Check, size};
use crate::config::Config;
use crate::postgres::catalog::Identity;
use crate::postgres::checkpoint::{Checkpoint, State};
use crate::postgres::history::{self, Verdict, judge};
use crate::postgres::server::ServerFacts;
use crate::postgres::slot::{FAILOVER_SLOTS, OpenTransaction, SlotFacts, WalStatus, age};

/// Retained WAL beyond this is worth a word, bound or no bound.
const RETAINED_BYTES: u64 = 10 << 30;
/// Below this share of the cap, what is left may go in one burst.
const LEFT_SHARE: u64 = 5;
/// A slot that nobody has read for longer was forgotten, or its relay is down.
const IDLE_SECONDS: f64 = 600.0;
/// Vacuum of the catalogs has been held back for this many transactions.
const XMIN_AGE: i64 = 50_000_000;

/// What the checks look at.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub config: &'a Config,
    pub server: &'a ServerFacts,
    pub slot: Option<&'a SlotFacts>,
    pub record: Option<&'a Checkpoint>,
    pub identity: &'a Identity,
    pub fingerprint: Option<&'a str>,
    /// Open transactions, oldest first.
    pub open: &'a [OpenTransaction],
}

pub fn checks(seen: &Seen<'_>) -> Vec<Check> {
    let mut checks = vec![history(seen)];
    let Some(slot) = seen.slot.filter(|slot| slot.lost().is_none()) else { return checks };
    checks.push(holder(slot));
    checks.push(wal(seen, slot));
    checks.extend(held_by_others(seen, slot));
    checks.extend(catalog(slot));
    checks.extend(failover(seen, slot));
    checks
}

/// Whether a relay could stream now: the same judgement that `run` makes.
fn history(seen: &Seen<'_>) -> Check {
    let name = "slot.position";
    let slot_name = seen.config.postgres.slot.as_str();
    let fingerprint = seen.fingerprint.filter(|_| seen.record.is_some());
    let verdict = judge(&history::Seen {
        relay: &seen.config.name,
        slot_name,
        slot: seen.slot,
        record: seen.record,
        identity: seen.identity,
        memory: None,
        fingerprint,
        kafka_cluster_id: None,
    });
    let record = seen.record.map(|record| {
        let state = match record.state {
            State::Streaming => "a relay streams, or ended without signing off",
            State::SignedOff => "the last relay signed off",
            State::Recovering => "being recovered",
        };
        format!("; recorded {} {} ago, {state}", record.confirmed_lsn, age(record.age_seconds))
    });
    let record = record.unwrap_or_default();
    match verdict {
        Verdict::Resume { start_lsn } => {
            Check::ok(name, format!("slot {slot_name} streams on from {start_lsn}{record}"))
        }
        Verdict::NewEpoch { why } => Check::warn(
            name,
            format!("slot {slot_name}{record}; {why}"),
            "the next run begins a new epoch where the slot stands; rows since then may be published again",
            "nothing, if the failover or restore was meant",
        ),
        Verdict::FirstUse { streams_from } => Check::ok(
            name,
            format!("slot {slot_name} has no record yet; the first run takes it over, and streams from {streams_from}"),
        ),
        Verdict::NotSetUp { reason, remedy } => Check::fail(name, reason, "there is nothing to stream from", remedy),
        Verdict::Lost { reason, remedy } => {
            Check::fail(name, reason, "run stays up and streams nothing until a person decides", remedy)
        }
        Verdict::Gap { reason, remedy, .. } => {
            Check::fail(name, reason, "run stays up and streams nothing until a person decides", remedy)
        }
        Verdict::PublicationChanged { reason, remedy } => {
            Check::fail(name, reason, "run stays up and streams nothing until a person decides", remedy)
        }
        Verdict::Recovering { reason, remedy } => Check::fail(name, reason, "nothing may stream meanwhile", remedy),
        Verdict::Refused { reason, remedy } => {
            Check::fail(name, reason, "walpost does not touch what is not its own", remedy)
        }
    }
}

fn holder(slot: &SlotFacts) -> Check {
    let name = "slot.holder";
    match (slot.held_by(), slot.inactive_seconds) {
        (Some(holder), _) => {
            let application = slot.holder.as_ref().and_then(|holder| holder.application.as_deref());
            if application.is_none_or(|name| name.starts_with("walpost")) {
                return Check::ok(name, format!("read by {holder}"));
            }
            Check::warn(
                name,
                format!("read by {holder}"),
                "a slot has one reader: two would each miss what the other confirms",
                "stop that reader, or give each relay a slot of its own (postgres.slot)",
            )
        }
        (None, Some(seconds)) if seconds > IDLE_SECONDS => Check::warn(
            name,
            format!("nobody has read it for {}", age(seconds)),
            "it holds WAL until somebody does",
            "start the relay, or walpost teardown if it has come to its end",
        ),
        (None, _) => Check::ok(name, "nobody reads it now"),
    }
}

fn wal(seen: &Seen<'_>, slot: &SlotFacts) -> Check {
    let name = "slot.wal";
    let (retained, lag) = (slot.retained_bytes().unwrap_or(0), slot.lag_bytes().unwrap_or(0));
    let status = slot.wal_status.map_or("unknown", WalStatus::as_str);
    let cap = seen.server.slot_wal_limit_bytes();
    let left = slot.safe_wal_size.and_then(|bytes| u64::try_from(bytes).ok());
    let room = match (cap, left) {
        (Some(_), Some(left)) => format!(", {} until it is given up", size(left)),
        (Some(_), None) => String::new(),
        (None, _) => ", nothing bounds it".to_owned(),
    };
    let saw = format!("holds {} of WAL ({status}), {} unconfirmed{room}", size(retained), size(lag));
    let advice = "start the relay, or see why it does not confirm: walpost status";
    if slot.wal_status == Some(WalStatus::Unreserved) {
        let why = "it is above the cap: the next checkpoint may remove WAL that it needs, and it is lost";
        let remedy =
            "ALTER SYSTEM SET max_slot_wal_keep_size to more, at once, SELECT pg_reload_conf(), then start the relay";
        return Check::fail(name, saw, why, remedy);
    }
    if let (Some(cap), Some(left)) = (cap, left)
        && left < cap / LEFT_SHARE
    {
        return Check::warn(name, saw, "a burst of writes can cost the slot", advice);
    }
    if retained > RETAINED_BYTES {
        return Check::warn(name, saw, "it fills the database's disk", advice);
    }
    Check::ok(name, saw)
}

/// WAL that is held although everything is confirmed is held by an open transaction, not by the relay.
fn held_by_others(seen: &Seen<'_>, slot: &SlotFacts) -> Option<Check> {
    let (retained, lag) = (slot.retained_bytes()?, slot.lag_bytes()?);
    let oldest = seen.open.first()?;
    (retained > RETAINED_BYTES / 10 && lag < retained / 2).then(|| {
        Check::warn(
            "slot.restart",
            format!(
                "{} of WAL are held and only {} are unconfirmed; the oldest transaction is {oldest}",
                size(retained),
                size(lag)
            ),
            "a slot cannot let go of WAL that was written since the oldest open transaction began, in any database",
            match (&oldest.prepared, oldest.pid) {
                (Some(name), _) => {
                    format!("COMMIT PREPARED or ROLLBACK PREPARED {}", crate::names::quote_literal(name))
                }
                (None, Some(pid)) => format!("end it: SELECT pg_terminate_backend({pid})"),
                (None, None) => "end it".to_owned(),
            },
        )
    })
}

fn catalog(slot: &SlotFacts) -> Option<Check> {
    let transactions = slot.catalog_xmin_age.filter(|age| *age > XMIN_AGE)?;
    Some(Check::warn(
        "slot.catalog",
        format!("its catalog_xmin is {transactions} transactions old"),
        "vacuum cannot clean the system catalogs behind it, so they grow",
        "start the relay; end transactions that are open for long",
    ))
}

fn failover(seen: &Seen<'_>, slot: &SlotFacts) -> Option<Check> {
    let name = "slot.failover";
    if seen.server.version < FAILOVER_SLOTS {
        return None;
    }
    if slot.failover {
        return Some(Check::ok(name, "marked to be copied to standbys (where they have sync_replication_slots = on)"));
    }
    let standbys = seen.server.slots.iter().any(|slot| slot.kind == "physical");
    standbys.then(|| {
        Check::warn(
            name,
            "not marked to be copied to standbys",
            "after a failover it is not there, and the rows at risk must be healed from the table (walpost recover)",
            format!(
                "with the relay stopped, over a replication connection: ALTER_REPLICATION_SLOT {} (FAILOVER true)",
                slot.name
            ),
        )
    })
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;
