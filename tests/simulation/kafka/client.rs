//! What the relay's sink holds of the scripted Kafka: producers, and a librarian that answers one question after the other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use tokio::time::Instant;
use walpost::lsn::Lsn;
use walpost::router::{Record, Token};
use walpost::sink::client::{Client, Produce};
use walpost::sink::desk::{ClusterIdentity, Probed, TopicFacts, TopicProblem};
use walpost::sink::librarian::{Answer, Ask};
use walpost::sink::producer::Mailbox;
use walpost::sink::properties::Kind;

use super::Event;
use super::producer::{Message, Part};
use super::tails::{Question, Tails};
use crate::world::{Shared, State};

/// How long the real one waits for an answer, and for a topic to come into being.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const CREATED_WITHIN: Duration = Duration::from_secs(3);

/// Kafka as one process sees it.
pub struct Scripted {
    world: Shared,
    process: u32,
    mailbox: Arc<Mailbox>,
}

/// The questions of a process.
pub struct Librarian {
    mailbox: Arc<Mailbox>,
    questions: VecDeque<Ask>,
    /// Topics, with the counts that the relay was told.
    known: BTreeMap<usize, u32>,
}

impl Scripted {
    pub fn new(world: &Shared, process: u32, mailbox: &Arc<Mailbox>) -> Scripted {
        let librarian = Librarian { mailbox: mailbox.clone(), questions: VecDeque::new(), known: BTreeMap::new() };
        let mut state = world.lock();
        state.kafka.librarians.push(librarian);
        state.kafka.tails.push(Tails::new(mailbox));
        drop(state);
        Scripted { world: world.clone(), process, mailbox: mailbox.clone() }
    }
}

impl Client for Scripted {
    fn producer(&self, kind: Kind, generation: u32) -> Result<Box<dyn Produce>, KafkaError> {
        let number = self.world.lock().new_producer(self.process, kind, generation, self.mailbox.clone());
        self.world.kafka_work.notify_one();
        Ok(Box::new(Handle { world: self.world.clone(), number, kind }))
    }

    fn ask(&self, question: Ask) {
        let mut state = self.world.lock();
        let librarian = &mut state.kafka.librarians[self.process as usize];
        librarian.questions.push_back(question);
        if librarian.questions.len() == 1 {
            state.take_question(self.process as usize, Instant::now());
        }
        self.world.kafka_work.notify_one();
    }

    fn read_tails(&self, topic: Arc<str>, partitions: Vec<u32>, from: Lsn, asked: u64) {
        self.world.lock().ask_tails(self.process as usize, Question { topic, partitions, from, asked });
        self.world.kafka_work.notify_one();
    }
}

/// One producer.
struct Handle {
    world: Shared,
    number: usize,
    kind: Kind,
}

impl Produce for Handle {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn send(&self, ticket: usize, record: &Record, partition: i32) -> Result<(), KafkaError> {
        let sent = self.world.lock().take_record(self.number, ticket, record, partition as usize);
        self.world.kafka_work.notify_one();
        sent.map_err(KafkaError::MessageProduction)
    }

    fn is_dead(&self) -> bool {
        self.world.lock().kafka.producers[self.number].dead
    }

    fn purge_queue(&self) {
        self.world.lock().purge_queue(self.number);
    }

    fn end(self: Box<Self>) {
        self.world.lock().end_producer(self.number, true);
        self.world.kafka_work.notify_one();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Without an end of its own it goes with its process.
        self.world.lock().end_producer(self.number, false);
    }
}

