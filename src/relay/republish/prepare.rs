//! A row of the table becomes a record, or waits, or stays where it is; and all of it is counted.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::config::Config;
use crate::outbox::{Field, Mapping, OutboxMessage, Poison};
use crate::parking::reference::Lookup;
use crate::parking::{Position, Queues, Unit};
use crate::postgres::schema::ColumnsError;
use crate::router::{Origin, Record, Routed, Router};
use crate::source::table::TableRow;
use crate::source::{Relation, Row};

/// Topics that are counted by name.
const TOPICS_MAX: usize = 1_000;
/// Stands for the others.
const OTHER_TOPICS: &str = "(other topics)";

/// What was read, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Became records, and Kafka has them once all is published.
    pub rows: u64,
    /// Left out, because the settings say so.
    pub skipped: u64,
    /// Left where they are, in `walpost.parked_messages`.
    pub parked: u64,
    /// Wait there behind a parked message of their topic and key.
    pub waiting: u64,
    /// Cannot be published as they are, and are parked now, or went to the dead letters.
    pub set_aside: u64,
    /// Of the rows, those that a polling relay has marked as published.
    pub marked: u64,
    /// The `id` (or message id) of the first and the last of the rows, in the order in which they were read.
    pub first_id: Option<String>,
    pub last_id: Option<String>,
    pub topics: BTreeMap<Arc<str>, u64>,
}

impl Tally {
    fn topic(&mut self, topic: &Arc<str>) -> &mut u64 {
        let known = self.topics.contains_key(topic) || self.topics.len() < TOPICS_MAX;
        self.topics.entry(if known { topic.clone() } else { OTHER_TOPICS.into() }).or_default()
    }

    /// A record was not published after all.
    pub(super) fn withdraw(&mut self, topic: &Arc<str>) {
        self.rows = self.rows.saturating_sub(1);
        let count = self.topic(topic);
        *count = count.saturating_sub(1);
    }
}

/// What is parked for the slot.
#[derive(Debug, Default)]
pub struct Parked {
    pub message_ids: HashSet<String>,
    pub queues: Queues,
}

/// What becomes of a row.
#[derive(Debug)]
pub enum Prepared {
    Send(Record),
    /// A message of its topic and key is parked: it waits behind that one.
    Wait(Record),
    /// It is parked already, or the settings leave it out.
    Left,
}

/// A row that can never be sent as it is.
#[derive(Debug, thiserror::Error)]
#[error("a row cannot be published: {described}: {poison}")]
pub struct Unsendable {
    pub described: String,
    pub poison: Poison,
    /// None where its fields cannot be read.
    pub message: Option<Box<OutboxMessage>>,
}

/// Makes the records of rows, and keeps the tally.
pub struct Preparer {
    pub(super) router: Router,
    mapping: Mapping,
    /// Where a value is found again that is too large to be parked.
    pub(super) lookup: Option<Lookup>,
    pub(super) origin: Origin,
    id_column: Option<usize>,
    /// None: nothing can be parked.
    pub(super) parked: Option<Parked>,
    pub tally: Tally,
}

impl Preparer {
    pub fn new(
        config: &Config,
        relation: &Arc<Relation>,
        origin: Origin,
        parked: Option<Parked>,
    ) -> Result<Preparer, ColumnsError> {
        let mapping = Mapping::resolve(relation, &config.columns, config.preset)?;
        let mut router = Router::new(config)?;
        router.bind(relation, &mapping)?;
        let id_column = mapping.column(Field::Id);
        let lookup = Lookup::of(relation, &mapping);
        Ok(Preparer { router, mapping, lookup, origin, id_column, parked, tally: Tally::default() })
    }

    /// What becomes of a row. One that is unsendable is not counted.
    pub fn prepare(&mut self, read: &TableRow) -> Result<Prepared, Unsendable> {
        let row = &read.row;
        let message = match self.mapping.message(row) {
            Ok(message) => message,
            Err(poison) => {
                let described = format!("id {}", self.id(row, b"unknown"));
                return Err(Unsendable { described, poison, message: None });
            }
        };
        if self.is_parked(&message) {
            self.tally.parked += 1;
            return Ok(Prepared::Left);
        }
        let record = match self.router.route_from_table(&message, row, self.origin) {
            Ok(Routed::Publish(record)) => record,
            Ok(Routed::Skip(_)) => {
                self.tally.skipped += 1;
                return Ok(Prepared::Left);
            }
            Err(poison) => {
                let described = message.describe().to_string();
                return Err(Unsendable { described, poison, message: Some(Box::new(message)) });
            }
        };
        if self.must_wait(&record) {
            self.tally.waiting += 1;
            return Ok(Prepared::Wait(record));
        }
        let id = self.id(row, &message.message_id);
        let tally = &mut self.tally;
        tally.rows += 1;
        tally.marked += u64::from(read.marked);
        tally.first_id.get_or_insert_with(|| id.clone());
        tally.last_id = Some(id);
        *tally.topic(&record.topic) += 1;
        Ok(Prepared::Send(record))
    }

    /// A row of the table that is parked is published from there, when its time has come.
    fn is_parked(&self, message: &OutboxMessage) -> bool {
        let id = std::str::from_utf8(&message.message_id).ok();
        self.parked.as_ref().zip(id).is_some_and(|(parked, id)| parked.message_ids.contains(id))
    }

    fn must_wait(&self, record: &Record) -> bool {
        let Some(parked) = self.parked.as_ref() else { return false };
        Unit::of(&record.topic, record.key.as_ref()).is_some_and(|unit| parked.queues.has(&unit))
    }

    /// From here on rows of this topic and key wait.
    pub(super) fn hold(&mut self, unit: Option<Unit>) {
        if let (Some(parked), Some(unit)) = (&mut self.parked, unit) {
            parked.queues.hold(unit, Position::default());
        }
    }

    /// The unit of a row that has no record, as far as it can be told.
    pub(super) fn place(&mut self, row: &Row, message: Option<&OutboxMessage>) -> Option<Arc<str>> {
        message.and_then(|message| self.router.topic(message, row).ok())
    }

    fn id(&self, row: &Row, message_id: &[u8]) -> String {
        let id = self.id_column.and_then(|column| row.text(column));
        String::from_utf8_lossy(id.as_deref().unwrap_or(message_id)).into_owned()
    }
}
