//! What is looked at before anything is changed, and what follows from it: nothing to heal, a refusal, or which rows are to
//! be published again.

use std::sync::Arc;

use super::RecoverOptions;
use super::error::RecoverError;
use crate::config::Config;
use crate::names::TableName;
use crate::outbox::{Field, Mapping};
use crate::postgres::Client;
use crate::postgres::catalog::{self, Identity, PublicationFacts, TableFacts};
use crate::postgres::checkpoint::{self, Checkpoint, CheckpointError};
use crate::postgres::history::{Seen, Verdict, judge};
use crate::postgres::recovery::{self, AtRisk, MARK, Selection, StreamedColumn, Untold};
use crate::postgres::schema::{self, Present, StepKind, Wanted};
use crate::postgres::slot::{self, SlotFacts};
use crate::source::Relation;

/// What was found.
pub(super) struct Found {
    pub version: u32,
    pub identity: Identity,
    pub table: TableFacts,
    pub publication: Option<PublicationFacts>,
    pub fingerprint: String,
    pub slot: Option<SlotFacts>,
    pub record: Option<Checkpoint>,
    columns: Vec<StreamedColumn>,
    next_transaction: u64,
    current_schema: String,
}

/// What follows.
pub(super) enum Outcome {
    /// The slot is sound; who reads it.
    Healthy(String),
    Heal(Box<Plan>),
}

/// Which rows are published, and why.
pub(super) struct Plan {
    pub reason: String,
    /// The record says `recovering` already: of the slot nothing is worth keeping, whoever made it.
    pub interrupted: bool,
    pub record: Checkpoint,
    pub at_risk: AtRisk,
    pub relation: Arc<Relation>,
    pub select: String,
    pub row_filter: Option<String>,
    /// The table has a column that says which rows a polling relay has published.
    pub mark: bool,
}

impl Found {
    pub async fn look(client: &Client, config: &Config) -> Result<Found, RecoverError> {
        let postgres = &config.postgres;
        let version = catalog::server_version(client).await?;
        let identity = catalog::identity(client).await?;
        if identity.timeline.is_none() {
            return Err(RecoverError::Standby);
        }
        let record = match checkpoint::read(client, &postgres.slot).await {
            Ok(record) => record,
            Err(CheckpointError::NotSetUp { .. } | CheckpointError::Unversioned) => None,
            Err(error) => return Err(error.into()),
        };
        let name = TableName::parse(&postgres.table)?;
        let lookup = catalog::table(client, &name).await?;
        let table = schema::usable(&name, &lookup)?.clone();
        let publication = catalog::publication(client, version, &postgres.publication, Some(&table)).await?;
        let fingerprint = catalog::fingerprint(client, version, &postgres.publication, &table.schema, &table.name);
        Ok(Found {
            version,
            identity,
            fingerprint: fingerprint.await?,
            slot: slot::facts(client, &postgres.slot).await?,
            record,
            columns: recovery::columns(client, table.oid).await?,
            next_transaction: recovery::next_transaction(client).await?,
            current_schema: catalog::current_schema(client).await?,
            table,
            publication,
        })
    }

