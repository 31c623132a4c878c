//! What a database still lacks for walpost, as an ordered plan: the table, schema `walpost`, the publication, the
//! grants, and the slot last, because a slot reads the catalog as of each change and must not be older than its
//! publication. Pure: `setup` runs the plan, `setup --print` writes it out.

use std::collections::BTreeSet;

use super::catalog::{
    COLUMN_LISTS, ColumnFacts, Generated, Persistence, PublicationFacts, RelationKind, TableFacts, TableLookup,
};
use super::checkpoint::SCHEMA_VERSION;
use super::slot::{self, SlotFacts};
use crate::config::{Config, Preset};
use crate::names::{TableName, fill, quote_ident, statement_of};
use crate::outbox::{Field, Mapping, MappingError};
use crate::router::{Router, TemplateError};

/// How long a statement of the plan waits for a lock on the table: writers queue behind it meanwhile.
pub const LOCK_TIMEOUT_S: u32 = 5;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    pub table: &'a TableName,
    pub publication: &'a str,
    pub slot: &'a str,
    /// The columns that the mapping uses; None: not known, all are published.
    pub columns: Option<Vec<String>>,
    /// Make the table, in this preset's form, where there is none.
    pub create_table: Option<Preset>,
    /// Grant this role what a relay needs.
    pub grants: Option<&'a str>,
}

/// What is there.
#[derive(Clone, Debug)]
pub struct Present<'a> {
    pub version: u32,
    pub table: Option<&'a TableFacts>,
    pub publication: Option<&'a PublicationFacts>,
    pub slot: Option<&'a SlotFacts>,
    /// The version of schema `walpost`.
    pub schema_version: Option<i32>,
    /// Where a table without a schema is made.
    pub current_schema: &'a str,
}

/// What a step is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    Table,
    Schema,
    Publication,
    Grants,
    Slot,
}

/// One thing that must be so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub kind: StepKind,
    /// What it brings about: "publication walpost for table public.outbox_messages".
    pub title: String,
    /// The statements that bring it about; empty where it is so already.
    pub sql: String,
    /// The statements belong into one transaction of their own.
    pub transaction: bool,
    pub done: bool,
}

impl Step {
    fn done(kind: StepKind, title: String) -> Step {
        Step { kind, title, sql: String::new(), transaction: false, done: true }
    }

    fn todo(kind: StepKind, title: String, sql: String) -> Step {
        Step { kind, title, sql, transaction: false, done: false }
    }

    fn in_transaction(self) -> Step {
        Step { transaction: true, ..self }
    }

    /// The statements as a script for `psql` or a migration.
    pub fn script(&self) -> String {
        let sql = self.sql.trim_end();
        if self.transaction { format!("BEGIN;\n{sql}\nCOMMIT;") } else { sql.to_owned() }
    }
}

/// How to run a statement that changes the publication and costs no row. The relay cannot know that it costs none, so one
/// that streams meanwhile stands still as `publication_changed`.
pub fn altered_by_hand(statement: &str) -> String {
    format!("stop the relay, run {statement}, then walpost setup --accept-gap (no row is missed), and start the relay")
}

/// The steps in their order, and what works but should be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub notes: Vec<String>,
}

/// The table cannot be used as it is.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TableProblem {
    #[error(
        "there is no table {table} (search path: {search_path}); name it with postgres.table, or let `walpost setup \
        --create-table` make it"
    )]
    Missing { table: String, search_path: String },
    #[error(
        "there is no table {table} in the search path ({search_path}), but there is {hint}; set postgres.table = \
        {hint:?}"
    )]
    Elsewhere { table: String, search_path: String, hint: String },
    #[error(
        "the role has no USAGE on schema {schema}, which holds {table}; run GRANT USAGE ON SCHEMA {schema} TO the role"
    )]
    NoUsage { table: String, schema: String },
    #[error(
        "{table} is {what}, and only the rows of a table or partitioned table are in the WAL; name the table behind it"
    )]
    NotATable { table: String, what: &'static str },
    #[error("table {table} is {what}, so its rows are not in the WAL; run ALTER TABLE {table} SET LOGGED")]
    NotInWal { table: String, what: &'static str },
    #[error("partitions of {table} are not in the WAL: {}; run ALTER TABLE ... SET LOGGED for \
        each", partitions.join(", "))]
    PartitionsNotInWal { table: String, partitions: Vec<String> },
}

impl TableProblem {
    /// What was seen, and what to do, apart.
    pub fn parts(&self) -> (String, String) {
        let text = self.to_string();
        match text.split_once("; ") {
            Some((saw, remedy)) => (saw.to_owned(), remedy.to_owned()),
            None => (text, String::new()),
        }
    }
}

/// The table if rows written to it reach the WAL, else why not.
pub fn usable<'a>(wanted: &TableName, found: &'a TableLookup) -> Result<&'a TableFacts, TableProblem> {
    let table = match found {
        TableLookup::Found(table) => table,
        TableLookup::Missing { search_path } => {
            return Err(TableProblem::Missing { table: wanted.to_string(), search_path: search_path.clone() });
        }
        TableLookup::Elsewhere { schemas, search_path } => {
            let first = schemas.iter().find(|hint| hint.usable).or(schemas.first());
            let schema = first.map_or("", |hint| hint.schema.as_str());
            let listed = search_path.split(',').any(|part| part.trim().trim_matches('"') == schema);
            if listed || first.is_some_and(|hint| !hint.usable) {
                return Err(TableProblem::NoUsage { table: wanted.to_string(), schema: quote_ident(schema) });
            }
            let hint = TableName { schema: Some(schema.to_owned()), name: wanted.name.clone() }.to_string();
            return Err(TableProblem::Elsewhere { table: wanted.to_string(), search_path: search_path.clone(), hint });
        }
    };
    let not_a_table = |what| Err(TableProblem::NotATable { table: table.sql(), what });
    match table.kind {
        RelationKind::View => return not_a_table("a view"),
        RelationKind::MaterializedView => return not_a_table("a materialized view"),
        RelationKind::ForeignTable => return not_a_table("a foreign table"),
        RelationKind::Table | RelationKind::Partitioned => {}
    }
    let not_in_wal = |what| Err(TableProblem::NotInWal { table: table.sql(), what });
    match table.persistence {
        Persistence::Unlogged => return not_in_wal("unlogged"),
        Persistence::Temporary => return not_in_wal("temporary"),
        Persistence::Permanent => {}
    }
    if !table.unlogged_partitions.is_empty() {
        let partitions = table.unlogged_partitions.clone();
        return Err(TableProblem::PartitionsNotInWal { table: table.sql(), partitions });
    }
    Ok(table)
}

