//! An [`OutboxMessage`] becomes a [`Record`]: topic, key, value, headers and the hash that chooses the partition.
//! Pure: no I/O, and no input makes it panic.
//!
//! ```text
//!  template   route.topic, taken apart once             topic     which names Kafka allows
//!  headers    the row's JSON object → Kafka headers     token     where a record stands in the stream
//!  partition  the hashes of Java, librdkafka, Sarama    intern    one copy of each name, bounded
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::config::{Config, Headers, OnNullKey, OnNullPayload, Partitioner};
use crate::outbox::{
    Field, Mapping, MappingError, OutboxMessage, Poison, PoisonReason, Shown, column_bytes, column_names, nearest_name,
    table_name,
};
use crate::source::{Relation, Row};

#[cfg(test)]
mod fuzz_tests;
mod headers;
mod intern;
pub mod partition;
#[cfg(test)]
mod recorded_tests;
mod template;
#[cfg(test)]
mod tests;
mod token;
mod topic;

use intern::Names;
use template::{Part, Template};

pub use template::TemplateError;
pub use token::{ParseTokenError, Token};
pub use topic::{BadTopicName, check as check_topic_name};

/// What goes to Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub topic: Arc<str>,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    /// In the order in which they are written; a name may repeat.
    pub headers: Vec<Header>,
    /// The partition is `partition_hash % partitions`, once the topic's count is known.
    pub partition_hash: u32,
}

impl Record {
    /// For log lines about a record: topic, key and the headers that walpost or the row gave it, shortened.
    pub fn describe(&self) -> String {
        use crate::outbox::Shown;
        let key = self.key.as_ref().map_or_else(|| "NULL".to_owned(), |key| Shown(key).to_string());
        let headers = self.headers.iter().filter_map(|header| Some((&header.name, header.value.as_ref()?)));
        let headers: Vec<String> = headers.take(3).map(|(name, value)| format!("{name} {}", Shown(value))).collect();
        let bytes = self.value.as_ref().map_or(0, Bytes::len);
        format!("key {key}, topic {:?}, {}, a payload of {bytes} bytes", &*self.topic, headers.join(", "))
    }

    /// The first header of this name that has a value.
    pub fn header(&self, name: &str) -> Option<&Bytes> {
        self.headers.iter().find(|header| &*header.name == name)?.value.as_ref()
    }

    /// The whole record as a JSON object on one line, as [`crate::outbox::row_json`].
    pub fn to_json(&self) -> String {
        let headers = self.headers.iter().map(|header| (&*header.name, header.value.as_deref()));
        let fixed =
            [("topic", Some(self.topic.as_bytes())), ("key", self.key.as_deref()), ("value", self.value.as_deref())];
        crate::outbox::object_json(fixed.into_iter().chain(headers))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub name: Arc<str>,
    pub value: Option<Bytes>,
}

/// What becomes of a message that is no poison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routed {
    Publish(Record),
    /// Not published, because the settings say so; counted by its reason.
    Skip(SkipReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SkipReason {
    /// `on_null_payload = "skip"`.
    NullPayload,
}

impl SkipReason {
    /// The label of the metric.
    pub fn as_str(self) -> &'static str {
        match self {
            SkipReason::NullPayload => "null_payload",
        }
    }
}

/// Makes records. One for the life of the relay; each Relation is bound before its first row is routed.
#[derive(Debug)]
pub struct Router {
    template: Template,
    partitioner: Partitioner,
    on_null_payload: OnNullPayload,
    on_null_key: OnNullKey,
    own: OwnHeaders,
    /// By the relation's OID.
    bindings: HashMap<u32, Binding>,
    topics: Names,
    header_names: Names,
    /// Where a topic's name is put together; kept for its capacity.
    scratch: Vec<u8>,
}

/// The headers that walpost writes; None: switched off.
#[derive(Debug)]
struct OwnHeaders {
    id: Option<Arc<str>>,
    event_type: Option<Arc<str>>,
    token: Option<Arc<str>>,
    created_at: Option<Arc<str>>,
    /// Header name, column name.
    columns: Vec<(Arc<str>, String)>,
    /// All of the above: no row may use them.
    reserved: Vec<Arc<str>>,
}

/// What the settings mean for one relation.
#[derive(Debug)]
struct Binding {
    topic: Vec<Source>,
    /// One for each of [`OwnHeaders::columns`].
    columns: Vec<usize>,
    key_column: Arc<str>,
    payload_column: Arc<str>,
    headers_column: Arc<str>,
}

/// Where a part of the topic's name comes from.
#[derive(Debug)]
enum Source {
    Literal(String),
    Column(usize, Arc<str>),
    /// A field for which the table has no column. Only where a topic column may name the topic instead.
    Absent(&'static str),
}

impl Router {
    /// Takes the topic template apart.
    pub fn new(config: &Config) -> Result<Router, TemplateError> {
        Ok(Router {
            template: Template::parse(&config.route.topic)?,
            partitioner: config.route.partitioner,
            on_null_payload: config.on_null_payload,
            on_null_key: config.on_null_key,
            own: OwnHeaders::new(&config.headers),
            bindings: HashMap::new(),
            topics: Names::default(),
            header_names: Names::default(),
            scratch: Vec::new(),
        })
    }

