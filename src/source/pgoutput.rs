//! The messages of the pgoutput plugin, as they stand inside XLogData: protocol version 1, in the words of the
//! chapter "Logical Replication Message Formats" of PostgreSQL's documentation.
//!
//! Pure: bytes in, one [`Message`] or an error out. Every read is checked, also of what is only passed over, and no
//! byte may be left: a message that was read wrongly must not look like one that was read. What may come when is not
//! decided here but in [`super::decoder`].

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::{Column, Relation, Value};
use crate::lsn::Lsn;

pub mod encode;
#[cfg(test)]
mod tests;

/// From the Unix epoch to PostgreSQL's, 2000-01-01.
const POSTGRES_EPOCH: Duration = Duration::from_secs(946_684_800);

/// One message of protocol version 1. Names are the documentation's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// `Begin`: the first message of a transaction that has committed.
    Begin { final_lsn: Lsn, commit_time: SystemTime, xid: u32 },
    /// `Message`: from `pg_logical_emit_message`. One that is not transactional stands outside Begin and Commit.
    Logical { transactional: bool, lsn: Lsn, prefix: String, content: Bytes },
    /// `Commit`: the last message of a transaction.
    Commit { commit_lsn: Lsn, end_lsn: Lsn, commit_time: SystemTime },
    /// `Origin`: the transaction came from another server.
    Origin { commit_lsn: Lsn, name: String },
    /// `Relation`: what the rows that follow look like.
    Relation(Relation),
    /// `Type`: a data type that is not built in, before the Relation that uses it.
    Type { oid: u32, schema: String, name: String },
    /// `Insert`: a new row. Its values point into the bytes that were parsed.
    Insert { relation_oid: u32, values: Vec<Value> },
    /// `Update`: its rows are checked and passed over.
    Update { relation_oid: u32 },
    /// `Delete`: its row is checked and passed over.
    Delete { relation_oid: u32 },
    /// `Truncate`: one or more tables at once.
    Truncate { relation_oids: Vec<u32>, cascade: bool, restart_identity: bool },
    /// `Stream Abort`: belongs to protocol version 2, but PostgreSQL 18 may send it to a reader of version 1.
    StreamAbort { xid: u32, subxid: u32 },
}

/// Why bytes are no message of protocol version 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PgoutputError {
    #[error("the server sent a pgoutput message of no bytes")]
    Empty,
    #[error("pgoutput message {message} ends within its field {field}: {missing} bytes are missing")]
    Short { message: &'static str, field: &'static str, missing: usize },
    #[error("pgoutput message {message}: the text of field {field} has no end: at least 1 byte is missing")]
    Unterminated { message: &'static str, field: &'static str },
    #[error("pgoutput message {message}: field {field} is {value}, which is no length")]
    NegativeLength { message: &'static str, field: &'static str, value: i32 },
    #[error("pgoutput message {message}: field {field} is {value} microseconds since 2000, which is no time")]
    BadTime { message: &'static str, field: &'static str, value: i64 },
    #[error(
        "pgoutput message {message}: a row is announced by byte {} where {expected} must stand",
        .found.escape_ascii()
    )]
    BadRowKind { message: &'static str, expected: &'static str, found: u8 },
    #[error(
        "pgoutput message {message} of relation {relation_oid}: the value of column {column} is of the unknown kind {}",
        .kind.escape_ascii()
    )]
    BadValueKind { message: &'static str, relation_oid: u32, column: usize, kind: u8 },
    #[error(
        "pgoutput message {message} of relation {relation_oid}: column {column} has a binary value, but walpost \
         asked for text"
    )]
    BinaryValue { message: &'static str, relation_oid: u32, column: usize },
    #[error(
        "pgoutput message Insert of relation {relation_oid}: the value of column {column} was left out as an \
         unchanged TOAST value, which a new row cannot have"
    )]
    UnchangedToast { relation_oid: u32, column: usize },
    #[error("pgoutput message {message} is followed by {bytes} bytes that belong to no field of it")]
    Leftover { message: &'static str, bytes: usize },
    #[error(
        "pgoutput message {name} (byte {}) belongs to {feature}, which walpost never asks for",
        .tag.escape_ascii()
    )]
    NotAskedFor { tag: u8, name: &'static str, feature: &'static str },
    #[error("unknown pgoutput message: it begins with byte 0x{tag:02X} ({})", .tag.escape_ascii())]
    UnknownTag { tag: u8 },
}

