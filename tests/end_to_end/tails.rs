//! Reading back the ends of partitions on a real broker: what is there is known, what is not is not, and no state of the
//! topic or the broker holds the answer up. Here the library's reader is used itself, because in the built binary only its
//! absence would show.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::walpost::config::{Config, Secret};
use ::walpost::lsn::Lsn;
use ::walpost::router::Token as StreamToken;
use ::walpost::sink::producer::{Inbox, Mailbox};
use ::walpost::sink::tail::{Cut, Tail, TailAnswer, TailError, TailReader};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::kit::*;

/// Longer than an ask may take.
const BOUND: Duration = seconds(12);

struct Asking {
    mailbox: Arc<Mailbox>,
    reader: TailReader,
}

impl Asking {
    fn new(config: &Config) -> Asking {
        let mailbox = Arc::new(Mailbox::default());
        let reader = TailReader::start(config, mailbox.clone()).expect("a reader");
        Asking { mailbox, reader }
    }

    fn plain(kafka: &Kafka) -> Asking {
        Asking::new(&config(kafka.bootstrap()))
    }

    #[track_caller]
    fn answer(&self, topic: &str, partitions: u32, confirmed: u64) -> TailAnswer {
        self.reader.ask(topic.into(), (0..partitions).collect(), Lsn(confirmed), 1);
        self.next()
    }

    #[track_caller]
    fn next(&self) -> TailAnswer {
        let mut inbox = Inbox::default();
        let answer = async {
            loop {
                self.mailbox.woken().await;
                self.mailbox.take(&mut inbox);
                if let Some(answer) = inbox.tails.pop() {
                    return answer;
                }
            }
        };
        block_on(async { tokio::time::timeout(BOUND, answer).await }).expect("an answer in time")
    }

    #[track_caller]
    fn tails(&self, topic: &str, partitions: u32, confirmed: u64) -> Vec<Tail> {
        let tails = self.answer(topic, partitions, confirmed).tails.expect("tails");
        tails.into_iter().map(|(_, tail)| tail).collect()
    }

    #[track_caller]
    fn tail(&self, topic: &str, confirmed: u64) -> Tail {
        self.tails(topic, 1, confirmed).remove(0)
    }
}

fn config(brokers: String) -> Config {
    let mut config = Config::default();
    config.kafka.brokers = Some(brokers);
    config
}

fn id(lsn: u64) -> String {
    format!("message-{lsn}")
}

/// The LSNs below `below` whose records the tail holds.
fn held(tail: &Tail, below: u64) -> Vec<u64> {
    (0..below).filter(|lsn| tail.contains(id(*lsn).as_bytes(), Lsn(*lsn))).collect()
}

fn headers(lsn: u64) -> OwnedHeaders {
    let token = StreamToken { epoch: 1_750_000_000, commit_lsn: Lsn(lsn), ordinal: 0 }.to_string();
    let headers = OwnedHeaders::new().insert(Header { key: "id", value: Some(&id(lsn)) });
    let headers = headers.insert(Header { key: "eventType", value: Some("Happened") });
    headers.insert(Header { key: "token", value: Some(&token) })
}

/// Writes as walpost does, and as others do.
struct Writer {
    producer: BaseProducer,
    value: String,
}

impl Writer {
    fn new(kafka: &Kafka) -> Writer {
        let mut config = kafka.client_config();
        // As walpost sets them.
        config.set("batch.size", "64000").set("linger.ms", "1");
        Writer { producer: config.create().expect("a producer"), value: "x".repeat(200) }
    }

    fn send(&self, topic: &str, partition: i32, key: &str, headers: Option<OwnedHeaders>) {
        let mut record = BaseRecord::<str, str>::to(topic).partition(partition).key(key).payload(&self.value);
        record.headers = headers;
        self.producer.send(record).expect("room in the queue");
    }

    /// A record for each commit LSN.
    fn own(&self, topic: &str, partition: i32, lsns: impl IntoIterator<Item = u64>) {
        lsns.into_iter().for_each(|lsn| self.send(topic, partition, "k", Some(headers(lsn))));
        self.flush();
    }

    fn foreign(&self, topic: &str, partition: i32, count: usize) {
        (0..count).for_each(|_| self.send(topic, partition, "k", None));
        self.flush();
    }

