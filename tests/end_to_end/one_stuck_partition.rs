//! One partition that takes nothing, among others that do: the relay stands still within its window, says which one it is
//! and since when, keeps its session, never holds up the database's shutdown, and goes on by itself.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Instant;

use crate::kit::*;

const MIB: u64 = 1 << 20;
const WINDOW: u64 = 2_000;

/// Two brokers of three.
fn two_of_three() -> &'static Kafka {
    static SHARED: LazyLock<Kafka> = LazyLock::new(|| {
        let mut kafka = Kafka::builder().brokers(3).start();
        kafka.broker(2).stop();
        kafka
    });
    &SHARED
}

/// With a replica of each partition on the broker that is away.
fn create(kafka: &Kafka, topic: &str) {
    kafka.create_topic_on(topic, 4, &[1, 2, 3]);
}

/// More than are there: the broker refuses the topic's records, and no others.
fn stick(kafka: &Kafka, topic: &str) {
    kafka.alter_topic(topic, &[("min.insync.replicas", "3")]);
}

fn heal(kafka: &Kafka, topic: &str) {
    kafka.alter_topic(topic, &[("min.insync.replicas", "2")]);
}

/// A request that was stored on the leader alone waits at the broker for so long, with all behind it on its connection.
const REQUEST_TIMEOUT: &str = "--kafka request.timeout.ms=3000";

/// The state names the partition, the cause, and since when a row has been waiting.
#[track_caller]
fn assert_names(relay: &Walpost, topic: &str) {
    let cause = format!(
        "of the topic {topic:?} takes no records: 2 of its replicas are in sync, and min.insync.replicas asks for 3"
    );
    wait_for(seconds(60), "a relay that says what is wrong with which partition", || {
        let Ok((code, said)) = relay.get("/readyz") else { return false };
        let (_, since) = said.split_once("waits since 20").unwrap_or_default();
        code == 503 && said.contains(&cause) && since.contains("Z") && relay.state() == "stalled"
    });
}

#[test]
fn it_is_named_and_holds_neither_session_nor_shutdown_and_nothing_is_lost() {
    let (kafka, mut postgres) = (two_of_three(), Postgres::builder(MAJOR).conf("wal_sender_timeout = 4s").start());
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workloads = [(); 2].map(|()| scene.workload().writers(2).transactions_per_second(30));
    let [_, stuck] = workloads[0].topics();
    workloads.iter().flat_map(Workload::topics).for_each(|topic| create(kafka, &topic));
    let loads = workloads.each_ref().map(Workload::start);
    let command = scene.walpost("run").args(REQUEST_TIMEOUT).env("WALPOST_WINDOW_MESSAGES", WINDOW.to_string());
    let relay = command.spawn();
    relay.wait_published(1_000, seconds(40));
    relay.wait_streaming();
    let walsender = postgres.walsender(&scene.name);
    assert!(walsender.is_some());

    stick(kafka, &stuck);
    assert_names(&relay, &stuck);
    let since = |said: String| said.split("since 20").nth(1).map(|rest| rest[..18].to_owned());
    let first = since(relay.readyz().1);
    hold(seconds(8), "the session lives, within the window", || {
        let status = relay.status();
        let messages = status["in_flight"]["messages"].as_u64().expect("a number");
        assert!(messages <= WINDOW, "{status}");
        assert_eq!(since(relay.readyz().1), first, "it began once");
        postgres.walsender(&scene.name) == walsender && status["state"] == "stalled"
    });
    assert!(!postgres.log().contains("due to replication timeout"), "the server waited for feedback in vain");

    let took = postgres.stop(Stop::Fast, seconds(60));
    assert!(took < seconds(5), "Postgres needed {took:?} to stop");
    postgres.start();
    wait_for(seconds(30), "the relay to come back", || postgres.try_walsender(&scene.name).is_some());
    let wait_filled = |relay: &Walpost| {
        let filled = |status: &serde_json::Value| status["in_flight"]["messages"].as_u64().filter(|count| *count > 0);
        relay.wait_status(seconds(30), "rows that wait for the partition", filled);
    };
    wait_filled(&relay);
    let memory = relay.memory().expect("a running relay");
    println!("stop within {took:?}, peak {} MiB", memory.peak / MIB);
    assert!(memory.peak < 96 * MIB, "peak of resident memory: {} MiB", memory.peak / MIB);
    relay.kill9();

    let relay = command.spawn();
    wait_filled(&relay);
    heal(kafka, &stuck);
    relay.wait_streaming();
    let expected = loads.map(Load::stop);
    for (workload, expected) in workloads.iter().zip(&expected) {
        kafka.wait_arrived(workload, expected, seconds(60));
    }
    relay.stop();
    for (workload, expected) in workloads.iter().zip(&expected) {
        let report = kafka.verify(workload, expected);
        println!("{report}");
        report.assert_at_least_once();
        // What the leader had stored, and no other replica yet, cannot be read back: requests under way when it got stuck.
        assert!(report.repeated.iter().all(|place| place.contains(&stuck)) && report.repeated.len() < 200, "{report}");
    }
}

