//! The one table of settings. Names, defaults, help, bounds and the way into [`Config`] of a setting stand in one entry;
//! the file, the variables, the flags' help, `config show`, `config template` and the tests all go through the table.
//! librdkafka's own properties are not here but in [`super::kafka`]: they are passed on by name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use super::defaults::{DEBEZIUM_HEADERS, PLAIN_HEADERS, header_names};
use super::*;

/// One setting.
pub struct Setting {
    /// As in the file, with its section: `postgres.table`.
    pub key: &'static str,
    /// The long flag without dashes.
    pub flag: Option<&'static str>,
    /// The `WALPOST_` variable where it is an exception from the rule.
    exceptional_variable: Option<&'static str>,
    /// Variables of other programs that are read last, the first that is set wins.
    pub foreign: &'static [&'static str],
    pub kind: Kind,
    /// As one would write it in the environment; None: unset means what `unset` says.
    pub default: Option<&'static str>,
    /// What happens without a value.
    pub unset: &'static str,
    /// A value for the template where there is no default, in TOML.
    pub example: &'static str,
    /// What an empty value means; None: an empty value is a problem.
    pub empty: Option<&'static str>,
    /// One sentence.
    pub help: &'static str,
}

/// How a value is spelled, and where it goes.
pub enum Kind {
    /// A text with a syntax of its own.
    Text(fn(&mut Config, &str) -> Result<(), String>),
    /// The same, which the file may also write as an array or a table; `a,b` and `a=1,b=2` in one line.
    Joined(fn(&mut Config, &str) -> Result<(), String>),
    Integer {
        min: u64,
        max: u64,
        set: fn(&mut Config, u64),
    },
    Size {
        min: u64,
        max: u64,
        set: fn(&mut Config, u64),
    },
    Duration {
        min: Duration,
        max: Duration,
        set: fn(&mut Config, Duration),
    },
    Choice(&'static [Choice]),
    Switch(fn(&mut Config, bool)),
    List(fn(&mut Config, Vec<String>)),
    Map(fn(&mut Config, BTreeMap<String, String>)),
    Secret(fn(&mut Config, SecretSource)),
}

/// The name of a choice, and what choosing it does.
pub type Choice = (&'static str, fn(&mut Config));

impl Setting {
    const fn new(key: &'static str, kind: Kind, help: &'static str) -> Self {
        Setting {
            key,
            flag: None,
            exceptional_variable: None,
            foreign: &[],
            kind,
            default: None,
            unset: "",
            example: "",
            empty: None,
            help,
        }
    }
    const fn flag(self, flag: &'static str) -> Self {
        Setting { flag: Some(flag), ..self }
    }
    const fn variable_is(self, name: &'static str) -> Self {
        Setting { exceptional_variable: Some(name), ..self }
    }
    const fn foreign(self, names: &'static [&'static str]) -> Self {
        Setting { foreign: names, ..self }
    }
    const fn default(self, text: &'static str) -> Self {
        Setting { default: Some(text), ..self }
    }
    const fn unset(self, meaning: &'static str, example: &'static str) -> Self {
        Setting { unset: meaning, example, ..self }
    }
    const fn empty(self, meaning: &'static str) -> Self {
        Setting { empty: Some(meaning), ..self }
    }

    /// The variable of this setting: `WALPOST_` and the key with underscores, but for the exceptions.
    pub fn variable(&self) -> Cow<'static, str> {
        match self.exceptional_variable {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(self.variable_by_rule()),
        }
    }

    /// What the rule alone would give; an exception's error text starts from it.
    pub(super) fn variable_by_rule(&self) -> String {
        format!("WALPOST_{}", self.key.to_ascii_uppercase().replace('.', "_"))
    }

    pub fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::Secret(_))
    }
}

/// Bounds of `feedback.interval`. Postgres ends a connection that was silent for `wal_sender_timeout` (60 s unless the
/// server says otherwise), so an interval must lie well inside it; above [`FEEDBACK_INTERVAL_WARN`] the loader warns.
const FEEDBACK_INTERVAL_MIN: Duration = Duration::from_millis(10);
const FEEDBACK_INTERVAL_MAX: Duration = Duration::from_secs(3600);
pub(super) const FEEDBACK_INTERVAL_WARN: Duration = Duration::from_secs(20);

