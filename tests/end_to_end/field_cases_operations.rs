//! Cases of `docs/field-cases.md`: partitions that come and go, ends that hang, starts, stops, and what it costs to run.

use crate::kit::*;

/// A publication that sends rows under the names of partitions is as good as one that names the root, also for partitions
/// that are younger than the relay, written to directly, detached, or gone before they are read.
#[test]
fn partitions_may_come_and_go_under_either_kind_of_publication() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    for via_root in ["true", "false"] {
        let case = Case::without_setup(&postgres, kafka);
        case.sql.execute(&format!(
            "create table plain (like outbox_messages including defaults including identity); drop table outbox_messages;
             create table outbox_messages (like plain including defaults) partition by list (event_type);
             create table outbox_e partition of outbox_messages for values in ('e');
             create publication walpost for table outbox_messages with (publish_via_partition_root = {via_root}, publish = 'insert')"
        ));
        let row = |number: u64, kind: &str| {
            case.row("k", [number])
                .replace("(aggregate_type", "(id, aggregate_type")
                .replace("('a'", &format!("({number}, 'a'"))
                .replace("'e'", &format!("'{kind}'"))
        };
        case.scene.walpost("setup").succeeds(seconds(30));
        let relay = case.scene.walpost("run").spawn();
        case.sql.execute(&row(1, "e"));
        case.wait_arrived(&[1]);
        case.sql.execute("create table outbox_f partition of outbox_messages for values in ('f')");
        case.sql.execute(&row(2, "f"));
        case.sql.execute(&row(3, "f").replace("outbox_messages", "outbox_f"));
        case.wait_arrived(&[1, 2, 3]);
        let pid = postgres.walsender(&case.scene.name);
        case.sql.execute("alter table outbox_messages detach partition outbox_e concurrently");
        case.sql.execute(&row(4, "f"));
        case.wait_arrived(&[1, 2, 3, 4]);
        assert_eq!(postgres.walsender(&case.scene.name), pid, "the session went on");
        relay.stop();
        case.sql.execute(&row(5, "f"));
        case.sql.execute("drop table outbox_f; create table outbox_g partition of outbox_messages for values in ('g')");
        case.sql.execute(&row(6, "g"));
        let relay = case.scene.walpost("run").spawn();
        case.wait_arrived(&[1, 2, 3, 4, 5, 6]);
        assert!(relay.readyz().0, "{}", relay.readyz().1);
        relay.stop();
    }
}

/// A walsender that hangs with its connection open is no quiet database: the relay says that nothing comes, and takes the
/// stream up again by itself.
#[test]
fn a_walsender_that_hangs_is_noticed() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::new(&postgres, kafka);
    let relay = case.scene.walpost("run").spawn();
    case.insert([1]);
    case.wait_arrived(&[1]);
    let pid = postgres.walsender(&case.scene.name).expect("a walsender");
    // SAFETY: plain system calls on a child of the test's own server.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    case.insert([2]);
    wait_for(seconds(90), "a relay that is not ready", || !relay.get("/readyz").is_ok_and(|(code, _)| code == 200));
    unsafe { libc::kill(pid, libc::SIGCONT) };
    case.wait_contains([1, 2]);
    relay.wait_streaming();
    relay.stop();
}

/// Both ends frozen, rows in flight: SIGTERM ends the process in time all the same, and what was not confirmed comes again.
#[test]
fn a_stop_with_both_ends_frozen_ends_in_time() {
    let (kafka, postgres) = (Kafka::start_own(), Postgres::start_major(MAJOR));
    let case = Case::new(&postgres, &kafka);
    let relay = case.scene.walpost("run").env("WALPOST_SHUTDOWN_TIMEOUT", "3s").spawn();
    case.insert([0]);
    case.wait_arrived(&[0]);
    kafka.pause();
    case.insert(1..=20);
    wait_for(seconds(40), "rows in flight", || relay.metric("walpost_in_flight_messages", "").unwrap_or(0.0) >= 20.0);
    postgres.pause();
    relay.sigterm();
    relay.wait_exit(seconds(60));
    postgres.resume();
    kafka.resume();
    let relay = case.scene.walpost("run").spawn();
    case.wait_contains(0..=20);
    relay.stop();
}