impl State {
    /// librdkafka takes a record, or refuses it at once.
    fn take_record(&mut self, number: usize, ticket: usize, record: &Record, partition: usize) -> Result<(), Code> {
        let odds = self.plan.odds.queue_full;
        let full = self.happens(odds);
        let producer = &self.kafka.producers[number];
        let process = producer.process;
        if producer.dead {
            return Err(Code::Fatal);
        }
        if full {
            return Err(Code::QueueFull);
        }
        let Some(topic) = self.kafka.topics.iter().position(|topic| *topic.name == *record.topic) else {
            return Err(Code::UnknownTopic);
        };
        if producer.bad_topics.contains(&topic) {
            return Err(Code::TopicAuthorizationFailed);
        }
        if partition >= self.kafka.topics[topic].partitions.len() {
            return Err(Code::UnknownPartition);
        }
        let Some((row, token)) = self.check_record(process, topic, record) else { return Ok(()) };
        self.note(|| {
            format!("relay {process}: row {row}, ticket {ticket}, to {topic}-{partition} of producer {number}")
        });
        let (limit, session) = {
            let relay = &mut self.relays[process as usize];
            relay.window.fed(ticket, row);
            (relay.window.width(), relay.session)
        };
        if limit > self.plan.window_messages {
            self.violated(format!("relay {process} has a window of {limit} rows"));
        }
        let streamed = record.header("origin").is_none();
        if streamed && !self.is_for_letters(topic) {
            self.check_read_back(process as usize, (topic, partition), row);
        }
        let producer = &mut self.kafka.producers[number];
        producer.session = session;
        let part = producer.parts.entry((topic, partition)).or_insert_with(Part::fresh);
        part.made += 1;
        part.queue.push_back(Message {
            number: part.made,
            ticket,
            row,
            epoch: token.epoch,
            bytes: wire_bytes(record),
            record: record.clone(),
            streamed,
            possibly_stored: false,
            batch_ends: None,
        });
        // linger.ms
        self.wake_producer(number, Duration::from_millis(1));
        Ok(())
    }

    /// Nothing is invented: the record is the one that its row makes. Returns the row and the token.
    fn check_record(&mut self, process: u32, topic: usize, record: &Record) -> Option<(usize, Token)> {
        let header = |name: &str| {
            let header = record.headers.iter().find(|header| &*header.name == name)?;
            std::str::from_utf8(header.value.as_deref()?).ok()
        };
        let row: Option<usize> = header("id").and_then(|id| id.parse().ok());
        let token: Option<Token> = header("token").and_then(|token| token.parse().ok());
        let (Some(row), Some(token)) = (row, token) else {
            self.violated(format!("relay {process} publishes a record of no row: {record:?}"));
            return None;
        };
        if self.is_for_letters(topic) && record.header("dead_letter.reason").is_some() {
            return Some((row, token));
        }
        let same = self.log.rows.get(row).is_some_and(|made| {
            made.topic == topic
                && record.key.as_deref() == Some(format!("k{}", made.key).as_bytes())
                && record.value.as_ref().is_some_and(|value| value.len() == made.bytes)
                && (token.commit_lsn, token.ordinal) == (made.commit_lsn, made.ordinal)
        });
        if !same {
            self.violated(format!("relay {process} publishes a record that is not that of row {row}: {record:?}"));
            return None;
        }
        Some((row, token))
    }

    /// The librarian takes its next question.
    fn take_question(&mut self, process: usize, now: Instant) {
        let quick = self.dice.delay(1..=60);
        let calm = self.brokers_answer(now);
        let Some(question) = self.kafka.librarians[process].questions.front() else { return };
        let takes = match question {
            _ if !calm => self.dice.millis(100..=ANSWER_WITHIN.as_millis() as u64),
            Ask::Topic(name) => {
                let topic = self.kafka.topics.iter_mut().find(|topic| *topic.name == **name);
                let created = topic.map(|topic| {
                    // Who asks makes the broker create it.
                    let appears = || now + self.dice.delay(1..=6_000);
                    *topic.exists_from.get_or_insert_with(appears)
                });
                let wait = created.map_or(CREATED_WITHIN, |at| at.saturating_duration_since(now));
                quick + wait.min(CREATED_WITHIN)
            }
            Ask::Cluster | Ask::Probe(_) => quick,
        };
        self.kafka.after(takes, Event::Asked(process));
    }

