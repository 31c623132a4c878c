//! Cases of `docs/field-cases.md`: a Kafka that is frozen, late, or refuses.

use crate::kit::*;

/// The heart of it: while nothing is delivered nothing is confirmed, whatever keepalives and timers say, also over a kill.
#[test]
fn nothing_is_confirmed_while_the_broker_is_frozen() {
    let kafka = Kafka::start_own();
    let postgres = Postgres::builder(MAJOR).conf("wal_sender_timeout = 4s").start();
    let case = Case::new(&postgres, &kafka);
    let relay = case.scene.walpost("run").env("WALPOST_FEEDBACK_INTERVAL", "200ms").spawn();
    case.insert([0]);
    case.wait_arrived(&[0]);
    let walsender = postgres.walsender(&case.scene.name);
    kafka.pause();
    let before = case.end_of_wal();
    case.insert(1..=100);
    let first = case.end_of_wal();
    case.sql.execute("create table busy (filler text)");
    let mut rounds = 0;
    hold(seconds(12), "the slot stays before the first row", || {
        rounds += 1;
        case.sql.execute("insert into busy select repeat('x', 1000) from generate_series(1, 100)");
        !case.is_confirmed(&first)
    });
    assert!(rounds > 3, "so little was written that nothing was tested");
    assert_eq!(postgres.walsender(&case.scene.name), walsender, "a slow broker cut the session; it stood at {before}");
    assert_eq!(relay.state(), "stalled");
    relay.kill9();
    kafka.resume();
    let relay = case.scene.walpost("run").spawn();
    case.wait_contains(0..=100);
    relay.stop();
    let mut firsts = case.arrived();
    let mut seen = std::collections::HashSet::new();
    firsts.retain(|&number| seen.insert(number));
    assert_eq!(firsts, Vec::from_iter(0..=100), "first arrivals, in their order");
}

/// Kafka that comes up after the relay, with rows waiting: no restart, no row lost, none twice.
#[test]
fn a_kafka_that_starts_later_gets_everything() {
    let mut kafka = Kafka::start_own();
    let postgres = Postgres::start_major(MAJOR);
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    kafka.stop();
    let workload = scene.workload().rows(20_000);
    let expected = workload.run();
    let relay =
        scene.walpost("run").env("WALPOST_BROKERS", format!("127.0.0.1:{},{}", free_port(), kafka.bootstrap())).spawn();
    wait_for(seconds(30), "a relay that names the broker", || {
        relay.get("/readyz").is_ok_and(|(code, said)| code == 503 && said.contains("127.0.0.1"))
    });
    let lines = relay.log().lines().count();
    hold(seconds(6), "it waits, without a line for each attempt", || {
        relay.is_running() && relay.log().lines().count() < lines + 15
    });
    kafka.start();
    relay.wait_published(expected.len() as u64, seconds(90));
    kafka.wait_arrived(&workload, &expected, seconds(90));
    relay.wait_streaming();
    relay.stop();
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// A right that is taken away while rows flow is waited for and named; given back, everything comes, in order and once.
#[test]
fn a_right_that_is_taken_away_is_named_and_waited_for() {
    let authorizer = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    let kafka = Kafka::builder().property(authorizer).property("allow.everyone.if.no.acl.found=true").start();
    let postgres = Postgres::start_major(MAJOR);
    let case = Case::new(&postgres, &kafka);
    let relay = case.scene.walpost("run").spawn();
    case.insert([0]);
    case.wait_arrived(&[0]);
    // Who has some right and no other has lost that other one.
    kafka.acl(&format!("--add --allow-principal User:* --operation Read --operation Describe --topic {}", case.topic));
    case.insert(1..=50);
    relay.wait_state("waiting_for_topic", seconds(60));
    let (ready, said) = relay.readyz();
    assert!(!ready && said.contains(&case.topic) && said.to_lowercase().contains("authori"), "{said}");
    assert_eq!(case.arrived(), [0]);
    assert!(!case.is_confirmed(&case.end_of_wal()));
    kafka.acl(&format!("--remove --force --topic {}", case.topic));
    case.insert([51]);
    case.wait_arrived(&Vec::from_iter(0..=51));
    relay.wait_streaming();
    relay.stop();
}
