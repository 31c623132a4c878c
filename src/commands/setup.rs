//! `walpost setup`: brings about what a database lacks, publication before slot, and says each thing that it did or
//! found. It may be run any number of times. It never makes a slot in place of one that was lost, and never hides a
//! gap: for those it says what is known and who must decide.

use std::io::Write;
use std::time::Duration;

use crate::config::{Config, Preset};
use crate::lsn::Lsn;
use crate::names::{TableName, quote_ident};
use crate::postgres::catalog::{self, Identity, PublicationFacts, TableFacts, TableLookup};
use crate::postgres::checkpoint::{self, Beginning, Checkpoint, CheckpointError, Replaces, State};
use crate::postgres::history::{Seen, Verdict, judge};
use crate::postgres::schema::{self, Plan, Present, Step, StepKind, Wanted};
use crate::postgres::server::{self, ServerFacts};
use crate::postgres::slot::{self, SlotFacts};
use crate::postgres::steps::{self, Follow};
use crate::postgres::{Client, Connector, Session};

mod error;
mod gap;
mod print;

pub use error::SetupError;
pub use print::print_unseen;

pub(crate) use error::{by_kind, by_sqlstate};

use gap::{Accepted, decide};
use print::{one_line, print};

/// The oldest version that is relayed from: it has messages in pgoutput and statistics of slots.
pub const OLDEST_VERSION: u32 = 140_000;

/// How long the slot may wait for open transactions before `setup` gives up; progress is said meanwhile.
const SLOT_WITHIN: Duration = Duration::from_secs(600);
const FIRST_PROGRESS: Duration = Duration::from_secs(3);
const NEXT_PROGRESS: Duration = Duration::from_secs(15);

/// What the command line asks for.
#[derive(Clone, Debug, Default)]
pub struct SetupOptions {
    /// Write the SQL, touch nothing.
    pub print: bool,
    /// Make the table where there is none, in the form of [`Config::preset`], or walpost's own.
    pub create_table: bool,
    /// Grant this role what a relay needs.
    pub grants: Option<String>,
    /// Take the record from the relay, or for the Kafka cluster, that it names.
    pub adopt: bool,
    /// Go on without the rows that a lost slot, a gap or a changed publication may have cost.
    pub accept_gap: bool,
}

/// What was found before anything was changed.
struct Found {
    server: ServerFacts,
    identity: Identity,
    current_schema: String,
    lookup: TableLookup,
    publication: Option<PublicationFacts>,
    slot: Option<SlotFacts>,
    schema_version: Option<i32>,
    record: Option<Checkpoint>,
    /// Why the record cannot be read, where it is there and the role may not.
    forbidden: Option<CheckpointError>,
    fingerprint: Option<String>,
}

impl Found {
    async fn look(client: &Client, config: &Config, name: &TableName) -> Result<Found, SetupError> {
        let server = server::server(client).await?;
        if server.version < OLDEST_VERSION {
            return Err(SetupError::Version { version: server.version_text });
        }
        let lookup = catalog::table(client, name).await?;
        let table = match &lookup {
            TableLookup::Found(table) => Some(&**table),
            TableLookup::Elsewhere { .. } | TableLookup::Missing { .. } => None,
        };
        let postgres = &config.postgres;
        let publication = catalog::publication(client, server.version, &postgres.publication, table).await?;
        let slot = slot::facts(client, &postgres.slot).await?;
        let (schema_version, record, forbidden) = match checkpoint::read(client, &postgres.slot).await {
            Ok(record) => (checkpoint::schema_version(client).await?, record, None),
            Err(CheckpointError::NotSetUp { .. } | CheckpointError::Unversioned) => (None, None, None),
            Err(error @ CheckpointError::NotPermitted { .. }) => (Some(checkpoint::SCHEMA_VERSION), None, Some(error)),
            Err(error) => return Err(error.into()),
        };
        let (schema, name) = match (table, &record) {
            (Some(table), _) => (table.schema.as_str(), table.name.as_str()),
            (None, _) => (name.schema.as_deref().unwrap_or(""), name.name.as_str()),
        };
        let fingerprint = match &record {
            Some(_) => Some(catalog::fingerprint(client, server.version, &postgres.publication, schema, name).await?),
            None => None,
        };
        Ok(Found {
            identity: catalog::identity(client).await?,
            current_schema: catalog::current_schema(client).await?,
            server,
            lookup,
            publication,
            slot,
            schema_version,
            record,
            forbidden,
            fingerprint,
        })
    }