    /// Judges as `run` would, and then which rows are at risk.
    pub fn outcome(
        &self,
        config: &Config,
        options: &RecoverOptions,
        kafka_cluster_id: Option<&str>,
    ) -> Result<Outcome, RecoverError> {
        let slot_name = config.postgres.slot.as_str();
        let seen = Seen {
            relay: &config.name,
            slot_name,
            slot: self.slot.as_ref(),
            record: self.record.as_ref(),
            identity: &self.identity,
            memory: None,
            fingerprint: Some(&self.fingerprint),
            kafka_cluster_id,
        };
        let holder = self.slot.as_ref().and_then(SlotFacts::held_by);
        let (reason, interrupted) = match judge(&seen) {
            Verdict::Refused { reason, remedy } => return Err(RecoverError::Refused { reason, remedy }),
            Verdict::NotSetUp { reason, .. } => {
                return Err(RecoverError::NoRecord { reason, remedy: "`walpost setup` makes it" });
            }
            Verdict::FirstUse { streams_from } => {
                let reason = format!(
                    "there is no record of slot {slot_name}, so nothing tells which rows were published; it streams what \
                     commits after {streams_from}"
                );
                return Err(RecoverError::NoRecord { reason, remedy: "`walpost run` takes it over as it is" });
            }
            Verdict::Resume { start_lsn } => {
                let reader = holder.map_or(String::new(), |holder| format!(", and {holder} reads it"));
                return Ok(Outcome::Healthy(format!("slot {slot_name} streams on from {start_lsn}{reader}")));
            }
            Verdict::NewEpoch { why } => {
                let what = format!("slot {slot_name} is sound; the next run begins a new epoch, because {why}");
                return Ok(Outcome::Healthy(what));
            }
            Verdict::Lost { reason, .. } | Verdict::Gap { reason, .. } | Verdict::PublicationChanged { reason, .. } => {
                (reason, false)
            }
            Verdict::Recovering { reason, .. } => (reason, true),
        };
        // What an interrupted recovery has left goes by itself; that is waited for.
        if let Some(holder) = holder.filter(|_| !interrupted) {
            return Err(RecoverError::Active { slot: slot_name.to_owned(), holder });
        }
        let publication = self.publication_in_order(config)?;
        let Some(record) = self.record.clone() else {
            let remedy = "`walpost setup` makes what is missing";
            return Err(RecoverError::NoRecord { reason, remedy });
        };
        let at_risk = match options.all_rows {
            true => AtRisk::All,
            false => {
                let (next, upgraded) = (self.next_transaction, options.after_pg_upgrade);
                recovery::at_risk(&record, &self.identity, self.table.oid, next, upgraded)
                    .map_err(|untold| RecoverError::Untold { reason: reason.clone(), remedy: hint(&untold), untold })?
            }
        };
        let mark = self.columns.iter().any(|column| column.name == MARK);
        if options.unmarked_only && !mark {
            return Err(RecoverError::NoMark);
        }
        let relation = recovery::streamed_relation(&self.table, &self.columns, publication, self.version);
        let order_by = self.order_by(config)?;
        let row_filter = publication.row_filter().map(str::to_owned);
        let selection = Selection {
            table: &self.table,
            columns: &relation.columns,
            at_risk,
            row_filter: row_filter.as_deref(),
            order_by: order_by.as_deref(),
            mark,
            unmarked_only: options.unmarked_only,
        };
        let select = selection.sql();
        Ok(Outcome::Heal(Box::new(Plan {
            reason,
            interrupted,
            record,
            at_risk,
            relation: Arc::new(relation),
            select,
            row_filter,
            mark,
        })))
    }

    /// The column of the field `id`, if a sequence fills it. It need not be published.
    fn order_by(&self, config: &Config) -> Result<Option<String>, RecoverError> {
        let mapping = Mapping::resolve(&self.table.relation(), &config.columns, config.preset)
            .map_err(schema::ColumnsError::from)?;
        let name = mapping.column_name(Field::Id);
        let column = name.and_then(|name| self.columns.iter().find(|column| *column.name == **name));
        Ok(column.filter(|column| column.sequence).map(|column| column.name.clone()))
    }

    /// What commits after the new slot was made has to come through it.
    fn publication_in_order(&self, config: &Config) -> Result<&PublicationFacts, RecoverError> {
        let columns = schema::mapped_columns(config, &self.table)?;
        let name = &config.postgres.publication;
        let publication = self.publication.as_ref().filter(|found| found.covers() && found.inserts);
        let Some(publication) = publication else {
            let table_name = TableName::parse(&config.postgres.table)?;
            let wanted = Wanted {
                table: &table_name,
                publication: name,
                slot: &config.postgres.slot,
                columns: Some(columns),
                create_table: None,
                grants: None,
            };
            let present = Present {
                version: self.version,
                table: Some(&self.table),
                publication: self.publication.as_ref(),
                // Nothing is read with the one that is there.
                slot: None,
                schema_version: Some(checkpoint::SCHEMA_VERSION),
                current_schema: &self.current_schema,
            };
            let plan = schema::plan(&wanted, &present);
            let undone = plan.steps.iter().filter(|step| step.kind == StepKind::Publication && !step.done);
            let script: Vec<String> = undone.map(|step| step.script().replace('\n', " ")).collect();
            let table = self.table.sql();
            return Err(RecoverError::Refused {
                reason: format!(
                    "the publication {name} does not carry the inserts into {table}, so nothing would stream"
                ),
                remedy: format!("As the owner of the table run: {}", script.join(" ")),
            });
        };
        match publication.shared() {
            Some((reason, remedy)) => Err(RecoverError::Refused { reason, remedy }),
            None => Ok(publication),
        }
    }
}

/// A way out that only one of the reasons has.
fn hint(untold: &Untold) -> &'static str {
    match untold {
        Untold::Cluster { .. } => {
            "if this cluster was made of the recorded one by pg_upgrade, its transaction ids go on, and `walpost recover \
             --after-pg-upgrade` heals exactly; else "
        }
        Untold::Database { .. }
        | Untold::Table { .. }
        | Untold::NoHorizon
        | Untold::Ahead { .. }
        | Untold::TooOld { .. } => "",
    }
}
