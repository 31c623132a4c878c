//! Messages that cannot be sent as they are are *parked*: set aside in `walpost.parked_messages`, and what comes later for
//! the same topic and key waits behind them, so that the order within a key holds. Pure: what is written and read is done
//! by `postgres::parked`, when by the relay's loop.
//!
//! ```text
//!   refused, unroutable ──▶ parked ──retry──▶ retry ──▶ published, in order, with all that waits behind it
//!                             │ ▲                │
//!                          discard └── refused ──┘        a row of the same topic and key ──▶ waiting
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::lsn::Lsn;
use crate::router::Header;
use crate::source::KeptText;

pub mod reference;

use reference::{KEPT_BYTES_MAX, Lookup};

/// What is kept in order: one key of one topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    pub topic: Arc<str>,
    pub key: Bytes,
}

impl Unit {
    /// None without a key: such messages have no order among each other.
    pub fn of(topic: &Arc<str>, key: Option<&Bytes>) -> Option<Unit> {
        let key = key.filter(|key| !key.is_empty())?;
        Some(Unit { topic: topic.clone(), key: key.clone() })
    }
}

/// Where a row stands in one history of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    pub commit_lsn: Lsn,
    pub ordinal: u32,
}

/// Why a message is set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its own fault; waits for a person.
    Parked { reason: String, error: String },
    /// Waits behind another one of its topic and key.
    Waiting,
}

/// A message that is to be set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    pub position: Position,
    /// None where the row has none that can be read.
    pub message_id: Option<String>,
    /// None where none could be told.
    pub topic: Option<Arc<str>>,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    pub headers: Vec<Header>,
    /// As JSON: the row's columns where no record could be made of them, or the [`mod@reference`] to the value.
    pub row: Option<String>,
    pub standing: Standing,
}

impl Aside {
    pub fn unit(&self) -> Option<Unit> {
        Unit::of(self.topic.as_ref()?, self.key.as_ref())
    }

    /// Leaves a value that is too large to be kept where it is, in the outbox: where `lookup` and the message's id tell how
    /// it is found again.
    pub fn by_reference(mut self, lookup: Option<&Lookup>) -> Aside {
        if self.row.is_none()
            && let (Some(value), Some(id), Some(lookup)) = (&self.value, &self.message_id, lookup)
            && value.len() > KEPT_BYTES_MAX
            && let Some(reference) = lookup.payload(id, value.len())
        {
            self.row = Some(reference::to_json(&reference).to_string());
            self.value = None;
        }
        self
    }

    /// What it counts against `parked.max_bytes`.
    pub fn bytes(&self) -> u64 {
        let value = self.value.as_ref().map_or(0, Bytes::len);
        (value + self.row.as_ref().map_or(0, String::len)) as u64
    }
}

/// What a record's value counts against `parked.max_bytes`: nothing where it stays in the outbox.
pub fn kept_bytes(value: Option<&Bytes>) -> u64 {
    value.map(Bytes::len).filter(|bytes| *bytes <= KEPT_BYTES_MAX).unwrap_or(0) as u64
}

/// The headers of a parked message as JSON: `[[name, value], ...]`, because names may repeat and their order counts.
pub fn headers_to_json(headers: &[Header]) -> String {
    let pairs: Vec<(&str, KeptText)> =
        headers.iter().map(|header| (&*header.name, KeptText::of(header.value.as_deref()))).collect();
    serde_json::json!(pairs).to_string()
}

/// The reverse of [`headers_to_json`]; None for any other text.
pub fn headers_from_json(json: &str) -> Option<Vec<Header>> {
    let pairs: Vec<(String, KeptText)> = serde_json::from_str(json).ok()?;
    let header = |(name, value): (String, KeptText)| Some(Header { name: name.into(), value: value.bytes()? });
    pairs.into_iter().map(header).collect()
}

/// Which topics and keys have messages set aside, and how much that is.
#[derive(Debug, Default)]
pub struct Queues {
    /// With the position of the first message; None where that lies before all that may come.
    heads: HashMap<Unit, Option<Position>>,
    messages: u64,
    bytes: u64,
}

/// `parked.max_rows` and `parked.max_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub messages: u64,
    pub bytes: u64,
}