    fn flush(&self) {
        self.producer.flush(seconds(60)).expect("all records stored");
    }
}

#[test]
fn what_a_relay_wrote_is_known() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().rows(500);
    let expected = workload.run();
    scene.catch_up(seconds(60));
    let asking = Asking::plain(kafka);
    let mut known = 0;
    for topic in workload.topics() {
        let partitions = kafka.partition_count(&topic) as u32;
        let tails = asking.tails(&topic, partitions, 1);
        known += tails.iter().map(Tail::len).sum::<usize>();
        for record in kafka.read(&[&topic]) {
            let token: StreamToken = record.header("token").expect("a token").parse().expect("walpost's form");
            let id = record.header("id").expect("an id");
            let tail = &tails[record.partition as usize];
            assert!(tail.contains(id.as_bytes(), token.commit_lsn), "{record:?}");
            assert!(!tail.contains(id.as_bytes(), Lsn(token.commit_lsn.0 + 1)), "{record:?}");
        }
    }
    assert_eq!(known, expected.len());
}

#[test]
fn a_long_tail_is_known_whole_among_records_of_others() {
    let (kafka, topic) = (Kafka::shared(), format!("tails.long.{}", unique()));
    kafka.create_topic(&topic, 1, &[]);
    let writer = Writer::new(kafka);
    writer.own(&topic, 0, 0..2_000);
    writer.foreign(&topic, 0, 3_000);
    // Republished from the table.
    for lsn in 5_000..5_100 {
        let mark = Header { key: "origin", value: Some("recover") };
        writer.send(&topic, 0, "k", Some(headers(lsn).insert(mark)));
    }
    writer.own(&topic, 0, 2_000..4_000);
    let asking = Asking::plain(kafka);
    let tail = asking.tail(&topic, 1_000);
    assert_eq!(held(&tail, 6_000), Vec::from_iter(1_000..4_000));
    assert_eq!((tail.len(), tail.cut()), (3_000, None));

    writer.foreign(&topic, 0, 100_000);
    let tail = asking.tail(&topic, 1_000);
    assert_eq!(tail.cut(), Some(Cut::Records), "{} records known", tail.len());
    writer.own(&topic, 0, 4_000..4_003);
    assert_eq!(held(&asking.tail(&topic, 4_001), 6_000), [4_001, 4_002]);
}

#[test]
fn a_log_that_was_cut_or_compacted_is_read_over_its_holes() {
    let cleaner = "log.cleaner.enable=true\nlog.cleaner.backoff.ms=100\nlog.cleaner.min.compaction.lag.ms=0";
    let kafka = Kafka::builder().property(cleaner).start();
    let (writer, asking) = (Writer::new(&kafka), Asking::plain(&kafka));
    kafka.create_topic("cut", 2, &[]);
    writer.own("cut", 0, 0..3_000);
    writer.own("cut", 1, 0..3_000);
    kafka.delete_records("cut", 0, 2_990);
    kafka.delete_records("cut", 1, 3_000);
    let tails = asking.tails("cut", 2, 0);
    assert_eq!(held(&tails[0], 3_000), Vec::from_iter(2_990..3_000));
    assert_eq!(tails[1], Tail::default());

    let compacted =
        [("cleanup.policy", "compact"), ("segment.bytes", "1048576"), ("min.cleanable.dirty.ratio", "0.001")];
    kafka.create_topic("compacted", 1, &compacted);
    for lsn in 0..20_000 {
        writer.send("compacted", 0, &format!("key-{}", lsn % 10), Some(headers(lsn)));
    }
    writer.flush();
    let mut offsets = BTreeSet::new();
    wait_for(seconds(60), "compaction", || {
        let records = kafka.read(&["compacted"]);
        offsets = records.iter().map(|record| record.offset as u64).collect();
        offsets.len() < 10_000
    });
    let tail = asking.tail("compacted", 100);
    // A further run of the cleaner may have taken more since the look.
    let left = kafka.read(&["compacted"]).iter().map(|record| record.offset as u64).collect::<BTreeSet<_>>();
    let held = BTreeSet::from_iter(held(&tail, 20_000));
    let wanted = |offsets: &BTreeSet<u64>| offsets.iter().copied().filter(|lsn| *lsn >= 100).collect::<BTreeSet<_>>();
    assert!(held.is_superset(&wanted(&left)) && held.is_subset(&wanted(&offsets)), "{} of {}", held.len(), left.len());
    assert_eq!(tail.cut(), None);
}

