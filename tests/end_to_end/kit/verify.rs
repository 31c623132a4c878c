//! What was committed against what arrived: lost, repeated, swapped, invented, or simply wrong.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::murmur2;
use super::read::Seen;

/// A committed row, as its record must look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub id: String,
    pub topic: String,
    pub key: String,
    pub value: String,
    /// None: there must be no such header.
    pub event_type: Option<String>,
    /// Headers beyond `id`, `eventType`, `token` and `origin`, in any order.
    pub headers: Vec<(String, Option<String>)>,
    /// Grows with the commit order within a key.
    pub sequence: u64,
    /// The transaction that wrote it: rows of one share the token's commit LSN.
    pub transaction: u64,
}

#[derive(Default)]
pub struct Report {
    pub expected: usize,
    pub seen: usize,
    pub lost: Vec<String>,
    /// One entry for each arrival of a row beyond its first.
    pub repeated: Vec<String>,
    /// Of all arrivals, those that were read from the table: they say so, and need not be in the order of the commits.
    pub from_table: usize,
    /// First arrivals out of the log that came after a later row of their key out of the log.
    pub swapped: Vec<String>,
    /// Arrivals that no committed row stands behind.
    pub invented: Vec<String>,
    /// Arrivals whose key, value, topic, partition or headers are not the row's.
    pub wrong: Vec<String>,
}

/// `seen` must be in offset order within each partition; `partitions` are the topic's.
pub fn verify(expected: &[Expected], seen: &[Seen], partitions: impl Fn(&str) -> i32) -> Report {
    let mut verifier = Verifier::new(expected, partitions);
    for record in seen {
        verifier.see(record);
    }
    verifier.finish()
}

/// What a record turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    First,
    Repeated,
    Invented,
}

/// [`verify`] for records that are not kept: shown one by one, in offset order within each partition.
pub struct Verifier<'a, P> {
    expected: &'a [Expected],
    by_id: HashMap<&'a str, &'a Expected>,
    partitions: P,
    partition_counts: HashMap<&'a str, i32>,
    arrived: HashSet<&'a str>,
    latest: HashMap<(&'a str, &'a str), u64>,
    positions: HashMap<u64, Vec<(u64, u32)>>,
    /// Of these transactions the log did not tell all rows first.
    partly: HashSet<u64>,
    /// As many streams count a transaction's rows, each its own from 0.
    shards: usize,
    report: Report,
}

impl<'a, P: Fn(&str) -> i32> Verifier<'a, P> {
    pub fn new(expected: &'a [Expected], partitions: P) -> Self {
        let by_id: HashMap<&str, &Expected> = expected.iter().map(|row| (row.id.as_str(), row)).collect();
        assert_eq!(by_id.len(), expected.len(), "the workload gave an id twice");
        Verifier {
            expected,
            by_id,
            partitions,
            partition_counts: HashMap::new(),
            arrived: HashSet::new(),
            latest: HashMap::new(),
            positions: HashMap::new(),
            partly: HashSet::new(),
            shards: 1,
            report: Report { expected: expected.len(), ..Report::default() },
        }
    }

    /// The rows were divided among so many streams.
    pub fn shards(self, shards: usize) -> Self {
        Verifier { shards, ..self }
    }

    pub fn see(&mut self, record: &Seen) -> Arrival {
        let report = &mut self.report;
        report.seen += 1;
        let id = record.header("id").unwrap_or_default();
        let Some(&row) = self.by_id.get(id.as_str()) else {
            report.invented.push(place(record));
            return Arrival::Invented;
        };
        let count = *self.partition_counts.entry(&row.topic).or_insert_with(|| (self.partitions)(&row.topic));
        let faults = faults(row, record, count);
        if !faults.is_empty() {
            report.wrong.push(format!("{}: {faults}", place(record)));
        }
        let from_table = record.header("origin").is_some();
        report.from_table += usize::from(from_table);
        if !self.arrived.insert(&row.id) {
            report.repeated.push(place(record));
            return Arrival::Repeated;
        }
        if from_table {
            self.partly.insert(row.transaction);
            return Arrival::First;
        }
        let latest = self.latest.entry((&row.topic, &row.key)).or_default();
        if row.sequence < *latest {
            report.swapped.push(format!("{} is {} of its key and came after {latest}", place(record), row.sequence));
        }
        *latest = row.sequence.max(*latest);
        if let Some(token) = record.header("token").as_deref().and_then(Token::parse) {
            self.positions.entry(row.transaction).or_default().push((token.commit_lsn, token.ordinal));
        }
        Arrival::First
    }

    pub fn finish(mut self) -> Report {
        let lost = self.expected.iter().filter(|row| !self.arrived.contains(row.id.as_str()));
        self.report.lost = lost.map(|row| row.id.clone()).collect();
        for (transaction, positions) in self.positions {
            if let Some(fault) = token_fault(positions, self.shards, self.partly.contains(&transaction)) {
                self.report.wrong.push(format!("tokens of transaction {transaction}: {fault}"));
            }
        }
        self.report
    }
}

