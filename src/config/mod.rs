//! What the user asked for, read once and typed: flag over environment over file over foreign variables over default.
//!
//! ```text
//!  settings     the one table: key, flag, variables, default, help, and how a text becomes a value of [`Config`]
//!  defaults     what a setting is where nobody set it                              (pure)
//!  accept       what was written → a value, by the kind of its setting             (pure)
//!  values       the spellings: durations, sizes, addresses, names       (pure)
//!  kafka        which librdkafka properties are passed on, and why others are not   (pure)
//!  file         TOML → what was given, with lines          environment   variables → what was given
//!  load         layers → Config, its warnings and its sources, or every problem at once
//!  show         the effective settings, without secrets    template      the example file
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

mod accept;
mod defaults;
pub mod environment;
mod file;
pub mod kafka;
pub mod load;
pub mod problem;
pub mod settings;
pub mod show;
pub mod template;
#[cfg(test)]
mod tests;
mod values;

pub use environment::Environment;
pub use load::{Given, Loaded, Needs, load};
pub use problem::{ConfigErrors, Problem, Source};

/// Everything a command needs to know. Built by [`crate::cli`]; every value in it is already valid by itself.
#[derive(Clone, Debug)]
pub struct Config {
    /// `name`: the relay's name, the same for all replicas.
    pub name: String,
    pub postgres: Postgres,
    pub kafka: Kafka,
    pub topics: Topics,
    pub route: Route,
    pub columns: Columns,
    pub headers: Headers,
    /// `preset`; found from the table's columns if unset.
    pub preset: Option<Preset>,
    /// `read_back`, default true: in a new session, what a topic holds already is not published again.
    pub read_back: bool,
    pub on_poison: OnPoison,
    pub on_route_error: OnRouteError,
    pub parked: Parked,
    pub dead_letter: DeadLetter,
    pub on_null_payload: OnNullPayload,
    pub on_null_key: OnNullKey,
    pub window: Window,
    pub feedback: Feedback,
    pub shutdown: Shutdown,
    pub http: Http,
    pub log: Log,
}

/// A value that is never printed: its `Debug` and `Display` show `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Secret(value.into())
    }
    /// The value itself, for the one place that hands it to a server.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Default for Config {
    /// Every setting at its default in the table of [`settings`].
    fn default() -> Self {
        defaults::defaults()
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A secret given as it is, or as a file that is read anew whenever it is needed (rotated secrets).
#[derive(Clone, Debug)]
pub enum SecretSource {
    Value(Secret),
    File(PathBuf),
}

impl SecretSource {
    /// The secret as it is now. One newline at the end of a file is no part of it: editors and `echo` leave one.
    pub fn read(&self) -> Result<Secret, SecretFileError> {
        let path = match self {
            SecretSource::Value(secret) => return Ok(secret.clone()),
            SecretSource::File(path) => path,
        };
        let unreadable = |source| SecretFileError::Unreadable { path: path.clone(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let text = text.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).unwrap_or(&text);
        if text.is_empty() {
            return Err(SecretFileError::Empty { path: path.clone() });
        }
        Ok(Secret::new(text))
    }
}

/// A file that should hold a secret does not. No variant shows what the file holds.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    #[error("cannot read the secret file {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("the secret file {} is empty", path.display())]
    Empty { path: PathBuf },
}

#[derive(Clone, Debug)]
pub struct Postgres {
    /// `postgres.url`: a libpq URL or key=value string. None: libpq's `PG*` variables decide.
    pub url: Option<SecretSource>,
    /// `postgres.password`, `postgres.password_file`: wins over a password in the address.
    pub password: Option<SecretSource>,
    /// `postgres.table`: as in SQL, with or without a schema (`outbox_messages`, `app.outbox`, `"Odd Name"`).
    pub table: String,
    /// `postgres.slot`: 1 to 63 of `a-z`, `0-9`, `_`.
    pub slot: String,
    /// `postgres.publication`: the bare name, unquoted.
    pub publication: String,
}

#[derive(Clone, Debug)]
pub struct Kafka {
    /// `kafka.brokers`: comma-separated. None where the command does not need Kafka.
    pub brokers: Option<String>,
    /// `kafka.properties`: any librdkafka property that contradicts no promise, under one name each (of two names that
    /// librdkafka has for one property, the one that [`kafka::canonical`] gives: `linger.ms`, `compression.type`,
    /// `sasl.mechanism`). Secrets are among them (`sasl.password`, `ssl.key.password`, ...), read from their file once.
    pub properties: BTreeMap<String, Secret>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicsCreate {
    /// The broker's own `auto.create.topics.enable` decides.
    Broker,
    Never,
    /// walpost creates a missing topic with this shape; written `partitions=6,replication=3` on the command line and in
    /// the environment, `{ partitions = 6, replication = 3 }` in the file.
    Create {
        partitions: u16,
        replication: u16,
    },
}

#[derive(Clone, Debug)]
pub struct Topics {
    pub create: TopicsCreate,
}

#[derive(Clone, Debug)]
pub struct Route {
    /// `route.topic`: a template over columns, `outbox.event.{aggregate_type}`.
    pub topic: String,
    /// `route.partitioner`.
    pub partitioner: Partitioner,
}

/// Which hash of the key chooses the partition, so that a key stays where an earlier producer put it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioner {
    /// Java's default, and librdkafka's `murmur2`.
    Murmur2,
    /// librdkafka's default, `consistent`: CRC32.
    Crc32,
    /// librdkafka's and Sarama's `fnv1a`.
    Fnv1a,
}

/// `columns.<field>`: the names that a field's column may have, the first that exists wins. Empty: the preset decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    pub id: Vec<String>,
    pub message_id: Vec<String>,
    pub aggregate_type: Vec<String>,
    pub aggregate_id: Vec<String>,
    pub event_type: Vec<String>,
    pub topic: Vec<String>,
    pub payload: Vec<String>,
    pub headers: Vec<String>,
    pub created_at: Vec<String>,
    pub available_at: Vec<String>,
}

