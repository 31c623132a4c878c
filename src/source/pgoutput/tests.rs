use proptest::collection::vec;
use proptest::prelude::*;

use super::encode::{self, Cell};
use super::*;

fn read(bytes: Vec<u8>) -> Result<Message, PgoutputError> {
    parse(&Bytes::from(bytes))
}

fn at_micros(micros: i64) -> SystemTime {
    let epoch = SystemTime::UNIX_EPOCH + POSTGRES_EPOCH;
    let distance = Duration::from_micros(micros.unsigned_abs());
    if micros < 0 { epoch - distance } else { epoch + distance }
}

fn sample_relation() -> Relation {
    let column = |name: &str, type_oid, key| Column { name: name.to_owned(), type_oid, key };
    Relation {
        oid: 16385,
        schema: "public".to_owned(),
        name: "outbox_messages".to_owned(),
        columns: vec![column("id", 20, true), column("payload", 3802, false)],
    }
}

/// One of every message that a reader of version 1 may get, in every form.
fn every_message() -> Vec<Vec<u8>> {
    let row = [Cell::Null, "text".into(), "".into()];
    let with_toast = ["1".into(), Cell::UnchangedToast, Cell::Null];
    vec![
        encode::begin(0x16_B374_D848, 750_000_000_000_000, 741),
        encode::commit(0x16_B374_D848, 0x16_B374_D900, 750_000_000_000_000),
        encode::origin(17, "elsewhere"),
        encode::relation(&sample_relation()),
        encode::data_type(16400, "public", "mood"),
        encode::insert(16385, &row),
        encode::update(16385, None, &with_toast),
        encode::update(16385, Some((b'K', &row)), &row),
        encode::update(16385, Some((b'O', &row)), &with_toast),
        encode::delete(16385, b'K', &row),
        encode::delete(16385, b'O', &row),
        encode::truncate(&[1, 2, 3], 3),
        encode::logical(true, 99, "outbox", b"{}"),
        encode::stream_abort(741, 742),
    ]
}

#[test]
fn a_message_cut_short_anywhere_is_an_error_that_says_what_is_missing() {
    for whole in every_message() {
        assert!(read(whole.clone()).is_ok(), "{whole:?}");
        assert_eq!(read(Vec::new()), Err(PgoutputError::Empty));
        for length in 1..whole.len() {
            let cut = whole[..length].to_vec();
            match read(cut.clone()) {
                Err(PgoutputError::Short { missing, .. }) => assert!((1..=whole.len() - length).contains(&missing)),
                Err(PgoutputError::Unterminated { .. }) => {}
                other => panic!("{cut:?} gave {other:?}"),
            }
        }
    }
}

#[test]
fn bytes_after_a_message_are_an_error() {
    for whole in every_message() {
        let longer = [whole, vec![0, 0]].concat();
        match read(longer.clone()) {
            Err(PgoutputError::Leftover { bytes: 2, .. }) => {}
            other => panic!("{longer:?} gave {other:?}"),
        }
    }
}

#[test]
fn an_error_names_the_message_the_field_and_the_bytes() {
    let begin = encode::begin(1, 2, 3);
    assert_eq!(
        read(begin[..begin.len() - 3].to_vec()).unwrap_err().to_string(),
        "pgoutput message Begin ends within its field transaction id: 3 bytes are missing"
    );
    let mut insert = encode::insert(1, &["abc".into()]);
    insert.truncate(insert.len() - 2);
    assert_eq!(
        read(insert).unwrap_err().to_string(),
        "pgoutput message Insert ends within its field value: 2 bytes are missing"
    );
    assert_eq!(
        read(b"O\0\0\0\0\0\0\0\0name".to_vec()).unwrap_err().to_string(),
        "pgoutput message Origin: the text of field name has no end: at least 1 byte is missing"
    );
}

