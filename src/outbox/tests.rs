use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::config::{Columns, Preset};
use crate::source::{Column, Relation};

pub const TEXT: u32 = 25;
pub const BYTEA: u32 = 17;

pub const WALPOST: [&str; 9] =
    ["id", "message_id", "aggregate_type", "aggregate_id", "event_type", "topic", "payload", "headers", "created_at"];
pub const LARAVEL: [&str; 10] = [
    "id",
    "message_id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "payload",
    "attempts",
    "last_error",
    "created_at",
    "published_at",
];
pub const LARAVEL_TOPIC: [&str; 10] = [
    "id",
    "message_id",
    "topic",
    "aggregate_type",
    "aggregate_id",
    "payload",
    "attempts",
    "available_at",
    "published_at",
    "created_at",
];
pub const DEBEZIUM: [&str; 5] = ["id", "aggregatetype", "aggregateid", "type", "payload"];

pub fn relation(names: &[&str]) -> Relation {
    let columns = names.iter().map(|name| Column { name: (*name).to_owned(), type_oid: TEXT, key: false }).collect();
    Relation { oid: 16385, schema: "public".to_owned(), name: "outbox_messages".to_owned(), columns }
}

/// A row with these values and NULL in every other column.
pub fn row(relation: &Relation, values: &[(&str, &[u8])]) -> Row {
    let mut frame = Vec::new();
    let values = relation.columns.iter().map(|column| match values.iter().find(|(name, _)| *name == column.name) {
        None => Value::Null,
        Some((_, value)) => {
            let start = frame.len();
            frame.extend_from_slice(value);
            Value::Text(start..frame.len())
        }
    });
    let values = values.collect();
    Row { relation: Arc::new(relation.clone()), frame: Bytes::from(frame), values }
}

fn of_type(mut relation: Relation, name: &str, type_oid: u32) -> Relation {
    for column in relation.columns.iter_mut().filter(|column| column.name == name) {
        column.type_oid = type_oid;
    }
    relation
}

fn resolve(names: &[&str]) -> Result<Mapping, MappingError> {
    Mapping::resolve(&relation(names), &Columns::default(), None)
}

fn message(relation: &Relation, values: &[(&str, &[u8])]) -> Result<OutboxMessage, Poison> {
    Mapping::resolve(relation, &Columns::default(), None).unwrap().message(&row(relation, values))
}

#[test]
fn each_known_table_is_recognised_by_its_columns() {
    for (names, preset) in [
        (WALPOST.as_slice(), Preset::Walpost),
        (&LARAVEL, Preset::Laravel),
        (&LARAVEL_TOPIC, Preset::LaravelTopic),
        (&DEBEZIUM, Preset::Debezium),
        (&["id", "aggregate_id", "payload"], Preset::Walpost),
    ] {
        assert_eq!(resolve(names).unwrap().preset(), preset, "{names:?}");
    }
}

#[test]
fn a_laravel_table_that_has_grown_is_read_whole() {
    for grown in [["topic", "x"], ["headers", "x"], ["x", "available_at"]] {
        let names = [LARAVEL.as_slice(), &grown].concat();
        let mapping = resolve(&names).unwrap();
        for (field, name) in Field::ALL.map(|field| (field, field.name())) {
            assert_eq!(mapping.column_name(field).is_some(), names.contains(&name), "{name} of {names:?}");
        }
    }
}

#[test]
fn columns_are_found_wherever_they_stand_and_others_are_ignored() {
    let names = ["x", "payload", "y", "aggregate_id", "id", "z"];
    let mapping = resolve(&names).unwrap();
    assert_eq!(mapping.column(Field::Payload), Some(1));
    assert_eq!(mapping.column(Field::AggregateId), Some(3));
    assert_eq!(mapping.column(Field::Id), Some(4));
    assert_eq!(mapping.column(Field::MessageId), None);
}

#[test]
fn debeziums_id_is_the_message_id() {
    let relation = relation(&DEBEZIUM);
    let values: [(&str, &[u8]); 5] =
        [("id", b"u-1"), ("aggregatetype", b"cart"), ("aggregateid", b"3"), ("type", b"Added"), ("payload", b"{}")];
    let message = message(&relation, &values).unwrap();
    assert_eq!(message.message_id, "u-1");
    assert_eq!(message.aggregate_type.unwrap(), "cart");
    assert_eq!(message.aggregate_id.unwrap(), "3");
    assert_eq!(message.event_type.unwrap(), "Added");
    assert_eq!((message.topic, message.headers), (None, None));
}

