use super::super::Outcome::{self, Fail, Ok, Warn};
use super::*;
use crate::lsn::Lsn;
use crate::postgres::server::{Setting, SlotUse};

const HISTORY: &str = "7300000000000000001";

struct Case {
    config: Config,
    server: ServerFacts,
    slot: Option<SlotFacts>,
    record: Option<Checkpoint>,
    fingerprint: &'static str,
    open: Vec<OpenTransaction>,
}

fn slot() -> SlotFacts {
    serde_json::from_str(
        r#"{"slot_name":"walpost","plugin":"pgoutput","database":"app","active":false,"active_pid":null,
            "restart_lsn":"0/800","confirmed_flush_lsn":"0/1000","current_lsn":"0/2000","wal_status":"reserved",
            "safe_wal_size":null,"failover":true}"#,
    )
    .unwrap()
}

fn record() -> Checkpoint {
    Checkpoint {
        slot_name: "walpost".into(),
        relay_name: "walpost".into(),
        system_identifier: HISTORY.into(),
        timeline: 1,
        database_oid: 5,
        table_oid: 1,
        kafka_cluster_id: None,
        fingerprint: "f".into(),
        epoch: 1,
        confirmed_lsn: Lsn(0x1000),
        horizon: None,
        pending: None,
        state: State::SignedOff,
        holder: None,
        age_seconds: 2.0,
    }
}

/// The checks that are not in order, after a change to a situation that is.
fn odd(change: impl FnOnce(&mut Case)) -> Vec<(&'static str, Outcome, String)> {
    let cap = Setting { setting: "102400".into(), unit: Some("MB".into()), pending_restart: false };
    let server = ServerFacts {
        version: 170_000,
        version_text: "17".into(),
        in_recovery: false,
        database: "app".into(),
        database_oid: 5,
        encoding: "UTF8".into(),
        clock: 0.0,
        settings: [("max_slot_wal_keep_size".to_owned(), cap)].into(),
        senders_used: 0,
        slots: Vec::new(),
    };
    let mut case = Case {
        config: Config::default(),
        server,
        slot: Some(slot()),
        record: Some(record()),
        fingerprint: "f",
        open: Vec::new(),
    };
    change(&mut case);
    let identity = Identity {
        system_identifier: HISTORY.into(),
        timeline: Some(1),
        flush_lsn: Lsn(0x9000),
        database: "app".into(),
        database_oid: 5,
    };
    let checks = checks(&Seen {
        config: &case.config,
        server: &case.server,
        slot: case.slot.as_ref(),
        record: case.record.as_ref(),
        identity: &identity,
        fingerprint: Some(case.fingerprint),
        open: &case.open,
    });
    let odd = checks.into_iter().filter(|check| check.outcome != Ok);
    odd.map(|check| {
        assert!(!check.why.is_empty() && !check.remedy.is_empty(), "{check:?}");
        (check.name, check.outcome, format!("{} {}", check.saw, check.remedy))
    })
    .collect()
}

fn with_slot(change: impl FnOnce(&mut SlotFacts)) -> Vec<(&'static str, Outcome, String)> {
    odd(|case| change(case.slot.as_mut().unwrap()))
}

