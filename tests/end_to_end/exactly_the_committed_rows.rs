//! On each Postgres, from each of the four tables: exactly the committed rows arrive, once each, in commit order per key,
//! with the right topic, key, value, headers and partition. Read with walpost's client library and with Kafka's own.

use crate::kit::*;

#[test]
fn from_postgres_14() {
    all_four_tables(14);
}

#[test]
fn from_postgres_15() {
    all_four_tables(15);
}

#[test]
fn from_postgres_16() {
    all_four_tables(16);
}

#[test]
fn from_postgres_17() {
    all_four_tables(17);
}

#[test]
fn from_postgres_18() {
    all_four_tables(18);
}

fn all_four_tables(major: u32) {
    let kafka = Kafka::shared();
    let postgres = Postgres::start_major(major);
    let (mut topics, mut expected) = (Vec::new(), Vec::new());
    for table in TABLES {
        let scene = Scene::new(&postgres, kafka, table);
        let workload = scene.workload().rows(10_000);
        let committed = workload.run();
        assert_eq!(committed.len(), 10_000);
        scene.catch_up(seconds(120));
        kafka.verify(&workload, &committed).assert_exactly_once();
        topics.extend(workload.topics());
        expected.extend(committed);
    }
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let seen = kafka.read_with_second_client(&topics, expected.len());
    verify(&expected, &seen, |topic| kafka.partition_count(topic)).assert_exactly_once();
}
