//! Is the server one that can be relayed from, has it room for us, and what will it do to a slot that falls behind?

use super::{Check, size};
use crate::commands::setup::OLDEST_VERSION;
use crate::postgres::server::ServerFacts;

/// Beyond this, times in the record and in headers mislead.
const SKEW_SECONDS: f64 = 5.0;
/// What an inactive slot of somebody else may hold before it is worth a word.
const FOREIGN_RETAINED: i64 = 1 << 30;
/// Feedback goes out every second; a server that gives up sooner than this mistakes a short pause for a dead relay.
const SENDER_TIMEOUT_MS: i64 = 10_000;
/// A relay that is stopped for a release or a weekend must find its slot again.
const IDLE_TIMEOUT_SECONDS: u64 = 3 * 86_400;

/// What the checks look at.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub server: &'a ServerFacts,
    /// Our slot's name.
    pub slot: &'a str,
    pub skew_seconds: f64,
    pub skew_error_seconds: f64,
    /// What the configuration files say of wal_level, where it waits for a restart and the role may see it.
    pub wal_level_pending: Option<&'a str>,
}

pub fn checks(seen: &Seen<'_>) -> Vec<Check> {
    let mut checks = vec![
        version(seen.server),
        recovery(seen.server),
        wal_level(seen),
        slots(seen),
        senders(seen),
        encoding(seen.server),
        wal_cap(seen.server),
        sender_timeout(seen.server),
        clock(seen),
    ];
    checks.extend(idle_slot_timeout(seen.server));
    checks.extend(standby_barrier(seen.server));
    checks.extend(foreign_slots(seen));
    checks
}

fn version(server: &ServerFacts) -> Check {
    let saw = format!("PostgreSQL {}", server.version_text);
    if server.version >= OLDEST_VERSION {
        return Check::ok("server.version", saw);
    }
    Check::fail("server.version", saw, "walpost reads what 14 and later send", "upgrade the server to 14 or later")
}

fn recovery(server: &ServerFacts) -> Check {
    if !server.in_recovery {
        return Check::ok("server.recovery", "a primary");
    }
    Check::fail(
        "server.recovery",
        "a standby (in recovery)",
        "walpost keeps its record in the database, and a standby cannot be written",
        "connect to the primary: name all hosts and target_session_attrs=read-write in the address",
    )
}

fn wal_level(seen: &Seen<'_>) -> Check {
    let name = "server.wal_level";
    let Some(setting) = seen.server.settings.get("wal_level") else { return Check::skip(name, "it is not shown") };
    if setting.setting == "logical" && !setting.pending_restart {
        return Check::ok(name, "wal_level = logical");
    }
    let after = match (setting.pending_restart, seen.wal_level_pending) {
        (true, Some(pending)) => format!("; {pending} after the next restart"),
        (true, None) => "; another value after the next restart".to_owned(),
        (false, _) => String::new(),
    };
    let saw = format!("wal_level = {}{after}", setting.setting);
    if setting.setting == "logical" {
        let why = "after the next restart rows could not be decoded any more, and the slot would be refused";
        return Check::warn(name, saw, why, "ALTER SYSTEM SET wal_level = logical");
    }
    let remedy = if seen.wal_level_pending == Some("logical") {
        "restart the server: the setting is made, and not in force".to_owned()
    } else {
        "ALTER SYSTEM SET wal_level = logical, then restart the server (Amazon RDS, Aurora: rds.logical_replication = \
        1 in the parameter group; Cloud SQL: the flag cloudsql.logical_decoding = on; Azure: wal_level among the \
        server parameters)"
            .to_owned()
    };
    Check::fail(name, saw, "without it the log does not say what was inserted", remedy)
}

