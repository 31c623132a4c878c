//! What was delivered above the watermark when a session ended, for the next one.

use std::collections::{BTreeMap, BTreeSet};

use crate::lsn::Lsn;

/// Rows that an earlier session of this process delivered. Those above what was recorded come again on the same history
/// and need not be produced twice. As large as the window at most, for each session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Everything that committed before it.
    pub(super) watermark: Lsn,
    /// By commit LSN: all ordinals below the first number, and those of the set.
    pub(super) transactions: BTreeMap<Lsn, (u32, BTreeSet<u32>)>,
}

impl Remembered {
    pub fn contains(&self, commit_lsn: Lsn, ordinal: u32) -> bool {
        let in_part = |(settled, delivered): &(u32, BTreeSet<u32>)| ordinal < *settled || delivered.contains(&ordinal);
        commit_lsn < self.watermark || self.transactions.get(&commit_lsn).is_some_and(in_part)
    }

    /// Adds what `later`, a session that saw some of the same transactions again, has delivered. A transaction that
    /// `later` saw only in part was still skipped over by it up to there, so the two are joined.
    pub fn merge(&mut self, later: Remembered) {
        self.watermark = self.watermark.max(later.watermark);
        for (commit_lsn, (settled, delivered)) in later.transactions {
            let entry = self.transactions.entry(commit_lsn).or_default();
            entry.1.extend(delivered);
            // `settled` of the later session counts only from its first ticket on if rows before were skipped as
            // remembered; those are in our own entry, so the larger prefix holds.
            entry.0 = entry.0.max(settled);
        }
    }

    /// Forgets what lies below a confirmed position: it will not come again. A transaction whose commit record begins
    /// exactly there does.
    pub fn forget_below(&mut self, confirmed: Lsn) {
        self.transactions = self.transactions.split_off(&confirmed);
    }

    /// Forgets the latest until at most `most` are left, transactions and rows counted. Sessions that are cut again and
    /// again while one partition stands still would add a window each; what is forgotten costs a repeat.
    pub fn shorten(&mut self, most: usize) {
        let mut left = most;
        self.transactions.retain(|_, (settled, delivered)| {
            let room = left.saturating_sub(1);
            if let Some(first_dropped) = delivered.iter().nth(room).copied() {
                delivered.split_off(&first_dropped);
            }
            let keeps = left > 0 && (*settled > 0 || !delivered.is_empty());
            left = room - delivered.len();
            keeps
        });
    }

    /// Whether some of it, delivered and not confirmed, comes again to one who has read up to `position`.
    pub fn awaits(&self, position: Lsn) -> bool {
        position < self.watermark || self.transactions.last_key_value().is_some_and(|(last, _)| *last >= position)
    }

    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }
}
