//! The brokers: partitions that take batches by the rules of idempotent producers, and refuse them for every known reason.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::time::Instant;

use super::producer::Request;
use super::{Event, keep_newest};
use crate::ledger::By;
use crate::log::{Kind, RowId, topic_name};
use crate::plan::{Fault, Plan};
use crate::world::State;

pub struct Broker {
    pub up: bool,
    pub frozen_until: Instant,
}

pub struct Topic {
    pub name: String,
    /// The rest of its number of partitions is yet to come into being.
    pub partitions: Vec<Partition>,
    /// None: not before somebody asks for it.
    pub exists_from: Option<Instant>,
    pub authorised: bool,
    pub limit_bytes: usize,
}

#[derive(Default)]
pub struct Partition {
    offset: i64,
    /// In their order; whether each is as the log had it, and not from the table.
    pub records: Vec<(RowId, bool)>,
    /// By producer.
    known: BTreeMap<usize, Known>,
    pub no_leader_until: Option<Instant>,
    /// The session of the newest record, and its process.
    newest: Option<(u64, u32)>,
}

/// What the broker knows of a producer in a partition.
struct Known {
    epoch: u16,
    last: u64,
    /// First and last of the newest five, with their offsets.
    batches: VecDeque<(u64, u64, i64)>,
}

/// Takes whatever it gets.
pub const DEAD_LETTERS: &str = "walpost.dead_letter";
/// A batch has a header of its own.
pub const BATCH_BYTES: usize = 61;
const REMEMBERED_BATCHES: usize = 5;
/// A broker that is frozen may be mended before its time.
const LOOKS_AGAIN: Duration = Duration::from_secs(1);

/// What comes back for a batch.
#[derive(Debug)]
pub enum Answer {
    Stored {
        offset: i64,
    },
    /// It was stored before; where that was long ago, nobody knows at which offset.
    Duplicate {
        offset: i64,
    },
    OutOfOrder,
    /// To be tried again.
    Again {
        stored: bool,
    },
    /// For good. `culprit`: the broker says in words which record it is.
    Refused {
        code: Code,
        culprit: Option<usize>,
    },
}

impl Topic {
    /// Those that rows go to, and behind them the one of the dead letters.
    pub fn all(plan: &Plan, now: Instant) -> Vec<Topic> {
        let topic = |name: String, partitions: u32, limit_bytes: usize| Topic {
            name,
            partitions: (0..partitions).map(|_| Partition::default()).collect(),
            exists_from: (!plan.late_topics).then_some(now),
            authorised: true,
            limit_bytes,
        };
        let ordinary = plan.topics.iter().enumerate();
        let mut all: Vec<Topic> =
            ordinary.map(|(number, count)| topic(topic_name(number), *count, plan.limit_bytes)).collect();
        all.push(topic(DEAD_LETTERS.to_owned(), 1, 1_000_000));
        all
    }

    pub fn exists(&self, now: Instant) -> bool {
        self.exists_from.is_some_and(|from| now >= from)
    }
}

impl State {
    /// The broker that leads a partition.
    pub fn leader(&self, topic: usize, partition: usize) -> usize {
        (topic + partition) % self.kafka.brokers.len()
    }

    /// A request has come to its broker, whether or not somebody still waits for the answer.
    pub fn arrives(&mut self, number: u64, now: Instant) {
        let Some(mut request) = self.kafka.requests.remove(&number) else { return };
        let broker = &self.kafka.brokers[request.broker];
        if !broker.up {
            return;
        }
        if let Some(until) = request.lies_until.max(Some(broker.frozen_until)).filter(|until| *until > now) {
            self.kafka.requests.insert(number, request);
            return self.kafka.at(until.min(now + LOOKS_AGAIN), Event::Arrives(number));
        }
        let answer = self.produce(&request, now);
        self.note(|| {
            let rows: Vec<_> = request.records.iter().map(|record| record.row).collect();
            let Request { producer, topic, partition, first, epoch, .. } = &request;
            format!(
                "broker: producer {producer} to {topic}-{partition} rows {rows:?}, sequence {epoch}/{first}: {answer:?}"
            )
        });
        request.answer = Some(answer);
        if request.abandoned {
            return;
        }
        let (odds, delay) = (self.plan.odds.lost_answers, self.kafka_delay());
        let (producer, broker) = (request.producer, request.broker);
        let link = &mut self.kafka.producers[producer].links[broker];
        link.answers_at = link.answers_at.max(now + delay);
        let at = link.answers_at;
        self.kafka.requests.insert(number, request);
        if self.happens(odds) {
            self.break_link(producer, broker, now);
        } else {
            self.kafka.at(at, Event::Answered(number));
        }
    }

