//! `walpost doctor`: every precondition, with what was seen, why it matters, and the exact statement or setting that
//! mends it. It changes nothing, and it tries the real thing where it can: an attribute that is missing proves little
//! on a managed host.
//!
//! One file for each concern, all of them pure: they take facts and give [`Check`]s. This file gathers the facts. What
//! is said of Kafka comes from the caller, as a future ([`kafka::look`]), so that the rest can be tried without.

use std::future::Future;
use std::io::Write;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::config::Config;
use crate::error_text::ErrorText as _;
use crate::names::TableName;
use crate::postgres::catalog::{self, CatalogError, Identity, PublicationFacts, TableFacts, TableLookup};
use crate::postgres::checkpoint::{self, Checkpoint, CheckpointError};
use crate::postgres::schema::{self, Plan, Present, Wanted};
use crate::postgres::server::{self as server_facts, Link, RoleFacts, ServerFacts};
use crate::postgres::slot::{self as slot_facts, OpenTransaction, SlotFacts};
use crate::postgres::{Client, ConnectError, Connector};
use crate::source::connection::{Connection, SystemIdentity};

pub mod connection;
pub mod kafka;
pub mod publication;
pub mod rights;
pub mod server;
pub mod slot;
pub mod table;

/// What the command line asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct DoctorOptions {
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Ok,
    /// It works, but somebody should know.
    Warn,
    /// It does not work, or will lose rows or hurt the database.
    Fail,
    /// It could not be looked at.
    Skip,
}

impl Outcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Warn => "warn",
            Outcome::Fail => "fail",
            Outcome::Skip => "skip",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// `concern.thing`, stable: scripts look for it.
    pub name: &'static str,
    pub outcome: Outcome,
    pub saw: String,
    /// Empty where all is well.
    pub why: String,
    /// The statement or setting that mends it; empty where all is well.
    pub remedy: String,
}

impl Check {
    pub fn ok(name: &'static str, saw: impl Into<String>) -> Check {
        Check { name, outcome: Outcome::Ok, saw: saw.into(), why: String::new(), remedy: String::new() }
    }

    pub fn warn(
        name: &'static str,
        saw: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { name, outcome: Outcome::Warn, saw: saw.into(), why: why.into(), remedy: remedy.into() }
    }

    pub fn fail(
        name: &'static str,
        saw: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { name, outcome: Outcome::Fail, saw: saw.into(), why: why.into(), remedy: remedy.into() }
    }

    pub fn skip(name: &'static str, why: impl Into<String>) -> Check {
        Check { name, outcome: Outcome::Skip, saw: "not looked at".into(), why: why.into(), remedy: String::new() }
    }
}

/// What was found at one of the two ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub checks: Vec<Check>,
    /// The id of the Kafka cluster: the one that answers, or the one that the record names.
    pub kafka_cluster_id: Option<String>,
}

impl From<Vec<Check>> for Findings {
    fn from(checks: Vec<Check>) -> Findings {
        Findings { checks, kafka_cluster_id: None }
    }
}

/// All that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether the exit code is 1.
    pub fn failed(&self) -> bool {
        self.count(Outcome::Fail) > 0
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({ "ok": !self.failed(), "checks": self.checks })
    }

    /// For people: one line a check, and below it, where something is to be done, why and what.
    pub fn text(&self, out: &mut (dyn Write + Send)) -> std::io::Result<()> {
        let width = self.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        for check in &self.checks {
            writeln!(
                out,
                "{:<4}  {:<width$}  {}",
                check.outcome.as_str(),
                check.name,
                indented(&check.saw, width + 8)
            )?;
            for (label, text) in [("why", &check.why), ("do", &check.remedy)] {
                if !text.is_empty() {
                    writeln!(out, "      {:<width$}  {label}: {}", "", indented(text, width + 10 + label.len()))?;
                }
            }
        }
        let [ok, warn, fail, skip] = [Outcome::Ok, Outcome::Warn, Outcome::Fail, Outcome::Skip].map(|o| self.count(o));
        writeln!(out, "{ok} in order, {warn} to know, {fail} to mend, {skip} not looked at")
    }
}

/// The lines after the first, as far in as the first.
fn indented(text: &str, by: usize) -> String {
    text.replace('\n', &format!("\n{:by$}", ""))
}

