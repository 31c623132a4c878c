//! Which column is which field. Resolved once per Relation message; then a row costs no look-up by name.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{OutboxMessage, Poison, PoisonReason, Shown};
use crate::config::{Columns, Preset};
use crate::source::decoder::BYTEA_OID;
use crate::source::{Relation, Row};

/// What a column means to walpost. Each is a setting `columns.<name>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    Id,
    MessageId,
    AggregateType,
    AggregateId,
    EventType,
    Topic,
    Payload,
    Headers,
    CreatedAt,
    AvailableAt,
}

impl Field {
    pub const ALL: [Field; 10] = [
        Field::Id,
        Field::MessageId,
        Field::AggregateType,
        Field::AggregateId,
        Field::EventType,
        Field::Topic,
        Field::Payload,
        Field::Headers,
        Field::CreatedAt,
        Field::AvailableAt,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Field::Id => "id",
            Field::MessageId => "message_id",
            Field::AggregateType => "aggregate_type",
            Field::AggregateId => "aggregate_id",
            Field::EventType => "event_type",
            Field::Topic => "topic",
            Field::Payload => "payload",
            Field::Headers => "headers",
            Field::CreatedAt => "created_at",
            Field::AvailableAt => "available_at",
        }
    }

    pub fn by_name(name: &str) -> Option<Field> {
        Field::ALL.into_iter().find(|field| field.name() == name)
    }

    fn configured(self, columns: &Columns) -> &[String] {
        match self {
            Field::Id => &columns.id,
            Field::MessageId => &columns.message_id,
            Field::AggregateType => &columns.aggregate_type,
            Field::AggregateId => &columns.aggregate_id,
            Field::EventType => &columns.event_type,
            Field::Topic => &columns.topic,
            Field::Payload => &columns.payload,
            Field::Headers => &columns.headers,
            Field::CreatedAt => &columns.created_at,
            Field::AvailableAt => &columns.available_at,
        }
    }
}

/// The names that a preset's table has for a field.
fn preset_names(preset: Preset, field: Field) -> &'static [&'static str] {
    match (preset, field) {
        (Preset::Debezium, Field::Id) => &[],
        (Preset::Debezium, Field::MessageId) => &["id"],
        (Preset::Debezium, Field::AggregateType) => &["aggregatetype"],
        (Preset::Debezium, Field::AggregateId) => &["aggregateid"],
        (Preset::Debezium, Field::EventType) => &["type"],
        (Preset::Debezium, Field::CreatedAt) => &["created_at", "timestamp"],
        (Preset::Laravel, Field::Topic | Field::Headers | Field::AvailableAt) => &[],
        (Preset::LaravelTopic, Field::EventType | Field::Headers) => &[],
        (_, Field::Id) => &["id"],
        (_, Field::MessageId) => &["message_id"],
        (_, Field::AggregateType) => &["aggregate_type"],
        (_, Field::AggregateId) => &["aggregate_id"],
        (_, Field::EventType) => &["event_type"],
        (_, Field::Topic) => &["topic"],
        (_, Field::Payload) => &["payload"],
        (_, Field::Headers) => &["headers"],
        (_, Field::CreatedAt) => &["created_at"],
        (_, Field::AvailableAt) => &["available_at"],
    }
}

/// The preset whose table this is, by its columns alone. `walpost` reads every name that the Laravel ones have, so
/// that a table which has grown away from them is still read whole.
fn recognise(relation: &Relation) -> Preset {
    let has = |name: &str| relation.columns.iter().any(|column| column.name == name);
    if has("aggregateid") || has("aggregatetype") {
        Preset::Debezium
    } else if has("topic") && has("available_at") && !has("event_type") && !has("headers") {
        Preset::LaravelTopic
    } else if has("attempts") && !has("topic") && !has("headers") && !has("available_at") {
        Preset::Laravel
    } else {
        Preset::Walpost
    }
}

/// A column that was found.
#[derive(Clone, Debug)]
struct Found {
    index: usize,
    name: Arc<str>,
    bytea: bool,
}

/// Which column of one relation is which field.
#[derive(Clone, Debug)]
pub struct Mapping {
    preset: Preset,
    found: [Option<Found>; Field::ALL.len()],
}

