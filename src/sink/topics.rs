//! The topics that records go to: asked for once, remembered, asked for again with back-off while they take no records.
//! A partition count changes only while nothing is out, because keys move with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use rdkafka::error::RDKafkaErrorCode;

use crate::sink::client::Client;
use crate::sink::desk::{TopicFacts, TopicProblem};
use crate::sink::librarian::Ask;
use crate::sink::origin::with_origin;
use crate::sink::refusal::{Refusal, classify, route_remedy};
use crate::sink::{TopicId, Waiting};

const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The topics that records have gone to, or want to go to.
pub struct TopicBook {
    list: Vec<Topic>,
    ids: BTreeMap<Arc<str>, TopicId>,
    /// Of the producer: follows the smallest limit of the topics in use.
    pub batch_size: usize,
    /// For remedies.
    brokers: String,
    /// The topic that the next record to be fed waits for.
    blocked: Option<TopicId>,
}

struct Topic {
    name: Arc<str>,
    state: TopicState,
    /// Facts that change how records are spread: taken when nothing is out.
    pending: Option<TopicFacts>,
    /// Why it took no records when they were last offered. Forgotten only when one is delivered: the cluster may list a
    /// topic that it does not let us write to.
    trouble: Option<Trouble>,
}

enum TopicState {
    Unasked,
    Asked,
    Known(TopicFacts),
    /// Not to be asked for again before.
    Bad(Instant),
}

struct Trouble {
    code: RDKafkaErrorCode,
    text: String,
    since: Instant,
    /// Since when the cluster says no for the topic's own sake; None while it is the brokers that do not answer.
    refused_since: Option<Instant>,
    attempts: u32,
}

/// Why a topic takes no record now.
pub enum NotReady {
    /// It is being asked for, and nothing is known to be wrong with it.
    Opens,
    /// For an answer of the cluster, or for what is out.
    Wait,
    /// [`TopicBook::batch_size`] has fallen to the topic's limit: the producer must be made anew first.
    SmallerBatches,
}

impl TopicBook {
    pub fn new(batch_size: usize, brokers: String) -> Self {
        TopicBook { list: Vec::new(), ids: BTreeMap::new(), batch_size, brokers, blocked: None }
    }

    /// See [`crate::sink::origin`].
    pub fn with_origin(&self, error: String) -> String {
        with_origin(error, &self.brokers)
    }

    pub fn name(&self, id: TopicId) -> Arc<str> {
        self.list.get(id.0 as usize).map_or_else(|| "".into(), |topic| topic.name.clone())
    }

