//! One librdkafka producer, as its source and a real broker show it: a queue for each partition, batches numbered in
//! sequence, up to five requests to a broker under way, retries in the old order and with the old bounds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::time::Instant;
use walpost::router::Record;
use walpost::sink::producer::{FailedReport, Mailbox};
use walpost::sink::properties::Kind;

use super::Event;
use super::broker::{Answer, BATCH_BYTES};
use crate::log::RowId;
use crate::world::State;

const IN_FLIGHT_MOST: usize = 5;
/// A new producer gets its id after half a second: the timer of its first attempt.
const IDENTIFIED_AFTER: u64 = 505;

pub struct Producer {
    pub process: u32,
    /// The session of its process that feeds it.
    pub session: u64,
    pub generation: u32,
    pub kind: Kind,
    pub mailbox: Arc<Mailbox>,
    pub identified: bool,
    pub epoch: u16,
    /// Every partition must be drained before the new epoch begins.
    pub bumping: bool,
    /// A fatal error: nothing more is sent.
    pub dead: bool,
    pub silent: bool,
    pub ended: bool,
    /// Its process went without a word.
    pub killed: bool,
    /// By broker.
    pub links: Vec<Link>,
    pub parts: BTreeMap<(usize, usize), Part>,
    /// Sends to these topics fail at once.
    pub bad_topics: BTreeSet<usize>,
    serve_at: Option<Instant>,
}

/// A connection to a broker.
pub struct Link {
    pub up: bool,
    pub connecting: bool,
    pub in_flight: usize,
    arrives_at: Instant,
    pub answers_at: Instant,
}

/// A partition as the producer sees it.
#[derive(Default)]
pub struct Part {
    pub queue: VecDeque<Message>,
    /// Requests under way, the oldest first.
    pub out: VecDeque<u64>,
    pub not_before: Option<Instant>,
    /// Nothing is sent before all requests have come back.
    pub drains: bool,
    pub epoch: u16,
    /// The number of the message with sequence 0.
    pub base: u64,
    pub made: u64,
    pub acked: u64,
    pub next_ack: u64,
    pub next_err: u64,
}

impl Part {
    pub fn fresh() -> Part {
        Part { base: 1, ..Part::default() }
    }
}

/// A record in librdkafka's hands.
pub struct Message {
    /// Counted from 1 in its partition.
    pub number: u64,
    pub ticket: usize,
    pub row: RowId,
    pub epoch: u64,
    pub bytes: usize,
    pub record: Record,
    /// As the log had it, and not from the table.
    pub streamed: bool,
    pub possibly_stored: bool,
    /// Of the batch that it begins, where that has been sent: it is sent again as it was.
    pub batch_ends: Option<u64>,
}

/// What a broker sees of a record.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub row: RowId,
    pub bytes: usize,
    /// Of the token.
    pub epoch: u64,
    pub streamed: bool,
}

/// A produce request with one batch.
pub struct Request {
    pub producer: usize,
    pub session: u64,
    pub broker: usize,
    pub topic: usize,
    pub partition: usize,
    pub epoch: u16,
    /// Sequence of the first record.
    pub first: u64,
    pub records: Vec<Sent>,
    /// Empty once nobody waits for the answer.
    pub messages: Vec<Message>,
    pub answer: Option<Answer>,
    /// Its connection is gone: an answer reaches nobody.
    pub abandoned: bool,
    /// It lies in a broker's socket until then.
    pub lies_until: Option<Instant>,
    /// An answer comes, and librdkafka says nothing of it.
    pub muted: bool,
}

impl State {
    pub fn new_producer(&mut self, process: u32, kind: Kind, generation: u32, mailbox: Arc<Mailbox>) -> usize {
        let number = self.kafka.producers.len();
        let now = Instant::now();
        let link = || Link { up: false, connecting: false, in_flight: 0, arrives_at: now, answers_at: now };
        self.kafka.producers.push(Producer {
            process,
            session: 0,
            generation,
            kind,
            mailbox,
            identified: false,
            epoch: 0,
            bumping: false,
            dead: false,
            silent: false,
            ended: false,
            killed: false,
            links: self.kafka.brokers.iter().map(|_| link()).collect(),
            parts: BTreeMap::new(),
            bad_topics: BTreeSet::new(),
            serve_at: None,
        });
        self.note(|| format!("relay {process}: producer {number}, {kind:?}"));
        let takes = IDENTIFIED_AFTER + self.dice.within(0..=10);
        self.kafka.after(Duration::from_millis(takes), Event::Identified(number));
        number
    }

