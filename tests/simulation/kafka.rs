//! Kafka, scripted: brokers with partitions, and librdkafka as the relay's client of them. One agenda says what happens
//! when; one task works it off.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::plan::Plan;
use crate::world::{Shared, State};

pub mod answers;
pub mod broker;
pub mod client;
pub mod producer;
pub mod tails;

use broker::{Broker, Topic};
use client::Librarian;
use producer::{Producer, Request};
use tails::Tails;

/// See the module.
pub struct Kafka {
    /// By time, then in the order of being put there.
    agenda: BTreeMap<(Instant, u64), Event>,
    put: u64,
    pub topics: Vec<Topic>,
    pub brokers: Vec<Broker>,
    /// By their number in the whole run.
    pub producers: Vec<Producer>,
    /// Under way, by number.
    pub requests: BTreeMap<u64, Request>,
    pub requests_made: u64,
    /// By process.
    pub librarians: Vec<Librarian>,
    pub tails: Vec<Tails>,
}

/// What happens at a moment.
#[derive(Debug)]
pub enum Event {
    /// The producer looks whether it has something to send.
    Serve(usize),
    /// It has got its id, or a new epoch of it.
    Identified(usize),
    LinkUp(usize, usize),
    /// A request has come to its broker.
    Arrives(u64),
    /// The answer has come to its producer.
    Answered(u64),
    /// A producer that was ended is gone.
    Gone(usize),
    /// A librarian has its answer.
    Asked(usize),
    /// A librarian looks at partition counts by itself.
    Refreshed(usize),
    TailsRead(usize),
    BrokerUp(usize),
    Authorised(usize),
}

impl Kafka {
    pub fn new(plan: &Plan, now: Instant) -> Kafka {
        Kafka {
            agenda: BTreeMap::new(),
            put: 0,
            topics: Topic::all(plan, now),
            brokers: (0..plan.brokers).map(|_| Broker { up: true, frozen_until: now }).collect(),
            producers: Vec::new(),
            requests: BTreeMap::new(),
            requests_made: 0,
            librarians: Vec::new(),
            tails: Vec::new(),
        }
    }

    pub fn at(&mut self, when: Instant, event: Event) {
        self.put += 1;
        self.agenda.insert((when, self.put), event);
    }

    pub fn after(&mut self, time: Duration, event: Event) {
        self.at(Instant::now() + time, event);
    }

    fn due(&mut self, now: Instant) -> Option<Event> {
        let first = self.agenda.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }
}

/// Works the agenda off, for ever.
pub async fn run(world: Shared) {
    loop {
        let next = world.lock().kafka.agenda.first_key_value().map(|((when, _), _)| *when);
        let work = world.kafka_work.notified();
        tokio::select! {
            biased;
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            () = work => {}
        }
        let mut state = world.lock();
        let now = Instant::now();
        while let Some(event) = state.kafka.due(now) {
            state.happen(event, now);
        }
    }
}

impl State {
    fn happen(&mut self, event: Event, now: Instant) {
        let of = match &event {
            Event::Serve(producer) | Event::LinkUp(producer, _) | Event::Gone(producer) => Some(*producer),
            Event::Answered(request) => self.kafka.requests.get(request).map(|request| request.producer),
            _ => None,
        };
        // A process that is frozen is so with all its threads.
        let process = of.map(|producer| self.kafka.producers[producer].process);
        if let Some(thaws_at) = process.and_then(|process| self.relays[process as usize].fate.frozen_until()) {
            return self.kafka.at(thaws_at, event);
        }
        match event {
            Event::Serve(producer) => self.serve(producer, now),
            Event::Identified(producer) => self.identified(producer, now),
            Event::LinkUp(producer, broker) => self.link_up(producer, broker),
            Event::Arrives(request) => self.arrives(request, now),
            Event::Answered(request) => self.answered(request, now),
            Event::Gone(producer) => self.gone(producer),
            Event::Asked(process) => self.answer_question(process, now),
            Event::Refreshed(process) => self.refresh_counts(process),
            Event::TailsRead(process) => self.answer_tails(process, now),
            Event::BrokerUp(broker) => {
                self.note(|| format!("broker {broker} is back"));
                self.kafka.brokers[broker].up = true;
            }
            Event::Authorised(topic) => {
                self.note(|| format!("topic {topic} may be written to"));
                self.kafka.topics[topic].authorised = true;
            }
        }
    }

    /// How long a request, or an answer, is under way.
    fn kafka_delay(&mut self) -> Duration {
        let range = if self.calm { 0..=5 } else { self.plan.kafka_delay.clone() };
        self.dice.delay(range)
    }
}

/// The newest few, the oldest first.
pub fn keep_newest<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    queue.push_back(item);
    while queue.len() > most {
        queue.pop_front();
    }
}
