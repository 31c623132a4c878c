//! What is in Kafka, by two clients: librdkafka's consumer, which is quick and shows everything, and Kafka's own
//! console consumer in Java, which shares no code with walpost.

use std::collections::HashMap;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Headers, Message};
use rdkafka::{Offset, TopicPartitionList};

use super::kafka::Kafka;
use super::programs::java;
use super::wait::{seconds, wait_some};

/// A record as a consumer sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Empty where the client does not tell it (the second one).
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// Milliseconds; -1 where the client does not tell it.
    pub timestamp: i64,
}

impl Seen {
    /// A header's text, None when it is absent or null.
    pub fn header(&self, name: &str) -> Option<String> {
        let (_, value) = self.headers.iter().find(|(header, _)| header == name)?;
        Some(String::from_utf8_lossy(value.as_deref()?).into_owned())
    }
}

impl Kafka {
    /// Every record of these topics up to their ends as of now, partition by partition, in offset order within each.
    pub fn read(&self, topics: &[&str]) -> Vec<Seen> {
        let mut all = Vec::new();
        self.scan(topics, |seen| all.push(seen));
        all.sort_by(|a, b| (&a.topic, a.partition, a.offset).cmp(&(&b.topic, b.partition, b.offset)));
        all
    }

    /// Shows every record of these topics up to their ends as of now, in offset order within a partition, without
    /// keeping it. A topic that does not exist has no records.
    pub fn scan(&self, topics: &[&str], mut show: impl FnMut(Seen)) {
        let mut config = self.client_config();
        config.set("group.id", "walpost-tests").set("enable.auto.commit", "false");
        config.set("allow.auto.create.topics", "false").set("fetch.wait.max.ms", "50");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        let mut ends: HashMap<(String, i32), i64> = HashMap::new();
        let mut assignment = TopicPartitionList::new();
        for topic in topics {
            for partition in 0..partitions(&consumer, topic) {
                let (low, high) = watermarks(&consumer, topic, partition);
                if high > low {
                    assignment.add_partition_offset(topic, partition, Offset::Offset(low)).expect("an offset");
                    ends.insert(((*topic).to_owned(), partition), high);
                }
            }
        }
        consumer.assign(&assignment).expect("an assignment");
        while !ends.is_empty() {
            // One broker of several may be away, which is no news.
            let away =
                |error: &KafkaError| error.rdkafka_error_code() == Some(RDKafkaErrorCode::BrokerTransportFailure);
            let message = wait_some(seconds(30), "records that are there", || {
                consumer.poll(seconds(1)).filter(|polled| !polled.as_ref().err().is_some_and(away))
            });
            let message = message.expect("a record");
            let place = (message.topic().to_owned(), message.partition());
            // What arrived after the ends were asked for is another read's.
            let Some(&end) = ends.get(&place) else { continue };
            if message.offset() < end {
                show(seen(&message));
            }
            if message.offset() + 1 >= end {
                ends.remove(&place);
            }
        }
    }

    /// The number of records in these topics.
    pub fn count(&self, topics: &[&str]) -> u64 {
        let consumer: BaseConsumer = self.client_config().create().expect("a consumer");
        let of_partition = |topic: &str, partition| {
            let (low, high) = watermarks(&consumer, topic, partition);
            (high - low) as u64
        };
        topics.iter().flat_map(|topic| (0..partitions(&consumer, topic)).map(|p| of_partition(topic, p))).sum()
    }

    pub fn partition_count(&self, topic: &str) -> i32 {
        partitions(&self.client_config().create::<BaseConsumer>().expect("a consumer"), topic)
    }

    /// Reads `count` records of these topics with Kafka's own console consumer. It does not tell topic and time.
    pub fn read_with_second_client(&self, topics: &[&str], count: usize) -> Vec<Seen> {
        // Separators that no test's key, value or header contains.
        const FIELD: &str = "\u{1}\u{2}";
        const HEADER: &str = "\u{1}\u{3}";
        const RECORD: &str = "\u{1}\u{4}\n";
        const NULL: &str = "\u{1}\u{5}";
        let pattern: Vec<String> = topics.iter().map(|topic| topic.replace('.', "[.]")).collect();
        let mut command = java("256m");
        command.arg("org.apache.kafka.tools.consumer.ConsoleConsumer");
        command.args(["--bootstrap-server", &self.bootstrap(), "--from-beginning", "--timeout-ms", "60000"]);
        command.args(["--include", &pattern.join("|"), "--max-messages", &count.to_string()]);
        for print in ["partition", "offset", "headers", "key", "value"] {
            command.args(["--formatter-property", &format!("print.{print}=true")]);
        }
        command.args(["--formatter-property", &format!("key.separator={FIELD}")]);
        command.args(["--formatter-property", &format!("headers.separator={HEADER}")]);
        command.args(["--formatter-property", &format!("line.separator={RECORD}")]);
        command.args(["--formatter-property", &format!("null.literal={NULL}")]);
        let output = command.output().expect("java");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "Kafka's console consumer failed: {errors}");
        let text = String::from_utf8(output.stdout).expect("UTF-8, which is all that the tests write");
        let bytes = |text: &str| (text != NULL).then(|| text.as_bytes().to_vec());
        let record = |line: &str| {
            let fields: Vec<&str> = line.split(FIELD).collect();
            let &[partition, offset, headers, key, value] = fields.as_slice() else {
                panic!("not five fields: {line:?}")
            };
            let number = |field: &str, name: &str| {
                let digits = field.strip_prefix(name).unwrap_or_else(|| panic!("no {name} in {line:?}"));
                digits.parse::<i64>().unwrap_or_else(|_| panic!("no number in {field:?}"))
            };
            let headers = headers.split(HEADER).filter(|&header| header != "NO_HEADERS").map(|header| {
                let (name, value) = header.split_once(':').unwrap_or_else(|| panic!("no header in {header:?}"));
                (name.to_owned(), bytes(value))
            });
            Seen {
                topic: String::new(),
                partition: number(partition, "Partition:") as i32,
                offset: number(offset, "Offset:"),
                headers: headers.collect(),
                key: bytes(key),
                value: bytes(value),
                timestamp: -1,
            }
        };
        let records: Vec<Seen> = text.split_terminator(RECORD).map(record).collect();
        assert_eq!(records.len(), count, "records that the console consumer got; it says: {errors}");
        records
    }
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> i32 {
    let metadata = consumer.fetch_metadata(Some(topic), seconds(20)).expect("metadata from Kafka");
    metadata.topics().iter().map(|topic| topic.partitions().len() as i32).sum()
}

/// Where a partition begins and ends. One that has just been made may have no leader for a moment.
fn watermarks(consumer: &BaseConsumer, topic: &str, partition: i32) -> (i64, i64) {
    wait_some(seconds(30), "a partition's leader", || consumer.fetch_watermarks(topic, partition, seconds(10)).ok())
}

fn seen(message: &impl Message) -> Seen {
    let headers = message.headers().map(|headers| {
        headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
    });
    Seen {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers: headers.unwrap_or_default(),
        timestamp: message.timestamp().to_millis().unwrap_or(-1),
    }
}
