//! The consumer that reads the ends of a topic's partitions. It joins no group, commits nothing, creates no topic, and
//! keeps little in memory: see [`properties::tail`](crate::sink::properties::tail). Each call blocks, within the ask's time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::bindings as native;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::sink::producer::without_counts;
use crate::sink::tail::backwards::{Backwards, Progress};
use crate::sink::tail::own::OwnNames;
use crate::sink::tail::{Cut, Limits, Question, Tail, TailError};

/// A record counts as so many bytes at least: what librdkafka needs for it besides its content.
const RECORD_BYTES: u64 = 256;
/// Offsets that are read at once, over all partitions: so, where there is too much to read, some are read whole.
const OFFSETS_AT_ONCE: i64 = 32_768;
/// Between two looks at whether nobody wants the answer any more.
const SLICE: Duration = Duration::from_millis(100);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// Why a connection failed is told by another way, and a moment later.
const REASON_WITHIN: Duration = Duration::from_millis(300);

/// See the module.
pub struct Client {
    consumer: BaseConsumer<Listener>,
}

/// One ask while it is answered.
struct Reading<'a> {
    question: &'a Question,
    names: &'a OwnNames,
    stopping: &'a AtomicBool,
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
            names,
            stopping,
            within: limits.within,
            until: Instant::now() + limits.within,
            bytes_left: limits.bytes,
            bytes: 0,
            heard: 0,
            partitions: HashMap::new(),
        };
        let there = self.partitions(&reading)?;
        let lows = self.offsets(&reading, &there, Offset::Beginning)?;
        let highs = self.offsets(&reading, &there, Offset::End)?;
        for (partition, high) in &highs {
            let low = lows.get(partition).copied().unwrap_or_default();
            let plan = Backwards::new(low, *high, highs.len(), limits.records, question.confirmed);
            reading.partitions.insert(*partition, plan);
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

    /// Those of the partitions that are there. Waits until each has a leader.
    fn partitions(&self, reading: &Reading<'_>) -> Result<Vec<i32>, TailError> {
        let topic = &*reading.question.topic;
        loop {
            let metadata = match self.consumer.fetch_metadata(Some(topic), reading.left()) {
                Ok(metadata) => metadata,
                Err(error) => return Err(self.failed(reading, &error)),
            };
            let found = metadata.topics().iter().find(|found| found.name() == topic);
            let trouble = match found.map(|found| (found, found.error().map(Code::from))) {
                None | Some((_, Some(Code::UnknownTopicOrPartition | Code::UnknownTopic))) => return Ok(Vec::new()),
                Some((_, Some(code @ Code::TopicAuthorizationFailed))) => return Err(reading.not_allowed(code)),
                Some((_, Some(code))) => code.to_string(),
                Some((found, None)) => {
                    let wanted = |id: i32| u32::try_from(id).is_ok_and(|id| reading.question.partitions.contains(&id));
                    let there: Vec<_> = found.partitions().iter().filter(|partition| wanted(partition.id())).collect();
                    match there.iter().find(|partition| partition.leader() < 0) {
                        None => return Ok(there.iter().map(|partition| partition.id()).collect()),
                        Some(partition) => format!("partition {} has no leader", partition.id()),
                    }
                }
            };
            reading.pause(trouble)?;
        }
    }

    /// Where the logs of these partitions begin or end. What has vanished meanwhile is left out.
    fn offsets(
        &self,
        reading: &Reading<'_>,
        partitions: &[i32],
        place: Offset,
    ) -> Result<HashMap<i32, i64>, TailError> {
        let topic = &*reading.question.topic;
        let mut found = HashMap::new();
        let mut missing = partitions.to_vec();
        while !missing.is_empty() {
            let asked = places(topic, missing.iter().map(|partition| (*partition, place)));
            let answered = asked.and_then(|asked| self.consumer.offsets_for_times(asked, reading.left()));
            let answered = answered.map_err(|error| self.failed(reading, &error))?;
            let mut trouble = "no answer".to_owned();
            for element in answered.elements() {
                match (element.error().map_err(|error| error.rdkafka_error_code()), element.offset()) {
                    (Ok(()), Offset::Offset(offset)) => _ = found.insert(element.partition(), offset),
                    (Err(Some(code @ Code::TopicAuthorizationFailed)), _) => return Err(reading.not_allowed(code)),
                    (Err(Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition)), _) => {
                        missing.retain(|partition| *partition != element.partition());
                    }
                    (Err(Some(code)), _) => trouble = code.to_string(),
                    (Ok(()) | Err(None), _) => {}
                }
            }
            missing.retain(|partition| !found.contains_key(partition));
            if !missing.is_empty() {
                reading.pause(trouble)?;
            }
        }
        Ok(found)
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
            let affordable = reading.affordable();
            for (number, _) in group {
                if let Some(plan) = reading.partitions.get_mut(&number) {
                    plan.next_chunk(affordable);
                    waiting.push_back(number);
                }
            }
        }
    }

    /// Reads one chunk of each of these partitions.
    fn read_group(&self, reading: &mut Reading<'_>, group: &[(i32, Offset)]) -> Result<(), TailError> {
        let assigned = places(&reading.question.topic, group.iter().copied());
        let assigned = assigned.and_then(|places| self.consumer.assign(&places));
        assigned.map_err(|error| self.failed(reading, &error))?;
        let mut open: HashSet<i32> = group.iter().map(|(number, _)| *number).collect();
        while !open.is_empty() {
            if reading.stopping.load(Ordering::Relaxed) {
                return Err(TailError::Ended);
            }
            let left = reading.left();
            if left.is_zero() {
                // Not a word may mean that this client is broken, rather than that there is much to read.
                if reading.heard == 0 {
                    return Err(self.failed(reading, &KafkaError::MessageConsumption(Code::OperationTimedOut)));
                }
                reading.cut(Cut::Time);
                return Ok(());
            }
            if reading.bytes_left == 0 {
                reading.cut(Cut::Bytes);
                return Ok(());
            }
            match self.consumer.poll(left.min(SLICE)) {
                None => {}
                Some(Ok(message)) => {
                    let progress = reading.record(&message);
                    if progress == Progress::Complete {
                        open.remove(&message.partition());
                    }
                }
                Some(Err(KafkaError::PartitionEOF(ended))) => {
                    reading.heard += 1;
                    open.remove(&ended);
                }
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

    /// What to say of an error of librdkafka, which often only says that time ran out.
    fn failed(&self, reading: &Reading<'_>, error: &KafkaError) -> TailError {
        let until = Instant::now() + REASON_WITHIN;
        while self.consumer.context().last().is_none() && Instant::now() < until {
            // Nothing is assigned that could be missed.
            let _ = self.consumer.poll(BETWEEN_LOOKS);
        }
        match error.rdkafka_error_code() {
            Some(code @ Code::TopicAuthorizationFailed) => reading.not_allowed(code),
            _ => reading.no_answer(self.consumer.context().last().unwrap_or_else(|| error.to_string())),
        }
    }
}

impl Reading<'_> {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Waits a moment before the cluster is asked once more, if there is time for it.
    fn pause(&self, trouble: String) -> Result<(), TailError> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(TailError::Ended);
        }
        if self.left() <= BETWEEN_LOOKS {
            return Err(self.no_answer(trouble));
        }
        thread::sleep(BETWEEN_LOOKS);
        Ok(())
    }

    fn record(&mut self, message: &BorrowedMessage<'_>) -> Progress {
        let headers = Headers::of(message);
        let content = message.payload().map_or(0, <[u8]>::len) + message.key().map_or(0, <[u8]>::len);
        let headers_bytes = headers.map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len)).sum::<usize>();
        let bytes = (content as u64).saturating_add(headers_bytes as u64).max(RECORD_BYTES);
        self.heard += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        let Some(plan) = self.partitions.get_mut(&message.partition()) else { return Progress::More };
        plan.record(message.offset(), self.names.own(Headers::of(message)))
    }

    /// How many records of the size seen so far the next chunks should hold, so that the bytes last for some of them.
    fn affordable(&self) -> u64 {
        let average = self.bytes / self.heard.max(1);
        self.bytes_left / average.max(RECORD_BYTES) / 2
    }

    fn cut(&mut self, cut: Cut) {
        self.partitions.values_mut().for_each(|plan| plan.cut(cut));
    }

    fn not_allowed(&self, code: Code) -> TailError {
        TailError::NotAllowed { topic: self.question.topic.clone(), code }
    }

    fn no_answer(&self, reason: String) -> TailError {
        TailError::NoAnswer { topic: self.question.topic.clone(), within: self.within, reason }
    }
}

