//! The kit itself, without walpost: a test that trusts a broken kit proves nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::kit::*;

#[test]
fn every_major_version_of_postgres_starts_stops_and_comes_back() {
    for major in MAJORS {
        let mut postgres = Postgres::start_major(major);
        let sql = postgres.create_database("app");
        assert_eq!(sql.number("show server_version_num") / 10_000, i64::from(major));
        Table::Walpost.create(&sql, "outbox_messages");
        sql.execute("insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload) values ('a', 'b', 'c', '{}')");
        drop(sql);
        for how in [Stop::Fast, Stop::Immediate, Stop::Smart] {
            let took = postgres.stop(how, seconds(20));
            assert!(took < seconds(10), "Postgres {major} needed {took:?} for {how:?}");
            postgres.start();
        }
        postgres.kill9();
        postgres.start();
        postgres.pause();
        postgres.resume();
        assert_eq!(postgres.sql("app").number("select count(*) from outbox_messages"), 1, "Postgres {major}");
    }
}

#[test]
fn both_clients_see_what_was_produced() {
    let kafka = Kafka::shared();
    kafka.create_topic("kit.both", 2, &[]);
    let producer: BaseProducer = kafka.client_config().create().expect("a producer");
    for number in 0..100 {
        let (key, value) = (format!("key {number}\n"), format!("{{\"n\": {number}}}\n"));
        let headers = OwnedHeaders::new()
            .insert(Header { key: "id", value: Some(format!("id:{number}").as_bytes()) })
            .insert(Header::<&str> { key: "nothing", value: None });
        let record = BaseRecord::to("kit.both").key(&key).payload(&value).partition(number % 2).headers(headers);
        assert!(producer.send(record).is_ok());
    }
    let bare: BaseRecord<'_, str, str> = BaseRecord::to("kit.both").partition(0);
    assert!(producer.send(bare).is_ok());
    producer.flush(seconds(20)).expect("everything delivered");

    let mut first = kafka.read(&["kit.both"]);
    assert_eq!(first.len(), 101);
    assert_eq!(kafka.count(&["kit.both"]), 101);
    let mut second = kafka.read_with_second_client(&["kit.both"], 101);
    for seen in &mut first {
        (seen.topic, seen.timestamp) = (String::new(), -1);
    }
    second.sort_by_key(|seen| (seen.partition, seen.offset));
    assert_eq!(first, second);
}

#[test]
fn a_broker_of_ones_own_survives_what_is_done_to_it() {
    let mut kafka = Kafka::start_own();
    kafka.create_topic("kit.own", 3, &[("max.message.bytes", "20000")]);
    kafka.alter_topic("kit.own", &[("max.message.bytes", "30000")]);
    kafka.kill9();
    kafka.start();
    kafka.pause();
    kafka.resume();
    kafka.stop();
    kafka.start();
    assert_eq!(kafka.partition_count("kit.own"), 3);
    kafka.delete_topic("kit.own");
}

/// Whoever begins at the proxies is led by them to each broker; one broker of three may be away.
#[test]
fn three_brokers_behind_proxies_do_without_one() {
    let mut kafka =
        Kafka::builder().brokers(3).heap("256m").proxied().property("broker.session.timeout.ms=6000").start();
    kafka.create_topic("kit.three", 3, &[("min.insync.replicas", "2")]);
    wait_for(seconds(20), "three replicas", || kafka.is_in_sync());
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", kafka.proxied_bootstrap()).set("acks", "all").set("log_level", "0");
    let producer: BaseProducer = config.create().expect("a producer");
    let produce = || {
        for partition in 0..3 {
            let record = BaseRecord::to("kit.three").key("k").payload("v").partition(partition);
            assert!(producer.send(record).is_ok());
        }
        producer.flush(seconds(40)).expect("everything delivered");
    };
    produce();
    let through = |broker: &Broker| broker.proxy.as_ref().is_some_and(|proxy| proxy.connections() > 0);
    assert!(kafka.brokers().iter().all(through), "each of them leads a partition");
    kafka.broker(1).kill9();
    produce();
    assert!(!kafka.is_in_sync());
    kafka.broker(1).start();
    wait_for(seconds(60), "the broker to catch up", || kafka.is_in_sync());
    assert_eq!(kafka.count(&["kit.three"]), 6);
}

