//! Records that are larger than their topic takes go alone, by a producer of their own. Only the broker can say whether such
//! a record fits (its limit counts after compression, and may have changed), and a refusal ends the usual producer: a storm
//! of them would cost a new one each.
//!
//! Nothing else is out meanwhile, so the order is that of the tickets.

use super::*;

/// The producer for one record at a time. Survives a refusal.
#[derive(Default)]
pub(super) struct Scout {
    producer: Option<Box<dyn Produce>>,
    /// Of the producer.
    generation: u32,
    out: Option<usize>,
}

impl Scout {
    pub(super) fn is_out(&self) -> bool {
        self.out.is_some()
    }

    pub(super) fn purge_queue(&self) {
        if let Some(producer) = &self.producer {
            producer.purge_queue();
        }
    }

    pub(super) fn end(&mut self) {
        self.out = None;
        if let Some(producer) = self.producer.take() {
            producer.end();
        }
    }

    /// Its record was reported on. False: the report is not about it.
    pub(super) fn returned(&mut self, generation: u32, ticket: usize) -> bool {
        let own = self.out == Some(ticket) && self.generation == generation;
        self.out.take_if(|_| own).is_some()
    }
}

impl KafkaSink {
    /// Feeds a record that its topic may refuse, once nothing else is out.
    pub(super) fn feed_alone(&mut self, record: &Record, ticket: usize, partition: u32, now: Instant) -> Fed {
        if self.outstanding > 0 {
            return Fed::NotNow;
        }
        if self.scout.producer.is_none() {
            self.generation = self.generation.wrapping_add(1);
            match self.client.producer(Kind::Isolating, self.generation) {
                Ok(producer) => {
                    (self.scout.producer, self.scout.generation) = (Some(producer), self.generation);
                }
                Err(error) => {
                    self.error = Some(error.to_string());
                    self.mode = Mode::Feeding { not_before: Some(now + pause(healing::FEED_RETRY, self.attempts)) };
                    self.attempts = self.attempts.saturating_add(1);
                    return Fed::NotNow;
                }
            }
        }
        let Some(producer) = &self.scout.producer else { return Fed::NotNow };
        match producer.send(ticket, record, partition.cast_signed()) {
            Ok(()) => {
                self.scout.out = Some(ticket);
                Fed::Out { partition, generation: self.scout.generation }
            }
            Err(error) => Fed::Refused(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)),
        }
    }
}
