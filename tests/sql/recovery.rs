//! The statements of a recovery, and the snapshot that is a slot's consistent point.

use super::place::*;
use std::sync::Arc;

use walpost::lsn::Lsn;
use walpost::postgres::checkpoint::{self, CheckpointError, State};
use walpost::postgres::recovery::{self, AtRisk, Recovered, Selection};
use walpost::postgres::{Connector, slot};
use walpost::source::table::TableReader;
use walpost::source::{Column, Relation};

fn recovered<'a>(
    record: &'a checkpoint::Checkpoint,
    identity: &'a walpost::postgres::catalog::Identity,
    at: Lsn,
) -> Recovered<'a> {
    Recovered {
        record,
        consistent_point: at,
        identity,
        table_oid: 77,
        kafka_cluster_id: Some("kafka-a"),
        fingerprint: "f",
    }
}

#[tokio::test]
async fn a_recovery_keeps_the_horizon_until_it_ends_and_then_begins_an_epoch() {
    let place = Place::new("recovery").await;
    place.set_up().await;
    let recorder = place.begin().await;
    let before = place.record().await;
    assert!(recovery::begin(&place.client, &before, "who").await.unwrap());
    let record = place.record().await;
    assert_eq!((record.state, record.holder.as_deref()), (State::Recovering, Some("who")));
    assert_eq!(
        (record.horizon, record.epoch, record.confirmed_lsn),
        (before.horizon, before.epoch, before.confirmed_lsn)
    );
    // Nobody else writes it meanwhile.
    assert!(!recorder.sign_on(&place.client).await.unwrap());
    let identity = place.identity().await;
    let begun = checkpoint::begin(&place.client, place.beginning(&identity, "f")).await.unwrap_err();
    assert!(matches!(begun, CheckpointError::NoSlot { .. }), "{begun:?}");
    let untouched = place.record().await;
    assert_eq!(untouched, checkpoint::Checkpoint { age_seconds: untouched.age_seconds, ..record });

    // Not with another slot than the one that was made.
    let at = place.slot_at().await.unwrap();
    let elsewhere = recovery::finish(&place.client, recovered(&before, &identity, Lsn(at.0 + 8))).await.unwrap();
    assert_eq!(elsewhere, None);
    let begun = recovery::finish(&place.client, recovered(&before, &identity, at)).await.unwrap().unwrap();
    assert!(begun.epoch > before.epoch);
    let record = place.record().await;
    assert_eq!((record.state, record.holder.as_deref(), record.pending), (State::SignedOff, None, None));
    assert_eq!((record.confirmed_lsn, record.epoch, record.table_oid), (at, begun.epoch, 77));
    assert_eq!((record.kafka_cluster_id.as_deref(), record.fingerprint.as_str()), (Some("kafka-a"), "f"));
    let catalog_xmin =
        place.one("SELECT catalog_xmin::text FROM pg_replication_slots WHERE slot_name = current_database()");
    assert_eq!(record.horizon, Some(catalog_xmin.await.parse().unwrap()));
    // It has ended.
    assert_eq!(recovery::finish(&place.client, recovered(&before, &identity, at)).await.unwrap(), None);

    // A record that has moved on since it was looked at is not the one to be recovered.
    assert!(!recovery::begin(&place.client, &before, "who").await.unwrap());
    let now = place.record().await;
    assert!(recovery::begin(&place.client, &now, "who").await.unwrap());
    assert!(recovery::give_up(&place.client, &place.slot).await.unwrap());
    assert!(!recovery::give_up(&place.client, &place.slot).await.unwrap());
    assert_eq!(place.record().await.state, State::SignedOff);
    place.clean_up().await;
}

#[tokio::test]
async fn one_session_at_a_time_recovers_a_slot_and_the_other_is_told_who() {
    let place = Place::new("recovery_lock").await;
    let mut config = place.config.clone();
    config.application_name("the-first");
    let first = connect(&config).await;
    assert_eq!(recovery::lock(&first, "s").await.unwrap(), None);
    let holder = recovery::lock(&place.client, "s").await.unwrap().expect("it is held");
    assert!(holder.contains("the-first"), "{holder}");
    assert_eq!(recovery::lock(&place.client, "another").await.unwrap(), None);
}

#[tokio::test]
async fn columns_are_told_as_the_stream_tells_them() {
    let place = Place::new("streamed").await;
    place
        .sql(
            "CREATE DOMAIN bytes AS bytea; CREATE DOMAIN more AS bytes;
             CREATE TABLE t (a bigserial, b int GENERATED ALWAYS AS IDENTITY, c bigint, d more, gone int, e text,
               f int GENERATED ALWAYS AS (1 + 1) STORED);
             ALTER TABLE t DROP COLUMN gone",
        )
        .await;
    let oid: u32 = place.client.query_one("SELECT 't'::regclass::oid", &[]).await.unwrap().get(0);
    let columns = recovery::columns(&place.client, oid).await.unwrap();
    let told: Vec<_> = columns.iter().map(|c| (c.name.as_str(), c.type_oid, c.sequence)).collect();
    assert_eq!(
        told,
        [("a", 20, true), ("b", 23, true), ("c", 20, false), ("d", 17, false), ("e", 25, false), ("f", 23, false)]
    );
    let stored = columns.iter().filter(|c| c.generated == walpost::postgres::catalog::Generated::Stored).count();
    assert_eq!(stored, 1);
}