#[test]
fn a_proxy_cuts_freezes_and_delays() {
    let echo = TcpListener::bind("127.0.0.1:0").expect("a port");
    let proxy = Proxy::before(echo.local_addr().expect("an address").port());
    std::thread::spawn(move || {
        for stream in echo.incoming().flatten() {
            std::thread::spawn(move || {
                let mut back = stream.try_clone().expect("a socket");
                std::io::copy(&mut &stream, &mut back)
            });
        }
    });
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port)).expect("the proxy");
        stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a time-out");
        stream
    };
    let ask = |mut stream: &TcpStream| stream.write_all(b"x").and_then(|()| stream.read_exact(&mut [0]));
    let stream = connect();
    ask(&stream).expect("an echo");

    proxy.delay(Duration::from_millis(50));
    let asked = Instant::now();
    ask(&stream).expect("a late echo");
    assert!(asked.elapsed() >= Duration::from_millis(100), "it took {:?}", asked.elapsed());
    proxy.resume();

    proxy.freeze();
    let late = connect();
    for stream in [&stream, &late] {
        let error = ask(stream).expect_err("an echo over a frozen line");
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    }
    proxy.resume();
    for mut stream in [&stream, &late] {
        stream.read_exact(&mut [0]).expect("what was held back");
    }

    proxy.freeze();
    proxy.cut();
    assert!(ask(&stream).is_err_and(|error| error.kind() != ErrorKind::WouldBlock), "it was not cut");
    proxy.resume();
    ask(&connect()).expect("a new connection");
}

#[test]
fn tls_and_scram_are_demanded_where_they_are_asked_for() {
    let authority = Authority::new("Kit");
    let kafka = Kafka::builder().secure(authority.issue(&["localhost"]), &authority).start();
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", kafka.secure_bootstrap()).set("security.protocol", "SASL_SSL");
    config.set("sasl.mechanism", "SCRAM-SHA-256").set("sasl.username", SCRAM_USER).set("sasl.password", SCRAM_PASSWORD);
    config.set("ssl.ca.location", authority.path.to_str().expect("a plain path"));
    let metadata = |config: &rdkafka::ClientConfig| {
        let producer: BaseProducer = config.create().expect("a producer");
        producer.client().fetch_metadata(None, seconds(5)).is_ok()
    };
    assert!(metadata(&config));
    assert!(!metadata(config.clone().set("sasl.password", "wrong").set("log_level", "0")));

    let postgres = Postgres::builder(MAJOR)
        .tls(authority.issue(&["localhost", "127.0.0.1"]))
        .hba("hostnossl all all all reject")
        .start_unchecked();
    wait_for(seconds(20), "a listening Postgres", || listening(postgres.port));
    let refused = wait_some(seconds(20), "a refusal", || {
        let error = Sql::try_connect(&postgres.url("postgres")).err()?;
        error.as_db_error().is_some_and(|error| error.message().contains("rejects")).then_some(error)
    });
    assert!(explain(&refused).contains("28000"), "{}", explain(&refused));
}

#[test]
fn the_workload_is_what_is_in_the_table() {
    let postgres = Postgres::start_major(MAJOR);
    for table in TABLES {
        let database = format!("db_{}", unique());
        let sql = postgres.create_database(&database);
        table.create(&sql, "outbox_messages");
        let expected = Workload::new(&postgres.url(&database), table).rows(2_000).run();
        assert_eq!(expected.len(), 2_000);
        let rows = sql.rows(&format!("select {}, payload from outbox_messages", table.id_column()));
        let mut there: Vec<_> = rows.into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
        let mut written: Vec<_> = expected.iter().map(|row| (Some(row.id.clone()), Some(row.value.clone()))).collect();
        there.sort();
        written.sort();
        assert_eq!(there.len(), written.len());
        assert_eq!(there.iter().zip(&written).find(|(there, written)| there != written), None, "{table:?}");
    }
}

#[test]
fn the_verifier_sees_each_fault() {
    let row = |id: &str, sequence| Expected {
        id: id.into(),
        topic: "t".into(),
        key: "k".into(),
        value: "{}".into(),
        event_type: None,
        headers: Vec::new(),
        sequence,
        transaction: sequence,
    };
    let record = |id: &str, offset: i64| Seen {
        topic: "t".into(),
        partition: partition(b"k", 4),
        offset,
        key: Some(b"k".to_vec()),
        value: Some(b"{}".to_vec()),
        headers: vec![
            ("id".into(), Some(id.as_bytes().to_vec())),
            ("token".into(), Some(format!("1700000000-{:016X}-00000000", 7 + id.len()).into_bytes())),
        ],
        timestamp: 0,
    };
    let expected = [row("a", 1), row("bb", 2), row("ccc", 3)];
    let four = |_: &str| 4;
    let good = [record("a", 0), record("bb", 1), record("ccc", 2)];
    verify(&expected, &good, four).assert_exactly_once();
    let mut moved = record("bb", 1);
    moved.partition += 1;
    let seen = [record("ccc", 0), moved, record("ccc", 2), record("zzzz", 3)];
    let report = verify(&expected, &seen, four);
    let counts = [&report.lost, &report.repeated, &report.swapped, &report.invented, &report.wrong].map(Vec::len);
    assert_eq!(counts, [1, 1, 1, 1, 1], "{report}");
    assert_eq!(Token::parse("1700000000-00000000016B3740-0000000A").map(|token| token.ordinal), Some(10));
    assert_eq!(Token::parse("1700000000-00000000016b3740-0000000A"), None);
}
