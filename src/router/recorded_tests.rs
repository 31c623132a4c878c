//! Rows that real servers sent (`tests/fixtures/pgoutput`), all the way to their records.

use super::tests::{TOKEN, config};
use super::*;
use crate::source::SourceEvent;
use crate::source::decoder::{Decoder, recorded_tests as recorded};

/// The records of a recorded scenario, in a line each.
fn recorded_records(server: &str, scenario: &str, config: &Config) -> Vec<String> {
    let mut decoder = Decoder::new();
    let mut router = Router::new(config).unwrap();
    let mut lines = Vec::new();
    for bytes in &recorded::scenarios(server)[scenario] {
        if let Some(SourceEvent::Row(row)) = decoder.decode(Bytes::from(bytes.clone())).unwrap() {
            let mapping = Mapping::resolve(&row.relation, &config.columns, config.preset).unwrap();
            router.bind(&row.relation, &mapping).unwrap();
            let Ok(Routed::Publish(record)) = router.route(&mapping.message(&row).unwrap(), &row, TOKEN) else {
                panic!("{row:?}")
            };
            let shown = |bytes: &Option<Bytes>| {
                bytes.as_ref().map_or("null".to_owned(), |bytes| match std::str::from_utf8(bytes) {
                    Ok(text) => text.to_owned(),
                    Err(_) => bytes.escape_ascii().to_string(),
                })
            };
            let mut line = format!("{} {} {}", record.topic, shown(&record.key), shown(&record.value));
            for header in record.headers.iter().filter(|header| &*header.name != "token") {
                line += &format!(" | {}={}", header.name, shown(&header.value));
            }
            lines.push(line);
        }
    }
    lines
}

#[test]
fn the_known_tables_work_as_they_are_on_every_server() {
    for (_, server) in recorded::SERVERS {
        let records = |scenario| recorded_records(server, scenario, &config());
        assert_eq!(
            records("walpost"),
            [
                "outbox.event.order 7 {\"b\": 1.10, \"total\": 9007199254740993} | \
                 id=018f0000-0000-7000-8000-000000000001 | eventType=OrderPlaced | n=1.10 | deep={\"a\": [1, 2]} | \
                 none=null | traceparent=00-ab-cd-01",
                "payments 7 [] | id=018f0000-0000-7000-8000-000000000002 | eventType=OrderPaid",
            ]
        );
        assert_eq!(
            records("laravel"),
            ["outbox.event.invoice ä-1 {\"a\": \"€\", \"b\": 1} | id=018f0000-0000-7000-8000-000000000003 | \
              eventType=Sent"]
        );
        assert_eq!(
            records("laravel_topic"),
            ["mails 12 {\"b\":1,  \"a\":1e400, \"a\":\"\\ud800\"} | id=018f0000-0000-7000-8000-000000000004"]
        );
        assert_eq!(
            records("debezium"),
            ["outbox.event.cart 3 {} | id=018f0000-0000-7000-8000-000000000005 | eventType=ItemAdded"]
        );
        assert_eq!(
            records("partitions"),
            ["outbox.event.order a first | id=1", "outbox.event.order b second | id=100"]
        );
        assert_eq!(
            records("partitions_via_root"),
            ["outbox.event.order a first | id=2", "outbox.event.order b second | id=101"]
        );
        assert_eq!(
            records("json"),
            ["outbox.event.order 1 line\nline\ttab \"quoted\" \\ \u{1} | id=2 | b=1 | a=é | a=null",]
        );
        // A domain over bytea.
        assert_eq!(records("types"), ["outbox.event.happy a \\x89PNG | id=1"]);
        let mut config = config();
        config.on_null_key = OnNullKey::Allow;
        assert_eq!(
            recorded_records(server, "bytea", &config),
            ["outbox.event.blob \\x00\\xff \\x00\\x01\\xfe\\\\ | id=1 | a=1", "outbox.event.blob   | id=2"]
        );
    }
}

#[test]
fn a_rename_of_a_column_in_the_stream_is_survived_with_both_names() {
    let mut config = config();
    config.route.topic = "events".to_owned();
    config.columns.payload = vec!["payload".to_owned(), "body".to_owned()];
    for (_, server) in recorded::SERVERS {
        assert_eq!(
            recorded_records(server, "changes_of_the_table", &config),
            [
                "events a {\"a\":1} | id=1",
                "events a {\"a\":2} | id=2",
                "events a {\"a\":3} | id=3",
                "events a {\"a\":4} | id=4",
                "events a {\"a\": 5} | id=5",
                "events a {\"a\": 6} | id=6",
            ]
        );
    }
}