    pub fn identified(&mut self, number: usize, now: Instant) {
        if !self.brokers_answer(now) {
            return self.kafka.after(Duration::from_millis(500), Event::Identified(number));
        }
        let producer = &mut self.kafka.producers[number];
        if producer.ended {
            return;
        }
        if producer.bumping {
            producer.bumping = false;
            producer.epoch += 1;
        }
        producer.identified = true;
        self.wake_producer(number, Duration::ZERO);
    }

    /// The producer looks at its queues after `time` at the latest.
    pub fn wake_producer(&mut self, number: usize, time: Duration) {
        let at = Instant::now() + time;
        let producer = &mut self.kafka.producers[number];
        if producer.serve_at.is_none_or(|before| before > at) {
            producer.serve_at = Some(at);
            self.kafka.at(at, Event::Serve(number));
        }
    }

    pub fn serve(&mut self, number: usize, now: Instant) {
        let producer = &mut self.kafka.producers[number];
        if producer.serve_at.is_some_and(|at| at <= now) {
            producer.serve_at = None;
        }
        if producer.ended || producer.dead || producer.silent || !producer.identified {
            return;
        }
        if producer.bumping {
            if producer.parts.values().all(|part| part.out.is_empty()) {
                self.kafka.after(Duration::from_millis(20), Event::Identified(number));
            }
            return;
        }
        let places: Vec<_> =
            producer.parts.iter().filter(|(_, part)| !part.queue.is_empty()).map(|(at, _)| *at).collect();
        for (topic, partition) in places {
            self.serve_part(number, topic, partition, now);
        }
    }

    fn serve_part(&mut self, number: usize, topic: usize, partition: usize, now: Instant) {
        let broker = self.leader(topic, partition);
        let producer = &mut self.kafka.producers[number];
        let link = &mut producer.links[broker];
        if !link.up {
            if !std::mem::replace(&mut link.connecting, true) {
                let takes = self.dice.delay(1..=200);
                self.kafka.after(takes, Event::LinkUp(number, broker));
            }
            return;
        }
        let Some(part) = producer.parts.get_mut(&(topic, partition)) else { return };
        if part.drains && !part.out.is_empty() {
            return;
        }
        part.drains = false;
        if let Some(at) = part.not_before.filter(|at| *at > now) {
            return self.wake_producer(number, at - now);
        }
        if part.epoch != producer.epoch {
            if !part.out.is_empty() {
                return;
            }
            part.epoch = producer.epoch;
            part.base = part.queue.front().map_or(part.made + 1, |message| message.number);
            (part.next_ack, part.next_err) = (0, 0);
        }
        while let Some(request) = self.next_batch(number, topic, partition, broker) {
            self.dispatch(request, now);
        }
    }

