//! May this relay stream from this slot, and from where? One pure judgement over what was seen at a connect: the slot,
//! the record, the server's identity, and what this process remembers. The rules, in their order:
//!
//! 1. Whose is it: a slot of another kind or database, or a record of another relay or Kafka cluster, is refused.
//! 2. Is it whole: a lost slot, a recovery under way, a slot that is *ahead* of what was recorded (it was moved or made
//!    anew), another server altogether, and a changed publication each wait for a person. Rows may be missing.
//! 3. Is it the same history: then our own confirmed LSN is asked for, because up to PostgreSQL 16 a slot moves back
//!    over a clean restart; else the slot decides, and a new epoch begins. A start ahead of what was confirmed never
//!    happens.

use super::catalog::Identity;
use super::checkpoint::{Checkpoint, State};
use super::fingerprint::difference;
use super::slot::{SlotFacts, invalidation_advice};
use crate::lsn::Lsn;

/// What was seen at a connect.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Our `name`.
    pub relay: &'a str,
    pub slot_name: &'a str,
    pub slot: Option<&'a SlotFacts>,
    pub record: Option<&'a Checkpoint>,
    pub identity: &'a Identity,
    /// What this process confirmed before, whether or not it could be recorded.
    pub memory: Option<&'a Memory>,
    /// The publication's fingerprint now; None: not compared.
    pub fingerprint: Option<&'a str>,
    /// The cluster that we are connected to; None: not known (yet), not compared.
    pub kafka_cluster_id: Option<&'a str>,
}

/// The last LSN that this process confirmed, and in which history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    pub confirmed: Lsn,
    /// The furthest position that was read: rows up to there were published with their commit LSNs.
    pub received: Lsn,
    /// Surely committed to the record of this epoch, which never goes back within one.
    pub recorded: Lsn,
    pub identity: Identity,
}

impl Memory {
    /// Whether the server's log is another one than was read, or ends before: then what was confirmed there says nothing of
    /// what a slot here has passed. Positions alone do not tell it: a log that has lost its end grows past it again.
    fn forked(&self, now: &Identity, record: Option<&Checkpoint>) -> bool {
        self.identity.timeline != now.timeline
            || now.flush_lsn < self.received.max(self.confirmed)
            || self.put_back(record).is_some()
    }

    /// Where the record stands, if that is before what was committed to it.
    fn put_back(&self, record: Option<&Checkpoint>) -> Option<Lsn> {
        record.map(|record| record.confirmed_lsn).filter(|confirmed| *confirmed < self.recorded)
    }
}

/// What may be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Stream from here, in the record's epoch.
    Resume { start_lsn: Lsn },
    /// Stream from 0/0, which is where the slot stands, in a new epoch.
    NewEpoch { why: String },
    /// There is no record: take the slot over as it is.
    FirstUse { streams_from: Lsn },
    /// There is neither slot nor record.
    NotSetUp { reason: String, remedy: String },
    /// The slot can never be read again, or is gone.
    Lost { reason: String, remedy: String },
    /// The slot is not where we left it.
    Gap { recorded: Lsn, slot_at: Lsn, reason: String, remedy: String },
    /// What is published is not what was published when the epoch began.
    PublicationChanged { reason: String, remedy: String },
    /// A recovery is at work or was interrupted.
    Recovering { reason: String, remedy: String },
    /// It is not ours to stream from.
    Refused { reason: String, remedy: String },
}

/// Where a record tells which rows are at risk.
const HEAL: &str = "`walpost recover` publishes again from the table what may be missing, and goes on without a gap (--dry-run shows \
                    it first); `walpost setup --accept-gap` prints what may be missing and goes on without it";
/// Where none does.
const ACCEPT: &str =
    "publish again from the table what consumers miss, if they miss any; `walpost setup --accept-gap` goes on";
const RECOVERING: &str = "if no `walpost recover` is at work, run it again: it starts over, and what it published already repeats; \
                          `walpost setup --accept-gap` gives it up";

/// Judges by the rules above.
pub fn judge(seen: &Seen<'_>) -> Verdict {
    if let Some(refused) = ownership(seen) {
        return refused;
    }
    let Some(slot) = seen.slot else { return without_slot(seen) };
    if let Some(recovering) = recovering(seen) {
        return recovering;
    }
    if let Some(reason) = slot.lost() {
        return Verdict::Lost {
            reason: format!(
                "Postgres has invalidated slot {} ({reason}): {}{}",
                seen.slot_name,
                invalidation_advice(reason),
                at_risk(seen)
            ),
            remedy: heal(seen),
        };
    }
    let Some(slot_at) = slot.confirmed_flush_lsn else {
        let by = slot.held_by().map_or(String::new(), |holder| format!(" by {holder}"));
        return Verdict::Refused {
            reason: format!("slot {} is still being made{by}", seen.slot_name),
            remedy: "wait: it is ready when every transaction that was open has ended".into(),
        };
    };
    positions(seen, slot_at)
}

