//! Deliveries on their way into the metrics. Neighbours that are equal (rows of one transaction, records that were fed and
//! acknowledged together) are counted and observed at once: a histogram costs more than the tracker.

use std::time::{Duration, SystemTime};

use crate::sink::TopicId;
use crate::telemetry::{Metrics, TopicMetrics};

/// What has been added and not been told to the metrics yet. Told by [`Tally::end`].
#[derive(Default)]
pub(super) struct Tally {
    published: Option<Published>,
    /// How long records were out, and how many in a row for just so long.
    out: Option<(Duration, u64)>,
}

#[derive(PartialEq)]
struct Published {
    topic: TopicId,
    committed: Option<SystemTime>,
    messages: u64,
    bytes: u64,
}

impl Tally {
    /// A record of `topic`, of a row that was committed at that time (None: that says nothing), was confirmed after `out`.
    /// `clock`: the time of day. `of` finds the metrics of a topic.
    pub(super) fn add<'m>(
        &mut self,
        (topic, committed, bytes): (TopicId, Option<SystemTime>, usize),
        out: Duration,
        clock: SystemTime,
        metrics: &Metrics,
        of: impl FnOnce(TopicId) -> &'m TopicMetrics,
    ) {
        match &mut self.out {
            Some((same, messages)) if *same == out => *messages += 1,
            other => {
                if let Some((out, messages)) = other.replace((out, 1)) {
                    metrics.observe_publish(out, messages);
                }
            }
        }
        match &mut self.published {
            Some(same) if same.topic == topic && same.committed == committed => {
                same.messages += 1;
                same.bytes += bytes as u64;
            }
            other => {
                let one = Published { topic, committed, messages: 1, bytes: bytes as u64 };
                if let Some(before) = other.replace(one) {
                    before.tell(clock, metrics, of(before.topic));
                }
            }
        }
    }

    /// Nothing more comes for now.
    pub(super) fn end<'m>(
        &mut self,
        clock: SystemTime,
        metrics: &Metrics,
        of: impl FnOnce(TopicId) -> &'m TopicMetrics,
    ) {
        if let Some((out, messages)) = self.out.take() {
            metrics.observe_publish(out, messages);
        }
        if let Some(last) = self.published.take() {
            last.tell(clock, metrics, of(last.topic));
        }
    }
}

impl Published {
    fn tell(&self, clock: SystemTime, all: &Metrics, topic: &TopicMetrics) {
        topic.published(self.messages, self.bytes);
        let latency = self.committed.and_then(|at| clock.duration_since(at).ok()).unwrap_or_default();
        topic.observe_end_to_end(latency, self.messages);
        all.observe_finely(latency, self.messages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_delivery_is_counted_once_however_they_are_grouped() {
        let metrics = Metrics::new("0", &[]);
        let topics = [metrics.topic("a"), metrics.topic("b")];
        let of = |topic: TopicId| &topics[topic.0 as usize];
        let (clock, mut tally) = (SystemTime::now(), Tally::default());
        let at = |seconds| Some(clock - Duration::from_secs(seconds));
        let added = [(0, at(9), 1), (0, at(9), 1), (0, at(8), 1), (1, at(8), 2), (1, None, 2), (0, at(9), 3)];
        for (topic, committed, out) in added {
            tally.add((TopicId(topic), committed, 10), Duration::from_millis(out), clock, &metrics, of);
        }
        tally.end(clock, &metrics, of);
        tally.end(clock, &metrics, of);
        assert_eq!((metrics.messages_published.get(), metrics.bytes_published.get()), (6, 60));
        assert_eq!(metrics.publish_latency.get_sample_count(), 6);
        let sum = metrics.publish_latency.get_sample_sum();
        assert!((sum - 0.010).abs() < 1e-9, "{sum}");
        let observed = topics.each_ref().map(|topic| topic.observed());
        assert_eq!(observed.map(|(count, seconds)| (count, seconds.round())), [(4, 35.0), (2, 8.0)]);
    }
}
