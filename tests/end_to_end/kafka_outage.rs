//! A Kafka fault never touches the Postgres session. While Kafka is away the relay is not ready and says why, its memory is
//! bounded, and afterwards everything arrives unaided.

use crate::kit::*;

#[test]
fn two_minutes_under_load_with_a_short_sender_timeout() {
    let mut kafka = Kafka::start_own();
    let postgres = Postgres::builder(MAJOR).conf("wal_sender_timeout = 10s").start();
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(60);
    let load = workload.start();
    let relay = scene.walpost("run").spawn();
    relay.wait_published(1_000, seconds(40));
    relay.wait_streaming();
    let walsender = postgres.walsender(&scene.name);
    assert!(walsender.is_some());

    kafka.stop();
    let mut was_not_ready = None;
    hold(seconds(120), "the walsender is the one of before the outage", || {
        let (ready, why) = relay.readyz();
        if !ready {
            was_not_ready.get_or_insert(why);
        }
        postgres.walsender(&scene.name) == walsender
    });
    let why = was_not_ready.expect("it was ready all the time").to_lowercase();
    assert!(why.contains("kafka") || why.contains("broker"), "the probe does not say why: {why}");
    let status = relay.status();
    assert_eq!(status["state"], "stalled", "{status}");
    assert_eq!(status["kafka"]["connected"], false, "{status}");
    assert_eq!(status["postgres"]["connected"], true, "{status}");
    assert!(status["slot"]["retained_wal_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{status}");
    assert!(status["in_flight"]["messages"].as_u64().is_some_and(|messages| messages <= 50_000), "{status}");

    kafka.start();
    relay.wait_streaming();
    assert!(relay.readyz().0);
    let expected = load.stop();
    wait_for(seconds(60), "all rows to arrive unaided", || relay.published() >= expected.len() as u64);
    assert_eq!(postgres.walsender(&scene.name), walsender, "a Kafka fault touched the Postgres session");
    relay.stop();
    kafka.verify(&workload, &expected).assert_at_least_once();
}

#[test]
fn a_topic_that_is_deleted_and_made_again_goes_on() {
    let (kafka, postgres) =
        (Kafka::builder().property("auto.create.topics.enable=false").start(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let workload = scene.workload().rows(200);
    for topic in workload.topics() {
        kafka.create_topic(&topic, 4, &[]);
    }
    workload.run();
    let relay = scene.walpost("run").spawn();
    relay.wait_published(200, seconds(40));
    let walsender = postgres.walsender(&scene.name);
    for topic in workload.topics() {
        kafka.delete_topic(&topic);
    }
    let expected = workload.run();
    wait_for(seconds(90), "a relay that says that its topic is missing", || {
        let (ready, why) = relay.readyz();
        // Whichever of the two a row was read for first.
        !ready && workload.aggregate_types().iter().any(|topic| why.contains(topic))
    });
    for topic in workload.topics() {
        kafka.create_topic(&topic, 4, &[]);
    }
    relay.wait_published(400, seconds(90));
    assert_eq!(postgres.walsender(&scene.name), walsender, "a Kafka fault touched the Postgres session");
    relay.stop();
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// `on_route_error = "stop"` is for topics that take no records. Brokers that are away are no such thing, also when a row for
/// a topic that nobody has asked for yet comes meanwhile.
#[test]
fn an_outage_is_no_bad_route() {
    let mut kafka = Kafka::start_own();
    let postgres = Postgres::start_major(MAJOR);
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let relay = scene.walpost("run").env("WALPOST_ON_ROUTE_ERROR", "stop").spawn();
    relay.wait_streaming();
    kafka.kill9();
    let workload = scene.workload().rows(100);
    let expected = workload.run();
    hold(seconds(25), "it goes on by itself when the brokers are back", || relay.state() != "stopped");
    kafka.start();
    relay.wait_published(100, seconds(60));
    relay.stop();
    kafka.verify(&workload, &expected).assert_at_least_once();
}
