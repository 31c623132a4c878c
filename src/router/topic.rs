//! Which names a topic may have. An illegal one would be refused by the broker only after a round trip, and as an
//! error of the topic, not of the row.

/// Kafka's limit.
const MAX_BYTES: usize = 249;

/// Topics that walpost keeps for itself, to which no row may be routed.
const OWN_TOPICS: &[&str] = &[];

/// Why a name is none. Reads after "Kafka allows no topic x: ".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTopicName {
    #[error("the name is empty")]
    Empty,
    #[error("the name has {bytes} bytes, and {MAX_BYTES} is the most")]
    TooLong { bytes: usize },
    #[error("only letters, digits, '.', '_' and '-' may stand in it, not '{}' (byte {at})", .byte.escape_ascii())]
    BadByte { byte: u8, at: usize },
    #[error("the names . and .. are not allowed")]
    Dots,
    #[error("names that begin with __ are Kafka's own")]
    Internal,
    #[error("it is one of walpost's own topics")]
    Own,
}

/// The name as text, if Kafka allows it and it is nobody's own.
pub fn check(name: &[u8]) -> Result<&str, BadTopicName> {
    if name.is_empty() {
        return Err(BadTopicName::Empty);
    }
    if name.len() > MAX_BYTES {
        return Err(BadTopicName::TooLong { bytes: name.len() });
    }
    if let Some((at, byte)) = first_bad_byte(name) {
        return Err(BadTopicName::BadByte { byte, at: at + 1 });
    }
    if name == b"." || name == b".." {
        return Err(BadTopicName::Dots);
    }
    if name.starts_with(b"__") {
        return Err(BadTopicName::Internal);
    }
    let text = std::str::from_utf8(name).map_err(|error| BadTopicName::BadByte { byte: 0, at: error.valid_up_to() })?;
    if OWN_TOPICS.contains(&text) {
        return Err(BadTopicName::Own);
    }
    Ok(text)
}

/// The first byte that stands in no topic's name, and its place from 0.
pub fn first_bad_byte(name: &[u8]) -> Option<(usize, u8)> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    name.iter().copied().enumerate().find(|(_, byte)| !allowed(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_kafka_allows_is_allowed() {
        let longest = "x".repeat(249);
        for name in ["a", "outbox.event.Order", "_x", "a__b", "...", "-", "A-Z_0.9", longest.as_str()] {
            assert_eq!(check(name.as_bytes()), Ok(name));
        }
    }

    #[test]
    fn every_other_name_is_refused_with_its_reason() {
        assert_eq!(check(b""), Err(BadTopicName::Empty));
        assert_eq!(check(&[b'x'; 250]), Err(BadTopicName::TooLong { bytes: 250 }));
        assert_eq!(check(b"."), Err(BadTopicName::Dots));
        assert_eq!(check(b".."), Err(BadTopicName::Dots));
        assert_eq!(check(b"__consumer_offsets"), Err(BadTopicName::Internal));
        assert_eq!(check(b"a b"), Err(BadTopicName::BadByte { byte: b' ', at: 2 }));
        for byte in 0..=u8::MAX {
            let legal = byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            assert_eq!(check(&[b'a', byte]).is_ok(), legal, "byte {byte}");
        }
        assert_eq!(
            BadTopicName::BadByte { byte: b'/', at: 3 }.to_string(),
            "only letters, digits, '.', '_' and '-' may stand in it, not '/' (byte 3)"
        );
    }
}
