//! Where rows come from: a logical replication slot that decodes with pgoutput.
//!
//! ```text
//!  connection  startup, TLS, authentication, simple queries     (I/O)
//!  stream      CopyBoth: fills a buffer, sends status frames     (I/O)
//!  protocol    frames: XLogData, PrimaryKeepalive, StandbyStatusUpdate   (pure)
//!  pgoutput    the messages inside XLogData, protocol version 1          (pure)
//!  decoder     messages → SourceEvents, with the relation cache          (pure)
//!
//!  table       rows of the table itself, for what the log no longer has  (I/O)
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::lsn::Lsn;

pub(crate) mod auth;
pub mod connection;
pub mod decoder;
pub mod pgoutput;
pub mod protocol;
pub mod stream;
pub mod table;

/// What the loop sees of the write-ahead log, in the order of the log.
#[derive(Clone, Debug)]
pub enum SourceEvent {
    /// A transaction that has committed begins. `final_lsn` is its commit LSN.
    Begin { final_lsn: Lsn, commit_time: SystemTime, xid: u32 },
    /// An inserted row of a published table.
    Row(Row),
    /// The transaction ends. Only `end_lsn` may be confirmed for it.
    Commit { commit_lsn: Lsn, end_lsn: Lsn },
    /// The server has nothing before `wal_end` that it has not sent.
    Keepalive { wal_end: Lsn, reply_requested: bool },
    /// Something that is no insert and was passed over: the loop counts it.
    Ignored(Ignored),
}

/// What pgoutput may send that an insert-only outbox does not relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    Update,
    Delete,
    Truncate,
    /// A logical message (`pg_logical_emit_message`).
    Message,
    /// PostgreSQL 18 may send a stream abort that protocol version 1 never asked for.
    StreamAbort,
}

impl Ignored {
    /// The label of the metric.
    pub fn as_str(self) -> &'static str {
        match self {
            Ignored::Update => "update",
            Ignored::Delete => "delete",
            Ignored::Truncate => "truncate",
            Ignored::Message => "message",
            Ignored::StreamAbort => "stream_abort",
        }
    }
}

/// One inserted row: the frame it came in, and where each column's value lies in it. No value is copied.
#[derive(Clone, Debug)]
pub struct Row {
    pub relation: Arc<Relation>,
    /// The bytes that `values` points into.
    pub frame: Bytes,
    /// One for each column of the relation.
    pub values: Vec<Value>,
}

impl Row {
    /// The text of column `index` as Postgres prints it; None for NULL or where there is no such column.
    pub fn text(&self, index: usize) -> Option<Bytes> {
        match self.values.get(index)? {
            Value::Null => None,
            Value::Text(range) => Some(self.frame.slice(range.clone())),
        }
    }
}

/// Columns as they are kept outside the log: name, type, text.
type KeptColumn = (String, u32, KeptText);

/// A text as JSON can hold it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KeptText {
    Text(Option<String>),
    /// Bytes that are no UTF-8, which a database in SQL_ASCII may hold: `{"hex": "ff78"}`.
    Bytes {
        hex: String,
    },
}

impl KeptText {
    pub fn of(bytes: Option<&[u8]>) -> KeptText {
        let Some(bytes) = bytes else { return KeptText::Text(None) };
        match std::str::from_utf8(bytes) {
            Ok(text) => KeptText::Text(Some(text.to_owned())),
            Err(_) => KeptText::Bytes { hex: hex::encode(bytes) },
        }
    }

    /// The outer None: no bytes have such a text.
    pub fn bytes(self) -> Option<Option<Bytes>> {
        match self {
            KeptText::Text(text) => Some(text.map(Bytes::from)),
            KeptText::Bytes { hex } => hex::decode(hex).ok().map(|bytes| Some(bytes.into())),
        }
    }
}

impl Row {
    /// The columns as JSON, `[[name, type oid, text or null], ...]`: enough to make the row again. A text that is no UTF-8
    /// stands as [`KeptText::Bytes`].
    pub fn to_json(&self) -> String {
        self.to_json_but(|_, _| None)
    }

    /// The same, with something else in the place of some texts.
    pub fn to_json_but(&self, instead: impl Fn(usize, &[u8]) -> Option<serde_json::Value>) -> String {
        let columns = self.relation.columns.iter().enumerate();
        let kept: Vec<(&str, u32, serde_json::Value)> = columns
            .map(|(index, column)| {
                let text = self.text(index);
                let kept = text.as_deref().and_then(|text| instead(index, text));
                let kept = kept.unwrap_or_else(|| serde_json::json!(KeptText::of(text.as_deref())));
                (column.name.as_str(), column.type_oid, kept)
            })
            .collect();
        serde_json::json!(kept).to_string()
    }

    /// The reverse of [`Row::to_json`], of a relation that has no name; None for any other text.
    pub fn from_json(json: &str) -> Option<Row> {
        let kept: Vec<KeptColumn> = serde_json::from_str(json).ok()?;
        let (mut columns, mut values, mut frame) = (Vec::new(), Vec::new(), Vec::new());
        for (name, type_oid, text) in kept {
            columns.push(Column { name, type_oid, key: false });
            values.push(text.bytes()?.map_or(Value::Null, |text| {
                let start = frame.len();
                frame.extend_from_slice(&text);
                Value::Text(start..frame.len())
            }));
        }
        let relation = Relation { oid: 0, schema: String::new(), name: String::new(), columns };
        Some(Row { relation: Arc::new(relation), frame: frame.into(), values })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    /// Where the text lies in [`Row::frame`]; checked by the decoder to be inside it.
    Text(Range<usize>),
}

/// What a Relation message tells of a table. Sent before its first row and again after each change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    pub oid: u32,
    pub schema: String,
    pub name: String,
    pub columns: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub type_oid: u32,
    /// Part of the replica identity.
    pub key: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_kept_outside_the_log_reads_back_as_it_was() {
        let json = r#"[["id",20,"7"],["payload",17,"\\x00ff"],["empty",25,""],["none",25,null],["ä",25,"\"ü\""],["ascii",25,{"hex":"ff78"}]]"#;
        let row = Row::from_json(json).unwrap();
        assert_eq!(row.to_json(), json);
        assert_eq!((row.text(0), row.text(2), row.text(3)), (Some("7".into()), Some(Bytes::new()), None));
        assert_eq!(row.relation.columns[1].type_oid, 17);
        assert_eq!(row.text(5), Some(Bytes::from_static(b"\xffx")));
        let odd = ["", "{}", "[[1]]", "null", r#"[["a",-1,""]]"#, r#"[["a",25,{"hex":"f"}]]"#, r#"[["a",25,{}]]"#];
        for odd in odd {
            assert!(Row::from_json(odd).is_none(), "{odd}");
        }
    }
}
