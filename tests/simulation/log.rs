//! Postgres' write-ahead log as far as a walsender shows it: transactions with rows of ours, without, and what others write.
//! And what may be said of it: which row stands where, and which of a key comes before which.

use std::ops::Range;

use walpost::lsn::Lsn;

use crate::dice::Dice;
use crate::plan::Plan;

/// The number of a row over all histories of the log; its `message_id` is made of it.
pub type RowId = usize;

/// What is special about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// A tombstone: its payload is NULL, and the settings say that it is not published.
    Unwanted,
    /// No record can be made of it: its key is NULL.
    NoKey,
    /// Larger than any topic takes.
    TooLarge,
    /// The broker refuses it: as in a compacted topic a record without a key.
    Invalid,
}

#[derive(Debug)]
pub struct Row {
    pub commit_lsn: Lsn,
    pub ordinal: u32,
    pub topic: usize,
    pub key: u64,
    pub kind: Kind,
    /// Of the payload.
    pub bytes: usize,
    /// The server has lost it, in this epoch.
    pub lost_in: Option<u64>,
}

impl Row {
    pub fn exists(&self) -> bool {
        self.lost_in.is_none()
    }
}

#[derive(Debug)]
pub struct Transaction {
    pub commit_lsn: Lsn,
    pub end_lsn: Lsn,
    /// Without any, it is one that older versions show: Begin and Commit.
    pub rows: Range<RowId>,
}

/// The rows of one topic and key, in commit order.
#[derive(Debug, Default)]
pub struct Line {
    pub rows: Vec<RowId>,
    /// All before it have arrived, or never will.
    pub next: usize,
}

/// See the module.
pub struct Log {
    pub rows: Vec<Row>,
    /// Those that are sent, in commit order.
    pub transactions: Vec<Transaction>,
    /// By topic, then key.
    pub lines: Vec<Vec<Line>>,
    /// The end of what is on disk.
    pub end: Lsn,
}

/// Where the log begins, and the slot with it.
pub const BEGINNING: Lsn = Lsn(0x100_0000);

impl Log {
    pub fn new(plan: &Plan) -> Log {
        let lines = plan.topics.iter().map(|_| (0..plan.keys).map(|_| Line::default()).collect()).collect();
        Log { rows: Vec::new(), transactions: Vec::new(), lines, end: BEGINNING }
    }

    /// Others write, or we ourselves in `walpost.checkpoint`.
    pub fn grow(&mut self, bytes: u64) {
        self.end.0 += bytes;
    }

    /// A transaction commits that writes to the outbox.
    pub fn commit(&mut self, plan: &Plan, dice: &mut Dice) {
        let count = dice.within(1..=plan.rows_most);
        let first = self.rows.len();
        let commit_lsn = Lsn(self.end.0 + 100 * count);
        for ordinal in 0..count as u32 {
            let kind = match dice.below(3) {
                _ if dice.permille(plan.odds.unwanted) => Kind::Unwanted,
                0 if dice.permille(plan.odds.poison) => Kind::NoKey,
                1 if dice.permille(plan.odds.poison) => Kind::TooLarge,
                2 if dice.permille(plan.odds.poison) => Kind::Invalid,
                _ => Kind::Plain,
            };
            let topic = dice.below(plan.topics.len() as u64) as usize;
            let key = dice.below(plan.keys);
            let bytes = match kind {
                Kind::TooLarge => plan.limit_bytes + dice.within(0..=500) as usize,
                _ => dice.within(1..=150) as usize,
            };
            let row = self.rows.len();
            self.rows.push(Row { commit_lsn, ordinal, topic, key, kind, bytes, lost_in: None });
            self.lines[topic][key as usize].rows.push(row);
        }
        self.close(commit_lsn, first);
    }

    /// A transaction commits that did not, and that the server shows all the same.
    pub fn commit_empty(&mut self) {
        self.close(Lsn(self.end.0 + 100), self.rows.len());
    }

    fn close(&mut self, commit_lsn: Lsn, first: RowId) {
        let end_lsn = Lsn(commit_lsn.0 + 48);
        self.transactions.push(Transaction { commit_lsn, end_lsn, rows: first..self.rows.len() });
        self.end = end_lsn;
    }

    /// The server has lost what was written from `end` on.
    pub fn lose(&mut self, end: Lsn, epoch: u64) {
        let left = self.transactions.partition_point(|transaction| transaction.end_lsn <= end);
        for transaction in self.transactions.drain(left..) {
            for row in transaction.rows {
                self.rows[row].lost_in = Some(epoch);
            }
        }
        let rows = &self.rows;
        for line in self.lines.iter_mut().flatten() {
            line.rows.retain(|row| rows[*row].exists());
            line.next = line.next.min(line.rows.len());
        }
        self.end = end;
    }

    /// The first transaction that is sent to one who asks for what comes from `lsn` on.
    pub fn from(&self, lsn: Lsn) -> usize {
        self.transactions.partition_point(|transaction| transaction.commit_lsn < lsn)
    }
}

/// The name of a topic, as the template `outbox.event.{aggregate_type}` makes it.
pub fn topic_name(topic: usize) -> String {
    format!("outbox.event.t{topic}")
}
