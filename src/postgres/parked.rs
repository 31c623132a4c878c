//! `walpost.parked_messages`: what the rules of `parking` set aside, written and read.

use std::collections::HashSet;

use bytes::Bytes;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::lsn::Lsn;
use crate::names::statement_of;
use crate::parking::{Aside, Position, Queues, Standing, Unit, headers_from_json, headers_to_json};
use crate::router::Header;

mod in_table;

/// The version of schema `walpost` that has the table.
pub const SINCE_VERSION: i32 = 2;

/// What one look for work brings at most; the first message always.
const WORK_MESSAGES: i64 = 500;
const WORK_BYTES: i64 = 8 << 20;

/// A statement on `walpost.parked_messages` failed.
#[derive(Debug, thiserror::Error)]
pub enum ParkedError {
    #[error("cannot {operation} walpost.parked_messages")]
    Failed { operation: &'static str, source: tokio_postgres::Error },
    #[error("walpost.parked_messages holds a value in {column} that walpost did not write: {value:?}")]
    Unreadable { column: &'static str, value: String },
    #[error(
        "{0} messages cannot be parked any more: another relay has taken the slot over, or another epoch has begun"
    )]
    Superseded(i64),
}

impl ParkedError {
    /// The server's code, where it sent one.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            ParkedError::Failed { source, .. } => source.code().map(|code| code.code()),
            ParkedError::Unreadable { .. } | ParkedError::Superseded(_) => None,
        }
    }
}

/// Where messages of one relay are parked.
#[derive(Clone, Debug)]
pub struct Lot {
    pub slot: String,
    pub system_identifier: String,
    pub epoch: i64,
    /// Who streams: what is parked comes from the log, so only as long as it is not confirmed, in this epoch, and this is the
    /// record's holder. None: it comes from elsewhere.
    pub holder: Option<String>,
}

/// What the table grew or shrank by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub messages: u64,
    pub bytes: u64,
}

/// A parked message that the relay may work on.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    pub id: i64,
    pub epoch: u64,
    pub position: Position,
    pub message_id: String,
    pub topic: Option<String>,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    pub headers: Vec<Header>,
    pub row: Option<String>,
    /// Why a value that stayed in the outbox is not to be had.
    pub missing: Option<String>,
    pub wish: Wish,
}

impl Work {
    /// What it is kept in order with.
    pub fn unit(&self) -> Option<Unit> {
        Unit::of(&self.topic.as_deref()?.into(), self.key.as_ref())
    }
}

/// What is to become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Wanted again, or nothing stands before it any more.
    Publish,
    Discard,
}

/// What has become of parked messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub done: Vec<i64>,
    /// Refused once more: id, reason, error.
    pub failed: Vec<(i64, String, String)>,
    /// The queues that may be empty now.
    pub units: Vec<Unit>,
}