fn places(topic: &str, places: impl Iterator<Item = (i32, Offset)>) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in places {
        list.add_partition_offset(topic, partition, offset)?;
    }
    Ok(list)
}

/// The headers of a record. The crate's own iterator panics on a name that is not UTF-8, and other writers may write any.
struct Headers<'m> {
    list: *mut native::rd_kafka_headers_t,
    next: usize,
    message: std::marker::PhantomData<&'m ()>,
}

impl<'m> Headers<'m> {
    fn of(message: &'m BorrowedMessage<'_>) -> Headers<'m> {
        let mut list = ptr::null_mut();
        // SAFETY: the message is alive for 'm, and the list belongs to it. Where it has none, or they cannot be read, the
        // pointer stays null.
        let _ = unsafe { native::rd_kafka_message_headers(message.ptr(), &mut list) };
        Headers { list, next: 0, message: std::marker::PhantomData }
    }
}

impl<'m> Iterator for Headers<'m> {
    type Item = (&'m [u8], Option<&'m [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.list.is_null() {
            return None;
        }
        let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
        // SAFETY: the list is alive for 'm, as its message is. Past its end this returns an error and sets nothing.
        let found = unsafe { native::rd_kafka_header_get_all(self.list, self.next, &mut name, &mut value, &mut size) };
        if found != native::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR || name.is_null() {
            return None;
        }
        self.next += 1;
        // SAFETY: a name ends with a null byte, a value that is not null has `size` bytes, and both belong to the message.
        let (name, value) = unsafe {
            let value = (!value.is_null()).then(|| std::slice::from_raw_parts(value.cast::<u8>(), size));
            (CStr::from_ptr(name).to_bytes(), value)
        };
        Some((name, value))
    }
}

/// Keeps the newest error of a connection, for the reason of an ask that failed. What librdkafka logs is for who looks for
/// it: the producer, which talks to the same brokers, says aloud what is wrong with them.
#[derive(Default)]
struct Listener {
    last: Mutex<Option<String>>,
}

impl Listener {
    fn last(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ClientContext for Listener {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", facility, "{text}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        // The end of a partition is no error, the coordinator is not needed, and "1/1 brokers are down" says less than the
        // error before it.
        let says_nothing = matches!(
            code,
            Some(
                Code::PartitionEOF
                    | Code::GroupAuthorizationFailed
                    | Code::CoordinatorNotAvailable
                    | Code::CoordinatorLoadInProgress
                    | Code::NotCoordinator
                    | Code::AllBrokersDown
            )
        );
        if !says_nothing {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(without_counts(reason).to_owned());
        }
    }
}

impl ConsumerContext for Listener {}