/// Why the settings do not fit the table.
#[derive(Debug, thiserror::Error)]
pub enum ColumnsError {
    #[error(transparent)]
    Mapping(Box<MappingError>),
    #[error(transparent)]
    Template(#[from] TemplateError),
}

impl From<MappingError> for ColumnsError {
    fn from(error: MappingError) -> Self {
        ColumnsError::Mapping(Box::new(error))
    }
}

/// The columns that the mapping, the topic template and the headers use, in the order of the table.
pub fn mapped_columns(config: &Config, table: &TableFacts) -> Result<Vec<String>, ColumnsError> {
    let relation = table.relation();
    let mapping = Mapping::resolve(&relation, &config.columns, config.preset)?;
    Router::new(config)?.bind(&relation, &mapping)?;
    let mut used: BTreeSet<&str> = BTreeSet::new();
    used.extend(Field::ALL.into_iter().filter_map(|field| mapping.column_name(field)).map(|name| &**name));
    let in_template = config.route.topic.split('{').skip(1).filter_map(|part| part.split('}').next());
    used.extend(in_template.chain(config.headers.columns.values().map(String::as_str)));
    Ok(relation.columns.into_iter().map(|column| column.name).filter(|name| used.contains(name.as_str())).collect())
}

/// What is missing, in the order in which it must be made.
pub fn plan(wanted: &Wanted<'_>, present: &Present<'_>) -> Plan {
    let mut steps = Vec::new();
    let mut notes = Vec::new();
    let table = match (present.table, &wanted.table.schema) {
        (Some(table), _) => table.sql(),
        (None, Some(_)) => wanted.table.to_string(),
        (None, None) => format!("{}.{}", quote_ident(present.current_schema), quote_ident(&wanted.table.name)),
    };
    if let Some(preset) = wanted.create_table {
        let title = format!("table {table}");
        steps.push(match present.table {
            Some(_) => Step::done(StepKind::Table, title),
            None => Step::todo(StepKind::Table, title, fill(table_file(preset), &[("outbox_messages", &table)])),
        });
    }
    let title = format!("schema walpost, version {SCHEMA_VERSION}");
    steps.push(match present.schema_version {
        Some(version) if version >= SCHEMA_VERSION => Step::done(StepKind::Schema, title),
        // What an older version has stays as it is: its statements only add.
        _ => Step::todo(StepKind::Schema, title, statement_of(include_str!("../../sql/002_schema.sql"))),
    });
    publication_steps(wanted, present, &table, &mut steps, &mut notes);
    if let Some(role) = wanted.grants {
        let schema = present.table.map(|table| table.schema.as_str()).or(wanted.table.schema.as_deref());
        let schema = quote_ident(schema.unwrap_or(present.current_schema));
        let role = quote_ident(role);
        let words = [("relay", role.as_str()), ("public", &schema), ("outbox_messages", &table)];
        let sql = fill(include_str!("../../sql/003_grants.sql"), &words);
        steps.push(Step::todo(StepKind::Grants, format!("rights of a relay for role {role}"), sql));
        notes.push(format!(
            "role {role} must also be allowed to replicate, which a superuser grants: ALTER ROLE {role} LOGIN REPLICATION \
            (Amazon RDS: GRANT rds_replication TO {role})"
        ));
    }
    let title = format!("slot {}", wanted.slot);
    steps.push(match present.slot {
        Some(_) => Step::done(StepKind::Slot, title),
        None => Step::todo(StepKind::Slot, title, slot::creation(present.version, wanted.slot)),
    });
    Plan { steps, notes }
}

/// The publication is changed only where rows or mapped columns would not come; what else is odd about it may serve
/// somebody else, and is said.
fn publication_steps(
    wanted: &Wanted<'_>,
    present: &Present<'_>,
    table: &str,
    steps: &mut Vec<Step>,
    notes: &mut Vec<String>,
) {
    let name = quote_ident(wanted.publication);
    let title = format!("publication {name} for table {table}");
    let entry = table_entry(table, wanted.columns.as_deref(), present.version);
    let lock = format!("SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s';\nLOCK TABLE {table} IN SHARE MODE;\n");
    let Some(publication) = present.publication else {
        let words = [("walpost", name.as_str()), ("outbox_messages", &entry)];
        let create = fill(include_str!("../../sql/010_publication.sql"), &words);
        steps.push(match present.slot {
            None => Step::todo(StepKind::Publication, title, create),
            // A slot reads already: the rows of transactions that are open now would never be decoded.
            Some(_) => Step::todo(StepKind::Publication, title, lock + &create).in_transaction(),
        });
        return;
    };
    let missing: Vec<&str> = wanted.columns.as_deref().map_or(Vec::new(), |columns| publication.without(columns));
    if !publication.covers() {
        let sql = format!("{lock}ALTER PUBLICATION {name} ADD TABLE {entry};");
        steps.push(Step::todo(StepKind::Publication, title, sql).in_transaction());
    } else if publication.in_itself && !missing.is_empty() {
        let title = format!("columns {} of {table} in publication {name}", missing.join(", "));
        // A filter goes with the entry that is dropped: without it, rows would come that somebody keeps away, such as those
        // of other shards.
        let filter = publication.row_filter().map(|filter| format!(" WHERE ({filter})")).unwrap_or_default();
        let sql = format!(
            "{lock}ALTER PUBLICATION {name} DROP TABLE {table};\nALTER PUBLICATION {name} ADD TABLE {entry}{filter};"
        );
        steps.push(Step::todo(StepKind::Publication, title, sql).in_transaction());
    } else {
        steps.push(Step::done(StepKind::Publication, title));
    }
    if !publication.inserts {
        let mut operations = publication.surplus_operations();
        operations.insert(0, "insert");
        let sql = format!("{lock}ALTER PUBLICATION {name} SET (publish = '{}');", operations.join(", "));
        let title = format!("inserts in publication {name}");
        steps.push(Step::todo(StepKind::Publication, title, sql).in_transaction());
    }
    let mut note = |text: String| notes.push(text);
    let surplus = publication.surplus_operations();
    if !surplus.is_empty() {
        note(format!(
            "publication {name} also publishes {}, which walpost does not relay; if nobody else reads it: {}",
            surplus.join(", "),
            altered_by_hand(&format!("ALTER PUBLICATION {name} SET (publish = 'insert')"))
        ));
    }
    if let Some(filter) = publication.row_filter() {
        note(format!("publication {name} leaves out every row for which {filter} is not true"));
    }
}

/// The table as a publication lists it: on 15+ with the columns that are used, so that nothing else is printed and
/// sent.
fn table_entry(table: &str, columns: Option<&[String]>, version: u32) -> String {
    match columns {
        Some(columns) if version >= COLUMN_LISTS && !columns.is_empty() => {
            let columns: Vec<String> = columns.iter().map(|column| quote_ident(column)).collect();
            format!("{table} ({})", columns.join(", "))
        }
        _ => table.to_owned(),
    }
}

fn table_file(preset: Preset) -> &'static str {
    match preset {
        Preset::Walpost => include_str!("../../sql/001_outbox_table.sql"),
        Preset::Laravel => include_str!("../../sql/001_outbox_table_laravel.sql"),
        Preset::LaravelTopic => include_str!("../../sql/001_outbox_table_laravel_topic.sql"),
        Preset::Debezium => include_str!("../../sql/001_outbox_table_debezium.sql"),
    }
}

/// The table that a preset would make, as far as its columns' names go.
pub fn preset_table(preset: Preset) -> TableFacts {
    let statement = statement_of(table_file(preset));
    let definitions = statement.lines().filter_map(|line| line.strip_prefix("    "));
    let names = definitions.filter_map(|line| line.split_whitespace().next());
    let columns = names.map(|name| ColumnFacts {
        name: name.to_owned(),
        type_oid: 0,
        type_name: String::new(),
        not_null: false,
        identity: false,
        generated: Generated::No,
        key: false,
    });
    TableFacts {
        oid: 0,
        schema: String::new(),
        name: "outbox_messages".to_owned(),
        owner: String::new(),
        kind: RelationKind::Table,
        persistence: Persistence::Permanent,
        replica_identity: "d".to_owned(),
        row_security: false,
        estimated_rows: -1,
        has_primary_key: true,
        ancestors: Vec::new(),
        unlogged_partitions: Vec::new(),
        children: Vec::new(),
        columns: columns.collect(),
    }
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