impl Lot {
    /// All queues and how much is in them.
    pub async fn load(&self, client: &Client) -> Result<Queues, ParkedError> {
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&self.slot, Type::TEXT), (&self.system_identifier, Type::TEXT)];
        let units = query(client, "read", include_str!("../../sql/060_parked_units.sql"), &params).await?;
        let Change { messages, bytes } = self.size(client).await?;
        let heads = units.iter().map(|row| {
            let (topic, key): (String, Vec<u8>) = (get(row, 0)?, get(row, 1)?);
            let head = match (get::<Option<String>>(row, 2)?, get::<Option<i64>>(row, 3)?) {
                (Some(lsn), Some(ordinal)) => Some(position(lsn, ordinal)?),
                _ => None,
            };
            Ok((Unit { topic: topic.into(), key: key.into() }, head))
        });
        Ok(Queues::new(heads.collect::<Result<Vec<_>, ParkedError>>()?, messages, bytes))
    }

    /// The ids of all messages that are parked.
    pub async fn message_ids(&self, client: &Client) -> Result<HashSet<String>, ParkedError> {
        let rows =
            query(client, "read", include_str!("../../sql/089_parked_ids.sql"), &[(&self.slot, Type::TEXT)]).await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    /// How much is parked.
    pub async fn size(&self, client: &Client) -> Result<Change, ParkedError> {
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&self.slot, Type::TEXT)];
        let size = query(client, "read", include_str!("../../sql/061_parked_size.sql"), &params).await?;
        Ok(size.first().map(change).transpose()?.unwrap_or_default())
    }

    /// Commits messages, in this order; those that are there already are left as they are, and what is confirmed by now is left
    /// out. Then tells up to where the log is on disk, the commit included.
    pub async fn park(&self, client: &Client, asides: &[Aside]) -> Result<(Change, Lsn), ParkedError> {
        let lsns: Vec<String> = asides.iter().map(|aside| aside.position.commit_lsn.to_string()).collect();
        let ordinals: Vec<i64> = asides.iter().map(|aside| i64::from(aside.position.ordinal)).collect();
        let ids: Vec<Option<&str>> = asides.iter().map(|aside| aside.message_id.as_deref()).collect();
        let topics: Vec<Option<&str>> = asides.iter().map(|aside| aside.topic.as_deref()).collect();
        let keys: Vec<Option<&[u8]>> = asides.iter().map(|aside| aside.key.as_deref()).collect();
        let values: Vec<Option<&[u8]>> = asides.iter().map(|aside| aside.value.as_deref()).collect();
        let headers: Vec<String> = asides.iter().map(|aside| headers_to_json(&aside.headers)).collect();
        let rows: Vec<Option<&str>> = asides.iter().map(|aside| aside.row.as_deref()).collect();
        let sizes: Vec<i64> = asides.iter().map(|aside| i64::try_from(aside.bytes()).unwrap_or(i64::MAX)).collect();
        let standing = |aside: &Aside| match &aside.standing {
            Standing::Parked { reason, error } => ("parked", reason.clone(), error.clone()),
            Standing::Waiting => ("waiting", "waiting".to_owned(), String::new()),
        };
        let mut states = Vec::with_capacity(asides.len());
        let (mut reasons, mut errors) = (Vec::with_capacity(asides.len()), Vec::with_capacity(asides.len()));
        for (state, reason, error) in asides.iter().map(standing) {
            states.push(state);
            reasons.push(reason);
            // A zero byte has no place in a text of Postgres.
            errors.push(error.replace('\0', "\u{fffd}"));
        }
        let params: [(&(dyn ToSql + Sync), Type); 16] = [
            (&self.slot, Type::TEXT),
            (&self.system_identifier, Type::TEXT),
            (&self.epoch, Type::INT8),
            (&lsns, Type::TEXT_ARRAY),
            (&ordinals, Type::INT8_ARRAY),
            (&ids, Type::TEXT_ARRAY),
            (&topics, Type::TEXT_ARRAY),
            (&keys, Type::BYTEA_ARRAY),
            (&values, Type::BYTEA_ARRAY),
            (&headers, Type::TEXT_ARRAY),
            (&rows, Type::TEXT_ARRAY),
            (&sizes, Type::INT8_ARRAY),
            (&states, Type::TEXT_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
            (&errors, Type::TEXT_ARRAY),
            (&self.holder, Type::TEXT),
        ];
        let rows = query(client, "write to", include_str!("../../sql/062_parked_insert.sql"), &params).await?;
        let superseded: i64 = rows.first().map(|row| get(row, 2)).transpose()?.unwrap_or_default();
        if superseded > 0 {
            return Err(ParkedError::Superseded(superseded));
        }
        let added = rows.first().map(change).transpose()?.unwrap_or_default();
        let flushed = query(client, "write to", include_str!("../../sql/063_flushed.sql"), &[]).await?;
        let flushed = flushed.first().map(|row| get::<String>(row, 0)).transpose()?.unwrap_or_default();
        Ok((added, lsn(flushed)?))
    }

    /// What may be worked on now: all that stands before the first message of its queue that waits for a person, oldest
    /// first, bounded in number and bytes. Values that stayed in the outbox are read from there.
    pub async fn work(&self, client: &Client) -> Result<Vec<Work>, ParkedError> {
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&self.slot, Type::TEXT),
            (&self.system_identifier, Type::TEXT),
            (&WORK_MESSAGES, Type::INT8),
            (&WORK_BYTES, Type::INT8),
        ];
        let rows = query(client, "read", include_str!("../../sql/064_parked_actionable.sql"), &params).await?;
        let mut works: Vec<Work> = rows.iter().map(work).collect::<Result<_, _>>()?;
        in_table::shorten(&mut works);
        for work in works.iter_mut().filter(|work| work.wish == Wish::Publish) {
            in_table::complete(client, work).await?;
        }
        Ok(works)
    }

    /// Writes down what has become of messages, and tells which of the queues are empty, all in one transaction.
    pub async fn settle(&self, client: &Client, outcome: &Outcome) -> Result<(Change, Vec<Unit>), ParkedError> {
        let failed = |source| ParkedError::Failed { operation: "write to", source };
        let ids: Vec<i64> = outcome.failed.iter().map(|(id, _, _)| *id).collect();
        let reasons: Vec<&str> = outcome.failed.iter().map(|(_, reason, _)| reason.as_str()).collect();
        let errors: Vec<String> = outcome.failed.iter().map(|(_, _, error)| error.replace('\0', "\u{fffd}")).collect();
        let topics: Vec<&str> = outcome.units.iter().map(|unit| &*unit.topic).collect();
        let keys: Vec<&[u8]> = outcome.units.iter().map(|unit| &*unit.key).collect();
        client.batch_execute("BEGIN").await.map_err(failed)?;
        let settle: [(&(dyn ToSql + Sync), Type); 5] = [
            (&self.slot, Type::TEXT),
            (&outcome.done, Type::INT8_ARRAY),
            (&ids, Type::INT8_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
            (&errors, Type::TEXT_ARRAY),
        ];
        let empty: [(&(dyn ToSql + Sync), Type); 3] =
            [(&self.slot, Type::TEXT), (&topics, Type::TEXT_ARRAY), (&keys, Type::BYTEA_ARRAY)];
        let written = async {
            let gone = query(client, "write to", include_str!("../../sql/065_parked_settle.sql"), &settle).await?;
            let empty = query(client, "read", include_str!("../../sql/066_parked_empty.sql"), &empty).await?;
            client.batch_execute("COMMIT").await.map_err(failed)?;
            Ok((gone, empty))
        };
        let (gone, empty) = match written.await {
            Ok(written) => written,
            Err(error) => {
                // The connection may be gone; then so is the transaction.
                let _ = client.batch_execute("ROLLBACK").await;
                return Err(error);
            }
        };
        let units = empty.iter().map(|row| {
            let (topic, key): (String, Vec<u8>) = (get(row, 0)?, get(row, 1)?);
            Ok(Unit { topic: topic.into(), key: key.into() })
        });
        let gone = gone.first().map(change).transpose()?.unwrap_or_default();
        Ok((gone, units.collect::<Result<_, ParkedError>>()?))
    }
}

