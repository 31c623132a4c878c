//! Which LSN may be confirmed: the end of the last transaction of which every row, and every row before it, has been
//! acknowledged by the broker.
//!
//! Deliveries finish out of order across partitions. A row gets a [`Ticket`] when it is read; the tickets between the
//! oldest undelivered one and the newest form the *window*, which bounds how much is read ahead. The *watermark* moves
//! only over transactions without a hole. A keepalive's position waits its turn like an empty transaction, so it is
//! never confirmed while something before it is open or in flight.
//!
//! Pure: no clock, no I/O. A tracker lives as long as a session; what was delivered above the watermark when the session
//! ends is handed to the next one as [`Remembered`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::SystemTime;

use crate::lsn::Lsn;
use crate::parking::Position;

mod remembered;

pub use remembered::Remembered;

/// What a row in the window costs beside its bytes, in bytes, rounded up: librdkafka's message, a header list with its
/// strings, a share of a batch and of a report, and what the relay remembers of it. Counted so, a full window of small rows
/// takes no more memory than `window.bytes`.
pub const ROW_OVERHEAD: usize = 640;

/// The number of a row that was read, counted from 0 over the life of a tracker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub usize);

/// Follows the rows of one session from being read to being acknowledged. See the module.
#[derive(Debug)]
pub struct AckTracker {
    /// The ticket of `rows[0]`: the oldest undelivered one, or the next one where nothing is in flight.
    oldest: usize,
    rows: VecDeque<InFlightRow>,
    /// In commit order; the last one may be open. The first one holds the oldest undelivered row.
    transactions: VecDeque<Transaction>,
    open: bool,
    watermark: Lsn,
    window_bytes: usize,
    undelivered: usize,
    undelivered_bytes: usize,
}

#[derive(Debug)]
struct InFlightRow {
    ordinal: u32,
    bytes: usize,
    delivered: bool,
}

#[derive(Debug)]
struct Transaction {
    commit_lsn: Lsn,
    commit_time: SystemTime,
    /// All ordinals below it are settled.
    settled: u32,
    /// Once the commit was read: the first ticket behind the transaction, and the position that may be confirmed when
    /// all tickets before that one are delivered.
    end: Option<(usize, Lsn)>,
}

impl AckTracker {
    /// `start`: what is confirmed already.
    pub fn new(start: Lsn) -> Self {
        AckTracker {
            oldest: 0,
            rows: VecDeque::new(),
            transactions: VecDeque::new(),
            open: false,
            watermark: start,
            window_bytes: 0,
            undelivered: 0,
            undelivered_bytes: 0,
        }
    }

    fn next(&self) -> usize {
        self.oldest + self.rows.len()
    }

    /// A transaction begins. One that is still open (which the decoder rules out) stays unconfirmed for ever.
    pub fn begin(&mut self, commit_lsn: Lsn, commit_time: SystemTime) {
        self.open = true;
        self.transactions.push_back(Transaction { commit_lsn, commit_time, settled: 0, end: None });
    }

    /// A row of the open transaction is about to be produced. `ordinal` counts all rows of the transaction from 0, those
    /// that get no ticket too; `bytes` is its weight in the window.
    pub fn row(&mut self, ordinal: u32, bytes: usize) -> Ticket {
        let ticket = Ticket(self.next());
        self.rows.push_back(InFlightRow { ordinal, bytes, delivered: false });
        self.window_bytes += bytes;
        self.undelivered += 1;
        self.undelivered_bytes += bytes;
        ticket
    }

    /// A record is about to be produced that no row of the stream stands behind. It takes its place in the window, and
    /// nothing read after it is confirmed before it is delivered. Only between transactions.
    pub fn aside(&mut self, bytes: usize, now: SystemTime) -> Ticket {
        self.begin(Lsn::INVALID, now);
        let ticket = self.row(0, bytes);
        self.commit(Lsn::INVALID);
        ticket
    }

