//! Whether a row says that it is not due yet (`available_at`, the back-off of a polling relay).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Clocks differ, and a row is read a moment after it was written.
const TOLERANCE: Duration = Duration::from_secs(60);

/// Whether the text of a timestamp, as Postgres prints it in ISO style and in UTC, lies more than a minute after `now`.
/// `infinity` does; what cannot be read does not.
pub fn is_ahead(text: &[u8], now: SystemTime) -> bool {
    if text == b"infinity" {
        return true;
    }
    let Some(seconds) = std::str::from_utf8(text).ok().and_then(unix_seconds) else { return false };
    let now = (now + TOLERANCE).duration_since(UNIX_EPOCH).unwrap_or_default();
    seconds > i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// `2026-11-30 16:00:00`, with or without a fraction and `+00` behind it. Up to Postgres' last year; `BC` is not read.
fn unix_seconds(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(' ')?;
    let mut date = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let mut time = time.get(..8)?.splitn(3, ':').map(str::parse::<i64>);
    let (hour, minute, second) = (time.next()?.ok()?, time.next()?.ok()?, time.next()?.ok()?);
    let possible = (1..=12).contains(&month) && (1..=31).contains(&day) && (0..=294_276).contains(&year);
    if !possible || !(0..=24).contains(&hour) || !(0..60).contains(&minute) || !(0..=60).contains(&second) {
        return None;
    }
    // Counted from March, so that the leap day is the last day of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_moment_is_read_as_postgres_prints_it() {
        assert_eq!(unix_seconds("1970-01-01 00:00:00"), Some(0));
        assert_eq!(unix_seconds("2000-02-29 23:59:59.5+00"), Some(951_868_799));
        assert_eq!(unix_seconds("2026-11-30 16:00:00"), Some(1_796_054_400));
        assert_eq!(unix_seconds("1969-12-31 23:59:59"), Some(-1));
        assert_eq!(unix_seconds("16:00"), None);
    }

    #[test]
    fn only_what_lies_more_than_a_minute_ahead_is_early() {
        let now = UNIX_EPOCH + Duration::from_secs(1_796_054_400);
        for (text, ahead) in [
            ("2026-11-30 16:00:59", false),
            ("2026-11-30 16:01:01", true),
            ("2026-11-30 15:00:00+00", false),
            ("infinity", true),
            ("-infinity", false),
            ("", false),
            ("tomorrow", false),
        ] {
            assert_eq!(is_ahead(text.as_bytes(), now), ahead, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String, digits in "[0-9]{0,20}-[0-9]{0,20}-[0-9]{0,20} [0-9]{0,4}:[0-9:]{0,9}") {
            is_ahead(text.as_bytes(), SystemTime::now());
            is_ahead(digits.as_bytes(), SystemTime::now());
        }
    }
}
