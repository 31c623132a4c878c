//! A second relay waits for the slot, ready, and takes over; two live ones never take it from each other.

use std::time::Instant;

use crate::kit::*;

#[test]
fn takes_over_from_a_killed_one_and_from_one_that_signs_off() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(50);
    let load = workload.start();
    let first = scene.walpost("run").spawn();
    first.wait_streaming();
    let second = scene.walpost("run").spawn();
    second.wait_state("standby", seconds(20));
    assert!(second.readyz().0, "a standby is ready, or no rolling update would ever finish");
    assert_eq!(first.metric("walpost_leader", ""), Some(1.0));
    assert_eq!(second.metric("walpost_leader", ""), Some(0.0));

    let walsender = postgres.walsender(&scene.name);
    hold(seconds(15), "the first one keeps the slot", || {
        postgres.walsender(&scene.name) == walsender && first.state() == "streaming" && second.state() == "standby"
    });
    assert_eq!(second.published(), 0);

    let killed = Instant::now();
    first.kill9();
    second.wait_streaming();
    second.wait_published(1, seconds(20));
    assert!(killed.elapsed() < seconds(20), "the take-over took {:?}", killed.elapsed());

    let third = scene.walpost("run").spawn();
    third.wait_state("standby", seconds(20));
    let signed_off = Instant::now();
    second.stop();
    third.wait_published(1, seconds(20));
    assert!(signed_off.elapsed() < seconds(10), "the hand-over took {:?}", signed_off.elapsed());

    let expected = load.stop();
    third.stop();
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_at_least_once();
}

/// Requests of a holder that died may still reach the brokers for some seconds. Whoever takes the slot waits for them to
/// pass, also over a session of its own that is cut, and signs nobody else's requests off.
#[test]
fn the_wait_for_a_dead_holders_requests_survives_a_cut_and_a_stop() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().rows(100);
    let mut expected = workload.run();
    let first = scene.walpost("run").spawn();
    first.wait_published(100, seconds(40));
    first.kill9();
    expected.extend(workload.run());

    let taken_over = Instant::now();
    let second = scene.walpost("run").spawn();
    second.wait_log("streaming goes on", seconds(20));
    scene.sql().execute("select pg_terminate_backend(pid) from pg_stat_replication");
    wait_for(seconds(10), "a second session", || second.log().matches("streaming goes on").count() == 2);
    assert!(taken_over.elapsed() < seconds(4), "too slow to test anything: {:?}", taken_over.elapsed());
    second.stop();
    assert!(taken_over.elapsed() < seconds(5), "too slow to test anything: {:?}", taken_over.elapsed());
    assert_eq!(second.published(), 0, "it produced before the dead holder's requests have passed");
    let state = format!("select state from walpost.checkpoint where slot_name = '{}'", scene.name);
    assert_eq!(scene.sql().value(&state), "streaming", "it signed off requests that are not its own");

    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_at_least_once();
}
