//! The beginning of a session: look at the server, judge whether this relay may stream from the slot and from where, take
//! the slot, and only then change the record. Every way in which that cannot be done now is a [`NotNow`].

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout};

use crate::config::Config;
use crate::error_text::ErrorText as _;
use crate::lsn::Lsn;
use crate::names::TableName;
use crate::parking::Queues;
use crate::postgres::catalog::{self, CatalogError, Identity, PublicationFacts, TableFacts, TableLookup};
use crate::postgres::checkpoint::{
    self, Beginning, Checkpoint, CheckpointError, Recorder, Replaces, State as RecordState,
};
use crate::postgres::control::{self, Control, Keeping};
use crate::postgres::error::{ConnectError, ErrorKind};
use crate::postgres::history::{Seen, Verdict};
use crate::postgres::parked::{self, Lot};
use crate::postgres::schema::{self, TableProblem};
use crate::postgres::slot::{self, SlotFacts};
use crate::postgres::{Connector, Session};
use crate::relay::RunOptions;
use crate::relay::carried::{Carried, Taken};
use crate::relay::session::{Left, Start};
use crate::source::connection::Connection;
use crate::telemetry::State;

mod publication;

/// Shows up in `pg_stat_replication`.
const APPLICATION_NAME: &str = "walpost";
/// The stream gets no feedback before the record is ours, so the server's own patience is the bound, and a wait for a lock
/// must not look like a slow start.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(10);

/// Why a session cannot begin now.
#[derive(Debug)]
pub enum NotNow {
    /// Another session holds the slot.
    Standby { holder: String },
    /// A person must decide; the state says what on.
    Person { state: State, reason: String, remedy: String },
    /// Something is missing that somebody has to make.
    Blocked { reason: String, remedy: String },
    /// It may pass by itself.
    Trouble { kind: ErrorKind, text: String, remedy: String },
}

/// Makes what is missing in Postgres before the first look: `run --setup`.
pub trait Prepare: Send + Sync {
    fn prepare<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), NotNow>>;
}

/// Begins sessions, and remembers between them.
pub struct Starter {
    config: Arc<Config>,
    connector: Connector,
    until_caught_up: bool,
    carried: Carried,
    /// To be done once, before the first look.
    prepare: Option<Box<dyn Prepare>>,
    /// The record cannot be kept: said once.
    said_no_record: bool,
    said_row_filter: bool,
    said_no_parking: bool,
    /// As last seen, in numbers: `170005`.
    version: Option<u32>,
    /// At the last look; the outer None: not looked at since.
    seen_slot: Option<Option<SlotFacts>>,
    /// End once this is confirmed.
    until: Option<Lsn>,
}

/// What a look at the server found.
struct Seeing {
    version: u32,
    identity: Identity,
    table: TableFacts,
    /// What is wrong with the publication, and its remedy.
    problem: Option<(String, String)>,
    fingerprint: String,
    /// None: there is nowhere to keep it.
    record: Option<Option<Checkpoint>>,
    slot: Option<SlotFacts>,
}

impl Starter {
    pub fn new(config: Arc<Config>, connector: Connector, options: RunOptions) -> Starter {
        let RunOptions { prepare, until_caught_up } = options;
        Starter {
            config,
            connector,
            until_caught_up,
            carried: Carried::new(holder()),
            prepare,
            said_no_record: false,
            said_row_filter: false,
            said_no_parking: false,
            version: None,
            seen_slot: None,
            until: None,
        }
    }

    /// The slot as the last look found it, if there was a look since this was last asked.
    pub fn take_seen_slot(&mut self) -> Option<Option<SlotFacts>> {
        self.seen_slot.take()
    }

    /// Of the server as last seen: `17.5`; empty where none was.
    pub fn server_version(&self) -> String {
        self.version.map(|version| format!("{}.{}", version / 10_000, version % 10_000)).unwrap_or_default()
    }

    /// Takes over what a session has left.
    pub fn keep(&mut self, left: Left) {
        self.carried.keep(left, self.config.window.messages.saturating_mul(2));
    }

