//! The consumer that reads the ends of a topic's partitions. It joins no group, commits nothing, creates no topic, and
//! keeps little in memory: see [`properties::tail`](crate::sink::properties::tail). Each call blocks, within the ask's time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::sink::tail::backwards::{Backwards, Progress};
use crate::sink::tail::headers::Headers;
use crate::sink::tail::listener::Listener;
use crate::sink::tail::own::OwnNames;
use crate::sink::tail::{Cut, Limits, Question, Tail, TailError};

/// A record counts as so many bytes at least: what librdkafka needs for it besides its content.
const RECORD_BYTES: u64 = 256;
/// Offsets that are read at once, over all partitions.
const OFFSETS_AT_ONCE: i64 = 32_768;
/// A partition with so long a chunk goes before the others: where there is too much to read in all, some tails are then
/// read whole, and a tail that is not helps little.
const LONG_CHUNK: i64 = 256;
/// Between two looks at whether nobody wants the answer any more.
const SLICE: Duration = Duration::from_millis(100);
/// Why a connection failed is told by another way, and a moment later.
const REASON_WITHIN: Duration = Duration::from_millis(300);

/// See the module.
pub struct Client {
    pub(super) consumer: BaseConsumer<Listener>,
}

/// One ask while it is answered.
pub struct Reading<'a> {
    pub question: &'a Question,
    pub stopping: &'a AtomicBool,
    names: &'a OwnNames,
    within: Duration,
    until: Instant,
    bytes_left: u64,
    bytes: u64,
    /// Records and ends of partitions.
    heard: u64,
    /// By number of the partition.
    partitions: HashMap<i32, Backwards>,
}

impl Client {
    /// Contacts no broker before it returns.
    pub fn open(settings: &ClientConfig) -> KafkaResult<Client> {
        Ok(Client { consumer: BaseConsumer::from_config_and_context(settings, Listener::default())? })
    }

    /// The tails that are asked for. After an error, or where time ran out, this client should not be used again.
    pub fn tails(
        &self,
        question: &Question,
        names: &OwnNames,
        limits: Limits,
        stopping: &AtomicBool,
    ) -> Result<Vec<(u32, Tail)>, TailError> {
        let mut reading = Reading {
            question,
            stopping,
            names,
            within: limits.within,
            until: Instant::now() + limits.within,
            bytes_left: limits.bytes,
            bytes: 0,
            heard: 0,
            partitions: HashMap::new(),
        };
        let ends = self.ends(&reading)?;
        for end in &ends {
            let plan = Backwards::new(end.low, end.high, ends.len(), limits.records, question.confirmed);
            reading.partitions.insert(end.partition, plan);
        }
        let read = self.read(&mut reading);
        // What is fetched from here on would be for nobody.
        let _ = self.consumer.unassign();
        read?;
        let mut tails = reading.partitions;
        let tail = |number: &u32| {
            let read = i32::try_from(*number).ok().and_then(|number| tails.remove(&number));
            (*number, read.map_or_else(Tail::default, Backwards::into_tail))
        };
        Ok(question.partitions.iter().map(tail).collect())
    }

    /// Reads chunk after chunk, the short tails first.
    fn read(&self, reading: &mut Reading<'_>) -> Result<(), TailError> {
        let mut numbers: Vec<i32> = reading.partitions.keys().copied().collect();
        numbers.sort_unstable();
        let mut waiting = VecDeque::from(numbers);
        loop {
            let (mut group, mut offsets) = (Vec::new(), 0);
            while let Some(number) = waiting.front().copied() {
                if let Some(chunk) = reading.partitions.get(&number).and_then(Backwards::chunk) {
                    if offsets > 0 && offsets + chunk.len() > OFFSETS_AT_ONCE {
                        break;
                    }
                    offsets += chunk.len();
                    group.push((number, Offset::Offset(chunk.from)));
                }
                waiting.pop_front();
            }
            if group.is_empty() {
                return Ok(());
            }
            self.read_group(reading, &group)?;
            for (number, _) in group.into_iter().rev() {
                match reading.partitions.get(&number).and_then(Backwards::chunk) {
                    Some(chunk) if chunk.len() >= LONG_CHUNK => waiting.push_front(number),
                    Some(_) => waiting.push_back(number),
                    None => {}
                }
            }
        }
    }