    /// Finds the columns that the topic template and `headers.columns` name. Once per Relation message, and again
    /// when a relation is told anew; rows of other relations are not touched by it.
    pub fn bind(&mut self, relation: &Relation, mapping: &Mapping) -> Result<(), MappingError> {
        // A name is a field's, else a column's: `{aggregate_type}` works for every preset.
        let column = |name: &str| {
            let of_field = Field::by_name(name).and_then(|field| mapping.column(field));
            of_field.or_else(|| relation.columns.iter().position(|column| column.name == name))
        };
        let nearest = |name: &str| {
            let columns = relation.columns.iter().map(|column| column.name.as_str());
            nearest_name(name, columns).map(str::to_owned)
        };
        let topic = self.template.parts().iter().map(|part| match part {
            Part::Literal(text) => Ok(Source::Literal(text.clone())),
            Part::Column(name) => match (column(name), Field::by_name(name)) {
                (Some(index), _) => {
                    let name = relation.columns.get(index).map_or(name.as_str(), |column| &column.name);
                    Ok(Source::Column(index, name.into()))
                }
                (None, Some(field)) if mapping.column(Field::Topic).is_some() => Ok(Source::Absent(field.name())),
                (None, _) => Err(MappingError::Template {
                    template: self.template.to_string(),
                    table: table_name(relation),
                    column: name.clone(),
                    nearest: nearest(name),
                    existing: column_names(relation),
                }),
            },
        });
        let columns = self.own.columns.iter().map(|(header, name)| {
            column(name).ok_or_else(|| MappingError::Header {
                header: header.to_string(),
                table: table_name(relation),
                column: name.clone(),
                nearest: nearest(name),
                existing: column_names(relation),
            })
        });
        let name_of = |field: Field| mapping.column_name(field).cloned().unwrap_or_else(|| field.name().into());
        let binding = Binding {
            topic: topic.collect::<Result<_, _>>()?,
            columns: columns.collect::<Result<_, _>>()?,
            key_column: name_of(Field::AggregateId),
            payload_column: name_of(Field::Payload),
            headers_column: name_of(Field::Headers),
        };
        self.bindings.insert(relation.oid, binding);
        Ok(())
    }

