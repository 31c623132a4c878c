//! What was committed against what is in Kafka, read by the kit alone; and, where that does not agree, the history of the
//! keys concerned, for whoever has to find out why.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::kit::{Arrival, Expected, Kafka, Report, Seen, Verifier};

/// Repeats that arrive within this of each other are one burst: what a restarted relay sends again.
const BURST_MILLIS: i64 = 1_000;

/// Keys whose whole history is written down.
const KEYS_MAX: usize = 12;

pub struct Audit {
    pub report: Report,
    /// In order of time: when each began, in milliseconds since 1970, and how many rows came again in it.
    pub bursts: Vec<(i64, usize)>,
}

pub fn audit(kafka: &Kafka, topics: &[&str], expected: &[Expected]) -> Audit {
    let mut verifier = Verifier::new(expected, |topic: &str| kafka.partition_count(topic));
    let mut repeats = Vec::new();
    kafka.scan(topics, |seen| {
        if verifier.see(&seen) == Arrival::Repeated {
            repeats.push(seen.timestamp);
        }
    });
    repeats.sort_unstable();
    let bursts = repeats.chunk_by(|before, after| after - before <= BURST_MILLIS);
    Audit { report: verifier.finish(), bursts: bursts.map(|burst| (burst[0], burst.len())).collect() }
}

impl Audit {
    /// Lost, swapped, invented, wrong: what no fault excuses.
    pub fn faults(&self) -> [(&'static str, &[String]); 4] {
        let Report { lost, swapped, invented, wrong, .. } = &self.report;
        [("lost", lost), ("swapped", swapped), ("invented", invented), ("wrong", wrong)]
    }

    pub fn is_good(&self) -> bool {
        self.faults().iter().all(|(_, list)| list.is_empty())
    }
}

/// Writes every fault, and for some of their keys all that was committed and all that arrived.
pub fn write_evidence(path: &Path, audit: &Audit, kafka: &Kafka, topics: &[&str], expected: &[Expected]) {
    let by_id: HashMap<&str, &Expected> = expected.iter().map(|row| (row.id.as_str(), row)).collect();
    let (mut text, mut keys) = (String::new(), BTreeSet::new());
    for (name, list) in audit.faults() {
        let _ = writeln!(text, "{name}: {}", list.len());
        for entry in list {
            let _ = writeln!(text, "  {entry}");
            let id = entry.split(' ').next().unwrap_or_default();
            if let Some(row) = by_id.get(id) {
                keys.insert((row.topic.clone(), row.key.clone()));
            }
        }
    }
    let chosen: BTreeSet<_> = keys.into_iter().take(KEYS_MAX).collect();
    let mut arrived: BTreeMap<(String, String), Vec<Seen>> = BTreeMap::new();
    kafka.scan(topics, |seen| {
        let key = String::from_utf8_lossy(seen.key.as_deref().unwrap_or_default()).into_owned();
        let of = (seen.topic.clone(), key);
        if chosen.contains(&of) {
            arrived.entry(of).or_default().push(seen);
        }
    });
    for of in chosen {
        let _ = writeln!(text, "\n{} of {}: committed, in order of commit", of.1, of.0);
        let mut rows: Vec<_> = expected.iter().filter(|row| (&row.topic, &row.key) == (&of.0, &of.1)).collect();
        rows.sort_by_key(|row| row.sequence);
        let arrivals = arrived.remove(&of).unwrap_or_default();
        let there: BTreeSet<_> = arrivals.iter().filter_map(|seen| seen.header("id")).collect();
        for row in rows {
            let lost = if there.contains(&row.id) { "" } else { ", LOST" };
            let _ = writeln!(text, "  {} {} of transaction {}{lost}", row.sequence, row.id, row.transaction);
        }
        let _ = writeln!(text, "arrived, by offset");
        for seen in arrivals {
            let id = seen.header("id").unwrap_or_default();
            let sequence = by_id.get(id.as_str()).map_or(0, |row| row.sequence);
            let token = seen.header("token").unwrap_or_default();
            let (partition, offset, at) = (seen.partition, seen.offset, seen.timestamp);
            let _ = writeln!(text, "  {sequence} {id} at {partition}@{offset}, {at} ms, token {token}");
        }
    }
    fs::write(path, text).expect("a file for the evidence");
}
