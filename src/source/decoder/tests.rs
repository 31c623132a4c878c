use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::source::Column;
use crate::source::pgoutput::encode::{self, Cell};

fn table(oid: u32, names: &[&str]) -> Relation {
    let columns = names.iter().map(|name| Column { name: (*name).to_owned(), type_oid: 25, key: false }).collect();
    Relation { oid, schema: "public".to_owned(), name: "outbox".to_owned(), columns }
}

fn feed(decoder: &mut Decoder, bytes: Vec<u8>) -> Result<Option<SourceEvent>, DecodeError> {
    decoder.decode(Bytes::from(bytes))
}

/// A decoder within a transaction that commits at 100, which knows a table 5 of two columns.
fn inside() -> Decoder {
    let mut decoder = Decoder::new();
    assert!(matches!(feed(&mut decoder, encode::begin(100, 0, 1)), Ok(Some(SourceEvent::Begin { .. }))));
    assert!(matches!(feed(&mut decoder, encode::relation(&table(5, &["id", "payload"]))), Ok(None)));
    decoder
}

fn row(result: Result<Option<SourceEvent>, DecodeError>) -> Row {
    match result {
        Ok(Some(SourceEvent::Row(row))) => row,
        other => panic!("expected a row: {other:?}"),
    }
}

#[test]
fn a_transaction_comes_out_as_begin_rows_and_commit() {
    let mut decoder = inside();
    let row = row(feed(&mut decoder, encode::insert(5, &["1".into(), Cell::Null])));
    assert_eq!(row.text(0), Some(Bytes::from_static(b"1")));
    assert_eq!(row.text(1), None);
    assert_eq!(row.text(2), None);
    assert_eq!(row.relation.name, "outbox");
    match feed(&mut decoder, encode::commit(100, 120, 0)) {
        Ok(Some(SourceEvent::Commit { commit_lsn: Lsn(100), end_lsn: Lsn(120) })) => {}
        other => panic!("{other:?}"),
    }
    assert!(feed(&mut decoder, encode::begin(200, 0, 2)).is_ok());
}

#[test]
fn a_begin_within_a_transaction_is_an_error() {
    let error = feed(&mut inside(), encode::begin(300, 0, 3)).unwrap_err();
    assert_eq!(error, DecodeError::NestedBegin { open: Lsn(100), inner: Lsn(300) });
}

#[test]
fn changes_outside_a_transaction_are_errors() {
    let mut decoder = Decoder::new();
    assert!(matches!(feed(&mut decoder, encode::relation(&table(5, &["id"]))), Ok(None)));
    for bytes in [
        encode::insert(5, &["1".into()]),
        encode::update(5, None, &["1".into()]),
        encode::delete(5, b'K', &["1".into()]),
        encode::truncate(&[5], 0),
        encode::commit(1, 2, 0),
        encode::logical(true, 1, "outbox", b""),
    ] {
        assert!(matches!(feed(&mut decoder, bytes), Err(DecodeError::OutsideTransaction { .. })));
    }
}

#[test]
fn after_the_commit_a_row_is_outside_again() {
    let mut decoder = inside();
    assert!(feed(&mut decoder, encode::commit(100, 120, 0)).is_ok());
    let error = feed(&mut decoder, encode::insert(5, &["1".into(), "2".into()])).unwrap_err();
    assert_eq!(error.to_string(), "pgoutput message Insert came outside a transaction");
}

#[test]
fn a_commit_of_another_transaction_is_an_error() {
    let error = feed(&mut inside(), encode::commit(101, 120, 0)).unwrap_err();
    assert_eq!(error, DecodeError::WrongCommit { begun: Lsn(100), committed: Lsn(101) });
}

#[test]
fn what_an_outbox_does_not_relay_is_counted_not_dropped() {
    let mut decoder = inside();
    let cells = ["1".into(), Cell::UnchangedToast];
    for (bytes, expected) in [
        (encode::update(5, None, &cells), Ignored::Update),
        (encode::update(999, None, &cells), Ignored::Update),
        (encode::delete(5, b'O', &cells), Ignored::Delete),
        (encode::truncate(&[5, 6], 3), Ignored::Truncate),
        (encode::logical(true, 1, "outbox", b"{}"), Ignored::Message),
        (encode::stream_abort(1, 2), Ignored::StreamAbort),
    ] {
        match feed(&mut decoder, bytes) {
            Ok(Some(SourceEvent::Ignored(ignored))) => assert_eq!(ignored, expected),
            other => panic!("{expected:?}: {other:?}"),
        }
    }
}

#[test]
fn a_stray_stream_abort_or_a_message_at_once_may_come_outside_a_transaction() {
    let mut decoder = Decoder::new();
    for bytes in [encode::stream_abort(1, 2), encode::logical(false, 1, "outbox", b"{}")] {
        assert!(matches!(feed(&mut decoder, bytes), Ok(Some(SourceEvent::Ignored(_)))));
    }
}

#[test]
fn types_and_origins_tell_nothing_to_relay() {
    let mut decoder = inside();
    assert!(matches!(feed(&mut decoder, encode::origin(1, "elsewhere")), Ok(None)));
    assert!(matches!(feed(&mut decoder, encode::data_type(1, "public", "mood")), Ok(None)));
}

