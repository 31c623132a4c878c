//! Poison: a row that can never be sent as it is stops the relay, which stays up and names it, or is skipped where that was
//! asked for. It never holds up or loses another row in silence.

use crate::kit::*;

const POISON_ID: &str = "00000000-0000-4000-8000-00000000dead";

fn poison(topic: &str) -> Message {
    Message {
        id: POISON_ID.into(),
        aggregate_type: "poisoned".into(),
        key: "key-1".into(),
        event_type: "Broken".into(),
        topic: topic.into(),
        payload: "{}".into(),
        headers: "{}".into(),
    }
}

/// Rows, the poison, rows again; one relay under `stop`, then one under `skip`.
#[track_caller]
fn stops_and_can_be_skipped(kafka: &Kafka, poison: &Message, word: &str) {
    let postgres = Postgres::start_major(MAJOR);
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().rows(100);
    let before = workload.run();
    insert(&scene.sql(), Table::Walpost, "outbox_messages", std::slice::from_ref(poison));
    let after = workload.run();

    let relay = scene.walpost("run").env("WALPOST_ON_POISON", "stop").spawn();
    relay.wait_state("stopped", seconds(60));
    let (ready, sentence) = relay.readyz();
    assert!(!ready);
    let status = relay.status();
    let said = format!("{sentence} {status} {}", relay.log());
    assert!(said.contains(POISON_ID) && said.contains(word), "the row or its fault is not named: {sentence} {status}");
    assert_eq!(relay.metric("walpost_messages_failed_total", "").map(|failed| failed >= 1.0), Some(true));
    // The position is frozen before the poison: a restart finds it again.
    relay.stop();
    let relay = scene.walpost("run").env("WALPOST_ON_POISON", "stop").spawn();
    relay.wait_state("stopped", seconds(60));
    let one_shot = scene.walpost("run --until-caught-up").env("WALPOST_ON_POISON", "stop");
    relay.stop();
    assert_eq!(one_shot.output(seconds(60)).code, 100);

    let skipping = scene.walpost("run").env("WALPOST_ON_POISON", "skip").spawn();
    skipping.wait_published(1, seconds(60));
    let expected: Vec<Expected> = before.into_iter().chain(after).collect();
    kafka.wait_arrived(&workload, &expected, seconds(60));
    // Rows of other topics may be in Kafka before the broker has refused this one.
    wait_for(seconds(20), "a skipped row that is counted", || {
        skipping.metric("walpost_messages_skipped_total", "") == Some(1.0)
    });
    assert!(skipping.log().contains(POISON_ID), "a skipped row is logged");
    scene.wait_slot_follows(seconds(20));
    skipping.stop();
    kafka.verify(&workload, &expected).assert_at_least_once();
}

#[test]
fn a_topic_name_that_kafka_does_not_allow() {
    stops_and_can_be_skipped(Kafka::shared(), &poison("not a topic"), "not a topic");
}

#[test]
fn a_record_that_is_too_large_for_its_topic() {
    let kafka = Kafka::shared();
    let topic = format!("small-{}", unique());
    kafka.create_topic(&topic, 1, &[("max.message.bytes", "100000")]);
    // Random, so that no compression makes it fit.
    let mut random = Random::new(1);
    let filler: String = (0..10_000).map(|_| format!("{:016x}", random.next())).collect();
    let large = Message { payload: format!("{{\"filler\": \"{filler}\"}}"), ..poison(&topic) };
    stops_and_can_be_skipped(kafka, &large, &topic);
}

#[test]
fn null_payloads_and_empty_keys_do_what_is_set() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let topic = format!("nulls-{}", unique());
    scene.sql().execute(&format!(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload) values
         ('a', 'gone', 'Deleted', '{topic}', null), ('a', '', 'NoKey', '{topic}', '{{}}'), ('a', 'kept', 'Kept', '{topic}', '{{}}')"
    ));
    scene
        .walpost("run --until-caught-up")
        .env("WALPOST_ON_NULL_PAYLOAD", "tombstone")
        .env("WALPOST_ON_NULL_KEY", "allow")
        .succeeds(seconds(60));
    let seen = kafka.read(&[&topic]);
    assert_eq!(seen.len(), 3, "{seen:?}");
    let tombstone = seen.iter().find(|record| record.key.as_deref() == Some(b"gone")).expect("the tombstone");
    assert_eq!(tombstone.value, None);
    let keyless =
        seen.iter().find(|record| record.header("eventType").as_deref() == Some("NoKey")).expect("the keyless one");
    let id = keyless.header("id").expect("an id");
    assert_eq!(keyless.partition, partition(id.as_bytes(), kafka.partition_count(&topic)), "by the hash of its id");
}