    /// The next request to a partition, if there may be one more.
    fn next_batch(&mut self, number: usize, topic: usize, partition: usize, broker: usize) -> Option<Request> {
        let wanted = match self.kafka.producers[number].kind {
            Kind::Gapless { batch_size } => batch_size,
            Kind::Isolating => 1_000_000,
        };
        // A batch is often sent before it is full.
        let most = if self.dice.percent(50) { self.dice.within(1..=6) as usize } else { 10_000 };
        let producer = &mut self.kafka.producers[number];
        if producer.links[broker].in_flight >= IN_FLIGHT_MOST {
            return None;
        }
        let part = producer.parts.get_mut(&(topic, partition))?;
        let base = part.base;
        let front = part.queue.front()?;
        let (first, ends) = (front.number - base, front.batch_ends);
        let mut bytes = BATCH_BYTES;
        let mut messages: Vec<Message> = Vec::new();
        while let Some(message) = part.queue.front() {
            let fits = match ends {
                Some(ends) => message.number <= ends,
                None => {
                    let begins = messages.is_empty();
                    let room = bytes + message.bytes <= wanted && messages.len() < most;
                    begins || room && message.batch_ends.is_none()
                }
            };
            if !fits {
                break;
            }
            bytes += message.bytes;
            messages.extend(part.queue.pop_front());
        }
        let sent = |message: &Message| Sent {
            row: message.row,
            bytes: message.bytes,
            epoch: message.epoch,
            streamed: message.streamed,
        };
        Some(Request {
            producer: number,
            session: producer.session,
            broker,
            topic,
            partition,
            epoch: part.epoch,
            first,
            records: messages.iter().map(sent).collect(),
            messages,
            answer: None,
            abandoned: false,
            lies_until: None,
            muted: false,
        })
    }

    fn dispatch(&mut self, request: Request, now: Instant) {
        let delay = self.kafka_delay();
        let number = self.kafka.requests_made;
        self.kafka.requests_made += 1;
        let producer = &mut self.kafka.producers[request.producer];
        let link = &mut producer.links[request.broker];
        link.in_flight += 1;
        link.arrives_at = link.arrives_at.max(now + delay);
        let at = link.arrives_at;
        if let Some(part) = producer.parts.get_mut(&(request.topic, request.partition)) {
            part.out.push_back(number);
        }
        self.kafka.requests.insert(number, request);
        self.kafka.at(at, Event::Arrives(number));
    }

    pub fn link_up(&mut self, number: usize, broker: usize) {
        let up = self.kafka.brokers[broker].up;
        let producer = &mut self.kafka.producers[number];
        if producer.ended {
            return;
        }
        if !up {
            producer.mailbox.put(|inbox| inbox.error = Some(format!("broker {broker}: Connection refused")));
            let pause = self.dice.millis(300..=1_500);
            return self.kafka.after(pause, Event::LinkUp(number, broker));
        }
        (producer.links[broker].connecting, producer.links[broker].up) = (false, true);
        self.wake_producer(number, Duration::ZERO);
    }

    /// The connection is gone. Of the requests that had not arrived, some may have been in the broker's socket already.
    pub fn break_link(&mut self, number: usize, broker: usize, now: Instant) {
        let link = &mut self.kafka.producers[number].links[broker];
        if !link.up {
            return;
        }
        (link.up, link.in_flight) = (false, 0);
        (link.arrives_at, link.answers_at) = (now, now);
        self.note(|| format!("producer {number}: the connection to broker {broker} breaks"));
        self.abandon(number, broker);
        self.wake_producer(number, Duration::from_millis(100));
    }

    /// Nobody waits for the requests to a broker any more: their messages come back, and wait to be sent again.
    pub fn abandon(&mut self, number: usize, broker: usize) {
        let ours = |request: &&mut Request| request.producer == number && request.broker == broker;
        let lies_until = self.lies_until(number);
        let mut arrives = true;
        let mut gone = Vec::new();
        let mut back = Vec::new();
        for (id, request) in self.kafka.requests.iter_mut().map(|(id, request)| (*id, request)) {
            if !ours(&&mut *request) || request.abandoned {
                continue;
            }
            (request.abandoned, request.lies_until) = (true, lies_until);
            back.push((request.topic, request.partition, std::mem::take(&mut request.messages)));
            // What is sent on one connection arrives up to some byte.
            arrives &= request.answer.is_some() || self.dice.percent(60);
            if !arrives || request.answer.is_some() {
                gone.push(id);
            }
        }
        for id in gone {
            self.kafka.requests.remove(&id);
        }
        // The newest first, because each is put in front.
        for (topic, partition, messages) in back.into_iter().rev() {
            self.put_back(number, topic, partition, messages, true);
        }
    }