/// The header `token`, read by the tests' own eyes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    pub epoch: u64,
    pub commit_lsn: u64,
    pub ordinal: u32,
}

impl Token {
    /// Ten decimal digits, sixteen and eight upper-case hexadecimal ones, with dashes between them.
    pub fn parse(text: &str) -> Option<Token> {
        let bytes = text.as_bytes();
        let wellformed = bytes.len() == 36
            && bytes.iter().enumerate().all(|(at, &byte)| match at {
                10 | 27 => byte == b'-',
                0..10 => byte.is_ascii_digit(),
                _ => byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte),
            });
        wellformed.then_some(())?;
        Some(Token {
            epoch: text[..10].parse().ok()?,
            commit_lsn: u64::from_str_radix(&text[11..27], 16).ok()?,
            ordinal: u32::from_str_radix(&text[28..], 16).ok()?,
        })
    }
}

/// The rows of one transaction share its commit LSN and count from 0, in each shard for itself; `partly`: some of them are not
/// here.
fn token_fault(mut positions: Vec<(u64, u32)>, shards: usize, partly: bool) -> Option<String> {
    positions.sort_unstable();
    let lsn = positions.first()?.0;
    if positions.iter().any(|position| position.0 != lsn) {
        return Some(format!("more than one commit LSN: {positions:X?}"));
    }
    // How many shards have a row of each number: never more than of the number before it.
    let mut of_number = vec![0; positions.len()];
    let within =
        positions.iter().all(|position| of_number.get_mut(position.1 as usize).map(|count| *count += 1).is_some());
    let dense =
        within && of_number.first().is_none_or(|&first| first <= shards) && of_number.is_sorted_by(|a, b| a >= b);
    (!dense && !partly)
        .then(|| format!("ordinals do not count from 0: {:?}", positions.iter().map(|p| p.1).collect::<Vec<_>>()))
}

fn faults(row: &Expected, record: &Seen, partitions: i32) -> String {
    let mut faults = Vec::new();
    let text = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    // The second client does not tell the topic.
    if !record.topic.is_empty() && record.topic != row.topic {
        faults.push(format!("topic {} instead of {}", record.topic, row.topic));
    }
    if record.key.as_deref() != Some(row.key.as_bytes()) {
        faults.push(format!("key {:?} instead of {:?}", text(&record.key), row.key));
    }
    if record.value.as_deref() != Some(row.value.as_bytes()) {
        faults.push(format!("value {:?} instead of {:?}", text(&record.value), row.value));
    }
    let partition = murmur2::partition(row.key.as_bytes(), partitions);
    if record.partition != partition {
        faults.push(format!("partition {} instead of {partition}", record.partition));
    }
    match (record.header("token"), record.header("origin").as_deref()) {
        (Some(token), None) if Token::parse(&token).is_some() => {}
        (None, Some("recover")) => {}
        marks => faults.push(format!("token and origin {marks:?}")),
    }
    let mut wanted: Vec<(String, Option<String>)> = row.headers.clone();
    wanted.push(("id".into(), Some(row.id.clone())));
    if let Some(event_type) = &row.event_type {
        wanted.push(("eventType".into(), Some(event_type.clone())));
    }
    wanted.sort();
    let others = record.headers.iter().filter(|(name, _)| name != "token" && name != "origin");
    let mut got: Vec<(String, Option<String>)> = others.map(|(name, value)| (name.clone(), text(value))).collect();
    got.sort();
    if got != wanted {
        faults.push(format!("headers {got:?} instead of {wanted:?}"));
    }
    faults.join("; ")
}

fn place(record: &Seen) -> String {
    let id = record.header("id").unwrap_or_else(|| "without id".into());
    format!("{id} at {}/{}@{}", record.topic, record.partition, record.offset)
}

impl Report {
    /// Everything arrived as it should, each row once.
    #[track_caller]
    pub fn assert_exactly_once(&self) {
        self.assert_at_least_once();
        assert!(self.repeated.is_empty(), "rows were repeated: {self}");
    }

    /// Everything arrived as it should; a row may have come more than once.
    #[track_caller]
    pub fn assert_at_least_once(&self) {
        let whole = [&self.lost, &self.swapped, &self.invented, &self.wrong].iter().all(|list| list.is_empty());
        assert!(whole, "not what was committed: {self}");
        assert!(self.expected > 0, "nothing was expected, so nothing was tested");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows committed, {} records seen", self.expected, self.seen)?;
        if self.from_table > 0 {
            write!(f, ", {} of them from the table", self.from_table)?;
        }
        let lists = [
            ("lost", &self.lost),
            ("repeated", &self.repeated),
            ("swapped", &self.swapped),
            ("invented", &self.invented),
            ("wrong", &self.wrong),
        ];
        for (name, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
            write!(f, "\n  {} {name}:", list.len())?;
            for entry in list.iter().take(5) {
                write!(f, "\n    {entry}")?;
            }
        }
        Ok(())
    }
}
