//! The surface that scripts and dashboards rely on: endpoints, the fields of the status, names of metrics, exit codes.

use crate::kit::*;

#[test]
fn probes_status_and_metrics_of_a_streaming_relay() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let relay = scene.walpost("run").spawn();
    relay.wait_streaming();
    scene.workload().rows(200).run();
    relay.wait_published(200, seconds(30));
    for (path, wanted) in
        [("/livez", 200), ("/readyz", 200), ("/metrics", 200), ("/status", 200), ("/", 200), ("/nothing", 404)]
    {
        let (code, body) = relay.get(path).expect("an answer");
        assert_eq!(code, wanted, "{path}: {body}");
    }
    let status = relay.status();
    for field in [
        "/state",
        "/reason",
        "/remedy",
        "/slot/name",
        "/slot/active",
        "/slot/wal_status",
        "/slot/restart_lsn",
        "/slot/confirmed_flush_lsn",
        "/slot/retained_wal_bytes",
        "/slot/safe_wal_bytes",
        "/lag_bytes",
        "/oldest_unconfirmed_seconds",
        "/in_flight/messages",
        "/in_flight/bytes",
        "/parked/messages",
        "/parked/keys",
        "/published",
        "/kafka/connected",
        "/kafka/error",
        "/postgres/connected",
        "/postgres/error",
        "/version",
    ] {
        assert!(status.pointer(field).is_some(), "the status has no {field}: {status}");
    }
    assert_eq!(status["slot"]["name"], scene.name.as_str());
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["published"], 200);

    let (_, metrics) = relay.get("/metrics").expect("metrics");
    for name in [
        "walpost_end_to_end_latency_seconds_bucket",
        "walpost_publish_latency_seconds_bucket",
        "walpost_oldest_unconfirmed_age_seconds",
        "walpost_confirmed_flush_age_seconds",
        "walpost_messages_published_total",
        "walpost_bytes_published_total",
        "walpost_messages_failed_total",
        "walpost_messages_skipped_total",
        "walpost_retries_total",
        "walpost_in_flight_messages",
        "walpost_in_flight_bytes",
        "walpost_slot_lag_bytes",
        "walpost_slot_retained_wal_bytes",
        "walpost_slot_wal_status",
        "walpost_leader",
        "walpost_connected",
        "walpost_build_info",
        "process_resident_memory_bytes",
    ] {
        assert!(metrics.lines().any(|line| line.starts_with(name)), "no metric {name}");
    }
    assert_eq!(relay.metric("walpost_messages_published_total", ""), Some(200.0));
    assert_eq!(relay.metric("walpost_leader", ""), Some(1.0));
    assert_eq!(relay.metric("walpost_connected", ""), Some(2.0));
    assert!(!metrics.contains("key-1"), "a metric carries a key");

    // The same JSON from the command, which asks the running relay.
    let asked =
        scene.walpost("status --json").env("WALPOST_HTTP", format!("127.0.0.1:{}", relay.port)).succeeds(seconds(20));
    let asked: serde_json::Value = serde_json::from_str(&asked.stdout).expect("JSON");
    assert_eq!(asked["state"], "streaming");
    assert_eq!(asked["slot"]["name"], scene.name.as_str());
    relay.stop();
    let off =
        scene.walpost("status --json").env("WALPOST_HTTP", format!("127.0.0.1:{}", relay.port)).output(seconds(20));
    let off: serde_json::Value = serde_json::from_str(&off.stdout).expect("JSON");
    assert_eq!(off["state"], "not_running");
    assert_eq!(off["slot"]["active"], false, "the slot is shown also without a relay");

    for line in relay.log().lines() {
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(line);
        assert!(parsed.is_ok(), "not JSON: {line}");
    }
}

#[test]
fn an_end_to_end_latency_is_small_and_measured() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let relay = scene.walpost("run").spawn();
    relay.wait_streaming();
    scene.workload().writers(1).rows(300).largest_transaction(1).transactions_per_second(50).run();
    relay.wait_published(300, seconds(30));
    let name = "walpost_end_to_end_latency_seconds";
    let count = relay.metric(&format!("{name}_count"), "").expect("a histogram");
    let mean = relay.metric(&format!("{name}_sum"), "").expect("a histogram") / count;
    assert_eq!(count, 300.0);
    assert!(mean < 1.0, "{mean} s from commit to acknowledgement on an idle machine");
    relay.stop();
}

#[test]
fn exit_codes_of_wrong_use_and_wrong_settings() {
    let code = |command: WalpostCommand| command.output(seconds(20));
    assert_eq!(code(walpost("run --no-such-flag")).code, 2);
    assert_eq!(code(walpost("no-such-command")).code, 2);
    let nothing = code(walpost("run"));
    assert_eq!(nothing.code, 78, "{nothing:?}");
    let misspelt = code(walpost("config check").env("WALPOST_DATABSE_URL", "x"));
    assert_eq!(misspelt.code, 78);
    let said = misspelt.stdout + &misspelt.stderr;
    assert!(
        said.contains("WALPOST_DATABSE_URL") && said.contains("WALPOST_DATABASE_URL"),
        "the right name is not named: {said}"
    );
    let broken =
        code(walpost("run -X acks=1").env("WALPOST_BROKERS", "x:1").env("WALPOST_DATABASE_URL", "postgres://x/y"));
    assert_eq!(broken.code, 78, "{broken:?}");
    assert!(broken.stderr.contains("acks"), "{}", broken.stderr);
    let version: serde_json::Value =
        serde_json::from_str(&walpost("version --json").succeeds(seconds(10)).stdout).expect("JSON");
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn secrets_are_never_shown() {
    let show = walpost("config show")
        .env("WALPOST_DATABASE_URL", "postgres://app:hunter2@db/app")
        .env("WALPOST_BROKERS", "kafka:9092")
        .env("WALPOST_KAFKA_SASL_PASSWORD", "hunter3");
    for arguments in ["", "--json"] {
        let output = show.clone().args(arguments).succeeds(seconds(10));
        assert!(!(output.stdout + &output.stderr).contains("hunter"), "config show {arguments} shows a secret");
    }
}
