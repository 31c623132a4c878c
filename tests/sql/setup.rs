//! `setup` in every situation: new, again, taken over, lost, moved, changed, adopted, printed, not permitted.

use walpost::commands::setup::{self, SetupError, SetupOptions};
use walpost::postgres::catalog;
use walpost::postgres::checkpoint::{self, Recorded, State};
use walpost::postgres::slot;

use super::place::*;

#[tokio::test]
async fn setup_makes_everything_once_and_says_from_where_the_slot_streams() {
    let place = Place::new("setup").await;
    let said = place.setup(create_table()).await;
    let at = place.slot_at().await.unwrap();
    assert!(said.contains(&format!("streams what commits from {at} on")), "{said}");
    assert!(said.contains("already are not published"), "{said}");
    let record = place.record().await;
    assert_eq!((record.confirmed_lsn, record.relay_name.as_str(), record.state), (at, "orders", State::SignedOff));
    assert_eq!(record.table_oid, place.table().await.oid);
    let published = catalog::publication(&place.client, place.version, "walpost", Some(&place.table().await)).await;
    let published = published.unwrap().unwrap();
    assert!(published.inserts && published.via_root && published.surplus_operations().is_empty());

    let said = place.setup(create_table()).await;
    assert!(said.lines().all(|line| line.contains("is there")), "{said}");
    assert_eq!(place.record().await.epoch, record.epoch);
    assert_eq!(place.slot_at().await, Some(at));
    place.clean_up().await;
}

#[tokio::test]
async fn setup_publishes_the_mapped_columns_only_and_takes_the_record_along_when_they_change() {
    let place = Place::new("columns").await;
    place.sql(include_str!("../../sql/001_outbox_table.sql")).await;
    place.sql("ALTER TABLE outbox_messages ADD COLUMN tenant text, ADD COLUMN noise text").await;
    place.setup(SetupOptions::default()).await;
    let mut settings = place.settings();
    settings.headers.columns.insert("tenant".into(), "tenant".into());
    let epoch = place.record().await.epoch;
    let recorder = place.recorder(epoch, "relay-1");
    let before = place.fingerprint().await;
    let (result, said) = place.setup_with(&settings, &SetupOptions::default()).await;
    result.unwrap();
    let table = place.table().await;
    let published = catalog::publication(&place.client, place.version, "walpost", Some(&table)).await.unwrap().unwrap();
    if place.version >= catalog::COLUMN_LISTS {
        assert!(said.contains("columns tenant of public.outbox_messages in publication walpost: made"), "{said}");
        assert_eq!(published.without(&["noise".into(), "tenant".into()]), ["noise"]);
        assert_ne!(place.fingerprint().await, before);
    } else {
        assert_eq!(place.fingerprint().await, before);
    }
    assert_eq!(recorder.record(&place.client, place.end_of_wal().await).await.unwrap(), Recorded::Done);
    place.clean_up().await;
}

#[tokio::test]
async fn a_slot_without_a_record_is_taken_over_as_it_is() {
    let place = Place::new("taken_over").await;
    place.sql(include_str!("../../sql/001_outbox_table.sql")).await;
    place.sql("CREATE PUBLICATION walpost FOR TABLE outbox_messages").await;
    let at = slot::create(&place.client, place.version, &place.slot, WITHIN).await.unwrap();
    place.insert().await;
    let said = place.setup(SetupOptions::default()).await;
    assert!(said.contains(&format!("taken over as it is; it streams from {at}")), "{said}");
    assert!(said.contains("also publishes update, delete, truncate"), "{said}");
    assert_eq!(place.record().await.confirmed_lsn, at);
    place.clean_up().await;
}

#[tokio::test]
async fn a_slot_older_than_its_publication_is_not_taken_over_silently() {
    let place = Place::new("older").await;
    place.sql(include_str!("../../sql/001_outbox_table.sql")).await;
    let at = slot::create(&place.client, place.version, &place.slot, WITHIN).await.unwrap();
    place.insert().await;
    let error = place.setup_fails(SetupOptions::default()).await;
    assert!(matches!(error, SetupError::SlotBeforePublication { .. }) && error.exit_code() == 100, "{error:?}");
    let said = place.setup(accept_gap()).await;
    assert!(said.contains("moved to"), "{said}");
    assert!(place.slot_at().await.unwrap() > at);
    assert_eq!(place.record().await.confirmed_lsn, place.slot_at().await.unwrap());
    place.clean_up().await;
}

#[tokio::test]
async fn a_lost_slot_is_never_made_anew_without_a_word() {
    let place = Place::new("lost").await;
    place.setup(create_table()).await;
    let record = place.record().await;
    slot::drop(&place.client, &place.slot).await.unwrap();
    place.insert().await;
    place.insert().await;
    let error = place.setup_fails(SetupOptions::default()).await;
    assert!(matches!(error, SetupError::Decide { .. }) && error.exit_code() == 100, "{error:?}");
    assert!(error.to_string().contains("--accept-gap"), "{error}");
    assert_eq!(place.slot_at().await, None);
    let said = place.setup(accept_gap()).await;
    assert!(said.contains("of the rows that are in public.outbox_messages now, at most 2"), "{said}");
    assert!(said.contains(&record.confirmed_lsn.to_string()), "{said}");
    let after = place.record().await;
    assert!(after.epoch > record.epoch && after.confirmed_lsn > record.confirmed_lsn);
    let said = place.setup(accept_gap()).await;
    assert!(said.contains("no gap to accept"), "{said}");
    place.clean_up().await;
}

