//! `setup` makes what is missing and nothing twice; its SQL is a migration as it stands; a relay needs few rights;
//! `teardown` removes what `setup` made; `doctor` sees what is wrong.

use crate::kit::*;

#[test]
fn may_be_run_any_number_of_times() {
    for major in MAJORS {
        let postgres = Postgres::start_major(major);
        let scene = Scene::without_setup(&postgres, Kafka::shared(), Table::Walpost);
        scene.walpost("setup").succeeds(seconds(30));
        let state = "select string_agg(x, ',' order by x) from (select slot_name || confirmed_flush_lsn x from pg_replication_slots
                     union all select pubname || oid from pg_publication
                     union all select slot_name || epoch from walpost.checkpoint) y";
        let before = scene.sql().value(state);
        scene.walpost("setup").succeeds(seconds(30));
        assert_eq!(scene.sql().value(state), before, "Postgres {major}: a second setup changed something");
        let publication = "select pubinsert and not pubupdate and not pubdelete and not pubtruncate and pubviaroot from pg_publication";
        assert!(scene.sql().is_true(publication), "Postgres {major}");
        let plugin = format!("select plugin = 'pgoutput' from pg_replication_slots where slot_name = '{}'", scene.name);
        assert!(scene.sql().is_true(&plugin));
    }
}

#[test]
fn makes_the_table_too_where_asked() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    for table in TABLES {
        let scene = Scene::without_setup(&postgres, kafka, table);
        scene.sql().execute("drop table outbox_messages");
        scene.walpost("setup --create-table --preset").arg(table.preset()).succeeds(seconds(30));
        let workload = scene.workload().rows(50);
        let expected = workload.run();
        scene.catch_up(seconds(60));
        kafka.verify(&workload, &expected).assert_exactly_once();
    }
}

#[test]
fn prints_sql_that_is_a_migration_and_touches_nothing() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::without_setup(&postgres, kafka, Table::Walpost);
    let printed = scene.walpost("setup --print").succeeds(seconds(30)).stdout;
    assert_eq!(scene.sql().number("select count(*) from pg_publication"), 0, "--print touched the database");
    // Statement by statement, as psql does: a slot cannot be made in a transaction that has written.
    let sql = scene.sql();
    for statement in statements(&printed) {
        sql.execute(&statement);
    }
    let workload = scene.workload().rows(50);
    let expected = workload.run();
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// Statements end with a semicolon at the end of a line.
fn statements(sql: &str) -> Vec<String> {
    let lines = sql
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .map(|line| line.split(" -- ").next().unwrap_or_default());
    let text: String = lines.map(|line| format!("{}\n", line.trim_end())).collect();
    text.split_inclusive(";\n").map(str::to_owned).filter(|statement| !statement.trim().is_empty()).collect()
}

#[test]
fn a_role_with_the_printed_grants_and_no_more_is_enough() {
    for major in MAJORS {
        let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(major));
        let scene = Scene::without_setup(&postgres, kafka, Table::Walpost);
        scene.sql().execute("create role relay login replication");
        scene.walpost("setup --grants relay").succeeds(seconds(30));
        let workload = scene.workload().rows(50);
        let expected = workload.run();
        let run =
            scene.walpost("run --until-caught-up").env("WALPOST_DATABASE_URL", postgres.url_as("relay", &scene.name));
        run.succeeds(seconds(60));
        kafka.verify(&workload, &expected).assert_exactly_once();
    }
}

#[test]
fn teardown_removes_what_setup_made() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.workload().rows(10).run();
    let unasked = scene.walpost("teardown").output(seconds(30));
    assert_ne!(unasked.code, 0, "it destroyed without --yes and without a terminal");
    scene.walpost("teardown --yes").succeeds(seconds(30));
    let sql = scene.sql();
    assert_eq!(sql.number("select count(*) from pg_replication_slots"), 0);
    assert_eq!(sql.number("select count(*) from pg_publication"), 0);
    assert_eq!(sql.number("select count(*) from outbox_messages"), 10, "the application's table is not walpost's");
    scene.walpost("setup").succeeds(seconds(30));
}

#[test]
fn another_relays_record_is_not_taken_in_silence() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(40));
    let staging = Kafka::start_own();
    scene.sql().execute("update walpost.checkpoint set kafka_cluster_id = 'productionscluster0001'");
    let foreign = scene.walpost("run --until-caught-up").env("WALPOST_BROKERS", staging.bootstrap());
    let refused = foreign.output(seconds(60));
    assert_ne!(refused.code, 0, "staging took production's slot");
    assert!(refused.stderr.contains("--adopt"), "{}", refused.stderr);
    scene.walpost("setup --adopt").succeeds(seconds(30));
    foreign.succeeds(seconds(60));
}

#[test]
fn doctor_is_content_with_a_healthy_pair_and_names_what_is_wrong() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.walpost("doctor").succeeds(seconds(60));
    let healthy: serde_json::Value =
        serde_json::from_str(&scene.walpost("doctor --json").succeeds(seconds(60)).stdout).expect("JSON");
    assert!(healthy.is_object() || healthy.is_array());

    let sql = scene.sql();
    let wrongs = [
        (
            "alter publication walpost set (publish = 'insert, update')",
            "alter publication walpost set (publish = 'insert')",
            "update",
        ),
        (
            "alter publication walpost drop table outbox_messages",
            "alter publication walpost add table outbox_messages",
            "outbox_messages",
        ),
    ];
    for (wrong, right, word) in wrongs {
        sql.execute(wrong);
        let doctor = scene.walpost("doctor").output(seconds(60));
        sql.execute(right);
        assert_eq!(doctor.code, 1, "after {wrong}: {}", doctor.stdout);
        assert!(doctor.stdout.contains(word), "{}", doctor.stdout);
    }
    let nowhere = format!("127.0.0.1:{}", free_port());
    let doctor = scene.walpost("doctor").env("WALPOST_BROKERS", &nowhere).output(seconds(90));
    assert_eq!(doctor.code, 1, "{}", doctor.stdout);
    assert!(doctor.stdout.contains(&nowhere), "{}", doctor.stdout);
}

#[test]
fn a_partitioned_outbox_comes_through_its_root() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::without_setup(&postgres, kafka, Table::Debezium);
    scene.sql().execute(
        "drop table outbox_messages;
         create table outbox_messages (id uuid not null, aggregatetype varchar(255) not null, aggregateid varchar(255) not null,
           type varchar(255) not null, payload jsonb) partition by hash (id);
         create table outbox_a partition of outbox_messages for values with (modulus 2, remainder 0);
         create table outbox_b partition of outbox_messages for values with (modulus 2, remainder 1)",
    );
    scene.walpost("setup").succeeds(seconds(30));
    let workload = scene.workload().rows(500);
    let expected = workload.run();
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_exactly_once();
}
