//! What the catalog says of the table, of the publication and of the history that the server is in. It only reads.
//!
//! Rows come back as one JSON text each: the system views have other columns in every version, and so one statement
//! serves them all.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::lsn::{Lsn, ParseLsnError};
use crate::names::{TableName, quote_ident, statement_of};
use crate::source::{Column, Relation};

/// The first version that has column lists, row filters and schemas in publications.
pub const COLUMN_LISTS: u32 = 150_000;

/// A look at the catalog failed.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error("could not read {what} from Postgres")]
    Read { what: &'static str, source: tokio_postgres::Error },
    #[error("Postgres described {what} in a form that this version of walpost does not know")]
    Json { what: &'static str, source: serde_json::Error },
    #[error("Postgres did not describe {what}: there was no row")]
    Missing { what: &'static str },
    #[error("Postgres named a WAL position for {what} that cannot be read")]
    Lsn { what: &'static str, source: ParseLsnError },
}

impl CatalogError {
    /// Postgres' code for the failure, where it answered.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            CatalogError::Read { source, .. } => source.code().map(|code| code.code()),
            CatalogError::Json { .. } | CatalogError::Missing { .. } | CatalogError::Lsn { .. } => None,
        }
    }
}

/// The server's version as a number, 170011 for 17.11.
pub async fn server_version(client: &Client) -> Result<u32, CatalogError> {
    let what = "the server's version";
    let version = client
        .query_typed("SELECT current_setting('server_version_num')::int4", &[])
        .await
        .and_then(|rows| rows.first().map_or(Ok(0), |row| row.try_get::<_, i32>(0)))
        .map_err(|source| CatalogError::Read { what, source })?;
    Ok(version.unsigned_abs())
}

/// The planner's estimate of a table's rows, which costs no look at the table. None: nothing was ever counted.
pub async fn estimated_rows(client: &Client, table_oid: u32) -> Result<Option<f64>, CatalogError> {
    let what = "the table's size";
    let statement = statement_of(include_str!("../../sql/049_estimated_rows.sql"));
    let rows = client.query_typed(&statement, &[(&table_oid, Type::OID)]).await;
    let read = |source| CatalogError::Read { what, source };
    let rows = rows.map_err(read)?;
    rows.first().map_or(Ok(None), |row| row.try_get(0)).map_err(read)
}

/// Which history of LSNs a connection sees. Positions compare only where all of it but the flush LSN is equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub system_identifier: String,
    /// None on a standby, where SQL does not tell it.
    pub timeline: Option<u32>,
    /// What is surely on the server's disk; on a standby, nothing is known.
    pub flush_lsn: Lsn,
    pub database: String,
    pub database_oid: u32,
}

/// IDENTIFY_SYSTEM's answer over an ordinary connection.
pub async fn identity(client: &Client) -> Result<Identity, CatalogError> {
    let what = "the system identifier";
    let read = |source| CatalogError::Read { what, source };
    let row = client.query_one(statement_of(include_str!("../../sql/037_identity.sql")).as_str(), &[]).await;
    let row = row.map_err(read)?;
    let timeline: Option<String> = row.try_get(1).map_err(read)?;
    let flush: Option<String> = row.try_get(2).map_err(read)?;
    Ok(Identity {
        system_identifier: row.try_get(0).map_err(read)?,
        timeline: timeline.and_then(|hex| u32::from_str_radix(&hex, 16).ok()),
        flush_lsn: flush
            .map_or(Ok(Lsn::INVALID), |text| text.parse())
            .map_err(|source| CatalogError::Lsn { what: "the flush position", source })?,
        database: row.try_get(3).map_err(read)?,
        database_oid: row.try_get(4).map_err(read)?,
    })
}