impl Mapping {
    /// Finds the columns of `relation`: by `columns` where it names some, else by the preset, else by the preset that
    /// the columns themselves tell.
    ///
    /// Whether `aggregate_type` may be absent depends on the topic template: [`crate::router::Router::bind`] checks it.
    pub fn resolve(relation: &Relation, columns: &Columns, preset: Option<Preset>) -> Result<Mapping, MappingError> {
        let preset = preset.unwrap_or_else(|| recognise(relation));
        let mut found = [const { None }; Field::ALL.len()];
        let mut missing = Vec::new();
        for (field, slot) in Field::ALL.into_iter().zip(&mut found) {
            let configured = field.configured(columns);
            let names: Vec<&str> = match configured {
                [] => preset_names(preset, field).to_vec(),
                names => names.iter().map(String::as_str).collect(),
            };
            *slot = names.iter().find_map(|name| find(relation, name));
            let required = matches!(field, Field::AggregateId | Field::Payload);
            if slot.is_none() && (required || !configured.is_empty()) {
                missing.push((field, names));
            }
        }
        let mapping = Mapping { preset, found };
        if mapping.found(Field::MessageId).or(mapping.found(Field::Id)).is_none()
            && missing.iter().all(|(field, _)| !matches!(field, Field::MessageId | Field::Id))
        {
            missing.push((Field::MessageId, vec!["message_id", "id"]));
        }
        if missing.is_empty() {
            return Ok(mapping);
        }
        // A column that already serves is no help for another field.
        let free: Vec<&str> = (relation.columns.iter().enumerate())
            .filter(|(index, _)| mapping.found.iter().flatten().all(|found| found.index != *index))
            .map(|(_, column)| column.name.as_str())
            .collect();
        let missing = missing.into_iter().map(|(field, names)| MissingColumn {
            field,
            nearest: names.iter().find_map(|name| nearest_name(name, free.iter().copied())).map(str::to_owned),
            looked_for: names.into_iter().map(str::to_owned).collect(),
        });
        Err(MappingError::Missing {
            table: table_name(relation),
            missing: missing.collect(),
            existing: column_names(relation),
        })
    }

    /// The preset that was asked for, or the one that the columns told.
    pub fn preset(&self) -> Preset {
        self.preset
    }

    /// Where a field's column stands in the relation; None where the table has none.
    pub fn column(&self, field: Field) -> Option<usize> {
        self.found(field).map(|found| found.index)
    }

    /// What a field's column is called; None where the table has none.
    pub fn column_name(&self, field: Field) -> Option<&Arc<str>> {
        self.found(field).map(|found| &found.name)
    }

    /// The row by the meaning of its columns.
    pub fn message(&self, row: &Row) -> Result<OutboxMessage, Poison> {
        let text = |field| self.found(field).and_then(|found: &Found| row.text(found.index));
        let Some(message_id) = text(Field::MessageId).or_else(|| text(Field::Id)) else {
            return Err(self.no_message_id());
        };
        Ok(OutboxMessage {
            message_id,
            aggregate_type: text(Field::AggregateType),
            aggregate_id: self.raw(row, Field::AggregateId, PoisonReason::BadKey)?,
            event_type: text(Field::EventType),
            topic: text(Field::Topic).filter(|topic| !topic.is_empty()),
            payload: self.raw(row, Field::Payload, PoisonReason::BadPayload)?,
            headers: text(Field::Headers),
            created_at: text(Field::CreatedAt),
            available_at: text(Field::AvailableAt),
        })
    }

    fn found(&self, field: Field) -> Option<&Found> {
        self.found.get(field as usize)?.as_ref()
    }

    /// The bytes of a `bytea`, which the server prints as hex; anything else as it is printed.
    fn raw(&self, row: &Row, field: Field, reason: PoisonReason) -> Result<Option<Bytes>, Poison> {
        let Some(found) = self.found(field) else { return Ok(None) };
        let Some(text) = row.text(found.index) else { return Ok(None) };
        if !found.bytea {
            return Ok(Some(text));
        }
        match bytes_of_hex(&text) {
            Some(bytes) => Ok(Some(bytes)),
            None => Err(Poison::new(
                reason,
                format!(
                    "column \"{}\" is a bytea, but its text {} is not hexadecimal after \\x; the replication \
                     connection must have bytea_output = hex, which walpost asks for when it connects",
                    found.name,
                    Shown(&text)
                ),
            )),
        }
    }