    pub fn answer_question(&mut self, process: usize, now: Instant) {
        let well = self.brokers_answer(now);
        let Some(question) = self.kafka.librarians[process].questions.pop_front() else { return };
        let answer = match question {
            Ask::Cluster if well => {
                let brokers = self.kafka.brokers.len();
                Answer::Cluster(Ok(ClusterIdentity { id: "kafka".to_owned(), brokers }))
            }
            Ask::Cluster => Answer::Cluster(Err("Local: Broker transport failure".to_owned())),
            Ask::Probe(names) => {
                let exists =
                    |name: &Arc<str>| self.kafka.topics.iter().any(|topic| *topic.name == **name && topic.exists(now));
                let missing = names.iter().find(|name| well && !exists(name)).cloned();
                Answer::Probe(Probed { healthy: well && missing.is_none(), missing, short: None })
            }
            Ask::Topic(name) => {
                let facts = self.topic_facts(&name, well, now);
                if let Ok((number, facts)) = &facts {
                    self.kafka.librarians[process].known.insert(*number, facts.partitions);
                }
                Answer::Topic { name, facts: facts.map(|(_, facts)| facts) }
            }
        };
        self.note(|| format!("relay {process}: hears {answer:?}"));
        let librarian = &mut self.kafka.librarians[process];
        librarian.mailbox.put(|inbox| inbox.answers.push(answer));
        self.take_question(process, now);
    }

    fn topic_facts(&mut self, name: &str, well: bool, now: Instant) -> Result<(usize, TopicFacts), TopicProblem> {
        let problem = |code: Code| Err(TopicProblem { code, text: code.to_string() });
        let Some(number) = self.kafka.topics.iter().position(|topic| topic.name == name) else {
            return problem(Code::UnknownTopic);
        };
        let topic = &self.kafka.topics[number];
        let no_leader =
            |partition: &super::broker::Partition| partition.no_leader_until.is_some_and(|until| until > now);
        if !well {
            problem(Code::OperationTimedOut)
        } else if !topic.exists(now) {
            problem(Code::UnknownTopicOrPartition)
        } else if !topic.authorised {
            problem(Code::TopicAuthorizationFailed)
        } else if topic.partitions.iter().any(no_leader) {
            problem(Code::LeaderNotAvailable)
        } else {
            let facts = TopicFacts {
                partitions: topic.partitions.len() as u32,
                replication: 3,
                max_message_bytes: Some(topic.limit_bytes),
                min_insync_replicas: Some(2),
            };
            for producer in &mut self.kafka.producers {
                // New metadata clear a topic's bad name.
                producer.bad_topics.remove(&number);
            }
            Ok((number, facts))
        }
    }

    /// The librarian has noticed new counts by itself.
    pub fn refresh_counts(&mut self, process: usize) {
        let now = Instant::now();
        for (number, before) in self.kafka.librarians[process].known.clone() {
            let name: Arc<str> = self.kafka.topics[number].name.as_str().into();
            let facts = self.topic_facts(&name, self.brokers_answer(now), now).ok();
            let Some((_, facts)) = facts.filter(|(_, facts)| facts.partitions != before) else { continue };
            self.note(|| format!("relay {process}: hears that topic {number} has {} partitions", facts.partitions));
            let librarian = &mut self.kafka.librarians[process];
            librarian.known.insert(number, facts.partitions);
            librarian.mailbox.put(|inbox| inbox.answers.push(Answer::Topic { name, facts: Ok(facts) }));
        }
    }
}

/// What librdkafka counts for a record in a batch.
fn wire_bytes(record: &Record) -> usize {
    let headers =
        record.headers.iter().map(|header| header.name.len() + header.value.as_ref().map_or(0, |v| v.len()) + 2);
    let len = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map_or(0, |bytes| bytes.len());
    len(&record.key) + len(&record.value) + headers.sum::<usize>() + 36
}
