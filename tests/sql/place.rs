//! A database of its own for each test, and short words for what the tests do to it.

use std::time::Duration;

use tokio_postgres::{Client, Config, NoTls};
use walpost::commands::doctor::{self, Check, Outcome};
use walpost::commands::setup::{self, SetupError, SetupOptions};
use walpost::commands::teardown::{self, TeardownError, TeardownOptions};
use walpost::config::{Config as Settings, Secret, SecretSource};
use walpost::lsn::Lsn;
use walpost::names::TableName;
use walpost::postgres::catalog::{self, Identity, TableFacts, TableLookup};
use walpost::postgres::checkpoint::{self, Beginning, Recorder, Replaces, State};
use walpost::postgres::slot;

pub const WITHIN: Duration = Duration::from_secs(20);

pub fn server_config() -> Config {
    let url = std::env::var("WALPOST_TEST_DATABASE_URL").unwrap_or_else(|_| {
        panic!(
            "WALPOST_TEST_DATABASE_URL is not set: it must name a superuser on an empty Postgres with wal_level = \
            logical"
        )
    });
    url.parse().expect("WALPOST_TEST_DATABASE_URL is a Postgres address")
}

pub async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.expect("the test server answers");
    tokio::spawn(connection);
    client
}

/// A database of its own, and a slot name that nobody else uses.
pub struct Place {
    pub config: Config,
    pub client: Client,
    pub version: u32,
    pub slot: String,
}

impl Place {
    pub async fn new(name: &str) -> Place {
        let mut config = server_config();
        let admin = connect(&config).await;
        let database = format!("walpost_sql_{name}");
        let slot = database.clone();
        let version = catalog::server_version(&admin).await.unwrap();
        let stale = format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}' AND NOT \
            active"
        );
        admin.batch_execute(&stale).await.unwrap();
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)")).await.unwrap();
        admin.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
        config.dbname(&database);
        let client = connect(&config).await;
        Place { config, client, version, slot }
    }

    pub async fn sql(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    pub async fn one(&self, sql: &str) -> String {
        self.client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    pub async fn as_role(&self, role: &str) -> Client {
        let mut config = self.config.clone();
        config.user(role).password("x");
        connect(&config).await
    }

    pub async fn table(&self) -> TableFacts {
        match catalog::table(&self.client, &TableName::parse("outbox_messages").unwrap()).await.unwrap() {
            TableLookup::Found(table) => *table,
            other => panic!("{other:?}"),
        }
    }

    pub async fn fingerprint(&self) -> String {
        catalog::fingerprint(&self.client, self.version, "walpost", "public", "outbox_messages").await.unwrap()
    }

    pub async fn identity(&self) -> Identity {
        catalog::identity(&self.client).await.unwrap()
    }

    /// Table, schema, publication and slot.
    pub async fn set_up(&self) {
        self.sql(include_str!("../../sql/001_outbox_table.sql")).await;
        self.sql(include_str!("../../sql/002_schema.sql")).await;
        self.sql(include_str!("../../sql/010_publication.sql")).await;
        slot::create(&self.client, self.version, &self.slot, WITHIN).await.unwrap();
    }

    pub async fn begin(&self) -> Recorder {
        let (identity, fingerprint) = (self.identity().await, self.fingerprint().await);
        let begun = checkpoint::begin(&self.client, self.beginning(&identity, &fingerprint)).await.unwrap();
        self.recorder(begun.epoch, "relay-1")
    }

    pub fn recorder(&self, epoch: i64, holder: &str) -> Recorder {
        let table = ("public", "outbox_messages");
        Recorder::new(self.version, "walpost", table, &self.slot, epoch, holder)
    }

    pub fn beginning<'a>(&'a self, identity: &'a Identity, fingerprint: &'a str) -> Beginning<'a> {
        Beginning {
            slot: &self.slot,
            relay: "orders",
            identity,
            table_oid: 1,
            kafka_cluster_id: None,
            fingerprint,
            state: State::SignedOff,
            replaces: Replaces::Any,
        }
    }

    pub async fn end_of_wal(&self) -> Lsn {
        self.one("SELECT pg_current_wal_insert_lsn()::text").await.parse().unwrap()
    }

    pub async fn record(&self) -> checkpoint::Checkpoint {
        checkpoint::read(&self.client, &self.slot).await.unwrap().expect("a record")
    }

    pub fn settings(&self) -> Settings {
        let mut settings = Settings { name: "orders".into(), ..Settings::default() };
        settings.postgres.slot = self.slot.clone();
        let url = std::env::var("WALPOST_TEST_DATABASE_URL").unwrap();
        let (server, _) = url.rsplit_once('/').expect("the address ends in a database");
        settings.postgres.url = Some(SecretSource::Value(Secret::new(format!("{server}/{}", self.slot))));
        settings
    }

    pub async fn setup_with(&self, settings: &Settings, options: &SetupOptions) -> (Result<(), SetupError>, String) {
        let mut out = Vec::new();
        let watcher = connect(&self.config).await;
        let result = setup::apply(&self.client, Some(&watcher), settings, options, &mut out).await;
        (result, String::from_utf8(out).unwrap())
    }

    /// What setup says; it must succeed.
    pub async fn setup(&self, options: SetupOptions) -> String {
        let (result, said) = self.setup_with(&self.settings(), &options).await;
        result.unwrap_or_else(|error| panic!("{error:?} after {said}"));
        said
    }

    pub async fn setup_fails(&self, options: SetupOptions) -> SetupError {
        let (result, said) = self.setup_with(&self.settings(), &options).await;
        result.expect_err(&said)
    }

    pub async fn teardown(&self, yes: bool, answer: Option<&str>) -> (Result<(), TeardownError>, String) {
        let mut out = Vec::new();
        let mut answer = answer.map(str::as_bytes);
        let ask = answer.as_mut().map(|answer| answer as &mut (dyn std::io::BufRead + Send));
        let options = TeardownOptions { yes };
        let result = teardown::apply(&self.client, &self.settings(), options, ask, &mut out).await;
        (result, String::from_utf8(out).unwrap())
    }

    /// The checks of Postgres that are not in order; what depends on the test server's own settings left out.
    pub async fn doctor(&self, settings: &Settings) -> Vec<Check> {
        let found = doctor::postgres(settings).await;
        let odd =
            found.checks.into_iter().filter(|check| check.outcome != Outcome::Ok && check.name != "server.wal_cap");
        odd.collect()
    }

    pub async fn slot_at(&self) -> Option<Lsn> {
        slot::facts(&self.client, &self.slot).await.unwrap().and_then(|slot| slot.confirmed_flush_lsn)
    }

    pub async fn insert(&self) {
        self.sql("INSERT INTO outbox_messages (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c')").await;
    }

    pub async fn clean_up(self) {
        slot::drop(&self.client, &self.slot).await.unwrap();
    }
}

pub fn create_table() -> SetupOptions {
    SetupOptions { create_table: true, ..SetupOptions::default() }
}

pub fn accept_gap() -> SetupOptions {
    SetupOptions { accept_gap: true, ..SetupOptions::default() }
}
