//! The record: it moves forward only, and stops when what is published changes.

use super::place::*;
use std::time::Instant;

use walpost::lsn::Lsn;
use walpost::postgres::catalog;
use walpost::postgres::checkpoint::{self, Beginning, CheckpointError, Recorded, Replaces, State};
use walpost::postgres::slot;

#[tokio::test]
async fn the_schema_may_be_loaded_twice_and_every_preset_makes_its_table() {
    let place = Place::new("schema").await;
    assert_eq!(checkpoint::schema_version(&place.client).await.unwrap(), None);
    for _ in 0..2 {
        place.sql(include_str!("../../sql/002_schema.sql")).await;
    }
    assert_eq!(checkpoint::schema_version(&place.client).await.unwrap(), Some(checkpoint::SCHEMA_VERSION));
    for file in [
        include_str!("../../sql/001_outbox_table.sql"),
        include_str!("../../sql/001_outbox_table_laravel.sql"),
        include_str!("../../sql/001_outbox_table_laravel_topic.sql"),
        include_str!("../../sql/001_outbox_table_debezium.sql"),
    ] {
        place.sql("DROP TABLE IF EXISTS outbox_messages").await;
        place.sql(file).await;
        let table = place.table().await;
        assert!(table.has_primary_key && table.columns.iter().any(|column| column.name == "payload"));
    }
    place.sql("UPDATE walpost.schema_version SET version = 99").await;
    let error = checkpoint::read(&place.client, "s").await.unwrap_err();
    assert!(matches!(error, CheckpointError::TooNew { found: 99 }), "{error:?}");
    place.sql("DELETE FROM walpost.schema_version").await;
    let error = checkpoint::read(&place.client, "s").await.unwrap_err();
    assert!(matches!(error, CheckpointError::Unversioned), "{error:?}");
}

#[tokio::test]
async fn a_missing_and_a_forbidden_record_are_told_apart() {
    let place = Place::new("forbidden").await;
    let error = checkpoint::read(&place.client, "s").await.unwrap_err();
    assert!(matches!(error, CheckpointError::NotSetUp { .. }) && error.is_absent(), "{error:?}");
    place.sql(include_str!("../../sql/002_schema.sql")).await;
    assert_eq!(checkpoint::read(&place.client, "s").await.unwrap(), None);
    place.sql("DROP ROLE IF EXISTS walpost_sql_nobody; CREATE ROLE walpost_sql_nobody LOGIN PASSWORD 'x'").await;
    let nobody = place.as_role("walpost_sql_nobody").await;
    let error = checkpoint::read(&nobody, "s").await.unwrap_err();
    assert!(matches!(error, CheckpointError::NotPermitted { .. }) && error.is_absent(), "{error:?}");
    assert_eq!(error.sqlstate(), Some("42501"));
}

