//! SIGTERM drains: what was read is delivered and confirmed, so that the next start repeats nothing. Nobody can be made to
//! wait for ever: a second signal and a time limit end it.

use crate::kit::*;

#[test]
fn ten_restarts_under_load() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(100);
    let load = workload.start();
    for _ in 0..10 {
        let relay = scene.walpost("run").spawn();
        relay.wait_published(500, seconds(60));
        relay.stop();
    }
    let expected = load.stop();
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_exactly_once();
}

#[test]
fn a_second_signal_ends_at_once() {
    let (mut kafka, postgres) = (Kafka::start_own(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let workload = scene.workload().rows(500);
    let mut expected = workload.run();
    let relay = scene.walpost("run").spawn();
    relay.wait_published(500, seconds(40));
    kafka.kill9();
    expected.extend(workload.run());
    relay.wait_status(seconds(20), "rows in flight", |status| {
        (status["in_flight"]["messages"].as_u64()? > 0).then_some(())
    });
    relay.sigterm();
    hold(seconds(2), "it waits for Kafka after the first signal", || relay.is_running());
    relay.sigterm();
    relay.wait_exit(seconds(2));

    // The same with a limit instead of a second signal.
    let relay = scene.walpost("run").env("WALPOST_SHUTDOWN_TIMEOUT", "3s").spawn();
    wait_for(seconds(20), "an admin server", || relay.try_status().is_some());
    relay.sigterm();
    relay.wait_exit(seconds(8));

    kafka.start();
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_at_least_once();
}

/// Where the record cannot be written within the limit, what was delivered will come again: the last line says so.
#[test]
fn a_stop_that_cannot_confirm_does_not_say_that_nothing_repeats() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let relay = scene.walpost("run").env("WALPOST_SHUTDOWN_TIMEOUT", "2s").spawn();
    relay.wait_streaming();
    let holder = scene.sql();
    holder.execute("begin");
    holder.execute("select from walpost.checkpoint for update");
    let workload = scene.workload().rows(100);
    let expected = workload.run();
    relay.wait_published(100, seconds(20));
    relay.stop();
    holder.execute("rollback");
    let last = relay.log();
    assert!(!last.contains("nothing will repeat"), "{last}");
    assert!(last.contains("comes again with the next start"), "{last}");
    scene.walpost("run --until-caught-up").env("WALPOST_READ_BACK", "false").succeeds(seconds(40));
    let report = kafka.verify(&workload, &expected);
    report.assert_at_least_once();
    assert!(!report.repeated.is_empty(), "nothing repeated, so nothing was tested");
}

/// What was delivered before the poison is confirmed before the process ends, also when it is told to end at once.
#[test]
fn a_stop_at_a_poison_message_leaves_nothing_to_repeat() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().rows(2_000);
    let expected = workload.run();
    scene.sql().execute(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
         values ('a', 'b', 'Broken', 'not a topic', '{}')",
    );
    let relay = scene.walpost("run").env("WALPOST_ON_POISON", "stop").spawn();
    relay.wait_published(2_000, seconds(40));
    relay.stop();
    scene.walpost("run --until-caught-up").env("WALPOST_ON_POISON", "skip").succeeds(seconds(40));
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// What was parked a moment ago is confirmed only once the stream has passed its place in the table, and so is all that was
/// delivered behind it: a relay that is told to stop just then reads on to there.
#[test]
fn a_stop_right_after_a_message_was_parked() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let (workload, mut expected) = (scene.workload().rows(50), Vec::new());
    let walpost = |arguments: &str| scene.walpost(arguments).env("WALPOST_READ_BACK", "false");
    for round in 1..=5 {
        // All before the relay starts: so the place in the table comes behind everything in the log.
        scene.sql().execute(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
             values ('a', 'b', 'Broken', 'not a topic', '{}')",
        );
        expected.extend(workload.run());
        let relay = walpost("run").spawn();
        relay.wait_published(50, seconds(40));
        relay.stop();
        assert!(relay.log().contains("nothing will repeat"), "{}", relay.log_tail());
        let parked = scene.sql().number("select count(*) from walpost.parked_messages");
        assert_eq!(parked, round);
    }
    walpost("run --until-caught-up").succeeds(seconds(40));
    kafka.verify(&workload, &expected).assert_exactly_once();
}