fn work(row: &Row) -> Result<Work, ParkedError> {
    let headers: String = get(row, 8)?;
    let state: String = get(row, 10)?;
    Ok(Work {
        id: get(row, 0)?,
        epoch: get::<i64>(row, 1)?.unsigned_abs(),
        position: position(get(row, 2)?, get(row, 3)?)?,
        message_id: get(row, 4)?,
        topic: get(row, 5)?,
        key: get::<Option<Vec<u8>>>(row, 6)?.map(Bytes::from),
        value: get::<Option<Vec<u8>>>(row, 7)?.map(Bytes::from),
        headers: headers_from_json(&headers).ok_or(ParkedError::Unreadable { column: "headers", value: headers })?,
        row: get(row, 9)?,
        missing: None,
        wish: if state == "discard" { Wish::Discard } else { Wish::Publish },
    })
}

fn position(commit_lsn: String, ordinal: i64) -> Result<Position, ParkedError> {
    let ordinal = u32::try_from(ordinal)
        .map_err(|_| ParkedError::Unreadable { column: "ordinal", value: ordinal.to_string() })?;
    Ok(Position { commit_lsn: lsn(commit_lsn)?, ordinal })
}

fn lsn(text: String) -> Result<Lsn, ParkedError> {
    text.parse().map_err(|_| ParkedError::Unreadable { column: "commit_lsn", value: text })
}

