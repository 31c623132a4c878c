//! `walpost.parked_messages`, and the person who decides on what is in it. As the statements of sql/ do, but for the system
//! identifier, which never changes here.

use std::collections::BTreeSet;
use std::sync::Arc;

use walpost::lsn::Lsn;
use walpost::parking::{Aside, Queues, Standing, Unit};
use walpost::postgres::parked::{Change, Outcome, Wish, Work};

use crate::log::{Kind, RowId};
use crate::world::{Shared, State};

/// What one look for work brings at most.
const WORK_MESSAGES: usize = 4;
/// What a commit adds to the log.
const COMMIT_BYTES: u64 = 300;

/// The table, and what it was before.
#[derive(Default)]
pub struct Shelf {
    messages: Vec<Shelved>,
    made: i64,
    /// With the end of the log when it was changed.
    past: Vec<(Lsn, Vec<Shelved>)>,
}

#[derive(Clone)]
struct Shelved {
    id: i64,
    epoch: i64,
    aside: Arc<Aside>,
    wish: Decision,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// Waits for a person.
    Parked,
    /// Waits behind another one.
    Waiting,
    Retry,
    Discard,
}

impl Shelved {
    fn row(&self) -> Option<RowId> {
        self.aside.message_id.as_ref()?.parse().ok()
    }

    fn place(&self) -> (Lsn, u32, i64) {
        (self.aside.position.commit_lsn, self.aside.position.ordinal, self.id)
    }
}

fn change<'a>(messages: impl Iterator<Item = &'a Shelved>) -> Change {
    messages.fold(Change::default(), |sum, message| Change {
        messages: sum.messages + 1,
        bytes: sum.bytes + message.aside.bytes(),
    })
}

impl Shelf {
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn change(&mut self, end: Lsn) {
        self.past.push((end, self.messages.clone()));
    }

    /// The server has only what was written up to `end`.
    pub fn lose(&mut self, end: Lsn) {
        while let Some((_, before)) = self.past.pop_if(|(written_at, _)| *written_at >= end) {
            self.messages = before;
        }
    }

    pub fn rows(&self) -> BTreeSet<RowId> {
        self.messages.iter().filter_map(Shelved::row).collect()
    }

    pub fn size(&self) -> Change {
        change(self.messages.iter())
    }

    /// What a session begins with.
    pub fn queues(&self) -> Queues {
        let mut heads: Vec<(Unit, Option<walpost::parking::Position>)> = Vec::new();
        for message in &self.messages {
            let Some(unit) = message.aside.unit() else { continue };
            let position = message.aside.position;
            match heads.iter_mut().find(|(known, _)| *known == unit) {
                Some((_, head)) => *head = (*head).map(|head| head.min(position)),
                None => heads.push((unit, Some(position))),
            }
        }
        let all = self.size();
        Queues::new(heads, all.messages, all.bytes)
    }

    /// What stands before the first message of its queue that waits for a person.
    pub fn work(&self) -> Vec<Work> {
        let mut all: Vec<&Shelved> = self.messages.iter().collect();
        all.sort_by_key(|message| message.place());
        let mut blocked: Vec<Unit> = Vec::new();
        let mut found = Vec::new();
        for message in all {
            let unit = message.aside.unit();
            if message.wish == Decision::Parked {
                blocked.extend(unit);
            } else if unit.is_none_or(|unit| !blocked.contains(&unit)) && found.len() < WORK_MESSAGES {
                found.push(work(message));
            }
        }
        found
    }
}

fn work(message: &Shelved) -> Work {
    let aside = (*message.aside).clone();
    Work {
        id: message.id,
        epoch: message.epoch.unsigned_abs(),
        position: aside.position,
        message_id: aside.message_id.unwrap_or_default(),
        topic: aside.topic.map(|topic| topic.to_string()),
        key: aside.key,
        value: aside.value,
        headers: aside.headers,
        row: aside.row,
        missing: None,
        wish: if message.wish == Decision::Discard { Wish::Discard } else { Wish::Publish },
    }
}