/// Rule 1.
fn ownership(seen: &Seen<'_>) -> Option<Verdict> {
    let refused = |reason: String, remedy: String| Some(Verdict::Refused { reason, remedy });
    let name = seen.slot_name;
    let another = "name another slot with postgres.slot, or drop this one if nobody needs it".to_owned();
    if let Some(slot) = seen.slot {
        match slot.plugin.as_deref() {
            Some("pgoutput") => {}
            Some(plugin) => return refused(format!("slot {name} decodes with {plugin}, not with pgoutput"), another),
            None => return refused(format!("slot {name} is a physical slot, for a standby"), another),
        }
        if slot.database.as_deref() != Some(&seen.identity.database) {
            let owner = slot.database.as_deref().unwrap_or("none");
            return refused(
                format!(
                    "slot {name} belongs to database {owner}, and this is {}; slot names are unique in the whole \
                    cluster",
                    seen.identity.database
                ),
                format!("connect to database {owner}, or name another slot with postgres.slot"),
            );
        }
        if slot.two_phase {
            return refused(
                format!("slot {name} decodes prepared transactions (two_phase), which may still be rolled back"),
                another,
            );
        }
        if slot.temporary {
            return refused(format!("slot {name} is temporary: it goes with the session that made it"), another);
        }
    }
    let record = seen.record?;
    let adopt =
        "`walpost setup --adopt`, if that one is retired; else use a slot of your own (postgres.slot)".to_owned();
    if record.relay_name != seen.relay {
        return refused(
            format!("slot {name} belongs to relay {:?}, and this one is called {:?}", record.relay_name, seen.relay),
            adopt,
        );
    }
    match (&record.kafka_cluster_id, seen.kafka_cluster_id) {
        (Some(theirs), Some(ours)) if theirs != ours => refused(
            format!("slot {name} publishes to Kafka cluster {theirs}, and these brokers belong to cluster {ours}"),
            adopt,
        ),
        _ => None,
    }
}

fn without_slot(seen: &Seen<'_>) -> Verdict {
    let name = seen.slot_name;
    if let Some(recovering) = recovering(seen) {
        return recovering;
    }
    if seen.record.is_none() && seen.memory.is_none() {
        return Verdict::NotSetUp {
            reason: format!("there is no slot {name}, and none was ever recorded"),
            remedy: "run `walpost setup`".into(),
        };
    }
    Verdict::Lost {
        reason: format!(
            "slot {name} is gone: it was dropped, or did not survive a failover or an upgrade{}",
            at_risk(seen)
        ),
        remedy: heal(seen),
    }
}

/// A recovery that is at work, or was cut off.
fn recovering(seen: &Seen<'_>) -> Option<Verdict> {
    let record = seen.record.filter(|record| record.state == State::Recovering)?;
    let by = record.holder.as_ref().map_or(String::new(), |holder| format!(" by {holder}"));
    let reason = format!(
        "slot {} is being recovered{by}, or that was cut off; rows that committed after {} may be unpublished",
        seen.slot_name, record.confirmed_lsn
    );
    Some(Verdict::Recovering { reason, remedy: RECOVERING.into() })
}

fn heal(seen: &Seen<'_>) -> String {
    if seen.record.is_some() { HEAL.into() } else { ACCEPT.into() }
}