/// A table as the catalog describes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TableFacts {
    pub oid: u32,
    pub schema: String,
    pub name: String,
    pub owner: String,
    pub kind: RelationKind,
    pub persistence: Persistence,
    /// `d` primary key, `i` an index, `f` the whole row, `n` nothing.
    pub replica_identity: String,
    pub row_security: bool,
    /// The planner's estimate; -1 where nothing ever counted.
    pub estimated_rows: i64,
    pub has_primary_key: bool,
    /// The partitioned tables above this one, if it is a partition itself.
    pub ancestors: Vec<RelationName>,
    /// Leaves that are not in the WAL.
    pub unlogged_partitions: Vec<String>,
    /// Tables that inherit from this one without being partitions, as time-series extensions make them.
    pub children: Vec<RelationName>,
    pub columns: Vec<ColumnFacts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum RelationKind {
    #[serde(rename = "r")]
    Table,
    #[serde(rename = "p")]
    Partitioned,
    #[serde(rename = "v")]
    View,
    #[serde(rename = "m")]
    MaterializedView,
    #[serde(rename = "f")]
    ForeignTable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Persistence {
    #[serde(rename = "p")]
    Permanent,
    #[serde(rename = "u")]
    Unlogged,
    #[serde(rename = "t")]
    Temporary,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RelationName {
    #[serde(default)]
    pub oid: u32,
    pub schema: String,
    pub name: String,
}

impl RelationName {
    /// As it is written in SQL.
    pub fn sql(&self) -> String {
        format!("{}.{}", quote_ident(&self.schema), quote_ident(&self.name))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ColumnFacts {
    pub name: String,
    pub type_oid: u32,
    /// As SQL writes it: `character varying(255)`.
    #[serde(rename = "type")]
    pub type_name: String,
    pub not_null: bool,
    pub identity: bool,
    pub generated: Generated,
    /// Part of the primary key.
    pub key: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Generated {
    #[serde(rename = "")]
    No,
    #[serde(rename = "s")]
    Stored,
    #[serde(rename = "v")]
    Virtual,
}

impl TableFacts {
    /// As it is written in SQL, with its schema.
    pub fn sql(&self) -> String {
        format!("{}.{}", quote_ident(&self.schema), quote_ident(&self.name))
    }

    /// The table as a Relation message would describe it, for whatever resolves columns before a stream is open.
    pub fn relation(&self) -> Relation {
        let columns =
            self.columns.iter().map(|c| Column { name: c.name.clone(), type_oid: c.type_oid, key: c.key }).collect();
        Relation { oid: self.oid, schema: self.schema.clone(), name: self.name.clone(), columns }
    }
}

/// What looking for the configured table found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableLookup {
    Found(Box<TableFacts>),
    /// Not under that name; but these schemas hold a table that is called so.
    Elsewhere {
        schemas: Vec<SchemaHint>,
        search_path: String,
    },
    Missing {
        search_path: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaHint {
    pub schema: String,
    /// The role has USAGE on it.
    pub usable: bool,
}

/// Finds the table; without a schema, as the role's search path does.
pub async fn table(client: &Client, table: &TableName) -> Result<TableLookup, CatalogError> {
    let what = "the table";
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&table.schema, Type::TEXT), (&table.name, Type::TEXT)];
    if let Some(facts) = json(client, include_str!("../../sql/033_table.sql"), &params, what).await? {
        return Ok(TableLookup::Found(Box::new(facts)));
    }
    let read = |source| CatalogError::Read { what, source };
    let elsewhere = statement_of(include_str!("../../sql/034_table_elsewhere.sql"));
    let rows = client.query_typed(&elsewhere, &[(&table.name, Type::TEXT)]).await.map_err(read)?;
    let mut schemas = Vec::with_capacity(rows.len());
    let mut search_path = String::new();
    for row in &rows {
        search_path = row.try_get(2).map_err(read)?;
        schemas.push(SchemaHint { schema: row.try_get(0).map_err(read)?, usable: row.try_get(1).map_err(read)? });
    }
    if schemas.is_empty() {
        let row = client.query_one("SELECT current_setting('search_path')", &[]).await.map_err(read)?;
        return Ok(TableLookup::Missing { search_path: row.try_get(0).map_err(read)? });
    }
    Ok(TableLookup::Elsewhere { schemas, search_path })
}

/// Where this session makes a table that is named without a schema.
pub async fn current_schema(client: &Client) -> Result<String, CatalogError> {
    let read = |source| CatalogError::Read { what: "the current schema", source };
    let rows = client.query_typed("SELECT coalesce(current_schema(), 'public')::text", &[]).await.map_err(read)?;
    rows.first().map_or(Ok(String::new()), |row| row.try_get(0)).map_err(read)
}

/// Counts the rows whose `xmin` is at or after the horizon: what may not have been published. Within a minute, and
/// rather an error than a number that row security has cut down.
///
/// It runs in a transaction of its own: the client must not be in one.
pub async fn rows_at_risk(client: &Client, table: &TableFacts, horizon: u64) -> Result<i64, CatalogError> {
    let read = |source| CatalogError::Read { what: "the rows at risk", source };
    let bounds = "BEGIN READ ONLY; SET LOCAL statement_timeout = '60s'; SET LOCAL row_security = off";
    client.batch_execute(bounds).await.map_err(read)?;
    let statement = statement_of(include_str!("../../sql/044_rows_at_risk.sql")).replace("{table}", &table.sql());
    let horizon = horizon.to_string();
    let counted = client.query_typed(&statement, &[(&horizon, Type::TEXT)]).await;
    client.batch_execute("ROLLBACK").await.map_err(read)?;
    counted.and_then(|rows| rows.first().map_or(Ok(0), |row| row.try_get(0))).map_err(read)
}

/// A publication, and whether and how it carries our table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PublicationFacts {
    pub oid: u32,
    pub name: String,
    pub owner: String,
    /// The role may alter it.
    pub owned: bool,
    pub all_tables: bool,
    pub inserts: bool,
    pub updates: bool,
    pub deletes: bool,
    pub truncates: bool,
    pub via_root: bool,
    /// The table itself is in it.
    pub in_itself: bool,
    /// A partitioned table above it is in it.
    pub in_ancestor: bool,
    /// Its schema is in it (15+).
    pub in_schema: bool,
    /// Up to 50 of the tables that it names.
    pub tables: Vec<RelationName>,
    /// Of our table and its relatives, those whose rows are published.
    pub published: Vec<PublishedTable>,
    /// Up to 5 of the tables that it carries and that are no relatives of ours: their rows would come with ours.
    pub strangers: Vec<RelationName>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PublishedTable {
    pub schema: String,
    pub name: String,
    /// The published columns (15+).
    pub columns: Option<Vec<String>>,
    pub row_filter: Option<String>,
}

impl PublicationFacts {
    /// Whether every row of the table comes through it: itself, through a table above it, its schema, or all tables.
    pub fn covers(&self) -> bool {
        self.in_itself || self.in_ancestor || self.in_schema || self.all_tables
    }

    /// Those of `columns` that it leaves out.
    pub fn without<'a>(&self, columns: &'a [String]) -> Vec<&'a str> {
        let published = |column: &String| {
            self.published.iter().all(|table| table.columns.as_ref().is_none_or(|listed| listed.contains(column)))
        };
        columns.iter().filter(|column| !published(column)).map(String::as_str).collect()
    }

    /// A condition on rows, where it has one for our table.
    pub fn row_filter(&self) -> Option<&str> {
        self.published.iter().find_map(|table| table.row_filter.as_deref())
    }

    /// Why it cannot be streamed from, where it carries other tables than ours, and the way out.
    pub fn shared(&self) -> Option<(String, String)> {
        let names: Vec<String> = self.strangers.iter().map(RelationName::sql).collect();
        let (first, more) = (names.first()?, if names.len() > 1 { " and others" } else { "" });
        Some((
            format!(
                "the publication {} carries {first}{more} beside the outbox: their rows would come with its rows, and \
                 nothing but the publication tells them apart",
                quote_ident(&self.name)
            ),
            "give walpost a publication of its own: set postgres.publication to a new name, then run `walpost setup`"
                .to_owned(),
        ))
    }

    /// The operations besides inserts that it publishes.
    pub fn surplus_operations(&self) -> Vec<&'static str> {
        [(self.updates, "update"), (self.deletes, "delete"), (self.truncates, "truncate")]
            .into_iter()
            .filter_map(|(published, name)| published.then_some(name))
            .collect()
    }
}

/// Reads the publication; `table` is what [`table`] found. None: there is no such publication.
pub async fn publication(
    client: &Client,
    version: u32,
    name: &str,
    table: Option<&TableFacts>,
) -> Result<Option<PublicationFacts>, CatalogError> {
    let in_schema = if version >= COLUMN_LISTS {
        statement_of(include_str!("../../sql/036_publication_in_schema.sql"))
    } else {
        "false".to_owned()
    };
    let statement = include_str!("../../sql/035_publication.sql").replace("{in_schema}", &in_schema);
    let (schema, relation, oid) = table.map_or(("", "", 0), |t| (t.schema.as_str(), t.name.as_str(), t.oid));
    let params: [(&(dyn ToSql + Sync), Type); 4] =
        [(&name, Type::TEXT), (&schema, Type::TEXT), (&relation, Type::TEXT), (&oid, Type::OID)];
    json(client, &statement, &params, "the publication").await
}

/// The expression of the *fingerprint*: one text of what is published, for use inside other statements, where `$1` is
/// the publication, `$2` the table's schema and `$3` its name.
pub fn fingerprint_expression(version: u32) -> String {
    let schemas = if version >= COLUMN_LISTS {
        statement_of(include_str!("../../sql/021_fingerprint_schemas.sql"))
    } else {
        "'none'".to_owned()
    };
    statement_of(include_str!("../../sql/020_fingerprint.sql")).replace("{schemas}", &schemas)
}

/// The fingerprint as it is now.
pub async fn fingerprint(
    client: &Client,
    version: u32,
    publication: &str,
    schema: &str,
    table: &str,
) -> Result<String, CatalogError> {
    let read = |source| CatalogError::Read { what: "the publication's fingerprint", source };
    let statement = format!("SELECT {}", fingerprint_expression(version));
    let params: [(&(dyn ToSql + Sync), Type); 3] =
        [(&publication, Type::TEXT), (&schema, Type::TEXT), (&table, Type::TEXT)];
    let rows = client.query_typed(&statement, &params).await.map_err(read)?;
    rows.first().map_or(Ok(String::new()), |row| row.try_get(0)).map_err(read)
}

/// Runs a statement of `sql/` that gives one JSON text, or no row.
pub(crate) async fn json<T: DeserializeOwned>(
    client: &Client,
    statement: &str,
    params: &[(&(dyn ToSql + Sync), Type)],
    what: &'static str,
) -> Result<Option<T>, CatalogError> {
    let read = |source| CatalogError::Read { what, source };
    let rows = client.query_typed(&statement_of(statement), params).await.map_err(read)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let text: String = row.try_get(0).map_err(read)?;
    serde_json::from_str(&text).map(Some).map_err(|source| CatalogError::Json { what, source })
}