fn slots(seen: &Seen<'_>) -> Check {
    let name = "server.slots";
    let (used, limit) = (seen.server.slots.len() as i64, seen.server.number("max_replication_slots").unwrap_or(0));
    let saw = format!("{used} of {limit} replication slots used");
    if used < limit || seen.server.slots.iter().any(|slot| slot.name == seen.slot) {
        return Check::ok(name, saw);
    }
    let holders: Vec<String> = (seen.server.slots.iter())
        .map(|slot| format!("{}{}", slot.name, if slot.active { "" } else { " (inactive)" }))
        .collect();
    Check::fail(
        name,
        format!("{saw}: {}", holders.join(", ")),
        "there is none left for walpost",
        "SELECT pg_drop_replication_slot('...') for one that nobody needs, or raise max_replication_slots and restart",
    )
}

fn senders(seen: &Seen<'_>) -> Check {
    let name = "server.senders";
    let server = seen.server;
    let (used, limit) = (i64::from(server.senders_used), server.number("max_wal_senders").unwrap_or(0));
    let saw = format!("{used} of {limit} walsenders in use");
    // A relay that streams has the one it needs.
    if used < limit || server.slots.iter().any(|slot| slot.name == seen.slot && slot.active) {
        return Check::ok(name, saw);
    }
    Check::fail(
        name,
        saw,
        "each replication connection needs one; SELECT * FROM pg_stat_replication shows who has them",
        "raise max_wal_senders and restart, or stop one of the others",
    )
}

fn encoding(server: &ServerFacts) -> Check {
    let name = "server.encoding";
    match server.encoding.as_str() {
        "UTF8" => Check::ok(name, "UTF8"),
        "SQL_ASCII" => Check::warn(
            name,
            "SQL_ASCII",
            "this database checks no text, so rows may hold bytes that are no UTF-8; they reach Kafka as they are",
            "make sure that producers write UTF-8, or move to a database with encoding UTF8",
        ),
        other => Check::ok(name, format!("{other}, converted to UTF-8 by the server")),
    }
}

fn wal_cap(server: &ServerFacts) -> Check {
    let name = "server.wal_cap";
    match server.slot_wal_limit_bytes() {
        Some(limit) => Check::ok(
            name,
            format!(
                "max_slot_wal_keep_size: a slot that is {} behind is given up, and its rows must be healed from the \
                table",
                size(limit)
            ),
        ),
        None => Check::warn(
            name,
            "max_slot_wal_keep_size = -1: no bound",
            "while Kafka or the relay is down, WAL grows until the database's disk is full",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf(); (well below the free space), and alarm on \
            walpost_slot_safe_wal_bytes",
        ),
    }
}

fn sender_timeout(server: &ServerFacts) -> Check {
    let name = "server.sender_timeout";
    match server.number("wal_sender_timeout") {
        Some(0) => Check::warn(
            name,
            "wal_sender_timeout = 0",
            "the server never notices a relay that vanished, and its slot stays taken until TCP gives up",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'",
        ),
        Some(ms) if ms < SENDER_TIMEOUT_MS => Check::warn(
            name,
            format!("wal_sender_timeout = {ms} ms"),
            "a pause of that length, on either side, ends the session",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'",
        ),
        Some(ms) => Check::ok(name, format!("wal_sender_timeout = {} s", ms / 1000)),
        None => Check::skip(name, "it is not shown"),
    }
}

fn idle_slot_timeout(server: &ServerFacts) -> Option<Check> {
    let name = "server.idle_slot_timeout";
    server.settings.get("idle_replication_slot_timeout")?;
    Some(match server.idle_slot_timeout_seconds() {
        None => Check::ok(name, "idle_replication_slot_timeout = 0: never"),
        Some(seconds) if seconds >= IDLE_TIMEOUT_SECONDS => Check::ok(
            name,
            format!("a slot that nobody reads for {} is given up", crate::postgres::slot::age(seconds as f64)),
        ),
        Some(seconds) => Check::warn(
            name,
            format!("a slot that nobody reads for {} is given up", crate::postgres::slot::age(seconds as f64)),
            "a relay that is stopped for longer finds its slot invalidated",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0, or longer than your longest maintenance window; then \
            SELECT pg_reload_conf()",
        ),
    })
}

