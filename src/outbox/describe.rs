//! Messages and rows as text for logs: short, to be recognised by, and whole, for `on_poison = "skip"`, where the log
//! line is all that is left of a row.

use std::fmt;

use serde_json::{Map, Value as Json, json};

use super::{OutboxMessage, column_bytes};
use crate::source::Row;

/// How much of a key or topic a log line shows.
const SHOWN_CHARS: usize = 64;

/// How much of one value the whole text holds; a log line of any size would only move the problem.
const WHOLE_BYTES: usize = 64 * 1024;

impl OutboxMessage {
    /// `message_id 42, aggregate_id "order-7", topic "orders"`: for log lines about a message.
    pub fn describe(&self) -> Described<'_> {
        Described(self)
    }

    /// Every field as a JSON object on one line. What is no UTF-8 stands as `{"escaped": "\\xff..."}`; of a value
    /// above 64 KiB the beginning and the size.
    pub fn to_json(&self) -> String {
        object_json([
            ("message_id", Some(&self.message_id[..])),
            ("aggregate_type", self.aggregate_type.as_deref()),
            ("aggregate_id", self.aggregate_id.as_deref()),
            ("event_type", self.event_type.as_deref()),
            ("topic", self.topic.as_deref()),
            ("payload", self.payload.as_deref()),
            ("headers", self.headers.as_deref()),
            ("created_at", self.created_at.as_deref()),
            ("available_at", self.available_at.as_deref()),
        ])
    }
}

/// Every column of a row as a JSON object on one line, as [`OutboxMessage::to_json`]: also for a row that cannot
/// become a message.
pub fn row_json(row: &Row) -> String {
    object_json(
        row.relation.columns.iter().enumerate().map(|(index, column)| (column.name.as_str(), column_bytes(row, index))),
    )
}

/// Named values as a JSON object on one line.
pub fn object_json<'a>(values: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>) -> String {
    let members = values.into_iter().map(|(name, value)| (name.to_owned(), value.map_or(Json::Null, whole)));
    Json::Object(members.collect::<Map<_, _>>()).to_string()
}

fn whole(value: &[u8]) -> Json {
    let text = |bytes| match std::str::from_utf8(bytes) {
        Ok(text) => ("text", text.to_owned()),
        // A cut may go through a character.
        Err(error) if bytes.len() < value.len() && error.error_len().is_none() => {
            ("text", String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default()).into_owned())
        }
        Err(_) => ("escaped", bytes.escape_ascii().to_string()),
    };
    match value.get(..WHOLE_BYTES) {
        Some(beginning) if value.len() > WHOLE_BYTES => {
            let (kind, text) = text(beginning);
            json!({ kind: text, "cut": true, "size_bytes": value.len() })
        }
        _ => match text(value) {
            ("text", text) => Json::String(text),
            (kind, text) => json!({ kind: text }),
        },
    }
}

/// See [`OutboxMessage::describe`].
pub struct Described<'a>(&'a OutboxMessage);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.0;
        write!(f, "message_id {}, aggregate_id ", Shown(&message.message_id))?;
        match &message.aggregate_id {
            Some(id) => write!(f, "{}", Shown(id))?,
            None => f.write_str("NULL")?,
        }
        match (&message.topic, &message.aggregate_type) {
            (Some(topic), _) => write!(f, ", topic {}", Shown(topic)),
            (None, Some(kind)) => write!(f, ", aggregate_type {}", Shown(kind)),
            (None, None) => Ok(()),
        }
    }
}

/// Bytes of a user in a sentence: quoted, control characters escaped, at most 64 characters, and then how long it is.
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No character takes more than four bytes, and one byte more shows that there is more.
        let beginning = self.0.get(..SHOWN_CHARS * 4 + 4).unwrap_or(self.0);
        let text = String::from_utf8_lossy(beginning);
        let mut chars = text.chars();
        f.write_str("\"")?;
        for shown in chars.by_ref().take(SHOWN_CHARS) {
            match shown {
                '"' | '\\' => write!(f, "\\{shown}")?,
                '\'' => f.write_str("'")?,
                other => write!(f, "{}", other.escape_debug())?,
            }
        }
        match chars.next() {
            Some(_) => write!(f, "…\" ({} bytes)", self.0.len()),
            None => f.write_str("\""),
        }
    }
}
