//! Every row of a committed transaction reaches Kafka, whatever process dies when, and a retry never swaps rows of a key.

use std::time::Duration;

use crate::kit::*;

#[test]
fn when_the_relay_is_killed_twenty_times_under_load() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    const WINDOW: usize = 1_000;
    let workload = scene.workload().transactions_per_second(100);
    let load = workload.start();
    let mut random = Random::new(20);
    let relay =
        scene.walpost("run").env("WALPOST_WINDOW_MESSAGES", WINDOW.to_string()).env("WALPOST_READ_BACK", "false");
    for _ in 0..20 {
        let running = relay.spawn();
        running.wait_published(1 + random.below(2_000), seconds(60));
        running.kill9();
    }
    let expected = load.stop();
    scene.catch_up(seconds(60));
    let report = kafka.verify(&workload, &expected);
    report.assert_at_least_once();
    // Without reading back, a crash repeats at most the window, what was delivered since the last feedback, and what was
    // delivered of the transaction in progress. A backlog is delivered faster than the load writes.
    let per_crash = report.repeated.len() / 20;
    assert!(per_crash <= WINDOW + 20_000, "{per_crash} rows repeated per crash: {report}");
}

#[test]
fn when_postgres_crashes_restarts_or_cuts_the_connection() {
    let (kafka, mut postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(50);
    let load = workload.start();
    let relay = scene.walpost("run").spawn();
    relay.wait_published(200, seconds(40));
    for what in ["immediate", "fast", "kill", "terminate", "terminate"] {
        let before = relay.published();
        match what {
            "immediate" => drop(postgres.stop(Stop::Immediate, seconds(20))),
            "fast" => drop(postgres.stop(Stop::Fast, seconds(20))),
            "kill" => postgres.kill9(),
            _ => scene.sql().execute("select pg_terminate_backend(pid) from pg_stat_replication"),
        }
        if what != "terminate" {
            wait_for(seconds(10), "a relay that has noticed", || !relay.readyz().0 || relay.state() != "streaming");
            postgres.start();
        }
        relay.wait_published(before + 300, seconds(60));
        relay.wait_streaming();
    }
    // Nothing that was flushed is lost in these, so the history is the same.
    assert!(!relay.log().contains("a new epoch begins"), "{}", relay.log_tail());
    let expected = load.stop();
    relay.stop();
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_at_least_once();
}

#[test]
fn when_the_broker_is_killed_under_load() {
    let (mut kafka, postgres) = (Kafka::start_own(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(100);
    let load = workload.start();
    let relay = scene.walpost("run").spawn();
    relay.wait_published(500, seconds(40));
    let walsender = postgres.walsender(&scene.name);
    for _ in 0..2 {
        let before = relay.published();
        kafka.kill9();
        kafka.start();
        relay.wait_published(before + 2_000, seconds(90));
    }
    assert_eq!(postgres.walsender(&scene.name), walsender, "a Kafka fault touched the Postgres session");
    let expected = load.stop();
    relay.stop();
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_at_least_once();
}

/// After a broker that froze, librdkafka may hang for good without a word: the relay has to notice by itself.
#[test]
fn when_the_broker_freezes_for_forty_seconds() {
    let (kafka, postgres) = (Kafka::start_own(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(50);
    let load = workload.start();
    let relay = scene.walpost("run").spawn();
    relay.wait_published(500, seconds(40));
    let walsender = postgres.walsender(&scene.name);
    let before = relay.published();
    kafka.pause();
    hold(Duration::from_secs(40), "the walsender serves the relay", || postgres.walsender(&scene.name) == walsender);
    assert!(!relay.readyz().0, "ready although nothing was delivered for 40 s");
    kafka.resume();
    relay.wait_published(before + 5_000, seconds(120));
    relay.wait_streaming();
    assert_eq!(postgres.walsender(&scene.name), walsender, "a Kafka fault touched the Postgres session");
    let expected = load.stop();
    relay.stop();
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_at_least_once();
}
