//! What recover does not do: guess which rows are at risk, touch what is sound or another's, or lose rows to a table that
//! changes under its eyes.

use super::*;

/// A sound slot is left alone, also while a relay reads it.
#[test]
fn a_sound_slot_is_left_alone() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let before = scene.sql().value("select slot_name || catalog_xmin from pg_replication_slots");
    let output = scene.walpost("recover --yes").succeeds(seconds(30));
    assert!(output.stdout.contains("nothing to heal"), "{}", output.stdout);
    let relay = scene.walpost("run").spawn();
    relay.wait_streaming();
    let result = json(&scene.walpost("recover --yes --json").succeeds(seconds(30)));
    assert_eq!(result["healed"], false, "{result}");
    assert_eq!(scene.sql().value("select slot_name || catalog_xmin from pg_replication_slots"), before);
    relay.stop();
}

#[test]
fn a_dry_run_shows_what_would_be_published_and_changes_nothing() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(40));
    let workload = scene.workload().rows(200);
    let expected = workload.run();
    drop_slot(&scene);
    let everything =
        "select md5(string_agg(c::text, '')) || (select count(*) from pg_replication_slots) from walpost.checkpoint c";
    let before = scene.sql().value(everything);
    let text = scene.walpost("recover --dry-run").succeeds(seconds(30)).stdout;
    let topics = workload.topics();
    for word in ["200", "SELECT ", "age(xmin)", &topics[0], &topics[1], "deleted"] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    let seen = json(&scene.walpost("recover --dry-run --json").succeeds(seconds(30)));
    let sql = scene.sql();
    for (field, query) in
        [("first_id", "select min(id) from outbox_messages"), ("last_id", "select max(id) from outbox_messages")]
    {
        assert_eq!(seen[field].as_str(), Some(sql.value(query).as_str()), "{seen}");
    }
    for topic in &topics {
        let rows = expected.iter().filter(|row| row.topic == *topic).count();
        assert_eq!(seen["topics"][topic], rows, "{seen}");
    }
    assert_eq!((&seen["dry_run"], &seen["healed"]), (&Value::from(true), &Value::from(false)));
    // The statement is one that can be run as it stands.
    assert_eq!(sql.rows(seen["select"].as_str().expect("a statement")).len(), 200);
    // Without --yes and without a terminal nothing is done either.
    let unasked = scene.walpost("recover").output(seconds(30));
    assert_eq!(unasked.code, 2, "{}", unasked.stderr);
    assert!(unasked.stderr.contains("--yes"), "{}", unasked.stderr);
    assert_eq!(sql.value(everything), before);
    assert_eq!(kafka.count(&topics.each_ref().map(String::as_str)), 0);
}

/// What the record says means nothing there: the horizon is not guessed, and every choice is said.
#[test]
fn another_table_database_or_cluster_waits_for_an_explicit_choice() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let wrongs = [
        "update walpost.checkpoint set table_oid = 1",
        "update walpost.checkpoint set database_oid = 1",
        "update walpost.checkpoint set system_identifier = '7000000000000000001'",
        "update walpost.checkpoint set horizon = null",
        "update walpost.checkpoint set horizon = '9000000000'",
        "alter table outbox_messages rename to old; create table outbox_messages (like old including all);
         insert into outbox_messages overriding system value select * from old; drop table old cascade;
         select setval(pg_get_serial_sequence('outbox_messages', 'id'), 1000);
         alter publication walpost add table outbox_messages",
    ];
    for wrong in wrongs {
        let scene = Scene::new(&postgres, kafka, Table::Walpost);
        scene.catch_up(seconds(40));
        let workload = scene.workload().rows(50);
        let expected = workload.run();
        drop_slot(&scene);
        let sql = scene.sql();
        sql.execute(wrong);
        let record = sql.value("select c::text from walpost.checkpoint c");
        let refused = scene.walpost("recover --yes").output(seconds(30));
        assert_eq!(refused.code, 100, "after {wrong}: {}", refused.stderr);
        for choice in ["--all-rows", "--accept-gap"] {
            assert!(refused.stderr.contains(choice), "after {wrong}: {}", refused.stderr);
        }
        assert_eq!(sql.value("select c::text from walpost.checkpoint c"), record, "after {wrong}");
        if wrong.contains("system_identifier") {
            assert!(refused.stderr.contains("--after-pg-upgrade"), "{}", refused.stderr);
            scene.walpost("recover --yes --after-pg-upgrade").succeeds(seconds(60));
        } else {
            let result = json(&scene.walpost("recover --yes --json --all-rows").succeeds(seconds(60)));
            assert_eq!((&result["all_rows"], &result["rows"]), (&Value::from(true), &Value::from(50)), "{result}");
        }
        scene_goes_on(&scene, kafka);
        kafka.verify(&workload, &expected).assert_exactly_once();
    }
}

