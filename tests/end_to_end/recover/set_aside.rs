//! Rows that cannot be sent, and those that wait behind parked ones: a recovery treats them as the stream does.

use super::*;

/// What is parked stays so, what follows for its key waits behind it, and what cannot be sent is parked; all other rows go
/// out, and the queues come in their order when their heads are decided on.
#[test]
fn keeps_the_order_of_keys_whose_messages_are_parked() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let (sql, kind) = (scene.sql(), format!("parked{}", unique()));
    let topic = format!("outbox.event.{kind}");
    kafka.create_topic(&topic, 4, &[("max.message.bytes", "5000")]);
    let write = |key: &str, event: &str, headers: &str| {
        sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload, headers)
             values ('{kind}', '{key}', '{event}', '{{}}', '{headers}')"
        ));
    };
    let write_too_large = |key: &str, event: &str| {
        sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload)
             select '{kind}', '{key}', '{event}', jsonb_agg(md5(random()::text)) from generate_series(1, 500)"
        ));
    };
    write("a", "a1", "[]");
    write("a", "a2", "{}");
    scene.catch_up(seconds(40));
    drop_slot(&scene);
    doubt_everything(&scene);
    write_too_large("d", "d1");
    write("d", "d2", "{}");
    for (key, event, headers) in
        [("a", "a3", "{}"), ("b", "b1", "{}"), ("c", "c1", "[]"), ("c", "c2", "{}"), ("b", "b2", "{}")]
    {
        write(key, event, headers);
    }
    let seen = json(&scene.walpost("recover --dry-run --json").succeeds(seconds(30)));
    assert_eq!((&seen["parked"], &seen["waiting"], &seen["unsendable"]), (&2.into(), &1.into(), &1.into()), "{seen}");
    let result = recovered(&scene);
    let counts = ["rows", "parked", "waiting", "set_aside"].map(|field| result[field].as_u64());
    assert_eq!(counts, [2, 2, 3, 2].map(Some), "{result}");
    let events = || -> Vec<String> {
        let mut records = kafka.read(&[&topic]);
        records.sort_by_key(|seen| (seen.key.clone(), seen.offset));
        records.iter().filter_map(|seen| seen.header("eventType")).collect()
    };
    assert_eq!(events(), ["b1", "b2"]);
    // A second one finds nothing to heal, and a relay goes on behind the queues.
    write("a", "a4", "{}");
    write("b", "b3", "{}");
    scene.catch_up(seconds(40));
    assert_eq!(events(), ["b1", "b2", "b3"]);
    scene.walpost("parked discard --all --yes").succeeds(seconds(30));
    let relay = scene.walpost("run").spawn();
    wait_for(seconds(40), "the queues to be published", || kafka.count(&[&topic]) == 8);
    relay.stop();
    assert_eq!(events(), ["a2", "a3", "a4", "b1", "b2", "b3", "c2", "d2"]);
}