impl Queues {
    /// As found in the table.
    pub fn new(heads: impl IntoIterator<Item = (Unit, Option<Position>)>, messages: u64, bytes: u64) -> Queues {
        Queues { heads: heads.into_iter().collect(), messages, bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.messages == 0 && self.heads.is_empty()
    }

    /// Whether a row of this topic and key must wait. One that stands *before* the first message of the queue comes a
    /// second time, or was under way when that one was refused: it goes on, or it would be published after its followers.
    /// The first message itself, when it comes again, is there already: to wait changes nothing.
    pub fn holds(&self, topic: &Arc<str>, key: Option<&Bytes>, position: Position) -> bool {
        if self.heads.is_empty() {
            return false;
        }
        let Some(unit) = Unit::of(topic, key) else { return false };
        self.heads.get(&unit).is_some_and(|head| head.is_none_or(|head| position >= head))
    }

    pub fn has(&self, unit: &Unit) -> bool {
        self.heads.contains_key(unit)
    }

    /// A message of the unit is about to be set aside: everything behind it waits from now on.
    pub fn hold(&mut self, unit: Unit, position: Position) {
        if let Some(head) = self.heads.get_mut(&unit) {
            *head = head.map(|head| head.min(position));
            return;
        }
        // The key may be a slice of the frame that its row came in, which could be huge, and stays for as long as the queue.
        let unit = Unit { topic: unit.topic, key: Bytes::copy_from_slice(&unit.key) };
        self.heads.insert(unit, Some(position));
    }

    /// The table has no message of the unit any more: rows flow again.
    pub fn open(&mut self, unit: &Unit) {
        self.heads.remove(unit);
    }

    /// The table has grown.
    pub fn added(&mut self, messages: u64, bytes: u64) {
        self.messages += messages;
        self.bytes += bytes;
    }

    /// The table holds so much.
    pub fn resize(&mut self, messages: u64, bytes: u64) {
        (self.messages, self.bytes) = (messages, bytes);
    }

    /// The table has shrunk.
    pub fn removed(&mut self, messages: u64, bytes: u64) {
        self.messages = self.messages.saturating_sub(messages);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Whether there is room for so many messages more, of so many bytes together.
    pub fn has_room(&self, limits: Limits, messages: u64, bytes: u64) -> bool {
        self.messages + messages <= limits.messages && self.bytes + bytes <= limits.bytes
    }

    pub fn messages(&self) -> u64 {
        self.messages
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn units(&self) -> usize {
        self.heads.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(key: &'static str) -> Unit {
        Unit { topic: "orders".into(), key: Bytes::from_static(key.as_bytes()) }
    }

    fn at(commit_lsn: u64, ordinal: u32) -> Position {
        Position { commit_lsn: Lsn(commit_lsn), ordinal }
    }

    fn holds(queues: &Queues, key: &'static str, position: Position) -> bool {
        queues.holds(&"orders".into(), Some(&Bytes::from_static(key.as_bytes())), position)
    }

    #[test]
    fn what_comes_later_for_a_key_waits_and_other_keys_go_on() {
        let mut queues = Queues::default();
        queues.hold(unit("a"), at(100, 3));
        assert!(holds(&queues, "a", at(100, 4)) && holds(&queues, "a", at(200, 0)));
        assert!(!holds(&queues, "b", at(200, 0)));
        assert!(!queues.holds(&"payments".into(), Some(&Bytes::from_static(b"a")), at(200, 0)));
        queues.open(&unit("a"));
        assert!(!holds(&queues, "a", at(200, 0)));
    }

    #[test]
    fn a_queue_does_not_keep_the_frame_of_its_row() {
        let frame = Bytes::from(vec![b'x'; 1_000]);
        let mut queues = Queues::default();
        for ordinal in 0..2 {
            queues.hold(Unit { topic: "orders".into(), key: frame.slice(0..3) }, at(100, ordinal));
        }
        assert!(frame.is_unique());
        assert_eq!(queues.units(), 1);
    }

    #[test]
    fn a_row_from_before_the_parked_one_goes_on() {
        let mut queues = Queues::default();
        queues.hold(unit("a"), at(100, 3));
        assert!(!holds(&queues, "a", at(100, 2)) && !holds(&queues, "a", at(99, 7)));
        assert!(holds(&queues, "a", at(100, 3)), "the parked one itself");
        queues.hold(unit("a"), at(90, 0));
        assert!(holds(&queues, "a", at(99, 7)), "the queue has an earlier head now");
        queues.hold(unit("a"), at(200, 0));
        assert!(holds(&queues, "a", at(99, 7)), "a later message does not move the head");
    }

    #[test]
    fn a_queue_of_another_servers_log_holds_everything() {
        let queues = Queues::new([(unit("a"), None)], 1, 10);
        assert!(holds(&queues, "a", at(1, 0)));
    }

    #[test]
    fn without_a_key_nothing_waits() {
        assert_eq!(Unit::of(&"orders".into(), None), None);
        assert_eq!(Unit::of(&"orders".into(), Some(&Bytes::new())), None);
        let mut queues = Queues::default();
        queues.hold(unit("a"), at(1, 0));
        assert!(!queues.holds(&"orders".into(), None, at(2, 0)));
    }

    #[test]
    fn there_is_room_up_to_both_limits() {
        let mut queues = Queues::default();
        let limits = Limits { messages: 3, bytes: 100 };
        queues.added(1, 60);
        assert!(queues.has_room(limits, 1, 40) && !queues.has_room(limits, 1, 41));
        assert!(queues.has_room(limits, 2, 0) && !queues.has_room(limits, 3, 0));
        queues.removed(1, 60);
        assert!(queues.is_empty());
    }

    #[test]
    fn headers_survive_the_table() {
        let header = |name: &str, value: Option<&'static [u8]>| Header {
            name: name.into(),
            value: value.map(Bytes::from_static),
        };
        let headers = vec![
            header("id", Some(b"1")),
            header("x", None),
            header("x", Some("\"ä\"".as_bytes())),
            header("", Some(b"")),
            header("ascii", Some(b"\xff")),
        ];
        assert_eq!(headers_from_json(&headers_to_json(&headers)), Some(headers));
        for odd in ["", "{}", "[[1, 2]]", "[[\"a\"]]", "null"] {
            assert_eq!(headers_from_json(odd), None, "{odd}");
        }
    }
}