/// Reads the one message that `data`, an XLogData's payload, consists of.
pub fn parse(data: &Bytes) -> Result<Message, PgoutputError> {
    let Some(&tag) = data.first() else { return Err(PgoutputError::Empty) };
    let mut reader = Reader { message: name_of(tag)?, bytes: data, at: 1 };
    let message = match tag {
        b'I' => {
            let relation_oid = reader.u32("relation OID")?;
            reader.row_kind(b"N", "N")?;
            Message::Insert { relation_oid, values: reader.new_row(relation_oid)? }
        }
        b'B' => Message::Begin {
            final_lsn: reader.lsn("final LSN")?,
            commit_time: reader.time("commit timestamp")?,
            xid: reader.u32("transaction id")?,
        },
        b'C' => {
            reader.u8("flags")?;
            Message::Commit {
                commit_lsn: reader.lsn("commit LSN")?,
                end_lsn: reader.lsn("end LSN")?,
                commit_time: reader.time("commit timestamp")?,
            }
        }
        b'R' => Message::Relation(reader.relation()?),
        b'Y' => Message::Type {
            oid: reader.u32("data type OID")?,
            schema: reader.schema("namespace")?,
            name: reader.string("name")?,
        },
        b'O' => Message::Origin { commit_lsn: reader.lsn("commit LSN")?, name: reader.string("name")? },
        b'M' => {
            let flags = reader.u8("flags")?;
            let lsn = reader.lsn("LSN")?;
            let prefix = reader.string("prefix")?;
            let length = reader.length("content length")?;
            let start = reader.at;
            reader.take("content", length)?;
            Message::Logical { transactional: flags & 1 == 1, lsn, prefix, content: data.slice(start..reader.at) }
        }
        b'U' => {
            let relation_oid = reader.u32("relation OID")?;
            if reader.row_kind(b"KON", "K, O or N")? != b'N' {
                reader.skip_row(relation_oid)?;
                reader.row_kind(b"N", "N")?;
            }
            reader.skip_row(relation_oid)?;
            Message::Update { relation_oid }
        }
        b'D' => {
            let relation_oid = reader.u32("relation OID")?;
            reader.row_kind(b"KO", "K or O")?;
            reader.skip_row(relation_oid)?;
            Message::Delete { relation_oid }
        }
        b'T' => {
            let count = reader.length("number of relations")?;
            let options = reader.u8("option bits")?;
            let oids = reader.take("relation OIDs", count.saturating_mul(4))?;
            Message::Truncate {
                relation_oids: oids.as_chunks().0.iter().map(|oid| u32::from_be_bytes(*oid)).collect(),
                cascade: options & 1 != 0,
                restart_identity: options & 2 != 0,
            }
        }
        b'A' => {
            let message = Message::StreamAbort { xid: reader.u32("transaction id")?, subxid: reader.u32("subxid")? };
            // The parallel form also tells LSN and time of the abort. Which form a server sends that should send
            // none is not known.
            if reader.left() == 16 {
                reader.take("abort LSN and timestamp", 16)?;
            }
            message
        }
        _ => return Err(PgoutputError::UnknownTag { tag }),
    };
    match reader.left() {
        0 => Ok(message),
        bytes => Err(PgoutputError::Leftover { message: reader.message, bytes }),
    }
}

/// The documentation's name of the message, or why there is none for us.
fn name_of(tag: u8) -> Result<&'static str, PgoutputError> {
    let streaming = |name| Err(PgoutputError::NotAskedFor { tag, name, feature: "streaming of open transactions" });
    let two_phase = |name| Err(PgoutputError::NotAskedFor { tag, name, feature: "two-phase decoding" });
    match tag {
        b'B' => Ok("Begin"),
        b'M' => Ok("Message"),
        b'C' => Ok("Commit"),
        b'O' => Ok("Origin"),
        b'R' => Ok("Relation"),
        b'Y' => Ok("Type"),
        b'I' => Ok("Insert"),
        b'U' => Ok("Update"),
        b'D' => Ok("Delete"),
        b'T' => Ok("Truncate"),
        b'A' => Ok("Stream Abort"),
        b'S' => streaming("Stream Start"),
        b'E' => streaming("Stream Stop"),
        b'c' => streaming("Stream Commit"),
        b'b' => two_phase("Begin Prepare"),
        b'P' => two_phase("Prepare"),
        b'K' => two_phase("Commit Prepared"),
        b'r' => two_phase("Rollback Prepared"),
        b'p' => two_phase("Stream Prepare"),
        _ => Err(PgoutputError::UnknownTag { tag }),
    }
}