/// Ends that are away for a while cost no memory, no descriptors and few lines, and nobody has to restart anything.
#[test]
fn a_database_that_is_away_costs_nothing() {
    let (kafka, mut postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::new(&postgres, kafka);
    let relay = case.scene.walpost("run").spawn();
    case.insert([1]);
    case.wait_arrived(&[1]);
    let open = || std::fs::read_dir(format!("/proc/{}/fd", relay.pid())).map(|fds| fds.count()).unwrap_or(0);
    postgres.stop(Stop::Fast, seconds(20));
    relay.wait_state("starting", seconds(30));
    let (descriptors, memory, lines) = (open(), relay.memory().expect("memory").now, relay.log().lines().count());
    hold(seconds(20), "flat", || {
        open() <= descriptors + 3
            && relay.memory().is_some_and(|now| now.now < memory + 20_000_000)
            && relay.log().lines().count() < lines + 30
    });
    postgres.start();
    relay.wait_streaming();
    let sql = case.scene.sql();
    sql.execute(&case.row("k", [2]));
    case.wait_arrived(&[1, 2]);
    // The connection beside the stream came back too: what it measures moves.
    sql.execute("create table busy (filler text)");
    sql.execute("begin; insert into busy values ('')");
    case.scene.sql().execute("insert into busy select repeat('x', 1000) from generate_series(1, 50000)");
    wait_for(seconds(40), "a gauge that moves", || {
        relay.metric("walpost_slot_retained_wal_bytes", "").unwrap_or(0.0) > 40e6
    });
    sql.execute("rollback");
    relay.stop();
}

/// A table of any size, dead rows and all: in the steady state the relay never reads it.
#[test]
fn the_table_is_never_read() {
    let postgres = Postgres::builder(MAJOR).conf("shared_preload_libraries = 'pg_stat_statements'").start();
    let case = Case::new(&postgres, Kafka::shared());
    case.sql.execute("create extension pg_stat_statements");
    let relay = case.scene.walpost("run").spawn();
    case.insert([0]);
    case.wait_arrived(&[0]);
    let scans = "select seq_scan + coalesce(idx_scan, 0) from pg_stat_user_tables where relname = 'outbox_messages'";
    case.sql.value("select pg_stat_force_next_flush()");
    let before = case.sql.number(scans);
    case.sql.value("select count(pg_stat_statements_reset())");
    case.sql.execute(&case.row("k", 1..=5000));
    case.wait_contains(1..=5000);
    relay.stop();
    case.sql.value("select pg_stat_force_next_flush()");
    assert_eq!(case.sql.number(scans), before);
    // Values do not show there, names do.
    let statements = case.sql.rows("select query from pg_stat_statements where query ~* '\\moutbox_messages\\M'");
    let statements: Vec<&str> = statements.iter().filter_map(|row| row[0].as_deref()).collect();
    assert!(!statements.is_empty(), "the test's own INSERT is counted");
    assert!(statements.iter().all(|query| query.to_lowercase().starts_with("insert into")), "{statements:?}");
}

/// A first start copies nothing and leaves no seam: of rows that are written without a pause, those before the slot stay,
/// and all from some row on arrive.
#[test]
fn a_first_start_under_load_has_one_seam_and_no_gap() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::without_setup(&postgres, kafka);
    case.insert(0..300);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let sql = case.scene.sql();
            let mut number = 300;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                sql.execute(&case.row("k", [number]));
                number += 1;
            }
            number
        });
        let said = case.scene.walpost("setup").succeeds(seconds(30)).stdout;
        assert!(said.contains("already are not published"), "{said}");
        let relay = case.scene.walpost("run").spawn();
        relay.wait_published(300, seconds(40));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let written = writer.join().expect("a writer");
        relay.wait_streaming();
        case.wait_contains([written - 1]);
        relay.stop();
        written
    });
    let arrived = case.arrived();
    let seam = arrived[0];
    assert!(seam >= 300, "row {seam} was there before the slot");
    assert_eq!(arrived, Vec::from_iter(seam..written));
}
