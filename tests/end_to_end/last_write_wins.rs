//! Whoever keeps the last record of each key, as a compacted topic does, has the last committed row of it in the end: through
//! kills, parked messages that are asked for again and again, and partitions that are added.

use std::collections::HashMap;

use crate::kit::*;

mod soak;

const KEYS: u64 = 12;

#[test]
fn through_kills_and_parked_messages_that_are_tried_again() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let topic = format!("compacted-{}", unique());
    kafka.create_topic(&topic, 3, &[("max.message.bytes", "3000"), ("cleanup.policy", "compact")]);
    let sql = scene.sql();
    let mut random = Random::new(7);
    let mut last: HashMap<String, u64> = HashMap::new();
    let mut number = 0;
    let mut write = |random: &mut Random, count: u64| {
        for _ in 0..count {
            number += 1;
            let key = format!("key-{}", random.below(KEYS));
            // One in forty is too large, for now.
            let bytes = if random.below(40) == 0 { 8_000 } else { 20 };
            let noise = noise(&mut Random::new(number), bytes);
            sql.execute(&format!(
                "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
                 values ('a', '{key}', 'e', '{topic}', '{{\"n\": {number}, \"noise\": \"{noise}\"}}')"
            ));
            last.insert(key, number);
        }
    };
    for round in 0..8 {
        let relay = scene.walpost("run").spawn();
        write(&mut random, 60);
        relay.wait_log("streaming goes on after", seconds(40));
        write(&mut random, 40 + 30 * (round % 4));
        let retry = scene.walpost("parked retry --all").output(seconds(20));
        assert!(retry.code == 0, "{}", retry.stderr);
        write(&mut random, 60);
        if round % 2 == 0 {
            relay.wait_published(1, seconds(60));
            relay.kill9();
        } else {
            relay.stop();
        }
    }
    // All that was too large fits now.
    kafka.alter_topic(&topic, &[("max.message.bytes", "100000")]);
    let relay = scene.walpost("run").spawn();
    relay.wait_streaming();
    write(&mut random, 100);
    wait_for(seconds(90), "nothing to be parked any more", || {
        let retry = scene.walpost("parked retry --all").output(seconds(20));
        assert!(retry.code == 0, "{}", retry.stderr);
        relay.try_status().is_some_and(|status| {
            status["parked"]["messages"].as_u64() == Some(0) && status["in_flight"]["messages"].as_u64() == Some(0)
        })
    });
    relay.stop();
    scene.catch_up(seconds(40));

    let mut first: HashMap<String, Vec<u64>> = HashMap::new();
    let mut newest: HashMap<String, u64> = HashMap::new();
    for record in kafka.read(&[&topic]) {
        let key = String::from_utf8(record.key.expect("a key")).expect("text");
        let value: serde_json::Value = serde_json::from_slice(&record.value.expect("a value")).expect("JSON");
        let n = value["n"].as_u64().expect("a number");
        newest.insert(key.clone(), n);
        let seen = first.entry(key).or_default();
        if !seen.contains(&n) {
            seen.push(n);
        }
    }
    assert_eq!(newest, last, "the last record of a key is not its last row");
    for (key, seen) in &first {
        assert!(seen.is_sorted(), "{key}: first arrivals are out of order: {seen:?}");
    }
    assert_eq!(first.values().map(Vec::len).sum::<usize>() as u64, number, "rows are missing");
}
