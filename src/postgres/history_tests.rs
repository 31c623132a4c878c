//! The judgement as a table: every rule, and every pair of rules whose order matters.

use super::*;
use crate::postgres::slot::WalStatus;

const HISTORY: &str = "7300000000000000001";

fn identity() -> Identity {
    Identity {
        system_identifier: HISTORY.into(),
        timeline: Some(3),
        flush_lsn: Lsn(0x9000),
        database: "app".into(),
        database_oid: 5,
    }
}

fn slot() -> SlotFacts {
    SlotFacts {
        name: "walpost".into(),
        plugin: Some("pgoutput".into()),
        database: Some("app".into()),
        temporary: false,
        active: false,
        active_pid: None,
        restart_lsn: Some(Lsn(0x0800)),
        confirmed_flush_lsn: Some(Lsn(0x1000)),
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

fn record() -> Checkpoint {
    Checkpoint {
        slot_name: "walpost".into(),
        relay_name: "orders".into(),
        system_identifier: HISTORY.into(),
        timeline: 3,
        database_oid: 5,
        table_oid: 16400,
        kafka_cluster_id: Some("kafka-a".into()),
        fingerprint: "as it was".into(),
        epoch: 1_700_000_000,
        confirmed_lsn: Lsn(0x1000),
        horizon: Some(700),
        pending: None,
        state: State::Streaming,
        holder: None,
        age_seconds: 1.0,
    }
}

/// A situation, whole by default, that each case changes.
struct Case {
    slot: Option<SlotFacts>,
    record: Option<Checkpoint>,
    identity: Identity,
    memory: Option<Memory>,
    fingerprint: Option<&'static str>,
    kafka: Option<&'static str>,
}

fn case(change: impl FnOnce(&mut Case)) -> Verdict {
    let mut case = Case {
        slot: Some(slot()),
        record: Some(record()),
        identity: identity(),
        memory: None,
        fingerprint: Some("as it was"),
        kafka: Some("kafka-a"),
    };
    change(&mut case);
    judge(&Seen {
        relay: "orders",
        slot_name: "walpost",
        slot: case.slot.as_ref(),
        record: case.record.as_ref(),
        identity: &case.identity,
        memory: case.memory.as_ref(),
        fingerprint: case.fingerprint,
        kafka_cluster_id: case.kafka,
    })
}

fn with_slot(change: impl FnOnce(&mut SlotFacts)) -> Verdict {
    case(|c| change(c.slot.as_mut().unwrap()))
}

fn with_record(change: impl FnOnce(&mut Checkpoint)) -> Verdict {
    case(|c| change(c.record.as_mut().unwrap()))
}

fn remembered(confirmed: u64) -> Option<Memory> {
    Some(Memory { confirmed: Lsn(confirmed), received: Lsn(confirmed), recorded: Lsn::INVALID, identity: identity() })
}

fn kind(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Resume { .. } => "resume",
        Verdict::NewEpoch { .. } => "new epoch",
        Verdict::FirstUse { .. } => "first use",
        Verdict::NotSetUp { .. } => "not set up",
        Verdict::Lost { .. } => "lost",
        Verdict::Gap { .. } => "gap",
        Verdict::PublicationChanged { .. } => "publication changed",
        Verdict::Recovering { .. } => "recovering",
        Verdict::Refused { .. } => "refused",
    }
}

#[test]
fn an_unchanged_history_resumes_at_what_was_confirmed() {
    let resume = |lsn| Verdict::Resume { start_lsn: Lsn(lsn) };
    assert_eq!(case(|_| ()), resume(0x1000));
    assert_eq!(with_record(|r| r.state = State::SignedOff), resume(0x1000));
    // The slot moved back over a clean restart (up to 16): our own position is asked for.
    assert_eq!(with_record(|r| r.confirmed_lsn = Lsn(0x1800)), resume(0x1800));
    // What was confirmed but could not be recorded counts within the process.
    assert_eq!(case(|c| c.memory = remembered(0x1800)), resume(0x1800));
    assert_eq!(case(|c| c.memory = remembered(0x0800)), resume(0x1000));
    // A server that ends exactly at what was confirmed has lost nothing.
    assert_eq!(case(|c| c.identity.flush_lsn = Lsn(0x1000)), resume(0x1000));
    // Not known is not different.
    assert_eq!(case(|c| c.kafka = None), resume(0x1000));
    assert_eq!(with_record(|r| r.kafka_cluster_id = None), resume(0x1000));
    assert_eq!(case(|c| c.fingerprint = None), resume(0x1000));
    // An unreserved slot still works, whoever holds it.
    assert_eq!(with_slot(|s| s.wal_status = Some(WalStatus::Unreserved)), resume(0x1000));
    assert_eq!(with_slot(|s| s.active = true), resume(0x1000));
}

#[test]
fn without_a_record_the_slot_decides_or_the_memory_of_this_process() {
    assert_eq!(case(|c| c.record = None), Verdict::FirstUse { streams_from: Lsn(0x1000) });
    let remembering = |confirmed| {
        case(|c| {
            c.record = None;
            c.memory = remembered(confirmed);
        })
    };
    assert_eq!(remembering(0x1400), Verdict::Resume { start_lsn: Lsn(0x1400) });
    assert_eq!(kind(&remembering(0x0fff)), "gap");
    let elsewhere = case(|c| {
        c.record = None;
        c.memory = remembered(0x1400);
        c.identity.system_identifier = "another".into();
    });
    assert_eq!(kind(&elsewhere), "gap");
}

#[test]
fn a_changed_history_begins_a_new_epoch_where_the_slot_is() {
    assert_eq!(kind(&case(|c| c.identity.timeline = Some(4))), "new epoch");
    assert_eq!(kind(&case(|c| c.identity.timeline = None)), "new epoch");
    assert_eq!(kind(&case(|c| c.identity.flush_lsn = Lsn(0x0fff))), "new epoch");
    let remembered_timeline = case(|c| {
        c.record.as_mut().unwrap().timeline = 4;
        c.identity.timeline = Some(4);
        c.memory = remembered(0x1000);
    });
    assert_eq!(kind(&remembered_timeline), "new epoch");
}

#[test]
fn a_slot_ahead_of_what_was_confirmed_is_a_gap() {
    let Verdict::Gap { recorded, slot_at, reason, remedy } = with_record(|r| r.confirmed_lsn = Lsn(0x0fff)) else {
        panic!("no gap");
    };
    assert_eq!((recorded, slot_at), (Lsn(0x0fff), Lsn(0x1000)));
    assert!(reason.contains("0/1000") && reason.contains("0/FFF"), "{reason}");
    assert!(remedy.contains("--accept-gap"), "{remedy}");
    // Also after a failover, which the reason names.
    let promoted = case(|c| {
        c.record.as_mut().unwrap().confirmed_lsn = Lsn(0x0fff);
        c.identity.timeline = Some(4);
    });
    assert!(matches!(promoted, Verdict::Gap { reason, .. } if reason.contains("from 3 to 4")));
    // What the process confirmed closes it.
    let confirmed = case(|c| {
        c.record.as_mut().unwrap().confirmed_lsn = Lsn(0x0fff);
        c.memory = remembered(0x1000);
    });
    assert_eq!(confirmed, Verdict::Resume { start_lsn: Lsn(0x1000) });
}

#[test]
fn another_server_is_never_resumed_however_its_positions_compare() {
    for confirmed in [0x0800, 0x1000, 0x8000] {
        let restored = case(|c| {
            c.record.as_mut().unwrap().confirmed_lsn = Lsn(confirmed);
            c.identity.system_identifier = "7300000000000000002".into();
        });
        assert_eq!(kind(&restored), "gap");
        let recreated = with_record(|r| r.database_oid = 6);
        assert_eq!(kind(&recreated), "gap");
    }
}

#[test]
fn a_memory_of_another_server_does_not_count_against_the_record() {
    let moved = case(|c| {
        c.memory = Some(Memory {
            confirmed: Lsn(0x8000),
            received: Lsn(0x8000),
            recorded: Lsn(0x8000),
            identity: Identity { system_identifier: "another".into(), ..identity() },
        });
    });
    assert_eq!(moved, Verdict::Resume { start_lsn: Lsn(0x1000) });
}

/// The commit LSNs that were read above the confirmed one will be given to other rows: no token may be used again, and
/// nothing that is remembered may be skipped.
#[test]
fn a_server_that_has_lost_wal_that_was_read_begins_a_new_epoch() {
    let end = identity().flush_lsn;
    let at = |received| kind(&case(|c| c.memory = remembered(0x1000).map(|memory| Memory { received, ..memory })));
    assert_eq!(at(end), "resume");
    assert_eq!(at(Lsn(end.0 + 1)), "new epoch");
}

/// Its log has grown past everything that was read, and not even the timeline tells.
#[test]
fn a_record_that_has_gone_back_is_an_older_copy_of_the_disk() {
    let committed = |recorded| case(|c| c.memory = remembered(0x1800).map(|memory| Memory { recorded, ..memory }));
    assert_eq!(committed(Lsn(0x1000)), Verdict::Resume { start_lsn: Lsn(0x1800) });
    assert_eq!(kind(&committed(Lsn(0x1001))), "new epoch");
}

/// On a history that survived another one, the slot is judged by its record alone.
#[test]
fn what_was_confirmed_on_a_lost_history_hides_no_gap() {
    let gap = |change: fn(&mut Case)| {
        kind(&case(|c| {
            c.record.as_mut().unwrap().confirmed_lsn = Lsn(0x0fff);
            c.memory = remembered(0x1800);
            change(c);
        }))
    };
    assert_eq!(gap(|_| ()), "resume");
    assert_eq!(gap(|c| c.identity.timeline = Some(4)), "gap");
    assert_eq!(gap(|c| c.identity.flush_lsn = Lsn(0x17ff)), "gap");
    assert_eq!(gap(|c| c.memory.as_mut().unwrap().recorded = Lsn(0x1000)), "gap");
    // A slot that the server copied from the old primary is where that had been told.
    let copied = |c: &mut Case| {
        c.identity.timeline = Some(4);
        c.slot.as_mut().unwrap().synced = true;
    };
    assert_eq!(gap(copied), "new epoch");
}

#[test]
fn a_slot_that_is_gone_or_invalidated_is_lost_if_it_was_ever_ours() {
    assert_eq!(kind(&case(|c| c.slot = None)), "lost");
    let only_memory = case(|c| {
        c.slot = None;
        c.record = None;
        c.memory = remembered(0x1000);
    });
    assert_eq!(kind(&only_memory), "lost");
    let neither = case(|c| {
        c.slot = None;
        c.record = None;
    });
    assert_eq!(kind(&neither), "not set up");
    for reason in ["wal_removed", "idle_timeout", "rows_removed", "wal_level_insufficient", "something new"] {
        let Verdict::Lost { reason: said, remedy } = with_slot(|s| s.invalidation_reason = Some(reason.into())) else {
            panic!("{reason} is not lost");
        };
        assert!(said.contains(reason) && said.contains("0/1000"), "{said}");
        assert!(remedy.contains("--accept-gap"));
    }
    let Verdict::Lost { reason, .. } = with_slot(|s| s.invalidation_reason = Some("idle_timeout".into())) else {
        panic!("not lost");
    };
    assert!(reason.contains("idle_replication_slot_timeout"), "{reason}");
    assert_eq!(kind(&with_slot(|s| s.wal_status = Some(WalStatus::Lost))), "lost");
    assert_eq!(kind(&with_slot(|s| s.conflicting = Some(true))), "lost");
    // An invalidated slot that nobody recorded is lost too: it can never be taken over.
    let unrecorded = case(|c| {
        c.record = None;
        c.slot.as_mut().unwrap().wal_status = Some(WalStatus::Lost);
    });
    assert_eq!(kind(&unrecorded), "lost");
}

#[test]
fn a_changed_publication_stops_unless_worse_is_known() {
    assert_eq!(kind(&case(|c| c.fingerprint = Some("another"))), "publication changed");
    let and_gap = case(|c| {
        c.fingerprint = Some("another");
        c.record.as_mut().unwrap().confirmed_lsn = Lsn(1);
    });
    assert_eq!(kind(&and_gap), "gap");
    let and_failover = case(|c| {
        c.fingerprint = Some("another");
        c.identity.timeline = Some(4);
    });
    assert_eq!(kind(&and_failover), "publication changed");
}

#[test]
fn nothing_streams_while_a_recovery_is_under_way() {
    assert_eq!(kind(&with_record(|r| r.state = State::Recovering)), "recovering");
    let slot_gone = case(|c| {
        c.slot = None;
        c.record.as_mut().unwrap().state = State::Recovering;
    });
    assert_eq!(kind(&slot_gone), "recovering");
    let invalidated = case(|c| {
        c.slot.as_mut().unwrap().wal_status = Some(WalStatus::Lost);
        c.record.as_mut().unwrap().state = State::Recovering;
    });
    assert_eq!(kind(&invalidated), "recovering");
}

#[test]
fn what_is_not_ours_is_refused_with_the_owner_named() {
    let reason = |verdict| match verdict {
        Verdict::Refused { reason, remedy } => format!("{reason}; {remedy}"),
        other => panic!("{other:?}"),
    };
    assert!(reason(with_slot(|s| s.plugin = Some("test_decoding".into()))).contains("test_decoding"));
    assert!(reason(with_slot(|s| s.plugin = None)).contains("physical"));
    assert!(reason(with_slot(|s| s.database = Some("billing".into()))).contains("billing"));
    assert!(reason(with_slot(|s| s.two_phase = true)).contains("two_phase"));
    assert!(reason(with_slot(|s| s.temporary = true)).contains("temporary"));
    let other_relay = reason(with_record(|r| r.relay_name = "staging".into()));
    assert!(other_relay.contains("\"staging\"") && other_relay.contains("--adopt"), "{other_relay}");
    let other_kafka = reason(case(|c| c.kafka = Some("kafka-b")));
    assert!(other_kafka.contains("kafka-a") && other_kafka.contains("kafka-b"), "{other_kafka}");
    let half_made = reason(with_slot(|s| s.confirmed_flush_lsn = None));
    assert!(half_made.contains("being made"), "{half_made}");
}

#[test]
fn ownership_is_judged_before_everything_else() {
    let foreign = |change: fn(&mut Case)| {
        case(|c| {
            change(c);
            c.record.as_mut().unwrap().relay_name = "staging".into();
        })
    };
    for change in [
        (|c| c.slot = None) as fn(&mut Case),
        |c| c.slot.as_mut().unwrap().wal_status = Some(WalStatus::Lost),
        |c| c.record.as_mut().unwrap().state = State::Recovering,
        |c| c.fingerprint = Some("another"),
        |c| c.identity.timeline = Some(9),
    ] {
        assert_eq!(kind(&foreign(change)), "refused");
    }
    // A slot of another database with our name is not our slot lost.
    let wrong_database = case(|c| {
        c.identity.database = "appp".into();
        c.identity.database_oid = 9;
        c.record = None;
    });
    assert_eq!(kind(&wrong_database), "refused");
}

#[test]
fn a_connection_made_anew_is_believed_only_on_the_log_that_is_streamed() {
    let streamed = identity();
    let at = |flush: u64| Identity { flush_lsn: Lsn(flush), ..identity() };
    let is = |now: &Identity, found: u64| is_streamed_log(&streamed, now, Lsn(0x300), Lsn(0x200), Some(Lsn(found)));
    assert!(is(&at(0x300), 0x200) && is(&at(0x900), 0x250));
    assert!(!is(&at(0x2ff), 0x200), "what the stream told is not there any more");
    assert!(!is(&at(0x900), 0x1ff), "what was recorded is not there any more");
    assert!(!is(&Identity { timeline: Some(9), ..at(0x900) }, 0x200), "a promoted server");
    assert!(!is(&Identity { database_oid: 9, ..at(0x900) }, 0x200));
    assert!(is(&Identity { timeline: None, ..at(0) }, 0x200), "a standby refuses by itself");
}
