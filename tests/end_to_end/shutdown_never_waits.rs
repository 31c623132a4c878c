//! The database's shutdown never waits for the relay: not for an idle one, and not for one that is stuck on a dead broker
//! with its window full and a large backlog behind it.

use crate::kit::*;

/// What `pg_ctl stop -m fast` may take.
const STOPS_WITHIN_S: u64 = 5;

#[test]
fn on_every_version_while_kafka_is_dead_and_the_window_is_full() {
    let mut kafka = Kafka::start_own();
    let mut stuck: Vec<_> = MAJORS.map(|major| Stuck::new(major, &kafka)).into();
    kafka.kill9();
    for one in &mut stuck {
        // Beyond the window of 500 rows and all the buffers on the way.
        one.expected.extend(one.workload.clone().rows(50_000).run());
        one.relay.wait_status(seconds(40), "a full window", |status| {
            (status["in_flight"]["messages"].as_u64()? >= 400).then_some(())
        });
    }
    for one in &mut stuck {
        let took = one.postgres.stop(Stop::Fast, seconds(60));
        assert!(took < seconds(STOPS_WITHIN_S), "Postgres {} needed {took:?} to stop", one.postgres.major);
    }
    kafka.start();
    for one in &mut stuck {
        one.postgres.start();
    }
    for one in &mut stuck {
        let (relay, workload, expected) = (&one.relay, &one.workload, &one.expected);
        relay.wait_streaming();
        kafka.wait_arrived(workload, expected, seconds(120));
        relay.stop();
        kafka.verify(workload, expected).assert_at_least_once();
    }
}

struct Stuck {
    postgres: Postgres,
    workload: Workload,
    expected: Vec<Expected>,
    relay: Walpost,
}

impl Stuck {
    /// One that streams and has delivered something.
    fn new(major: u32, kafka: &Kafka) -> Stuck {
        let postgres = Postgres::start_major(major);
        let scene = Scene::new(&postgres, kafka, Table::Walpost);
        let workload = scene.workload().rows(100).filler_bytes(400);
        let expected = workload.run();
        let relay = scene.walpost("run").env("WALPOST_WINDOW_MESSAGES", "500").spawn();
        relay.wait_published(100, seconds(40));
        Stuck { postgres, workload, expected, relay }
    }
}

#[test]
fn while_the_relay_is_idle_or_busy() {
    let (kafka, mut postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let relay = scene.walpost("run").spawn();
    for busy in [false, true] {
        relay.wait_streaming();
        let workload = scene.workload().transactions_per_second(50);
        let load = busy.then(|| workload.start());
        if busy {
            let before = relay.published();
            relay.wait_published(before + 500, seconds(30));
        }
        let took = postgres.stop(Stop::Fast, seconds(60));
        assert!(took < seconds(STOPS_WITHIN_S), "Postgres needed {took:?} to stop, relay busy: {busy}");
        postgres.start();
        relay.wait_streaming();
        if let Some(load) = load {
            let expected = load.stop();
            kafka.wait_arrived(&workload, &expected, seconds(60));
            kafka.verify(&workload, &expected).assert_at_least_once();
        }
    }
}
