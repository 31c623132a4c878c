//! Which rows the topics hold already. In every session, when its first record goes to a topic, the tails of the topic's
//! partitions are read back to the confirmed position; what is there is not produced again.
//!
//! A row counts as there only where a record with **its own message id and commit LSN** is, and **the first row that is not
//! there ends skipping for its partition**: rows come in the order of the log, so nothing behind it can be there either.
//! That something larger is there proves nothing: LSNs repeat after a failover or a restore, keys move when partitions are
//! added. So every surprise costs a repeat, never a row.

use std::collections::HashMap;

use super::*;
use crate::lsn::Lsn;
use crate::sink::tail::{OwnNames, Tail, TailAnswer};

/// See the module.
pub(super) struct ReadBack {
    /// None: records are not looked for.
    names: Option<OwnNames>,
    confirmed: Lsn,
    /// The number of the question that is good: an answer may be of an earlier session.
    asked: u64,
    partitions: HashMap<TopicId, HashMap<u32, State>>,
    said: bool,
}

enum State {
    Asked(u64),
    Known(Tail),
    /// Nothing more is there.
    Over,
}

/// What is to be done with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Feed,
    /// Its partition's tail is being read.
    Wait,
    There,
}

impl ReadBack {
    pub(super) fn new(config: &Config) -> ReadBack {
        ReadBack {
            // Where id or token are switched off a record cannot be told from others.
            names: OwnNames::of(&config.headers).ok().filter(|_| config.read_back),
            confirmed: Lsn::INVALID,
            asked: 0,
            partitions: HashMap::new(),
            said: false,
        }
    }

    /// A session begins: what is there now may be more than before.
    pub(super) fn begin(&mut self, confirmed: Lsn) {
        self.confirmed = confirmed;
        self.partitions.clear();
    }

    /// Whether a record for `partition` of the topic's `count` is there already.
    pub(super) fn look(
        &mut self,
        topic: TopicId,
        partition: u32,
        count: u32,
        record: &Record,
        client: &dyn Client,
    ) -> Look {
        let Some(names) = &self.names else { return Look::Feed };
        let Some(partitions) = self.partitions.get_mut(&topic) else {
            self.asked += 1;
            client.read_tails(record.topic.clone(), (0..count).collect(), self.confirmed, self.asked);
            let asked = (0..count).map(|partition| (partition, State::Asked(self.asked)));
            self.partitions.insert(topic, asked.collect());
            return Look::Wait;
        };
        match partitions.get_mut(&partition) {
            // Added since: this session began them.
            None | Some(State::Over) => Look::Feed,
            Some(State::Asked(_)) => Look::Wait,
            Some(state @ State::Known(_)) => {
                let State::Known(tail) = &*state else { return Look::Feed };
                let headers = record.headers.iter();
                let own = names.own(headers.map(|header| (header.name.as_bytes(), header.value.as_deref())));
                // Not published as it was committed: it has no place among the others.
                let Some(own) = own else { return Look::Feed };
                let there = tail.contains(own.message_id, own.commit_lsn) && !planted!(ReadsNothingBack);
                if there || planted!(TakesAnythingForTheRow) {
                    return Look::There;
                }
                *state = State::Over;
                Look::Feed
            }
        }
    }

    /// Records of this partition came back that may have been stored all the same.
    pub(super) fn again(&mut self, topic: TopicId, name: &Arc<str>, partition: u32, client: &dyn Client) {
        if self.names.is_some() {
            self.asked += 1;
            client.read_tails(name.clone(), vec![partition], self.confirmed, self.asked);
            self.partitions.entry(topic).or_default().insert(partition, State::Asked(self.asked));
        }
    }

    pub(super) fn answered(&mut self, topic: TopicId, answer: TailAnswer) {
        let Some(partitions) = self.partitions.get_mut(&topic) else { return };
        let mut found = 0;
        let mut known: HashMap<u32, Tail> = HashMap::new();
        match answer.tails {
            Ok(tails) => known.extend(tails),
            Err(error) => {
                if !std::mem::replace(&mut self.said, true) {
                    tracing::warn!(
                        topic = &*answer.topic,
                        error = error.text(),
                        "topics cannot be read back, so what was published and not yet confirmed when a relay died is published \
                         again: allow READ on the topics, or set read_back = false"
                    );
                }
            }
        }
        for (partition, state) in partitions.iter_mut() {
            if matches!(state, State::Asked(asked) if *asked == answer.asked) {
                *state = match known.remove(partition) {
                    Some(tail) if !tail.is_empty() => {
                        found += tail.len();
                        State::Known(tail)
                    }
                    _ => State::Over,
                };
            }
        }
        if found > 0 {
            tracing::info!(
                topic = &*answer.topic,
                records = found,
                "the topic {:?} holds {found} records from after the confirmed position: they are not published again",
                &*answer.topic
            );
        }
    }
}
