//! A position in the write-ahead log. It is a type of its own so that a position is never mixed up with a count, a
//! size or a ticket.

use std::fmt;
use std::str::FromStr;

/// A byte position in the write-ahead log, printed as Postgres prints `pg_lsn`: two hexadecimal halves and a slash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// `0/0`, which Postgres never assigns to a record: "no position", and in START_REPLICATION "where the slot is".
    pub const INVALID: Lsn = Lsn(0);

    /// Bytes from `earlier` to `self`; 0 when `earlier` is not earlier.
    pub fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 as u32)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text was not two hexadecimal numbers of at most eight digits with a slash between them.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a WAL position such as 16/B374D848")]
pub struct ParseLsnError(String);

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let half = |digits: &str| {
            let wellformed = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            wellformed.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        text.split_once('/')
            .and_then(|(high, low)| Some(Lsn(half(high)? << 32 | half(low)?)))
            .ok_or_else(|| ParseLsnError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prints_and_reads_as_postgres_does() {
        assert_eq!(Lsn(0x16_B374_D848).to_string(), "16/B374D848");
        assert_eq!("0/0".parse(), Ok(Lsn::INVALID));
        assert_eq!("ffffffff/FFFFFFFF".parse(), Ok(Lsn(u64::MAX)));
        for wrong in ["", "/", "1/", "/1", "1/2/3", "+1/2", "123456789/0", "g/0", "16B374D848"] {
            assert!(wrong.parse::<Lsn>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_distance_is_never_negative() {
        assert_eq!(Lsn(10).bytes_since(Lsn(4)), 6);
        assert_eq!(Lsn(4).bytes_since(Lsn(10)), 0);
    }

    proptest! {
        #[test]
        fn every_position_reads_back_as_it_was_printed(position: u64) {
            prop_assert_eq!(Lsn(position).to_string().parse(), Ok(Lsn(position)));
        }
    }
}