/// Looks at everything and writes the report. False: something failed, and the exit code is 1.
pub async fn run(
    config: &Config,
    options: DoctorOptions,
    kafka: impl Future<Output = Findings>,
    out: &mut (dyn Write + Send),
) -> std::io::Result<bool> {
    let (postgres, kafka) = tokio::join!(postgres(config), kafka);
    let cluster = kafka::same_cluster(&config.postgres.slot, &postgres, &kafka);
    let checks = [postgres.checks, cluster.into_iter().collect(), kafka.checks].concat();
    let report = Report { checks };
    if options.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        report.text(out)?;
    }
    Ok(!report.failed())
}

/// All checks of Postgres, in the order in which they would stop a relay.
pub async fn postgres(config: &Config) -> Findings {
    let connector = match Connector::new(&config.postgres) {
        Ok(connector) => connector,
        Err(error) => {
            let remedy = error.remedy();
            let check = Check::fail("connection.address", error.text(), "there is nothing to connect to", remedy);
            return vec![check].into();
        }
    };
    let (session, replication) = tokio::join!(connector.sql("walpost doctor"), try_replication(&connector));
    let session = match session {
        Ok(session) => session,
        Err(error) => {
            let mut checks = connection::failed(&connector.describe(), &error, &replication);
            checks.push(Check::skip("postgres", "without an SQL session nothing else can be seen"));
            return checks.into();
        }
    };
    match Facts::gather(&session.client, config).await {
        Ok(facts) => Findings {
            checks: facts.checks(config, &connector.describe(), session.target(), &replication),
            kafka_cluster_id: facts.record.ok().flatten().and_then(|record| record.kafka_cluster_id),
        },
        Err(error) => {
            let why = "without it the rest cannot be judged";
            let remedy = "see the error; doctor needs no more than a plain login to read the catalog";
            vec![Check::fail("postgres", error.text(), why, remedy)].into()
        }
    }
}

/// A replication connection, tried for real.
pub type Replication = Result<Walsender, Box<ConnectError>>;

/// What a replication connection told before it was closed again.
#[derive(Clone, Debug)]
pub struct Walsender {
    pub identity: SystemIdentity,
    pub target: String,
    pub tls: bool,
}

async fn try_replication(connector: &Connector) -> Replication {
    let mut connection = Connection::connect(connector, "walpost doctor").await.map_err(Box::new)?;
    let identity = connection.identify_system().await.map_err(Box::new)?;
    Ok(Walsender { identity, target: connection.target().to_owned(), tls: connection.is_tls() })
}

/// What was read over the SQL session.
struct Facts {
    server: ServerFacts,
    /// Seconds by which the server's clock is ahead of ours, and how exactly that is known.
    skew_seconds: f64,
    skew_error_seconds: f64,
    wal_level_pending: Option<String>,
    identity: Identity,
    link: Link,
    name: Result<TableName, String>,
    lookup: Option<TableLookup>,
    publication: Option<PublicationFacts>,
    fingerprint: Option<String>,
    slot: Option<SlotFacts>,
    record: Result<Option<Checkpoint>, CheckpointError>,
    role: RoleFacts,
    open: Vec<OpenTransaction>,
    current_schema: String,
}

