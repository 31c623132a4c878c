//! A row of the outbox table becomes an [`OutboxMessage`]: columns are found by name, once per Relation message.
//! Pure: no I/O, and no input makes it panic.
//!
//! ```text
//!  mapping    which column is which field, once per Relation; then row by row
//!  describe   a message or row as text for logs
//!  poison     why a message can never be sent as it is
//! ```

use bytes::Bytes;

use crate::source::{Row, Value};

mod describe;
mod due;
mod mapping;
mod poison;
#[cfg(test)]
pub(crate) mod tests;

pub use describe::{Described, Shown, object_json, row_json};
pub use due::is_ahead;
pub use mapping::{Field, Mapping, MappingError, MissingColumn};
pub use poison::{Poison, PoisonReason};

pub(crate) use mapping::{column_names, nearest_name, table_name};

/// One outbox row, by the meaning of its columns. The bytes are slices of the frame it came in, except a `bytea`
/// payload, which arrives as hex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxMessage {
    /// `message_id`, or `id` where that is NULL or absent.
    pub message_id: Bytes,
    pub aggregate_type: Option<Bytes>,
    pub aggregate_id: Option<Bytes>,
    pub event_type: Option<Bytes>,
    /// The `topic` column; NULL and empty count as absent.
    pub topic: Option<Bytes>,
    /// The record's value; None for SQL NULL.
    pub payload: Option<Bytes>,
    /// The JSON text of the `headers` column.
    pub headers: Option<Bytes>,
    pub created_at: Option<Bytes>,
    pub available_at: Option<Bytes>,
}

/// The text of a column without taking a hold on the frame; None for NULL or where there is no such column.
pub(crate) fn column_bytes(row: &Row, index: usize) -> Option<&[u8]> {
    match row.values.get(index)? {
        Value::Null => None,
        Value::Text(range) => row.frame.get(range.clone()),
    }
}
