//! After a crash a relay reads back what its topics hold already, and does not publish it again: exactly where a record of
//! the row's own message id and commit LSN is there, and nowhere else.

use crate::kit::*;

/// A relay that is killed between what Kafka confirmed and what Postgres was told: the record is held still meanwhile.
fn killed_before_it_could_confirm(scene: &Scene, workload: &Workload, read_back: &str) -> (Vec<Expected>, f64) {
    let run = || scene.walpost("run").env("WALPOST_READ_BACK", read_back);
    let relay = run().spawn();
    let mut expected = workload.run();
    relay.wait_published(expected.len() as u64, seconds(40));
    scene.wait_slot_follows(seconds(20));
    let holder = scene.sql();
    holder.execute("begin");
    holder.execute("select from walpost.checkpoint for update");
    let before = relay.published();
    let more = workload.run();
    relay.wait_published(before + more.len() as u64, seconds(40));
    relay.kill9();
    holder.execute("rollback");
    expected.extend(more);
    let relay = run().spawn();
    expected.extend(workload.run());
    relay.wait_streaming();
    let sent = expected.len() as u64;
    wait_for(seconds(60), "all rows to be settled", || {
        let settled = relay.metric("walpost_messages_skipped_total", "").unwrap_or(0.0) as u64 + relay.published();
        settled >= sent / 3
    });
    let skipped = relay.metric("walpost_messages_skipped_total", "").unwrap_or(0.0);
    relay.stop();
    scene.catch_up(seconds(40));
    (expected, skipped)
}

#[test]
fn nothing_repeats_after_a_kill_that_left_everything_unconfirmed() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    for (read_back, repeats) in [("true", false), ("false", true)] {
        let scene = Scene::new(&postgres, kafka, Table::Walpost);
        let workload = scene.workload().rows(2_000);
        let (expected, skipped) = killed_before_it_could_confirm(&scene, &workload, read_back);
        let report = kafka.verify(&workload, &expected);
        report.assert_at_least_once();
        assert_eq!(!report.repeated.is_empty(), repeats, "read_back = {read_back}: {report}");
        assert_eq!(skipped > 0.0, !repeats, "{skipped} rows were found in their topics");
    }
}

#[test]
fn kills_under_load_repeat_nothing() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(60);
    let load = workload.start();
    for _ in 0..8 {
        let relay = scene.walpost("run").spawn();
        relay.wait_published(300, seconds(60));
        relay.kill9();
    }
    let expected = load.stop();
    scene.catch_up(seconds(90));
    let report = kafka.verify(&workload, &expected);
    report.assert_at_least_once();
    println!("{} rows, {} repeated after 8 kills", expected.len(), report.repeated.len());
    assert!(report.repeated.is_empty(), "{report}");
}

/// Partitions that are added meanwhile move keys: what was in another partition is published again, and nothing is lost.
#[test]
fn partitions_that_were_added_cost_repeats_and_no_row() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().rows(1_000);
    for topic in workload.topics() {
        kafka.create_topic(&topic, 2, &[]);
    }
    let relay = scene.walpost("run").spawn();
    let mut expected = workload.run();
    relay.wait_published(expected.len() as u64, seconds(40));
    let holder = scene.sql();
    holder.execute("begin");
    holder.execute("select from walpost.checkpoint for update");
    let before = relay.published();
    expected.extend(workload.run());
    relay.wait_published(before + 1_000, seconds(40));
    relay.kill9();
    holder.execute("rollback");
    for topic in workload.topics() {
        kafka.add_partitions(&topic, 7);
    }
    expected.extend(workload.run());
    scene.catch_up(seconds(60));
    let report = kafka.verify(&workload, &expected);
    assert!(report.lost.is_empty() && report.invented.is_empty(), "{report}");
}