    fn no_message_id(&self) -> Poison {
        let names = [Field::MessageId, Field::Id].into_iter().filter_map(|field| self.column_name(field));
        let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
        let (columns, verb) = match names.as_slice() {
            [one] => (format!("column {one}"), "is"),
            all => (format!("columns {}", all.join(" and ")), "are"),
        };
        Poison::new(
            PoisonReason::NoMessageId,
            format!(
                "{columns} {verb} NULL, so the message has no id by which a repeat could be recognised; give the \
                 column a default, such as gen_random_uuid()"
            ),
        )
    }
}

fn find(relation: &Relation, name: &str) -> Option<Found> {
    let (index, column) = relation.columns.iter().enumerate().find(|(_, column)| column.name == name)?;
    Some(Found { index, name: column.name.as_str().into(), bytea: column.type_oid == BYTEA_OID })
}

/// `\x` and pairs of hexadecimal digits.
fn bytes_of_hex(text: &[u8]) -> Option<Bytes> {
    hex::decode(text.strip_prefix(b"\\x")?).ok().map(Bytes::from)
}

/// The name that somebody who wrote `wanted` may have meant; None where none is like it.
pub(crate) fn nearest_name<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| name.to_lowercase().replace(['_', '-', ' '], "");
    let wanted = plain(wanted);
    names
        .map(|name| (strsim::normalized_damerau_levenshtein(&wanted, &plain(name)), name))
        .filter(|(likeness, _)| *likeness >= 0.6)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, name)| name)
}

pub(crate) fn table_name(relation: &Relation) -> String {
    format!("{}.{}", relation.schema, relation.name)
}

pub(crate) fn column_names(relation: &Relation) -> Vec<String> {
    relation.columns.iter().map(|column| column.name.clone()).collect()
}

/// The table does not fit the settings. The text lists what exists and names the setting that mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    #[error(
        "table {table} {}. The columns that its publication sends are {}",
        Sentences(.missing), existing.join(", ")
    )]
    Missing { table: String, missing: Vec<MissingColumn>, existing: Vec<String> },
    #[error(
        "the topic template {template} names \"{column}\", but table {table} has no such column{}. The columns that \
         its publication sends are {}. Mend route.topic (--topic, WALPOST_TOPIC)",
        Nearest(.nearest), existing.join(", ")
    )]
    Template { template: String, table: String, column: String, nearest: Option<String>, existing: Vec<String> },
    #[error(
        "header \"{header}\" is to hold column \"{column}\", but table {table} has no such column{}. The columns that \
         its publication sends are {}. Mend headers.columns (WALPOST_HEADERS_COLUMNS)",
        Nearest(.nearest), existing.join(", ")
    )]
    Header { header: String, table: String, column: String, nearest: Option<String>, existing: Vec<String> },
}

/// A field for which the table has no column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingColumn {
    pub field: Field,
    pub looked_for: Vec<String>,
    pub nearest: Option<String>,
}

struct Sentences<'a>(&'a [MissingColumn]);

impl fmt::Display for Sentences<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, missing) in self.0.iter().enumerate() {
            let name = missing.field.name();
            let names: Vec<String> = missing.looked_for.iter().map(|name| format!("\"{name}\"")).collect();
            write!(
                f,
                "{}has no column for {name}: looked for {}{}; set columns.{name} (WALPOST_COLUMNS_{}) to its name",
                if index == 0 { "" } else { ", and " },
                names.join(" and "),
                Nearest(&missing.nearest),
                name.to_uppercase(),
            )?;
        }
        Ok(())
    }
}

struct Nearest<'a>(&'a Option<String>);

impl fmt::Display for Nearest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, " (is it \"{name}\"?)"),
            None => Ok(()),
        }
    }
}
