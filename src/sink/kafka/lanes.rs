//! What the sink holds until it may be fed, in the order of its tickets.
//!
//! ```text
//!   lane of topic a   ──▶  its topic is asked for, or its first record is on its way: only a waits
//!   lane of topic b   ──▶
//!   the line          ──▶  came back, or its topic takes nothing: everything behind it waits
//! ```
//!
//! So topics that are open go on while others are being opened. A key's order is its topic's, and within a topic the order
//! of the tickets is kept: a record of a topic that has a lane goes nowhere but behind what is in it. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::router::Record;
use crate::sink::TopicId;

/// A lane is looked at when something was heard of its topic, and this often whatever was heard.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// See the module. Every record is either in the line or in the lane of its topic.
#[derive(Default)]
pub(super) struct Lanes {
    records: BTreeMap<usize, (TopicId, Record)>,
    line: BTreeSet<usize>,
    lanes: HashMap<TopicId, BTreeSet<usize>>,
    /// Lanes that may go on.
    woken: BTreeSet<TopicId>,
    look_at: Option<Instant>,
}

impl Lanes {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn get(&self, ticket: usize) -> Option<&Record> {
        self.records.get(&ticket).map(|(_, record)| record)
    }

    /// In the order of their tickets.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Record)> {
        self.records.iter().map(|(ticket, (_, record))| (*ticket, record))
    }

    /// Whatever is newer waits for this record.
    pub(super) fn put_in_line(&mut self, ticket: usize, topic: TopicId, record: Record) {
        self.remove(ticket);
        self.line.insert(ticket);
        self.records.insert(ticket, (topic, record));
    }

    /// What is newer and of its topic waits for this record.
    pub(super) fn put_in_lane(&mut self, ticket: usize, topic: TopicId, record: Record) {
        self.remove(ticket);
        self.lanes.entry(topic).or_default().insert(ticket);
        self.records.insert(ticket, (topic, record));
    }

    pub(super) fn remove(&mut self, ticket: usize) -> Option<Record> {
        let (topic, record) = self.records.remove(&ticket)?;
        if !self.line.remove(&ticket)
            && let Some(lane) = self.lanes.get_mut(&topic)
        {
            lane.remove(&ticket);
            if lane.is_empty() {
                self.lanes.remove(&topic);
            }
        }
        Some(record)
    }

    pub(super) fn line_is_empty(&self) -> bool {
        self.line.is_empty()
    }

    pub(super) fn first_in_line(&self) -> Option<usize> {
        self.line.first().copied()
    }

    pub(super) fn has_lane(&self, topic: TopicId) -> bool {
        !self.lanes.is_empty() && self.lanes.contains_key(&topic)
    }

    pub(super) fn first_in_lane(&self, topic: TopicId) -> Option<usize> {
        self.lanes.get(&topic)?.first().copied()
    }

    /// Something was heard of the topic: its lane may go on.
    pub(super) fn wake(&mut self, topic: TopicId) {
        if self.has_lane(topic) {
            self.woken.insert(topic);
        }
    }

    /// The topics whose lanes may go on, each once.
    pub(super) fn take_woken(&mut self, now: Instant) -> BTreeSet<TopicId> {
        if self.lanes.is_empty() {
            self.woken.clear();
            return BTreeSet::new();
        }
        if self.look_at.is_none_or(|at| now >= at) {
            self.look_at = Some(now + LOOK_EVERY);
            self.woken.extend(self.lanes.keys());
        }
        std::mem::take(&mut self.woken)
    }

    /// What is in the lane of the topic goes into the line: nobody passes it any more.
    pub(super) fn join_line(&mut self, topic: TopicId) {
        self.line.extend(self.lanes.remove(&topic).unwrap_or_default());
    }

    /// What is in lanes goes into the line.
    pub(super) fn all_join_line(&mut self) {
        for (_, lane) in self.lanes.drain() {
            self.line.extend(lane);
        }
        self.woken.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(number: usize) -> Record {
        let text = |text: String| Some(bytes::Bytes::from(text.into_bytes()));
        Record {
            topic: "t".into(),
            key: text(format!("k{number}")),
            partition_hash: 0,
            value: text(number.to_string()),
            headers: Vec::new(),
        }
    }

    #[test]
    fn a_lane_goes_on_when_its_topic_was_heard_of_and_now_and_then() {
        let (mut lanes, mut now) = (Lanes::default(), Instant::now());
        lanes.put_in_lane(1, TopicId(1), record(1));
        lanes.put_in_lane(2, TopicId(2), record(2));
        assert_eq!(lanes.take_woken(now), BTreeSet::from([TopicId(1), TopicId(2)]));
        assert_eq!(lanes.take_woken(now), BTreeSet::new());
        lanes.wake(TopicId(2));
        lanes.wake(TopicId(3));
        assert_eq!(lanes.take_woken(now), BTreeSet::from([TopicId(2)]));
        now += LOOK_EVERY;
        assert_eq!(lanes.take_woken(now).len(), 2);
    }

    #[test]
    fn what_leaves_a_lane_for_the_line_keeps_its_place() {
        let mut lanes = Lanes::default();
        for ticket in [4, 6, 9] {
            lanes.put_in_lane(ticket, TopicId(1), record(ticket));
        }
        lanes.put_in_line(5, TopicId(2), record(5));
        assert!(lanes.has_lane(TopicId(1)) && !lanes.has_lane(TopicId(2)));
        lanes.join_line(TopicId(1));
        assert!(!lanes.has_lane(TopicId(1)));
        let order: Vec<usize> =
            std::iter::from_fn(|| lanes.first_in_line().and_then(|first| lanes.remove(first).map(|_| first))).collect();
        assert_eq!(order, [4, 5, 6, 9]);
        assert!(lanes.is_empty());
    }

    proptest! {
        /// Whatever is put, moved and taken: each record is in one place, and comes out once.
        #[test]
        fn every_record_is_in_the_line_or_in_a_lane(
            steps in proptest::collection::vec((0..6u8, 0..12usize, 0..3u32), 0..80)
        ) {
            let (mut lanes, mut there) = (Lanes::default(), BTreeSet::new());
            for (step, ticket, topic) in steps {
                // A ticket has one topic.
                let of = TopicId(ticket as u32 % 3);
                match step {
                    0 => { lanes.put_in_line(ticket, of, record(ticket)); there.insert(ticket); }
                    1 | 2 => { lanes.put_in_lane(ticket, of, record(ticket)); there.insert(ticket); }
                    3 => prop_assert_eq!(lanes.remove(ticket).is_some(), there.remove(&ticket)),
                    4 => lanes.join_line(TopicId(topic)),
                    _ => lanes.all_join_line(),
                }
                prop_assert_eq!(lanes.iter().map(|(ticket, _)| ticket).collect::<Vec<_>>(), Vec::from_iter(there.iter().copied()));
                let mut placed: Vec<usize> = lanes.line.iter().copied().collect();
                placed.extend(lanes.lanes.values().flatten());
                placed.sort_unstable();
                prop_assert_eq!(placed, Vec::from_iter(there.iter().copied()));
                prop_assert!(lanes.lanes.values().all(|lane| !lane.is_empty()));
            }
        }
    }
}