    /// Looks, judges, takes the slot. Changes nothing in Postgres before the slot is ours, but for what `--setup` makes.
    pub async fn start(&mut self, kafka_cluster: Option<&str>) -> Result<Start, NotNow> {
        let control = self.connector.sql(control::APPLICATION_NAME).await.map_err(connect)?;
        let seeing = self.look(&control).await?;
        let verdict = self.judge(&seeing, kafka_cluster);
        let holder = seeing.slot.as_ref().and_then(SlotFacts::held_by);
        if let (Verdict::PublicationChanged { .. }, Some(Some(record)), None) = (&verdict, &seeing.record, &holder) {
            // Undoing it brings no row back. Where it cannot be noted, the state is said all the same. Who holds the slot looks
            // for itself: it may be this relay that is set up for another publication.
            let _ = checkpoint::mark_changed(&control, &record.slot_name, &record.fingerprint).await;
        }
        let from = self.accept(&verdict)?;
        // After the judgement: a publication that was in order when the epoch began has cost rows since.
        if let Some((reason, remedy)) = seeing.problem {
            return Err(blocked(reason, remedy));
        }
        if let Some(holder) = holder {
            return Err(NotNow::Standby { holder });
        }

        let mut replication = Connection::connect(&self.connector, APPLICATION_NAME).await.map_err(connect)?;
        let system = replication.identify_system().await.map_err(connect)?;
        if (&system.system_identifier, Some(system.timeline))
            != (&seeing.identity.system_identifier, seeing.identity.timeline)
        {
            // What was judged is not what would be read.
            return Err(NotNow::Trouble {
                kind: ErrorKind::Other,
                text: format!("two connections to {} reached two servers", self.connector.describe()),
                remedy: "nothing after a failover, walpost tries again; else list only hosts of one cluster, with \
                         target_session_attrs=read-write"
                    .to_owned(),
            });
        }
        let postgres = &self.config.postgres;
        let stream = match replication.start_replication(&postgres.slot, &postgres.publication, from).await {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::SlotInUse => return Err(self.standby(&control).await?),
            Err(error) => return Err(connect(error)),
        };

        let taking_over = async {
            // The slot is ours, but another relay may have had it between the look and now.
            let again = self.look(&control).await?;
            let verdict = self.judge(&again, kafka_cluster);
            if self.accept(&verdict)? != from {
                let text = "the slot was moved while it was being taken over".to_owned();
                return Err(NotNow::Trouble {
                    kind: ErrorKind::SlotInUse,
                    text,
                    remedy: "nothing: it is tried again".to_owned(),
                });
            }
            self.begin(control, stream, again, &verdict, kafka_cluster).await
        };
        match timeout(TAKE_OVER_WITHIN, taking_over).await {
            Ok(outcome) => outcome,
            Err(_) => Err(NotNow::Trouble {
                kind: ErrorKind::Other,
                text: format!(
                    "the record in walpost.checkpoint could not be taken over within {} s, so nothing is read: another \
                     session holds a lock on it, or Postgres hangs",
                    TAKE_OVER_WITHIN.as_secs()
                ),
                remedy: "end the session that pg_blocking_pids() names for \"walpost control\"; walpost tries again by itself"
                    .to_owned(),
            }),
        }
    }

    /// Who is it that holds the slot?
    async fn standby(&self, control: &Session) -> Result<NotNow, NotNow> {
        let slot = slot::facts(control, &self.config.postgres.slot).await.map_err(catalog_trouble)?;
        let holder = slot.as_ref().and_then(SlotFacts::held_by);
        Ok(NotNow::Standby { holder: holder.unwrap_or_else(|| "a session that has just ended".to_owned()) })
    }

