//! What to read of one partition: chunks of offsets, each before the last and larger, each read forwards. Pure.
//!
//! Reading ends with the chunk whose *oldest own record* lies below the confirmed LSN. One relay writes a partition in the
//! order of commit, so nothing of interest is before that record. The smallest LSN of the chunk would not do as well: an
//! outdated process may append a few old records at the very end, and behind them would be all that counts.

use crate::lsn::Lsn;
use crate::sink::tail::own::Own;
use crate::sink::tail::{Cut, Tail, digest};

/// Of the first chunk, for a few partitions. Most tails are short, and the first answer tells how large records are.
const FIRST_CHUNK: i64 = 16;
/// Of the first chunks of all partitions together.
const FIRST_CHUNKS: i64 = 16_384;
/// A later chunk is so many times as long as the one before it. What was read already is read again where it is in the same
/// answer of the broker, so the factor bounds the waste to a third.
const GROWTH: i64 = 4;

/// The reading of one partition, and what was found.
#[derive(Debug)]
pub struct Backwards {
    /// The log's start.
    low: i64,
    /// The chunk: from here,
    from: i64,
    /// until before here.
    until: i64,
    confirmed: Lsn,
    /// Records that may still be read.
    allowed: u64,
    /// The commit LSN of the chunk's first own record.
    oldest: Option<Lsn>,
    known: Vec<u128>,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Reading,
    Done,
    Cut(Cut),
}

/// Offsets to be read, the second excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub from: i64,
    pub until: i64,
}

impl Chunk {
    pub fn len(self) -> i64 {
        self.until.saturating_sub(self.from)
    }
}

/// What a record means for its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    More,
    /// The chunk is complete.
    Complete,
}

impl Backwards {
    /// A partition with offsets from `low` until before `high`, one of `partitions` that are read together.
    pub fn new(low: i64, high: i64, partitions: usize, records_max: u64, confirmed: Lsn) -> Backwards {
        let share = FIRST_CHUNKS / i64::try_from(partitions).unwrap_or(i64::MAX).max(1);
        let from = high.saturating_sub(share.clamp(1, FIRST_CHUNK)).max(low);
        let state = if low < high { State::Reading } else { State::Done };
        Backwards { low, from, until: high, confirmed, allowed: records_max, oldest: None, known: Vec::new(), state }
    }

    /// What is to be read now; None: nothing more.
    pub fn chunk(&self) -> Option<Chunk> {
        (self.state == State::Reading).then_some(Chunk { from: self.from, until: self.until })
    }

    /// A record of the partition, after the ones with smaller offsets.
    pub fn record(&mut self, offset: i64, own: Option<Own<'_>>) -> Progress {
        if self.state != State::Reading {
            return Progress::Complete;
        }
        if offset < self.from {
            // The log ended before the place that was asked for, so it is not the one whose end was looked up.
            self.replaced();
            return Progress::Complete;
        }
        // What is behind the chunk was read before, or came after the end was looked up.
        if offset < self.until {
            self.allowed = self.allowed.saturating_sub(1);
            if let Some(own) = own {
                self.oldest.get_or_insert(own.commit_lsn);
                if own.commit_lsn >= self.confirmed {
                    self.known.push(digest(own.message_id, own.commit_lsn));
                }
            }
        }
        if offset >= self.until.saturating_sub(1) { Progress::Complete } else { Progress::More }
    }

    /// The whole chunk was seen. `affordable`: records that the next one should hold at most.
    pub fn next_chunk(&mut self, affordable: u64) {
        if self.state != State::Reading {
            return;
        }
        let below = self.oldest.take().is_some_and(|oldest| oldest < self.confirmed);
        if below || self.from <= self.low {
            self.state = State::Done;
        } else if self.allowed == 0 {
            self.state = State::Cut(Cut::Records);
        } else {
            let most = i64::try_from(self.allowed.min(affordable)).unwrap_or(i64::MAX).max(1);
            let len = self.until.saturating_sub(self.from).saturating_mul(GROWTH).clamp(1, most);
            self.until = self.from;
            self.from = self.until.saturating_sub(len).max(self.low);
        }
    }

    /// Nothing more is to be read, for this reason, if there was anything left.
    pub fn cut(&mut self, cut: Cut) {
        if self.state == State::Reading {
            self.state = State::Cut(cut);
        }
    }