/// `headers.*`: names of the headers that walpost writes; an empty name switches that header off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    /// `headers.id`, default `id`: the message_id.
    pub id: String,
    /// `headers.event_type`, default `eventType`.
    pub event_type: String,
    /// `headers.token`, default `token`.
    pub token: String,
    /// `headers.created_at`, default off.
    pub created_at: String,
    /// `headers.origin`, default `origin`: on records that were not published as they were committed.
    pub origin: String,
    /// `headers.columns`: header name to column name, further columns as headers.
    pub columns: BTreeMap<String, String>,
}

impl Preset {
    /// As in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Preset::Walpost => "walpost",
            Preset::Laravel => "laravel",
            Preset::LaravelTopic => "laravel-topic",
            Preset::Debezium => "debezium",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    Walpost,
    Laravel,
    LaravelTopic,
    Debezium,
}

/// What happens with a message that can never be sent as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPoison {
    /// It is set aside in `walpost.parked_messages`, and later messages of its topic and key wait behind it. Where there is
    /// no such table, as [`OnPoison::Stop`].
    Park,
    /// The relay stays up, not ready, its position frozen.
    Stop,
    /// It goes to `dead_letter.topic`, with the reason in headers, and later messages of its key go on.
    DeadLetter,
    /// The message is counted and logged whole, and the relay goes on.
    Skip,
}

/// What happens when a topic refuses (unknown, not authorised, refused by policy).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRouteError {
    /// Try again with back-off, loudly.
    Wait,
    Stop,
    /// The topic's messages are set aside.
    Park,
}

/// Bounds of what is set aside; beyond them the relay stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    /// `parked.max_rows`, default 100000.
    pub max_rows: u64,
    /// `parked.max_bytes`, default 1 GiB: of payloads.
    pub max_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// `dead_letter.topic`, default `walpost.dead_letter`.
    pub topic: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNullPayload {
    /// It is a poison message.
    Error,
    /// A record with a null value.
    Tombstone,
    /// Not published; counted.
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNullKey {
    /// A NULL or empty key is a poison message.
    Error,
    /// Published as it is; the partition is chosen by the hash of the message_id.
    Allow,
}

/// Bounds of what is read and not yet confirmed by the broker.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// `window.messages`, default 50000.
    pub messages: usize,
    /// `window.bytes`, default 32 MiB; written as a number of bytes or with a unit (`32MiB`, `64MB`).
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Feedback {
    /// `feedback.interval`, default 1 s.
    pub interval: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct Shutdown {
    /// `shutdown.timeout`, default 25 s.
    pub timeout: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct Http {
    /// `http.listen`, default 127.0.0.1:9464; None for `off`.
    pub listen: Option<SocketAddr>,
}

#[derive(Clone, Debug)]
pub struct Log {
    /// `log.level`: a tracing filter such as `info` or `walpost=debug,info`.
    pub level: String,
    /// `log.format`; None: pretty on a terminal, else JSON.
    pub format: Option<LogFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Pretty,
    Json,
}
