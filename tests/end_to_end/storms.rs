//! What goes wrong in heaps: poison by the dozen, topics that change their shape under load, brokers and sessions that
//! fail again and again. Nothing is lost, nothing swaps, and it goes on by itself.

use std::time::Instant;

use crate::kit::*;

/// Text of which no compression makes much less.
/// A thousand rows of ten keys, one in twenty of them too large for its topic, in transactions of fifty.
#[track_caller]
fn a_storm_of_poison(limit: usize) {
    const ROWS: usize = 1_000;
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let topic = format!("storm-{}", unique());
    kafka.create_topic(&topic, 3, &[("max.message.bytes", &limit.to_string())]);
    let mut random = Random::new(3);
    let rows: Vec<Message> = (0..ROWS)
        .map(|number| {
            let bytes = if number % 20 == 7 { limit + 20_000 } else { 400 };
            Message {
                id: random.uuid(),
                aggregate_type: "storm".into(),
                key: format!("key-{}", number % 10),
                event_type: "Blown".into(),
                topic: topic.clone(),
                payload: format!("{{\"n\": {number}, \"noise\": \"{}\"}}", noise(&mut random, bytes)),
                headers: "{}".into(),
            }
        })
        .collect();
    let sql = scene.sql();
    for transaction in rows.chunks(50) {
        insert(&sql, Table::Walpost, "outbox_messages", transaction);
    }
    let began = Instant::now();
    let relay = scene.walpost("run").env("WALPOST_ON_POISON", "skip").spawn();
    wait_for(seconds(60), "the rows that are no poison", || kafka.count(&[&topic]) >= (ROWS - ROWS / 20) as u64);
    wait_for(seconds(20), "all poison to be skipped", || {
        relay.metric("walpost_messages_skipped_total", "") == Some((ROWS / 20) as f64)
    });
    let rebuilds = relay.metric("walpost_retries_total", "kafka").unwrap_or(0.0);
    println!("a storm at limit {limit}: {:?}, {rebuilds} rebuilds", began.elapsed());
    assert!(rebuilds <= 3.0, "a storm of poison cost {rebuilds} producers");
    scene.wait_slot_follows(seconds(20));
    relay.stop();
    let seen = kafka.read(&[&topic]);
    let mut of_key = std::collections::BTreeMap::<_, Vec<_>>::new();
    for record in &seen {
        of_key.entry(record.key.clone()).or_default().push(record.header("id").unwrap_or_default());
    }
    for number in 0..10 {
        let key = format!("key-{number}");
        let wanted: Vec<_> = (rows.iter().enumerate())
            .filter(|(at, row)| at % 20 != 7 && row.key == key)
            .map(|(_, row)| row.id.clone())
            .collect();
        assert_eq!(of_key.get(&Some(key.clone().into_bytes())), Some(&wanted), "{key}");
    }
}

#[test]
fn poison_where_the_topic_takes_less_than_a_batch() {
    a_storm_of_poison(20_000);
}

#[test]
fn poison_where_the_topic_takes_more_than_a_batch() {
    a_storm_of_poison(200_000);
}

/// The limit falls while the relay runs: it has asked for the limits long ago.
#[test]
fn a_limit_that_falls_below_a_batch_while_rows_flow() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().rows(200).filler_bytes(300);
    let relay = scene.walpost("run").spawn();
    let mut expected = workload.run();
    relay.wait_published(200, seconds(40));
    for topic in workload.topics() {
        kafka.alter_topic(&topic, &[("max.message.bytes", "6000")]);
    }
    expected.extend(workload.clone().rows(20_000).run());
    let rebuilds = || relay.metric("walpost_retries_total", "kafka").unwrap_or(0.0);
    relay.wait_published(20_200, seconds(90));
    println!("{} rebuilds", rebuilds());
    assert!(rebuilds() <= 8.0, "every thousand rows cost a rebuild: {}", rebuilds());
    relay.stop();
    scene.catch_up(seconds(40));
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// Keys move, so order holds only before and after; but no row is lost or repeated, and nothing stops.
#[test]
fn partitions_that_are_added_under_load() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(50);
    for topic in workload.topics() {
        kafka.create_topic(&topic, 2, &[]);
    }
    let load = workload.start();
    let relay = scene.walpost("run").spawn();
    relay.wait_published(1_000, seconds(40));
    for topic in workload.topics() {
        kafka.add_partitions(&topic, 7);
    }
    relay.wait_log("has 7 partitions now, 2 before", seconds(90));
    let before = relay.published();
    relay.wait_published(before + 3_000, seconds(40));
    relay.wait_streaming();
    let expected = load.stop();
    relay.stop();
    scene.catch_up(seconds(60));
    let report = kafka.verify(&workload, &expected);
    assert!(report.lost.is_empty() && report.repeated.is_empty() && report.invented.is_empty(), "{report}");
}