#[test]
fn a_length_below_zero_is_an_error() {
    let mut insert = encode::insert(1, &["".into()]);
    let length_at = insert.len() - 4;
    insert.splice(length_at.., (-1i32).to_be_bytes());
    assert_eq!(
        read(insert),
        Err(PgoutputError::NegativeLength { message: "Insert", field: "value length", value: -1 })
    );
    let truncate = [b"T".as_slice(), &(-1i32).to_be_bytes(), &[0]].concat();
    assert!(matches!(read(truncate), Err(PgoutputError::NegativeLength { message: "Truncate", .. })));
}

#[test]
fn a_count_that_lies_allocates_nothing_and_is_an_error() {
    let truncate = [b"T".as_slice(), &i32::MAX.to_be_bytes(), &[0]].concat();
    assert!(matches!(read(truncate), Err(PgoutputError::Short { field: "relation OIDs", .. })));
    let insert = [b"I".as_slice(), &1u32.to_be_bytes(), b"N", &u16::MAX.to_be_bytes()].concat();
    assert!(matches!(read(insert), Err(PgoutputError::Short { field: "value kind", missing: 1, .. })));
}

#[test]
fn an_unknown_message_is_named_by_its_byte() {
    assert_eq!(read(vec![b'Z', 1]).unwrap_err().to_string(), "unknown pgoutput message: it begins with byte 0x5A (Z)");
    assert_eq!(read(vec![7]).unwrap_err().to_string(), "unknown pgoutput message: it begins with byte 0x07 (\\x07)");
    assert_eq!(
        read(vec![b'b']).unwrap_err().to_string(),
        "pgoutput message Begin Prepare (byte b) belongs to two-phase decoding, which walpost never asks for"
    );
    for tag in 0..=u8::MAX {
        assert!(read(vec![tag]).is_err());
    }
}

#[test]
fn a_new_row_has_neither_binary_nor_left_out_values() {
    let toast = encode::insert(5, &[Cell::Null, Cell::UnchangedToast]);
    assert_eq!(read(toast), Err(PgoutputError::UnchangedToast { relation_oid: 5, column: 2 }));
    let binary = encode::insert(5, &[Cell::Binary(vec![1])]);
    assert_eq!(read(binary), Err(PgoutputError::BinaryValue { message: "Insert", relation_oid: 5, column: 1 }));
    let binary = encode::update(5, None, &[Cell::Binary(vec![1])]);
    assert_eq!(read(binary), Err(PgoutputError::BinaryValue { message: "Update", relation_oid: 5, column: 1 }));
    let mut odd = encode::insert(5, &[Cell::Null]);
    *odd.last_mut().unwrap() = b'x';
    assert_eq!(
        read(odd),
        Err(PgoutputError::BadValueKind { message: "Insert", relation_oid: 5, column: 1, kind: b'x' })
    );
}

#[test]
fn a_row_of_the_wrong_kind_is_an_error() {
    let mut insert = encode::insert(5, &[]);
    insert[5] = b'K';
    assert_eq!(read(insert), Err(PgoutputError::BadRowKind { message: "Insert", expected: "N", found: b'K' }));
    assert!(matches!(read(encode::delete(5, b'N', &[])), Err(PgoutputError::BadRowKind { .. })));
    assert!(matches!(read(encode::update(5, Some((b'x', &[])), &[])), Err(PgoutputError::BadRowKind { .. })));
}

#[test]
fn both_forms_of_a_stray_stream_abort_are_read() {
    let abort = encode::stream_abort(7, 8);
    assert_eq!(read(abort.clone()), Ok(Message::StreamAbort { xid: 7, subxid: 8 }));
    assert_eq!(read([abort, vec![0; 16]].concat()), Ok(Message::StreamAbort { xid: 7, subxid: 8 }));
}

#[test]
fn an_empty_namespace_is_pg_catalog() {
    let relation = Relation { schema: "pg_catalog".to_owned(), ..sample_relation() };
    assert_eq!(read(encode::relation(&relation)), Ok(Message::Relation(relation)));
}

#[test]
fn a_name_that_is_no_utf_8_is_made_readable() {
    let Ok(Message::Origin { name, .. }) = read(b"O\0\0\0\0\0\0\0\0a\xffb\0".to_vec()) else { panic!() };
    assert_eq!(name, "a\u{fffd}b");
}

