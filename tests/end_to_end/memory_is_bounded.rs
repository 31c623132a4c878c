//! A transaction of any size passes through a bounded window of bytes: rows go to Kafka as they come.

use std::collections::HashMap;

use crate::kit::*;

const ROWS: usize = 1_000_000;
const KEYS: usize = 100;
const MIB: u64 = 1 << 20;

#[test]
fn one_transaction_of_a_million_rows() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let topic = format!("huge.{}", scene.name);
    kafka.create_topic(&topic, 4, &[]);
    let relay = scene.walpost("run").arg("--topic").arg(&topic).spawn();
    relay.wait_streaming();
    scene.sql().execute(&format!(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload)
         select 'huge', 'key-' || n % {KEYS}, 'Counted', jsonb_build_object('n', n, 'filler', repeat('x', 100))
         from generate_series(0, {ROWS} - 1) n"
    ));
    let mut peak_window = 0;
    wait_for(seconds(400), "a million rows", || {
        let Some(status) = relay.try_status() else { return false };
        peak_window = peak_window.max(status["in_flight"]["bytes"].as_u64().unwrap_or(0));
        status["published"].as_u64().is_some_and(|published| published >= ROWS as u64)
    });
    let memory = relay.memory().expect("a running relay");
    // The window is 32 MiB of rows; the last row that is let in may exceed it.
    assert!(peak_window <= 33 * MIB, "{peak_window} bytes were in flight");
    assert!(memory.peak < 64 * MIB + 32 * MIB, "peak of resident memory: {} MiB", memory.peak / MIB);
    scene.wait_slot_follows(seconds(30));
    relay.stop();

    let mut latest: HashMap<Vec<u8>, usize> = HashMap::new();
    let (mut seen, mut out_of_order) = (vec![false; ROWS], 0);
    kafka.scan(&[&topic], |record| {
        let value: serde_json::Value = serde_json::from_slice(&record.value.expect("a value")).expect("JSON");
        let n = value["n"].as_u64().expect("a number") as usize;
        assert!(!seen[n], "row {n} came twice");
        seen[n] = true;
        let key = record.key.expect("a key");
        assert_eq!(key, format!("key-{}", n % KEYS).into_bytes());
        if latest.insert(key, n).is_some_and(|before| before > n) {
            out_of_order += 1;
        }
    });
    assert_eq!(seen.iter().filter(|&&seen| !seen).count(), 0, "rows lost");
    assert_eq!(out_of_order, 0, "rows swapped");
}

/// One row in a hundred is larger than its topic takes, and each of those has a key of its own. WALPOST_TEST_ROWS=1010000 is the
/// run of a million.
#[test]
fn a_storm_of_oversize_messages_among_good_ones() {
    let rows: usize = std::env::var("WALPOST_TEST_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(50_500);
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let topic = format!("storm-{}", unique());
    kafka.create_topic(&topic, 4, &[("max.message.bytes", "2000")]);
    let sql = scene.sql();
    // In transactions of a thousand.
    for from in (0..rows).step_by(1_000) {
        let until = rows.min(from + 1_000);
        sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
             select 'a', case when n % 101 = 50 then 'large-' || n else 'key-' || n % {KEYS} end, 'e', '{topic}',
                    jsonb_build_object('n', n, 'noise', case when n % 101 = 50 then (
                        select string_agg(md5(n::text || i), '') from generate_series(1, 100) i) end)
             from generate_series({from}, {until} - 1) n"
        ));
    }
    let large = (0..rows).filter(|n| n % 101 == 50).count();
    let began = std::time::Instant::now();
    let relay = scene.walpost("run").spawn();
    wait_for(seconds(600), "all good ones to arrive and all large ones to be parked", || {
        let Some(status) = relay.try_status() else { return false };
        status["published"].as_u64() == Some((rows - large) as u64)
            && status["parked"]["messages"].as_u64() == Some(large as u64)
    });
    let memory = relay.memory().expect("a running relay");
    println!("{rows} rows, {large} of them parked: {:?}, peak {} MiB", began.elapsed(), memory.peak / MIB);
    assert!(memory.peak < 256 * MIB, "peak of resident memory: {} MiB", memory.peak / MIB);
    assert!(relay.readyz().0, "parked messages do not stop the relay");
    scene.wait_slot_follows(seconds(30));
    relay.stop();
    let mut latest: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut count = 0;
    kafka.scan(&[&topic], |record| {
        let value: serde_json::Value = serde_json::from_slice(&record.value.expect("a value")).expect("JSON");
        let n = value["n"].as_u64().expect("a number") as usize;
        let before = latest.insert(record.key.expect("a key"), n);
        assert!(before.is_none_or(|before| before < n), "{n} came after {before:?}");
        count += 1;
    });
    assert_eq!(count, rows - large);
    let listed = scene.walpost("parked list --json --limit 100000").succeeds(seconds(30));
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert_eq!(listed["messages"].as_array().map(Vec::len), Some(large));
}