    /// Where the row with this ticket stands; None for one that is settled with all before it, or unknown.
    pub fn position(&self, ticket: Ticket) -> Option<Position> {
        let row = self.rows.get(ticket.0.checked_sub(self.oldest)?)?;
        let of =
            self.transactions.partition_point(|transaction| transaction.end.is_some_and(|(end, _)| end <= ticket.0));
        let commit_lsn = self.transactions.get(of)?.commit_lsn;
        Some(Position { commit_lsn, ordinal: row.ordinal })
    }

    /// The open transaction ends. `end_lsn` is the end of its commit record: confirming the commit LSN itself would make
    /// the server send the transaction again.
    pub fn commit(&mut self, end_lsn: Lsn) {
        let next = self.next();
        self.open = false;
        if let Some(transaction) = self.transactions.back_mut() {
            transaction.end = Some((next, end_lsn));
        }
        self.join_last_if_empty();
        self.advance();
    }

    /// The server has sent everything before `wal_end`. Inside a transaction this says nothing that may be confirmed.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        if self.open {
            return;
        }
        if planted!(ConfirmsAKeepalive) {
            self.watermark = self.watermark.max(wal_end);
        }
        match self.transactions.back_mut() {
            // Everything read so far lies before `wal_end`, so it is safe as soon as that is delivered.
            Some(Transaction { end: Some((_, end_lsn)), .. }) => *end_lsn = (*end_lsn).max(wal_end),
            _ => self.watermark = self.watermark.max(wal_end),
        }
    }

    /// An empty transaction needs no entry of its own: its end becomes that of the one before. So the queue is never
    /// longer than the window, however many empty transactions pass.
    fn join_last_if_empty(&mut self) {
        let count = self.transactions.len();
        if count < 2 {
            return;
        }
        let (Some((before, _)), Some((after, end_lsn))) =
            (self.transactions[count - 2].end, self.transactions[count - 1].end)
        else {
            return;
        };
        if before == after {
            if planted!(ConfirmsAnEmptyTransaction) {
                self.watermark = self.watermark.max(end_lsn);
            }
            self.transactions.pop_back();
            self.transactions[count - 2].end = Some((before, end_lsn));
        }
    }

    /// The broker has acknowledged the row, or it was set aside for good. Returns when its transaction committed; None
    /// for a ticket that is unknown or settled already, which changes nothing.
    pub fn delivered(&mut self, ticket: Ticket) -> Option<SystemTime> {
        let index = ticket.0.checked_sub(self.oldest)?;
        let row = self.rows.get_mut(index).filter(|row| !row.delivered)?;
        row.delivered = true;
        self.undelivered -= 1;
        self.undelivered_bytes -= row.bytes;
        let of =
            self.transactions.partition_point(|transaction| transaction.end.is_some_and(|(end, _)| end <= ticket.0));
        let commit_time = self.transactions.get(of).map(|transaction| transaction.commit_time);
        if planted!(ConfirmsTheHighest)
            && let Some((end, end_lsn)) = self.transactions.get(of).and_then(|transaction| transaction.end)
            && ticket.0 + 1 == end
        {
            self.watermark = self.watermark.max(end_lsn);
        }
        self.advance();
        commit_time
    }

    fn advance(&mut self) {
        loop {
            // Finish the first transaction before the next row is taken off, so that the row is charged to its own.
            while let Some(Transaction { end: Some((end, end_lsn)), .. }) = self.transactions.front() {
                if *end > self.oldest {
                    break;
                }
                self.watermark = self.watermark.max(*end_lsn);
                self.transactions.pop_front();
            }
            if !self.rows.front().is_some_and(|row| row.delivered) {
                return;
            }
            if let Some(row) = self.rows.pop_front() {
                self.oldest += 1;
                self.window_bytes -= row.bytes;
                if let Some(transaction) = self.transactions.front_mut() {
                    transaction.settled = row.ordinal + 1;
                }
            }
        }
    }

    /// The highest LSN that may be confirmed. Never falls.
    pub fn watermark(&self) -> Lsn {
        self.watermark
    }

    /// Rows from the oldest undelivered one to the newest, delivered or not.
    pub fn window_messages(&self) -> usize {
        self.rows.len()
    }

    /// The weight of the rows of the window.
    pub fn window_bytes(&self) -> usize {
        self.window_bytes
    }

    /// Rows that are read and not acknowledged, and their weight.
    pub fn in_flight(&self) -> (usize, usize) {
        (self.undelivered, self.undelivered_bytes)
    }

    /// Between Begin and Commit.
    pub fn in_transaction(&self) -> bool {
        self.open
    }

    /// Nothing is open and nothing is in flight: all that was read is confirmed or may be.
    pub fn is_idle(&self) -> bool {
        (!self.open || planted!(StopsInATransaction)) && self.rows.is_empty()
    }

    /// When the oldest transaction committed that is not wholly acknowledged.
    pub fn oldest_commit_time(&self) -> Option<SystemTime> {
        self.transactions.front().map(|transaction| transaction.commit_time)
    }

    /// What was delivered, for the next session on the same history: it begins at what was recorded, which is behind.
    pub fn into_remembered(self) -> Remembered {
        let mut transactions = BTreeMap::new();
        let mut rows = self.rows.into_iter().enumerate().map(|(index, row)| (self.oldest + index, row)).peekable();
        for transaction in self.transactions {
            let behind = transaction.end.map_or(usize::MAX, |(end, _)| end);
            let mut delivered = BTreeSet::new();
            while let Some((_, row)) = rows.next_if(|(ticket, _)| *ticket < behind) {
                if row.delivered {
                    delivered.insert(row.ordinal);
                }
            }
            // Those of no transaction will not come again.
            if transaction.commit_lsn != Lsn::INVALID && (transaction.settled > 0 || !delivered.is_empty()) {
                transactions.insert(transaction.commit_lsn, (transaction.settled, delivered));
            }
        }
        Remembered { watermark: self.watermark, transactions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// A transaction of `rows` rows of 10 bytes each; its commit LSN is one less than its end.
    fn transaction(tracker: &mut AckTracker, end: u64, rows: u32) -> Vec<Ticket> {
        tracker.begin(Lsn(end - 1), at(end));
        let tickets = (0..rows).map(|ordinal| tracker.row(ordinal, 10)).collect();
        tracker.commit(Lsn(end));
        tickets
    }

    #[test]
    fn a_transaction_is_confirmed_at_its_end_once_all_its_rows_are_delivered() {
        let mut tracker = AckTracker::new(Lsn(5));
        let tickets = transaction(&mut tracker, 100, 3);
        for ticket in [tickets[2], tickets[0]] {
            assert_eq!(tracker.delivered(ticket), Some(at(100)));
            assert_eq!(tracker.watermark(), Lsn(5));
        }
        tracker.delivered(tickets[1]);
        assert_eq!(tracker.watermark(), Lsn(100));
        assert!(tracker.is_idle());
    }

    #[test]
    fn the_watermark_never_passes_a_hole() {
        let mut tracker = AckTracker::new(Lsn(0));
        let first = transaction(&mut tracker, 100, 1);
        let second = transaction(&mut tracker, 200, 2);
        let third = transaction(&mut tracker, 300, 1);
        for ticket in second.iter().chain(&third) {
            tracker.delivered(*ticket);
        }
        assert_eq!(tracker.watermark(), Lsn(0));
        assert_eq!(tracker.window_messages(), 4);
        assert_eq!(tracker.in_flight(), (1, 10));
        tracker.delivered(first[0]);
        assert_eq!(tracker.watermark(), Lsn(300));
        assert_eq!((tracker.window_messages(), tracker.window_bytes()), (0, 0));
    }

    #[test]
    fn nothing_of_an_open_transaction_is_confirmed() {
        let mut tracker = AckTracker::new(Lsn(1));
        tracker.begin(Lsn(99), at(1));
        let ticket = tracker.row(0, 10);
        tracker.delivered(ticket);
        tracker.keepalive(Lsn(500));
        assert_eq!(tracker.watermark(), Lsn(1));
        assert!(!tracker.is_idle());
        tracker.commit(Lsn(100));
        assert_eq!(tracker.watermark(), Lsn(100));
    }

    #[test]
    fn a_keepalive_waits_for_what_is_in_flight_before_it() {
        let mut tracker = AckTracker::new(Lsn(1));
        tracker.keepalive(Lsn(50));
        assert_eq!(tracker.watermark(), Lsn(50));
        let tickets = transaction(&mut tracker, 100, 1);
        tracker.keepalive(Lsn(400));
        assert_eq!(tracker.watermark(), Lsn(50));
        tracker.delivered(tickets[0]);
        assert_eq!(tracker.watermark(), Lsn(400));
    }

    #[test]
    fn empty_transactions_wait_their_turn_and_need_no_memory() {
        let mut tracker = AckTracker::new(Lsn(1));
        let tickets = transaction(&mut tracker, 100, 1);
        for end in 101..10_000 {
            transaction(&mut tracker, end, 0);
        }
        assert_eq!(tracker.watermark(), Lsn(1));
        assert_eq!(tracker.transactions.len(), 1);
        tracker.delivered(tickets[0]);
        assert_eq!(tracker.watermark(), Lsn(9_999));
    }

    #[test]
    fn a_record_without_a_row_holds_what_was_read_after_it_and_is_not_remembered() {
        let mut tracker = AckTracker::new(Lsn(1));
        let first = transaction(&mut tracker, 100, 2);
        let aside = tracker.aside(10, at(1));
        let second = transaction(&mut tracker, 200, 1);
        assert_eq!(tracker.position(first[1]), Some(Position { commit_lsn: Lsn(99), ordinal: 1 }));
        assert_eq!(tracker.position(second[0]), Some(Position { commit_lsn: Lsn(199), ordinal: 0 }));
        for ticket in first.into_iter().chain(second) {
            tracker.delivered(ticket);
        }
        assert_eq!((tracker.watermark(), tracker.is_idle()), (Lsn(100), false));
        tracker.delivered(aside);
        assert_eq!((tracker.watermark(), tracker.is_idle()), (Lsn(200), true));
        tracker.aside(10, at(1));
        tracker.keepalive(Lsn(500));
        assert_eq!(tracker.watermark(), Lsn(200));
        assert!(tracker.into_remembered().is_empty());
    }

    #[test]
    fn an_old_position_never_moves_the_watermark_back() {
        let mut tracker = AckTracker::new(Lsn(1_000));
        tracker.keepalive(Lsn(10));
        transaction(&mut tracker, 20, 0);
        assert_eq!(tracker.watermark(), Lsn(1_000));
    }

    #[test]
    fn a_second_report_for_a_row_counts_once() {
        let mut tracker = AckTracker::new(Lsn(0));
        let tickets = transaction(&mut tracker, 100, 2);
        assert!(tracker.delivered(tickets[1]).is_some());
        assert_eq!(tracker.delivered(tickets[1]), None);
        assert_eq!(tracker.delivered(Ticket(77)), None);
        assert_eq!(tracker.in_flight(), (1, 10));
    }

    #[test]
    fn what_is_delivered_and_not_recorded_yet_is_remembered() {
        let mut tracker = AckTracker::new(Lsn(50));
        for ticket in transaction(&mut tracker, 100, 2) {
            tracker.delivered(ticket);
        }
        transaction(&mut tracker, 200, 1);
        let mut remembered = Remembered::default();
        remembered.merge(tracker.into_remembered());
        remembered.forget_below(Lsn(50));
        assert!(remembered.contains(Lsn(99), 0) && remembered.contains(Lsn(99), 1));
        assert!(!remembered.contains(Lsn(199), 0), "in flight");
    }

    #[test]
    fn what_is_remembered_can_be_bounded() {
        let mut tracker = AckTracker::new(Lsn(0));
        let stuck = transaction(&mut tracker, 100, 10);
        let other = transaction(&mut tracker, 200, 5);
        for ticket in stuck[1..].iter().chain(&other) {
            tracker.delivered(*ticket);
        }
        let whole = tracker.into_remembered();
        let count = |remembered: &Remembered| {
            [(99, 10), (199, 5)].map(|(lsn, rows)| (0..rows).filter(|o| remembered.contains(Lsn(lsn), *o)).count())
        };
        for (most, left) in
            [(100, [9, 5]), (16, [9, 5]), (15, [9, 4]), (12, [9, 1]), (11, [9, 0]), (5, [4, 0]), (0, [0, 0])]
        {
            let mut remembered = whole.clone();
            remembered.shorten(most);
            assert_eq!(count(&remembered), left, "of at most {most}");
        }
    }

    #[test]
    fn what_was_delivered_above_the_watermark_is_remembered() {
        let mut tracker = AckTracker::new(Lsn(0));
        let first = transaction(&mut tracker, 100, 3);
        let second = transaction(&mut tracker, 200, 1);
        tracker.begin(Lsn(299), at(3));
        let open = tracker.row(7, 10);
        for ticket in [first[0], first[2], second[0], open] {
            tracker.delivered(ticket);
        }
        let mut remembered = tracker.into_remembered();
        let delivered = |r: &Remembered| {
            [(99, 0), (99, 1), (99, 2), (199, 0), (299, 6), (299, 7), (299, 8)].map(|(lsn, o)| r.contains(Lsn(lsn), o))
        };
        assert_eq!(delivered(&remembered), [true, false, true, true, false, true, false]);
        remembered.forget_below(Lsn(200));
        assert_eq!(delivered(&remembered), [false, false, false, false, false, true, false]);
    }

    proptest! {
        /// Against the plain statement of the rule: the watermark is the end of the longest prefix of closed
        /// transactions all of whose rows are delivered.
        #[test]
        fn the_watermark_is_the_end_of_the_delivered_prefix(
            sizes in proptest::collection::vec(0u32..5, 1..30),
            order in proptest::collection::vec(any::<proptest::sample::Index>(), 0..120),
        ) {
            let mut tracker = AckTracker::new(Lsn(0));
            let mut tickets = Vec::new();
            let transactions: Vec<_> = sizes.iter().enumerate().map(|(index, rows)| {
                let end = (index as u64 + 1) * 100;
                let own = transaction(&mut tracker, end, *rows);
                tickets.extend(own.iter().copied());
                (end, own)
            }).collect();
            let mut delivered = BTreeSet::new();
            for pick in order {
                if tickets.is_empty() { break }
                let ticket = tickets[pick.index(tickets.len())];
                tracker.delivered(ticket);
                delivered.insert(ticket);
                let expected = transactions.iter()
                    .take_while(|(_, own)| own.iter().all(|ticket| delivered.contains(ticket)))
                    .last().map_or(0, |(end, _)| *end);
                prop_assert_eq!(tracker.watermark(), Lsn(expected));
                let oldest = tickets.iter().find(|ticket| !delivered.contains(ticket));
                let window = oldest.map_or(0, |oldest| tickets.len() - oldest.0);
                prop_assert_eq!(tracker.window_messages(), window);
                prop_assert_eq!(tracker.window_bytes(), window * 10);
            }
            for ticket in &tickets { tracker.delivered(*ticket); }
            prop_assert_eq!(tracker.watermark(), Lsn(sizes.len() as u64 * 100));
            prop_assert!(tracker.is_idle());
        }
    }
}
