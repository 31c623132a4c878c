//! The reader against librdkafka's mock cluster: the plain cases, the limits, and what a broker is not easily made to do.
//! What is promised is tested on a real one.

use std::ffi::CString;

use rdkafka::bindings::{self as native, rd_kafka_resp_err_t as Error, rd_kafka_vtype_t as Part};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::*;
use crate::config::{Secret, kafka};
use crate::router::Token;
use crate::sink::producer::Inbox;
use crate::sink::stand_in::StandIn;

const WITHIN: Duration = Duration::from_secs(20);

struct Script {
    broker: StandIn,
    config: Config,
    producer: BaseProducer,
    mailbox: Arc<Mailbox>,
}

impl Script {
    fn new() -> Script {
        let broker = StandIn::start().expect("a mock cluster");
        let mut config = Config::default();
        config.kafka.brokers = Some(broker.brokers());
        let mut client = ClientConfig::new();
        let producer = client.set("bootstrap.servers", broker.brokers()).create().expect("a producer");
        Script { broker, config, producer, mailbox: Arc::default() }
    }

    /// Appends `count` records, the first with commit LSN `from` and each with one more; None: of another writer.
    fn append(&self, topic: &str, partition: i32, from: Option<u64>, count: u64, value: &str) {
        for number in 0..count {
            let lsn = from.map(|from| from + number);
            let headers = lsn.map(|lsn| {
                let token = Token { epoch: 1, commit_lsn: Lsn(lsn), ordinal: 0 }.to_string();
                let headers = OwnedHeaders::new().insert(Header { key: "id", value: Some(&id(lsn)) });
                headers.insert(Header { key: "token", value: Some(&token) })
            });
            let mut record = BaseRecord::<str, str>::to(topic).partition(partition).key("k").payload(value);
            record.headers = headers;
            self.producer.send(record).expect("room in the queue");
        }
        self.producer.flush(WITHIN).expect("all records stored");
    }

    fn reader(&self, limits: Option<Limits>) -> TailReader {
        let mailbox = self.mailbox.clone();
        match limits {
            None => TailReader::start(&self.config, mailbox),
            Some(limits) => TailReader::start_with(&self.config, mailbox, limits),
        }
        .expect("a reader")
    }

    fn tails(&self, reader: &TailReader, topic: &str, partitions: &[u32], confirmed: u64) -> Vec<(u32, Tail)> {
        reader.ask(topic.into(), partitions.to_vec(), Lsn(confirmed), 1);
        answer(&self.mailbox).tails.expect("tails")
    }
}

fn id(lsn: u64) -> String {
    format!("message-{lsn}")
}

/// The LSNs below `below` whose records the tail holds.
fn held(tail: &Tail, below: u64) -> Vec<u64> {
    (0..below).filter(|lsn| tail.contains(id(*lsn).as_bytes(), Lsn(*lsn))).collect()
}

const LIMITS: Limits = Limits { records: 100_000, bytes: 1 << 30, within: Duration::from_secs(10) };

/// Waits for one answer.
pub fn answer(mailbox: &Mailbox) -> TailAnswer {
    let (mut inbox, until) = (Inbox::default(), Instant::now() + WITHIN);
    while Instant::now() < until {
        mailbox.take(&mut inbox);
        if let Some(answer) = inbox.tails.pop() {
            return answer;
        }
        thread::sleep(Duration::from_millis(2)); // between two looks
    }
    panic!("no answer within {WITHIN:?}");
}

#[test]
fn own_records_from_the_confirmed_lsn_on_are_known_and_no_others() {
    let script = Script::new();
    script.append("orders", 0, Some(0), 1_000, "x");
    script.append("orders", 0, None, 300, "x");
    script.append("orders", 0, Some(1_000), 5, "x");
    script.append("orders", 2, Some(0), 3, "x");
    let reader = script.reader(None);
    let tails = script.tails(&reader, "orders", &[2, 0, 1, 99], 400);
    assert_eq!(Vec::from_iter(tails.iter().map(|(partition, _)| *partition)), [2, 0, 1, 99]);
    assert_eq!(held(&tails[1].1, 2_000), Vec::from_iter(400..1_005));
    assert!([0, 2, 3].iter().all(|index| tails[*index].1 == Tail::default()), "{tails:?}");
    // The client is used again.
    let tails = script.tails(&reader, "orders", &[2], 1);
    assert_eq!(held(&tails[0].1, 10), [1, 2]);
}

