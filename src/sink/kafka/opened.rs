//! Which partitions the producer in use has opened. The first record for a partition travels alone until it is
//! acknowledged.
//!
//! A broker that knows nothing of a producer in a partition accepts *any* sequence number as its first. A partition that
//! has just been made may refuse one batch (`NOT_LEADER_OR_FOLLOWER`: metadata name the leader a moment before it leads)
//! and accept the next one that is already under way. librdkafka then reports the refused one as stored, without sending it
//! again: it takes an acknowledgement as one for all batches before it. Seen on Apache Kafka 4.3: some rows in ten thousand of
//! topics that came into being under load. Once the first record is acknowledged the broker knows the sequence, and refuses
//! a gap.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::sink::TopicId;

/// A broker forgets a producer that was silent (`producer.id.expiration.ms`, a day by default): long before that the
/// partition is opened anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Default)]
pub struct Opened {
    partitions: HashMap<(TopicId, u32), State>,
}

enum State {
    /// Until the record with this ticket is acknowledged.
    Opening(usize),
    /// With the moment of the last acknowledgement.
    Open(Instant),
}

impl Opened {
    /// Whether a record may go to the partition now.
    pub fn may_feed(&self, topic: TopicId, partition: u32) -> bool {
        !matches!(self.partitions.get(&(topic, partition)), Some(State::Opening(_)))
    }

    /// A record went to the partition.
    pub fn fed(&mut self, topic: TopicId, partition: u32, ticket: usize, now: Instant) {
        let fresh = match self.partitions.get(&(topic, partition)) {
            Some(State::Open(last)) => now.saturating_duration_since(*last) > FORGOTTEN_AFTER,
            Some(State::Opening(_)) => false,
            None => true,
        };
        if fresh {
            self.partitions.insert((topic, partition), State::Opening(ticket));
        }
    }

    /// A record was acknowledged.
    pub fn delivered(&mut self, topic: TopicId, partition: u32, ticket: usize, now: Instant) {
        if let Some(state) = self.partitions.get_mut(&(topic, partition)) {
            match state {
                State::Opening(opener) if *opener != ticket => {}
                State::Opening(_) | State::Open(_) => *state = State::Open(now),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_record_of_a_partition_travels_alone_until_it_is_acknowledged() {
        let (mut opened, now, topic) = (Opened::default(), Instant::now(), TopicId(0));
        assert!(opened.may_feed(topic, 3));
        opened.fed(topic, 3, 7, now);
        assert!(!opened.may_feed(topic, 3));
        assert!(opened.may_feed(topic, 4) && opened.may_feed(TopicId(1), 3), "others go on");
        opened.delivered(topic, 3, 6, now);
        assert!(!opened.may_feed(topic, 3), "another record's acknowledgement opens nothing");
        opened.delivered(topic, 3, 7, now);
        opened.fed(topic, 3, 8, now);
        assert!(opened.may_feed(topic, 3));
    }

    #[test]
    fn a_partition_that_was_silent_for_long_is_opened_anew() {
        let (mut opened, topic) = (Opened::default(), TopicId(0));
        let now = Instant::now();
        opened.fed(topic, 0, 1, now);
        opened.delivered(topic, 0, 1, now);
        let later = now + FORGOTTEN_AFTER + Duration::from_secs(1);
        opened.fed(topic, 0, 2, later);
        assert!(!opened.may_feed(topic, 0));
    }
}
