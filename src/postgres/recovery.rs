//! What a recovery does and asks in Postgres. The order of it all is the command's; here is one statement each:
//!
//! ```text
//!  lock      one recovery of a slot at a time, for as long as its session lives
//!  begin     the record says `recovering`: nothing streams, and the horizon stays for whoever has to start over
//!  finish    the record of the new slot, in the same statement that ends that state
//!  give_up   a person goes on without
//! ```
//!
//! A session that begins or finishes must not run with `synchronous_commit = off`.

use std::collections::BTreeMap;

use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::catalog::{self, CatalogError, Generated, Identity, PublicationFacts, TableFacts};
use super::checkpoint::{Begun, Checkpoint, CheckpointError, State, execute};
use super::slot::Holder;
use crate::lsn::Lsn;
use crate::names::{fill, quote_ident, statement_of};
use crate::source::{Column, Relation};

/// The first version whose publications can carry stored generated columns.
const GENERATED_COLUMNS: u32 = 180_000;

/// Ids of 32 bits compare as older or newer within half of their range; less what may be given out meanwhile.
const COMPARABLE: u64 = 2_000_000_000;

/// A mark that polling relays set on a row that they have published.
pub const MARK: &str = "published_at";

/// Takes the lock, which is held until the session ends. Some: it is held by somebody else, whom the text names.
pub async fn lock(client: &Client, slot: &str) -> Result<Option<String>, CatalogError> {
    let what = "the lock of the recovery";
    let read = |source| CatalogError::Read { what, source };
    let statement = statement_of(include_str!("../../sql/080_recovery_lock.sql"));
    let rows = client.query_typed(&statement, &[(&slot, Type::TEXT)]).await.map_err(read)?;
    if rows.first().map_or(Ok(false), |row| row.try_get(0)).map_err(read)? {
        return Ok(None);
    }
    let statement = include_str!("../../sql/081_recovery_lock_holder.sql");
    let holder: Option<Holder> = catalog::json(client, statement, &[(&slot, Type::TEXT)], what).await?;
    Ok(Some(holder.map_or("a session that has just ended".to_owned(), |holder| holder.to_string())))
}

/// Commits the state `recovering`. False: the record is not the one that was looked at.
pub async fn begin(client: &Client, record: &Checkpoint, holder: &str) -> Result<bool, CheckpointError> {
    let confirmed = record.confirmed_lsn.to_string();
    let params: [(&(dyn ToSql + Sync), Type); 4] =
        [(&record.slot_name, Type::TEXT), (&record.epoch, Type::INT8), (&confirmed, Type::TEXT), (&holder, Type::TEXT)];
    execute(client, include_str!("../../sql/082_recovery_begin.sql"), &params).await
}

/// What the record holds after a recovery.
#[derive(Clone, Copy, Debug)]
pub struct Recovered<'a> {
    /// As it was looked at.
    pub record: &'a Checkpoint,
    /// The new slot's: everything that committed before it is in Kafka.
    pub consistent_point: Lsn,
    pub identity: &'a Identity,
    pub table_oid: u32,
    pub kafka_cluster_id: Option<&'a str>,
    /// From before the slot was made, so that a later change of the publication is noticed.
    pub fingerprint: &'a str,
}

/// Ends the recovery. None, and nothing is changed: the record is not `recovering` any more, or the slot is not the one that
/// was made, or it is lost again.
pub async fn finish(client: &Client, new: Recovered<'_>) -> Result<Option<Begun>, CheckpointError> {
    let failed = |source| CheckpointError::from_sql("write", source);
    let slot = &new.record.slot_name;
    let consistent_point = new.consistent_point.to_string();
    let timeline = i64::from(new.identity.timeline.unwrap_or(0));
    let params: [(&(dyn ToSql + Sync), Type); 9] = [
        (slot, Type::TEXT),
        (&new.record.epoch, Type::INT8),
        (&consistent_point, Type::TEXT),
        (&new.identity.system_identifier, Type::TEXT),
        (&timeline, Type::INT8),
        (&new.identity.database_oid, Type::OID),
        (&new.table_oid, Type::OID),
        (&new.kafka_cluster_id, Type::TEXT),
        (&new.fingerprint, Type::TEXT),
    ];
    let statement = statement_of(include_str!("../../sql/083_recovery_finish.sql"));
    let rows = client.query_typed(&statement, &params).await.map_err(failed)?;
    rows.first().map(|row| Begun::from_row(slot, row)).transpose()
}