    /// Reads one chunk of each of these partitions.
    fn read_group(&self, reading: &mut Reading<'_>, group: &[(i32, Offset)]) -> Result<(), TailError> {
        let assigned = places(&reading.question.topic, group.iter().copied());
        let assigned = assigned.and_then(|places| self.consumer.assign(&places));
        assigned.map_err(|error| self.failed(reading, &error.to_string()))?;
        let mut open: HashSet<i32> = group.iter().map(|(number, _)| *number).collect();
        while !open.is_empty() {
            if reading.stopping.load(Ordering::Relaxed) {
                return Err(TailError::Ended);
            }
            let left = reading.left();
            if left.is_zero() && reading.heard == 0 {
                // Not a word: that is no long tail, but a broker that is away or may be a client that hangs.
                return Err(self.failed(reading, "no broker answered"));
            }
            if left.is_zero() || reading.bytes_left == 0 {
                reading.cut(if left.is_zero() { Cut::Time } else { Cut::Bytes });
                return Ok(());
            }
            match self.consumer.poll(left.min(SLICE)) {
                None => {}
                Some(Ok(message)) => reading.record(&message, &mut open),
                Some(Err(KafkaError::PartitionEOF(number))) => reading.end(number, &mut open),
                Some(Err(error)) => match error.rdkafka_error_code() {
                    Some(code @ Code::TopicAuthorizationFailed) => return Err(reading.not_allowed(code)),
                    Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition) => {
                        // Said only once the cluster is sure: it was deleted.
                        reading.partitions.values_mut().for_each(Backwards::replaced);
                        return Ok(());
                    }
                    // A broker that is away comes back or the time runs out; and whether the group's coordinator may be
                    // asked for does not matter.
                    _ => {}
                },
            }
        }
        Ok(())
    }

    /// The ask has failed with `error`, of which librdkafka often only says that time ran out.
    pub(super) fn failed(&self, reading: &Reading<'_>, error: &str) -> TailError {
        let until = Instant::now() + REASON_WITHIN;
        while self.consumer.context().last().is_none() && Instant::now() < until {
            // Nobody waits for a record any more.
            let _ = self.consumer.poll(REASON_WITHIN / 10);
        }
        let reason = self.consumer.context().last().unwrap_or_else(|| error.to_owned());
        TailError::NoAnswer { topic: reading.question.topic.clone(), within: reading.within, reason }
    }
}

impl Reading<'_> {
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    pub fn not_allowed(&self, code: Code) -> TailError {
        TailError::NotAllowed { topic: self.question.topic.clone(), code }
    }

    fn record(&mut self, message: &BorrowedMessage<'_>, open: &mut HashSet<i32>) {
        let headers = Headers::of(message);
        let weight = |(name, value): (&[u8], Option<&[u8]>)| name.len() + value.map_or(0, <[u8]>::len);
        let bytes = message.payload().map_or(0, <[u8]>::len)
            + message.key().map_or(0, <[u8]>::len)
            + headers.clone().map(weight).sum::<usize>();
        let bytes = (bytes as u64).max(RECORD_BYTES);
        self.heard += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        let number = message.partition();
        let Some(plan) = self.partitions.get_mut(&number).filter(|_| open.contains(&number)) else { return };
        if plan.record(message.offset(), self.names.own(headers)) == Progress::Complete {
            self.chunk_read(number, open);
        }
    }

    /// The partition has no more records.
    fn end(&mut self, number: i32, open: &mut HashSet<i32>) {
        self.heard += 1;
        self.chunk_read(number, open);
    }

    fn chunk_read(&mut self, number: i32, open: &mut HashSet<i32>) {
        // So many records of the size seen so far that the bytes last for two such chunks.
        let average = (self.bytes / self.heard.max(1)).max(RECORD_BYTES);
        let affordable = self.bytes_left / average / 2;
        if open.remove(&number)
            && let Some(plan) = self.partitions.get_mut(&number)
        {
            plan.next_chunk(affordable);
        }
    }

    fn cut(&mut self, cut: Cut) {
        self.partitions.values_mut().for_each(|plan| plan.cut(cut));
    }
}

pub fn places(topic: &str, places: impl Iterator<Item = (i32, Offset)>) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in places {
        list.add_partition_offset(topic, partition, offset)?;
    }
    Ok(list)
}