    async fn look(&mut self, client: &Session) -> Result<Seeing, NotNow> {
        let postgres = &self.config.postgres;
        let version = catalog::server_version(client).await.map_err(catalog_trouble)?;
        self.version = Some(version);
        let identity = catalog::identity(client).await.map_err(catalog_trouble)?;
        if identity.timeline.is_none() {
            return Err(NotNow::Trouble {
                kind: ErrorKind::ReadOnly,
                text: format!("{} is a standby in recovery", self.connector.describe()),
                remedy:
                    "connect to the primary: list all hosts with target_session_attrs=read-write; after a failover \
                         walpost goes on by itself"
                        .to_owned(),
            });
        }
        let name = TableName::parse(&postgres.table)
            .map_err(|error| blocked(error.text(), "mend postgres.table (--table)"))?;
        if let Some(prepare) = self.prepare.take() {
            let prepared = prepare.prepare(client).await;
            if let Err(not_prepared) = prepared {
                self.prepare = Some(prepare);
                return Err(not_prepared);
            }
        }
        let lookup = catalog::table(client, &name).await.map_err(catalog_trouble)?;
        let (table, unusable) = match (schema::usable(&name, &lookup), &lookup) {
            (Ok(table), _) => (table.clone(), None),
            // It may have been in the log when the epoch began; that is judged first.
            (
                Err(problem @ (TableProblem::NotInWal { .. } | TableProblem::PartitionsNotInWal { .. })),
                TableLookup::Found(table),
            ) => (table.as_ref().clone(), Some(split(&problem.text()))),
            (Err(problem), _) => return Err(split_remedy(&problem.text())),
        };
        // As it is now; rows in the log may have other columns, and are looked at when they come.
        if let Err(error) = schema::mapped_columns(&self.config, &table) {
            let remedy =
                "mend the setting that the reason names, and restart walpost; a setting may list several names";
            return Err(blocked(error.text(), remedy));
        }
        let publication = catalog::publication(client, version, &postgres.publication, Some(&table));
        let publication = publication.await.map_err(catalog_trouble)?;
        let problem = unusable.or_else(|| publication::problem(publication.as_ref(), &postgres.publication, &table));
        if let Some(filter) = publication.as_ref().and_then(PublicationFacts::row_filter)
            && !std::mem::replace(&mut self.said_row_filter, true)
        {
            tracing::warn!(
                "the publication {} leaves out every row for which {filter} is not true: those rows are never published",
                postgres.publication
            );
        }
        let fingerprint = catalog::fingerprint(client, version, &postgres.publication, &table.schema, &table.name);
        let fingerprint = fingerprint.await.map_err(catalog_trouble)?;
        // The slot before the record: an active relay moves the record first, so this order never sees the slot ahead.
        let slot = slot::facts(client, &postgres.slot).await.map_err(catalog_trouble)?;
        self.seen_slot = Some(slot.clone());
        let record = match checkpoint::read(client, &postgres.slot).await {
            Ok(record) => Some(record),
            Err(error) if error.is_absent() => {
                if !std::mem::replace(&mut self.said_no_record, true) {
                    tracing::warn!(
                        "there is no record of confirmed positions ({}): gap detection is off, and a slot that is moved \
                         or made anew goes unnoticed; `walpost setup` makes it",
                        error.text()
                    );
                }
                None
            }
            Err(error) => return Err(checkpoint_trouble(error)),
        };
        Ok(Seeing { version, identity, table, problem, fingerprint, record, slot })
    }

    fn judge(&mut self, seeing: &Seeing, kafka_cluster: Option<&str>) -> Verdict {
        self.carried.judge(Seen {
            relay: &self.config.name,
            slot_name: &self.config.postgres.slot,
            slot: seeing.slot.as_ref(),
            record: seeing.record.as_ref().and_then(Option::as_ref),
            identity: &seeing.identity,
            memory: None,
            fingerprint: Some(&seeing.fingerprint),
            kafka_cluster_id: kafka_cluster.filter(|id| !id.is_empty()),
        })
    }