#[tokio::test]
async fn the_record_moves_forward_and_only_forward() {
    let place = Place::new("record").await;
    place.set_up().await;
    let recorder = place.begin().await;
    let start = place.record().await;
    let facts = slot::facts(&place.client, &place.slot).await.unwrap().unwrap();
    assert_eq!(Some(start.confirmed_lsn), facts.confirmed_flush_lsn);
    assert_eq!((start.state, start.pending, start.relay_name.as_str()), (State::SignedOff, None, "orders"));
    assert_eq!(start.epoch, recorder.epoch());

    assert!(recorder.sign_on(&place.client).await.unwrap());
    let further = Lsn(start.confirmed_lsn.0 + 100);
    assert_eq!(recorder.record(&place.client, further).await.unwrap(), Recorded::Done);
    assert_eq!(recorder.record(&place.client, further).await.unwrap(), Recorded::Done);
    let behind = recorder.record(&place.client, start.confirmed_lsn).await.unwrap();
    assert_eq!(behind, Recorded::Behind { recorded: further });
    let record = place.record().await;
    assert_eq!((record.confirmed_lsn, record.state), (further, State::Streaming));

    let other = place.recorder(recorder.epoch(), "relay-2");
    assert!(other.sign_on(&place.client).await.unwrap());
    assert!(!recorder.sign_off(&place.client).await.unwrap(), "another one streams by now");
    assert_eq!(place.record().await.state, State::Streaming);
    assert!(other.sign_off(&place.client).await.unwrap());
    assert_eq!(place.record().await.state, State::SignedOff);
    assert!(checkpoint::set_kafka_cluster(&place.client, &place.slot, "kafka-a").await.unwrap());
    assert!(!checkpoint::set_kafka_cluster(&place.client, &place.slot, "kafka-b").await.unwrap());
    assert_eq!(place.record().await.kafka_cluster_id.as_deref(), Some("kafka-a"));

    // A new epoch begins where the slot is, and ends what the old one may write.
    let next = place.begin().await;
    assert!(next.epoch() > recorder.epoch());
    let record = place.record().await;
    assert_eq!((record.confirmed_lsn, record.kafka_cluster_id.as_deref()), (start.confirmed_lsn, Some("kafka-a")));
    let superseded = recorder.record(&place.client, further).await.unwrap();
    assert_eq!(superseded, Recorded::Superseded { epoch: next.epoch(), state: "signed_off".into() });
    assert!(!recorder.sign_off(&place.client).await.unwrap());

    assert!(checkpoint::adopt(&place.client, &place.slot, "others").await.unwrap());
    let record = place.record().await;
    assert_eq!((record.relay_name.as_str(), record.kafka_cluster_id), ("others", None));

    place.sql("UPDATE walpost.checkpoint SET state = 'recovering'").await;
    assert!(matches!(next.record(&place.client, further).await.unwrap(), Recorded::Superseded { .. }));
    assert!(!next.sign_on(&place.client).await.unwrap());

    assert!(checkpoint::end(&place.client, &place.slot).await.unwrap());
    assert!(!checkpoint::end(&place.client, &place.slot).await.unwrap());
    assert_eq!(next.record(&place.client, further).await.unwrap(), Recorded::Gone);
    place.clean_up().await;
}

#[tokio::test]
async fn an_epoch_is_greater_than_the_one_before_even_when_the_clock_went_back() {
    let place = Place::new("epoch").await;
    place.set_up().await;
    place.begin().await;
    place.sql("UPDATE walpost.checkpoint SET epoch = 9000000000").await;
    assert_eq!(place.begin().await.epoch(), 9_000_000_001);
    place.clean_up().await;
}

#[tokio::test]
async fn a_record_cannot_be_begun_for_a_slot_that_is_not_there() {
    let place = Place::new("no_slot").await;
    place.sql(include_str!("../../sql/002_schema.sql")).await;
    let identity = place.identity().await;
    let error = checkpoint::begin(&place.client, place.beginning(&identity, "f")).await.unwrap_err();
    assert!(matches!(error, CheckpointError::NoSlot { .. }), "{error:?}");
}

#[tokio::test]
async fn nothing_is_recorded_once_the_publication_or_the_table_has_changed() {
    let place = Place::new("fingerprint").await;
    place.set_up().await;
    place.sql("CREATE TABLE other (id int PRIMARY KEY)").await;
    let mut changes = vec![
        "ALTER PUBLICATION walpost ADD TABLE other",
        "ALTER PUBLICATION walpost DROP TABLE outbox_messages",
        "ALTER PUBLICATION walpost SET (publish = 'insert, update')",
        "ALTER PUBLICATION walpost RENAME TO elsewhere; ALTER PUBLICATION elsewhere RENAME TO walpost",
        "DROP PUBLICATION walpost",
        "CREATE PUBLICATION walpost FOR TABLE outbox_messages WITH (publish = 'insert')",
        "ALTER TABLE outbox_messages RENAME TO old; CREATE TABLE outbox_messages (LIKE old)",
        "DROP TABLE outbox_messages; ALTER TABLE old RENAME TO outbox_messages",
    ];
    if place.version >= catalog::COLUMN_LISTS {
        changes.push("ALTER PUBLICATION walpost ADD TABLES IN SCHEMA public");
        changes.push("ALTER PUBLICATION walpost DROP TABLES IN SCHEMA public");
        changes.push("ALTER PUBLICATION walpost SET TABLE outbox_messages (id, payload)");
    }
    changes.push("DROP PUBLICATION walpost; ALTER TABLE outbox_messages SET UNLOGGED");
    for change in changes {
        let recorder = place.begin().await;
        let before = place.fingerprint().await;
        let lsn = place.end_of_wal().await;
        assert_eq!(recorder.record(&place.client, lsn).await.unwrap(), Recorded::Done, "before {change}");
        place.sql(change).await;
        let answer = recorder.record(&place.client, place.end_of_wal().await).await.unwrap();
        let Recorded::FingerprintChanged { recorded, now } = answer else { panic!("{change}: {answer:?}") };
        assert_eq!(recorded, before, "{change}");
        assert_ne!(now, before, "{change}");
        assert_eq!(place.record().await.confirmed_lsn, lsn, "{change}");
    }
    place.clean_up().await;
}

