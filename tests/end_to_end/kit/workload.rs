//! Applications writing to an outbox: several at once, transactions of mixed size, some of them rolled back, some with
//! savepoints that are rolled back. What was committed is remembered here, not read from the table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::outbox::{Message, Table, parameters};
use super::run::unique;
use super::sql::{Sql, explain};
use super::verify::Expected;
use super::wait::{pace, seconds, wait_some};

/// A server that was stopped is back by then, or the test is at fault.
const BACK_WITHIN: Duration = seconds(90);

/// What is to be written; nothing is yet.
#[derive(Clone)]
pub struct Workload {
    url: String,
    table: Table,
    name: String,
    /// Makes the topics this workload's own.
    prefix: String,
    rows: u64,
    keys: u64,
    writers: u64,
    transactions_per_second: Option<u32>,
    filler_bytes: usize,
    largest_transaction: u64,
}

impl Workload {
    /// Two aggregate types, a hundred keys, four writers; into `outbox_messages`, which must exist.
    pub fn new(url: &str, table: Table) -> Workload {
        Workload {
            url: url.to_owned(),
            table,
            name: "outbox_messages".into(),
            prefix: format!("w{}", unique()),
            rows: 10_000,
            keys: 100,
            writers: 4,
            transactions_per_second: None,
            filler_bytes: 40,
            largest_transaction: 100,
        }
    }

    pub fn rows(mut self, rows: u64) -> Self {
        self.rows = rows;
        self
    }

    pub fn writers(mut self, writers: u64) -> Self {
        self.writers = writers;
        self
    }

    /// About this much more in each payload.
    pub fn filler_bytes(mut self, bytes: usize) -> Self {
        self.filler_bytes = bytes;
        self
    }

    pub fn largest_transaction(mut self, rows: u64) -> Self {
        self.largest_transaction = rows;
        self
    }

    /// Of all writers together; unset, they write as fast as they can.
    pub fn transactions_per_second(mut self, rate: u32) -> Self {
        self.transactions_per_second = Some(rate);
        self
    }

    pub fn aggregate_types(&self) -> [String; 2] {
        ["order", "payment"].map(|kind| format!("{}_{kind}", self.prefix))
    }

    /// The topics that the rows belong to, by the default template or the topic column.
    pub fn topics(&self) -> [String; 2] {
        self.aggregate_types().map(|aggregate_type| self.topic(&aggregate_type))
    }

    fn topic(&self, aggregate_type: &str) -> String {
        match self.table {
            Table::LaravelTopic => format!("events.{aggregate_type}"),
            _ => format!("outbox.event.{aggregate_type}"),
        }
    }

    /// Writes all rows and returns what was committed.
    pub fn run(&self) -> Vec<Expected> {
        self.start_bounded(Some(self.rows)).collect()
    }

    /// Writes until it is stopped.
    pub fn start(&self) -> Load {
        self.start_bounded(None)
    }

    fn start_bounded(&self, rows: Option<u64>) -> Load {
        // The first writers take what does not divide.
        let share = |number| rows.map(|rows| rows / self.writers + u64::from(number < rows % self.writers));
        let stop = Arc::new(AtomicBool::new(false));
        let committed = Arc::new(AtomicU64::new(0));
        let writers = (0..self.writers).map(|number| {
            let writer = Writer {
                workload: self.clone(),
                number,
                random: Random::new(u64::from(unique())),
                // Later than those of an earlier run over the same keys.
                sequence: u64::from(unique()) * 10_000_000,
                quota: share(number),
                stop: Arc::clone(&stop),
                committed: Arc::clone(&committed),
            };
            thread::Builder::new().name(format!("writer {number}")).spawn(move || writer.write()).expect("a thread")
        });
        Load { writers: writers.collect(), stop, committed }
    }
}

/// A workload that is being written.
pub struct Load {
    writers: Vec<JoinHandle<Vec<Expected>>>,
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
}

impl Load {
    /// Rows that were committed so far.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// None of its writers has failed, or come to its end.
    pub fn is_running(&self) -> bool {
        !self.writers.iter().any(JoinHandle::is_finished)
    }