#[test]
fn times_before_2000_and_the_outermost_ones_are_no_surprise() {
    for micros in [0, -1, 1, i64::MIN, i64::MAX] {
        let Ok(Message::Begin { commit_time, .. }) = read(encode::begin(1, micros, 1)) else { panic!("{micros}") };
        assert_eq!(commit_time, at_micros(micros));
    }
}

fn name() -> impl Strategy<Value = String> {
    "[^\0]{0,12}"
}

fn any_relation() -> impl Strategy<Value = Relation> {
    let column = (name(), any::<u32>(), any::<bool>()).prop_map(|(name, type_oid, key)| Column { name, type_oid, key });
    let schema = name().prop_filter("an empty one is pg_catalog", |schema| !schema.is_empty());
    (any::<u32>(), schema, name(), vec(column, 0..20)).prop_map(|(oid, schema, name, columns)| Relation {
        oid,
        schema,
        name,
        columns,
    })
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        let _ = read(bytes);
    }

    #[test]
    fn any_change_to_a_message_is_read_or_refused(
        which in any::<prop::sample::Index>(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let messages = every_message();
        let mut bytes = which.get(&messages).clone();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let _ = read(bytes);
    }

    #[test]
    fn begin_and_commit_read_back(one: u64, other: u64, micros: i64, xid: u32) {
        let commit_time = at_micros(micros);
        prop_assert_eq!(
            read(encode::begin(one, micros, xid)),
            Ok(Message::Begin { final_lsn: Lsn(one), commit_time, xid })
        );
        prop_assert_eq!(
            read(encode::commit(one, other, micros)),
            Ok(Message::Commit { commit_lsn: Lsn(one), end_lsn: Lsn(other), commit_time })
        );
    }

    #[test]
    fn a_relation_reads_back(relation in any_relation()) {
        prop_assert_eq!(read(encode::relation(&relation)), Ok(Message::Relation(relation)));
    }

    #[test]
    fn names_read_back(lsn: u64, oid: u32, one in name(), other in name()) {
        prop_assert_eq!(
            read(encode::origin(lsn, &one)),
            Ok(Message::Origin { commit_lsn: Lsn(lsn), name: one.clone() })
        );
        prop_assume!(!one.is_empty());
        prop_assert_eq!(
            read(encode::data_type(oid, &one, &other)),
            Ok(Message::Type { oid, schema: one, name: other })
        );
    }

    #[test]
    fn a_new_row_reads_back(relation_oid: u32, row in vec(prop::option::of(vec(any::<u8>(), 0..50)), 0..20)) {
        let cells: Vec<Cell> = row.iter().map(|value| value.clone().map_or(Cell::Null, Cell::Text)).collect();
        let bytes = encode::insert(relation_oid, &cells);
        let Ok(Message::Insert { relation_oid: read_oid, values }) = read(bytes.clone()) else { panic!() };
        let values: Vec<Option<Vec<u8>>> = values
            .into_iter()
            .map(|value| match value {
                Value::Null => None,
                Value::Text(range) => Some(bytes[range].to_vec()),
            })
            .collect();
        prop_assert_eq!((read_oid, values), (relation_oid, row));
    }

    #[test]
    fn the_others_read_back(
        oids in vec(any::<u32>(), 0..10),
        options in 0..4u8,
        transactional: bool,
        lsn: u64,
        prefix in name(),
        content in vec(any::<u8>(), 0..50),
    ) {
        prop_assert_eq!(
            read(encode::truncate(&oids, options)),
            Ok(Message::Truncate {
                relation_oids: oids,
                cascade: options & 1 != 0,
                restart_identity: options & 2 != 0,
            })
        );
        prop_assert_eq!(
            read(encode::logical(transactional, lsn, &prefix, &content)),
            Ok(Message::Logical { transactional, lsn: Lsn(lsn), prefix, content: content.into() })
        );
    }
}
