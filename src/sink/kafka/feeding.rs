//! How a record gets to librdkafka: at once, behind what it waits for in a lane or in the line, or not at all because its
//! topic holds it.

use super::*;

pub(super) enum Fed {
    Out {
        partition: u32,
        generation: u32,
    },
    /// Not at all: its topic holds it already.
    There,
    /// Its topic is not known or not open yet, which is no reason for others to wait.
    TopicOpens,
    NotNow,
    Refused(RDKafkaErrorCode),
}

impl KafkaSink {
    /// Takes a record, in ticket order and without a gap in the tickets, or gives it back because it cannot be fed now.
    pub fn send(&mut self, ticket: Ticket, record: Record, now: Instant) -> Result<(), Busy> {
        if !self.may_feed(now) || !self.held.line_is_empty() || self.frozen_at.is_some() {
            return Err(Busy(record));
        }
        if self.sent.is_empty() {
            self.first_ticket = ticket.0;
        }
        debug_assert_eq!(ticket.0, self.first_ticket + self.sent.len(), "tickets come without a gap");
        let topic = self.topics.id(&record.topic);
        let fed = match self.held.has_lane(topic) && !planted!(OvertakesItsTopic) {
            true => Fed::TopicOpens,
            false => self.feed(&record, ticket.0, now),
        };
        if let Fed::NotNow = fed {
            return Err(Busy(record));
        }
        let (bytes, partition_hash) = (weight(&record), record.partition_hash);
        self.sent.push_back(Sent { topic, partition: 0, partition_hash, bytes, at: now, place: Place::Back });
        self.fed(ticket.0, fed, record, now);
        Ok(())
    }

    /// A record that has its place went to librdkafka, or was refused by it at once.
    fn fed(&mut self, ticket: usize, fed: Fed, record: Record, now: Instant) {
        match fed {
            Fed::Out { partition, generation } => {
                if self.outstanding == 0 {
                    // Nothing was out: the silence so far was no sign of anything.
                    self.last_report = now;
                }
                self.outstanding += 1;
                if let Some(sent) = self.place(ticket) {
                    (sent.at, sent.place, sent.partition) = (now, Place::Out(generation), partition);
                }
            }
            Fed::Refused(code) => {
                // Treated like a report that came back at once.
                let (generation, sentence, possibly_persisted, inferred) = (self.current, None, false, false);
                let report = FailedReport { generation, ticket, code, sentence, possibly_persisted, inferred, record };
                self.came_back(report, now);
            }
            Fed::There => {
                self.there.push(Ticket(ticket));
                if let Some(sent) = self.place(ticket) {
                    sent.place = Place::Settled;
                }
                self.forget_settled();
            }
            Fed::TopicOpens => {
                let topic = self.topics.id(&record.topic);
                self.held.put_in_lane(ticket, topic, record);
            }
            Fed::NotNow => {
                let topic = self.topics.id(&record.topic);
                self.held.put_in_line(ticket, topic, record);
            }
        }
    }

    fn may_feed(&self, now: Instant) -> bool {
        let Mode::Feeding { not_before } = &self.mode else { return planted!(FeedsPastAFailure) };
        let alone = self.isolated_left == 0 || self.outstanding == 0;
        alone && !self.scout.is_out() && self.undecided.is_empty() && not_before.is_none_or(|at| now >= at)
    }

    fn feed(&mut self, record: &Record, ticket: usize, now: Instant) -> Fed {
        let topic = self.topics.id(&record.topic);
        let partitions = match self.topics.ready(topic, self.outstanding, now, &*self.client) {
            Ok(partitions) => partitions,
            Err(NotReady::Opens) => return Fed::TopicOpens,
            Err(NotReady::Wait) => return Fed::NotNow,
            Err(NotReady::SmallerBatches) => {
                self.drain("batch_size", format!("the topic {:?} takes smaller batches", &*record.topic), false, now);
                return Fed::NotNow;
            }
        };
        let partition = record.partition_hash % partitions;
        match self.read_back.look(topic, partition, partitions, record, &*self.client) {
            Look::Feed => {}
            Look::Wait => return Fed::TopicOpens,
            Look::There => return Fed::There,
        }
        if self.topics.may_refuse(topic, weight(record)) {
            return self.feed_alone(record, ticket, partition, now);
        }
        let Some(producer) = &self.producer else { return Fed::NotNow };
        if !self.opened.may_feed(topic, partition) && !planted!(ForgetsTheFirstRecord) {
            return Fed::TopicOpens;
        }
        match producer.send(ticket, record, partition.cast_signed()) {
            Ok(()) => {
                self.opened.fed(topic, partition, ticket, now);
                Fed::Out { partition, generation: self.current }
            }
            Err(error) => match error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown) {
                RDKafkaErrorCode::QueueFull => Fed::NotNow,
                code => Fed::Refused(code),
            },
        }
    }

    pub(super) fn feed_held(&mut self, now: Instant) {
        while let Some(ticket) = self.held.first_in_line() {
            if !self.may_feed_held(ticket, now) {
                return;
            }
            let Some(record) = self.held.remove(ticket) else { return };
            let topic = self.topics.id(&record.topic);
            let fed = match self.held.has_lane(topic) {
                true => Fed::TopicOpens,
                false => self.feed(&record, ticket, now),
            };
            let goes_on = matches!(fed, Fed::Out { .. } | Fed::TopicOpens);
            self.fed(ticket, fed, record, now);
            if !goes_on {
                return;
            }
        }
    }

    pub(super) fn feed_lanes(&mut self, now: Instant) {
        for topic in self.held.take_woken(now) {
            while let Some(ticket) = self.held.first_in_lane(topic) {
                if !self.may_feed_held(ticket, now) {
                    break;
                }
                let Some(record) = self.held.remove(ticket) else { break };
                let fed = self.feed(&record, ticket, now);
                let goes_on = matches!(fed, Fed::Out { .. } | Fed::There);
                let holds_up_all = matches!(fed, Fed::NotNow);
                self.fed(ticket, fed, record, now);
                if holds_up_all {
                    self.held.join_line(topic);
                }
                if !goes_on {
                    break;
                }
            }
        }
    }

    fn may_feed_held(&self, ticket: usize, now: Instant) -> bool {
        self.may_feed(now) && self.frozen_at.is_none_or(|frozen| ticket < frozen)
    }
}