    /// The record of a message. `row` is the row that the message was made of.
    ///
    /// # Panics
    ///
    /// When the row's relation was never bound: that is a fault of the caller, not of the row, and going on would
    /// set aside a row that is sound.
    pub fn route(&mut self, message: &OutboxMessage, row: &Row, token: Token) -> Result<Routed, Poison> {
        if message.payload.is_none() && self.on_null_payload == OnNullPayload::Skip {
            return Ok(Routed::Skip(SkipReason::NullPayload));
        }
        let binding = bound(&self.bindings, row);
        if message.aggregate_id.as_ref().is_none_or(Bytes::is_empty) && self.on_null_key == OnNullKey::Error {
            return Err(null_key(&binding.key_column, message.aggregate_id.is_some()));
        }
        if message.payload.is_none() && self.on_null_payload == OnNullPayload::Error {
            return Err(null_payload(&binding.payload_column));
        }
        let topic = topic_name(binding, &self.template, &mut self.topics, &mut self.scratch, message, row)?;
        let headers = self.own.write(binding, &mut self.header_names, message, row, token)?;
        let partition_hash = self.partition_hash(message.aggregate_id.as_ref(), &message.message_id);
        Ok(Routed::Publish(Record {
            topic,
            key: message.aggregate_id.clone(),
            value: message.payload.clone(),
            headers,
            partition_hash,
        }))
    }

    /// The hash that chooses the partition of a key; without one, of the message's id.
    pub fn partition_hash(&self, key: Option<&Bytes>, message_id: &[u8]) -> u32 {
        match key {
            Some(key) if !key.is_empty() => partition::hash(self.partitioner, key),
            // There is no earlier producer whose placement could be kept, so the partitioner's setting has no say.
            _ => partition::murmur2(message_id),
        }
    }

    /// What is known of a message that has no record: for the dead letters. The topic is empty where none can be told; the
    /// value is the payload, else the whole row.
    pub fn as_it_is(&mut self, row: &Row, message: Option<&OutboxMessage>, token: Token) -> Record {
        let topic = message.and_then(|message| self.topic(message, row).ok()).unwrap_or_else(|| "".into());
        let id = message.map(|message| message.message_id.clone());
        let mut headers = Vec::new();
        if let (Some(name), Some(id)) = (&self.own.id, &id) {
            headers.push(Header { name: name.clone(), value: Some(id.clone()) });
        }
        if let Some(name) = &self.own.token {
            headers.push(Header { name: name.clone(), value: Some(token.to_bytes()) });
        }
        let key = message.and_then(|message| message.aggregate_id.clone());
        let partition_hash = self.partition_hash(key.as_ref(), id.as_deref().unwrap_or_default());
        let payload = message.and_then(|message| message.payload.clone());
        let value = payload.unwrap_or_else(|| Bytes::from(row.to_json()));
        Record { topic, key, value: Some(value), headers, partition_hash }
    }

    /// The topic alone, for what is told about a message that has no record.
    ///
    /// # Panics
    ///
    /// As [`Router::route`].
    pub fn topic(&mut self, message: &OutboxMessage, row: &Row) -> Result<Arc<str>, Poison> {
        let binding = bound(&self.bindings, row);
        topic_name(binding, &self.template, &mut self.topics, &mut self.scratch, message, row)
    }
}

fn bound<'a>(bindings: &'a HashMap<u32, Binding>, row: &Row) -> &'a Binding {
    let binding = bindings.get(&row.relation.oid);
    binding.unwrap_or_else(|| panic!("relation {} has rows to route but was never bound", table_name(&row.relation)))
}