    /// Ends it and returns what was committed.
    pub fn stop(mut self) -> Vec<Expected> {
        self.stop.store(true, Ordering::Relaxed);
        self.collect()
    }

    fn collect(&mut self) -> Vec<Expected> {
        self.writers.drain(..).flat_map(|writer| writer.join().expect("a writer that did not fail")).collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One connection; owns its keys, so that its own commit order is theirs.
struct Writer {
    workload: Workload,
    number: u64,
    random: Random,
    sequence: u64,
    quota: Option<u64>,
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
}

impl Writer {
    fn write(mut self) -> Vec<Expected> {
        let mut sql = wait_some(BACK_WITHIN, "Postgres to take a writer", || Sql::try_connect(&self.workload.url).ok());
        let mut all = Vec::new();
        let interval = self
            .workload
            .transactions_per_second
            .map(|rate| Duration::from_secs(1) * self.workload.writers as u32 / rate);
        let mut next = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let left = self.quota.map_or(u64::MAX, |quota| quota - all.len() as u64);
            if left == 0 {
                break;
            }
            if let Some(interval) = interval {
                next += interval;
                pace(next);
            }
            let size = self.transaction_size().min(left);
            let rows = self.rows(size);
            let written = self.transaction(&sql, &rows);
            let committed = written.unwrap_or_else(|error| {
                // The server went away, perhaps after the commit: what is in the table was committed. Any other
                // error is a mistake of the test.
                let code = error.code().map_or("08000", |code| code.code());
                assert!(code.starts_with("57P") || code.starts_with("08"), "{}", explain(&error));
                let (again, committed) = self.find_out(&error, &rows[0].0.id);
                sql = again;
                committed
            });
            if committed {
                self.committed.fetch_add(size, Ordering::Relaxed);
                all.extend(rows.into_iter().map(|(_, expected)| expected));
            }
        }
        all
    }

    /// Mostly small, sometimes large.
    fn transaction_size(&mut self) -> u64 {
        let largest = match self.random.below(10) {
            0..4 => 1,
            4..8 => 10,
            _ => self.workload.largest_transaction,
        };
        1 + self.random.below(largest.min(self.workload.largest_transaction))
    }

    /// Whether it was committed: one in eight is rolled back, one in four has a savepoint that is rolled back with rows
    /// that must never be seen, one in eight a savepoint that is kept.
    fn transaction(&mut self, sql: &Sql, rows: &[(Message, Expected)]) -> Result<bool, tokio_postgres::Error> {
        let fate = self.random.below(8);
        let messages: Vec<Message> = rows.iter().map(|(message, _)| message.clone()).collect();
        let (before, after) = messages.split_at(messages.len() / 2);
        if messages.len() == 1 && fate > 3 {
            self.insert(sql, &messages)?;
            return Ok(true);
        }
        sql.try_execute("begin")?;
        self.insert(sql, before)?;
        match fate {
            1 | 2 => {
                let ghosts: Vec<Message> = self.rows(3).into_iter().map(|(ghost, _)| ghost).collect();
                sql.try_execute("savepoint undone")?;
                self.insert(sql, &ghosts[..2])?;
                sql.try_execute("savepoint nested")?;
                self.insert(sql, &ghosts[2..])?;
                sql.try_execute("release savepoint nested; rollback to savepoint undone")?;
                self.insert(sql, after)?;
            }
            3 => {
                sql.try_execute("savepoint kept")?;
                self.insert(sql, after)?;
                sql.try_execute("release savepoint kept")?;
            }
            _ => self.insert(sql, after)?,
        }
        if fate == 0 {
            sql.try_execute("rollback")?;
            return Ok(false);
        }
        sql.try_execute("commit")?;
        Ok(true)
    }

    fn insert(&self, sql: &Sql, messages: &[Message]) -> Result<(), tokio_postgres::Error> {
        if !messages.is_empty() {
            let [a, b, c, d, e, f, g] = &parameters(messages);
            sql.try_execute_with(&self.workload.table.insert(&self.workload.name), &[a, b, c, d, e, f, g])?;
        }
        Ok(())
    }

    /// A new connection, and whether the row was committed; the server may go away again meanwhile.
    fn find_out(&self, error: &tokio_postgres::Error, id: &str) -> (Sql, bool) {
        let what = format!("Postgres to take the writers back after: {}", explain(error));
        let (column, name) = (self.workload.table.id_column(), &self.workload.name);
        let query = format!("select 1 from {name} where {column} = '{id}'");
        wait_some(BACK_WITHIN, &what, || {
            let sql = Sql::try_connect(&self.workload.url).ok()?;
            let committed = !sql.try_rows(&query).ok()?.is_empty();
            Some((sql, committed))
        })
    }

    /// Rows of one transaction, and how each must arrive.
    fn rows(&mut self, count: u64) -> Vec<(Message, Expected)> {
        let transaction = u64::from(unique());
        (0..count).map(|_| self.row(transaction)).collect()
    }

    fn row(&mut self, transaction: u64) -> (Message, Expected) {
        self.sequence += 1;
        let sequence = self.sequence;
        let table = self.workload.table;
        let keys_of_mine = (self.workload.keys / self.workload.writers).max(1);
        let key = key(self.random.below(keys_of_mine) * self.workload.writers + self.number);
        let [order, payment] = self.workload.aggregate_types();
        let aggregate_type = if self.random.below(3) == 0 { payment } else { order };
        let topic = self.workload.topic(&aggregate_type);
        let text = format!("zwei \"Wörter\" \\ 東京 {}", "x".repeat(self.workload.filler_bytes));
        let text = serde_json::to_string(&text).expect("a string");
        // What an application writes, and how jsonb prints it: members by length of their name, one space after each.
        let written = format!("{{\"text\":{text},   \"n\":{sequence}, \"tx\":{transaction}}}");
        let printed = format!("{{\"n\": {sequence}, \"tx\": {transaction}, \"text\": {text}}}");
        let with_headers = table.has_headers() && self.random.below(4) == 0;
        let trace = format!("00-{:016x}{:016x}-{:016x}-01", self.random.next(), self.random.next(), self.random.next());
        let message = Message {
            id: self.random.uuid(),
            aggregate_type,
            key,
            event_type: format!("Event{}", sequence % 7),
            topic: if table == Table::LaravelTopic { topic.clone() } else { String::new() },
            payload: written.clone(),
            headers: if with_headers {
                format!("{{\"traceparent\": \"{trace}\", \"attempt\": 3, \"tenant\": null}}")
            } else {
                "{}".into()
            },
        };
        let headers = [("traceparent", Some(trace)), ("attempt", Some("3".into())), ("tenant", None)];
        let expected = Expected {
            id: message.id.clone(),
            topic,
            key: message.key.clone(),
            value: if table.keeps_payload_text() { written } else { printed },
            event_type: table.has_event_type().then(|| message.event_type.clone()),
            headers: if with_headers {
                headers.map(|(name, value)| (name.to_owned(), value)).to_vec()
            } else {
                Vec::new()
            },
            sequence,
            transaction,
        };
        (message, expected)
    }
}

/// Most keys are plain, some are what people really have.
fn key(number: u64) -> String {
    match number {
        3 => format!("кошка-{number}"),
        5 => format!("it's a \"key\" with \\ and spaces {number}"),
        7 => format!("{number}{}", "k".repeat(240)),
        11 => format!("{{\"tenant\": 4, \"id\": {number}}}"),
        _ => format!("key-{number}"),
    }
}

/// SplitMix64: small, quick, and the same for the same seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Mixed once: neighbouring seeds must not be one stream, shifted.
        Random(Random(seed).next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A version 4 UUID.
    pub fn uuid(&mut self) -> String {
        let (high, low) = (self.next(), self.next());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 48) & 0x3fff,
            low & 0xffff_ffff_ffff
        )
    }
}

/// Text that does not compress, of about so many bytes.
pub fn noise(random: &mut Random, bytes: usize) -> String {
    (0..bytes / 16).map(|_| format!("{:016x}", random.next())).collect()
}
