//! `walpost teardown`: the end of a relay. Drops the slot first, so that no WAL is held back any more, then the record,
//! then the publication. It refuses while somebody reads the slot, and never drops what is not walpost's.

use std::io::{BufRead, Write};

use crate::commands::setup::{by_kind, by_sqlstate};
use crate::config::Config;
use crate::names::{TableName, TableNameError, quote_ident};
use crate::postgres::catalog::{self, CatalogError, PublicationFacts, TableLookup};
use crate::postgres::checkpoint::{self, CheckpointError};
use crate::postgres::history::{Seen, Verdict, judge};
use crate::postgres::recovery;
use crate::postgres::slot::{self, SlotError, SlotFacts};
use crate::postgres::{AddressError, Client, ConnectError, Connector, SqlError, steps};

/// What the command line asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct TeardownOptions {
    /// Do not ask.
    pub yes: bool,
}

/// Why nothing, or not everything, was dropped.
#[derive(Debug, thiserror::Error)]
pub enum TeardownError {
    #[error("{}; {}", .0, .0.remedy())]
    Address(AddressError),
    #[error("{}; {}", .0, .0.remedy())]
    Connect(Box<ConnectError>),
    #[error("postgres.table cannot be used")]
    TableName(#[from] TableNameError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Slot(#[from] SlotError),
    #[error("slot {slot} is held by {holder}; stop that relay first, then run `walpost teardown` again")]
    Active { slot: String, holder: String },
    #[error("slot {slot} is being recovered by {holder}; let that finish, or end it first")]
    AtWork { slot: String, holder: String },
    #[error("{reason}. {remedy}")]
    Refused { reason: String, remedy: String },
    #[error("teardown destroys the relay's place in the WAL; say --yes, because there is no terminal to ask on")]
    NotConfirmed,
    #[error("nothing was dropped")]
    Declined,
    #[error("could not drop publication {publication}; its owner is {owner}")]
    Publication { publication: String, owner: String, source: SqlError },
    #[error("could not write the output")]
    Output(#[from] std::io::Error),
}

impl TeardownError {
    /// The exit code of a one-shot command.
    pub fn exit_code(&self) -> u8 {
        match self {
            TeardownError::Address(_) | TeardownError::TableName(_) | TeardownError::Refused { .. } => 78,
            TeardownError::Connect(error) => by_kind(error.kind()),
            TeardownError::Catalog(error) => by_sqlstate(error.sqlstate()),
            TeardownError::Checkpoint(error) => by_sqlstate(error.sqlstate()),
            TeardownError::Slot(error) => by_sqlstate(error.sqlstate()),
            TeardownError::Publication { source, .. } => by_sqlstate(source.code().map(|code| code.code())),
            TeardownError::Active { .. } | TeardownError::AtWork { .. } | TeardownError::Output(_) => 75,
            TeardownError::NotConfirmed => 2,
            TeardownError::Declined => 1,
        }
    }
}

/// Connects and tears down. `ask` is where an answer is read from; None: there is no terminal.
pub async fn run(
    config: &Config,
    options: TeardownOptions,
    ask: Option<&mut (dyn BufRead + Send)>,
    out: &mut (dyn Write + Send),
) -> Result<(), TeardownError> {
    let connector = Connector::new(&config.postgres).map_err(TeardownError::Address)?;
    let session = connector.sql("walpost teardown").await.map_err(|error| TeardownError::Connect(Box::new(error)))?;
    apply(&session.client, config, options, ask, out).await
}

/// Tears down over `client`.
pub async fn apply(
    client: &Client,
    config: &Config,
    options: TeardownOptions,
    ask: Option<&mut (dyn BufRead + Send)>,
    out: &mut (dyn Write + Send),
) -> Result<(), TeardownError> {
    let (slot_name, publication_name) = (config.postgres.slot.as_str(), config.postgres.publication.as_str());
    let name = TableName::parse(&config.postgres.table)?;
    let version = catalog::server_version(client).await?;
    let lookup = catalog::table(client, &name).await?;
    let table = match &lookup {
        TableLookup::Found(table) => Some(&**table),
        TableLookup::Elsewhere { .. } | TableLookup::Missing { .. } => None,
    };
    let publication = catalog::publication(client, version, publication_name, table).await?;
    let slot = slot::facts(client, slot_name).await?;
    let record = match checkpoint::read(client, slot_name).await {
        Ok(record) => record,
        Err(CheckpointError::NotSetUp { .. } | CheckpointError::Unversioned) => None,
        Err(error) => return Err(error.into()),
    };
    let identity = catalog::identity(client).await?;
    let seen = Seen {
        relay: &config.name,
        slot_name,
        slot: slot.as_ref(),
        record: record.as_ref(),
        identity: &identity,
        memory: None,
        fingerprint: None,
        kafka_cluster_id: None,
    };
    if let Verdict::Refused { reason, remedy } = judge(&seen) {
        return Err(TeardownError::Refused { reason, remedy });
    }
    if let Some(holder) = recovery::lock(client, slot_name).await? {
        return Err(TeardownError::AtWork { slot: slot_name.to_owned(), holder });
    }
    if let Some(holder) = slot.as_ref().and_then(SlotFacts::held_by) {
        return Err(TeardownError::Active { slot: slot_name.to_owned(), holder });
    }
    let mut ours = publication.as_ref().filter(|publication| is_ours_alone(publication, &name));
    let mut sharing = Vec::new();
    if let (Some(publication), Some(_)) = (ours, &record) {
        sharing = checkpoint::sharing(client, slot_name, publication.oid).await?;
        if !sharing.is_empty() {
            ours = None;
        }
    }
    if slot.is_none() && record.is_none() && ours.is_none() {
        writeln!(
            out,
            "nothing to tear down: there is no slot {slot_name}, no record of it, and no publication of its own"
        )?;
        return Ok(());
    }

    writeln!(out, "This drops:")?;
    if let Some(slot) = &slot {
        let unsent = slot.lag_bytes().unwrap_or(0);
        writeln!(
            out,
            "  slot {slot_name}: {unsent} bytes of WAL are not confirmed; rows in them will not be published"
        )?;
    }
    if let Some(record) = &record {
        writeln!(out, "  the record of it, confirmed up to {}", record.confirmed_lsn)?;
    }
    if ours.is_some() {
        writeln!(out, "  publication {}", quote_ident(publication_name))?;
    }
    if !options.yes {
        confirm(slot_name, ask, out)?;
    }

    if slot.is_some() {
        slot::drop(client, slot_name).await?;
        writeln!(out, "slot {slot_name}: dropped")?;
    }
    if record.is_some() {
        checkpoint::end(client, slot_name).await?;
        writeln!(out, "record of slot {slot_name}: ended")?;
    }
    match (&publication, ours) {
        (Some(_), Some(publication)) => drop_publication(client, publication, out).await?,
        (Some(publication), None) => writeln!(
            out,
            "publication {}: kept, because {}",
            quote_ident(&publication.name),
            match sharing.as_slice() {
                [] => "it carries more than the outbox".to_owned(),
                slots => format!("it serves slot {} too", slots.join(", ")),
            }
        )?,
        (None, _) => {}
    }
    writeln!(
        out,
        "kept: the table, and schema walpost, which other relays of this database use too (DROP SCHEMA walpost CASCADE)"
    )?;
    Ok(())
}

/// Whether it holds the outbox and nothing else. The table may be renamed or gone by now: one table or none is ours.
fn is_ours_alone(publication: &PublicationFacts, name: &TableName) -> bool {
    let named = |table: &catalog::RelationName| {
        table.name == name.name && name.schema.as_ref().is_none_or(|schema| *schema == table.schema)
    };
    !publication.all_tables && !publication.in_schema && publication.tables.iter().all(named)
}

fn confirm(
    slot: &str,
    ask: Option<&mut (dyn BufRead + Send)>,
    out: &mut (dyn Write + Send),
) -> Result<(), TeardownError> {
    let ask = ask.ok_or(TeardownError::NotConfirmed)?;
    write!(out, "Type the slot's name to go on: ")?;
    out.flush()?;
    let mut answer = String::new();
    ask.read_line(&mut answer)?;
    if answer.trim() == slot { Ok(()) } else { Err(TeardownError::Declined) }
}

async fn drop_publication(
    client: &Client,
    publication: &PublicationFacts,
    out: &mut (dyn Write + Send),
) -> Result<(), TeardownError> {
    let name = quote_ident(&publication.name);
    steps::drop_publication(client, &publication.name).await.map_err(|source| TeardownError::Publication {
        publication: name.clone(),
        owner: publication.owner.clone(),
        source,
    })?;
    writeln!(out, "publication {name}: dropped")?;
    Ok(())
}
