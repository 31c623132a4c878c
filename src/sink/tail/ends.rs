//! Where the logs of a topic's partitions begin and end: one question for the topic, two to each leader.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::Offset;

use crate::sink::tail::TailError;
use crate::sink::tail::client::{Client, Reading, places};

const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// A partition that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub partition: i32,
    /// The log's start.
    pub low: i64,
    /// One past the last offset.
    pub high: i64,
}

/// Why a look found nothing.
enum Trouble {
    /// A partition without a leader, a leader that has just changed: it will be another way in a moment.
    Passing(String),
    Lasting(TailError),
}

impl Client {
    /// Of those of the partitions that are there; none where the topic is missing. Looks until every partition has a
    /// leader that answers.
    pub(super) fn ends(&self, reading: &Reading<'_>) -> Result<Vec<End>, TailError> {
        loop {
            let trouble = match self.look(reading) {
                Ok(ends) => return Ok(ends),
                Err(Trouble::Lasting(error)) => return Err(error),
                Err(Trouble::Passing(trouble)) => trouble,
            };
            if reading.stopping.load(Ordering::Relaxed) {
                return Err(TailError::Ended);
            }
            if reading.left() <= BETWEEN_LOOKS {
                return Err(self.failed(reading, &trouble));
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    fn look(&self, reading: &Reading<'_>) -> Result<Vec<End>, Trouble> {
        let there = self.partitions(reading)?;
        if there.is_empty() {
            return Ok(Vec::new());
        }
        let lows = self.offsets(reading, &there, Offset::Beginning)?;
        let highs = self.offsets(reading, &there, Offset::End)?;
        let end = |partition: i32| {
            let (low, high) = (lows.get(&partition).copied()?, highs.get(&partition).copied()?);
            Some(End { partition, low, high })
        };
        let of_all: Option<Vec<End>> = there.into_iter().map(end).collect();
        of_all.ok_or_else(|| Trouble::Passing("a partition tells no offset".to_owned()))
    }

    /// Those of the partitions that the topic has, each with a leader.
    fn partitions(&self, reading: &Reading<'_>) -> Result<Vec<i32>, Trouble> {
        let topic = &*reading.question.topic;
        let metadata = self.consumer.fetch_metadata(Some(topic), reading.left());
        let metadata = metadata.map_err(|error| trouble(reading, &error))?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
            return Ok(Vec::new());
        };
        match found.error().map(Code::from) {
            None => {}
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => return Ok(Vec::new()),
            Some(code @ Code::TopicAuthorizationFailed) => return Err(Trouble::Lasting(reading.not_allowed(code))),
            Some(code) => return Err(Trouble::Passing(code.to_string())),
        }
        let wanted = |id: i32| u32::try_from(id).is_ok_and(|id| reading.question.partitions.contains(&id));
        let mut there = Vec::new();
        for partition in found.partitions().iter().filter(|partition| wanted(partition.id())) {
            if partition.leader() < 0 {
                return Err(Trouble::Passing(format!("partition {} has no leader", partition.id())));
            }
            there.push(partition.id());
        }
        Ok(there)
    }

    fn offsets(&self, reading: &Reading<'_>, there: &[i32], place: Offset) -> Result<HashMap<i32, i64>, Trouble> {
        let asked = places(&reading.question.topic, there.iter().map(|partition| (*partition, place)));
        let told = asked.and_then(|asked| self.consumer.offsets_for_times(asked, reading.left()));
        let told = told.map_err(|error| trouble(reading, &error))?;
        let mut offsets = HashMap::new();
        for element in told.elements() {
            element.error().map_err(|error| trouble(reading, &error))?;
            if let Offset::Offset(offset) = element.offset() {
                offsets.insert(element.partition(), offset);
            }
        }
        Ok(offsets)
    }
}

/// A topic that is unknown here is looked up again, and found missing then; a broker that is away may be back.
fn trouble(reading: &Reading<'_>, error: &KafkaError) -> Trouble {
    match error.rdkafka_error_code() {
        Some(code @ Code::TopicAuthorizationFailed) => Trouble::Lasting(reading.not_allowed(code)),
        Some(code) => Trouble::Passing(code.to_string()),
        None => Trouble::Passing(error.to_string()),
    }
}