/// Parked messages stay parked, rows of their keys wait behind them, and no row is there twice.
#[test]
fn what_is_parked_stays_parked_and_holds_its_key() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let topic = format!("healed-{}", unique());
    kafka.create_topic(&topic, 2, &[("max.message.bytes", "5000")]);
    let sql = scene.sql();
    let insert = |key: &str, number: u64, bytes: usize| {
        let noise = noise(&mut Random::new(number), bytes);
        sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
             values ('a', '{key}', 'e', '{topic}', '{{\"n\": {number}, \"noise\": \"{noise}\"}}')"
        ));
    };
    let arrived = |key: &str| {
        let records = kafka.read(&[&topic]);
        let of_key = records.into_iter().filter(|record| record.key.as_deref() == Some(key.as_bytes()));
        let number = |record: Seen| {
            let value: serde_json::Value =
                serde_json::from_slice(record.value.as_deref().unwrap_or_default()).expect("JSON");
            value["n"].as_u64().expect("a number")
        };
        of_key.map(number).collect::<Vec<_>>()
    };
    let parked = |relay: &Walpost| relay.try_status().and_then(|status| status["parked"]["messages"].as_u64());
    // An open transaction holds the horizon back, so that all of these are at risk.
    let holder = scene.sql();
    holder.execute("begin");
    holder.execute("select pg_current_xact_id()");
    let relay = scene.walpost("run").spawn();
    insert("a", 1, 20_000);
    insert("a", 2, 10);
    insert("b", 3, 10);
    wait_for(seconds(40), "two parked messages", || parked(&relay) == Some(2));
    wait_for(seconds(40), "the other key", || arrived("b") == [3]);
    relay.stop();
    holder.execute("rollback");
    sql.execute(&format!("select pg_drop_replication_slot('{}')", scene.name));
    insert("a", 4, 10);
    insert("b", 5, 10);
    scene.walpost("recover --yes").succeeds(seconds(60));
    assert_eq!(arrived("a"), [0; 0]);
    let relay = scene.walpost("run").spawn();
    insert("a", 6, 10);
    insert("b", 7, 10);
    wait_for(seconds(40), "four parked messages", || parked(&relay) == Some(4));
    wait_for(seconds(40), "the other key", || arrived("b").contains(&7));
    kafka.alter_topic(&topic, &[("max.message.bytes", "100000")]);
    scene.walpost("parked retry --all").succeeds(seconds(20));
    wait_for(seconds(40), "nothing to be parked", || parked(&relay) == Some(0));
    relay.stop();
    assert_eq!(arrived("a"), [1, 2, 4, 6]);
    assert_eq!(arrived("b").last(), Some(&7));
}

/// As `on_poison` and `on_route_error` ask: with the dead letters, left out, or parked for a topic that is not there.
#[test]
fn what_cannot_be_sent_goes_where_the_settings_say() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let choices = [
        ("WALPOST_ON_POISON", "dead_letter", 3, [1, 0, 2]),
        ("WALPOST_ON_POISON", "skip", 1, [1, 2, 0]),
        ("WALPOST_ON_ROUTE_ERROR", "park", 0, [0, 0, 3]),
    ];
    for (setting, choice, arrives, [rows, skipped, set_aside]) in choices {
        let scene = Scene::new(&postgres, kafka, Table::Walpost);
        scene.catch_up(seconds(40));
        let (kind, letters) = (format!("odd{}", unique()), format!("letters-{}", unique()));
        let topic = format!("outbox.event.{kind}");
        if arrives > 0 {
            kafka.create_topic(&topic, 2, &[("max.message.bytes", "5000")]);
            kafka.create_topic(&letters, 1, &[]);
        }
        drop_slot(&scene);
        scene.sql().execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload, headers) values
             ('{kind}', 'a', 'good', '{{}}', '{{}}'), ('{kind}', 'b', 'bad', '{{}}', '[]');
             insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload)
             select '{kind}', 'c', 'large', jsonb_agg(md5(random()::text)) from generate_series(1, 500)"
        ));
        let recover = scene.walpost("recover --yes --json").env(setting, choice).env("WALPOST_TOPICS_CREATE", "never");
        let result = json(&recover.env("WALPOST_DEAD_LETTER_TOPIC", &letters).succeeds(seconds(60)));
        let counts = ["rows", "skipped", "set_aside"].map(|field| result[field].as_u64());
        assert_eq!(counts, [rows, skipped, set_aside].map(Some), "{choice}: {result}");
        let there: Vec<Seen> = match arrives {
            0 => Vec::new(),
            _ => kafka.read(&[&topic, &letters]),
        };
        assert_eq!(there.len(), arrives, "{choice}: {there:?}");
        let reasons: Vec<_> = there.iter().filter_map(|seen| seen.header("dead_letter.reason")).collect();
        assert_eq!(reasons.len(), arrives.saturating_sub(1), "{choice}: {reasons:?}");
        assert!(there.iter().all(|seen| seen.header("origin").as_deref() == Some("recover")), "{choice}: {there:?}");
        let parked = scene.sql().number("select count(*) from walpost.parked_messages where state = 'parked'");
        assert_eq!(parked, if choice == "park" { 3 } else { 0 }, "{choice}");
    }
}