#[test]
fn a_domain_over_bytea_is_bytea_and_other_types_stay() {
    let mut decoder = inside();
    for (oid, schema, name) in [(70000, "pg_catalog", "bytea"), (70001, "public", "bytea"), (70002, "public", "mood")] {
        assert!(feed(&mut decoder, encode::data_type(oid, schema, name)).is_ok());
    }
    let mut relation = table(6, &["a", "b", "c"]);
    for (column, type_oid) in relation.columns.iter_mut().zip(70000..) {
        column.type_oid = type_oid;
    }
    assert!(feed(&mut decoder, encode::relation(&relation)).is_ok());
    let row = row(feed(&mut decoder, encode::insert(6, &[Cell::Null, Cell::Null, Cell::Null])));
    let types: Vec<u32> = row.relation.columns.iter().map(|column| column.type_oid).collect();
    assert_eq!(types, [BYTEA_OID, 70001, 70002]);
}

#[test]
fn a_row_of_an_unknown_relation_is_an_error() {
    let error = feed(&mut inside(), encode::insert(6, &["1".into()])).unwrap_err();
    assert_eq!(error, DecodeError::UnknownRelation { oid: 6 });
    // A new connection starts from nothing.
    let mut fresh = Decoder::new();
    assert!(feed(&mut fresh, encode::begin(1, 0, 1)).is_ok());
    assert_eq!(feed(&mut fresh, encode::insert(5, &[])).unwrap_err(), DecodeError::UnknownRelation { oid: 5 });
}

#[test]
fn a_row_of_another_shape_than_its_relation_is_an_error() {
    for cells in [vec!["1".into()], vec!["1".into(), "2".into(), "3".into()]] {
        let error = feed(&mut inside(), encode::insert(5, &cells)).unwrap_err();
        let table = "public.outbox".to_owned();
        assert_eq!(error, DecodeError::ColumnCount { table, announced: 2, found: cells.len() });
    }
}

#[test]
fn a_value_that_cannot_be_is_told_by_its_columns_name() {
    let toast = feed(&mut inside(), encode::insert(5, &["1".into(), Cell::UnchangedToast])).unwrap_err();
    let (table, column) = ("public.outbox".to_owned(), "payload".to_owned());
    assert_eq!(toast, DecodeError::UnchangedToast { table: table.clone(), column: column.clone() });
    let binary = feed(&mut inside(), encode::insert(5, &["1".into(), Cell::Binary(vec![0])])).unwrap_err();
    assert_eq!(binary, DecodeError::BinaryValue { table, column });
    // Where the relation or the column is not known, by number.
    let unknown = feed(&mut inside(), encode::insert(6, &[Cell::UnchangedToast])).unwrap_err();
    assert!(matches!(unknown, DecodeError::Message(PgoutputError::UnchangedToast { relation_oid: 6, column: 1 })));
}

#[test]
fn a_relation_told_anew_replaces_the_old_one_for_the_rows_that_follow() {
    let mut decoder = inside();
    let before = row(feed(&mut decoder, encode::insert(5, &["1".into(), "2".into()])));
    assert!(feed(&mut decoder, encode::relation(&table(5, &["id"]))).is_ok());
    let after = row(feed(&mut decoder, encode::insert(5, &["1".into()])));
    assert_eq!((before.relation.columns.len(), after.relation.columns.len()), (2, 1));
}

#[test]
fn a_relation_repeated_without_change_stays_the_same_one() {
    let mut decoder = inside();
    let cells = ["1".into(), "2".into()];
    let before = row(feed(&mut decoder, encode::insert(5, &cells)));
    assert!(feed(&mut decoder, encode::relation(&table(5, &["id", "payload"]))).is_ok());
    let after = row(feed(&mut decoder, encode::insert(5, &cells)));
    assert!(Arc::ptr_eq(&before.relation, &after.relation));
}

fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let cell = prop_oneof![
        Just(Cell::Null),
        Just(Cell::UnchangedToast),
        vec(any::<u8>(), 0..9).prop_map(Cell::Text),
        vec(any::<u8>(), 0..9).prop_map(Cell::Binary),
    ];
    let row = vec(cell, 0..4);
    let oid = 0..3u32;
    prop_oneof![
        (0..3u64).prop_map(|lsn| encode::begin(lsn, 0, 1)),
        (0..3u64).prop_map(|lsn| encode::commit(lsn, lsn + 1, 0)),
        (oid.clone(), 0..4usize)
            .prop_map(|(oid, count)| encode::relation(&table(oid, &["a", "b", "c"][..count.min(3)]))),
        (oid.clone(), row.clone()).prop_map(|(oid, row)| encode::insert(oid, &row)),
        (oid.clone(), row.clone()).prop_map(|(oid, row)| encode::update(oid, None, &row)),
        (oid, row).prop_map(|(oid, row)| encode::delete(oid, b'K', &row)),
        vec(any::<u8>(), 0..30),
    ]
}

proptest! {
    #[test]
    fn any_sequence_is_decoded_or_refused_and_every_row_fits_its_relation(messages in vec(any_message(), 0..40)) {
        let mut decoder = Decoder::new();
        let mut open = false;
        for bytes in messages {
            match feed(&mut decoder, bytes) {
                Ok(Some(SourceEvent::Begin { .. })) => {
                    prop_assert!(!open);
                    open = true;
                }
                Ok(Some(SourceEvent::Commit { .. })) => {
                    prop_assert!(open);
                    open = false;
                }
                Ok(Some(SourceEvent::Row(row))) => {
                    prop_assert!(open);
                    prop_assert_eq!(row.values.len(), row.relation.columns.len());
                    for index in 0..=row.values.len() {
                        let _ = row.text(index);
                    }
                }
                _ => {}
            }
        }
    }
}
