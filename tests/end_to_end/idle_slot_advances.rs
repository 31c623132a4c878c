//! An idle outbox on a busy server holds no WAL: the slot advances by keepalives, without a heartbeat table.

use crate::kit::*;

const SIXTEEN_MB: i64 = 16 << 20;

#[test]
fn while_other_tables_and_other_databases_are_written() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let relay = scene.walpost("run").spawn();
    relay.wait_streaming();
    let other = postgres.create_database("neighbour");
    for (sql, where_to) in [(scene.sql(), "the same database"), (other, "another database")] {
        sql.execute("create table busy (id bigint generated always as identity, filler text)");
        let before = sql.value("select pg_current_wal_insert_lsn()");
        sql.execute("insert into busy (filler) select repeat('x', 1000) from generate_series(1, 100000)");
        let written = sql.number(&format!("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{before}')::bigint"));
        assert!(written > 100_000_000, "only {written} bytes of WAL were written to {where_to}");
        scene.wait_slot_follows(seconds(15));
        // restart_lsn follows one step behind: the server has to log which transactions run, and to hear of more. What is
        // written to that end stays far below what is let go, however fast the machine is.
        let retained = format!(
            "select pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint from pg_replication_slots where slot_name = '{}'",
            scene.name
        );
        wait_for(seconds(40), "the WAL to be let go", || {
            sql.execute("insert into busy (filler) select repeat('x', 1000) from generate_series(1, 400)");
            sql.value("select pg_log_standby_snapshot()");
            sql.number(&retained) < 3 * SIXTEEN_MB
        });
    }
    assert_eq!(relay.state(), "streaming");
    let tables = scene.sql().rows("select relname from pg_class c join pg_namespace n on n.oid = relnamespace where nspname = 'walpost' and relkind = 'r'");
    assert!(tables.iter().flatten().flatten().all(|name| !name.contains("heartbeat")), "{tables:?}");

    // Still alive: a row passes.
    let workload = scene.workload().rows(10).writers(1);
    let expected = workload.run();
    relay.wait_published(10, seconds(10));
    relay.stop();
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// The relay's own record is WAL too: an idle server must not be kept busy by it.
#[test]
fn and_an_idle_server_stays_idle() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let relay = scene.walpost("run").spawn();
    relay.wait_streaming();
    let sql = scene.sql();
    scene.wait_slot_follows(seconds(15));
    let before = sql.value("select pg_current_wal_insert_lsn()");
    hold(seconds(20), "the relay streams", || relay.state() == "streaming");
    let written = sql.number(&format!("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{before}')::bigint"));
    assert!(written < 100_000, "{written} bytes of WAL in 20 idle seconds");
}
