//! Rows of the table that cannot be sent are parked, and later ones of their topic and key behind them, as the stream does
//! it. Their place is behind everything that the log has told so far and before everything that it will tell: one below the
//! new slot's consistent point, in the order in which the table gave them.

use bytes::Bytes;

use super::PublishError;
use super::prepare::Preparer;
use crate::config::Config;
use crate::lsn::Lsn;
use crate::parking::{Aside, Limits, Position, Standing, Unit};
use crate::postgres::Client;
use crate::postgres::parked::Lot;
use crate::router::Record;

/// What is written with one statement at most.
const ORDER_MESSAGES: usize = 500;
const ORDER_BYTES: u64 = 8 << 20;

/// Where rows are parked.
pub struct Asides<'a> {
    client: &'a Client,
    lot: Lot,
    limits: Limits,
    next: Position,
    outgoing: Vec<Aside>,
    outgoing_bytes: u64,
}

impl<'a> Asides<'a> {
    /// `consistent_point` is the new slot's. `client` must wait for its commits.
    pub fn new(client: &'a Client, config: &Config, lot: Lot, consistent_point: Lsn) -> Asides<'a> {
        let commit_lsn = Lsn(consistent_point.0.saturating_sub(1));
        Asides {
            client,
            lot,
            limits: Limits { messages: config.parked.max_rows, bytes: config.parked.max_bytes },
            next: Position { commit_lsn, ordinal: 0 },
            outgoing: Vec::new(),
            outgoing_bytes: 0,
        }
    }

    /// Sets a record aside.
    pub(super) fn record(
        &mut self,
        preparer: &mut Preparer,
        config: &Config,
        record: Record,
        standing: Standing,
    ) -> Result<(), PublishError> {
        let message_id = record.header(&config.headers.id);
        let message_id = message_id.map(|value| String::from_utf8_lossy(value).into_owned());
        let Record { topic, key, value, headers, .. } = record;
        let aside =
            Aside { position: self.next, message_id, topic: Some(topic), key, value, headers, row: None, standing };
        let aside = aside.by_reference(preparer.lookup.as_ref());
        self.put(preparer, aside)
    }

    /// Sets a row aside of which no record can be made; `aside` says all of it but its position.
    pub(super) fn put(&mut self, preparer: &mut Preparer, mut aside: Aside) -> Result<(), PublishError> {
        aside.position = self.next;
        let (messages, bytes) = (self.outgoing.len() as u64 + 1, self.outgoing_bytes + aside.bytes());
        let has_room =
            preparer.parked.as_ref().is_some_and(|parked| parked.queues.has_room(self.limits, messages, bytes));
        if !has_room {
            let Limits { messages, bytes } = self.limits;
            return Err(PublishError::Full { messages, bytes });
        }
        if let Standing::Parked { reason, error } = &aside.standing {
            tracing::error!(
                reason,
                topic = aside.topic.as_deref(),
                message_id = aside.message_id.as_deref(),
                "parked a row of the table that cannot be sent as it is; later ones of its topic and key wait behind it (see \
                 walpost parked list): {error}"
            );
        }
        preparer.hold(aside.unit());
        self.next.ordinal = self.next.ordinal.saturating_add(1);
        self.outgoing_bytes = bytes;
        self.outgoing.push(aside);
        Ok(())
    }

    /// It is time to write.
    pub(super) fn is_due(&self) -> bool {
        self.outgoing.len() >= ORDER_MESSAGES || self.outgoing_bytes >= ORDER_BYTES
    }

    /// Commits all that was set aside.
    pub(super) async fn write(&mut self, preparer: &mut Preparer) -> Result<(), PublishError> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        let (added, _) = self.lot.park(self.client, &self.outgoing).await?;
        if let Some(parked) = &mut preparer.parked {
            parked.queues.added(added.messages, added.bytes);
        }
        self.outgoing.clear();
        self.outgoing_bytes = 0;
        Ok(())
    }
}

pub(super) fn is_of(record: &Record, unit: &Unit) -> bool {
    record.topic == unit.topic && record.key.as_ref() == Some(&unit.key)
}

/// A row as it is parked where it has no record.
pub(super) fn of_row(
    topic: Option<std::sync::Arc<str>>,
    key: Option<Bytes>,
    message_id: Option<String>,
    row: String,
    standing: Standing,
) -> Aside {
    let position = Position::default();
    Aside { position, message_id, topic, key, value: None, headers: Vec::new(), row: Some(row), standing }
}