    /// What an ended producer has sent may lie in a broker's socket for a while: shorter than the next holder of the slot waits.
    fn lies_until(&mut self, number: usize) -> Option<Instant> {
        let producer = &self.kafka.producers[number];
        let quick = *self.plan.kafka_delay.end() <= 100;
        if !producer.ended || !quick || !self.dice.percent(40) {
            return None;
        }
        let most = if producer.killed { 4_000 } else { 500 };
        Some(Instant::now() + self.dice.millis(0..=most))
    }

    /// Messages of one batch are to be sent again, before everything else.
    pub fn put_back(
        &mut self,
        number: usize,
        topic: usize,
        partition: usize,
        mut messages: Vec<Message>,
        possibly: bool,
    ) {
        let requests = &self.kafka.requests;
        let Some(part) = self.kafka.producers[number].parts.get_mut(&(topic, partition)) else { return };
        part.out.retain(|id| requests.get(id).is_some_and(|request| !request.abandoned));
        part.drains = true;
        let last = messages.last().map(|message| message.number);
        if let Some(first) = messages.first_mut() {
            first.batch_ends = last;
        }
        for mut message in messages.into_iter().rev() {
            message.possibly_stored |= possibly;
            let place = part.queue.partition_point(|queued| queued.number < message.number);
            part.queue.insert(place, message);
        }
    }

    /// A report of failure. The record comes back as librdkafka hands it over: without its hash.
    pub fn report_failure(&mut self, number: usize, message: Message, code: Code, sentence: Option<String>) {
        let producer = &self.kafka.producers[number];
        let Message { ticket, possibly_stored, mut record, row, .. } = message;
        record.partition_hash = 0;
        let report = FailedReport {
            generation: producer.generation,
            ticket,
            code,
            sentence,
            possibly_persisted: possibly_stored,
            inferred: false,
            record,
        };
        let lost = self.plan.odds.lost_reports;
        if self.happens(lost) {
            self.note(|| format!("producer {number}: the report of row {row} is lost"));
            return;
        }
        self.note(|| format!("producer {number}: row {row} failed: {code}, possibly stored: {possibly_stored}"));
        let producer = &self.kafka.producers[number];
        let window = &mut self.relays[producer.process as usize].window;
        window.failed(ticket, code);
        if self.ledger.shelved.contains(&row) {
            // It was published from the table: there it may stay, when one before it of its queue was refused.
            window.elsewhere(row);
        }
        producer.mailbox.put(|inbox| inbox.failed.push(report));
    }

    /// Everything that was not sent comes back.
    pub fn purge_queue(&mut self, number: usize) {
        let parts = self.kafka.producers[number].parts.values_mut();
        let messages: Vec<Message> = parts.flat_map(|part| part.queue.drain(..)).collect();
        for message in messages {
            self.report_failure(number, message, Code::PurgeQueue, None);
        }
    }

    /// The producer ends; with reports where somebody is left to hear them.
    pub fn end_producer(&mut self, number: usize, reports: bool) {
        let producer = &mut self.kafka.producers[number];
        if std::mem::replace(&mut producer.ended, true) {
            return;
        }
        producer.killed = !reports;
        if reports {
            self.purge_queue(number);
        }
        for broker in 0..self.kafka.brokers.len() {
            self.abandon(number, broker);
        }
        let parts = std::mem::take(&mut self.kafka.producers[number].parts);
        if reports {
            let messages = parts.into_values().flat_map(|part| part.queue);
            for message in messages.collect::<Vec<_>>() {
                self.report_failure(number, message, Code::PurgeInflight, None);
            }
            let takes = self.dice.millis(1..=500);
            self.kafka.after(takes, Event::Gone(number));
        }
    }

    pub fn gone(&mut self, number: usize) {
        let producer = &self.kafka.producers[number];
        let generation = producer.generation;
        producer.mailbox.put(|inbox| inbox.dropped.push(generation));
    }

    /// Requests of a relay that it has heard nothing of.
    pub fn under_way(&self, process: u32) -> usize {
        let open = |request: &&Request| {
            let producer = &self.kafka.producers[request.producer];
            producer.process == process && !request.abandoned && request.answer.is_none()
        };
        self.kafka.requests.values().filter(open).count()
    }
}
