//! The ends of partitions, read back: whole, in part, late, or not at all. What is read must be used where it can be.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use walpost::lsn::Lsn;
use walpost::sink::producer::Mailbox;
use walpost::sink::tail::{Cut, Tail, TailAnswer, TailError};

use super::Event;
use crate::log::RowId;
use crate::world::State;

const READ_WITHIN: Duration = Duration::from_secs(10);

/// The reader of one process.
pub struct Tails {
    mailbox: Arc<Mailbox>,
    questions: VecDeque<Question>,
    /// By topic and partition: the newest question, and what a whole answer to it has told, until the first row is fed.
    told: BTreeMap<(usize, usize), (u64, BTreeSet<RowId>)>,
}

pub struct Question {
    pub topic: Arc<str>,
    pub partitions: Vec<u32>,
    pub from: Lsn,
    pub asked: u64,
}

impl Tails {
    pub fn new(mailbox: &Arc<Mailbox>) -> Tails {
        Tails { mailbox: mailbox.clone(), questions: VecDeque::new(), told: BTreeMap::new() }
    }

    /// A session begins.
    pub fn begin(&mut self) {
        self.told.clear();
    }
}

impl State {
    pub fn ask_tails(&mut self, process: usize, question: Question) {
        let topic = self.kafka.topics.iter().position(|topic| *topic.name == *question.topic);
        let tails = &mut self.kafka.tails[process];
        for partition in topic.iter().flat_map(|topic| question.partitions.iter().map(move |at| (*topic, *at as usize)))
        {
            tails.told.insert(partition, (question.asked, BTreeSet::new()));
        }
        tails.questions.push_back(question);
        if tails.questions.len() == 1 {
            let takes = self.dice.delay(1..=300);
            self.kafka.after(takes, Event::TailsRead(process));
        }
    }

    pub fn answer_tails(&mut self, process: usize, now: Instant) {
        let Some(Question { topic, partitions, from, asked }) = self.kafka.tails[process].questions.pop_front() else {
            return;
        };
        let (fails, cuts) = (self.plan.odds.tail_fails, self.plan.odds.tail_cut);
        let number = self.kafka.topics.iter().position(|known| *known.name == *topic);
        let tails = match number {
            Some(number) if self.brokers_answer(now) && !self.happens(fails) => {
                let mut tails = Vec::new();
                for partition in partitions {
                    let cut = self.happens(cuts);
                    tails.push((partition, self.tail(process, (number, partition as usize), from, asked, cut)));
                }
                Ok(tails)
            }
            _ => Err(TailError::NoAnswer { topic: topic.clone(), within: READ_WITHIN, reason: "none came".to_owned() }),
        };
        self.note(|| {
            let known: Option<Vec<usize>> =
                tails.as_ref().ok().map(|tails| tails.iter().map(|(_, tail)| tail.len()).collect());
            format!("relay {process}: reads {topic} back from {from}: {known:?}")
        });
        let reader = &mut self.kafka.tails[process];
        reader.mailbox.put(|inbox| inbox.tails.push(TailAnswer { topic, asked, tails }));
        if !reader.questions.is_empty() {
            let takes = self.dice.delay(1..=300);
            self.kafka.after(takes, Event::TailsRead(process));
        }
    }

    fn tail(&mut self, process: usize, at: (usize, usize), from: Lsn, asked: u64, cut: bool) -> Tail {
        let (log, dice) = (&self.log, &mut self.dice);
        let Some(partition) = self.kafka.topics[at.0].partitions.get(at.1) else { return Tail::default() };
        let streamed = partition.records.iter().filter(|(_, streamed)| *streamed).map(|(row, _)| *row);
        let mut rows: Vec<RowId> = streamed.filter(|row| log.rows[*row].commit_lsn >= from).collect();
        if cut {
            // The newest are read first.
            let kept = dice.below(rows.len() as u64 + 1) as usize;
            rows.drain(..rows.len() - kept);
        } else if let Some((newest, told)) = self.kafka.tails[process].told.get_mut(&at).filter(|told| told.0 == asked)
        {
            debug_assert_eq!(*newest, asked);
            told.extend(rows.iter().copied());
        }
        for row in &rows {
            self.relays[process].window.elsewhere(*row);
        }
        let ids: Vec<(String, Lsn)> = rows.iter().map(|row| (row.to_string(), log.rows[*row].commit_lsn)).collect();
        Tail::of(ids.iter().map(|(id, lsn)| (id.as_bytes(), *lsn)), cut.then_some(Cut::Records))
    }

    /// The first row that is fed to a partition must not be one that was read there.
    pub fn check_read_back(&mut self, process: usize, at: (usize, usize), row: RowId) {
        let told = self.kafka.tails[process].told.remove(&at);
        if told.is_some_and(|(_, told)| told.contains(&row)) {
            self.violated(format!("relay {process} publishes row {row} again, which it has read in its topic"));
        }
    }
}
