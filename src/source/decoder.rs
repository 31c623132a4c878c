//! Turns pgoutput's messages into [`SourceEvent`]s: knows the relations and whether a transaction is open.
//!
//! Pure. A decoder lives as long as one replication connection, because the server sends each Relation again on a new
//! one. It never guesses: a row that cannot be named with certainty is an error, so that the position is held, and
//! what an insert-only outbox does not relay comes out as [`SourceEvent::Ignored`], so that it is counted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::pgoutput::{self, Message, PgoutputError};
use super::{Ignored, Relation, Row, SourceEvent};
use crate::lsn::Lsn;

#[cfg(test)]
pub(crate) mod recorded_tests;
#[cfg(test)]
mod tests;

/// PostgreSQL's OID of the type `bytea`.
pub const BYTEA_OID: u32 = 17;

/// Why a message cannot be understood where it stands. The caller adds the position it came from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error(transparent)]
    Message(#[from] PgoutputError),
    #[error("a transaction that commits at {inner} begins within the one that commits at {open}")]
    NestedBegin { open: Lsn, inner: Lsn },
    #[error("pgoutput message {message} came outside a transaction")]
    OutsideTransaction { message: &'static str },
    #[error("the transaction that was to commit at {begun} commits at {committed}")]
    WrongCommit { begun: Lsn, committed: Lsn },
    #[error(
        "a row belongs to relation {oid}, of which the server has told nothing on this connection; connecting again \
         makes it tell"
    )]
    UnknownRelation { oid: u32 },
    #[error("a row of table {table} has {found} values, but the table was announced with {announced} columns")]
    ColumnCount { table: String, announced: usize, found: usize },
    #[error(
        "a new row of table {table} has no value for column \"{column}\": the server says that it is an unchanged \
         TOAST value, which only an update can have"
    )]
    UnchangedToast { table: String, column: String },
    #[error("a row of table {table} has a binary value in column \"{column}\", but walpost asked for text")]
    BinaryValue { table: String, column: String },
}

/// The state of one connection's stream.
#[derive(Debug, Default)]
pub struct Decoder {
    /// By OID. Grows with the tables of the publication; nothing may be forgotten, as the server tells each once.
    relations: HashMap<u32, Arc<Relation>>,
    /// Domains over `bytea`, by OID: the server tells a domain as a Type with the name of what it is made of.
    bytea_domains: HashSet<u32>,
    /// Begin's final LSN, until the Commit.
    open: Option<Lsn>,
}

impl Decoder {
    /// A decoder for a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads one XLogData payload. None: it told something about rows to come, or where a transaction came from.
    pub fn decode(&mut self, data: Bytes) -> Result<Option<SourceEvent>, DecodeError> {
        let message = pgoutput::parse(&data).map_err(|error| self.name_column(error))?;
        let event = match message {
            Message::Insert { relation_oid, values } => {
                self.inside("Insert")?;
                let Some(relation) = self.relations.get(&relation_oid) else {
                    return Err(DecodeError::UnknownRelation { oid: relation_oid });
                };
                if values.len() != relation.columns.len() {
                    return Err(DecodeError::ColumnCount {
                        table: full_name(relation),
                        announced: relation.columns.len(),
                        found: values.len(),
                    });
                }
                SourceEvent::Row(Row { relation: Arc::clone(relation), frame: data, values })
            }
            Message::Begin { final_lsn, commit_time, xid } => {
                if let Some(open) = self.open {
                    return Err(DecodeError::NestedBegin { open, inner: final_lsn });
                }
                self.open = Some(final_lsn);
                SourceEvent::Begin { final_lsn, commit_time, xid }
            }
            Message::Commit { commit_lsn, end_lsn, .. } => {
                let begun = self.inside("Commit")?;
                if begun != commit_lsn {
                    return Err(DecodeError::WrongCommit { begun, committed: commit_lsn });
                }
                self.open = None;
                SourceEvent::Commit { commit_lsn, end_lsn }
            }
            Message::Relation(relation) => {
                self.remember(relation);
                return Ok(None);
            }
            Message::Type { oid, schema, name } => {
                if schema == "pg_catalog" && name == "bytea" {
                    self.bytea_domains.insert(oid);
                }
                return Ok(None);
            }
            Message::Origin { .. } => return Ok(None),
            Message::Update { .. } => {
                self.inside("Update")?;
                SourceEvent::Ignored(Ignored::Update)
            }
            Message::Delete { .. } => {
                self.inside("Delete")?;
                SourceEvent::Ignored(Ignored::Delete)
            }
            Message::Truncate { .. } => {
                self.inside("Truncate")?;
                SourceEvent::Ignored(Ignored::Truncate)
            }
            Message::Logical { transactional, .. } => {
                // One that is not transactional comes when it is written, also from a transaction that rolls back.
                if transactional {
                    self.inside("Message")?;
                }
                SourceEvent::Ignored(Ignored::Message)
            }
            Message::StreamAbort { .. } => SourceEvent::Ignored(Ignored::StreamAbort),
        };
        Ok(Some(event))
    }

    fn inside(&self, message: &'static str) -> Result<Lsn, DecodeError> {
        self.open.ok_or(DecodeError::OutsideTransaction { message })
    }

    /// The server repeats a Relation after events that changed nothing in it. Then the known one is kept, so that
    /// whoever compares pointers sees no change. A domain over `bytea` becomes `bytea`, as which it is printed.
    fn remember(&mut self, mut relation: Relation) {
        for column in &mut relation.columns {
            if self.bytea_domains.contains(&column.type_oid) {
                column.type_oid = BYTEA_OID;
            }
        }
        let known = self.relations.get(&relation.oid);
        if known.is_none_or(|known| **known != relation) {
            self.relations.insert(relation.oid, Arc::new(relation));
        }
    }

    /// Numbers become names where the relation is known.
    fn name_column(&self, error: PgoutputError) -> DecodeError {
        let named = |relation_oid: &u32, column: &usize| {
            let relation = self.relations.get(relation_oid)?;
            let column = relation.columns.get(column.checked_sub(1)?)?;
            Some((full_name(relation), column.name.clone()))
        };
        match &error {
            PgoutputError::UnchangedToast { relation_oid, column } => named(relation_oid, column)
                .map(|(table, column)| DecodeError::UnchangedToast { table, column })
                .unwrap_or(DecodeError::Message(error)),
            PgoutputError::BinaryValue { relation_oid, column, .. } => named(relation_oid, column)
                .map(|(table, column)| DecodeError::BinaryValue { table, column })
                .unwrap_or(DecodeError::Message(error)),
            _ => DecodeError::Message(error),
        }
    }
}

fn full_name(relation: &Relation) -> String {
    format!("{}.{}", relation.schema, relation.name)
}
