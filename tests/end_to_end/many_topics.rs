//! Many topics: each is opened by itself and none waits for another one; all of them whole and in order, whatever dies.

use std::collections::{BTreeMap, BTreeSet};

use crate::kit::*;

const TOPICS: u64 = 300;
const ROWS: u64 = 9_000;
const ROUNDS: u64 = 3;

#[test]
fn hundreds_of_topics_arrive_whole_and_in_order_through_kills() {
    let (kafka, postgres) = (Kafka::builder().start(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let name = |topic: u64| format!("outbox.event.many{topic}");
    // The others come into being when their first row does.
    for topic in 0..TOPICS / 2 {
        kafka.create_topic(&name(topic), 2, &[]);
    }
    for round in 0..ROUNDS {
        let (from, to) = (round * ROWS / ROUNDS, (round + 1) * ROWS / ROUNDS - 1);
        scene.sql().execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload) \
             select 'many' || n % {TOPICS}, 'k' || n % 7, 'e', to_jsonb(n) from generate_series({from}, {to}) n"
        ));
        let relay = scene.walpost("run").spawn();
        // In the middle of opening topics, and in the middle of reading them back.
        relay.wait_published(ROWS / ROUNDS / 4, seconds(90));
        relay.kill9();
    }
    scene.catch_up(seconds(120));
    let topics: Vec<String> = (0..TOPICS).map(name).collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let (mut seen, mut newest) = (BTreeSet::new(), BTreeMap::new());
    kafka.scan(&topics, |record| {
        let value = String::from_utf8(record.value.expect("a value")).expect("a number");
        let number: u64 = value.parse().expect("a number");
        assert_eq!(record.topic, name(number % TOPICS), "{number} is in the wrong topic");
        if seen.insert(number) {
            let before = newest.insert((record.topic, record.key), number);
            assert!(before.is_none_or(|before| before < number), "{number} came after {before:?} of its key");
        }
    });
    let lost: Vec<u64> = (0..ROWS).filter(|number| !seen.contains(number)).collect();
    assert!(lost.is_empty(), "{} rows are lost, {:?} among them", lost.len(), &lost[..lost.len().min(10)]);
}