#[test]
fn a_preset_that_is_set_reads_only_its_own_columns() {
    let names = [LARAVEL.as_slice(), &["topic", "headers"]].concat();
    let mapping = Mapping::resolve(&relation(&names), &Columns::default(), Some(Preset::Laravel)).unwrap();
    assert_eq!((mapping.column(Field::Topic), mapping.column(Field::Headers)), (None, None));
}

#[test]
fn a_preset_that_does_not_fit_says_what_it_looked_for() {
    let error = Mapping::resolve(&relation(&WALPOST), &Columns::default(), Some(Preset::Debezium)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "table public.outbox_messages has no column for aggregate_id: looked for \"aggregateid\" (is it \
         \"aggregate_id\"?); set columns.aggregate_id (WALPOST_COLUMNS_AGGREGATE_ID) to its name. The columns that its \
         publication sends are id, message_id, aggregate_type, aggregate_id, event_type, topic, payload, headers, \
         created_at"
    );
}

#[test]
fn of_several_configured_names_the_first_that_exists_is_taken() {
    let columns = Columns { payload: vec!["body".into(), "payload".into()], ..Columns::default() };
    let before = Mapping::resolve(&relation(&["id", "aggregate_id", "payload"]), &columns, None).unwrap();
    let after = Mapping::resolve(&relation(&["id", "aggregate_id", "body", "payload"]), &columns, None).unwrap();
    assert_eq!((before.column(Field::Payload), after.column(Field::Payload)), (Some(2), Some(2)));
}

#[test]
fn a_configured_column_that_does_not_exist_is_an_error_and_no_other_takes_its_place() {
    let columns = Columns { aggregate_id: vec!["agregate_id".into()], ..Columns::default() };
    let error = Mapping::resolve(&relation(&["id", "aggregate_id", "payload"]), &columns, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "table public.outbox_messages has no column for aggregate_id: looked for \"agregate_id\" (is it \
         \"aggregate_id\"?); set columns.aggregate_id (WALPOST_COLUMNS_AGGREGATE_ID) to its name. The columns that its \
         publication sends are id, aggregate_id, payload"
    );
    // Also of a field that the table need not have.
    let columns = Columns { headers: vec!["meta".into()], ..Columns::default() };
    assert!(Mapping::resolve(&relation(&WALPOST), &columns, None).is_err());
}