    /// From where to ask the server to stream, if at all.
    fn accept(&self, verdict: &Verdict) -> Result<Lsn, NotNow> {
        let person = |state, reason: &String, remedy: &String| {
            Err(NotNow::Person { state, reason: reason.clone(), remedy: remedy.clone() })
        };
        match verdict {
            Verdict::Resume { start_lsn } => Ok(*start_lsn),
            Verdict::NewEpoch { .. } | Verdict::FirstUse { .. } => Ok(Lsn::INVALID),
            Verdict::NotSetUp { reason, remedy } | Verdict::Refused { reason, remedy } => {
                Err(NotNow::Blocked { reason: reason.clone(), remedy: remedy.clone() })
            }
            Verdict::Lost { reason, remedy } => person(State::Lost, reason, remedy),
            Verdict::Recovering { reason, remedy } => person(State::Recovering, reason, remedy),
            Verdict::Gap { reason, remedy, .. } => person(State::Gap, reason, remedy),
            Verdict::PublicationChanged { reason, remedy } => person(State::PublicationChanged, reason, remedy),
        }
    }

    async fn begin(
        &mut self,
        control: Session,
        stream: crate::source::stream::Stream,
        seeing: Seeing,
        verdict: &Verdict,
        kafka_cluster: Option<&str>,
    ) -> Result<Start, NotNow> {
        let Seeing { version, identity, table, problem: _, fingerprint, record, slot } = seeing;
        let config = self.config.clone();
        let postgres = &config.postgres;
        let slot_at = slot.and_then(|slot| slot.confirmed_flush_lsn).unwrap_or(Lsn::INVALID);
        let kept = record.is_some();
        let record = record.flatten();
        let kafka_cluster_id = kafka_cluster.filter(|id| !id.is_empty());
        let beginning = || Beginning {
            slot: &postgres.slot,
            relay: &config.name,
            identity: &identity,
            table_oid: table.oid,
            kafka_cluster_id,
            fingerprint: &fingerprint,
            state: RecordState::Streaming,
            replaces: Replaces::seen(record.as_ref()),
        };

        let same_history = matches!(verdict, Verdict::Resume { .. });
        let (epoch, confirmed) = match (&record, same_history) {
            (Some(record), true) => {
                if let (None, Some(id)) = (&record.kafka_cluster_id, kafka_cluster_id) {
                    checkpoint::set_kafka_cluster(&control, &postgres.slot, id).await.map_err(checkpoint_trouble)?;
                }
                (record.epoch, self.carried.confirmed(record.confirmed_lsn))
            }
            (None, true) => {
                let confirmed = self.carried.memory().map_or(slot_at, |memory| memory.confirmed);
                (self.carried.epoch().unwrap_or_else(unix_seconds), confirmed)
            }
            (_, false) if kept => {
                let begun = checkpoint::begin(&control, beginning()).await.map_err(checkpoint_trouble)?;
                (begun.epoch, begun.confirmed_lsn)
            }
            (_, false) => {
                (self.carried.epoch().map_or_else(unix_seconds, |epoch| unix_seconds().max(epoch + 1)), slot_at)
            }
        };
        match verdict {
            Verdict::NewEpoch { why } => {
                tracing::warn!(epoch, from = %slot_at, "a new epoch begins, and some rows may come again: {why}");
            }
            Verdict::FirstUse { streams_from } => tracing::info!(
                epoch,
                from = %streams_from,
                "the slot {:?} is used for the first time: it streams what committed after {streams_from}; rows that were \
                 in the table before are not published",
                postgres.slot
            ),
            _ => tracing::info!(epoch, from = %confirmed, "streaming goes on after {confirmed}"),
        }
        let (identity, record, now) = (&identity, record.as_ref(), Instant::now());
        self.carried.begin(&Taken { identity, record, kept, same_history, epoch, confirmed, now });

        let keeping = if kept {
            let names = (table.schema.as_str(), table.name.as_str());
            let recorder =
                Recorder::new(version, &postgres.publication, names, &postgres.slot, epoch, self.carried.holder());
            // Also so that this commit flushes every one before it, of sessions that do not wait for theirs.
            checkpoint::make_durable(&control).await.map_err(checkpoint_trouble)?;
            recorder.sign_on(&control).await.map_err(checkpoint_trouble)?;
            Keeping::Record(recorder)
        } else {
            Keeping::Nowhere {
                publication: postgres.publication.clone(),
                schema: table.schema.clone(),
                table: table.name.clone(),
                fingerprint,
                version,
            }
        };
        let (lot, queues) = if kept {
            self.parked(
                &control,
                Lot {
                    slot: postgres.slot.clone(),
                    system_identifier: identity.system_identifier.clone(),
                    epoch,
                    holder: Some(self.carried.holder().to_owned()),
                },
            )
            .await?
        } else {
            (None, None)
        };
        if self.until_caught_up && self.until.is_none() {
            // After the record's own commit everything that was committed before is on disk, below this position.
            self.until = Some(catalog::identity(&control).await.map_err(catalog_trouble)?.flush_lsn);
        }
        Ok(Start {
            stream,
            control: Control::start(
                self.connector.clone(),
                control,
                postgres.slot.clone(),
                identity.clone(),
                table.oid,
                keeping,
                lot,
            ),
            epoch: epoch.unsigned_abs(),
            confirmed,
            remembered: self.carried.remembered().clone(),
            quiet_until: self.carried.quiet_until(Instant::now()),
            until: self.until,
            queues,
            parked_first: self.carried.parked_first(),
        })
    }

