//! Rows on their way to the sink: found in the table's columns, routed, offered; or poison, and what becomes of it.

use super::*;
use crate::outbox::{OutboxMessage, is_ahead};
use crate::parking::Position;

/// An UPDATE of the row would change nothing: the log holds it as it was written.
const POISON_REMEDY: &str = "the row is in the log as it was written, and changing it in the table changes nothing: change \
                             the setting that the reason names and restart walpost; or insert a corrected row, stop \
                             walpost, leave this one out with WALPOST_ON_POISON=skip walpost run --until-caught-up, and \
                             start it again as before";

impl<S: Wire> Session<'_, S> {
    pub(super) fn on_row(&mut self, row: &Row, now: Instant) {
        let Some(transaction) = &mut self.transaction else { return };
        let (commit_lsn, ordinal) = (transaction.commit_lsn, transaction.ordinal);
        transaction.ordinal += 1;
        if self.remembered.contains(commit_lsn, ordinal) {
            self.lent.telemetry.metrics.messages_skipped.inc();
            // Delivered and not recorded yet: the record must not wait for a row that comes later.
            self.rows_since_record = true;
            return;
        }
        if let Err(stop) = self.know_table(row) {
            return self.stop_at(stop.reason, stop.remedy);
        }
        let Some(table) = &self.table else { return };
        let token = Token { epoch: self.epoch, commit_lsn, ordinal };
        let message = match table.mapping.message(row) {
            Ok(message) => message,
            Err(poison) => return self.on_poison(row, None, &poison, token, now),
        };
        if message.available_at.as_deref().is_some_and(|at| is_ahead(at, SystemTime::now())) {
            self.note_early(&message, now);
        }
        match self.lent.router.route(&message, row, token) {
            Ok(Routed::Publish(record)) => {
                let bytes = row.frame.len() + ROW_OVERHEAD;
                if self.parking.holds(&record, Position { commit_lsn, ordinal }) {
                    let described = record.describe();
                    if !self.park_behind(record, ordinal, bytes) {
                        self.stop_full(&described);
                    }
                    return;
                }
                let ticket = self.tracker.row(ordinal, bytes);
                self.offer(ticket, record, now);
            }
            Ok(Routed::Skip(reason)) => {
                tracing::debug!(reason = reason.as_str(), %token, "a row is not published, as the configuration asks");
                self.lent.telemetry.metrics.messages_skipped.inc();
            }
            Err(poison) => self.on_poison(row, Some(&message), &poison, token, now),
        }
    }

    /// A row whose `available_at` lies ahead is published all the same: nothing here waits for a time of day.
    fn note_early(&mut self, message: &OutboxMessage, now: Instant) {
        self.lent.telemetry.metrics.messages_early.inc();
        if self.early_said_at.is_none_or(|at| now.saturating_duration_since(at) >= EARLY_EVERY) {
            self.early_said_at = Some(now);
            tracing::warn!(
                "rows are published although their available_at lies more than a minute ahead ({}): walpost publishes what \
                 commits, when it commits; write such rows when they are due",
                message.describe()
            );
        }
    }

    /// Finds the columns anew when the table has changed.
    pub(super) fn know_table(&mut self, row: &Row) -> Result<(), Stop> {
        if self.table.as_ref().is_some_and(|table| Arc::ptr_eq(&table.relation, &row.relation)) {
            return Ok(());
        }
        let relation = row.relation.clone();
        let stop = |error: crate::outbox::MappingError| Stop {
            reason: format!(
                "the columns of {}.{} cannot be read as an outbox: {error}; the first such row is of the transaction at {}",
                relation.schema,
                relation.name,
                self.transaction.as_ref().map_or(Lsn::INVALID, |transaction| transaction.commit_lsn)
            ),
            remedy: "set the column names (columns.*) so that they fit the table as it was when the row was written, \
                     and restart walpost; a setting may list several names"
                .to_owned(),
        };
        let mapping = Mapping::resolve(&relation, &self.lent.config.columns, self.lent.config.preset).map_err(stop)?;
        self.lent.router.bind(&relation, &mapping).map_err(stop)?;
        tracing::info!(
            table = format!("{}.{}", relation.schema, relation.name),
            preset = mapping.preset().as_str(),
            "rows of {}.{} are read with its columns as they are now",
            relation.schema,
            relation.name
        );
        self.table = Some(Table { relation, mapping });
        Ok(())
    }

    /// A row that cannot become a record.
    fn on_poison(&mut self, row: &Row, message: Option<&OutboxMessage>, poison: &Poison, token: Token, now: Instant) {
        let reason = poison.reason.as_str();
        self.lent.telemetry.metrics.failed(reason);
        let described =
            message.map_or("its fields cannot be read".to_owned(), |message| message.describe().to_string());
        let position = Position { commit_lsn: token.commit_lsn, ordinal: token.ordinal };
        match self.policy() {
            OnPoison::Park if self.park_row(row, message, poison, position) => {}
            OnPoison::Park => self.stop_full(&described),
            OnPoison::DeadLetter => {
                tracing::error!(reason, %token, "sent a row to the dead letters that cannot be published: {described}: {poison}");
                let record = self.lent.router.as_it_is(row, message, token);
                let letter = self.dead_letter(record, reason, &poison.sentence);
                let ticket = self.tracker.row(token.ordinal, row.frame.len() + ROW_OVERHEAD);
                self.offer(ticket, letter, now);
            }
            OnPoison::Skip => {
                tracing::error!(
                    reason,
                    %token,
                    row = row_json(row),
                    "skipped a row that cannot be published, as on_poison = \"skip\" asks: {described}: {poison}"
                );
                self.lent.telemetry.metrics.messages_skipped.inc();
            }
            OnPoison::Stop => self.stop_at(
                format!("a row cannot be published: {described} (token {token}): {poison}"),
                POISON_REMEDY.to_owned(),
            ),
        }
    }
}
