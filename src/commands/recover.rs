//! `walpost recover`: heals a lost slot from the table. The rows that may not have been published are published again, and
//! a new slot takes over at exactly the point up to which they were seen.
//!
//! ```text
//!  lock ▸ the record says `recovering` ▸ drop what is left of the slot ▸ make a slot, in a transaction
//!       ▸ read the rows at risk in that transaction, publish them, wait for Kafka ▸ write the record of the new slot
//! ```
//!
//! The transaction's snapshot is the slot's consistent point: a row that committed before it is read from the table, one
//! that commits after it comes through the slot. Wherever this is cut off, starting it again starts it over, because the
//! record keeps the old horizon to the end: rows repeat, none is lost. It never streams, and it never makes a slot in place
//! of a sound one.

use std::cell::Cell;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::config::Config;
use crate::lsn::Lsn;
use crate::postgres::checkpoint::{self, Begun, State};
use crate::postgres::parked::{self, Lot, ParkedError};
use crate::postgres::recovery::{self, Recovered};
use crate::postgres::slot::{self, SlotFacts};
use crate::postgres::{Client, ConnectError, Connector, ErrorKind, catalog, fingerprint};
use crate::relay::republish::{Asides, Parked, Preparer, Tally, publish};
use crate::relay::shutdown::Shutdown;
use crate::router::Origin;
use crate::sink::KafkaSink;
use crate::source::table::TableReader;

mod error;
mod plan;
mod print;

pub use error::RecoverError;

use plan::{Found, Outcome, Plan};
use print::Report;

/// Shows up in `pg_stat_activity`.
const APPLICATION_NAME: &str = "walpost recover";
/// A broker has to answer within this; a dry run only asks which cluster it is.
const KAFKA_WITHIN: Duration = Duration::from_secs(30);
const KAFKA_LOOK_WITHIN: Duration = Duration::from_secs(5);
/// How long the slot may wait for open transactions.
const SLOT_WITHIN: Duration = Duration::from_secs(600);
/// What is left of a recovery that was killed goes by itself within seconds.
const RELEASE_WITHIN: Duration = Duration::from_secs(15);
const FIRST_PROGRESS: Duration = Duration::from_secs(3);
const NEXT_PROGRESS: Duration = Duration::from_secs(15);
/// Requests of an earlier holder of the slot that died may still reach the brokers for so long.
const QUIET: Duration = Duration::from_secs(5);
const WATCH_EVERY: Duration = Duration::from_secs(10);

/// What the command line asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecoverOptions {
    /// Show what would be published; change nothing.
    pub dry_run: bool,
    /// Do not ask.
    pub yes: bool,
    pub json: bool,
    /// Publish every row of the table, whatever the record says of them.
    pub all_rows: bool,
    /// The cluster was made of the recorded one by pg_upgrade.
    pub after_pg_upgrade: bool,
    /// Leave out rows whose `published_at` is set.
    pub unmarked_only: bool,
}