/// Rows that committed while it was another are in no stream, also when it is as it was again. And rows of a partition that
/// is not in the log never are.
#[tokio::test]
async fn a_change_that_was_noted_is_not_undone() {
    let place = Place::new("noted").await;
    place.set_up().await;
    place.sql("ALTER PUBLICATION walpost DROP TABLE outbox_messages").await;
    place.sql("DROP TABLE outbox_messages").await;
    place.sql("CREATE TABLE outbox_messages (id int, kind text) PARTITION BY LIST (kind)").await;
    place.sql("CREATE TABLE outbox_a PARTITION OF outbox_messages DEFAULT").await;
    place.sql("ALTER PUBLICATION walpost ADD TABLE outbox_messages").await;
    let recorder = place.begin().await;
    let before = place.fingerprint().await;
    place.sql("ALTER TABLE outbox_a SET UNLOGGED").await;
    assert_ne!(place.fingerprint().await, before);
    let lsn = place.end_of_wal().await;
    let answer = recorder.record(&place.client, lsn).await.unwrap();
    assert!(matches!(answer, Recorded::FingerprintChanged { .. }), "{answer:?}");
    place.sql("ALTER TABLE outbox_a SET LOGGED").await;
    assert_eq!(place.fingerprint().await, before);
    let slot = place.record().await.slot_name;
    for first in [true, false] {
        let recorded = place.record().await.fingerprint;
        assert_eq!(checkpoint::mark_changed(&place.client, &slot, &recorded).await.unwrap(), first, "noted once");
        let answer = recorder.record(&place.client, lsn).await.unwrap();
        assert!(matches!(answer, Recorded::FingerprintChanged { .. }), "{answer:?}");
    }
    place.clean_up().await;
}

#[tokio::test]
async fn what_changes_nothing_for_us_keeps_the_fingerprint() {
    let place = Place::new("unchanged").await;
    place.set_up().await;
    let before = place.fingerprint().await;
    place.sql("ALTER TABLE outbox_messages ADD COLUMN more int").await;
    place.sql("CREATE TABLE other (id int PRIMARY KEY)").await;
    place.sql("CREATE PUBLICATION another FOR TABLE outbox_messages").await;
    for relation in ["pg_publication", "pg_publication_rel", "pg_class"] {
        place.sql(&format!("VACUUM (FREEZE) {relation}")).await;
        place.sql(&format!("VACUUM FULL {relation}")).await;
    }
    assert_eq!(place.fingerprint().await, before);
    place.clean_up().await;
}

#[tokio::test]
async fn a_long_list_of_tables_is_hashed_and_still_noticed() {
    let place = Place::new("many").await;
    place.set_up().await;
    for number in 0..60 {
        place.sql(&format!("CREATE TABLE t{number} (id int); ALTER PUBLICATION walpost ADD TABLE t{number}")).await;
    }
    let before = place.fingerprint().await;
    assert!(before.len() < 200, "{before}");
    place.sql("ALTER PUBLICATION walpost DROP TABLE t30").await;
    assert_ne!(place.fingerprint().await, before);
    place.clean_up().await;
}

