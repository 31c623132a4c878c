//! What was written, what has arrived, and whether that is what walpost promises. Pure: it is told everything, and knows
//! no clock, no Postgres and no Kafka.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// An outbox row that the writer has written.
#[derive(Clone, Debug)]
pub struct Written {
    /// `message_id`.
    pub id: String,
    /// `aggregate_id`: the record's key.
    pub key: String,
    pub event: &'static str,
    /// When its COMMIT, or its ROLLBACK, was sent.
    pub at: Instant,
}

/// What an arriving message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It was committed, so long ago.
    New { wait: Duration },
    /// It was here before.
    Again,
    /// It should not be here.
    Wrong(Wrong),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A later one of its key was here first.
    OutOfOrder,
    RolledBack,
    /// Its `id` is none that was written, or it has none.
    Unknown,
    /// Its key is not that of the row.
    Key,
}

/// Among which messages a latency counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    Calm,
    /// A relay that was killed held it up.
    HeldUp,
    /// Not at all: the first one waits for its topic to be made.
    First,
}

/// The books.
#[derive(Default)]
pub struct Ledger {
    /// In commit order: there is one writer.
    committed: Vec<Written>,
    /// Of `committed`, by id.
    places: HashMap<String, usize>,
    rolled_back: HashSet<String>,
    arrived: HashSet<usize>,
    /// Of each key: the place of the latest that has arrived.
    newest: HashMap<String, usize>,
    repeated: usize,
    wrong: Vec<Wrong>,
    calm: Vec<Duration>,
    held_up: Vec<Duration>,
}

/// How it went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub committed: usize,
    pub arrived: usize,
    pub lost: usize,
    pub out_of_order: usize,
    pub rolled_back: usize,
    pub rolled_back_arrived: usize,
    pub unknown: usize,
    pub wrong_key: usize,
    /// First arrivals only are counted above. A repeat breaks no promise: after a kill some may come.
    pub repeated: usize,
    /// Of the messages that were not held up by a kill.
    pub latency: Option<Latency>,
    /// How many were held up, and for how long at most.
    pub held_up: usize,
    pub held_up_max: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    pub messages: usize,
    pub median: Duration,
    pub p99: Duration,
}

impl Ledger {
    /// A row whose COMMIT is about to be sent. Must be told before the row can arrive.
    pub fn committed(&mut self, row: Written) {
        self.places.insert(row.id.clone(), self.committed.len());
        self.committed.push(row);
    }

    /// A row whose ROLLBACK is about to be sent.
    pub fn rolled_back(&mut self, row: Written) {
        self.rolled_back.insert(row.id);
    }

    /// A message has arrived. `pace` is asked for the pace of one that was committed at that time.
    pub fn arrived(
        &mut self,
        id: Option<&str>,
        key: Option<&[u8]>,
        at: Instant,
        pace: impl FnOnce(Instant) -> Pace,
    ) -> Seen {
        let seen = self.judge(id, key, at);
        match seen {
            Seen::Again => self.repeated += 1,
            Seen::Wrong(wrong) => self.wrong.push(wrong),
            Seen::New { wait } => match at.checked_sub(wait).map(pace) {
                Some(Pace::Calm) => self.calm.push(wait),
                Some(Pace::HeldUp) => self.held_up.push(wait),
                Some(Pace::First) | None => {}
            },
        }
        seen
    }

    fn judge(&mut self, id: Option<&str>, key: Option<&[u8]>, at: Instant) -> Seen {
        let Some(id) = id else {
            return Seen::Wrong(Wrong::Unknown);
        };
        if self.rolled_back.contains(id) {
            return Seen::Wrong(Wrong::RolledBack);
        }
        let Some((place, row)) = self.places.get(id).and_then(|place| Some((*place, self.committed.get(*place)?)))
        else {
            return Seen::Wrong(Wrong::Unknown);
        };
        if !self.arrived.insert(place) {
            return Seen::Again;
        }
        if key != Some(row.key.as_bytes()) {
            return Seen::Wrong(Wrong::Key);
        }
        match self.newest.insert(row.key.clone(), place) {
            Some(newest) if newest > place => {
                self.newest.insert(row.key.clone(), newest);
                Seen::Wrong(Wrong::OutOfOrder)
            }
            _ => Seen::New { wait: at.saturating_duration_since(row.at) },
        }
    }

    /// How many were committed.
    pub fn written(&self) -> usize {
        self.committed.len()
    }

    /// How many were committed and have not arrived.
    pub fn missing(&self) -> usize {
        self.committed.len() - self.arrived.len()
    }

    pub fn verdict(&self) -> Verdict {
        let count = |wrong| self.wrong.iter().filter(|seen| **seen == wrong).count();
        let mut calm = self.calm.clone();
        calm.sort_unstable();
        let latency = Option::zip(percentile(&calm, 50), percentile(&calm, 99));
        Verdict {
            committed: self.committed.len(),
            arrived: self.arrived.len(),
            lost: self.missing(),
            out_of_order: count(Wrong::OutOfOrder),
            rolled_back: self.rolled_back.len(),
            rolled_back_arrived: count(Wrong::RolledBack),
            unknown: count(Wrong::Unknown),
            wrong_key: count(Wrong::Key),
            repeated: self.repeated,
            latency: latency.map(|(median, p99)| Latency { messages: calm.len(), median, p99 }),
            held_up: self.held_up.len(),
            held_up_max: self.held_up.iter().max().copied().unwrap_or_default(),
        }
    }
}