/// Recovers. `ask` is where an answer is read from; None: there is no terminal.
pub async fn run(
    config: Config,
    options: RecoverOptions,
    ask: Option<&mut (dyn BufRead + Send)>,
    out: &mut (dyn Write + Send),
) -> Result<(), RecoverError> {
    let connector = Connector::new(&config.postgres).map_err(RecoverError::Address)?;
    let config = Arc::new(config);
    let control = connector.sql(APPLICATION_NAME).await.map_err(|error| RecoverError::Connect(Box::new(error)))?;
    // A row of the table has no place in the topics that could be looked for.
    let mut sink = KafkaSink::start(Arc::new(Config { read_back: false, ..(*config).clone() }))?;
    let within = if options.dry_run { KAFKA_LOOK_WITHIN } else { KAFKA_WITHIN };
    let cluster = match meet_kafka(&mut sink, within).await {
        Ok(cluster) => Some(cluster).filter(|id| !id.is_empty()),
        Err(error) if options.dry_run => {
            tracing::warn!("no broker answers ({error}), so it was not looked whether this is the recorded cluster");
            None
        }
        Err(error) => return Err(RecoverError::NoKafka(error)),
    };
    let found = Found::look(&control, &config).await?;
    let plan = match found.outcome(&config, &options, cluster.as_deref())? {
        Outcome::Heal(plan) => plan,
        Outcome::Healthy(reason) => {
            let report = Report::healthy(&config, &options, reason);
            return Ok(if options.json { report.json(out) } else { report.nothing_to_heal(out) }?);
        }
    };
    if options.dry_run || !options.yes {
        let ask = match (options.dry_run, ask) {
            (false, None) => return Err(RecoverError::NotConfirmed),
            (_, ask) => ask,
        };
        let parked = load_parked(&control, &lot(&config, &found, &plan)).await?;
        let (report, first_unsendable) = preview(&connector, &config, &options, &found, &plan, parked).await?;
        if options.json && options.dry_run {
            return Ok(report.json(out)?);
        }
        // Standard output is for the result alone where that is JSON.
        let mut errors = std::io::stderr();
        let said: &mut (dyn Write + Send) = if options.json { &mut errors } else { &mut *out };
        report.preview(&config, first_unsendable.as_deref(), said)?;
        if options.dry_run {
            writeln!(said, "nothing was changed")?;
            return Ok(());
        }
        confirm(&config, ask, said)?;
    }

    let mut shutdown = Shutdown::on_signals().map_err(RecoverError::Signals)?;
    let recovery =
        Recovery { config: &config, options, connector, control: &control, cluster, marked: Cell::new(false) };
    let healed = tokio::select! {
        biased;
        () = shutdown.asked() => Err(RecoverError::Interrupted),
        healed = recovery.heal(&mut sink) => healed,
    };
    match healed {
        Ok(report) if options.json => Ok(report.json(out)?),
        Ok(report) if report.healed => Ok(report.result(&config, out)?),
        Ok(report) => Ok(report.nothing_to_heal(out)?),
        Err(error) => {
            if let Some(advice) = error.advice() {
                tracing::warn!("what to do: {advice}");
            }
            if recovery.marked.get() {
                tracing::warn!(
                    "the recovery of slot {} is not finished, and no relay streams until it is: run `walpost recover` again; \
                     it starts over, and rows that were published already repeat",
                    config.postgres.slot
                );
            }
            Err(error)
        }
    }
}

/// The id of the cluster that answers, or why none does.
async fn meet_kafka(sink: &mut KafkaSink, within: Duration) -> Result<String, String> {
    let until = Instant::now() + within;
    loop {
        sink.turn(Instant::now(), &mut Vec::new());
        let error = sink.connection().1.map(str::to_owned);
        let pause = match sink.cluster() {
            Some(Ok(cluster)) => return Ok(cluster.id.clone()),
            Some(Err(answer)) => {
                let answer = error.unwrap_or_else(|| answer.clone());
                if Instant::now() >= until {
                    return Err(answer);
                }
                sink.ask_cluster();
                Duration::from_secs(1)
            }
            None if Instant::now() >= until => return Err(error.unwrap_or_else(|| "no answer in time".to_owned())),
            None => Duration::from_millis(100),
        };
        let _ = timeout(pause, sink.woken()).await;
    }
}

/// Reads the rows as they are now, and counts what they would become.
async fn preview(
    connector: &Connector,
    config: &Config,
    options: &RecoverOptions,
    found: &Found,
    plan: &Plan,
    parked: Option<Parked>,
) -> Result<(Report, Option<String>), RecoverError> {
    let mut reader = TableReader::connect(connector, APPLICATION_NAME).await.map_err(replication)?;
    reader.begin().await.map_err(replication)?;
    reader.open(&plan.select, plan.relation.clone()).await.map_err(|error| reading(found, error))?;
    let mut preparer = Preparer::new(config, &plan.relation, Origin::Recover, parked)?;
    let (mut unsendable, mut first) = (0, None);
    while !reader.is_at_end() {
        reader.fetch().await.map_err(replication)?;
        while let Some(row) = reader.row().await.map_err(replication)? {
            if let Err(error) = preparer.prepare(&row) {
                unsendable += 1;
                first.get_or_insert_with(|| error.to_string());
            }
        }
    }
    let report = Report::of(config, options, found, plan, &preparer.tally);
    Ok((Report { unsendable: Some(unsendable), ..report }, first))
}