#[track_caller]
fn only(odd: Vec<(&'static str, Outcome, String)>, name: &str, outcome: Outcome, text: &str) {
    assert_eq!(odd.len(), 1, "{odd:?}");
    assert_eq!((odd[0].0, odd[0].1), (name, outcome));
    assert!(odd[0].2.contains(text), "{}", odd[0].2);
}

#[test]
fn a_slot_as_setup_leaves_it_is_in_order() {
    assert_eq!(odd(|_| ()), []);
    assert_eq!(odd(|case| case.record = None), []);
}

#[test]
fn what_run_would_refuse_fails_here_with_the_same_remedy() {
    only(odd(|case| case.slot = None), "slot.position", Fail, "--accept-gap");
    only(
        odd(|case| {
            case.slot = None;
            case.record = None;
        }),
        "slot.position",
        Fail,
        "walpost setup",
    );
    only(with_slot(|slot| slot.wal_status = Some(WalStatus::Lost)), "slot.position", Fail, "max_slot_wal_keep_size");
    only(with_slot(|slot| slot.confirmed_flush_lsn = Some(Lsn(0x1001))), "slot.position", Fail, "--accept-gap");
    only(with_slot(|slot| slot.plugin = Some("wal2json".into())), "slot.position", Fail, "wal2json");
    only(odd(|case| case.fingerprint = "g"), "slot.position", Fail, "what is published was changed");
    only(odd(|case| case.record.as_mut().unwrap().relay_name = "b".into()), "slot.position", Fail, "--adopt");
    only(odd(|case| case.record.as_mut().unwrap().timeline = 9), "slot.position", Warn, "timeline");
}

#[test]
fn a_foreign_reader_and_a_forgotten_slot_are_named() {
    let held = |application: &str| {
        let application = application.to_owned();
        with_slot(move |slot| {
            slot.active = true;
            slot.active_pid = Some(7);
            slot.holder = serde_json::from_value(serde_json::json!({
                "pid": 7, "user": null, "application": application, "address": "10.0.0.1", "since": "2026-01-02 03:04:05 UTC",
                "wait_event": null
            }))
            .unwrap();
        })
    };
    assert_eq!(held("walpost"), []);
    only(held("Debezium Streaming"), "slot.holder", Warn, "Debezium Streaming");
    only(with_slot(|slot| slot.inactive_seconds = Some(90_000.0)), "slot.holder", Warn, "25 h");
}

#[test]
fn wal_that_piles_up_is_said_with_the_room_that_is_left() {
    only(with_slot(|slot| slot.wal_status = Some(WalStatus::Unreserved)), "slot.wal", Fail, "max_slot_wal_keep_size");
    only(with_slot(|slot| slot.safe_wal_size = Some(1 << 30)), "slot.wal", Warn, "1.0 GiB until it is given up");
    only(with_slot(|slot| slot.current_lsn = Some(Lsn(11 << 30))), "slot.wal", Warn, "holds 11.0 GiB");
    let unbounded = odd(|case| {
        case.server.settings.clear();
        case.slot.as_mut().unwrap().current_lsn = Some(Lsn(11 << 30));
    });
    only(unbounded, "slot.wal", Warn, "nothing bounds it");
}

#[test]
fn wal_that_an_open_transaction_holds_is_not_blamed_on_the_relay() {
    let held = odd(|case| {
        let slot = case.slot.as_mut().unwrap();
        slot.current_lsn = Some(Lsn(2 << 30));
        slot.confirmed_flush_lsn = Some(Lsn((2 << 30) - 100));
        case.record.as_mut().unwrap().confirmed_lsn = Lsn((2 << 30) - 100);
        case.record = None;
        case.open = vec![OpenTransaction {
            pid: Some(42),
            user: Some("app".into()),
            application: Some("batch".into()),
            database: Some("app".into()),
            state: Some("idle in transaction".into()),
            seconds: Some(9_000.0),
            prepared: None,
        }];
    });
    only(held, "slot.restart", Warn, "pg_terminate_backend(42)");
}

#[test]
fn a_slot_that_a_failover_would_lose_is_a_warning_where_there_are_standbys() {
    assert_eq!(with_slot(|slot| slot.failover = false), []);
    let standby = |version| {
        odd(|case| {
            case.server.version = version;
            case.slot.as_mut().unwrap().failover = false;
            case.server.slots = vec![SlotUse {
                name: "standby_1".into(),
                kind: "physical".into(),
                database: None,
                active: true,
                retained_bytes: None,
            }];
        })
    };
    only(standby(170_000), "slot.failover", Warn, "FAILOVER true");
    assert_eq!(standby(160_000), []);
}

#[test]
fn an_old_catalog_xmin_is_a_warning() {
    only(with_slot(|slot| slot.catalog_xmin_age = Some(60_000_000)), "slot.catalog", Warn, "60000000");
}