impl Verdict {
    /// What is not as promised; empty when all is.
    pub fn differences(&self) -> Vec<String> {
        let mut differences = Vec::new();
        if self.committed == 0 {
            differences.push("nothing was committed, so nothing was shown".to_owned());
        }
        let counts = [
            (self.lost, "committed and did not arrive"),
            (self.out_of_order, "arrived after a later one of their key"),
            (self.rolled_back_arrived, "rolled back and arrived"),
            (self.unknown, "arrived and were never written"),
            (self.wrong_key, "arrived with another key than their row's"),
        ];
        differences.extend(
            counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("messages that {what}: {count}")),
        );
        differences
    }
}

/// The nearest rank of sorted values.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Books {
        ledger: Ledger,
        start: Instant,
    }

    impl Books {
        fn of(rows: &[(&str, &str)]) -> Books {
            let mut books = Books { ledger: Ledger::default(), start: Instant::now() };
            for (id, key) in rows {
                books.ledger.committed(row(id, key, books.start));
            }
            books
        }

        fn arrives(&mut self, id: &str, key: &str, after_ms: u64) -> Seen {
            let at = self.start + Duration::from_millis(after_ms);
            self.ledger.arrived(Some(id), Some(key.as_bytes()), at, |_| Pace::Calm)
        }
    }

    fn row(id: &str, key: &str, at: Instant) -> Written {
        Written { id: id.into(), key: key.into(), event: "order_placed", at }
    }

    #[test]
    fn all_that_was_committed_arrived_in_order_and_nothing_else_did() {
        let mut books = Books::of(&[("1", "a"), ("2", "b"), ("3", "a")]);
        books.ledger.rolled_back(row("4", "a", books.start));
        // Keys may pass each other.
        for (id, key) in [("2", "b"), ("1", "a"), ("3", "a")] {
            assert_eq!(books.arrives(id, key, 5), Seen::New { wait: Duration::from_millis(5) });
        }
        let verdict = books.ledger.verdict();
        assert_eq!((verdict.committed, verdict.arrived, verdict.rolled_back), (3, 3, 1));
        assert_eq!(verdict.differences(), Vec::<String>::new());
    }

    #[test]
    fn what_was_lost_swapped_invented_or_sent_under_another_key_is_a_difference() {
        let mut books = Books::of(&[("1", "a"), ("2", "a"), ("3", "a"), ("4", "b")]);
        books.ledger.rolled_back(row("5", "a", books.start));
        books.arrives("2", "a", 1);
        assert_eq!(books.arrives("1", "a", 2), Seen::Wrong(Wrong::OutOfOrder));
        assert_eq!(books.arrives("4", "c", 2), Seen::Wrong(Wrong::Key));
        assert_eq!(books.arrives("5", "a", 3), Seen::Wrong(Wrong::RolledBack));
        assert_eq!(books.arrives("6", "a", 3), Seen::Wrong(Wrong::Unknown));
        assert_eq!(books.ledger.arrived(None, None, books.start, |_| Pace::Calm), Seen::Wrong(Wrong::Unknown));
        let verdict = books.ledger.verdict();
        assert_eq!((verdict.lost, verdict.out_of_order, verdict.rolled_back_arrived), (1, 1, 1));
        assert_eq!((verdict.unknown, verdict.wrong_key), (2, 1));
        assert_eq!(verdict.differences().len(), 5);
    }

    #[test]
    fn a_repeat_is_counted_and_breaks_no_promise() {
        let mut books = Books::of(&[("1", "a"), ("2", "a")]);
        books.arrives("1", "a", 1);
        books.arrives("2", "a", 1);
        assert_eq!(books.arrives("1", "a", 9), Seen::Again);
        assert_eq!(books.arrives("2", "a", 9), Seen::Again);
        let verdict = books.ledger.verdict();
        assert_eq!((verdict.arrived, verdict.repeated), (2, 2));
        assert!(verdict.differences().is_empty());
    }

    #[test]
    fn an_order_once_broken_stays_broken_for_the_ones_in_between() {
        let mut books = Books::of(&[("1", "a"), ("2", "a"), ("3", "a")]);
        books.arrives("3", "a", 1);
        assert_eq!(books.arrives("1", "a", 2), Seen::Wrong(Wrong::OutOfOrder));
        assert_eq!(books.arrives("2", "a", 2), Seen::Wrong(Wrong::OutOfOrder));
    }

    #[test]
    fn what_a_kill_held_up_counts_apart() {
        let mut books = Books::of(&[("1", "a"), ("2", "a")]);
        books.arrives("1", "a", 4);
        let late = books.start + Duration::from_secs(6);
        books.ledger.arrived(Some("2"), Some(b"a"), late, |_| Pace::HeldUp);
        let verdict = books.ledger.verdict();
        assert_eq!(verdict.latency.map(|latency| (latency.messages, latency.median.as_millis())), Some((1, 4)));
        assert_eq!((verdict.held_up, verdict.held_up_max), (1, Duration::from_secs(6)));
    }

    #[test]
    fn a_run_that_committed_nothing_shows_nothing() {
        assert_eq!(Ledger::default().verdict().differences().len(), 1);
        assert_eq!(Ledger::default().verdict().latency, None);
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let values: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 50), Some(Duration::from_millis(50)));
        assert_eq!(percentile(&values, 99), Some(Duration::from_millis(99)));
        assert_eq!(percentile(values.get(..1).unwrap(), 99), Some(Duration::from_millis(1)));
        assert_eq!(percentile(&[], 99), None);
    }
}