    fn produce(&mut self, request: &Request, now: Instant) -> Answer {
        let refused = |code, culprit| Answer::Refused { code, culprit };
        let odds = self.plan.odds.clone();
        let topic = &self.kafka.topics[request.topic];
        let partition = &topic.partitions[request.partition];
        if partition.no_leader_until.is_some_and(|until| until > now) || self.happens(odds.retried) {
            return Answer::Again { stored: false };
        }
        let topic = &self.kafka.topics[request.topic];
        if !topic.authorised {
            return refused(Code::TopicAuthorizationFailed, None);
        }
        let bytes = BATCH_BYTES + request.records.iter().map(|record| record.bytes).sum::<usize>();
        let alone = request.records.len() == 1;
        if bytes > topic.limit_bytes {
            if alone {
                self.ledger.refused(request.records[0].row);
            }
            return refused(Code::MessageSizeTooLarge, None);
        }
        let letters = self.is_for_letters(request.topic);
        let invalid = |record: &super::producer::Sent| !letters && self.log.rows[record.row].kind == Kind::Invalid;
        if let Some(culprit) = request.records.iter().position(invalid) {
            let named = self.plan.broker_names_culprit;
            if alone || named {
                self.ledger.refused(request.records[culprit].row);
            }
            return refused(Code::InvalidRecord, named.then_some(culprit));
        }
        if self.happens(odds.refused) {
            let passing = [Code::NetworkException, Code::Unknown, Code::ThrottlingQuotaExceeded];
            return refused(*self.dice.pick(&passing), None);
        }
        if self.happens(odds.route) {
            return refused(Code::PolicyViolation, None);
        }
        self.store(request, &odds)
    }

    /// By the rule of sequences.
    fn store(&mut self, request: &Request, odds: &crate::plan::Odds) -> Answer {
        let last = request.first + request.records.len() as u64 - 1;
        let forgets_offset = self.happens(odds.no_offset);
        let partition = &mut self.kafka.topics[request.topic].partitions[request.partition];
        if let Some(known) = partition.known.get(&request.producer) {
            if request.epoch < known.epoch {
                return Answer::Refused { code: Code::InvalidProducerEpoch, culprit: None };
            }
            if request.epoch > known.epoch {
                if request.first != 0 {
                    return Answer::OutOfOrder;
                }
            } else if last <= known.last {
                let batch = known.batches.iter().find(|batch| (batch.0, batch.1) == (request.first, last));
                let offset = batch.filter(|_| !forgets_offset).map_or(-1, |batch| batch.2);
                return Answer::Duplicate { offset };
            } else if request.first != known.last + 1 {
                return Answer::OutOfOrder;
            }
        }
        // One that knows nothing of the producer takes any sequence for the first.
        let offset = partition.offset;
        partition.offset += request.records.len() as i64;
        let fresh = || Known { epoch: request.epoch, last, batches: VecDeque::new() };
        let known = partition.known.entry(request.producer).or_insert_with(fresh);
        if known.epoch != request.epoch {
            *known = fresh();
        }
        known.last = last;
        keep_newest(&mut known.batches, (request.first, last, offset), REMEMBERED_BATCHES);
        partition.records.extend(request.records.iter().map(|record| (record.row, record.streamed)));
        self.check_echo(request);
        let letters = self.is_for_letters(request.topic);
        let process = self.kafka.producers[request.producer].process;
        for record in &request.records {
            if letters {
                self.ledger.buried(record.row);
                continue;
            }
            let (producer, epoch, streamed) = (request.producer as u32, record.epoch, record.streamed);
            let by = By { process, producer, epoch, streamed };
            if let Err(text) = self.ledger.stored(&mut self.log, record.row, by, request.abandoned || !record.streamed)
            {
                self.violated(text);
            }
        }
        if self.happens(odds.stored_and_retried) {
            return Answer::Again { stored: true };
        }
        Answer::Stored { offset }
    }