/// For a moment a new topic's partitions have a leader in the metadata that does not lead yet: the first request is refused,
/// and the ones behind it are not. The more partitions, the longer the moment.
#[test]
fn topics_of_many_partitions_that_come_into_being_under_load() {
    let (kafka, postgres) = (Kafka::builder().property("num.partitions=100").start(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    // Records travel alone, so that several requests are under way for each partition.
    let relay = scene.walpost("run").env("WALPOST_KAFKA_BATCH_SIZE", "1").spawn();
    relay.wait_streaming();
    let rounds: Vec<_> = (0..5).map(|_| scene.workload().rows(2_000)).map(|load| (load.run(), load)).collect();
    relay.wait_published(10_000, seconds(120));
    println!("{:?} rebuilds", relay.metric("walpost_retries_total", "kafka"));
    relay.stop();
    for (expected, workload) in rounds {
        kafka.verify(&workload, &expected).assert_exactly_once();
    }
}

#[test]
fn a_topic_that_is_made_again_with_fewer_partitions() {
    let (kafka, postgres) =
        (Kafka::builder().property("auto.create.topics.enable=false").start(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let workload = scene.workload().rows(500);
    for topic in workload.topics() {
        kafka.create_topic(&topic, 8, &[]);
    }
    workload.run();
    let relay = scene.walpost("run").spawn();
    relay.wait_published(500, seconds(40));
    for topic in workload.topics() {
        kafka.delete_topic(&topic);
        kafka.create_topic(&topic, 3, &[]);
    }
    let expected = workload.clone().rows(2_000).run();
    relay.wait_published(2_500, seconds(120));
    relay.wait_streaming();
    relay.stop();
    scene.catch_up(seconds(60));
    let report = kafka.verify(&workload, &expected);
    assert!(report.lost.is_empty() && report.invented.is_empty(), "{report}");
    println!("{report}");
}

#[test]
fn a_topic_that_comes_late_is_waited_for() {
    let (kafka, postgres) =
        (Kafka::builder().property("auto.create.topics.enable=false").start(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let workload = scene.workload().rows(500);
    let [there, late] = workload.topics();
    kafka.create_topic(&there, 4, &[]);
    let relay = scene.walpost("run").env("WALPOST_TOPICS_CREATE", "never").spawn();
    let mut expected = workload.run();
    relay.wait_state("waiting_for_topic", seconds(40));
    let walsender = postgres.walsender(&scene.name);
    hold(seconds(20), "it says that it waits", || relay.state() == "waiting_for_topic");
    expected.extend(workload.run());
    kafka.create_topic(&late, 4, &[]);
    relay.wait_published(1_000, seconds(30));
    relay.wait_streaming();
    assert_eq!(postgres.walsender(&scene.name), walsender);
    relay.stop();
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// The librarian's own client may hang after a freeze just as a producer may: a topic that nobody has asked for before must
/// still be found.
#[test]
fn a_broker_that_freezes_again_and_again() {
    let (kafka, postgres) = (Kafka::start_own(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(50);
    let load = workload.start();
    let relay = scene.walpost("run").spawn();
    relay.wait_published(500, seconds(40));
    let walsender = postgres.walsender(&scene.name);
    let mut fresh = Vec::new();
    for round in 0..3 {
        let before = relay.published();
        kafka.pause();
        let other = scene.workload().rows(50);
        fresh.push((other.clone(), other.run()));
        hold(seconds(40), "the walsender serves the relay", || postgres.walsender(&scene.name) == walsender);
        kafka.resume();
        let resumed = Instant::now();
        relay.wait_published(before + 5_000, seconds(120));
        println!("round {round}: {:?}", resumed.elapsed());
    }
    relay.wait_streaming();
    assert_eq!(postgres.walsender(&scene.name), walsender, "a Kafka fault touched the Postgres session");
    let expected = load.stop();
    relay.stop();
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_at_least_once();
    for (workload, expected) in fresh {
        kafka.verify(&workload, &expected).assert_at_least_once();
    }
}

/// After a refused batch records go one by one, on a quiet outbox for days: that producer, too, may hang after a freeze.
#[test]
fn a_broker_that_freezes_while_records_go_one_by_one() {
    let (kafka, postgres) = (Kafka::start_own(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let workload = scene.workload().rows(200).filler_bytes(300);
    let relay = scene.walpost("run").spawn();
    let mut expected = workload.run();
    relay.wait_published(200, seconds(40));
    for topic in workload.topics() {
        kafka.alter_topic(&topic, &[("max.message.bytes", "6000")]);
    }
    expected.extend(workload.run());
    relay.wait_published(400, seconds(40));
    for round in 0..4 {
        let before = relay.published();
        kafka.pause();
        expected.extend(workload.clone().rows(50).run());
        hold(seconds(40), "the relay lives", || relay.is_running());
        kafka.resume();
        let resumed = Instant::now();
        relay.wait_published(before + 50, seconds(100));
        println!("round {round}: {:?}", resumed.elapsed());
    }
    assert!(!relay.log().contains("records are sent in batches again"), "too many rows to test what is to be tested");
    relay.stop();
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_at_least_once();
}

#[test]
fn a_relay_that_is_killed_amid_a_large_transaction() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let prefix = format!("big{}", unique());
    let sql = scene.sql();
    sql.execute(&format!(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload)
         select '{prefix}', 'key-' || n % 100, 'Big', jsonb_build_object('n', n) from generate_series(1, 100000) n"
    ));
    let command = scene.walpost("run").env("WALPOST_WINDOW_MESSAGES", "5000");
    for published in [20_000, 60_000] {
        let relay = command.spawn();
        relay.wait_published(published, seconds(60));
        relay.kill9();
    }
    scene.catch_up(seconds(90));
    let topic = format!("outbox.event.{prefix}");
    let mut first = std::collections::HashSet::new();
    let mut latest = std::collections::HashMap::new();
    for record in kafka.read(&[&topic]) {
        if first.insert(record.header("id").unwrap_or_default()) {
            let value: serde_json::Value =
                serde_json::from_slice(&record.value.unwrap_or_default()).unwrap_or_default();
            let number = value["n"].as_u64().unwrap_or(0);
            let before = latest.insert(record.key, number).unwrap_or(0);
            assert!(before < number, "{number} came after {before}");
        }
    }
    assert_eq!(first.len(), 100_000);
}

#[test]
fn a_session_that_is_cut_every_two_seconds() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(200);
    let load = workload.start();
    let relay = scene.walpost("run").spawn();
    relay.wait_published(500, seconds(40));
    let mut next = Instant::now();
    for _ in 0..20 {
        next += seconds(2);
        pace(next);
        scene.sql().execute("select pg_terminate_backend(pid) from pg_stat_replication");
    }
    let expected = load.stop();
    relay.wait_published(expected.len() as u64, seconds(60));
    relay.wait_streaming();
    relay.stop();
    scene.catch_up(seconds(60));
    let report = kafka.verify(&workload, &expected);
    report.assert_at_least_once();
    // What was delivered is remembered, recorded or not; only requests whose answer did not come in two seconds may repeat.
    assert!(report.repeated.len() <= 100, "{report}");
}
