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

/// What was sent under another topic's name is not there under the new one: it comes there, every row and in order.
#[test]
fn a_route_that_changes_between_send_and_restart_costs_repeats_and_no_row() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let [before, after] = ["before", "after"].map(|name| format!("{name}-{}", scene.name));
    let sql = scene.sql();
    let insert = |from: u64| {
        sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload)
             select 'a', 'k', 'e', jsonb_build_object('n', n) from generate_series({from}, {from} + 49) n"
        ));
    };
    let numbers = |topic: &str| -> Vec<u64> {
        let number = |record: &Seen| {
            let value: serde_json::Value = serde_json::from_slice(record.value.as_deref()?).ok()?;
            value["n"].as_u64()
        };
        kafka.read(&[topic]).iter().map(|record| number(record).expect("a number")).collect()
    };
    let run = |topic: &str| {
        kafka.create_topic(topic, 1, &[]);
        scene.walpost("run").arg("--topic").arg(topic).spawn()
    };
    let relay = run(&before);
    insert(1);
    relay.wait_published(50, seconds(40));
    scene.wait_slot_follows(seconds(20));
    let holder = scene.sql();
    holder.execute("begin");
    holder.execute("select from walpost.checkpoint for update");
    insert(51);
    relay.wait_published(100, seconds(40));
    relay.kill9();
    holder.execute("rollback");
    insert(101);
    let relay = run(&after);
    wait_for(seconds(40), "the last row under its new name", || numbers(&after).last() == Some(&150));
    relay.stop();
    assert_eq!(numbers(&before), Vec::from_iter(1..=100));
    let there = numbers(&after);
    assert!(there == Vec::from_iter(51..=150) || there == Vec::from_iter(1..=150), "{there:?}");
}

/// Two relays with slots of their own, one table and one topic: what one has written is the same row to the other. Whoever is
/// killed, each row comes, and first arrivals are in order.
#[test]
fn two_slots_that_publish_to_one_topic_lose_and_swap_nothing() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let second = format!("{}_second", scene.name);
    scene.walpost("setup").slot(&second).succeeds(seconds(30));
    let workload = scene.workload().transactions_per_second(40);
    let load = workload.start();
    let mut relays = [&scene.name, &second].map(|slot| scene.walpost("run").slot(slot).spawn());
    for round in 0..6 {
        let slot = [&scene.name, &second][round % 2];
        relays[round % 2].wait_published(100, seconds(60));
        relays[round % 2].kill9();
        relays[round % 2] = scene.walpost("run").slot(slot).spawn();
    }
    let expected = load.stop();
    kafka.wait_arrived(&workload, &expected, seconds(60));
    for (relay, slot) in relays.iter().zip([&scene.name, &second]) {
        relay.stop();
        scene.walpost("run --until-caught-up").slot(slot).succeeds(seconds(60));
    }
    let report = kafka.verify(&workload, &expected);
    report.assert_at_least_once();
    println!("{} rows, {} records", expected.len(), report.seen);
}
