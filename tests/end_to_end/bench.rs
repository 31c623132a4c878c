//! `walpost bench`: measures on the user's own servers, says who was the limit, and leaves nothing behind.

use serde_json::Value;

use crate::kit::*;

/// Everything that a measurement makes.
fn left_behind(sql: &Sql) -> String {
    sql.value(
        "select concat_ws(' ', (select string_agg(slot_name, ',') from pg_replication_slots),
           (select string_agg(pubname, ',') from pg_publication),
           (select string_agg(relname, ',') from pg_class where relname like 'walpost_bench%'),
           (select string_agg(nspname, ',') from pg_namespace where nspname = 'walpost'))",
    )
}

#[test]
fn a_measurement_tells_rates_percentiles_and_the_limit_and_leaves_nothing_behind() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let command = |arguments: &str| walpost(arguments).postgres(&postgres, "postgres").kafka(kafka);
    let sql = Sql::connect(&postgres.url("postgres"));
    let small = "bench --rows 4000 --rows-per-commit 10 --rate 100 --seconds 4 --payload-bytes 300";
    let output = command(&format!("{small} --json")).succeeds(seconds(90));
    let report: Value = serde_json::from_str(&output.stdout).expect("one JSON document");
    let backlog = &report["backlog"];
    assert_eq!(backlog["rows"], 4_000, "{report}");
    assert!(backlog["rows_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{report}");
    assert!(backlog["wal_bytes"].as_u64().is_some_and(|bytes| bytes > 4_000 * 300), "{report}");
    assert!(["postgres", "walpost", "kafka"].map(Value::from).contains(&backlog["limit"]), "{report}");
    let steady = &report["steady"];
    assert!(steady["acknowledged"].as_u64().is_some_and(|rows| rows >= 190), "{report}");
    let latency = |name: &str| steady["latency_ms"][name].as_f64().unwrap_or(-1.0);
    assert!(0.0 < latency("p50") && latency("p50") <= latency("p99") && latency("p99") <= latency("max"), "{report}");
    assert_eq!(left_behind(&sql), "");
    for name in kafka.topics() {
        assert!(!name.starts_with("walpost_bench"), "{name}");
    }

    let output = command(small).succeeds(seconds(90));
    for part in ["rows/s", "the limit", "p99.9", "deleted at the end"] {
        assert!(output.stdout.contains(part), "{part}: {}", output.stdout);
    }

    // As a measurement leaves it that was killed.
    sql.execute("select pg_create_logical_replication_slot('walpost_bench_left', 'pgoutput')");
    let output = command("bench --rows 10 --rate 0").succeeds(seconds(60));
    assert!(output.stderr.contains("pg_drop_replication_slot('walpost_bench_left')"), "{}", output.stderr);
    assert_eq!(left_behind(&sql), "walpost_bench_left", "somebody else's slot is not ours to drop");
}

/// A setting that is for the user's own table must not keep the scratch table from being read.
#[test]
fn a_measurement_leaves_out_what_only_the_users_own_table_has() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let command = walpost("bench --rows 10 --rate 0 --json").postgres(&postgres, "postgres").kafka(kafka);
    let command = command.env("WALPOST_HEADERS_COLUMNS", "tenant=tenant_id").env("WALPOST_COLUMNS_PAYLOAD", "body");
    let report: Value = serde_json::from_str(&command.succeeds(seconds(60)).stdout).expect("one JSON document");
    assert_eq!(report["backlog"]["rows"], 10, "{report}");
}

#[test]
fn a_measurement_that_is_interrupted_cleans_up_and_keeps_what_was_there() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let before = left_behind(&scene.sql());
    let bench = scene.walpost("bench --rows 0 --rate 50 --seconds 600").spawn();
    wait_for(seconds(60), "a scratch slot that is read", || {
        scene.sql().is_true(
            "select exists (select from pg_replication_slots where slot_name like 'walpost_bench%' and active)",
        )
    });
    bench.sigterm();
    assert_eq!(bench.wait_exit(seconds(60)), 75);
    assert_eq!(left_behind(&scene.sql()), before);
    let confirmed = format!("select count(*) from walpost.checkpoint where slot_name = '{}'", scene.name);
    assert_eq!(scene.sql().number(&confirmed), 1);
}