    fn table(&self) -> Option<&TableFacts> {
        match &self.lookup {
            TableLookup::Found(table) => Some(table),
            TableLookup::Elsewhere { .. } | TableLookup::Missing { .. } => None,
        }
    }

    fn verdict(&self, config: &Config) -> Verdict {
        judge(&Seen {
            relay: &config.name,
            slot_name: &config.postgres.slot,
            slot: self.slot.as_ref(),
            record: self.record.as_ref(),
            identity: &self.identity,
            memory: None,
            fingerprint: self.fingerprint.as_deref(),
            kafka_cluster_id: None,
        })
    }

    fn plan(&self, config: &Config, options: &SetupOptions, name: &TableName) -> Result<Plan, SetupError> {
        let create_table = options.create_table.then(|| config.preset.unwrap_or(Preset::Walpost));
        let columns = match (self.table(), create_table) {
            (Some(table), _) => Some(schema::mapped_columns(config, table)?),
            (None, Some(preset)) => Some(schema::mapped_columns(config, &schema::preset_table(preset))?),
            (None, None) => None,
        };
        let wanted = Wanted {
            table: name,
            publication: &config.postgres.publication,
            slot: &config.postgres.slot,
            columns,
            create_table,
            grants: options.grants.as_deref(),
        };
        let present = Present {
            version: self.server.version,
            table: self.table(),
            publication: self.publication.as_ref(),
            slot: self.slot.as_ref(),
            schema_version: self.schema_version,
            current_schema: &self.current_schema,
        };
        Ok(schema::plan(&wanted, &present))
    }
}

/// Connects and runs setup. The caller has made sure that Kafka answers: a slot that nobody can empty holds WAL back.
///
/// `--print` works without a server too: it then writes every step, for an empty database.
pub async fn run(config: &Config, options: &SetupOptions, out: &mut (dyn Write + Send)) -> Result<(), SetupError> {
    let session = match connect(config).await {
        Ok(session) => session,
        Err(error) if options.print => {
            writeln!(out, "-- {}", one_line(&error.to_string()))?;
            return print_unseen(config, options, out);
        }
        Err(error) => return Err(error),
    };
    // Only to say for whom the slot waits; setup works without it.
    let watcher = if options.print { None } else { connect(config).await.ok() };
    let watcher = watcher.as_ref().map(|session| &session.client);
    apply(&session.client, watcher, config, options, out).await
}

async fn connect(config: &Config) -> Result<Session, SetupError> {
    let connector = Connector::new(&config.postgres).map_err(SetupError::Address)?;
    connector.sql("walpost setup").await.map_err(|error| SetupError::Connect(Box::new(error)))
}

