//! What recover says on standard output: for people, or as one JSON object.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;

use super::RecoverOptions;
use super::plan::{Found, Plan};
use crate::config::{Config, OnPoison};
use crate::postgres::recovery::AtRisk;
use crate::relay::republish::Tally;

/// More topics than this are only counted where people read.
const TOPICS_SHOWN: usize = 20;

/// The result, and what `--dry-run` shows.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub slot: String,
    pub dry_run: bool,
    /// Rows were published, and the slot was made anew.
    pub healed: bool,
    pub reason: String,
    pub table: Option<String>,
    pub all_rows: Option<bool>,
    /// The oldest transaction whose rows may be unpublished. None: all rows.
    pub horizon: Option<u64>,
    /// Published, or to be published.
    pub rows: Option<u64>,
    /// Left out, as the settings ask.
    pub skipped: Option<u64>,
    /// Left in `walpost.parked_messages`, and put there now: behind others of their key, and because they cannot be sent.
    pub parked: Option<u64>,
    pub waiting: Option<u64>,
    pub set_aside: Option<u64>,
    /// Rows that cannot be published as they are, where that was looked at beforehand.
    pub unsendable: Option<u64>,
    /// Of the rows, those that have `published_at`.
    pub marked: Option<u64>,
    pub first_id: Option<String>,
    pub last_id: Option<String>,
    pub topics: Option<BTreeMap<String, u64>>,
    pub select: Option<String>,
    pub row_filter: Option<String>,
    /// Of the new record.
    pub epoch: Option<i64>,
    pub streams_from: Option<String>,
}

impl Report {
    pub fn healthy(config: &Config, options: &RecoverOptions, reason: String) -> Report {
        Report {
            slot: config.postgres.slot.clone(),
            dry_run: options.dry_run,
            healed: false,
            reason,
            table: None,
            all_rows: None,
            horizon: None,
            rows: None,
            skipped: None,
            parked: None,
            waiting: None,
            set_aside: None,
            unsendable: None,
            marked: None,
            first_id: None,
            last_id: None,
            topics: None,
            select: None,
            row_filter: None,
            epoch: None,
            streams_from: None,
        }
    }

    pub fn of(config: &Config, options: &RecoverOptions, found: &Found, plan: &Plan, tally: &Tally) -> Report {
        let name = |(topic, count): (&Arc<str>, &u64)| (topic.to_string(), *count);
        Report {
            table: Some(found.table.sql()),
            all_rows: Some(plan.at_risk == AtRisk::All),
            horizon: match plan.at_risk {
                AtRisk::Since(horizon) => Some(horizon),
                AtRisk::All => None,
            },
            rows: Some(tally.rows),
            skipped: Some(tally.skipped),
            parked: Some(tally.parked),
            waiting: Some(tally.waiting),
            set_aside: Some(tally.set_aside),
            marked: plan.mark.then_some(tally.marked),
            first_id: tally.first_id.clone(),
            last_id: tally.last_id.clone(),
            topics: Some(tally.topics.iter().filter(|(_, count)| **count > 0).map(name).collect()),
            select: Some(plan.select.clone()),
            row_filter: plan.row_filter.clone(),
            ..Report::healthy(config, options, plan.reason.clone())
        }
    }

    pub fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", serde_json::to_string_pretty(self).map_err(io::Error::other)?)
    }

    pub fn nothing_to_heal(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "nothing to heal: {}", self.reason)
    }

    /// The rows that are, or would be, published again.
    fn rows(&self, out: &mut dyn Write) -> io::Result<()> {
        let which = match self.horizon {
            Some(horizon) => format!("written by transaction {horizon} or later"),
            None => "all of them".to_owned(),
        };
        let span = match (&self.first_id, &self.last_id) {
            (Some(first), Some(last)) => format!(", from id {first} to {last}"),
            _ => String::new(),
        };
        let table = self.table.as_deref().unwrap_or_default();
        writeln!(out, "rows of {table}, {which}: {}{span}", self.rows.unwrap_or(0))?;
        let topics = self.topics.iter().flatten();
        for (topic, count) in topics.clone().take(TOPICS_SHOWN) {
            writeln!(out, "  {topic}: {count}")?;
        }
        match topics.count().saturating_sub(TOPICS_SHOWN) {
            0 => Ok(()),
            more => writeln!(out, "  and {more} more topics"),
        }
    }

    fn notes(&self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(skipped) = self.skipped.filter(|skipped| *skipped > 0) {
            writeln!(out, "note: {skipped} rows are left out, as the settings ask")?;
        }
        for (count, what) in [
            (self.parked, "are parked already, and stay so"),
            (self.waiting, "wait behind a parked message of their topic and key (walpost parked list)"),
            (self.set_aside, "cannot be sent as they are, and are parked or went to the dead letters"),
        ] {
            if let Some(count) = count.filter(|count| *count > 0) {
                writeln!(out, "note: {count} rows {what}")?;
            }
        }
        if let Some(filter) = &self.row_filter {
            writeln!(out, "note: the publication leaves out every row for which {filter} is not true; so does this")?;
        }
        if let Some(marked) = self.marked.filter(|marked| *marked > 0) {
            writeln!(
                out,
                "note: {marked} of the rows are marked (published_at is set); if only a relay that has published a row ever \
                 marks it, --unmarked-only leaves them out"
            )?;
        }
        writeln!(out, "note: rows that were deleted from the table before are not among them, and cannot be healed")
    }

    /// What would be done. `first_unsendable` is the first of the rows that cannot be published.
    pub fn preview(&self, config: &Config, first_unsendable: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.reason)?;
        self.rows(out)?;
        writeln!(out, "  {}", self.select.as_deref().unwrap_or_default())?;
        if let (Some(count), Some(first)) = (self.unsendable.filter(|count| *count > 0), first_unsendable) {
            let then = match config.on_poison {
                OnPoison::Park => {
                    "which are parked, with what follows for their topics and keys (on_poison = \"park\")"
                }
                OnPoison::DeadLetter => "which go to the dead letters (on_poison = \"dead_letter\")",
                OnPoison::Stop => {
                    "which stops the recovery (on_poison = \"stop\") until they are corrected in the table"
                }
                OnPoison::Skip => "which are logged and left out (on_poison = \"skip\")",
            };
            writeln!(out, "{count} rows cannot be published as they are, {then}; the first one: {first}")?;
        }
        self.notes(out)
    }

    pub fn result(&self, config: &Config, out: &mut dyn Write) -> io::Result<()> {
        let from = self.streams_from.as_deref().unwrap_or_default();
        write!(out, "published again: ")?;
        self.rows(out)?;
        self.notes(out)?;
        writeln!(
            out,
            "slot {}: made anew; it streams what commits from {from} on, in epoch {}",
            self.slot,
            self.epoch.unwrap_or_default()
        )?;
        writeln!(
            out,
            "healed: start the relay {:?} with `walpost run`; one that waits for this goes on by itself",
            config.name
        )
    }
}