/// Where the server waits for standbys before it sends to us, a standby that is down looks like silence.
fn standby_barrier(server: &ServerFacts) -> Option<Check> {
    let name = "server.synchronized_standby_slots";
    let listed = server.setting("synchronized_standby_slots").filter(|listed| !listed.trim().is_empty())?;
    let absent: Vec<&str> = listed
        .split(',')
        .map(|slot| slot.trim().trim_matches('"'))
        .filter(|wanted| !server.slots.iter().any(|slot| slot.name == *wanted && slot.active))
        .collect();
    let saw = format!("synchronized_standby_slots = {listed}");
    Some(if absent.is_empty() {
        Check::ok(name, saw)
    } else {
        Check::warn(
            name,
            format!("{saw}; no standby reads {}", absent.join(", ")),
            "the server sends nothing to walpost that those standbys have not received: rows wait, and no error says \
            so",
            "bring the standbys back, or take them out of synchronized_standby_slots and SELECT pg_reload_conf()",
        )
    })
}

/// Slots that nobody reads hold WAL for ours, too.
fn foreign_slots(seen: &Seen<'_>) -> Option<Check> {
    let heavy: Vec<String> = (seen.server.slots.iter())
        .filter(|slot| !slot.active && slot.name != seen.slot)
        .filter_map(|slot| Some((slot, slot.retained_bytes.filter(|bytes| *bytes >= FOREIGN_RETAINED)?)))
        .map(|(slot, bytes)| format!("{} holds {}", slot.name, size(bytes.unsigned_abs())))
        .collect();
    (!heavy.is_empty()).then(|| {
        Check::warn(
            "server.other_slots",
            format!("slots that nobody reads: {}", heavy.join(", ")),
            "their WAL fills the same disk",
            "SELECT pg_drop_replication_slot('...') for each whose reader is gone for good",
        )
    })
}