/// WALPOST_TEST_ROWS=5000000 is the run of five million.
#[test]
fn a_large_transaction_behind_it_passes_when_it_heals() {
    const KEYS: usize = 1_000;
    let rows: usize = std::env::var("WALPOST_TEST_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(200_000);
    let (kafka, postgres) = (two_of_three(), Postgres::builder(MAJOR).conf("wal_sender_timeout = 4s").start());
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let topics = ["a", "b", "c"].map(|name| format!("{name}-{}", scene.name));
    topics.iter().for_each(|topic| create(kafka, topic));
    let insert = |from: usize, until: usize| {
        scene.sql().execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
             select 'a', 'key-' || n % {KEYS}, 'e', (array['{}'])[1 + n % 3], jsonb_build_object('n', n)
             from generate_series({from}, {until} - 1) n",
            topics.join("', '")
        ));
    };
    let relay = scene.walpost("run").args(REQUEST_TIMEOUT).spawn();
    insert(0, KEYS);
    relay.wait_published(KEYS as u64, seconds(40));
    stick(kafka, &topics[1]);
    insert(KEYS, 2 * KEYS);
    assert_names(&relay, &topics[1]);
    assert!(relay.published() > KEYS as u64, "the other topics go on while the window has room");
    let walsender = postgres.walsender(&scene.name);
    insert(2 * KEYS, rows);
    hold(seconds(5), "the session lives", || postgres.walsender(&scene.name) == walsender);
    let window = relay.status()["in_flight"]["messages"].as_u64().expect("a number");
    assert!(window <= 50_000, "{window} messages in flight");
    let began = Instant::now();
    heal(kafka, &topics[1]);
    wait_for(seconds(1_200), "all rows", || relay.published() >= rows as u64);
    let memory = relay.memory().expect("a running relay");
    println!("{rows} rows: {:?} after it healed, peak {} MiB", began.elapsed(), memory.peak / MIB);
    assert!(memory.peak < 128 * MIB, "peak of resident memory: {} MiB", memory.peak / MIB);
    assert_eq!(postgres.walsender(&scene.name), walsender, "a Kafka fault touched the Postgres session");
    relay.wait_streaming();
    relay.stop();

    let (mut latest, mut count) = (HashMap::new(), 0);
    kafka.scan(&topics.each_ref().map(String::as_str), |record| {
        let value: serde_json::Value = serde_json::from_slice(&record.value.expect("a value")).expect("JSON");
        let n = value["n"].as_u64().expect("a number");
        let before = latest.insert((record.topic, record.key), n);
        assert!(before.is_none_or(|before| before < n), "{n} came after {before:?}, or twice");
        count += 1;
    });
    assert_eq!(count, rows, "none lost, as none came twice");
}