/// Rules 2 and 3, for a slot that works.
fn positions(seen: &Seen<'_>, slot_at: Lsn) -> Verdict {
    let now = seen.identity;
    let name = seen.slot_name;
    if let Some(record) = seen.record {
        let elsewhere = if record.system_identifier != now.system_identifier {
            Some(format!(
                "this is another database cluster (system identifier {}, recorded {})",
                now.system_identifier, record.system_identifier
            ))
        } else if record.database_oid != now.database_oid {
            Some(format!(
                "database {} was made anew (oid {}, recorded {})",
                now.database, now.database_oid, record.database_oid
            ))
        } else {
            None
        };
        if let Some(what) = elsewhere {
            return Verdict::Gap {
                recorded: record.confirmed_lsn,
                slot_at,
                reason: format!(
                    "{what}: its WAL positions do not compare with the recorded {}, so nothing tells whether slot \
                    {name}, at {slot_at}, has passed over rows",
                    record.confirmed_lsn
                ),
                remedy: heal(seen),
            };
        }
    }
    // Another cluster's position means nothing here; the record, if there is one, decides alone.
    let memory = seen.memory.filter(|memory| memory.identity.same_database(now));
    // Nor does one of a history that was lost, where the record tells of the one that survived; but a slot that was copied
    // from the old primary is nowhere that this process had not confirmed, though the record may be a little behind it.
    let synced = seen.slot.is_some_and(|slot| slot.synced);
    let comparable = memory.filter(|memory| {
        let promoted = memory.identity.timeline != now.timeline && synced;
        seen.record.is_none() || promoted || !memory.forked(now, seen.record)
    });
    let positions = [seen.record.map(|record| record.confirmed_lsn), comparable.map(|memory| memory.confirmed)];
    let Some(confirmed) = positions.into_iter().flatten().max() else {
        return match seen.memory {
            None => Verdict::FirstUse { streams_from: slot_at },
            Some(memory) => Verdict::Gap {
                recorded: memory.confirmed,
                slot_at,
                reason: format!(
                    "the address now leads to another database cluster or database, where slot {name} stands at \
                    {slot_at} and nothing is recorded"
                ),
                remedy: "restart the relay if this is the intended server; check what it missed".into(),
            },
        };
    };

    let timelines = [seen.record.map(|record| Some(record.timeline)), memory.map(|memory| memory.identity.timeline)];
    let old_timeline = timelines.into_iter().flatten().find(|timeline| *timeline != now.timeline);
    let said = |timeline: Option<u32>| timeline.map_or("unknown".to_owned(), |number| number.to_string());
    if slot_at > confirmed {
        let failover = old_timeline.map_or(String::new(), |old| {
            format!(", and the timeline went from {} to {} (a failover)", said(old), said(now.timeline))
        });
        return Verdict::Gap {
            recorded: confirmed,
            slot_at,
            reason: format!(
                "slot {name} starts at {slot_at}, after {confirmed}, which was confirmed last{failover}: it was moved \
                or made anew, and rows that committed between may be missing"
            ),
            remedy: heal(seen),
        };
    }
    if let (Some(record), Some(fingerprint)) = (seen.record, seen.fingerprint)
        && record.fingerprint != fingerprint
    {
        return Verdict::PublicationChanged {
            reason: format!(
                "what is published was changed: {}; rows that committed after {} may not be in the stream",
                difference(&record.fingerprint, fingerprint),
                record.confirmed_lsn
            ),
            remedy: heal(seen),
        };
    }
    if let Some(old) = old_timeline {
        return Verdict::NewEpoch {
            why: format!("the timeline went from {} to {}: a failover or a restore", said(old), said(now.timeline)),
        };
    }
    if now.flush_lsn < confirmed {
        return Verdict::NewEpoch {
            why: format!(
                "the server's WAL ends at {}, before {confirmed}, which was confirmed: it has lost WAL",
                now.flush_lsn
            ),
        };
    }
    if let Some(memory) = memory.filter(|memory| now.flush_lsn < memory.received) {
        return Verdict::NewEpoch {
            why: format!(
                "the server's WAL ends at {}, before {}, up to which it was read: it has lost WAL, and gives the same \
                positions to other rows",
                now.flush_lsn, memory.received
            ),
        };
    }
    if let Some(memory) = memory
        && let Some(at) = memory.put_back(seen.record)
    {
        return Verdict::NewEpoch {
            why: format!(
                "the record says {at}, and {} was committed to it before: the server is on an older copy of its disk, and \
                gives the same positions to other rows",
                memory.recorded
            ),
        };
    }
    Verdict::Resume { start_lsn: confirmed }
}

/// What a person needs to know beside the reason: from where on rows may be missing.
fn at_risk(seen: &Seen<'_>) -> String {
    let memory = seen.memory.map(|memory| memory.confirmed);
    match seen.record.map(|record| record.confirmed_lsn).into_iter().chain(memory).max() {
        Some(confirmed) => format!("; rows that committed after {confirmed} may be unpublished"),
        None => "; nothing recorded how far it had been read".to_owned(),
    }
}

impl Identity {
    /// The same cluster and database, whatever the timeline.
    pub fn same_database(&self, other: &Identity) -> bool {
        self.system_identifier == other.system_identifier && self.database_oid == other.database_oid
    }
}

/// Whether a connection beside the stream, made anew, leads to the log that is streamed: an address may lead to a promoted
/// server while the stream is still the old one's, or to the same one with an older disk. What was read there must not be
/// recorded here: rows of this history that nobody read would count as confirmed. `told`: the furthest position that the
/// stream has led to; `recorded` and `found`: what the record held, and what it holds.
///
/// A standby, whose timeline is not told, passes: it refuses to be written to, and says so itself.
pub fn is_streamed_log(streamed: &Identity, now: &Identity, told: Lsn, recorded: Lsn, found: Option<Lsn>) -> bool {
    let same = now.same_database(streamed) && now.timeline == streamed.timeline;
    let whole = now.flush_lsn >= told && found.is_none_or(|found| found >= recorded);
    now.same_database(streamed) && now.timeline.is_none() || same && whole
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
