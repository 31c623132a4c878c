//! A small consumer for commands that show what has arrived: reads all partitions of some topics from their beginning, on
//! a thread of its own. A topic need not exist yet; it is read as soon as it does. Joins no group and commits nothing, so
//! it leaves no trace in the cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::mpsc;

use crate::sink::tail::headers::Headers;

/// Records that wait for whoever reads; beyond it the thread waits.
const QUEUE_RECORDS: usize = 1_000;
/// How long one look at the cluster may take.
const METADATA_WITHIN: Duration = Duration::from_secs(2);
/// Between two looks for a topic that is not there yet.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The topics cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the Kafka client that reads could not be made")]
    Client(#[source] KafkaError),
    #[error("the thread that reads could not be started")]
    Thread(#[source] std::io::Error),
    #[error("reading failed")]
    Read(#[source] KafkaError),
    #[error("reading has ended")]
    Ended,
}

/// A record as it was read.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// When it was handed out by the client.
    pub at: Instant,
}

impl Arrival {
    /// The first header of this name, as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(header, _)| header == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }
}

/// See the module. Dropped, it waits until its thread has stopped: a moment, or two seconds where no broker answers.
pub struct Reader {
    records: mpsc::Receiver<Result<Arrival, ReadError>>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Reader {
    /// Starts to read `topics` of the cluster at `brokers`, which need not answer yet.
    pub fn start(brokers: &str, topics: &[&str]) -> Result<Reader, ReadError> {
        let consumer = consumer(brokers).map_err(ReadError::Client)?;
        let (sender, records) = mpsc::channel(QUEUE_RECORDS);
        let stop = Arc::new(AtomicBool::new(false));
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        let stopped = stop.clone();
        let read = move || read(&consumer, topics, &sender, &stopped);
        let thread = thread::Builder::new().name("kafka-reader".into()).spawn(read).map_err(ReadError::Thread)?;
        Ok(Reader { records, stop, thread: Some(thread) })
    }

    /// The next record. Cancel-safe.
    pub async fn next(&mut self) -> Result<Arrival, ReadError> {
        self.records.recv().await.unwrap_or(Err(ReadError::Ended))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It may be waiting for room.
        self.records.close();
        if let Some(thread) = self.thread.take() {
            // It has panicked, then: its panic was printed, and there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

/// Whether a cluster answers at `brokers`. Blocks for some seconds where none does.
pub fn answers(brokers: &str) -> bool {
    let found = consumer(brokers).and_then(|consumer| consumer.fetch_metadata(None, METADATA_WITHIN));
    found.is_ok_and(|metadata| !metadata.brokers().is_empty())
}

fn consumer(brokers: &str) -> Result<BaseConsumer<Quiet>, KafkaError> {
    let mut client = ClientConfig::new();
    client
        .set("bootstrap.servers", brokers)
        .set("client.id", "walpost-reader")
        // librdkafka insists on a name; without subscribing and committing no group comes into being.
        .set("group.id", "walpost-reader")
        .set("enable.auto.commit", "false")
        // A look at a topic must not make it.
        .set("allow.auto.create.topics", "false")
        .set("auto.offset.reset", "earliest")
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "500")
        // A broker answers at once when there is something; this is for a broker that has none.
        .set("fetch.wait.max.ms", "100")
        .set("fetch.error.backoff.ms", "50")
        .set("topic.metadata.refresh.fast.interval.ms", "50")
        .set("enable.metrics.push", "false");
    client.set_log_level(RDKafkaLogLevel::Emerg);
    BaseConsumer::from_config_and_context(&client, Quiet)
}

fn read(
    consumer: &BaseConsumer<Quiet>,
    mut wanted: Vec<String>,
    sender: &mpsc::Sender<Result<Arrival, ReadError>>,
    stop: &AtomicBool,
) {
    let mut look_at = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if !wanted.is_empty() && Instant::now() >= look_at {
            wanted.retain(|topic| !assign(consumer, topic));
            look_at = Instant::now() + LOOK_EVERY;
        }
        let read = match consumer.poll(LOOK_EVERY) {
            None => continue,
            Some(Ok(message)) => Ok(arrival(&message)),
            Some(Err(error)) if passes(&error) => continue,
            Some(Err(error)) => Err(ReadError::Read(error)),
        };
        let failed = read.is_err();
        if sender.blocking_send(read).is_err() || failed {
            return;
        }
    }
}

/// Takes all partitions of `topic`, if it is there with a leader for each.
fn assign(consumer: &BaseConsumer<Quiet>, topic: &str) -> bool {
    let Ok(metadata) = consumer.fetch_metadata(Some(topic), METADATA_WITHIN) else {
        return false;
    };
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return false;
    };
    if found.error().is_some()
        || found.partitions().is_empty()
        || found.partitions().iter().any(|part| part.leader() < 0)
    {
        return false;
    }
    let mut partitions = TopicPartitionList::new();
    for partition in found.partitions() {
        if partitions.add_partition_offset(topic, partition.id(), Offset::Beginning).is_err() {
            return false;
        }
    }
    consumer.incremental_assign(&partitions).is_ok()
}

/// What librdkafka tries again by itself.
fn passes(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    let passing = [
        Code::AllBrokersDown,
        Code::BrokerTransportFailure,
        Code::Resolve,
        Code::OperationTimedOut,
        Code::UnknownTopicOrPartition,
        Code::UnknownPartition,
        Code::UnknownTopic,
        Code::LeaderNotAvailable,
        Code::NotLeaderForPartition,
        Code::PartitionEOF,
    ];
    error.rdkafka_error_code().is_some_and(|code| passing.contains(&code))
}

fn arrival(message: &BorrowedMessage<'_>) -> Arrival {
    let headers = Headers::of(message)
        .map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), value.map(<[u8]>::to_vec)))
        .collect();
    Arrival {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers,
        at: Instant::now(),
    }
}

/// Says nothing: what fails shows in what is read.
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ConsumerContext for Quiet {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_found_by_its_name_and_only_as_text() {
        let arrival = Arrival {
            topic: "t".into(),
            partition: 0,
            offset: 0,
            key: None,
            value: None,
            headers: vec![("id".into(), Some(b"1".to_vec())), ("none".into(), None), ("raw".into(), Some(vec![0xff]))],
            at: Instant::now(),
        };
        assert_eq!(arrival.header("id"), Some("1"));
        assert_eq!(arrival.header("none"), None);
        assert_eq!(arrival.header("raw"), None);
        assert_eq!(arrival.header("missing"), None);
    }
}