#[test]
fn a_missing_topic_is_answered_at_once_and_not_made() {
    let script = Script::new();
    let reader = script.reader(None);
    let begun = Instant::now();
    assert_eq!(script.tails(&reader, "nowhere", &[0, 1], 1), [(0, Tail::default()), (1, Tail::default())]);
    assert_eq!(script.tails(&reader, "nowhere", &[], 1), []);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn an_answer_carries_the_number_of_its_ask() {
    let script = Script::new();
    script.append("orders", 0, Some(0), 3, "x");
    let reader = script.reader(None);
    for asked in [5, 9] {
        reader.ask("orders".into(), vec![0], Lsn(0), asked);
        assert_eq!(answer(&script.mailbox).asked, asked);
    }
}

#[test]
fn reading_ends_at_each_limit_and_says_so() {
    let script = Script::new();
    script.append("orders", 0, Some(0), 2_000, &"x".repeat(1_000));
    let cut = |limits| {
        let reader = script.reader(Some(limits));
        let tails = script.tails(&reader, "orders", &[0], 0);
        (tails[0].1.len(), tails[0].1.cut())
    };
    assert_eq!(cut(LIMITS), (2_000, None));
    assert_eq!(cut(Limits { records: 150, ..LIMITS }), (150, Some(Cut::Records)));
    let (len, why) = cut(Limits { bytes: 500_000, ..LIMITS });
    assert!((100..500).contains(&len) && why == Some(Cut::Bytes), "{len} {why:?}");
}

#[test]
fn where_no_broker_answers_the_ask_ends_in_time_with_the_reason() {
    let mut script = Script::new();
    script.config.kafka.brokers = Some("127.0.0.1:1".into());
    let reader = script.reader(Some(Limits { within: Duration::from_secs(1), ..LIMITS }));
    let begun = Instant::now();
    reader.ask("orders".into(), vec![0], Lsn(1), 1);
    let error = answer(&script.mailbox).tails.expect_err("no tails");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(error.to_string().contains("127.0.0.1:1") && !error.lasts(), "{error}");
}

#[test]
fn a_group_that_may_not_be_used_does_not_matter() {
    let script = Script::new();
    script.append("orders", 0, Some(0), 100, "x");
    script.broker.refuse_coordinator(&[Error::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED; 20]);
    let reader = script.reader(None);
    assert_eq!(script.tails(&reader, "orders", &[0], 50)[0].1.len(), 50);
}

#[test]
fn a_header_whose_name_is_no_text_harms_nobody() {
    let script = Script::new();
    script.append("orders", 0, Some(0), 1, "x");
    append_with_broken_header(&script.producer, "orders");
    script.append("orders", 0, Some(1), 1, "x");
    let reader = script.reader(None);
    assert_eq!(held(&script.tails(&reader, "orders", &[0], 0)[0].1, 10), [0, 1]);
}

/// The crate takes only text as a header's name.
fn append_with_broken_header(producer: &BaseProducer, topic: &str) {
    let topic = CString::new(topic).expect("a name");
    let (name, value) = ([0xff_u8, 0xfe], b"v");
    // SAFETY: every field of `vus` that `vtype` names is set, and what it points to outlives the call, which copies it.
    unsafe {
        let headers = native::rd_kafka_headers_new(1);
        native::rd_kafka_header_add(headers, name.as_ptr().cast(), 2, value.as_ptr().cast(), 1);
        let mut parts: [native::rd_kafka_vu_t; 3] = std::mem::zeroed();
        parts[0].vtype = Part::RD_KAFKA_VTYPE_TOPIC;
        parts[0].u.cstr = topic.as_ptr();
        parts[1].vtype = Part::RD_KAFKA_VTYPE_PARTITION;
        parts[1].u.i32_ = 0;
        parts[2].vtype = Part::RD_KAFKA_VTYPE_HEADERS;
        parts[2].u.headers = headers;
        let error = native::rd_kafka_produceva(producer.client().native_ptr(), parts.as_ptr(), parts.len());
        assert!(error.is_null(), "the record was refused");
    }
    producer.flush(WITHIN).expect("the record stored");
}

/// What a user sets for the producer applies to this client too where it can, and never keeps it from starting.
#[test]
fn no_property_of_the_producer_keeps_the_reader_from_starting() {
    let mut script = Script::new();
    script.append("orders", 0, Some(0), 3, "x");
    let defaults = ClientConfig::new().create_native_config().expect("defaults");
    for name in kafka::passed_on() {
        let value = defaults.get(name).unwrap_or_default();
        let here = ClientConfig::new().set(name, &value).create_native_config().is_ok();
        let passed_on = kafka::canonical(name) == Some(name) && kafka::refusal(name, &value).is_none();
        if here && passed_on && !value.is_empty() {
            script.config.kafka.properties.insert(name.to_owned(), Secret::new(value));
        }
    }
    assert!(script.config.kafka.properties.len() > 50, "{}", script.config.kafka.properties.len());
    for (name, value) in [
        ("message.max.bytes", "100000000"),
        ("receive.message.max.bytes", "2000"),
        ("max.in.flight.requests.per.connection", "1"),
        ("enable.idempotence", "true"),
        ("enable.gapless.guarantee", "true"),
        ("acks", "all"),
        ("linger.ms", "5"),
        ("client.rack", "here"),
        ("socket.timeout.ms", "1000"),
        ("statistics.interval.ms", "50"),
    ] {
        script.config.kafka.properties.insert(name.to_owned(), Secret::new(value));
    }
    let reader = script.reader(None);
    assert_eq!(script.tails(&reader, "orders", &[0], 0)[0].1.len(), 3);
}

#[test]
fn the_thread_ends_with_its_handle() {
    let script = Script::new();
    script.append("orders", 0, Some(0), 3, "x");
    for ask in [false, true] {
        let reader = script.reader(None);
        if ask {
            script.tails(&reader, "orders", &[0], 0);
        }
        drop(reader);
        let until = Instant::now() + WITHIN;
        // The thread has the other one.
        while Arc::strong_count(&script.mailbox) > 1 {
            assert!(Instant::now() < until, "the thread is still there");
            thread::sleep(Duration::from_millis(2)); // between two looks
        }
    }
}