/// The marker of a transaction has an offset and is no record: behind it the end looks like a place that never comes.
#[test]
fn transactions_of_another_writer_do_not_hold_the_reading_up() {
    let (kafka, topic) = (Kafka::shared(), format!("tails.transactions.{}", unique()));
    kafka.create_topic(&topic, 3, &[]);
    let writer = Writer::new(kafka);
    let mut settings = kafka.client_config();
    let other = Writer {
        producer: settings.set("transactional.id", &topic).create().expect("a producer"),
        value: "theirs".into(),
    };
    other.producer.init_transactions(seconds(30)).expect("transactions");
    let asking = Asking::plain(kafka);
    writer.own(&topic, 0, 0..100);
    for ends_well in [true, false, false] {
        other.producer.begin_transaction().expect("a transaction");
        other.foreign(&topic, 0, 20);
        other.foreign(&topic, 1, 20);
        match ends_well {
            true => other.producer.commit_transaction(seconds(30)).expect("a commit"),
            false => other.producer.abort_transaction(seconds(30)).expect("an abort"),
        }
    }
    let ask = |wanted: Vec<u64>| {
        let begun = Instant::now();
        let tails = asking.tails(&topic, 3, 40);
        assert_eq!(held(&tails[0], 200), wanted);
        assert_eq!([&tails[1], &tails[2]], [&Tail::default(), &Tail::default()]);
        assert!(begun.elapsed() < seconds(3), "{:?}", begun.elapsed());
    };
    ask(Vec::from_iter(40..100));
    // What is behind one that is still open counts too.
    other.producer.begin_transaction().expect("a transaction");
    other.foreign(&topic, 0, 20);
    writer.own(&topic, 0, 100..110);
    ask(Vec::from_iter(40..110));
}

#[test]
fn records_larger_than_an_answer_of_the_broker_are_read() {
    let (kafka, topic) = (Kafka::shared(), format!("tails.large.{}", unique()));
    kafka.create_topic(&topic, 1, &[]);
    let writer = Writer { value: "x".repeat(900_000), ..Writer::new(kafka) };
    writer.own(&topic, 0, 0..50);
    let tail = Asking::plain(kafka).tail(&topic, 5);
    assert_eq!((held(&tail, 100), tail.cut()), (Vec::from_iter(5..50), None));
}

#[test]
fn hundreds_of_partitions_are_answered_at_once() {
    let kafka = Kafka::start_own();
    let writer = Writer::new(&kafka);
    for partitions in [1u32, 100, 400] {
        let topic = format!("tails.{partitions}");
        kafka.create_topic(&topic, partitions as i32, &[]);
        // The broker goes on making partitions after it has named their leaders.
        wait_for(seconds(60), "partitions that are all there", || {
            Asking::plain(&kafka).answer(&topic, partitions, 1).tails.is_ok()
        });
        let (asking, grown) = (Asking::plain(&kafka), Cell::new(0));
        let ask = |what: &str, confirmed: u64| {
            let (tails, took, more) = measured(|| asking.tails(&topic, partitions, confirmed));
            eprintln!("{partitions} partitions, {what}: {} ms, {more} KiB more at most", took.as_millis());
            grown.set(grown.get().max(more));
            tails
        };
        ask("empty, a new client", 1);
        let tails = ask("empty, the same client", 1);
        assert!(tails.iter().all(|tail| *tail == Tail::default()));
        for partition in 0..partitions as i32 {
            writer.own(&topic, partition, 0..1_000);
        }
        let tails = ask("10 of 1000 records", 990);
        assert!(tails.iter().all(|tail| (tail.len(), tail.cut()) == (10, None)));
        let tails = ask("100 of 1000 records", 900);
        assert!(tails.iter().all(|tail| (tail.len(), tail.cut()) == (100, None)));
        // More than may be read at all where partitions are many: then some are whole, and the others say that they are not.
        let tails = ask("1000 of 1000 records", 0);
        let whole = |tail: &&Tail| (tail.len(), tail.cut()) == (1_000, None);
        assert!(tails.iter().all(|tail| whole(&tail) || tail.cut().is_some()));
        assert!(grown.get() < 24 << 10, "{} KiB", grown.get());
    }
}

