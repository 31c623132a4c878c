//! `run --until-caught-up`, for cron and for tests: ends with 0 once everything committed before its start is confirmed.

use crate::kit::*;

#[test]
fn ends_when_there_is_nothing_to_do_and_when_all_is_done() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(30));
    let workload = scene.workload().rows(3_000);
    let expected = workload.run();
    let written = scene.sql().value("select pg_current_wal_insert_lsn()");
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_exactly_once();
    let confirmed = format!("select confirmed_flush_lsn from pg_replication_slots where slot_name = '{}'", scene.name);
    let confirmed = scene.sql().value(&confirmed);
    // All rows lie before `written`; the last kilobytes may be what others wrote since.
    assert!(
        scene.sql().is_true(&format!("select pg_wal_lsn_diff('{written}', '{confirmed}') < 100000")),
        "{confirmed}"
    );
    scene.catch_up(seconds(30));
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// What is committed later is another run's: a steady writer does not keep it from ending.
#[test]
fn ends_also_while_others_keep_writing() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(100);
    let load = workload.start();
    wait_for(seconds(20), "some rows", || load.committed() > 500);
    scene.catch_up(seconds(40));
    let expected = load.stop();
    scene.catch_up(seconds(40));
    kafka.verify(&workload, &expected).assert_exactly_once();
}