/// Ends the state `recovering` without a recovery. False: it was not that.
pub async fn give_up(client: &Client, slot: &str) -> Result<bool, CheckpointError> {
    execute(client, include_str!("../../sql/084_recovery_give_up.sql"), &[(&slot, Type::TEXT)]).await
}

/// The id of the next transaction, in the 64 bits that do not wrap.
pub async fn next_transaction(client: &Client) -> Result<u64, CatalogError> {
    let what = "the next transaction's id";
    let read = |source| CatalogError::Read { what, source };
    let statement = statement_of(include_str!("../../sql/087_next_transaction.sql"));
    let rows = client.query_typed(&statement, &[]).await.map_err(read)?;
    let text: String = rows.first().ok_or(CatalogError::Missing { what })?.try_get(0).map_err(read)?;
    text.parse().map_err(|_| CatalogError::Missing { what })
}

/// The files of a table and of what a read of it reads beside it. See [`rewritten`].
pub type Storage = BTreeMap<u32, Option<u32>>;

pub async fn storage(client: &Client, table_oid: u32) -> Result<Storage, CatalogError> {
    let read = |source| CatalogError::Read { what: "the table's files", source };
    let statement = statement_of(include_str!("../../sql/088_storage.sql"));
    let rows = client.query_typed(&statement, &[(&table_oid, Type::OID)]).await.map_err(read)?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, _>>().map_err(read)
}

/// Whether a part of the table was rewritten, truncated or taken out between two looks. A snapshot from between them may
/// then see rows of it no more. What has come in between may be new, and matters not.
pub fn rewritten(before: &Storage, after: &Storage) -> bool {
    before.iter().any(|(oid, file)| after.get(oid) != Some(file))
}

/// A column as the stream tells it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StreamedColumn {
    pub name: String,
    /// A domain's is that of what it is made of.
    pub type_oid: u32,
    pub generated: Generated,
    /// A whole number that a sequence gives out: its order is that of the inserts, nearly.
    pub sequence: bool,
}

/// All columns of the table.
pub async fn columns(client: &Client, table_oid: u32) -> Result<Vec<StreamedColumn>, CatalogError> {
    let what = "the table's columns";
    let statement = include_str!("../../sql/085_streamed_columns.sql");
    let columns = catalog::json(client, statement, &[(&table_oid, Type::OID)], what).await?;
    columns.ok_or(CatalogError::Missing { what })
}

/// The table as a Relation message of this publication would tell it: what it leaves out, the records must leave out, too.
pub fn streamed_relation(
    table: &TableFacts,
    columns: &[StreamedColumn],
    publication: &PublicationFacts,
    version: u32,
) -> Relation {
    let own = |published: &&catalog::PublishedTable| published.schema == table.schema && published.name == table.name;
    let published = publication.published.iter().find(own).or(publication.published.first());
    let listed = published.and_then(|published| published.columns.as_ref());
    let is_sent = |column: &&StreamedColumn| match column.generated {
        Generated::Virtual => false,
        Generated::Stored if version < GENERATED_COLUMNS => false,
        Generated::Stored | Generated::No => listed.is_none_or(|listed| listed.contains(&column.name)),
    };
    let columns = columns.iter().filter(is_sent);
    let columns = columns.map(|c| Column { name: c.name.clone(), type_oid: c.type_oid, key: false });
    Relation { oid: table.oid, schema: table.schema.clone(), name: table.name.clone(), columns: columns.collect() }
}

/// Which rows of the table are published again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtRisk {
    /// Those that were written by this transaction or a later one.
    Since(u64),
    All,
}