/// What `work` returns, how long it took, and by how many KiB the process grew at most meanwhile.
fn measured<T>(work: impl FnOnce() -> T) -> (T, Duration, i64) {
    let memory = |field: &str| -> i64 {
        let status = fs::read_to_string("/proc/self/status").expect("the process's status");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    };
    // From here on the peak counts anew.
    fs::write("/proc/self/clear_refs", "5").expect("the process's own memory");
    let before = memory("VmRSS:");
    let begun = Instant::now();
    let result = work();
    (result, begun.elapsed(), memory("VmHWM:") - before)
}

#[test]
fn who_may_only_write_gets_a_reason_and_who_may_read_needs_no_group() {
    let authority = Authority::new("walpost tests");
    let kafka = Kafka::builder().secure(authority.issue(&["localhost"]), &authority).property(AUTHORIZER).start();
    for topic in ["orders", "empty", "hidden"] {
        kafka.create_topic(topic, 2, &[]);
    }
    Writer::new(&kafka).own("orders", 0, 0..10);
    let mut config = config(kafka.secure_bootstrap());
    for (name, value) in [
        ("security.protocol", "SASL_SSL"),
        ("sasl.mechanism", "SCRAM-SHA-256"),
        ("sasl.username", SCRAM_USER),
        ("sasl.password", SCRAM_PASSWORD),
        ("ssl.ca.location", authority.path.to_str().expect("a plain path")),
    ] {
        config.kafka.properties.insert(name.into(), Secret::new(value));
    }
    kafka.allow("Write", "orders");
    kafka.allow("Write", "empty");
    let asking = Asking::new(&config);
    let refused = |topic: &str| {
        let begun = Instant::now();
        let error = asking.answer(topic, 2, 1).tails.expect_err("no tails");
        assert!(matches!(&error, TailError::NotAllowed { topic: named, .. } if **named == *topic), "{error:?}");
        assert!(error.to_string().contains("READ") && error.lasts(), "{error}");
        assert!(begun.elapsed() < seconds(5), "{:?}", begun.elapsed());
    };
    refused("orders");
    refused("hidden");
    assert_eq!(asking.tails("empty", 2, 1), [Tail::default(), Tail::default()]);
    refused("orders");
    kafka.allow("Read", "orders");
    assert_eq!(held(&asking.tails("orders", 2, 5)[0], 10), Vec::from_iter(5..10));
}

#[test]
fn a_broker_that_freezes_holds_the_reader_up_for_a_bounded_time() {
    let kafka = Kafka::start_own();
    kafka.create_topic("orders", 1, &[]);
    Writer::new(&kafka).own("orders", 0, 0..50_000);
    let asking = Asking::plain(&kafka);
    assert_eq!(asking.tail("orders", 49_990).len(), 10);
    kafka.pause();
    // First by the client that was connected, then by one that never was.
    for _ in 0..2 {
        let error = asking.answer("orders", 1, 0).tails.expect_err("nobody answers");
        assert!(matches!(&error, TailError::NoAnswer { .. }) && !error.lasts(), "{error:?}");
    }
    kafka.resume();
    wait_for(seconds(60), "the broker to answer", || {
        let answer = asking.answer("orders", 1, 49_990);
        answer.tails.is_ok_and(|tails| tails[0].1.len() == 10)
    });
    // In the middle of an answer, or before or after: that is luck.
    for moment in [30, 80, 150] {
        asking.reader.ask("orders".into(), vec![0], Lsn(0), 2);
        pace(Instant::now() + Duration::from_millis(moment));
        kafka.pause();
        let tails = asking.next().tails.map(|tails| (tails[0].1.len(), tails[0].1.cut()));
        eprintln!("frozen after {moment} ms: {tails:?}");
        kafka.resume();
        wait_for(seconds(60), "the broker to answer", || {
            asking.answer("orders", 1, 0).tails.is_ok_and(|tails| tails[0].1.len() == 50_000)
        });
    }
}
