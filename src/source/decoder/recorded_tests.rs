//! What real servers sent: `tests/fixtures/pgoutput/pgNN.txt`, recorded with `record.sql` there. All of them must come
//! out as `expected.txt`, save for the empty transactions of 14. With `WALPOST_BLESS_FIXTURES` set, `expected.txt` is
//! written anew from what 17 sent; read the difference before you commit it.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::*;
use crate::source::Value;

pub const SERVERS: [(u32, &str); 5] = [
    (14, include_str!("../../../tests/fixtures/pgoutput/pg14.txt")),
    (15, include_str!("../../../tests/fixtures/pgoutput/pg15.txt")),
    (16, include_str!("../../../tests/fixtures/pgoutput/pg16.txt")),
    (17, include_str!("../../../tests/fixtures/pgoutput/pg17.txt")),
    (18, include_str!("../../../tests/fixtures/pgoutput/pg18.txt")),
];

const EXPECTED: &str = include_str!("../../../tests/fixtures/pgoutput/expected.txt");

/// Up to 14 a transaction that touched no published table is sent as Begin and Commit.
const WITH_EMPTY_TRANSACTIONS: u32 = 14;

/// The recorded messages of one server by scenario.
pub fn scenarios(recorded: &str) -> BTreeMap<&str, Vec<Vec<u8>>> {
    let mut scenarios: BTreeMap<&str, Vec<Vec<u8>>> = BTreeMap::new();
    let mut current = "";
    for line in recorded.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("# ") {
            Some(name) => current = name,
            None => {
                let bytes = (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap());
                scenarios.entry(current).or_default().push(bytes.collect());
            }
        }
        scenarios.entry(current).or_default();
    }
    scenarios
}

/// What a scenario decodes to, without what differs from run to run (positions, OIDs, times).
fn told(messages: &[Vec<u8>]) -> String {
    let mut decoder = Decoder::new();
    let mut text = String::new();
    for bytes in messages {
        let event = decoder.decode(Bytes::from(bytes.clone())).unwrap();
        match event {
            Some(SourceEvent::Begin { .. }) => text.push_str("begin\n"),
            Some(SourceEvent::Commit { commit_lsn, end_lsn }) => {
                assert!(end_lsn > commit_lsn);
                text.push_str("commit\n");
            }
            Some(SourceEvent::Ignored(ignored)) => writeln!(text, "ignored {ignored:?}").unwrap(),
            Some(SourceEvent::Keepalive { .. }) => unreachable!("no pgoutput message"),
            Some(SourceEvent::Row(row)) => {
                write!(text, "row {}", row.relation.name).unwrap();
                for (column, value) in row.relation.columns.iter().zip(&row.values) {
                    match value {
                        Value::Null => write!(text, " {}", column.name).unwrap(),
                        Value::Text(range) => {
                            let value = String::from_utf8(row.frame[range.clone()].to_vec()).unwrap();
                            match value.char_indices().nth(80) {
                                Some((cut, _)) => {
                                    let (shown, bytes) = (&value[..cut], value.len());
                                    write!(text, " {}={shown:?}... {bytes} bytes", column.name).unwrap();
                                }
                                None => write!(text, " {}={value:?}", column.name).unwrap(),
                            }
                        }
                    }
                }
                text.push('\n');
            }
            None => match pgoutput::parse(&Bytes::from(bytes.clone())).unwrap() {
                Message::Relation(relation) => {
                    write!(text, "relation {}.{}", relation.schema, relation.name).unwrap();
                    for column in relation.columns {
                        // From 16384 on, types are numbered as they are made.
                        let type_oid = if column.type_oid < 16384 { column.type_oid } else { 0 };
                        write!(text, " {}{}:{type_oid}", if column.key { "*" } else { "" }, column.name).unwrap();
                    }
                    text.push('\n');
                }
                Message::Type { schema, name, .. } => writeln!(text, "type {schema}.{name}").unwrap(),
                Message::Origin { commit_lsn, name } => writeln!(text, "origin {name} {commit_lsn}").unwrap(),
                other => panic!("{other:?} told nothing"),
            },
        }
    }
    text
}

#[test]
fn what_the_servers_14_to_18_sent_is_read_alike() {
    for (major, recorded) in SERVERS {
        let mut all = String::new();
        for (name, messages) in scenarios(recorded) {
            let mut told = told(&messages);
            if major <= WITH_EMPTY_TRANSACTIONS {
                told = told.replace("begin\ncommit\n", "");
            }
            write!(all, "# {name}\n{told}").unwrap();
        }
        if std::env::var_os("WALPOST_BLESS_FIXTURES").is_some() {
            if major == 17 {
                std::fs::write("tests/fixtures/pgoutput/expected.txt", &all).unwrap();
            }
            continue;
        }
        assert_eq!(all, EXPECTED, "PostgreSQL {major}");
    }
}

#[test]
fn recorded_messages_cut_short_anywhere_are_errors() {
    for (_, recorded) in SERVERS {
        for bytes in scenarios(recorded).into_values().flatten() {
            let whole = Bytes::from(bytes);
            for length in 0..whole.len() {
                assert!(pgoutput::parse(&whole.slice(..length)).is_err());
            }
        }
    }
}