#[test]
fn every_missing_column_is_told_at_once() {
    let MappingError::Missing { missing, existing, .. } = resolve(&["aggregate_type", "body"]).unwrap_err() else {
        panic!()
    };
    let fields: Vec<Field> = missing.iter().map(|missing| missing.field).collect();
    assert_eq!(fields, [Field::AggregateId, Field::Payload, Field::MessageId]);
    assert_eq!(existing, ["aggregate_type", "body"]);
    // The column that serves as aggregate_type is not offered as aggregate_id.
    assert!(missing.iter().all(|missing| missing.nearest.is_none()));
    let text = resolve(&["aggregate_type", "body"]).unwrap_err().to_string();
    for part in ["WALPOST_COLUMNS_AGGREGATE_ID", "WALPOST_COLUMNS_PAYLOAD", "WALPOST_COLUMNS_MESSAGE_ID"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn camel_case_is_recognised_as_a_near_miss() {
    let MappingError::Missing { missing, .. } = resolve(&["id", "aggregateId", "payload"]).unwrap_err() else {
        panic!()
    };
    assert_eq!(missing[0].nearest.as_deref(), Some("aggregateId"));
}

#[test]
fn a_table_without_columns_is_told_as_such() {
    assert!(resolve(&[]).unwrap_err().to_string().contains("has no column for aggregate_id"));
}

#[test]
fn the_message_id_is_the_id_where_it_is_null_or_absent() {
    let relation = relation(&WALPOST);
    assert_eq!(message(&relation, &[("id", b"7"), ("message_id", b"u")]).unwrap().message_id, "u");
    assert_eq!(message(&relation, &[("id", b"7")]).unwrap().message_id, "7");
    let poison = message(&relation, &[("payload", b"{}")]).unwrap_err();
    assert_eq!(poison.reason, PoisonReason::NoMessageId);
    assert!(poison.to_string().starts_with("columns \"message_id\" and \"id\" are NULL"), "{poison}");
    let without_id = self::relation(&["message_id", "aggregate_id", "payload"]);
    let poison = message(&without_id, &[]).unwrap_err();
    assert!(poison.to_string().starts_with("column \"message_id\" is NULL"), "{poison}");
}

#[test]
fn null_an_empty_text_and_json_null_stay_three_things() {
    let relation = relation(&["id", "aggregate_id", "payload"]);
    for (value, expected) in [
        (None, None),
        (Some("null"), Some("null")),
        (Some(""), Some("")),
        (Some("\"\""), Some("\"\"")),
        (Some("{}"), Some("{}")),
    ] {
        let mut values: Vec<(&str, &[u8])> = vec![("id", b"1")];
        values.extend(value.map(|value: &str| ("payload", value.as_bytes())));
        let payload = message(&relation, &values).unwrap().payload;
        assert_eq!(payload.as_deref(), expected.map(str::as_bytes));
    }
}

#[test]
fn an_empty_topic_counts_as_none() {
    let relation = relation(&WALPOST);
    assert_eq!(message(&relation, &[("id", b"1"), ("topic", b"")]).unwrap().topic, None);
    assert_eq!(message(&relation, &[("id", b"1"), ("topic", b"t")]).unwrap().topic.unwrap(), "t");
}

#[test]
fn a_bytea_becomes_the_stored_bytes() {
    let relation = relation(&["id", "aggregate_id", "payload"]);
    let relation = of_type(of_type(relation, "payload", BYTEA), "aggregate_id", BYTEA);
    let all: Vec<u8> = (0..=255).collect();
    let hex: String = all.iter().map(|byte| format!("{byte:02x}")).collect();
    let payload = format!("\\x{hex}");
    let values: [(&str, &[u8]); 3] = [("id", b"1"), ("aggregate_id", b"\\x00fF"), ("payload", payload.as_bytes())];
    let message = message(&relation, &values).unwrap();
    assert_eq!(message.payload.unwrap(), all);
    assert_eq!(message.aggregate_id.unwrap(), [0, 255].as_slice());
    let empty: [(&str, &[u8]); 2] = [("id", b"1"), ("payload", b"\\x")];
    assert_eq!(self::message(&relation, &empty).unwrap().payload.unwrap(), "");
}

#[test]
fn a_bytea_that_was_not_printed_as_hex_is_poison() {
    let relation = relation(&["id", "aggregate_id", "payload"]);
    let by_column = [("payload", PoisonReason::BadPayload), ("aggregate_id", PoisonReason::BadKey)];
    for (column, reason) in by_column {
        let relation = of_type(relation.clone(), column, BYTEA);
        for text in ["", "x", "\\", "\\X00", "\\x0", "\\x0g", "\\000abc", "\\x00 "] {
            let poison = message(&relation, &[("id", b"1"), (column, text.as_bytes())]).unwrap_err();
            assert_eq!(poison.reason, reason, "{text:?}");
            assert!(poison.sentence.contains(column) && poison.sentence.contains("bytea_output"), "{poison}");
        }
    }
}

#[test]
fn text_that_looks_like_hex_stays_text() {
    let relation = relation(&["id", "aggregate_id", "payload"]);
    assert_eq!(message(&relation, &[("id", b"1"), ("payload", b"\\x00")]).unwrap().payload.unwrap(), "\\x00");
}

#[test]
fn a_message_is_described_in_one_short_line() {
    let relation = relation(&WALPOST);
    let key = format!("line\nquote\"{}", "x".repeat(100));
    let values: [(&str, &[u8]); 3] = [("id", b"7"), ("aggregate_id", key.as_bytes()), ("topic", b"orders")];
    let text = message(&relation, &values).unwrap().describe().to_string();
    let shown = format!("line\\nquote\\\"{}", "x".repeat(64 - 11));
    assert_eq!(text, format!("message_id \"7\", aggregate_id \"{shown}…\" (111 bytes), topic \"orders\""));
    let text = message(&relation, &[("id", b"7"), ("aggregate_type", b"a")]).unwrap().describe().to_string();
    assert_eq!(text, "message_id \"7\", aggregate_id NULL, aggregate_type \"a\"");
}

#[test]
fn exactly_as_many_characters_as_are_shown_are_not_called_cut() {
    let ends = |count: usize| Shown("ä".repeat(count).as_bytes()).to_string();
    assert_eq!(ends(64), format!("\"{}\"", "ä".repeat(64)));
    assert_eq!(ends(65), format!("\"{}…\" (130 bytes)", "ä".repeat(64)));
    assert_eq!(Shown(b"it's\xff").to_string(), "\"it's\u{fffd}\"");
}

#[test]
fn a_row_is_written_whole() {
    let relation = relation(&["id", "aggregate_id", "payload", "extra"]);
    let values: [(&str, &[u8]); 3] = [("id", b"1"), ("aggregate_id", b"\x00\xff"), ("payload", b"{\"a\": 1}")];
    let row = row(&relation, &values);
    assert_eq!(
        row_json(&row),
        r#"{"id":"1","aggregate_id":{"escaped":"\\x00\\xff"},"payload":"{\"a\": 1}","extra":null}"#
    );
    let message = message(&relation, &values).unwrap();
    let json: serde_json::Value = serde_json::from_str(&message.to_json()).unwrap();
    assert_eq!(json["message_id"], "1");
    assert_eq!(json["payload"], "{\"a\": 1}");
    assert!(json["topic"].is_null());
}

#[test]
fn a_large_value_is_cut_and_its_size_said() {
    let relation = relation(&["id", "aggregate_id", "payload"]);
    let written = |payload: &[u8]| -> serde_json::Value {
        let message = message(&relation, &[("id", b"1"), ("payload", payload)]).unwrap();
        serde_json::from_str::<serde_json::Value>(&message.to_json()).unwrap()["payload"].clone()
    };
    let limit = 64 * 1024;
    assert_eq!(written(&vec![b'x'; limit]), "x".repeat(limit));
    let cut = written(&vec![b'x'; limit + 1]);
    assert_eq!((cut["cut"].as_bool(), cut["size_bytes"].as_u64()), (Some(true), Some(limit as u64 + 1)));
    assert_eq!(cut["text"].as_str().unwrap().len(), limit);
    // A cut through a character leaves the character out.
    let cut = written("a€€".repeat(limit).as_bytes());
    assert!(cut["text"].as_str().unwrap().ends_with(['a', '€']));
    assert!(cut["text"].as_str().unwrap().len() > limit - 3);
    let cut = written(&vec![0xff; limit + 1]);
    assert!(cut["escaped"].as_str().unwrap().starts_with("\\xff\\xff"));
}

#[test]
fn every_reason_has_a_label_of_its_own() {
    let labels: std::collections::BTreeSet<&str> = PoisonReason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(labels.len(), PoisonReason::ALL.len());
    assert!(labels.iter().all(|label| label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')));
}

/// Any table out of names that matter and names that do not.
pub fn any_relation() -> impl Strategy<Value = Relation> {
    let names = [&WALPOST[..], &LARAVEL_TOPIC, &DEBEZIUM, &["body", "ключ", ""]].concat();
    let column = (prop::sample::select(names), prop::sample::select(vec![TEXT, BYTEA]))
        .prop_map(|(name, type_oid)| Column { name: name.to_owned(), type_oid, key: false });
    vec(column, 0..12).prop_map(|columns| Relation {
        oid: 1,
        schema: "public".to_owned(),
        name: "outbox".to_owned(),
        columns,
    })
}

/// Any row of a table, with values that are almost right.
pub fn any_row(relation: Relation) -> impl Strategy<Value = Row> {
    let value = prop_oneof![
        Just(None),
        vec(any::<u8>(), 0..20).prop_map(Some),
        "\\\\x([0-9a-f]{2}){0,5}".prop_map(|hex| Some(hex.into_bytes())),
        r#"\{("[a-z\\u0-9]{0,6}": ?("[a-z\\"ud0-9]{0,8}"|null|-?[0-9.e]{1,5}|\[\]|\{"a":1\}),?){0,3}\}"#
            .prop_map(|json| Some(json.into_bytes())),
        "[a-z._-]{1,10}".prop_map(|name| Some(name.into_bytes())),
    ];
    let count = relation.columns.len();
    vec(value, count).prop_map(move |texts| {
        let mut frame = Vec::new();
        let values = texts.into_iter().map(|text| match text {
            None => Value::Null,
            Some(text) => {
                let start = frame.len();
                frame.extend_from_slice(&text);
                Value::Text(start..frame.len())
            }
        });
        let values = values.collect();
        Row { relation: Arc::new(relation.clone()), frame: Bytes::from(frame), values }
    })
}

proptest! {
    #[test]
    fn any_row_of_any_table_is_mapped_or_refused(row in any_relation().prop_flat_map(any_row)) {
        for preset in [None, Some(Preset::Walpost), Some(Preset::LaravelTopic), Some(Preset::Debezium)] {
            match Mapping::resolve(&row.relation, &Columns::default(), preset) {
                Ok(mapping) => match mapping.message(&row) {
                    Ok(message) => {
                        let _ = (message.describe().to_string(), message.to_json());
                    }
                    Err(poison) => prop_assert!(!poison.sentence.is_empty()),
                },
                Err(error) => prop_assert!(error.to_string().contains("WALPOST_COLUMNS_")),
            }
        }
        let json = serde_json::from_str::<serde_json::Value>(&row_json(&row));
        prop_assert!(json.is_ok());
    }

    #[test]
    fn any_bytes_can_be_shown(bytes in vec(any::<u8>(), 0..400)) {
        let shown = Shown(&bytes).to_string();
        prop_assert!(!shown.chars().any(char::is_control));
    }
}