/// Runs setup over `client`. `watcher` is a second session that can say, while the slot waits, for whom it waits.
pub async fn apply(
    client: &Client,
    watcher: Option<&Client>,
    config: &Config,
    options: &SetupOptions,
    out: &mut (dyn Write + Send),
) -> Result<(), SetupError> {
    let name = TableName::parse(&config.postgres.table)?;
    let mut found = Found::look(client, config, &name).await?;
    if !(options.create_table && matches!(found.lookup, TableLookup::Missing { .. })) {
        schema::usable(&name, &found.lookup)?;
    }
    if options.print {
        return print(&found, config, options, &name, out);
    }
    let slot_name = config.postgres.slot.as_str();
    check_server(&found, slot_name)?;
    check_role(client, options).await?;
    if options.adopt {
        adopt(client, config, &mut found, out).await?;
    }
    if let Some((reason, remedy)) = found.publication.as_ref().and_then(PublicationFacts::shared) {
        return Err(SetupError::Refused { reason, remedy });
    }
    let accepted = decide(client, &found, config, options, out).await?;

    let table_made = options.create_table && found.table().is_none();
    if table_made {
        let plan = found.plan(config, options, &name)?;
        for step in plan.steps.iter().filter(|step| step.kind == StepKind::Table) {
            run_step(client, step, None, out).await?;
        }
        found.lookup = catalog::table(client, &name).await?;
    }
    let table = schema::usable(&name, &found.lookup)?.clone();
    let plan = found.plan(config, options, &name)?;
    let mut records = found.forbidden.is_none();
    for step in &plan.steps {
        match step.kind {
            StepKind::Slot => {}
            StepKind::Table if !table_made => said(out, &step.title, "is there")?,
            StepKind::Table => {}
            StepKind::Schema => match run_step(client, step, None, out).await {
                Err(SetupError::Step(error)) if error.sqlstate() == Some("42501") => records = false,
                ran => ran?,
            },
            StepKind::Publication => {
                // A change of setup's own loses no rows, so the record goes along, in the same transaction.
                let record = if accepted.is_none() { found.record.as_ref() } else { None };
                let follow = record.map(|record| Follow {
                    slot: &config.postgres.slot,
                    fingerprint: &record.fingerprint,
                    publication: &config.postgres.publication,
                    table: &table,
                    version: found.server.version,
                });
                run_step(client, step, follow, out).await?;
            }
            StepKind::Grants => run_step(client, step, None, out).await?,
        }
    }
    for note in &plan.notes {
        writeln!(out, "note: {note}")?;
    }
    let made = ensure_slot(client, watcher, &found, config, accepted, out).await?;
    if !records {
        writeln!(
            out,
            "warning: schema walpost may not be made or read by this role, so gap detection is \
            off; run setup as the owner of the database, with --grants for the relay's role"
        )?;
        return Ok(());
    }
    if made || accepted.is_some() || found.record.is_none() {
        begin_record(client, &found, config, &table, out).await?;
    }
    Ok(())
}

fn check_server(found: &Found, slot: &str) -> Result<(), SetupError> {
    let server = &found.server;
    if server.in_recovery {
        return Err(SetupError::Standby);
    }
    if let Some(setting) = server.settings.get("wal_level").filter(|setting| setting.setting != "logical") {
        let pending = if setting.pending_restart { ": another value is set already and waits for it" } else { "" };
        return Err(SetupError::WalLevel { level: setting.setting.clone(), pending });
    }
    let limit = server.number("max_replication_slots").unwrap_or(i64::MAX);
    if found.slot.is_none() && !server.slots.iter().any(|used| used.name == slot) && server.slots.len() as i64 >= limit
    {
        let holders = server.slots.iter().map(|used| used.name.clone()).collect();
        return Err(SetupError::NoSlotLeft { limit, holders });
    }
    Ok(())
}

async fn check_role(client: &Client, options: &SetupOptions) -> Result<(), SetupError> {
    let Some(role) = options.grants.as_deref() else { return Ok(()) };
    if server::role_exists(client, role).await? {
        return Ok(());
    }
    Err(SetupError::NoRole { role: quote_ident(role) })
}

async fn adopt(
    client: &Client,
    config: &Config,
    found: &mut Found,
    out: &mut (dyn Write + Send),
) -> Result<(), SetupError> {
    let slot = config.postgres.slot.as_str();
    let Some(record) = &mut found.record else {
        writeln!(out, "record of slot {slot}: there is none, so nothing to adopt")?;
        return Ok(());
    };
    if let Some(holder) = found.slot.as_ref().and_then(SlotFacts::held_by) {
        return Err(SetupError::SlotHeld { slot: slot.to_owned(), holder });
    }
    checkpoint::adopt(client, slot, &config.name).await?;
    let cluster = record.kafka_cluster_id.take().unwrap_or_else(|| "none yet".to_owned());
    let before = std::mem::replace(&mut record.relay_name, config.name.clone());
    writeln!(
        out,
        "record of slot {slot}: adopted by {:?} (was {before:?}, Kafka cluster {cluster}); the next run stamps it \
        with the cluster that it meets",
        config.name
    )?;
    Ok(())
}

async fn run_step(
    client: &Client,
    step: &Step,
    follow: Option<Follow<'_>>,
    out: &mut (dyn Write + Send),
) -> Result<(), SetupError> {
    if step.done {
        return said(out, &step.title, "is there");
    }
    steps::run(client, step, follow).await?;
    said(out, &step.title, "made")
}

