//! A message that cannot be sent is parked, what comes later for its key waits behind it, and everything else flows. Parked
//! messages survive restarts, and are published or given up when somebody says so.

use serde_json::Value;

use crate::kit::*;

/// A relay whose topic takes no record above 5,000 bytes.
struct Lot {
    scene: Scene,
    topic: String,
    sql: Sql,
}

const ROOM: usize = 5_000;
const TOO_LARGE: usize = 20_000;

impl Lot {
    fn new(kafka: &Kafka, postgres: &Postgres) -> Lot {
        let scene = Scene::new(postgres, kafka, Table::Walpost);
        let topic = format!("parked-{}", unique());
        kafka.create_topic(&topic, 2, &[("max.message.bytes", &ROOM.to_string())]);
        let sql = scene.sql();
        Lot { scene, topic, sql }
    }

    /// One row: its number is in the payload, beside as many bytes as are asked for.
    fn insert(&self, key: &str, number: usize, bytes: usize) {
        let noise = noise(&mut Random::new(number as u64), bytes);
        self.sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
             values ('a', '{key}', 'e', '{}', '{{\"n\": {number}, \"noise\": \"{noise}\"}}')",
            self.topic
        ));
    }

    /// The numbers that arrived for a key, in their order.
    fn arrived(&self, kafka: &Kafka, key: &str) -> Vec<u64> {
        let records = kafka.read(&[&self.topic]);
        let of_key = records.iter().filter(|record| record.key.as_deref() == Some(key.as_bytes()));
        let number = |record: &Seen| {
            let value: Value = serde_json::from_slice(record.value.as_deref().unwrap_or_default()).expect("JSON");
            value["n"].as_u64().expect("a number")
        };
        of_key.map(number).collect()
    }

    fn list(&self, arguments: &str) -> Vec<Value> {
        let output = self.scene.walpost(&format!("parked list --json {arguments}")).succeeds(seconds(20));
        let whole: Value = serde_json::from_str(&output.stdout).expect("JSON");
        whole["messages"].as_array().expect("a list").clone()
    }

    fn wait_parked(&self, relay: &Walpost, messages: u64) {
        wait_for(seconds(40), &format!("{messages} parked messages"), || {
            relay.try_status().is_some_and(|status| status["parked"]["messages"].as_u64() == Some(messages))
        });
    }
}

#[test]
fn a_parked_message_holds_its_key_and_nothing_else_until_somebody_decides() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let lot = Lot::new(kafka, &postgres);
    let relay = lot.scene.walpost("run").spawn();
    lot.insert("a", 1, 10);
    lot.insert("a", 2, TOO_LARGE);
    for number in 3..20 {
        lot.insert("a", number, 10);
        lot.insert("b", number, 10);
    }
    wait_for(seconds(40), "the other key", || lot.arrived(kafka, "b").len() == 17);
    lot.wait_parked(&relay, 18);
    assert_eq!(lot.arrived(kafka, "a"), [1]);
    assert!(relay.readyz().0, "a parked message does not stop the relay");
    assert_eq!(relay.status()["parked"]["keys"], 1);
    lot.scene.wait_slot_follows(seconds(20));

    // It survives a crash, also of what is not confirmed yet.
    relay.kill9();
    let relay = lot.scene.walpost("run").spawn();
    lot.insert("a", 20, 10);
    lot.insert("b", 20, 10);
    wait_for(seconds(40), "the other key", || lot.arrived(kafka, "b").contains(&20));
    lot.wait_parked(&relay, 19);
    assert_eq!(lot.arrived(kafka, "a"), [1]);

    let listed = lot.list("");
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((&listed[0]["state"], &listed[0]["reason"]), (&"parked".into(), &"too_large".into()));
    assert_eq!((&listed[0]["key"], &listed[0]["behind"]), (&"a".into(), &18.into()));
    assert_eq!(lot.list("--all").len(), 19);
    let id = listed[0]["id"].as_i64().expect("an id");
    let shown = lot.scene.walpost(&format!("parked show {id} --json")).succeeds(seconds(20));
    let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert!(shown["value"].as_str().is_some_and(|value| value.len() > TOO_LARGE), "the whole message is kept");

    // Refused once more, it stays, and so does all behind it.
    lot.scene.walpost(&format!("parked retry {id}")).succeeds(seconds(20));
    wait_for(seconds(40), "a second refusal", || lot.list("")[0]["attempts"] == 1);
    assert_eq!(lot.arrived(kafka, "a"), [1]);

    kafka.alter_topic(&lot.topic, &[("max.message.bytes", "100000")]);
    lot.scene.walpost("parked retry --all").succeeds(seconds(20));
    wait_for(seconds(40), "all of the key", || lot.arrived(kafka, "a").len() == 20);
    lot.wait_parked(&relay, 0);
    lot.insert("a", 21, 10);
    wait_for(seconds(40), "the key flows again", || lot.arrived(kafka, "a").len() == 21);
    assert_eq!(lot.arrived(kafka, "a"), Vec::from_iter(1..=21));
    let origins = kafka.read(&[&lot.topic]);
    let of_parked = origins.iter().filter(|record| record.header("origin").as_deref() == Some("parked")).count();
    assert_eq!(of_parked, 19);
    relay.stop();
}