#[tokio::test]
async fn a_slot_that_was_moved_is_a_gap_until_it_is_accepted() {
    let place = Place::new("moved").await;
    place.setup(create_table()).await;
    place.insert().await;
    let moved = slot::advance(&place.client, &place.slot).await.unwrap();
    let error = place.setup_fails(SetupOptions::default()).await;
    assert!(matches!(error, SetupError::Decide { .. }), "{error:?}");
    place.setup(accept_gap()).await;
    assert_eq!((place.slot_at().await, place.record().await.confirmed_lsn), (Some(moved), moved));
    place.clean_up().await;
}

#[tokio::test]
async fn a_publication_that_was_changed_is_accepted_where_it_is_and_one_made_anew_moves_the_slot() {
    let place = Place::new("changed").await;
    place.setup(create_table()).await;
    let at = place.slot_at().await;
    place.sql("ALTER PUBLICATION walpost SET (publish = 'insert, update')").await;
    let error = place.setup_fails(SetupOptions::default()).await;
    assert!(error.to_string().contains("what is published was changed"), "{error}");
    place.setup(accept_gap()).await;
    assert_eq!(place.slot_at().await, at);

    place.sql("DROP PUBLICATION walpost").await;
    place.insert().await;
    place.setup_fails(SetupOptions::default()).await;
    let said = place.setup(accept_gap()).await;
    assert!(said.contains("moved to"), "{said}");
    assert!(place.slot_at().await > at);
    let recorder = place.recorder(place.record().await.epoch, "relay-1");
    assert_eq!(recorder.record(&place.client, place.end_of_wal().await).await.unwrap(), Recorded::Done);
    place.clean_up().await;
}

#[tokio::test]
async fn a_record_of_another_relay_is_refused_until_it_is_adopted() {
    let place = Place::new("adopted").await;
    place.setup(create_table()).await;
    place.sql("UPDATE walpost.checkpoint SET relay_name = 'staging', kafka_cluster_id = 'kafka-a'").await;
    let error = place.setup_fails(SetupOptions::default()).await;
    assert!(matches!(error, SetupError::Refused { .. }) && error.to_string().contains("staging"), "{error:?}");
    let epoch = place.record().await.epoch;
    place.setup(SetupOptions { adopt: true, ..SetupOptions::default() }).await;
    let record = place.record().await;
    assert_eq!((record.relay_name.as_str(), record.kafka_cluster_id, record.epoch), ("orders", None, epoch));
    place.clean_up().await;
}

#[tokio::test]
async fn what_is_printed_touches_nothing_and_does_the_same_when_it_is_run() {
    let place = Place::new("print").await;
    let print = SetupOptions { print: true, grants: None, ..create_table() };
    let printed = place.setup(print.clone()).await;
    assert_eq!(place.slot_at().await, None);
    assert_eq!(checkpoint::schema_version(&place.client).await.unwrap(), None);
    let (tables, slot) = printed.split_once(&format!("-- slot {}", place.slot)).expect(&printed);
    place.sql(tables).await;
    place.sql(&format!("-- {slot}")).await;
    let again = place.setup(print).await;
    assert!(again.lines().all(|line| line.is_empty() || line.starts_with("--")), "{again}");
    let mut unseen = Vec::new();
    setup::print_unseen(&place.settings(), &create_table(), &mut unseen).unwrap();
    let unseen = String::from_utf8(unseen).unwrap();
    for part in ["CREATE TABLE", "CREATE SCHEMA", "CREATE PUBLICATION", "pg_create_logical_replication_slot"] {
        assert!(printed.contains(part) && unseen.contains(part), "{part}");
    }
    place.clean_up().await;
}

#[tokio::test]
async fn a_role_that_may_not_make_the_publication_is_told_what_it_needs() {
    let place = Place::new("unprivileged").await;
    place.sql(include_str!("../../sql/001_outbox_table.sql")).await;
    place
        .sql("DROP ROLE IF EXISTS walpost_sql_replica; CREATE ROLE walpost_sql_replica LOGIN REPLICATION PASSWORD 'x'")
        .await;
    let client = place.as_role("walpost_sql_replica").await;
    let mut out = Vec::new();
    let error = setup::apply(&client, None, &place.settings(), &SetupOptions::default(), &mut out).await.unwrap_err();
    assert_eq!(error.exit_code(), 77, "{error:?}");
    assert!(error.to_string().contains("--print"), "{error}");
    assert_eq!(place.slot_at().await, None);
    // With the publication made by its owner, the rest works, and says what is off.
    place.sql(include_str!("../../sql/010_publication.sql")).await;
    setup::apply(&client, None, &place.settings(), &SetupOptions::default(), &mut out).await.unwrap();
    let said = String::from_utf8(out).unwrap();
    assert!(said.contains("gap detection is off"), "{said}");
    assert!(place.slot_at().await.is_some());
    place.clean_up().await;
}
