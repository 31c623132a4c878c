//! What librdkafka makes of a broker's answer, by the rules of its idempotent producer: retry, report, or die.

use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::time::Instant;
use walpost::sink::properties::Kind;

use super::broker::Answer;
use super::producer::{Message, Request};
use crate::world::State;

const RETRY_AFTER: Duration = Duration::from_millis(100);
/// How the broker excuses the other records of a refused batch.
const INNOCENT: &str = "Failed to append record because it was part of a batch which had one more more invalid records";
const CULPRIT: &str = "Compacted topic cannot accept message without key";

impl State {
    pub fn answered(&mut self, id: u64, now: Instant) {
        if self.kafka.requests.get(&id).is_none_or(|request| request.muted) {
            return;
        }
        let Some(mut request) = self.kafka.requests.remove(&id) else { return };
        let number = request.producer;
        let producer = &mut self.kafka.producers[number];
        producer.links[request.broker].in_flight -= 1;
        let Some(part) = producer.parts.get_mut(&(request.topic, request.partition)) else { return };
        part.out.retain(|out| *out != id);
        let next = request.first + request.records.len() as u64;
        let Some(answer) = request.answer.take() else { return };
        match answer {
            Answer::Stored { offset } | Answer::Duplicate { offset } if offset >= 0 => {
                self.succeeded(request, offset, next);
            }
            // The error that says "stored before": no more is known.
            Answer::Stored { .. } | Answer::Duplicate { .. } => {
                (part.next_ack, part.next_err) = (next, next);
                self.acknowledge(number, request.messages, -1);
            }
            Answer::Again { stored } => {
                part.next_err = next;
                part.not_before = Some(now + RETRY_AFTER);
                self.put_back(number, request.topic, request.partition, request.messages, stored);
            }
            Answer::OutOfOrder => self.out_of_order(request, next),
            Answer::Refused { code, culprit } => {
                part.next_err = next;
                self.refused(request, code, culprit);
            }
        }
        self.wake_producer(number, Duration::ZERO);
    }

    fn succeeded(&mut self, request: Request, offset: i64, next: u64) {
        let number = request.producer;
        let producer = &mut self.kafka.producers[number];
        let Some(part) = producer.parts.get_mut(&(request.topic, request.partition)) else { return };
        let (first, last) = match (request.messages.first(), request.messages.last()) {
            (Some(first), Some(last)) => (first.number, last.number),
            _ => return,
        };
        let mut implied = Vec::new();
        let mut inconsistent = false;
        if part.acked + 1 < first {
            // Earlier ones of uncertain fate must have been stored, or the broker would have refused this one.
            let count = part.queue.partition_point(|queued| queued.number <= last);
            implied.extend(part.queue.drain(..count));
        } else if request.first != part.next_ack && request.first == part.next_err {
            inconsistent = true;
        }
        if !inconsistent {
            if part.next_err == part.next_ack {
                part.next_err = next;
            }
            part.next_ack = next;
        }
        part.acked = part.acked.max(last);
        self.acknowledge(number, implied, -1);
        self.acknowledge(number, request.messages, offset);
        if inconsistent {
            self.dies(number, "it succeeded where a failure was expected");
        }
    }

    /// Reports of success; `offset` is negative where none is known.
    fn acknowledge(&mut self, number: usize, messages: Vec<Message>, offset: i64) {
        for (index, message) in messages.into_iter().enumerate() {
            let lost = self.plan.odds.lost_reports;
            if self.happens(lost) {
                self.note(|| format!("producer {number}: the report of row {} is lost", message.row));
                continue;
            }
            let producer = &self.kafka.producers[number];
            let relay = &mut self.relays[producer.process as usize];
            let Message { ticket, row, mut record, .. } = message;
            let offset = if offset < 0 { -1 } else { offset + index as i64 };
            if offset >= 0 {
                relay.window.settled(ticket);
                relay.delivered_at = Instant::now();
                self.ledger.told(row, number as u32);
            }
            record.partition_hash = 0;
            producer.mailbox.acknowledged(producer.generation, ticket, offset, || record);
            if offset < 0 {
                self.note(|| format!("producer {number}: row {row} is reported as stored, without an offset"));
            }
        }
    }

    fn out_of_order(&mut self, request: Request, next: u64) {
        let (number, topic, partition) = (request.producer, request.topic, request.partition);
        let Some(part) = self.kafka.producers[number].parts.get_mut(&(topic, partition)) else { return };
        if request.first > part.next_ack {
            // An earlier one was refused: both are sent again, under a new epoch.
            part.next_err = next;
            self.put_back(number, topic, partition, request.messages, false);
            self.kafka.producers[number].bumping = true;
            return;
        }
        for mut message in request.messages {
            message.possibly_stored = true;
            self.report_failure(number, message, Code::OutOfOrderSequenceNumber, None);
        }
        self.dies(number, "its sequence is not the broker's");
    }

    fn refused(&mut self, request: Request, code: Code, culprit: Option<usize>) {
        let number = request.producer;
        for (index, message) in request.messages.into_iter().enumerate() {
            let sentence = culprit.map(|culprit| if culprit == index { CULPRIT } else { INNOCENT }.to_owned());
            self.report_failure(number, message, code, sentence);
        }
        if code == Code::TopicAuthorizationFailed {
            self.kafka.producers[number].bad_topics.insert(request.topic);
        }
        match self.kafka.producers[number].kind {
            Kind::Gapless { .. } => self.dies(number, "it cannot keep its numbers without a gap"),
            Kind::Isolating => self.kafka.producers[number].bumping = true,
        }
    }

    /// A fatal error: what was not sent comes back. What is under way may be put back on the queue later, and stays there.
    fn dies(&mut self, number: usize, why: &str) {
        if std::mem::replace(&mut self.kafka.producers[number].dead, true) {
            return;
        }
        self.note(|| format!("producer {number} dies: {why}"));
        self.purge_queue(number);
    }
}
