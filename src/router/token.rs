//! Where a record stands in the stream. A consumer drops what is not newer than what it has seen of a key.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::lsn::Lsn;

/// Where a record stands in the stream: `{epoch:010}-{commit_lsn:016X}-{ordinal:08X}`. Sorts as text in stream order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    pub epoch: u64,
    /// Begin's final LSN.
    pub commit_lsn: Lsn,
    /// Counts all our rows of the transaction from 0, skipped ones too.
    pub ordinal: u32,
}

/// Digits of the epoch at least: seconds since 1970, until the year 2286.
const EPOCH_DIGITS: usize = 10;
const LSN_DIGITS: usize = 16;
const ORDINAL_DIGITS: usize = 8;
/// Digits of the largest epoch.
const EPOCH_DIGITS_MAX: usize = 20;

impl Token {
    /// The text as a header's value. Written by hand: it is made for every record, and formatting costs a
    /// quarter of a microsecond.
    pub fn to_bytes(&self) -> Bytes {
        let mut digits = [b'0'; EPOCH_DIGITS_MAX];
        let mut rest = self.epoch;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let leading = digits.iter().take(EPOCH_DIGITS_MAX - EPOCH_DIGITS).take_while(|digit| **digit == b'0').count();
        let mut text = Vec::with_capacity(EPOCH_DIGITS_MAX - leading + LSN_DIGITS + ORDINAL_DIGITS + 2);
        text.extend(digits.iter().skip(leading));
        text.push(b'-');
        push_hex(&mut text, self.commit_lsn.0, LSN_DIGITS);
        text.push(b'-');
        push_hex(&mut text, u64::from(self.ordinal), ORDINAL_DIGITS);
        Bytes::from(text)
    }
}

fn push_hex(text: &mut Vec<u8>, value: u64, digits: usize) {
    text.extend((0..digits).rev().map(|place| match (value >> (4 * place) & 0xF) as u8 {
        digit @ 0..=9 => b'0' + digit,
        digit => b'A' + (digit - 10),
    }));
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}-{:016X}-{:08X}", self.epoch, self.commit_lsn.0, self.ordinal)
    }
}

/// The text is no token that walpost wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no token such as 1750000000-00000016B374D848-00000000")]
pub struct ParseTokenError(String);

impl FromStr for Token {
    type Err = ParseTokenError;

    /// Reads only what is written exactly as it would be written again.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.split('-');
            let (epoch, lsn, ordinal) = (parts.next()?, parts.next()?, parts.next()?);
            let canonical = parts.next().is_none()
                && epoch.bytes().all(|byte| byte.is_ascii_digit())
                && (epoch.len() == EPOCH_DIGITS || epoch.len() > EPOCH_DIGITS && !epoch.starts_with('0'))
                && upper_hex(lsn, LSN_DIGITS)
                && upper_hex(ordinal, ORDINAL_DIGITS);
            canonical.then_some(())?;
            Some(Token {
                epoch: epoch.parse().ok()?,
                commit_lsn: Lsn(u64::from_str_radix(lsn, 16).ok()?),
                ordinal: u32::from_str_radix(ordinal, 16).ok()?,
            })
        };
        parse().ok_or_else(|| ParseTokenError(text.chars().take(80).collect()))
    }
}

fn upper_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(epoch: u64, lsn: u64, ordinal: u32) -> Token {
        Token { epoch, commit_lsn: Lsn(lsn), ordinal }
    }

    #[test]
    fn the_text_has_fixed_places() {
        let token = token(1_750_000_000, 0x16_B374_D848, 255);
        assert_eq!(token.to_string(), "1750000000-00000016B374D848-000000FF");
        assert_eq!(Token { epoch: 0, ..token }.to_string(), "0000000000-00000016B374D848-000000FF");
    }

    #[test]
    fn only_what_walpost_writes_is_read() {
        for wrong in [
            "",
            "--",
            "1750000000-00000016B374D848",
            "1750000000-00000016B374D848-000000FF-",
            "1750000000-00000016b374d848-000000FF",
            "1750000000-0000016B374D848-000000FF",
            "+175000000-00000016B374D848-000000FF",
            "01750000000-00000016B374D848-000000FF",
            "1750000000-00000016B374D848-000000F\u{e9}",
            "99999999999999999999-00000016B374D848-000000FF",
        ] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn every_token_reads_back_as_it_was_written(epoch: u64, lsn: u64, ordinal: u32) {
            let token = token(epoch, lsn, ordinal);
            prop_assert_eq!(token.to_string().parse(), Ok(token));
            prop_assert_eq!(token.to_bytes(), token.to_string().into_bytes());
        }

        #[test]
        fn small_epochs_are_padded_alike(epoch in 0..20_000_000_000u64) {
            let token = token(epoch, 0, 0);
            prop_assert_eq!(token.to_bytes(), token.to_string().into_bytes());
        }

        #[test]
        fn tokens_sort_as_text_as_they_sort(
            one in (0..10_000_000_000u64, any::<u64>(), any::<u32>()),
            other in (0..10_000_000_000u64, any::<u64>(), any::<u32>()),
        ) {
            let (one, other) = (token(one.0, one.1, one.2), token(other.0, other.1, other.2));
            prop_assert_eq!(one.cmp(&other), one.to_string().cmp(&other.to_string()));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            if let Ok(token) = text.parse::<Token>() {
                prop_assert_eq!(token.to_string(), text);
            }
        }
    }
}