fn said(out: &mut (dyn Write + Send), what: &str, how: &str) -> Result<(), SetupError> {
    writeln!(out, "{what}: {how}")?;
    Ok(())
}

/// Makes the slot where none ever was, or where a person has accepted that it was lost. True: it was made or moved.
async fn ensure_slot(
    client: &Client,
    watcher: Option<&Client>,
    found: &Found,
    config: &Config,
    accepted: Option<Accepted>,
    out: &mut (dyn Write + Send),
) -> Result<bool, SetupError> {
    let name = config.postgres.slot.as_str();
    let table = &config.postgres.table;
    let lsn: Lsn = match (&found.slot, accepted) {
        (Some(slot), None | Some(Accepted::InPlace)) => {
            let at = slot.confirmed_flush_lsn.unwrap_or_default();
            let whose = if found.record.is_some() { "is there" } else { "taken over as it is" };
            writeln!(out, "slot {name}: {whose}; it streams from {at}")?;
            return Ok(false);
        }
        (Some(_), Some(Accepted::Moved)) => {
            let lsn = slot::advance(client, name).await?;
            writeln!(out, "slot {name}: moved to {lsn}, because it could not decode what lies before its publication")?;
            return Ok(true);
        }
        (Some(_), Some(Accepted::Anew)) => {
            slot::drop(client, name).await?;
            writeln!(out, "slot {name}: what was left of it was dropped")?;
            make_slot(client, watcher, found.server.version, name, out).await?
        }
        (None, _) => make_slot(client, watcher, found.server.version, name, out).await?,
    };
    writeln!(
        out,
        "slot {name}: made; it streams what commits from {lsn} on. Rows that are in {table} already are not published"
    )?;
    match found.server.slot_wal_limit_bytes() {
        None => writeln!(
            out,
            "note: while the relay or Kafka is down, the slot holds WAL back, and nothing bounds it \
            (max_slot_wal_keep_size = -1)"
        )?,
        Some(bytes) => writeln!(
            out,
            "note: while the relay or Kafka is down, the slot holds WAL back, and is given up when it is {} MiB \
            behind (max_slot_wal_keep_size)",
            bytes >> 20
        )?,
    }
    Ok(true)
}

async fn make_slot(
    client: &Client,
    watcher: Option<&Client>,
    version: u32,
    name: &str,
    out: &mut (dyn Write + Send),
) -> Result<Lsn, SetupError> {
    let mut making = std::pin::pin!(slot::create(client, version, name, SLOT_WITHIN));
    let mut pause = FIRST_PROGRESS;
    loop {
        tokio::select! {
            made = &mut making => return Ok(made?),
            () = tokio::time::sleep(pause) => {
                pause = NEXT_PROGRESS;
                let open = match watcher {
                    Some(watcher) => slot::open_transactions(watcher, 3).await.unwrap_or_default(),
                    None => Vec::new(),
                };
                let open: Vec<String> = open.iter().map(ToString::to_string).collect();
                let whom = if open.is_empty() { String::new() } else { format!(": {}", open.join("; ")) };
                writeln!(out, "slot {name}: waiting for the transactions that are open to end{whom}")?;
                out.flush()?;
            }
        }
    }
}

async fn begin_record(
    client: &Client,
    found: &Found,
    config: &Config,
    table: &TableFacts,
    out: &mut (dyn Write + Send),
) -> Result<(), SetupError> {
    let postgres = &config.postgres;
    let version = found.server.version;
    let fingerprint = catalog::fingerprint(client, version, &postgres.publication, &table.schema, &table.name).await?;
    let new = Beginning {
        slot: &postgres.slot,
        relay: &config.name,
        identity: &found.identity,
        table_oid: table.oid,
        kafka_cluster_id: None,
        fingerprint: &fingerprint,
        state: State::SignedOff,
        replaces: Replaces::Any,
    };
    let begun = checkpoint::begin(client, new).await?;
    writeln!(
        out,
        "record of slot {}: made for relay {:?}, epoch {}, confirmed up to {}",
        postgres.slot, config.name, begun.epoch, begun.confirmed_lsn
    )?;
    Ok(())
}