    pub fn id(&mut self, name: &Arc<str>) -> TopicId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = TopicId(u32::try_from(self.list.len()).unwrap_or(u32::MAX));
        self.list.push(Topic { name: name.clone(), state: TopicState::Unasked, pending: None, trouble: None });
        self.ids.insert(name.clone(), id);
        id
    }

    /// The topic's limit as it was last seen; None where that is not known.
    pub fn max_message_bytes(&self, name: &Arc<str>) -> Option<usize> {
        match &self.list.get(self.ids.get(name)?.0 as usize)?.state {
            TopicState::Known(facts) => facts.max_message_bytes,
            TopicState::Unasked | TopicState::Asked | TopicState::Bad(_) => None,
        }
    }

    /// Whether a record of this weight may be larger than the topic takes.
    pub fn may_refuse(&self, id: TopicId, weight: usize) -> bool {
        match self.list.get(id.0 as usize).map(|topic| &topic.state) {
            Some(TopicState::Known(facts)) => {
                // A batch has a header of its own.
                facts.max_message_bytes.is_some_and(|limit| weight + 128 > limit)
            }
            _ => false,
        }
    }

    /// The partition count, if records may go to the topic now.
    pub fn ready(&mut self, id: TopicId, out: usize, now: Instant, client: &dyn Client) -> Result<u32, NotReady> {
        let batch_size = self.batch_size;
        let Some(topic) = self.list.get_mut(id.0 as usize) else { return Err(NotReady::Wait) };
        if let Some(pending) = topic.pending.take_if(|_| out == 0) {
            topic.take(pending);
        }
        match &topic.state {
            TopicState::Known(_) if topic.pending.is_some() => Err(NotReady::Wait),
            TopicState::Known(facts) => match facts.max_message_bytes {
                Some(limit) if limit < batch_size => {
                    // Leaves room for what the batch's own header adds.
                    self.batch_size = (limit.saturating_sub(512)).max(1);
                    Err(NotReady::SmallerBatches)
                }
                _ => Ok(facts.partitions.max(1)),
            },
            TopicState::Unasked => self.ask(id, client),
            TopicState::Bad(retry_at) if now >= *retry_at => self.ask(id, client),
            TopicState::Asked | TopicState::Bad(_) => Err(self.waits(id)),
        }
    }

    fn ask(&mut self, id: TopicId, client: &dyn Client) -> Result<u32, NotReady> {
        if let Some(topic) = self.list.get_mut(id.0 as usize) {
            topic.state = TopicState::Asked;
            client.ask(Ask::Topic(topic.name.clone()));
        }
        Err(self.waits(id))
    }

    fn waits(&mut self, id: TopicId) -> NotReady {
        if self.list.get(id.0 as usize).is_some_and(|topic| topic.trouble.is_none()) {
            return NotReady::Opens;
        }
        self.blocked = Some(id);
        NotReady::Wait
    }

    /// A record was delivered: whatever was wrong with the topic is over.
    pub fn delivered(&mut self, id: TopicId) {
        if let Some(topic) = self.list.get_mut(id.0 as usize)
            && topic.trouble.take().is_some()
        {
            tracing::info!(topic = &*topic.name, "the topic {:?} takes records again", &*topic.name);
        }
        self.blocked = None;
    }

    /// The cluster's answer to [`Ask::Topic`]. `out`: records of any topic that are out.
    pub fn answered(&mut self, name: &Arc<str>, facts: Result<TopicFacts, TopicProblem>, now: Instant, out: usize) {
        let id = self.id(name);
        let Some(topic) = self.list.get_mut(id.0 as usize) else { return };
        match facts {
            Ok(facts) => match &topic.state {
                TopicState::Known(known) if known.partitions != facts.partitions && out > 0 => {
                    topic.pending = Some(facts);
                }
                _ => topic.take(facts),
            },
            Err(problem) => topic.bad(problem.code, problem.text, now),
        }
    }

    /// A record for the topic was refused for the topic's sake.
    pub fn problem(&mut self, name: &Arc<str>, code: RDKafkaErrorCode, sentence: Option<String>, now: Instant) {
        let id = self.id(name);
        self.blocked = Some(id);
        if let Some(topic) = self.list.get_mut(id.0 as usize) {
            topic.bad(code, sentence.unwrap_or_else(|| code.to_string()), now);
        }
    }

    /// A whole batch was refused: the topic may take less than it did when it was asked.
    pub fn look_again(&mut self, name: &Arc<str>) {
        let id = self.id(name);
        if let Some(topic) = self.list.get_mut(id.0 as usize)
            && matches!(topic.state, TopicState::Known(_))
        {
            topic.state = TopicState::Unasked;
        }
    }

    /// Nothing is out: new counts count from here on.
    pub fn apply_pending(&mut self) {
        for topic in &mut self.list {
            if let Some(facts) = topic.pending.take() {
                topic.take(facts);
            }
        }
    }

    /// Whether a topic is being asked for, so that time may bring an answer.
    pub fn asking(&self) -> bool {
        self.list.iter().any(|topic| !matches!(topic.state, TopicState::Known(_) | TopicState::Unasked))
    }

    /// The brokers do not have a topic that records are out for.
    pub fn missing(&mut self, name: &Arc<str>, now: Instant) {
        let gone = "it is gone: it was there before".to_owned();
        self.problem(name, RDKafkaErrorCode::UnknownTopicOrPartition, Some(gone), now);
    }

    /// The topic that feeding waits for, if it is known what is wrong with it.
    pub fn waiting(&self) -> Option<Waiting> {
        let topic = self.list.get(self.blocked?.0 as usize)?;
        let trouble = topic.trouble.as_ref()?;
        Some(Waiting::Topic {
            topic: topic.name.to_string(),
            problem: trouble.text.clone(),
            remedy: route_remedy(trouble.code, &topic.name, &self.brokers),
            since: trouble.since,
            refused_since: trouble.refused_since,
        })
    }
}

impl Topic {
    fn take(&mut self, facts: TopicFacts) {
        if let TopicState::Known(before) = &self.state
            && before.partitions != facts.partitions
        {
            tracing::warn!(
                topic = &*self.name,
                before = before.partitions,
                partitions = facts.partitions,
                "the topic {:?} has {} partitions now, {} before: keys move, and order per key holds only from here on",
                &*self.name,
                facts.partitions,
                before.partitions,
            );
        } else if !matches!(self.state, TopicState::Known(_)) {
            tracing::info!(
                topic = &*self.name,
                partitions = facts.partitions,
                "the topic {:?} is there, with {} partitions",
                &*self.name,
                facts.partitions
            );
        }
        if facts.replication == 1 && !matches!(self.state, TopicState::Known(_)) {
            tracing::warn!(
                topic = &*self.name,
                "the topic {:?} has a single replica: what its broker confirmed is lost with that broker's disk",
                &*self.name
            );
        }
        self.state = TopicState::Known(facts);
    }

    fn bad(&mut self, code: RDKafkaErrorCode, text: String, now: Instant) {
        let (since, attempts) = match &self.trouble {
            Some(trouble) => (trouble.since, trouble.attempts.saturating_add(1)),
            None => {
                tracing::warn!(topic = &*self.name, "the topic {:?} takes no records: {text}", &*self.name);
                (now, 0)
            }
        };
        // The cluster says no for the topic's own sake. After an outage that is news: it may still be creating the topic.
        let refused = classify(code, false, None) == Refusal::Route;
        let refused_since = self.trouble.as_ref().and_then(|trouble| trouble.refused_since);
        let attempts = if refused && refused_since.is_none() { 0 } else { attempts };
        let refused_since = refused.then(|| refused_since.unwrap_or(now));
        self.state = TopicState::Bad(now + super::kafka::pause(RETRY, attempts));
        self.trouble = Some(Trouble { code, text, since, refused_since, attempts });
    }
}