impl State {
    /// Sets messages aside; those that are there already are left as they are.
    /// What is confirmed by now is left out. None: they are of another epoch or holder.
    pub fn park(&mut self, asides: &[Arc<Aside>], epoch: i64, holder: &str) -> Option<(Change, Lsn)> {
        let record = self.postgres.record.as_ref();
        let record = record.filter(|record| record.epoch == epoch && record.holder.as_deref() == Some(holder))?;
        let confirmed = record.confirmed_lsn;
        let shelf = &mut self.shelf;
        shelf.change(self.log.end);
        let before = shelf.messages.len();
        for aside in asides {
            let key = |aside: &Aside| (aside.position, aside.message_id.clone());
            if aside.position.commit_lsn < confirmed {
                continue;
            }
            if shelf.messages.iter().any(|message| key(&message.aside) == key(aside)) {
                continue;
            }
            shelf.made += 1;
            let wish = match aside.standing {
                Standing::Parked { .. } => Decision::Parked,
                Standing::Waiting => Decision::Waiting,
            };
            shelf.messages.push(Shelved { id: shelf.made, epoch, aside: aside.clone(), wish });
        }
        let added = change(shelf.messages[before..].iter());
        let rows: Vec<_> = shelf.messages[before..].iter().map(|message| (message.row(), message.wish)).collect();
        for relay in &mut self.relays {
            asides
                .iter()
                .filter_map(|aside| aside.message_id.as_ref()?.parse().ok())
                .for_each(|row| relay.window.elsewhere(row));
        }
        self.shelf_changed();
        self.log.grow(COMMIT_BYTES);
        self.note(|| format!("parked: {rows:?}"));
        Some((added, self.log.end))
    }

    /// Writes down what has become of messages, and tells which queues are empty.
    pub fn settle(&mut self, outcome: &Outcome) -> (Change, Vec<Unit>) {
        let shelf = &mut self.shelf;
        shelf.change(self.log.end);
        for message in &mut shelf.messages {
            if outcome.failed.iter().any(|(id, _, _)| *id == message.id) {
                message.wish = Decision::Parked;
            }
        }
        let (gone, left) = shelf.messages.drain(..).partition(|message| outcome.done.contains(&message.id));
        shelf.messages = left;
        let gone: Vec<Shelved> = gone;
        let units: Vec<Option<Unit>> = self.shelf.messages.iter().map(|message| message.aside.unit()).collect();
        let empty = outcome.units.iter().filter(|unit| !units.iter().flatten().any(|other| other == *unit));
        let empty: Vec<Unit> = empty.cloned().collect();
        self.shelf_changed();
        // Those that were out and came back stay in the table.
        for relay in &mut self.relays {
            self.ledger.shelved.iter().for_each(|row| relay.window.elsewhere(*row));
        }
        self.log.grow(COMMIT_BYTES);
        self.note(|| {
            let rows: Vec<_> = gone.iter().map(|message| (message.row(), message.wish)).collect();
            format!("parked no more: {rows:?}, failed {:?}, empty {empty:?}", outcome.failed)
        });
        // What is gone must have gone somewhere.
        for row in gone.iter().filter_map(Shelved::row) {
            if self.log.rows[row].exists() && self.ledger.is_nowhere(&self.log, row) {
                self.violated(format!("row {row} is not parked any more, and nowhere else"));
            }
        }
        (change(gone.iter()), empty)
    }

    fn shelf_changed(&mut self) {
        self.ledger.shelved = self.shelf.rows();
    }

    /// Only what was written up to `end` is left.
    pub fn lose_shelf(&mut self, end: Lsn) {
        self.shelf.lose(end);
        self.shelf_changed();
    }

    /// A person decides on messages that wait for one.
    fn decide(&mut self) {
        let odds = self.plan.odds.person;
        self.shelf.change(self.log.end);
        let mut said = Vec::new();
        for index in 0..self.shelf.messages.len() {
            let message = &self.shelf.messages[index];
            let (row, waits) = (message.row(), message.wish == Decision::Parked);
            let poison = row.is_some_and(|row| self.log.rows[row].kind != Kind::Plain);
            if !waits || !self.calm && !self.dice.permille(odds) {
                continue;
            }
            let discards = if self.calm { poison } else { self.dice.percent(if poison { 50 } else { 10 }) };
            self.shelf.messages[index].wish = if discards { Decision::Discard } else { Decision::Retry };
            said.push((row, self.shelf.messages[index].wish));
            if let Some(row) = row.filter(|_| discards) {
                // From now on the relay may pass it.
                self.ledger.discarded(row);
            }
        }
        if !said.is_empty() {
            self.note(|| format!("a person decides: {said:?}"));
            self.log.grow(COMMIT_BYTES);
        }
    }
}

/// Looks after what is parked, for ever.
pub async fn look_after(world: Shared) {
    loop {
        world.pass(std::time::Duration::from_millis(1_100)).await;
        let mut state = world.lock();
        if !state.shelf.is_empty() && *world.server.borrow() == crate::world::Server::Up {
            state.decide();
        }
    }
}
