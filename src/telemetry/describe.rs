//! A status in words and human units, for the page and for `walpost status`. Pure.

use std::time::SystemTime;

use super::health::{EndStatus, Status, WalStatus};

/// WAL that a slot keeps beyond its lag without anything being wrong: the server keeps whole segments and moves
/// `restart_lsn` only now and then.
const USUAL_RETENTION_BYTES: u64 = 64 << 20;

/// The status as label and value, in the order in which a person asks.
pub fn facts(status: &Status) -> Vec<(&'static str, String)> {
    vec![
        ("slot", slot(status)),
        ("position", position(status)),
        (
            "lag",
            status.lag_bytes.map_or_else(unknown, |bytes| format!("{} of WAL not yet confirmed", human_bytes(bytes))),
        ),
        ("WAL kept", retained(status)),
        ("room left", room(status)),
        ("oldest row", oldest(status)),
        ("in flight", in_flight(status)),
        ("parked", parked(status)),
        ("published", status.published.map_or_else(unknown, |count| format!("{} since the start", messages(count)))),
        ("Postgres", end(&status.postgres)),
        ("Kafka", end(&status.kafka)),
        ("version", status.version.clone().unwrap_or_else(unknown)),
    ]
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn slot(status: &Status) -> String {
    let slot = &status.slot;
    let name = slot.name.clone().unwrap_or_else(unknown);
    let active = match slot.active {
        Some(true) => ", in use",
        Some(false) => ", not in use",
        None => "",
    };
    let wal_status = slot.wal_status.map(|status| format!(", WAL {}", status.as_str())).unwrap_or_default();
    format!("{name}{active}{wal_status}")
}

fn position(status: &Status) -> String {
    let slot = &status.slot;
    match (slot.confirmed_flush_lsn, slot.restart_lsn) {
        (None, None) => unknown(),
        (confirmed, restart) => {
            let text = |lsn: Option<crate::lsn::Lsn>| lsn.map_or_else(unknown, |lsn| lsn.to_string());
            format!("confirmed {}, restart {}", text(confirmed), text(restart))
        }
    }
}

fn retained(status: &Status) -> String {
    let Some(retained) = status.slot.retained_wal_bytes else { return unknown() };
    let beyond = retained.saturating_sub(status.lag_bytes.unwrap_or(retained));
    let mut text = human_bytes(retained);
    if beyond > USUAL_RETENTION_BYTES {
        text += ". More than the lag, so not held by the relay: by a transaction that is open on the server \
                 (xact_start in pg_stat_activity), or until the server's next checkpoint";
    }
    text
}

fn room(status: &Status) -> String {
    match (status.slot.safe_wal_bytes, status.slot.wal_status) {
        (Some(bytes @ 0..), _) => format!("{} until the server gives the slot up", human_bytes(bytes.unsigned_abs())),
        (Some(_), _) => "none: the server may give the slot up at its next checkpoint".to_owned(),
        (None, Some(WalStatus::Lost)) => "none: the slot is lost".to_owned(),
        (None, Some(_)) => {
            "no cap is set (max_slot_wal_keep_size): only the disk bounds what the slot keeps".to_owned()
        }
        (None, None) => unknown(),
    }
}

fn oldest(status: &Status) -> String {
    match (status.oldest_unconfirmed_seconds, status.in_flight.messages) {
        (Some(_), Some(0)) => "nothing waits".to_owned(),
        (Some(seconds), _) => format!("waits for {}", human_seconds(seconds)),
        (None, _) => unknown(),
    }
}

fn in_flight(status: &Status) -> String {
    match (status.in_flight.messages, status.in_flight.bytes) {
        (Some(count), Some(bytes)) => format!("{}, {}", messages(count), human_bytes(bytes)),
        (Some(count), None) => messages(count),
        (None, _) => unknown(),
    }
}

fn parked(status: &Status) -> String {
    match (status.parked.messages, status.parked.keys) {
        (Some(0), _) => "none".to_owned(),
        (Some(count), Some(keys)) => {
            format!("{}, which hold {} {}", messages(count), human_count(keys), if keys == 1 { "key" } else { "keys" })
        }
        (Some(count), None) => messages(count),
        (None, _) => unknown(),
    }
}

fn end(end: &EndStatus) -> String {
    match (end.connected, &end.error) {
        (Some(true), None) => "connected".to_owned(),
        (Some(true), Some(error)) => format!("connected; last error: {error}"),
        (Some(false), Some(error)) => format!("not connected: {error}"),
        (Some(false), None) => "not connected".to_owned(),
        (None, Some(error)) => error.clone(),
        (None, None) => unknown(),
    }
}

fn messages(count: u64) -> String {
    format!("{} {}", human_count(count), if count == 1 { "message" } else { "messages" })
}

/// `1.5 MiB`; whole numbers below 1 KiB.
pub fn human_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        // 1023.95 would be rounded to 1024.0.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// `2026-11-30T22:41:05Z`.
pub fn utc(at: SystemTime) -> String {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    // Years are counted from March on, so that the day of the leap year is a year's last; 719,468 days lie between the first
    // March of all and 1970.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (400 * era + year + u64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// `1,234,567`.
pub fn human_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `12 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`.
pub fn human_seconds(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    if seconds < 1.0 {
        return format!("{:.0} ms", seconds * 1000.0);
    }
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds as u64;
    match whole {
        0..3_600 => format!("{} min {} s", whole / 60, whole % 60),
        3_600..86_400 => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::State;

    fn fact(status: &Status, label: &str) -> String {
        facts(status).into_iter().find(|(name, _)| *name == label).unwrap().1
    }

    #[test]
    fn units_are_those_a_person_reads() {
        assert_eq!(
            [0, 1023, 1024, 1_048_575, 5 << 20, u64::MAX].map(human_bytes),
            ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "5.0 MiB", "16384.0 PiB"]
        );
        assert_eq!([0, 999, 1000, 1_234_567].map(human_count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [-1.0, 0.012, 3.21, 250.9, 7_500.0, 273_600.0].map(human_seconds),
            ["0 ms", "12 ms", "3.2 s", "4 min 10 s", "2 h 5 min", "3 d 4 h"]
        );
    }

    #[test]
    fn a_moment_is_a_date_and_a_time() {
        let at = |seconds| utc(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_796_082_065), "2026-11-30T23:41:05Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn wal_held_by_an_open_transaction_is_not_blamed_on_the_relay() {
        let mut status = Status::of(State::Streaming);
        status.slot.retained_wal_bytes = Some(90 << 20);
        status.lag_bytes = Some(80 << 20);
        assert_eq!(fact(&status, "WAL kept"), "90.0 MiB");
        status.lag_bytes = Some(1 << 20);
        assert!(fact(&status, "WAL kept").contains("not held by the relay"));
    }

    #[test]
    fn the_room_left_tells_no_cap_from_not_known() {
        let mut status = Status::of(State::Streaming);
        assert_eq!(fact(&status, "room left"), "unknown");
        status.slot.wal_status = Some(WalStatus::Reserved);
        assert!(fact(&status, "room left").starts_with("no cap is set"));
        status.slot.safe_wal_bytes = Some(1 << 30);
        assert_eq!(fact(&status, "room left"), "1.0 GiB until the server gives the slot up");
        status.slot.safe_wal_bytes = Some(-1);
        assert!(fact(&status, "room left").starts_with("none"));
    }
}