fn change(row: &Row) -> Result<Change, ParkedError> {
    let (messages, bytes): (i64, i64) = (get(row, 0)?, get(row, 1)?);
    Ok(Change { messages: messages.unsigned_abs(), bytes: bytes.unsigned_abs() })
}

pub(super) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, ParkedError> {
    row.try_get(index).map_err(|source| ParkedError::Failed { operation: "read", source })
}

pub(super) async fn query(
    client: &Client,
    operation: &'static str,
    statement: &str,
    params: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<Row>, ParkedError> {
    let rows = client.query_typed(&statement_of(statement), params).await;
    rows.map_err(|source| ParkedError::Failed { operation, source })
}

/// A parked message as a list shows it.
#[derive(Clone, Debug)]
pub struct Shelved {
    pub id: i64,
    /// `parked`, `waiting`, `retry` or `discard`.
    pub state: String,
    pub topic: Option<String>,
    pub key: Option<Vec<u8>>,
    pub message_id: String,
    pub reason: String,
    pub error: String,
    pub attempts: i32,
    pub value_bytes: u64,
    /// RFC 3339, UTC.
    pub parked_at: String,
    pub age_seconds: f64,
    /// Messages that wait behind it.
    pub behind: u64,
}

/// A parked message, whole.
#[derive(Clone, Debug)]
pub struct WholeShelved {
    pub message: Shelved,
    pub value: Option<Vec<u8>>,
    /// JSON: `[[name, value], ...]`.
    pub headers: String,
    /// JSON: `[[column, type oid, text], ...]`, where no record could be made.
    pub row: Option<String>,
    pub position: Position,
    pub epoch: i64,
}

/// What is parked for a slot, oldest first; `all`: also what waits behind others.
pub async fn list(client: &Client, slot: &str, all: bool, limit: i64) -> Result<Vec<Shelved>, ParkedError> {
    let params: [(&(dyn ToSql + Sync), Type); 3] = [(&slot, Type::TEXT), (&all, Type::BOOL), (&limit, Type::INT8)];
    let rows = query(client, "read", include_str!("../../sql/067_parked_list.sql"), &params).await?;
    rows.iter().map(|row| shelved(row, get::<i64>(row, 11)?.unsigned_abs())).collect()
}

/// One of them. None: there is no such message.
pub async fn show(client: &Client, slot: &str, id: i64) -> Result<Option<WholeShelved>, ParkedError> {
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&slot, Type::TEXT), (&id, Type::INT8)];
    let rows = query(client, "read", include_str!("../../sql/068_parked_show.sql"), &params).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(WholeShelved {
        message: shelved(row, 0)?,
        value: get(row, 11)?,
        headers: get(row, 12)?,
        row: get(row, 13)?,
        epoch: get(row, 14)?,
        position: position(get(row, 15)?, get(row, 16)?)?,
    }))
}

/// Leaves a wish, `retry` or `discard`, for these messages, or for all that wait for a person. Returns whose wish changed.
pub async fn wish(client: &Client, slot: &str, wish: &str, ids: &[i64], all: bool) -> Result<Vec<i64>, ParkedError> {
    let params: [(&(dyn ToSql + Sync), Type); 4] =
        [(&slot, Type::TEXT), (&wish, Type::TEXT), (&ids, Type::INT8_ARRAY), (&all, Type::BOOL)];
    let rows = query(client, "write to", include_str!("../../sql/069_parked_wish.sql"), &params).await?;
    rows.iter().map(|row| get(row, 0)).collect()
}

fn shelved(row: &Row, behind: u64) -> Result<Shelved, ParkedError> {
    Ok(Shelved {
        id: get(row, 0)?,
        state: get(row, 1)?,
        topic: get(row, 2)?,
        key: get(row, 3)?,
        message_id: get(row, 4)?,
        reason: get(row, 5)?,
        error: get(row, 6)?,
        attempts: get(row, 7)?,
        value_bytes: get::<i64>(row, 8)?.unsigned_abs(),
        parked_at: get(row, 9)?,
        age_seconds: get(row, 10)?,
        behind,
    })
}