impl Facts {
    async fn gather(client: &Client, config: &Config) -> Result<Facts, CatalogError> {
        let postgres = &config.postgres;
        let (asked, asked_at) = (Instant::now(), SystemTime::now());
        let server = server_facts::server(client).await?;
        let half = asked.elapsed().as_secs_f64() / 2.0;
        let ours = asked_at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()) + half;
        let name = TableName::parse(&postgres.table).map_err(|error| error.to_string());
        let lookup = match &name {
            Ok(name) => Some(catalog::table(client, name).await?),
            Err(_) => None,
        };
        let table = found(lookup.as_ref());
        let fingerprint = match table {
            Some(table) => {
                let (schema, name) = (&table.schema, &table.name);
                Some(catalog::fingerprint(client, server.version, &postgres.publication, schema, name).await?)
            }
            None => None,
        };
        let wal_level_pending = match server.settings.get("wal_level") {
            Some(setting) if setting.pending_restart => server_facts::pending_setting(client, "wal_level").await,
            _ => None,
        };
        Ok(Facts {
            skew_seconds: server.clock - ours,
            skew_error_seconds: half,
            wal_level_pending,
            identity: catalog::identity(client).await?,
            link: server_facts::link(client).await?,
            publication: catalog::publication(client, server.version, &postgres.publication, table).await?,
            fingerprint,
            slot: slot_facts::facts(client, &postgres.slot).await?,
            record: checkpoint::read(client, &postgres.slot).await,
            role: server_facts::role(client, table).await?,
            open: slot_facts::open_transactions(client, 3).await?,
            current_schema: catalog::current_schema(client).await?,
            server,
            name,
            lookup,
        })
    }

    fn checks(&self, config: &Config, address: &str, target: &str, replication: &Replication) -> Vec<Check> {
        let server = &self.server;
        let table = found(self.lookup.as_ref());
        let mapped = table.map(|table| schema::mapped_columns(config, table));
        let columns = mapped.as_ref().and_then(|mapped| mapped.as_ref().ok());
        let mut checks = connection::checks(address, target, &self.link, &self.identity, replication);
        checks.extend(server::checks(&server::Seen {
            server,
            slot: &config.postgres.slot,
            skew_seconds: self.skew_seconds,
            skew_error_seconds: self.skew_error_seconds,
            wal_level_pending: self.wal_level_pending.as_deref(),
        }));
        checks.extend(rights::checks(&self.role, replication, &self.record));
        checks.extend(table::checks(&self.name, self.lookup.as_ref(), mapped.as_ref(), &self.role, server.version));
        let plan = self.name.as_ref().ok().map(|name| self.plan(config, name, columns.cloned()));
        checks.extend(publication::checks(&publication::Seen {
            name: &config.postgres.publication,
            publication: self.publication.as_ref(),
            table,
            columns: columns.map(Vec::as_slice),
            plan: plan.as_ref(),
        }));
        checks.extend(slot::checks(&slot::Seen {
            config,
            server,
            slot: self.slot.as_ref(),
            record: self.record.as_ref().ok().and_then(Option::as_ref),
            identity: &self.identity,
            fingerprint: self.fingerprint.as_deref(),
            open: &self.open,
        }));
        checks
    }

    fn plan(&self, config: &Config, name: &TableName, columns: Option<Vec<String>>) -> Plan {
        let wanted = Wanted {
            table: name,
            publication: &config.postgres.publication,
            slot: &config.postgres.slot,
            columns,
            create_table: None,
            grants: None,
        };
        let present = Present {
            version: self.server.version,
            table: found(self.lookup.as_ref()),
            publication: self.publication.as_ref(),
            slot: self.slot.as_ref(),
            schema_version: None,
            current_schema: &self.current_schema,
        };
        schema::plan(&wanted, &present)
    }
}

fn found(lookup: Option<&TableLookup>) -> Option<&TableFacts> {
    match lookup {
        Some(TableLookup::Found(table)) => Some(table),
        Some(TableLookup::Elsewhere { .. } | TableLookup::Missing { .. }) | None => None,
    }
}

/// A size as a person reads it.
pub(crate) fn size(bytes: u64) -> String {
    let (unit, shift) = match bytes {
        b if b >= 1 << 40 => ("TiB", 40),
        b if b >= 1 << 30 => ("GiB", 30),
        b if b >= 1 << 20 => ("MiB", 20),
        b if b >= 1 << 10 => ("KiB", 10),
        b => return format!("{b} bytes"),
    };
    format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            checks: vec![
                Check::ok("server.version", "PostgreSQL 17.11"),
                Check::warn("server.wal_cap", "no bound", "the disk may fill", "ALTER SYSTEM\nSET x"),
                Check::skip("slot", "no slot"),
            ],
        }
    }

    #[test]
    fn the_text_has_a_line_for_each_check_and_a_remedy_where_there_is_one() {
        let mut out = Vec::new();
        report().text(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "\
ok    server.version  PostgreSQL 17.11
warn  server.wal_cap  no bound
                      why: the disk may fill
                      do: ALTER SYSTEM
                          SET x
skip  slot            not looked at
                      why: no slot
1 in order, 1 to know, 0 to mend, 1 not looked at
";
        assert_eq!(text, expected);
    }

    #[test]
    fn only_a_failure_fails() {
        let mut report = report();
        assert!(!report.failed());
        assert_eq!(report.json()["ok"], true);
        report.checks.push(Check::fail("slot.lost", "gone", "rows", "recover"));
        assert!(report.failed());
        let json = report.json();
        assert_eq!(json["ok"], false);
        assert_eq!(json["checks"][3]["outcome"], "fail");
        assert_eq!(json["checks"][1]["remedy"], "ALTER SYSTEM\nSET x");
    }

    #[test]
    fn sizes_are_said_in_the_unit_that_fits() {
        assert_eq!(size(512), "512 bytes");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(3 << 30), "3.0 GiB");
    }
}