/// Where rows are parked that cannot be sent.
fn lot(config: &Config, found: &Found, plan: &Plan) -> Lot {
    Lot {
        slot: config.postgres.slot.clone(),
        system_identifier: found.identity.system_identifier.clone(),
        epoch: plan.record.epoch,
        holder: None,
    }
}

/// What is parked; None: nothing can be.
async fn load_parked(client: &Client, lot: &Lot) -> Result<Option<Parked>, RecoverError> {
    let version = checkpoint::schema_version(client).await?;
    if version.is_none_or(|version| version < parked::SINCE_VERSION) {
        return Ok(None);
    }
    let loaded = async { Ok(Parked { queues: lot.load(client).await?, message_ids: lot.message_ids(client).await? }) };
    match loaded.await {
        Ok(parked) => Ok(Some(parked)),
        Err(error @ ParkedError::Failed { .. }) if error.sqlstate() == Some("42501") => {
            tracing::warn!(
                "the role may not use walpost.parked_messages (walpost setup --grants), so nothing can be parked"
            );
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn confirm(
    config: &Config,
    ask: Option<&mut (dyn BufRead + Send)>,
    out: &mut (dyn Write + Send),
) -> Result<(), RecoverError> {
    let ask = ask.ok_or(RecoverError::NotConfirmed)?;
    let slot = &config.postgres.slot;
    writeln!(
        out,
        "These rows are published (again: consumers drop repeats by their id), what is left of slot {slot} is dropped, and \
         the slot is made anew."
    )?;
    write!(out, "Type the slot's name to go on: ")?;
    out.flush()?;
    let mut answer = String::new();
    ask.read_line(&mut answer)?;
    if answer.trim() == slot { Ok(()) } else { Err(RecoverError::Declined) }
}

fn replication(error: ConnectError) -> RecoverError {
    RecoverError::Replication(Box::new(error))
}

/// A role may not read the table, or row security would leave rows out for it.
fn reading(found: &Found, error: ConnectError) -> RecoverError {
    match (error.kind(), error.failure()) {
        (ErrorKind::NotPermitted, Some(failure)) => {
            RecoverError::Unreadable { table: found.table.sql(), failure: failure.to_string() }
        }
        _ => replication(error),
    }
}

struct Recovery<'a> {
    config: &'a Config,
    options: RecoverOptions,
    connector: Connector,
    /// Holds the lock. Idle while rows are published, but for a look now and then.
    control: &'a Client,
    cluster: Option<String>,
    /// The record says `recovering`.
    marked: Cell<bool>,
}

impl Recovery<'_> {
    async fn heal(&self, sink: &mut KafkaSink) -> Result<Report, RecoverError> {
        let (config, control) = (self.config, self.control);
        let slot_name = &config.postgres.slot;
        if let Some(holder) = recovery::lock(control, slot_name).await? {
            return Err(RecoverError::AtWork { slot: slot_name.clone(), holder });
        }
        // Another recovery may have ended, or a relay begun, before the lock was ours.
        let found = Found::look(control, config).await?;
        let plan = match found.outcome(config, &self.options, self.cluster.as_deref())? {
            Outcome::Heal(plan) => plan,
            Outcome::Healthy(reason) => return Ok(Report::healthy(config, &self.options, reason)),
        };
        let lot = lot(config, &found, &plan);
        let parked = load_parked(control, &lot).await?;
        let can_park = parked.is_some();
        let mut preparer = Preparer::new(config, &plan.relation, Origin::Recover, parked)?;
        let mut reader = TableReader::connect(&self.connector, APPLICATION_NAME).await.map_err(replication)?;
        // What the role may not read, it shall not find out with the slot dropped.
        reader.begin().await.map_err(replication)?;
        self.patiently("for a lock on the table", reader.open(&plan.select, plan.relation.clone()))
            .await
            .map_err(|error| reading(&found, error))?;
        reader.end().await.map_err(replication)?;

        let quiet_until = Instant::now() + if plan.record.state == State::SignedOff { Duration::ZERO } else { QUIET };
        checkpoint::make_durable(control).await?;
        // A server process that waits for a lock must not write the record when this process is long gone. Not every platform
        // of a server can look for that; the lock of the recovery is held until then, so no other one is met by it.
        let _ = control.batch_execute("SET client_connection_check_interval = '2s'").await;
        tracing::info!("{}: healing it from the table {}", plan.reason, found.table.sql());
        let holder = format!("{APPLICATION_NAME}, process {}", std::process::id());
        if !self.patiently("for a lock on walpost.checkpoint", recovery::begin(control, &plan.record, &holder)).await? {
            return Err(RecoverError::Changed { slot: slot_name.clone() });
        }
        self.marked.set(true);
        self.drop_slot(&plan).await?;
        let storage = recovery::storage(control, found.table.oid).await?;
        reader.begin().await.map_err(replication)?;
        let consistent_point = self.make_slot(&mut reader).await?;
        tracing::info!(
            "slot {slot_name} is made: what committed before {consistent_point} is published from the table, what commits \
             after it will stream"
        );
        self.patiently("for a lock on the table", reader.open(&plan.select, plan.relation.clone()))
            .await
            .map_err(|error| reading(&found, error))?;
        // From here on the transaction has a lock on the table that keeps it as it is.
        if recovery::rewritten(&storage, &recovery::storage(control, found.table.oid).await?) {
            return Err(RecoverError::Rewritten { table: found.table.sql() });
        }
        if Instant::now() < quiet_until {
            tracing::info!("waiting for requests of the slot's last holder to pass, at most {} s", QUIET.as_secs());
            sleep_until(quiet_until).await;
        }
        let asides = can_park.then(|| Asides::new(control, config, lot, consistent_point));
        tokio::select! {
            published = publish(config, &mut reader, &mut preparer, sink, asides) => published?,
            gone = self.watch_slot(consistent_point) => return Err(gone),
        }
        reader.end().await.map_err(replication)?;
        let begun = self.finish(&found, &plan, consistent_point).await?;
        self.marked.set(false);
        Ok(self.report(&found, &plan, &preparer.tally, begun))
    }

    fn report(&self, found: &Found, plan: &Plan, tally: &Tally, begun: Begun) -> Report {
        Report {
            healed: true,
            epoch: Some(begun.epoch),
            streams_from: Some(begun.confirmed_lsn.to_string()),
            ..Report::of(self.config, &self.options, found, plan, tally)
        }
    }

    /// Waits for something of which Postgres gives no sign while it waits itself, and says so.
    async fn patiently<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut pause = FIRST_PROGRESS;
        loop {
            match timeout(pause, &mut work).await {
                Ok(done) => return done,
                Err(_) => tracing::info!("waiting {what}"),
            }
            pause = NEXT_PROGRESS;
        }
    }

    /// Drops what is left of the slot: the lost or moved one, or the one that an interrupted recovery made.
    async fn drop_slot(&self, plan: &Plan) -> Result<(), RecoverError> {
        let name = &self.config.postgres.slot;
        let until = Instant::now() + if plan.interrupted { RELEASE_WITHIN } else { Duration::ZERO };
        loop {
            let Some(facts) = slot::facts(self.control, name).await? else { return Ok(()) };
            match facts.held_by() {
                None => break,
                Some(holder) if Instant::now() >= until => {
                    return Err(RecoverError::Active { slot: name.clone(), holder });
                }
                Some(_) => sleep(Duration::from_millis(200)).await,
            }
        }
        match slot::drop(self.control, name).await {
            Ok(()) => tracing::info!("slot {name}: what was left of it is dropped"),
            // Gone in this moment: it was being made by a recovery that was killed.
            Err(error) if error.sqlstate() == Some("42704") => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn make_slot(&self, reader: &mut TableReader) -> Result<Lsn, RecoverError> {
        let name = &self.config.postgres.slot;
        let pid = reader.pid();
        let until = Instant::now() + SLOT_WITHIN;
        let mut making = std::pin::pin!(reader.create_slot(name));
        let mut pause = FIRST_PROGRESS;
        loop {
            if let Ok(made) = timeout(pause, &mut making).await {
                return made.map_err(replication);
            }
            pause = NEXT_PROGRESS;
            let mut open = slot::open_transactions(self.control, 5).await?;
            open.retain(|transaction| transaction.pid.is_none() || transaction.pid != pid);
            if Instant::now() >= until {
                let within_s = SLOT_WITHIN.as_secs();
                return Err(RecoverError::Blocked { slot: name.clone(), within_s, open });
            }
            let mut whom: Vec<String> = open.iter().take(3).map(ToString::to_string).collect();
            whom.extend((open.len() > 3).then(|| "and others".to_owned()));
            let whom = if whom.is_empty() { String::new() } else { format!(": {}", whom.join("; ")) };
            tracing::info!("slot {name}: waiting for the transactions that are open to end{whom}");
        }
    }

    /// Ends only when the new slot can no longer take over.
    async fn watch_slot(&self, consistent_point: Lsn) -> RecoverError {
        loop {
            sleep(WATCH_EVERY).await;
            match slot::facts(self.control, &self.config.postgres.slot).await {
                Ok(slot) => {
                    if let Some(error) = self.slot_fault(slot.as_ref(), consistent_point) {
                        return error;
                    }
                }
                Err(error) => return error.into(),
            }
        }
    }

    fn slot_fault(&self, slot: Option<&SlotFacts>, consistent_point: Lsn) -> Option<RecoverError> {
        let what = match slot {
            None => "was dropped".to_owned(),
            Some(slot) => match (slot.lost(), slot.confirmed_flush_lsn) {
                (Some(reason), _) => {
                    format!("was given up by Postgres ({reason}: {})", slot::invalidation_advice(reason))
                }
                (None, at) if at != Some(consistent_point) => "was moved or made again by somebody else".to_owned(),
                (None, _) => return None,
            },
        };
        Some(RecoverError::SlotGone { slot: self.config.postgres.slot.clone(), what })
    }

    async fn finish(&self, found: &Found, plan: &Plan, consistent_point: Lsn) -> Result<Begun, RecoverError> {
        let (postgres, control) = (&self.config.postgres, self.control);
        let (schema, table) = (&found.table.schema, &found.table.name);
        let now = catalog::fingerprint(control, found.version, &postgres.publication, schema, table).await?;
        if now != found.fingerprint {
            return Err(RecoverError::PublicationChanged { what: fingerprint::difference(&found.fingerprint, &now) });
        }
        let slot = slot::facts(control, &postgres.slot).await?;
        if let Some(fault) = self.slot_fault(slot.as_ref(), consistent_point) {
            return Err(fault);
        }
        let new = Recovered {
            record: &plan.record,
            consistent_point,
            identity: &found.identity,
            table_oid: found.table.oid,
            kafka_cluster_id: self.cluster.as_deref(),
            fingerprint: &found.fingerprint,
        };
        let begun = self.patiently("for a lock on walpost.checkpoint", recovery::finish(control, new)).await?;
        begun.ok_or_else(|| RecoverError::Changed { slot: postgres.slot.clone() })
    }
}