#[tokio::test]
async fn the_horizon_never_passes_a_transaction_whose_rows_may_be_unpublished() {
    let place = Place::new("horizon").await;
    place.set_up().await;
    let recorder = place.begin().await;
    let first = place.record().await.horizon.expect("a horizon from the slot");

    let other = connect(&place.config).await;
    other
        .batch_execute(
            "BEGIN; INSERT INTO outbox_messages (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c')",
        )
        .await
        .unwrap();
    let open: String = other.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap().get(0);
    let open: u64 = open.parse().unwrap();
    assert!(first <= open, "{first} {open}");
    for _ in 0..5 {
        place.sql("CREATE TABLE IF NOT EXISTS busy (n int); INSERT INTO busy VALUES (1)").await;
        assert_eq!(recorder.record(&place.client, place.end_of_wal().await).await.unwrap(), Recorded::Done);
        let record = place.record().await;
        assert!(record.horizon.unwrap() <= open, "{record:?}");
        assert!(record.pending.unwrap().0 <= open, "{record:?}");
    }
    other.batch_execute("COMMIT").await.unwrap();
    // Not before an LSN at or above the one that was taken with it is confirmed. (Open transactions of the other tests
    // hold the pending one back for a while.)
    let committed = place.end_of_wal().await;
    let began = Instant::now();
    let (pending, at) = loop {
        recorder.record(&place.client, place.end_of_wal().await).await.unwrap();
        match place.record().await.pending.unwrap() {
            (pending, at) if pending > open => break (pending, at),
            (pending, _) => assert!(began.elapsed() < WITHIN, "still {pending}, and the row was of {open}"),
        }
    };
    assert!(at >= committed);
    recorder.record(&place.client, Lsn(at.0 - 1)).await.unwrap();
    assert!(place.record().await.horizon.unwrap() <= open);
    recorder.record(&place.client, at).await.unwrap();
    assert_eq!(place.record().await.horizon, Some(pending));
    place.clean_up().await;
}

#[tokio::test]
async fn a_slot_that_is_taken_over_late_gets_a_horizon_before_its_unsent_rows() {
    let place = Place::new("late").await;
    place.set_up().await;
    place.sql("INSERT INTO outbox_messages (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c')").await;
    for _ in 0..20 {
        place.sql("SELECT pg_current_xact_id()").await;
    }
    place.begin().await;
    let horizon = place.record().await.horizon.unwrap();
    let at_risk = include_str!("../../sql/044_rows_at_risk.sql").replace("{table}", "outbox_messages");
    let row = place.client.query_one(at_risk.as_str(), &[&horizon.to_string()]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);
    place.clean_up().await;
}

#[tokio::test]
async fn a_session_that_writes_the_record_waits_for_its_commits() {
    let place = Place::new("durable").await;
    for (before, after) in [("off", "local"), ("on", "on"), ("remote_apply", "remote_apply")] {
        place.sql(&format!("SET synchronous_commit = {before}")).await;
        checkpoint::make_durable(&place.client).await.unwrap();
        assert_eq!(place.one("SELECT current_setting('synchronous_commit')").await, after);
    }
}

/// The statement of an attempt whose answer was lost may be carried out late: it takes nothing back.
#[tokio::test]
async fn an_epoch_begins_only_in_the_place_of_the_one_that_was_seen() {
    let place = Place::new("record_replaces").await;
    place.set_up().await;
    let (identity, fingerprint) = (place.identity().await, place.fingerprint().await);
    let begin = async |replaces| {
        let new = Beginning { replaces, ..place.beginning(&identity, &fingerprint) };
        checkpoint::begin(&place.client, new).await.map(|begun| begun.epoch)
    };
    place.begin().await;
    let seen = place.record().await.epoch;
    assert!(begin(Replaces::Nothing).await.is_err(), "there is one");
    let next = begin(Replaces::Epoch(seen)).await.unwrap();
    assert!(begin(Replaces::Epoch(seen)).await.is_err(), "it was replaced meanwhile");
    assert_eq!(place.record().await.epoch, next);
    assert!(begin(Replaces::Any).await.unwrap() > next);
    place.clean_up().await;
}