    pub fn is_for_letters(&self, topic: usize) -> bool {
        topic == self.plan.topics.len()
    }

    /// One that rows go to.
    fn any_topic(&mut self) -> usize {
        self.dice.below(self.plan.topics.len() as u64) as usize
    }

    /// Who takes the slot over waits until the requests of its last holder have passed.
    fn check_echo(&mut self, request: &Request) {
        let process = self.kafka.producers[request.producer].process;
        let partition = &mut self.kafka.topics[request.topic].partitions[request.partition];
        let own = (request.session, process);
        let late = partition.newest.filter(|newest| *newest > own && newest.1 != process);
        partition.newest = partition.newest.max(Some(own));
        let slow = *self.plan.kafka_delay.end() > 500;
        // What a frozen process or broker still has cannot be waited for.
        let frozen = [Fault::FreezeBroker, Fault::FreezeRelay, Fault::HangStream].map(|fault| self.plan.has(fault));
        if let Some((_, newer)) = late.filter(|_| !slow && !frozen.contains(&true)) {
            self.violated(format!("relay {process} still wrote after relay {newer}, which has taken the slot over"));
        }
    }

    /// A fault: for some time the broker takes no request, but keeps those that come.
    pub fn freeze_broker(&mut self, now: Instant) {
        let broker = self.dice.below(self.kafka.brokers.len() as u64) as usize;
        let time = self.dice.delay(1_000..=40_000);
        self.note(|| format!("broker {broker} is frozen for {time:?}"));
        self.kafka.brokers[broker].frozen_until = now + time;
    }

    /// A fault: the broker goes, and what was on its way to it is gone.
    pub fn stop_broker(&mut self, now: Instant) {
        let broker = self.dice.below(self.kafka.brokers.len() as u64) as usize;
        let time = self.dice.delay(500..=30_000);
        self.note(|| format!("broker {broker} is away for {time:?}"));
        self.kafka.brokers[broker].up = false;
        self.kafka.after(time, Event::BrokerUp(broker));
        for producer in 0..self.kafka.producers.len() {
            self.break_link(producer, broker, now);
        }
        self.kafka.requests.retain(|_, request| request.broker != broker);
    }

    /// Whether a new client would find all brokers well.
    pub fn brokers_answer(&self, now: Instant) -> bool {
        self.kafka.brokers.iter().all(|broker| broker.up && broker.frozen_until <= now)
    }

    pub fn lower_limit(&mut self) {
        let topic = self.any_topic();
        self.note(|| format!("topic {topic} takes smaller batches"));
        // What any plain row needs, and room for what the relay leaves to the batch's own header.
        self.kafka.topics[topic].limit_bytes = 1_000;
    }

    pub fn unauthorise(&mut self) {
        let topic = self.any_topic();
        let time = self.dice.delay(200..=20_000);
        self.note(|| format!("topic {topic} may not be written to for {time:?}"));
        self.kafka.topics[topic].authorised = false;
        self.kafka.after(time, Event::Authorised(topic));
    }

    pub fn no_leader(&mut self, now: Instant) {
        let topic = self.any_topic();
        let partition = self.dice.below(self.kafka.topics[topic].partitions.len() as u64) as usize;
        let time = self.dice.delay(5..=10_000);
        self.note(|| format!("{topic}-{partition} has no leader for {time:?}"));
        self.kafka.topics[topic].partitions[partition].no_leader_until = Some(now + time);
    }

    pub fn add_partitions(&mut self) {
        let topic = self.any_topic();
        self.note(|| format!("topic {topic} gets one more partition"));
        self.kafka.topics[topic].partitions.push(Partition::default());
        for process in 0..self.kafka.librarians.len() {
            let seen_after = Duration::from_millis(self.dice.within(0..=10_000));
            self.kafka.after(seen_after, Event::Refreshed(process));
        }
    }
}
