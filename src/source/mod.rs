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