/// Memory is bounded by it. Below, one large row would be a window of its own; above, librdkafka's queue, which must be
/// larger than the window, comes near its own limit of 2 GiB.
const WINDOW_BYTES_MIN: u64 = 1 << 20;
const WINDOW_BYTES_MAX: u64 = 1 << 30;

fn checked(check: fn(&str) -> Result<(), String>, text: &str, field: &mut String) -> Result<(), String> {
    check(text)?;
    text.clone_into(field);
    Ok(())
}

/// Sizes are bounded far below what a usize holds on every machine that librdkafka supports, so this never saturates
/// within the bounds of the table.
fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// All settings: those without a section first, because a TOML file has to begin with them.
pub static SETTINGS: &[Setting] = &[
    Setting::new(
        "name",
        Kind::Text(|c, text| checked(values::printable, text, &mut c.name)),
        "The relay's name, the same for all replicas of one relay",
    )
    .flag("name")
    .default("walpost"),
    Setting::new(
        "preset",
        Kind::Choice(&[
            ("walpost", |c| c.preset = Some(Preset::Walpost)),
            ("laravel", |c| c.preset = Some(Preset::Laravel)),
            ("laravel-topic", |c| c.preset = Some(Preset::LaravelTopic)),
            ("debezium", |c| c.preset = Some(Preset::Debezium)),
        ]),
        "Which known table layout the outbox has",
    )
    .unset("found from the table's columns", "\"laravel\""),
    Setting::new(
        "read_back",
        Kind::Switch(|c, on| c.read_back = on),
        "Whether topics are read back after a crash, so that what they hold already is not published again: true or false",
    )
    .default("true"),
    Setting::new(
        "on_poison",
        Kind::Choice(&[
            ("park", |c| c.on_poison = OnPoison::Park),
            ("stop", |c| c.on_poison = OnPoison::Stop),
            ("dead_letter", |c| c.on_poison = OnPoison::DeadLetter),
            ("skip", |c| c.on_poison = OnPoison::Skip),
        ]),
        "A message that can never be sent as it is: park (set aside, what comes later for its key waits), stop (stay up, \
         not ready, the position frozen), dead_letter (to dead_letter.topic) or skip (counted and logged)",
    )
    .default("park"),
    Setting::new(
        "on_route_error",
        Kind::Choice(&[
            ("wait", |c| c.on_route_error = OnRouteError::Wait),
            ("stop", |c| c.on_route_error = OnRouteError::Stop),
            ("park", |c| c.on_route_error = OnRouteError::Park),
        ]),
        "A topic that is missing or refuses: wait (try again, loudly), stop or park (its messages are set aside)",
    )
    .default("wait"),
    Setting::new(
        "on_null_payload",
        Kind::Choice(&[
            ("error", |c| c.on_null_payload = OnNullPayload::Error),
            ("tombstone", |c| c.on_null_payload = OnNullPayload::Tombstone),
            ("skip", |c| c.on_null_payload = OnNullPayload::Skip),
        ]),
        "A row whose payload is NULL: error (it is poison), tombstone (a record without a value) or skip (counted)",
    )
    .default("error"),
    Setting::new(
        "on_null_key",
        Kind::Choice(&[
            ("error", |c| c.on_null_key = OnNullKey::Error),
            ("allow", |c| c.on_null_key = OnNullKey::Allow),
        ]),
        "A row whose key is NULL or empty: error (it is poison) or allow (the message_id chooses the partition)",
    )
    .default("error"),
    Setting::new(
        "postgres.url",
        Kind::Secret(|c, secret| c.postgres.url = Some(secret)),
        "Address of the database, a libpq URL or key=value text",
    )
    .flag("database-url")
    .variable_is("WALPOST_DATABASE_URL")
    .foreign(&["DATABASE_URL"])
    .unset("libpq's PGHOST, PGUSER and so on decide", "\"postgres://walpost@db.example:5432/app?sslmode=verify-full\""),
    Setting::new(
        "postgres.password",
        Kind::Secret(|c, secret| c.postgres.password = Some(secret)),
        "Password of the database role; wins over one in the address",
    )
    .unset("the address, PGPASSWORD or the password file decide", "\"...\""),
    Setting::new(
        "postgres.table",
        Kind::Text(|c, text| checked(values::table_name, text, &mut c.postgres.table)),
        "The outbox table, as in SQL, with or without its schema",
    )
    .flag("table")
    .variable_is("WALPOST_TABLE")
    .default("outbox_messages"),
    Setting::new(
        "postgres.slot",
        Kind::Text(|c, text| checked(values::slot_name, text, &mut c.postgres.slot)),
        "The logical replication slot: 1 to 63 of a-z, 0-9 and _",
    )
    .flag("slot")
    .variable_is("WALPOST_SLOT")
    .default("walpost"),
    Setting::new(
        "postgres.publication",
        Kind::Text(|c, text| checked(values::sql_name, text, &mut c.postgres.publication)),
        "The publication, its bare name without quotes",
    )
    .flag("publication")
    .variable_is("WALPOST_PUBLICATION")
    .default("walpost"),
    Setting::new(
        "kafka.brokers",
        Kind::Joined(|c, text| values::brokers(text).map(|brokers| c.kafka.brokers = Some(brokers))),
        "Kafka's bootstrap brokers, host:port separated by commas",
    )
    .flag("brokers")
    .variable_is("WALPOST_BROKERS")
    .foreign(&["KAFKA_BOOTSTRAP_SERVERS", "KAFKA_BROKERS"])
    .unset("needed by run and doctor", "\"kafka-1:9092,kafka-2:9092\""),
    Setting::new(
        "topics.create",
        Kind::Joined(|c, text| values::topics_create(text).map(|create| c.topics.create = create)),
        "Missing topics: broker (its own setting decides), never, or a shape, partitions=6,replication=3",
    )
    .flag("topics-create")
    .default("broker"),
    Setting::new(
        "route.topic",
        Kind::Text(|c, text| checked(values::printable, text, &mut c.route.topic)),
        "The topic of a row, a template over its columns; a topic column wins",
    )
    .flag("topic")
    .variable_is("WALPOST_TOPIC")
    .default("outbox.event.{aggregate_type}"),
    Setting::new(
        "route.partitioner",
        Kind::Choice(&[
            ("murmur2", |c| c.route.partitioner = Partitioner::Murmur2),
            ("crc32", |c| c.route.partitioner = Partitioner::Crc32),
            ("fnv1a", |c| c.route.partitioner = Partitioner::Fnv1a),
        ]),
        "Which hash of the key chooses the partition: murmur2 (Java), crc32 (librdkafka) or fnv1a (Sarama)",
    )
    .default("murmur2"),
    column("columns.id", |c, names| c.columns.id = names, "Column of the row's number", "[\"id\"]"),
    column(
        "columns.message_id",
        |c, names| c.columns.message_id = names,
        "Column of the message's id, by which consumers drop repeats",
        "[\"message_id\"]",
    ),
    column(
        "columns.aggregate_type",
        |c, names| c.columns.aggregate_type = names,
        "Column that names the topic",
        "[\"aggregate_type\"]",
    ),
    column(
        "columns.aggregate_id",
        |c, names| c.columns.aggregate_id = names,
        "Column of the record's key",
        "[\"aggregate_id\"]",
    ),
    column(
        "columns.event_type",
        |c, names| c.columns.event_type = names,
        "Column of the event's type",
        "[\"event_type\", \"kind\"]",
    ),
    column(
        "columns.topic",
        |c, names| c.columns.topic = names,
        "Column of a topic that overrides the template",
        "[\"topic\"]",
    ),
    column("columns.payload", |c, names| c.columns.payload = names, "Column of the record's value", "[\"payload\"]"),
    column(
        "columns.headers",
        |c, names| c.columns.headers = names,
        "Column of the record's headers, a JSON object",
        "[\"headers\"]",
    ),
    column(
        "columns.created_at",
        |c, names| c.columns.created_at = names,
        "Column of the row's creation time",
        "[\"created_at\"]",
    ),
    column(
        "columns.available_at",
        |c, names| c.columns.available_at = names,
        "Column of the earliest time of delivery; rows that lie ahead are counted, not held back",
        "[\"available_at\"]",
    ),
    Setting::new(
        "headers.profile",
        Kind::Choice(&[
            ("debezium", |c| header_names(c, &DEBEZIUM_HEADERS)),
            ("plain", |c| header_names(c, &PLAIN_HEADERS)),
        ]),
        "Default names of the headers: debezium (id, eventType) or plain (message_id, event_type)",
    )
    .default("debezium"),
    header("headers.id", |c, text| checked(values::header_name, text, &mut c.headers.id), "Header of the message's id"),
    header(
        "headers.event_type",
        |c, text| checked(values::header_name, text, &mut c.headers.event_type),
        "Header of the event's type",
    ),
    header(
        "headers.token",
        |c, text| checked(values::header_name, text, &mut c.headers.token),
        "Header of the record's place in the stream",
    ),
    header(
        "headers.created_at",
        |c, text| checked(values::header_name, text, &mut c.headers.created_at),
        "Header of the row's creation time",
    ),
    header(
        "headers.origin",
        |c, text| checked(values::header_name, text, &mut c.headers.origin),
        "Header of records that are not published as they were committed: where they come from",
    ),
    Setting::new(
        "headers.columns",
        Kind::Map(|c, map| c.headers.columns = map),
        "Further columns as headers: header name = column name",
    )
    .unset("none", "{ tenant = \"tenant_id\" }")
    .empty("none"),
    Setting::new(
        "window.messages",
        Kind::Integer { min: 1, max: 10_000_000, set: |c, value| c.window.messages = to_usize(value) },
        "How many rows may be read and not yet confirmed by the broker",
    )
    .default("50000"),
    Setting::new(
        "window.bytes",
        Kind::Size { min: WINDOW_BYTES_MIN, max: WINDOW_BYTES_MAX, set: |c, value| c.window.bytes = to_usize(value) },
        "How many bytes may be read and not yet confirmed: a number, or with a unit (32MiB, 64MB)",
    )
    .default("32MiB"),
    Setting::new(
        "parked.max_rows",
        Kind::Integer { min: 1, max: 100_000_000, set: |c, value| c.parked.max_rows = value },
        "How many messages may be parked; beyond that the relay stops",
    )
    .default("100000"),
    Setting::new(
        "parked.max_bytes",
        Kind::Size { min: 1 << 20, max: 1 << 40, set: |c, value| c.parked.max_bytes = value },
        "How many bytes of payloads may be parked; beyond that the relay stops",
    )
    .default("1GiB"),
    Setting::new(
        "dead_letter.topic",
        Kind::Text(|c, text| checked(values::printable, text, &mut c.dead_letter.topic)),
        "The topic that dead letters go to",
    )
    .default("walpost.dead_letter"),
    Setting::new(
        "feedback.interval",
        Kind::Duration {
            min: FEEDBACK_INTERVAL_MIN,
            max: FEEDBACK_INTERVAL_MAX,
            set: |c, value| c.feedback.interval = value,
        },
        "How often the position is confirmed to Postgres; keep it well inside the server's wal_sender_timeout",
    )
    .default("1s"),
    Setting::new(
        "shutdown.timeout",
        Kind::Duration {
            min: Duration::ZERO,
            max: Duration::from_secs(3600),
            set: |c, value| c.shutdown.timeout = value,
        },
        "How long SIGTERM may take to finish what is being sent; keep it below the supervisor's own limit",
    )
    .default("25s"),
    Setting::new(
        "http.listen",
        Kind::Text(|c, text| values::listen(text).map(|listen| c.http.listen = listen)),
        "Address of the admin server (probes, metrics, status), or off; :9464 is every IPv4 interface",
    )
    .flag("http")
    .variable_is("WALPOST_HTTP")
    .default("127.0.0.1:9464"),
    Setting::new(
        "log.level",
        Kind::Text(|c, text| checked(values::log_filter, text, &mut c.log.level)),
        "What is logged: error, warn, info, debug, trace, off, or by module (walpost=debug,info)",
    )
    .flag("log-level")
    .foreign(&["RUST_LOG"])
    .default("info"),
    Setting::new(
        "log.format",
        Kind::Choice(&[
            ("pretty", |c| c.log.format = Some(LogFormat::Pretty)),
            ("json", |c| c.log.format = Some(LogFormat::Json)),
        ]),
        "Form of the log lines: pretty or json",
    )
    .flag("log-format")
    .unset("pretty on a terminal, else json", "\"json\""),
];

const fn column(
    key: &'static str,
    set: fn(&mut Config, Vec<String>),
    help: &'static str,
    example: &'static str,
) -> Setting {
    Setting::new(key, Kind::List(set), help).unset("the preset decides", example).empty("the preset decides")
}

const fn header(key: &'static str, set: fn(&mut Config, &str) -> Result<(), String>, help: &'static str) -> Setting {
    Setting::new(key, Kind::Text(set), help).unset("headers.profile decides", "").empty("the header is not written")
}

pub fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}