#[test]
fn what_waits_behind_a_discarded_message_is_published() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let lot = Lot::new(kafka, &postgres);
    let relay = lot.scene.walpost("run").spawn();
    for (number, bytes) in [(1, TOO_LARGE), (2, 10), (3, TOO_LARGE), (4, 10)] {
        lot.insert("a", number, bytes);
    }
    lot.wait_parked(&relay, 4);
    let first = lot.list("")[0]["id"].as_i64().expect("an id");
    assert_eq!(lot.scene.walpost(&format!("parked discard {first}")).output(seconds(20)).code, 2, "without --yes");
    assert_eq!(lot.scene.walpost("parked discard 999999 --yes").output(seconds(20)).code, 1, "no such message");
    lot.scene.walpost(&format!("parked discard {first} --yes")).succeeds(seconds(20));
    // The second one goes, the third one is found to be too large as well.
    wait_for(seconds(40), "the second one", || lot.arrived(kafka, "a") == [2]);
    wait_for(seconds(40), "the third one to be a culprit", || {
        lot.list("").iter().any(|message| message["state"] == "parked" && message["behind"] == 1)
    });
    lot.scene.walpost("parked discard --all --yes").succeeds(seconds(20));
    wait_for(seconds(40), "the fourth one", || lot.arrived(kafka, "a") == [2, 4]);
    lot.wait_parked(&relay, 0);
    relay.stop();
}

/// Rows that make no record are parked too, and make one later if the settings allow it then.
#[test]
fn a_row_that_makes_no_record_is_parked_whole() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let lot = Lot::new(kafka, &postgres);
    let relay = lot.scene.walpost("run").spawn();
    let insert = |key: &str, payload: &str, headers: &str| {
        lot.sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload, headers)
             values ('a', '{key}', 'e', '{}', {payload}, '{headers}')",
            lot.topic
        ));
    };
    insert("a", "null", "{}");
    lot.insert("a", 2, 10);
    insert("", "'{\"n\": 3}'", "{}");
    insert("c", "'{\"n\": 4}'", "[1]");
    lot.insert("d", 5, 10);
    lot.wait_parked(&relay, 4);
    wait_for(seconds(20), "the sound row", || lot.arrived(kafka, "d") == [5]);
    assert_eq!(lot.arrived(kafka, "a"), [0; 0]);
    let mut reasons: Vec<String> =
        lot.list("").iter().map(|message| message["reason"].as_str().unwrap_or_default().to_owned()).collect();
    reasons.sort();
    assert_eq!(reasons, ["bad_headers", "null_key", "null_payload"]);
    relay.stop();
    let relay = lot
        .scene
        .walpost("run")
        .env("WALPOST_ON_NULL_PAYLOAD", "tombstone")
        .env("WALPOST_ON_NULL_KEY", "allow")
        .spawn();
    lot.scene.walpost("parked retry --all").succeeds(seconds(20));
    lot.wait_parked(&relay, 1);
    let records = kafka.read(&[&lot.topic]);
    let of_a: Vec<bool> = records
        .iter()
        .filter(|record| record.key.as_deref() == Some(b"a"))
        .map(|record| record.value.is_none())
        .collect();
    assert_eq!(of_a, [true, false], "the tombstone, then what waited behind it");
    assert_eq!(lot.arrived(kafka, ""), [3]);
    wait_for(seconds(20), "the row that cannot be mended", || lot.list("")[0]["attempts"] == 1);
    relay.stop();
}

#[test]
fn beyond_its_limit_the_relay_stops_and_goes_on_when_there_is_room() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let lot = Lot::new(kafka, &postgres);
    let relay = lot.scene.walpost("run").env("WALPOST_PARKED_MAX_ROWS", "3").spawn();
    lot.insert("a", 1, TOO_LARGE);
    for number in 2..6 {
        lot.insert("a", number, 10);
    }
    lot.insert("b", 6, 10);
    relay.wait_state("stopped", seconds(40));
    assert!(relay.readyz().1.contains("parked.max_rows"), "{:?}", relay.readyz());
    assert_eq!(lot.arrived(kafka, "b"), [0; 0], "the position is frozen");
    lot.scene.walpost("parked discard --all --yes").succeeds(seconds(20));
    relay.wait_streaming();
    wait_for(seconds(40), "all the others", || {
        lot.arrived(kafka, "a") == [2, 3, 4, 5] && lot.arrived(kafka, "b") == [6]
    });
    relay.stop();
}

#[test]
fn dead_letters_say_why_and_hold_nothing_back() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let lot = Lot::new(kafka, &postgres);
    let letters = format!("letters-{}", unique());
    kafka.create_topic(&letters, 1, &[]);
    let run =
        lot.scene.walpost("run").env("WALPOST_ON_POISON", "dead_letter").env("WALPOST_DEAD_LETTER_TOPIC", &letters);
    let relay = run.spawn();
    for (number, bytes) in [(1, 10), (2, TOO_LARGE), (3, 10)] {
        lot.insert("a", number, bytes);
    }
    lot.sql.execute(&format!(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload, headers)
         values ('a', 'b', 'e', '{}', '{{\"n\": 4}}', '[]')",
        lot.topic
    ));
    wait_for(seconds(40), "what can be sent", || lot.arrived(kafka, "a") == [1, 3]);
    wait_for(seconds(40), "the dead letters", || kafka.count(&[&letters]) == 2);
    let mut seen = kafka.read(&[&letters]);
    // Of two keys: which is first is not promised.
    seen.sort_by_key(|record| record.key.clone());
    let said = |name: &str| seen.iter().map(|record| record.header(name).unwrap_or_default()).collect::<Vec<_>>();
    assert_eq!(said("dead_letter.reason"), ["too_large", "bad_headers"]);
    assert_eq!(said("dead_letter.topic"), [lot.topic.as_str(), &lot.topic]);
    assert!(said("dead_letter.error").iter().all(|error| !error.is_empty()));
    assert_eq!(seen[0].key.as_deref(), Some(b"a".as_slice()));
    assert!(seen[0].value.as_ref().is_some_and(|value| value.len() > TOO_LARGE));
    lot.scene.wait_slot_follows(seconds(20));
    relay.stop();
}
