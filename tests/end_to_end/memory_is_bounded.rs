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