fn clock(seen: &Seen<'_>) -> Check {
    let name = "server.clock";
    let saw = format!("the server's clock is {:+.1} s from ours", seen.skew_seconds);
    if seen.skew_seconds.abs() - seen.skew_error_seconds < SKEW_SECONDS {
        return Check::ok(name, saw);
    }
    let why = "latencies are measured from the server's commit time, and will be wrong by as much";
    Check::warn(name, saw, why, "synchronise both machines' clocks (chrony, systemd-timesyncd)")
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;
    use crate::postgres::server::{Setting, SlotUse};

    fn server() -> ServerFacts {
        let settings = [
            ("wal_level", "logical", None),
            ("max_replication_slots", "2", None),
            ("max_wal_senders", "2", None),
            ("wal_sender_timeout", "60000", Some("ms")),
            ("max_slot_wal_keep_size", "1024", Some("MB")),
        ];
        let settings = settings.map(|(name, setting, unit): (&str, &str, Option<&str>)| {
            let setting = Setting { setting: setting.into(), unit: unit.map(str::to_owned), pending_restart: false };
            (name.to_owned(), setting)
        });
        ServerFacts {
            version: 170_011,
            version_text: "17.11".into(),
            in_recovery: false,
            database: "app".into(),
            database_oid: 5,
            encoding: "UTF8".into(),
            clock: 0.0,
            settings: settings.into_iter().collect(),
            senders_used: 0,
            slots: vec![slot("other", true, 0)],
        }
    }

    fn slot(name: &str, active: bool, retained: i64) -> SlotUse {
        SlotUse { name: name.into(), kind: "logical".into(), database: None, active, retained_bytes: Some(retained) }
    }

    fn set(server: &mut ServerFacts, name: &str, setting: &str, unit: Option<&str>, pending_restart: bool) {
        let setting = Setting { setting: setting.into(), unit: unit.map(str::to_owned), pending_restart };
        server.settings.insert(name.to_owned(), setting);
    }

    fn run(change: impl FnOnce(&mut ServerFacts), skew_seconds: f64, pending: Option<&str>) -> Vec<Check> {
        let mut server = server();
        change(&mut server);
        checks(&Seen {
            server: &server,
            slot: "walpost",
            skew_seconds,
            skew_error_seconds: 0.1,
            wal_level_pending: pending,
        })
    }

    /// The one check that is not in order.
    fn odd(change: impl FnOnce(&mut ServerFacts)) -> (&'static str, Outcome, String) {
        let mut odd: Vec<Check> = run(change, 0.0, None).into_iter().filter(|c| c.outcome != Outcome::Ok).collect();
        assert_eq!(odd.len(), 1, "{odd:?}");
        let check = odd.remove(0);
        assert!(!check.why.is_empty() && !check.remedy.is_empty(), "{check:?}");
        (check.name, check.outcome, format!("{} {}", check.saw, check.remedy))
    }

    #[test]
    fn a_server_in_order_has_nothing_to_mend() {
        assert!(run(|_| (), 1.0, None).iter().all(|check| check.outcome == Outcome::Ok));
    }

    #[test]
    fn what_stops_a_relay_fails_and_names_the_setting() {
        use Outcome::{Fail, Warn};
        let case = |name, outcome, text: &str, change: fn(&mut ServerFacts)| {
            let (found, got, said) = odd(change);
            assert_eq!((found, got), (name, outcome));
            assert!(said.contains(text), "{said}");
        };
        case("server.version", Fail, "14", |s| s.version = 130_009);
        case("server.recovery", Fail, "target_session_attrs", |s| s.in_recovery = true);
        case("server.wal_level", Fail, "rds.logical_replication", |s| set(s, "wal_level", "replica", None, false));
        case("server.wal_level", Warn, "logical", |s| set(s, "wal_level", "logical", None, true));
        case("server.slots", Fail, "idle (inactive)", |s| s.slots.push(slot("idle", false, 0)));
        case("server.senders", Fail, "max_wal_senders", |s| s.senders_used = 2);
        case("server.encoding", Warn, "UTF8", |s| s.encoding = "SQL_ASCII".into());
        case("server.wal_cap", Warn, "max_slot_wal_keep_size", |s| {
            set(s, "max_slot_wal_keep_size", "-1", Some("MB"), false);
        });
        case("server.sender_timeout", Warn, "60s", |s| set(s, "wal_sender_timeout", "0", Some("ms"), false));
        case("server.idle_slot_timeout", Warn, "60 s", |s| {
            set(s, "idle_replication_slot_timeout", "60", Some("s"), false);
        });
        case("server.synchronized_standby_slots", Warn, "standby_1", |s| {
            set(s, "synchronized_standby_slots", "other, standby_1", None, false);
        });
        case("server.other_slots", Warn, "idle holds 2.0 GiB", |s| {
            set(s, "max_replication_slots", "5", None, false);
            s.slots.push(slot("idle", false, 2 << 30));
        });
    }

    #[test]
    fn a_setting_that_only_waits_for_a_restart_says_just_that() {
        let checks = run(|s| set(s, "wal_level", "replica", None, true), 0.0, Some("logical"));
        let check = checks.iter().find(|check| check.name == "server.wal_level").unwrap();
        assert!(check.remedy.starts_with("restart the server"), "{check:?}");
        assert!(check.saw.contains("logical after the next restart"), "{check:?}");
    }

    #[test]
    fn a_full_server_is_no_matter_when_our_slot_is_among_them() {
        let checks = run(|s| s.slots.push(slot("walpost", false, 0)), 0.0, None);
        assert!(checks.iter().all(|check| check.outcome == Outcome::Ok), "{checks:?}");
    }

    #[test]
    fn a_clock_that_is_off_is_noticed_beyond_what_the_round_trip_explains() {
        let of = |skew| run(|_| (), skew, None).into_iter().find(|check| check.name == "server.clock").unwrap().outcome;
        assert_eq!((of(-6.0), of(6.0), of(5.05)), (Outcome::Warn, Outcome::Warn, Outcome::Ok));
    }
}
