//! What has become of each row, and whether that is what is promised: nothing lost, nothing invented, first arrivals of a
//! key in commit order, no repeat without one of the known causes.

use std::collections::BTreeSet;

use walpost::config::OnPoison;
use walpost::lsn::Lsn;

use crate::log::{Kind, Log, Row, RowId};

/// Who stored a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By {
    pub process: u32,
    pub producer: u32,
    /// Of its token.
    pub epoch: u64,
    /// As the log had it, and not from the table.
    pub streamed: bool,
}

#[derive(Debug)]
struct Stored {
    by: By,
    /// Its process was told that it is stored, and knows.
    told: bool,
}

#[derive(Debug, Default)]
struct Fate {
    stored: Vec<Stored>,
    /// The broker has refused it for its own sake.
    refused: bool,
    /// It is among the dead letters.
    buried: bool,
    /// A person has decided that it is not published.
    discarded: bool,
    /// The epoch in which everything up to it was confirmed by a relay that ended in order: it never comes again there.
    closed_in: Option<u64>,
}

/// See the module.
pub struct Ledger {
    fates: Vec<Fate>,
    /// Transactions before this one need not be looked at again.
    settled: usize,
    /// What relays do with poison; [`OnPoison::Skip`] once one has run that leaves it out.
    pub policy: OnPoison,
    /// What is set aside in the table.
    pub shelved: BTreeSet<RowId>,
    pub repeats: u64,
}

impl Ledger {
    pub fn new(policy: OnPoison) -> Ledger {
        Ledger { fates: Vec::new(), settled: 0, policy, shelved: BTreeSet::new(), repeats: 0 }
    }

    fn fate(&mut self, row: RowId) -> &mut Fate {
        if self.fates.len() <= row {
            self.fates.resize_with(row + 1, Fate::default);
        }
        &mut self.fates[row]
    }

    fn has_arrived(&self, row: RowId) -> bool {
        self.fates.get(row).is_some_and(|fate| !fate.stored.is_empty())
    }

    /// Whether Kafka has it, or need not have it.
    fn is_settled(&self, log: &Log, row: RowId) -> bool {
        let fate = self.fates.get(row);
        let is = |what: fn(&Fate) -> bool| fate.is_some_and(what);
        let kind = log.rows[row].kind;
        let skipped = self.policy == OnPoison::Skip && (kind == Kind::NoKey || is(|fate| fate.refused));
        match kind {
            Kind::Unwanted => true,
            Kind::Plain => self.has_arrived(row) || is(|fate| fate.discarded) || self.shelved.contains(&row),
            Kind::NoKey | Kind::TooLarge | Kind::Invalid => {
                skipped || is(|fate| fate.buried || fate.discarded) || self.shelved.contains(&row)
            }
        }
    }

    /// The broker has refused it alone, or named it.
    pub fn refused(&mut self, row: RowId) {
        self.fate(row).refused = true;
    }

    pub fn buried(&mut self, row: RowId) {
        self.fate(row).buried = true;
    }

    pub fn discarded(&mut self, row: RowId) {
        self.fate(row).discarded = true;
    }

    /// The row is in Kafka's log once more. `excused`: by a request that nobody waits for any more and that cannot be called
    /// back, or from the table, where it may be still when it is published.
    pub fn stored(&mut self, log: &mut Log, row: RowId, by: By, excused: bool) -> Result<(), String> {
        let Row { kind, lost_in, .. } = log.rows[row];
        if kind != Kind::Plain {
            return Err(format!("row {row} was published, which is {kind:?}"));
        }
        if lost_in.is_some_and(|epoch| by.epoch > epoch) {
            return Err(format!("row {row} was published by a session that cannot have read it: {by:?}"));
        }
        let fate = self.fate(row);
        let first = fate.stored.is_empty();
        let same = |stored: &&Stored| stored.by.epoch == by.epoch && stored.by.streamed && !excused;
        if let Some(before) =
            fate.stored.iter().filter(same).find(|stored| stored.told && stored.by.process == by.process)
        {
            return Err(format!("row {row} is repeated by a process that was told of it: {before:?}, and now {by:?}"));
        }
        if fate.closed_in == Some(by.epoch) && !excused {
            return Err(format!("row {row} is repeated although a relay ended in order after it: {by:?}"));
        }
        fate.stored.push(Stored { by, told: false });
        if !first {
            self.repeats += 1;
        }
        if first && lost_in.is_none() { self.arrive(log, row) } else { Ok(()) }
    }

