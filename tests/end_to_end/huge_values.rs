//! Values at the limits of both ends: a payload that is too large to be kept twice, and a row that the server can store and
//! not send.

use serde_json::Value;

use crate::kit::*;

/// Above what is kept (32 MiB), below what Kafka's client takes (100 MB).
const LARGE: usize = 40_000_000;

fn listed(case: &Case) -> Vec<Value> {
    let output = case.scene.walpost("parked list --all --json").succeeds(seconds(20));
    let whole: Value = serde_json::from_str(&output.stdout).expect("JSON");
    whole["messages"].as_array().expect("a list").clone()
}

/// A message whose value is large is parked by reference: its queue holds, memory and the database do not pay for a copy,
/// and when it is wanted it comes from the outbox, byte for byte. If its row is gone by then, that is said.
#[test]
fn a_value_too_large_to_keep_stays_in_the_outbox_until_it_is_wanted() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    for payload in ["jsonb", "bytea"] {
        let case = Case::without_setup(&postgres, kafka);
        case.sql.execute(&format!("alter table outbox_messages drop payload, add payload {payload}"));
        case.scene.walpost("setup").succeeds(seconds(30));
        let large = match payload {
            "jsonb" => format!("jsonb_build_object('n', 1, 'filler', repeat('x', {LARGE}))"),
            _ => format!("decode('00ff', 'hex') || convert_to(repeat('x', {LARGE}), 'UTF8')"),
        };
        let insert = |key: &str, value: &str, headers: &str| {
            case.sql.execute(&format!(
                "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload, headers)
                 values ('a', '{key}', 'e', '{}', {value}, '{headers}')",
                case.topic
            ));
        };
        let small = if payload == "jsonb" { "'{\"n\": 2}'" } else { "'\\x02'" };
        let relay = case.scene.walpost("run").spawn();
        insert("k", &large, "{\"h\": \"ü\"}");
        insert("k", small, "{}");
        insert("gone", &large, "{}");
        // No record can be made of this one: without a key.
        insert("", &large, "{}");
        insert("other", small, "{}");
        relay
            .wait_status(seconds(60), "all parked", |status| status["parked"]["messages"].as_u64().filter(|n| *n == 4));
        wait_for(seconds(40), "the other key", || kafka.count(&[&case.topic]) == 1);
        let kept = case.sql.number("select pg_total_relation_size('walpost.parked_messages')");
        let bytes = case.sql.number("select sum(value_bytes) from walpost.parked_messages");
        assert!(kept < 1_000_000 && bytes < 10_000, "{kept} bytes on disk, {bytes} counted");
        let of_k = listed(&case)[0]["id"].as_i64().expect("an id");
        let shown = case.scene.walpost(&format!("parked show {of_k} --json")).succeeds(seconds(20));
        let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
        assert_eq!(shown["row"]["in_table"]["column"], "payload", "{shown}");
        relay.stop();

        kafka.alter_topic(&case.topic, &[("max.message.bytes", "90000000")]);
        case.sql.execute("delete from outbox_messages where aggregate_id = 'gone'");
        let relay = case.scene.walpost("run").env("WALPOST_ON_NULL_KEY", "allow").spawn();
        case.scene.walpost("parked retry --all").succeeds(seconds(20));
        relay.wait_status(seconds(90), "one left", |status| status["parked"]["messages"].as_u64().filter(|n| *n == 1));
        let left = listed(&case);
        assert_eq!((&left[0]["reason"], &left[0]["state"]), (&"value_gone".into(), &"parked".into()), "{left:?}");
        relay.stop();

        let seen = kafka.read(&[&case.topic]);
        let lengths: Vec<(&[u8], usize)> = seen
            .iter()
            .map(|record| (record.key.as_deref().unwrap_or_default(), record.value.as_deref().map_or(0, <[u8]>::len)))
            .collect();
        let (small, whole) = if payload == "jsonb" { (8, LARGE + 22) } else { (1, LARGE + 2) };
        let expected: [(&[u8], usize); 4] = [(b"other", small), (b"k", whole), (b"k", small), (b"", whole)];
        assert_eq!(lengths, expected, "{payload}");
        let value = seen[1].value.as_deref().expect("a value");
        match payload {
            "jsonb" => assert!(value.starts_with(b"{\"n\": 1, \"filler\": \"xxx") && value.ends_with(b"xxx\"}")),
            _ => assert!(value.starts_with(b"\x00\xffxxx")),
        }
        assert_eq!(seen[1].header("h").as_deref(), Some("ü"));
    }
}