/// Why the record does not tell which rows are at risk; a person has to choose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untold {
    #[error(
        "this is another database cluster (system identifier {now}, recorded {recorded}), so the recorded transaction ids \
         may mean nothing here"
    )]
    Cluster { recorded: String, now: String },
    #[error(
        "this database is not the one that was recorded (oid {now}, recorded {recorded}), as after restoring a dump: the \
         recorded transaction ids mean nothing here"
    )]
    Database { recorded: u32, now: u32 },
    #[error(
        "the table is not the one that was recorded (oid {now}, recorded {recorded}): it was dropped and made again, \
         swapped, or restored from a dump, and the transaction ids of its rows need not be those of their first insert"
    )]
    Table { recorded: u32, now: u32 },
    #[error("the record has no horizon, so nothing tells how old the oldest unpublished row is")]
    NoHorizon,
    #[error(
        "the record's horizon, transaction {horizon}, lies after the server's next transaction, {next}: its transaction ids \
         went back"
    )]
    Ahead { horizon: u64, next: u64 },
    #[error(
        "the record's horizon, transaction {horizon}, is more than 2 billion transactions old (the next is {next}): what is \
         older and what newer can no longer be told"
    )]
    TooOld { horizon: u64, next: u64 },
}

/// Which rows may not have been published. `upgraded`: a person says that the cluster was made of the recorded one by
/// pg_upgrade, which keeps the ids of transactions and tables.
pub fn at_risk(
    record: &Checkpoint,
    identity: &Identity,
    table_oid: u32,
    next: u64,
    upgraded: bool,
) -> Result<AtRisk, Untold> {
    if record.database_oid != identity.database_oid {
        return Err(Untold::Database { recorded: record.database_oid, now: identity.database_oid });
    }
    if record.system_identifier != identity.system_identifier && !upgraded {
        let now = identity.system_identifier.clone();
        return Err(Untold::Cluster { recorded: record.system_identifier.clone(), now });
    }
    if record.table_oid != table_oid {
        return Err(Untold::Table { recorded: record.table_oid, now: table_oid });
    }
    let horizon = record.horizon.ok_or(Untold::NoHorizon)?;
    match next.checked_sub(horizon) {
        None => Err(Untold::Ahead { horizon, next }),
        Some(age) if age >= COMPARABLE => Err(Untold::TooOld { horizon, next }),
        Some(_) => Ok(AtRisk::Since(horizon)),
    }
}

/// What is read of the table.
#[derive(Clone, Debug)]
pub struct Selection<'a> {
    pub table: &'a TableFacts,
    /// In this order.
    pub columns: &'a [Column],
    pub at_risk: AtRisk,
    /// Of the publication: what it leaves out is never published.
    pub row_filter: Option<&'a str>,
    /// A column that a sequence fills. None: the oldest transaction first.
    pub order_by: Option<&'a str>,
    /// The table has the column [`MARK`]: whether it is set stands behind the columns.
    pub mark: bool,
    /// Leave out the marked rows.
    pub unmarked_only: bool,
}

impl Selection<'_> {
    /// The statement.
    pub fn sql(&self) -> String {
        let mut columns: Vec<String> = self.columns.iter().map(|column| quote_ident(&column.name)).collect();
        if self.mark {
            columns.push(format!("{} IS NOT NULL", quote_ident(MARK)));
        }
        let mut conditions = Vec::new();
        if let AtRisk::Since(horizon) = self.at_risk {
            conditions.push(format!("age(xmin) <= age('{horizon}'::xid8::xid)"));
        }
        conditions.extend(self.row_filter.map(|filter| format!("({filter})")));
        conditions.extend(self.unmarked_only.then(|| format!("{} IS NULL", quote_ident(MARK))));
        if conditions.is_empty() {
            conditions.push("true".to_owned());
        }
        // Rows of one transaction have lain down in about the order in which they were inserted.
        let order = self.order_by.map_or("age(xmin) DESC, ctid".to_owned(), quote_ident);
        let (columns, conditions, table) = (columns.join(", "), conditions.join(" AND "), self.table.sql());
        let words: [(&str, &str); 4] =
            [("columns", &columns), ("outbox_messages", &table), ("conditions", &conditions), ("ordering", &order)];
        fill(include_str!("../../sql/086_rows_of_the_table.sql"), &words)
    }
}

/// Whether a recovery that was cut off, or is at work, has left its state in the record.
pub fn is_under_way(record: Option<&Checkpoint>) -> bool {
    record.is_some_and(|record| record.state == State::Recovering)
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