    /// Every earlier row of its key must have arrived, or never will.
    fn arrive(&mut self, log: &mut Log, row: RowId) -> Result<(), String> {
        let (topic, key) = (log.rows[row].topic, log.rows[row].key as usize);
        loop {
            let line = &log.lines[topic][key];
            let Some(earlier) = line.rows.get(line.next).copied().filter(|earlier| *earlier < row) else {
                return Ok(());
            };
            if !self.may_be_passed(log.rows[earlier].kind, earlier) {
                return Err(format!(
                    "row {row} arrived before row {earlier} of the same key, which was committed earlier"
                ));
            }
            log.lines[topic][key].next += 1;
        }
    }

    /// Whether later rows of its key may arrive. One that is parked holds them.
    fn may_be_passed(&self, kind: Kind, row: RowId) -> bool {
        let discarded = || self.fates.get(row).is_some_and(|fate| fate.discarded);
        match kind {
            Kind::Plain => self.has_arrived(row) || discarded(),
            // Without a key there is no order.
            Kind::Unwanted | Kind::NoKey => true,
            Kind::TooLarge | Kind::Invalid => self.policy != OnPoison::Park || discarded(),
        }
    }

    /// The relay was told that its producer has stored the row.
    pub fn told(&mut self, row: RowId, producer: u32) {
        let stored = self.fate(row).stored.iter_mut().rev().find(|stored| stored.by.producer == producer);
        if let Some(stored) = stored {
            stored.told = true;
        }
    }

    /// The process may repeat everything once: it has said why.
    pub fn forget(&mut self, process: u32) {
        for stored in self.fates.iter_mut().flat_map(|fate| &mut fate.stored) {
            stored.told &= stored.by.process != process;
        }
    }

    /// A relay has ended in order, with everything confirmed that lies before `confirmed`.
    pub fn close(&mut self, log: &Log, confirmed: Lsn, epoch: u64) {
        for (row, fate) in self.fates.iter_mut().enumerate() {
            if log.rows[row].exists() && log.rows[row].commit_lsn < confirmed && !fate.stored.is_empty() {
                fate.closed_in = Some(epoch);
            }
        }
    }

    /// The server has lost some of what it had. What is left may all come again: even the epoch may be an earlier one.
    pub fn lose(&mut self) {
        self.settled = 0;
        for fate in &mut self.fates {
            fate.closed_in = None;
            fate.stored.iter_mut().for_each(|stored| stored.told = false);
        }
    }

    /// The first row that the server would not send again to one who confirms `lsn`, and that is not settled.
    pub fn lost_by(&mut self, log: &Log, lsn: Lsn) -> Option<RowId> {
        while let Some(transaction) = log.transactions.get(self.settled).filter(|next| next.commit_lsn < lsn) {
            let missing = transaction.rows.clone().find(|row| !self.is_settled(log, *row));
            if missing.is_some() {
                return missing;
            }
            self.settled += 1;
        }
        None
    }

    /// Whether a row is not in Kafka, nor known to need not be there.
    pub fn is_nowhere(&self, log: &Log, row: RowId) -> bool {
        !self.is_settled(log, row)
    }

    /// The first row of all that is not settled.
    pub fn missing(&mut self, log: &Log) -> Option<RowId> {
        self.lost_by(log, Lsn(u64::MAX))
    }

    /// Whether the first row that is not settled is one at which a relay must stop.
    pub fn stands_at_poison(&mut self, log: &Log) -> bool {
        self.policy == OnPoison::Stop
            && self.missing(log).is_some_and(|row| !matches!(log.rows[row].kind, Kind::Plain | Kind::Unwanted))
    }

    /// How often rows were stored.
    pub fn stored_count(&self) -> usize {
        self.fates.iter().map(|fate| fate.stored.len()).sum()
    }
}