/// Reads fields one after the other; an error names the message and the field.
struct Reader<'a> {
    message: &'static str,
    bytes: &'a [u8],
    /// Never beyond the end of `bytes`.
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    #[inline]
    fn take(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], PgoutputError> {
        let end = self.at.saturating_add(length);
        match self.bytes.get(self.at..end) {
            Some(taken) => {
                self.at = end;
                Ok(taken)
            }
            None => {
                Err(PgoutputError::Short { message: self.message, field, missing: length.saturating_sub(self.left()) })
            }
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], PgoutputError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(field, N)?);
        Ok(array)
    }

    fn u8(&mut self, field: &'static str) -> Result<u8, PgoutputError> {
        Ok(u8::from_be_bytes(self.array(field)?))
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, PgoutputError> {
        Ok(u16::from_be_bytes(self.array(field)?))
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, PgoutputError> {
        Ok(u32::from_be_bytes(self.array(field)?))
    }

    fn lsn(&mut self, field: &'static str) -> Result<Lsn, PgoutputError> {
        Ok(Lsn(u64::from_be_bytes(self.array(field)?)))
    }

    fn length(&mut self, field: &'static str) -> Result<usize, PgoutputError> {
        let value = i32::from_be_bytes(self.array(field)?);
        usize::try_from(value).map_err(|_| PgoutputError::NegativeLength { message: self.message, field, value })
    }

    fn time(&mut self, field: &'static str) -> Result<SystemTime, PgoutputError> {
        let value = i64::from_be_bytes(self.array(field)?);
        let distance = Duration::from_micros(value.unsigned_abs());
        let epoch = SystemTime::UNIX_EPOCH + POSTGRES_EPOCH;
        let time = if value < 0 { epoch.checked_sub(distance) } else { epoch.checked_add(distance) };
        time.ok_or(PgoutputError::BadTime { message: self.message, field, value })
    }

    /// A text up to its zero byte. A database in SQL_ASCII may send names that are no UTF-8: they are made readable,
    /// and then match no configured name.
    fn string(&mut self, field: &'static str) -> Result<String, PgoutputError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(length) = rest.iter().position(|byte| *byte == 0) else {
            return Err(PgoutputError::Unterminated { message: self.message, field });
        };
        let text = self.take(field, length)?;
        self.take(field, 1)?;
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// The server writes nothing for `pg_catalog`.
    fn schema(&mut self, field: &'static str) -> Result<String, PgoutputError> {
        let schema = self.string(field)?;
        Ok(if schema.is_empty() { "pg_catalog".to_owned() } else { schema })
    }

    fn relation(&mut self) -> Result<Relation, PgoutputError> {
        let oid = self.u32("relation OID")?;
        let schema = self.schema("namespace")?;
        let name = self.string("relation name")?;
        self.u8("replica identity")?;
        let count = usize::from(self.u16("number of columns")?);
        // A column takes at least 10 bytes, so a wrong count cannot make us allocate more than was sent.
        let mut columns = Vec::with_capacity(count.min(self.left() / 10));
        for _ in 0..count {
            let flags = self.u8("column flags")?;
            let name = self.string("column name")?;
            let type_oid = self.u32("column type")?;
            self.u32("column type modifier")?;
            columns.push(Column { name, type_oid, key: flags & 1 == 1 });
        }
        Ok(Relation { oid, schema, name, columns })
    }

    /// The byte that says which row follows: `K` key, `O` old, `N` new.
    fn row_kind(&mut self, allowed: &[u8], expected: &'static str) -> Result<u8, PgoutputError> {
        let found = self.u8("row kind")?;
        if allowed.contains(&found) {
            Ok(found)
        } else {
            Err(PgoutputError::BadRowKind { message: self.message, expected, found })
        }
    }

    /// `TupleData` of an Insert.
    fn new_row(&mut self, relation_oid: u32) -> Result<Vec<Value>, PgoutputError> {
        let count = usize::from(self.u16("number of columns")?);
        let mut values = Vec::with_capacity(count.min(self.left()));
        for column in 1..=count {
            match self.value(relation_oid, column)? {
                Sent::Value(value) => values.push(value),
                Sent::UnchangedToast => return Err(PgoutputError::UnchangedToast { relation_oid, column }),
            }
        }
        Ok(values)
    }

    /// `TupleData` of an Update or Delete.
    fn skip_row(&mut self, relation_oid: u32) -> Result<(), PgoutputError> {
        let count = usize::from(self.u16("number of columns")?);
        for column in 1..=count {
            self.value(relation_oid, column)?;
        }
        Ok(())
    }

    #[inline]
    fn value(&mut self, relation_oid: u32, column: usize) -> Result<Sent, PgoutputError> {
        let message = self.message;
        match self.u8("value kind")? {
            b't' => {
                let length = self.length("value length")?;
                let start = self.at;
                self.take("value", length)?;
                Ok(Sent::Value(Value::Text(start..self.at)))
            }
            b'n' => Ok(Sent::Value(Value::Null)),
            b'u' => Ok(Sent::UnchangedToast),
            b'b' => Err(PgoutputError::BinaryValue { message, relation_oid, column }),
            kind => Err(PgoutputError::BadValueKind { message, relation_oid, column, kind }),
        }
    }
}

/// A value of a row as it was sent.
enum Sent {
    Value(Value),
    UnchangedToast,
}