    /// What is parked, where there is a table for it and it may be used.
    async fn parked(&mut self, control: &Session, lot: Lot) -> Result<(Option<Lot>, Option<Queues>), NotNow> {
        let version = checkpoint::schema_version(control).await.map_err(checkpoint_trouble)?;
        let why = if version.is_some_and(|version| version >= parked::SINCE_VERSION) {
            match lot.load(control).await {
                Ok(queues) => return Ok((Some(lot), Some(queues))),
                Err(error) if error.sqlstate() == Some("42501") => {
                    "the relay's role may not use it (walpost setup --grants)"
                }
                Err(error) => {
                    let kind = ErrorKind::of_sqlstate(error.sqlstate().unwrap_or_default());
                    return Err(NotNow::Trouble { kind, text: error.text(), remedy: String::new() });
                }
            }
        } else {
            "there is no such table (walpost setup)"
        };
        if !self.said_no_parking {
            self.said_no_parking = true;
            tracing::warn!(
                "nothing can be parked in walpost.parked_messages, because {why}: a message that cannot be sent stops the relay"
            );
        }
        Ok((None, None))
    }
}

/// Host, process and start: no two holders have the same.
fn holder() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{} pid {} {}", host.trim(), std::process::id(), started.as_nanos())
}

fn unix_seconds() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

fn blocked(reason: impl Into<String>, remedy: impl Into<String>) -> NotNow {
    NotNow::Blocked { reason: reason.into(), remedy: remedy.into() }
}

/// A sentence whose second half, after the semicolon, says what to do.
pub fn split_remedy(text: &str) -> NotNow {
    let (reason, remedy) = split(text);
    blocked(reason, remedy)
}

fn split(text: &str) -> (String, String) {
    let (reason, remedy) = text.split_once("; ").unwrap_or((text, "`walpost doctor` shows every precondition"));
    (reason.to_owned(), format!("{remedy}; walpost looks again by itself"))
}

fn connect(error: ConnectError) -> NotNow {
    NotNow::Trouble { kind: error.kind(), text: error.text(), remedy: error.remedy() }
}

fn catalog_trouble(error: CatalogError) -> NotNow {
    let kind = error.sqlstate().map_or(ErrorKind::Unreachable, ErrorKind::of_sqlstate);
    let remedy = match kind {
        ErrorKind::NotPermitted => "run `walpost setup --grants ROLE` as the owner of the table",
        _ => "nothing: walpost tries again by itself",
    };
    NotNow::Trouble { kind, text: error.text(), remedy: remedy.to_owned() }
}

fn checkpoint_trouble(error: CheckpointError) -> NotNow {
    let kind = error.sqlstate().map_or(ErrorKind::Other, ErrorKind::of_sqlstate);
    NotNow::Trouble { kind, text: error.text(), remedy: "nothing, if it passes: walpost tries again".to_owned() }
}