#[tokio::test]
async fn a_rewrite_of_any_part_of_the_table_is_seen_and_a_new_part_is_none() {
    let place = Place::new("storage").await;
    place
        .sql(
            "CREATE TABLE t (id int, n int) PARTITION BY LIST (id);
             CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1); CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2)",
        )
        .await;
    let oid: u32 = place.client.query_one("SELECT 't'::regclass::oid", &[]).await.unwrap().get(0);
    for (deed, is_seen) in [
        ("INSERT INTO t VALUES (1, 1)", false),
        ("CREATE TABLE t3 PARTITION OF t FOR VALUES IN (3)", false),
        ("ALTER TABLE t ADD more int DEFAULT 7", false),
        ("ALTER TABLE t ALTER n TYPE bigint", true),
        ("VACUUM FULL t1", true),
        ("TRUNCATE t2", true),
        ("ALTER TABLE t DETACH PARTITION t2", true),
    ] {
        let before = recovery::storage(&place.client, oid).await.unwrap();
        connect(&place.config).await.batch_execute(deed).await.unwrap();
        let after = recovery::storage(&place.client, oid).await.unwrap();
        assert_eq!(recovery::rewritten(&before, &after), is_seen, "{deed}");
    }
}

/// The slot that a reader makes, and the table as that reader then sees it.
#[tokio::test]
async fn a_reader_sees_what_committed_before_the_slot_that_it_makes_and_nothing_else() {
    let place = Place::new("snapshot").await;
    place.set_up().await;
    place.insert().await;
    let horizon = recovery::next_transaction(&place.client).await.unwrap();
    slot::drop(&place.client, &place.slot).await.unwrap();
    // In a sub-transaction, frozen since; and a row that is rolled back.
    let row = |event: &str| {
        format!("INSERT INTO outbox_messages (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', '{event}')")
    };
    place.sql(&format!("BEGIN; SAVEPOINT a; {}; COMMIT", row("sub"))).await;
    place.sql("VACUUM (FREEZE) outbox_messages").await;
    place.sql(&format!("BEGIN; {}; ROLLBACK", row("ghost"))).await;
    let connector = Connector::new(&place.settings().postgres).unwrap();
    let mut reader = TableReader::connect(&connector, "walpost sql test").await.unwrap();
    assert!(reader.pid().is_some());
    reader.begin().await.unwrap();
    let at = reader.create_slot(&place.slot).await.unwrap();
    assert_eq!(place.slot_at().await, Some(at));
    assert_eq!(
        place.one("SELECT active::text FROM pg_replication_slots WHERE slot_name = current_database()").await,
        "false"
    );
    place.insert().await;

    let table = place.table().await;
    let columns = ["id", "event_type"].map(|name| Column { name: name.into(), type_oid: 25, key: false });
    let relation = Arc::new(Relation {
        oid: table.oid,
        schema: table.schema.clone(),
        name: table.name.clone(),
        columns: columns.to_vec(),
    });
    let selection = Selection {
        table: &table,
        columns: &relation.columns,
        at_risk: AtRisk::Since(horizon),
        row_filter: None,
        order_by: Some("id"),
        mark: false,
        unmarked_only: false,
    };
    reader.open(&selection.sql(), relation.clone()).await.unwrap();
    let mut seen = Vec::new();
    while !reader.is_at_end() {
        reader.fetch().await.unwrap();
        while let Some(read) = reader.row().await.unwrap() {
            seen.push(String::from_utf8(read.row.text(1).unwrap().to_vec()).unwrap());
        }
    }
    assert_eq!(seen, ["sub"]);
    reader.end().await.unwrap();
    // The slot outlives the transaction, and the reader is as good as new.
    assert_eq!(place.slot_at().await, Some(at));
    reader.begin().await.unwrap();
    let all = Selection { at_risk: AtRisk::All, order_by: None, ..selection };
    reader.open(&all.sql(), relation).await.unwrap();
    let mut count = 0;
    while !reader.is_at_end() {
        reader.fetch().await.unwrap();
        while reader.row().await.unwrap().is_some() {
            count += 1;
        }
    }
    assert_eq!(count, 3);
    place.clean_up().await;
}

/// More rows than one fetch brings; and a statement that fails on the way, in a fetch that the server then does not send.
#[tokio::test]
async fn rows_come_one_by_one_and_an_error_among_them_is_told() {
    let place = Place::new("rows").await;
    place.sql("CREATE TABLE t (n int)").await;
    place.sql("INSERT INTO t SELECT n FROM generate_series(1, 2500) n").await;
    let connector = Connector::new(&place.settings().postgres).unwrap();
    let relation = Arc::new(Relation {
        oid: 1,
        schema: "public".into(),
        name: "t".into(),
        columns: vec![Column { name: "n".into(), type_oid: 23, key: false }],
    });
    for (select, good) in [
        ("SELECT n FROM t ORDER BY n", 2500),
        ("SELECT 1 / (n - 1700) FROM (SELECT n FROM t ORDER BY n OFFSET 0) t", 1000),
    ] {
        let mut reader = TableReader::connect(&connector, "walpost sql test").await.unwrap();
        reader.begin().await.unwrap();
        reader.open(select, relation.clone()).await.unwrap();
        let mut count = 0;
        let outcome = loop {
            if reader.is_at_end() {
                break Ok(());
            }
            reader.fetch().await.unwrap();
            let error = loop {
                match reader.row().await {
                    Ok(Some(_)) => count += 1,
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            if let Some(error) = error {
                break Err(error);
            }
        };
        assert_eq!((count, outcome.is_ok()), (good, good == 2500), "{select}");
        if let Err(error) = outcome {
            assert_eq!(error.sqlstate(), Some("22012"));
            assert!(error.to_string().starts_with("reading the rows of public.t"), "{error}");
        }
    }
}