fn topic_name(
    binding: &Binding,
    template: &Template,
    topics: &mut Names,
    scratch: &mut Vec<u8>,
    message: &OutboxMessage,
    row: &Row,
) -> Result<Arc<str>, Poison> {
    let name: &[u8] = match &message.topic {
        Some(topic) => topic,
        None => {
            scratch.clear();
            for source in &binding.topic {
                match source {
                    Source::Literal(text) => scratch.extend_from_slice(text.as_bytes()),
                    Source::Column(index, column) => match column_bytes(row, *index) {
                        Some(value) if !value.is_empty() => scratch.extend_from_slice(value),
                        value => return Err(no_topic_part(template, column, value.is_some())),
                    },
                    Source::Absent(field) => return Err(absent_topic_part(template, field)),
                }
            }
            scratch
        }
    };
    // What is known was checked when it came first.
    let text = std::str::from_utf8(name).ok();
    if let Some(known) = text.and_then(|text| topics.known(text)) {
        return Ok(known);
    }
    match topic::check(name) {
        Ok(text) => Ok(topics.intern(text)),
        Err(why) => Err(Poison::new(
            PoisonReason::BadTopic,
            format!("Kafka allows no topic {}: {why}; mend the row's topic or route.topic", Shown(name)),
        )),
    }
}

impl OwnHeaders {
    fn new(headers: &Headers) -> Self {
        let named = |name: &str| (!name.is_empty()).then(|| Arc::<str>::from(name));
        let id = named(&headers.id);
        let event_type = named(&headers.event_type);
        let token = named(&headers.token);
        let created_at = named(&headers.created_at);
        let columns: Vec<(Arc<str>, String)> =
            headers.columns.iter().map(|(header, column)| (header.as_str().into(), column.clone())).collect();
        let reserved = [&id, &event_type, &token, &created_at].into_iter().flatten().cloned();
        let reserved = reserved.chain(columns.iter().map(|(header, _)| Arc::clone(header))).collect();
        OwnHeaders { id, event_type, token, created_at, columns, reserved }
    }

    fn write(
        &self,
        binding: &Binding,
        names: &mut Names,
        message: &OutboxMessage,
        row: &Row,
        token: Token,
    ) -> Result<Vec<Header>, Poison> {
        // One more than walpost's own usual three: `traceparent`.
        let mut headers = Vec::with_capacity(4 + self.columns.len());
        let mut push = |name: &Option<Arc<str>>, value: Option<Bytes>| {
            if let (Some(name), Some(value)) = (name, value) {
                headers.push(Header { name: Arc::clone(name), value: Some(value) });
            }
        };
        push(&self.id, Some(message.message_id.clone()));
        push(&self.event_type, message.event_type.clone());
        push(&self.token, self.token.is_some().then(|| token.to_bytes()));
        push(&self.created_at, message.created_at.clone());
        for ((name, _), index) in self.columns.iter().zip(&binding.columns) {
            headers.push(Header { name: Arc::clone(name), value: row.text(*index) });
        }
        if let Some(json) = &message.headers {
            headers::append(json, &binding.headers_column, &self.reserved, names, &mut headers)?;
        }
        Ok(headers)
    }
}

fn null_key(column: &str, empty: bool) -> Poison {
    let what = if empty { "empty" } else { "NULL" };
    Poison::new(
        PoisonReason::NullKey,
        format!(
            "column \"{column}\" is {what}, and a record without a key has no place in any order; write a key, or \
             allow it with on_null_key = \"allow\""
        ),
    )
}

fn null_payload(column: &str) -> Poison {
    Poison::new(
        PoisonReason::NullPayload,
        format!(
            "column \"{column}\" is NULL; say what that means with on_null_payload = \"tombstone\" (a record without \
             a value) or \"skip\""
        ),
    )
}

fn no_topic_part(template: &Template, column: &str, empty: bool) -> Poison {
    let what = if empty { "empty" } else { "NULL" };
    Poison::new(
        PoisonReason::BadTopic,
        format!(
            "column \"{column}\" is {what}, but the topic template {template} needs it; write a value, or change \
             route.topic"
        ),
    )
}

fn absent_topic_part(template: &Template, field: &str) -> Poison {
    Poison::new(
        PoisonReason::BadTopic,
        format!(
            "the row's topic is NULL or empty, and the topic template {template} needs {field}, for which the table \
             has no column; write a topic, or change route.topic"
        ),
    )
}
