//! Dead letters: messages that cannot be sent as they are, in a topic of their own, with the reason in headers.

use bytes::Bytes;

use crate::config::Config;
use crate::router::{Header, Record};

/// The record for `dead_letter.topic`.
pub fn of(config: &Config, mut record: Record, reason: &str, sentence: &str) -> Record {
    let header =
        |name: &str, value: &str| Header { name: name.into(), value: Some(Bytes::copy_from_slice(value.as_bytes())) };
    record.headers.extend([
        header("dead_letter.topic", &record.topic),
        header("dead_letter.reason", reason),
        header("dead_letter.error", sentence),
    ]);
    record.topic = config.dead_letter.topic.as_str().into();
    record
}