#[test]
fn what_is_anothers_or_not_there_is_refused() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::without_setup(&postgres, kafka, Table::Walpost);
    let refused = scene.walpost("recover --yes").output(seconds(30));
    assert_eq!(refused.code, 78, "{}", refused.stderr);
    assert!(refused.stderr.contains("walpost setup"), "{}", refused.stderr);
    scene.walpost("setup").succeeds(seconds(30));
    scene.catch_up(seconds(40));
    let sql = scene.sql();

    // Held by somebody, and not where it was left as far as the record goes.
    let relay = scene.walpost("run").spawn();
    relay.wait_streaming();
    sql.execute("update walpost.checkpoint set confirmed_lsn = '0/1'");
    let held = scene.walpost("recover --yes").output(seconds(30));
    assert_eq!(held.code, 75, "{}", held.stderr);
    assert!(held.stderr.contains("is held by pid"), "{}", held.stderr);
    relay.kill9();
    drop_slot(&scene);

    let renamed = scene.walpost("recover --yes --name other").output(seconds(30));
    assert_eq!(renamed.code, 78, "{}", renamed.stderr);
    assert!(renamed.stderr.contains("--adopt"), "{}", renamed.stderr);
    sql.execute("update walpost.checkpoint set kafka_cluster_id = 'productionscluster0001'");
    let elsewhere = scene.walpost("recover --yes").output(seconds(30));
    assert_eq!(elsewhere.code, 78, "{}", elsewhere.stderr);
    assert!(elsewhere.stderr.contains("productionscluster0001"), "{}", elsewhere.stderr);
}

/// An older snapshot sees nothing in the new file of a table that was rewritten: that must not pass for "no rows".
#[test]
fn a_table_that_is_rewritten_while_the_slot_is_made_is_noticed() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(40));
    let workload = scene.workload().rows(200);
    let expected = workload.run();
    drop_slot(&scene);
    let (open, sql) = (scene.sql(), scene.sql());
    open.execute("create table other (n int); begin; insert into other values (1)");
    let recover = scene.walpost("recover --yes").spawn();
    recover.wait_log("waiting for the transactions that are open", seconds(40));
    sql.execute("alter table outbox_messages add more bigserial");
    open.execute("commit");
    assert_eq!(recover.wait_exit(seconds(60)), 75, "{}", recover.log_tail());
    assert!(recover.log().contains("rewritten"), "{}", recover.log_tail());
    assert_eq!(recovered(&scene)["rows"], 200);
    scene_goes_on(&scene, kafka);
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// The row is still in the table, where it can be corrected.
#[test]
fn a_row_that_cannot_be_published_stops_it_until_it_is_corrected() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(40));
    let workload = scene.workload().rows(100);
    let expected = workload.run();
    drop_slot(&scene);
    let (sql, id) = (scene.sql(), &expected[40].id);
    sql.execute(&format!("update outbox_messages set headers = '[]' where message_id = '{id}'"));
    let seen = json(&scene.walpost("recover --dry-run --json").succeeds(seconds(30)));
    assert_eq!((&seen["rows"], &seen["unsendable"]), (&Value::from(99), &Value::from(1)), "{seen}");
    let stopped = scene.walpost("recover --yes").env("WALPOST_ON_POISON", "stop").output(seconds(60));
    assert_eq!(stopped.code, 100, "{}", stopped.stderr);
    assert!(stopped.stderr.contains(id) && stopped.stderr.contains("correct the row"), "{}", stopped.stderr);
    let headers: serde_json::Map<_, _> = expected[40]
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), value.clone().map_or(Value::Null, Value::from)))
        .collect();
    sql.execute(&format!("update outbox_messages set headers = '{}' where message_id = '{id}'", Value::from(headers)));
    scene.walpost("recover --yes").succeeds(seconds(60));
    scene_goes_on(&scene, kafka);
    kafka.verify(&workload, &expected).assert_at_least_once();
}

/// Row security would silently leave rows out of what is read. Nothing is changed before that is known.
#[test]
fn a_role_that_may_not_see_all_rows_is_refused() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::without_setup(&postgres, kafka, Table::Walpost);
    let sql = scene.sql();
    sql.execute("create role relay login replication");
    scene.walpost("setup --grants relay").succeeds(seconds(30));
    scene.catch_up(seconds(40));
    let workload = scene.workload().rows(50);
    let expected = workload.run();
    drop_slot(&scene);
    let recover = scene.walpost("recover --yes").env("WALPOST_DATABASE_URL", postgres.url_as("relay", &scene.name));
    let wrongs = [
        (
            "alter table outbox_messages enable row level security",
            "alter table outbox_messages disable row level security",
        ),
        ("revoke select on outbox_messages from relay", "grant select on outbox_messages to relay"),
    ];
    for (wrong, right) in wrongs {
        sql.execute(wrong);
        let refused = recover.output(seconds(30));
        assert_eq!(refused.code, 77, "after {wrong}: {}", refused.stderr);
        assert!(refused.stderr.contains("may not read all rows"), "after {wrong}: {}", refused.stderr);
        assert_ne!(sql.value("select state from walpost.checkpoint"), "recovering");
        sql.execute(right);
    }
    recover.succeeds(seconds(60));
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// Millions of rows pass through a few megabytes.
#[test]
fn memory_for_all_the_rows_is_not_taken() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(40));
    let bulk = format!("bulk{}", unique());
    scene.sql().execute(&format!(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload)
         select '{bulk}', n::text, 'x', jsonb_build_object('text', repeat(md5(n::text), 64)) from generate_series(1, 150000) n"
    ));
    drop_slot(&scene);
    let recover = scene.walpost("recover --yes").spawn();
    let mut peak = 0;
    wait_for(seconds(180), "the end of the recovery", || {
        peak = peak.max(recover.memory().map_or(0, |memory| memory.peak));
        !recover.is_running()
    });
    assert_eq!(recover.wait_exit(seconds(1)), 0, "{}", recover.log_tail());
    assert_eq!(kafka.count(&[&format!("outbox.event.{bulk}")]), 150_000);
    // 300 MB of rows; the window is 32 MiB, and librdkafka keeps what is under way once more.
    assert!(peak > 0 && peak < 200 << 20, "{} MiB", peak >> 20);
}