/// A bytea of 600 MB fits into a row, and its hexadecimal text into no buffer of the server: the stream ends with the same
/// error at the same place, for ever. That is recognised, named with its remedy, and not hammered; the remedy works, and all
/// other rows arrive.
#[test]
fn a_row_that_the_server_cannot_send_is_named_and_its_remedy_works() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::without_setup(&postgres, kafka);
    case.sql.execute("alter table outbox_messages drop payload, add payload bytea");
    case.scene.walpost("setup").succeeds(seconds(30));
    let insert = |number: u8| {
        case.sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
             values ('a', 'k', 'e', '{}', '\\x{number:02x}')",
            case.topic
        ));
    };
    insert(1);
    let relay = case.scene.walpost("run").spawn();
    wait_for(seconds(40), "the first row", || kafka.count(&[&case.topic]) == 1);
    case.sql.execute(&format!(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
         values ('a', 'huge', 'e', '{}', convert_to(repeat('x', 600000000), 'UTF8'))",
        case.topic
    ));
    insert(2);
    relay.wait_state("stalled", seconds(120));
    let (ready, said) = relay.readyz();
    assert!(!ready && said.contains("again and again") && said.contains("memory alloc"), "{said}");
    assert!(said.contains("pg_drop_replication_slot") && said.contains("walpost recover"), "{said}");
    assert_eq!(kafka.count(&[&case.topic]), 1);
    let attempts = relay.metric("walpost_retries_total", "session").unwrap_or(0.0);
    hold(seconds(8), "it is not hammered", || {
        relay.state() == "stalled" && relay.metric("walpost_retries_total", "session").unwrap_or(0.0) <= attempts + 1.0
    });
    relay.stop();

    case.sql.execute("delete from outbox_messages where aggregate_id = 'huge'");
    case.sql.value(&format!("select pg_drop_replication_slot('{}')", case.scene.name));
    case.scene.walpost("recover --yes").succeeds(seconds(60));
    insert(3);
    case.scene.catch_up(seconds(60));
    let mut values: Vec<_> = kafka.read(&[&case.topic]).into_iter().filter_map(|record| record.value).collect();
    values.dedup();
    // The first one was confirmed, and may be too young for the record's horizon.
    let expected = [vec![1], vec![2], vec![3]];
    assert!(values == expected || values == [&expected[..1], &expected[..]].concat(), "{values:?}");
}

/// The largest text that the server can send still passes through: nothing is lost, nothing else is held up, and memory is
/// bounded by that one row.
#[test]
fn a_row_of_nine_hundred_megabytes_is_parked_and_all_others_flow() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::without_setup(&postgres, kafka);
    case.sql.execute("alter table outbox_messages alter payload type text");
    case.scene.walpost("setup").succeeds(seconds(30));
    case.insert([1]);
    case.sql.execute(&format!(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
         values ('a', 'huge', 'e', '{}', repeat('x', 900000000))",
        case.topic
    ));
    case.insert([2]);
    let relay = case.scene.walpost("run").spawn();
    case.wait_arrived(&[1, 2]);
    assert_eq!(listed(&case).len(), 1);
    case.scene.wait_slot_follows(seconds(30));
    let memory = relay.memory().expect("a running relay");
    println!("peak {} MB", memory.peak / 1_000_000);
    assert!(memory.peak < 1_200_000_000, "peak of resident memory: {} MB", memory.peak / 1_000_000);
    wait_for(seconds(30), "memory to be given back", || relay.memory().is_some_and(|memory| memory.now < 200_000_000));
    relay.stop();
}