    /// What was read is no more, or may be of another log.
    pub fn replaced(&mut self) {
        self.known.clear();
        self.state = State::Cut(Cut::Replaced);
    }

    pub fn into_tail(self) -> Tail {
        let cut = match self.state {
            State::Cut(cut) => Some(cut),
            State::Done => None,
            // Not read to its end by whoever had it.
            State::Reading => Some(Cut::Time),
        };
        Tail::new(self.known, cut)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: u64 = u64::MAX;

    /// A partition: offsets that ascend with gaps, each with the commit LSN of an own record or None.
    type Log = Vec<(i64, Option<u64>)>;

    fn id(offset: i64) -> String {
        format!("m{offset}")
    }

    /// Reads `log` as a broker serves it, and counts chunks.
    fn read(log: &Log, low: i64, high: i64, mut plan: Backwards, affordable: u64) -> (Tail, usize) {
        let mut chunks = 0;
        while let Some(chunk) = plan.chunk() {
            chunks += 1;
            assert!(low <= chunk.from && chunk.from < chunk.until && chunk.until <= high, "{chunk:?}");
            for (offset, lsn) in log.iter().filter(|(offset, _)| *offset >= chunk.from) {
                let id = id(*offset);
                let own = lsn.map(|lsn| Own { message_id: id.as_bytes(), commit_lsn: Lsn(lsn) });
                if plan.record(*offset, own) == Progress::Complete {
                    break;
                }
            }
            plan.next_chunk(affordable);
        }
        (plan.into_tail(), chunks)
    }

    fn dense(lsns: impl IntoIterator<Item = u64>) -> Log {
        (0..).zip(lsns.into_iter().map(Some)).collect()
    }

    fn whole(log: &Log, confirmed: u64) -> (Tail, usize) {
        let high = log.last().map_or(0, |(offset, _)| offset + 1);
        read(log, 0, high, Backwards::new(0, high, 1, ALL, Lsn(confirmed)), ALL)
    }

    /// Offsets of the records that the tail holds.
    fn held(log: &Log, tail: &Tail) -> Vec<i64> {
        let holds = |(offset, lsn): &&(i64, Option<u64>)| {
            lsn.is_some_and(|lsn| tail.contains(id(*offset).as_bytes(), Lsn(lsn)))
        };
        log.iter().filter(holds).map(|(offset, _)| *offset).collect()
    }

    #[test]
    fn an_empty_partition_has_nothing_to_read() {
        for high in [0, 7] {
            let plan = Backwards::new(high, high, 1, ALL, Lsn(1));
            assert_eq!(plan.chunk(), None);
            assert_eq!(plan.into_tail(), Tail::default());
        }
    }

    #[test]
    fn a_short_tail_needs_one_chunk_and_a_long_one_few() {
        let log = dense(0..100_000);
        let (tail, chunks) = whole(&log, 99_990);
        assert_eq!((tail.len(), tail.cut(), chunks), (10, None, 1));
        let (tail, chunks) = whole(&log, 50_000);
        assert_eq!((tail.len(), tail.cut()), (50_000, None));
        assert!(chunks <= 8, "{chunks} chunks");
    }

    #[test]
    fn among_many_partitions_each_begins_with_a_small_chunk() {
        let first = |partitions| Backwards::new(0, 1_000, partitions, ALL, Lsn(1)).chunk().map(Chunk::len);
        assert_eq!(first(1), Some(16));
        assert_eq!(first(400), Some(16));
        assert_eq!(first(4_000), Some(4));
        assert_eq!(first(1_000_000), Some(1));
        assert_eq!(first(0), Some(16));
    }

    #[test]
    fn old_records_that_came_late_do_not_end_the_reading() {
        let log = dense((0..100).chain([3, 4, 5]));
        let (tail, _) = whole(&log, 50);
        assert_eq!(held(&log, &tail), Vec::from_iter(50..100));
    }

    #[test]
    fn records_of_another_history_are_read_through() {
        // A restore: the new history begins at lower LSNs.
        let log = dense((0..500).chain(100..150));
        let (tail, _) = whole(&log, 140);
        assert!(held(&log, &tail).ends_with(&Vec::from_iter(540..550)));
    }

    #[test]
    fn other_writers_are_read_through_up_to_the_limit() {
        let mut log = dense(0..10);
        log.extend((10..1_000).map(|offset| (offset, None)));
        assert_eq!(whole(&log, 5).0.len(), 5);
        let (tail, _) = read(&log, 0, 1_000, Backwards::new(0, 1_000, 1, 100, Lsn(5)), ALL);
        assert_eq!((tail.len(), tail.cut()), (0, Some(Cut::Records)));
    }

    #[test]
    fn what_was_read_before_a_limit_is_kept() {
        let log = dense(0..1_000);
        let (tail, _) = read(&log, 0, 1_000, Backwards::new(0, 1_000, 1, 100, Lsn(0)), ALL);
        assert_eq!(held(&log, &tail), Vec::from_iter(900..1_000));
        assert_eq!(tail.cut(), Some(Cut::Records));
    }

    #[test]
    fn a_log_that_was_replaced_meanwhile_is_not_believed() {
        let mut plan = Backwards::new(0, 100, 1, ALL, Lsn(0));
        assert_eq!(plan.record(84, Some(Own { message_id: b"m", commit_lsn: Lsn(5) })), Progress::More);
        assert_eq!(plan.record(0, Some(Own { message_id: b"n", commit_lsn: Lsn(5) })), Progress::Complete);
        plan.next_chunk(ALL);
        assert_eq!(plan.chunk(), None);
        assert_eq!(plan.into_tail(), Tail { known: Box::default(), cut: Some(Cut::Replaced) });
    }

    #[test]
    fn a_start_that_moved_only_leaves_less_to_read() {
        // 0 to 99 were there when the ends were looked up; then the log was cut to 90 to 99.
        let log: Log = (90..100).map(|offset| (offset, Some(7))).collect();
        let (tail, chunks) = read(&log, 0, 100, Backwards::new(0, 100, 1, ALL, Lsn(0)), ALL);
        assert_eq!((tail.len(), tail.cut()), (10, None));
        assert!(chunks <= 4, "{chunks} chunks");
    }

    #[test]
    fn large_records_make_small_chunks() {
        let log = dense(0..1_000);
        let (tail, chunks) = read(&log, 0, 1_000, Backwards::new(0, 1_000, 1, ALL, Lsn(900)), 20);
        assert_eq!((tail.len(), chunks), (100, 6));
    }

    fn log() -> impl Strategy<Value = Log> {
        let record = (1..20i64, proptest::option::weighted(0.7, 0..1_000u64));
        proptest::collection::vec(record, 0..300).prop_map(|records| {
            let mut offset = 0;
            records
                .into_iter()
                .map(|(gap, lsn)| {
                    offset += gap;
                    (offset, lsn)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn a_partition_in_the_order_of_commit_is_known_whole(
            mut log in log(), confirmed in 0..1_000u64, gap in 0..50i64, partitions in 1..20_000usize, affordable in 0..99u64,
        ) {
            let mut ordered: Vec<u64> = log.iter().filter_map(|(_, lsn)| *lsn).collect();
            ordered.sort_unstable();
            let mut ordered = ordered.into_iter();
            log.iter_mut().filter(|(_, lsn)| lsn.is_some()).for_each(|(_, lsn)| *lsn = ordered.next());
            let high = log.last().map_or(0, |(offset, _)| offset + 1) + gap;
            let (tail, _) = read(&log, 0, high, Backwards::new(0, high, partitions, ALL, Lsn(confirmed)), affordable);
            let wanted = log.iter().filter(|(_, lsn)| lsn.is_some_and(|lsn| lsn >= confirmed));
            prop_assert_eq!(held(&log, &tail), wanted.map(|(offset, _)| *offset).collect::<Vec<_>>());
            prop_assert_eq!(tail.cut(), None);
        }

        #[test]
        fn in_any_order_nothing_is_known_that_is_not_there(
            log in log(), confirmed in 0..1_000u64, records_max in 0..500u64, affordable: u64,
        ) {
            let high = log.last().map_or(0, |(offset, _)| offset + 1);
            let (tail, _) = read(&log, 0, high, Backwards::new(0, high, 1, records_max, Lsn(confirmed)), affordable);
            let held = held(&log, &tail);
            prop_assert_eq!(tail.len(), held.len());
            for (offset, lsn) in log.iter().filter(|(offset, _)| held.contains(offset)) {
                prop_assert!(lsn.is_some_and(|lsn| lsn >= confirmed), "{offset}");
            }
        }
    }
}
