//! The command line: which command, with which flags, and [`load`], which joins the flags with the other layers of the
//! configuration. The flags of settings may stand before or after the command. Their names, defaults and help come from
//! the table in [`crate::config::settings`].

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::settings::{self, Kind};
use crate::config::{self, ConfigErrors, Environment, Given, Loaded, Needs, Secret};

mod parked;
mod recover;

pub use parked::{ParkedArgs, ParkedCommand, WhichParked};
pub use recover::RecoverArgs;

/// What the process ends with.
pub mod exit {
    /// Done, or drained.
    pub const DONE: u8 = 0;
    /// A check found problems.
    pub const FOUND: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 2;
    /// A dependency cannot be reached (one-shot commands).
    pub const UNREACHABLE: u8 = 69;
    /// Our bug.
    pub const BUG: u8 = 70;
    /// A temporary failure: try again.
    pub const TEMPORARY: u8 = 75;
    /// Not permitted.
    pub const NOT_PERMITTED: u8 = 77;
    /// The configuration is wrong.
    pub const CONFIGURATION: u8 = 78;
    /// A person must decide: the slot is lost, there is a gap, poison under `stop`.
    pub const DECISION: u8 = 100;
}

/// A parsed command line.
#[derive(Clone, Debug)]
pub struct Cli {
    pub settings: SettingFlags,
    pub command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  walpost demo
  walpost run --setup --database-url postgres://walpost@localhost/app --brokers localhost:9092
  walpost setup --print > migration.sql
  walpost doctor --config /etc/walpost.toml
  WALPOST_DATABASE_URL_FILE=/run/secrets/url walpost run -X security.protocol=ssl -X linger.ms=5

Settings come from flags, then the environment, then the file, then variables of other programs (DATABASE_URL, PG*, \
KAFKA_BOOTSTRAP_SERVERS, KAFKA_BROKERS, RUST_LOG), then the defaults. Every setting has a variable, WALPOST_ and its key \
with underscores for dots (window.bytes is WALPOST_WINDOW_BYTES), and every secret can be given as a file \
(WALPOST_DATABASE_URL_FILE). `walpost config template` lists them all. NO_COLOR switches colours off.

Exit codes:
    0  done, or drained
    1  a check found problems
    2  wrong usage
   69  a dependency is unreachable
   70  a bug of walpost
   75  a temporary failure
   77  not permitted
   78  wrong configuration
  100  a person must decide: the slot is lost, there is a gap, a message cannot be sent";

const AFTER_SHORT_HELP: &str = "`--help` adds examples and the exit codes.";

/// The command line without the flags of settings, which [`Cli::command`] adds at every level.
#[derive(Parser)]
#[command(
    name = "walpost",
    version,
    about = "Relays a transactional outbox from Postgres to Kafka by reading the write-ahead log",
    after_help = AFTER_SHORT_HELP,
    after_long_help = AFTER_HELP,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Shape {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Relay until told to stop
    Run(RunArgs),
    /// Create what is missing in the database: publication, slot, walpost's own schema
    Setup(SetupArgs),
    /// Check every precondition: what was seen, why it matters, the remedy
    Doctor(DoctorArgs),
    /// Show where the relay stands, with or without a running one
    Status(StatusArgs),
    /// Heal a lost slot: publish again from the table what may be missing, and stream on without a gap
    ///
    /// For when the slot was dropped, lost, moved or made again, or the publication was changed. The rows that may not have
    /// been published are those that were written by the oldest transaction in doubt (the record's horizon) or later: too
    /// many of them rather than too few. They are published from the table in the order of their id, with their message
    /// ids, marked by the header `origin`, and without a token. A new slot takes over at exactly the point up to which the
    /// table was read. Cut off at any moment, it starts over when it is run again. Rows that were deleted from the table
    /// before cannot be healed.
    Recover(RecoverArgs),
    /// Messages that could not be sent: list them, show one, publish or discard them
    ///
    /// What cannot be sent as it is (too large, refused by the topic, a row that makes no record) is set aside in
    /// walpost.parked_messages, and later messages of the same topic and key wait behind it. `retry` and `discard` leave a
    /// wish there, which the running relay follows within a second or two: it alone publishes, in order.
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Parked(ParkedArgs),
    /// Drop slot and publication; refuses while a relay uses the slot
    Teardown(TeardownArgs),
    /// Check, show or print the settings, without connecting to anything
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Config(ConfigArgs),
    /// Watch rows arrive in Kafka, on servers of its own that it stops again
    ///
    /// Starts a Postgres and a Kafka on free ports of 127.0.0.1 with their data in a temporary folder, runs the relay on
    /// them, writes orders with their events in one transaction each, and shows the messages as they arrive; kills the
    /// relay in the middle. All of it is stopped and deleted at the end. Takes about 25 seconds, uses none of the
    /// settings below, and touches no other server.
    ///
    /// `make demo` in walpost's repository finds or fetches the programs. Without it: PG_BINDIR is the folder with
    /// `postgres` and `initdb` (else the PATH and a distribution's folders are searched), KAFKA_CLASSPATH the jars of a
    /// Kafka (such as /opt/kafka/libs/*), which needs Java 17. Without a Kafka the records go to a stand-in that is not
    /// a Kafka, and the demo says so.
    ///
    /// Exit code 0: everything that was committed arrived, in order, and nothing else did.
    Demo(DemoArgs),
    /// Measure how fast these servers and walpost are together, with a load of its own
    ///
    /// Makes a scratch table with a slot, a publication and a topic of its own, writes a backlog and drains it, then writes
    /// at a steady rate; prints rates and percentiles, says which of Postgres, walpost and Kafka was the limit, and deletes
    /// all that it made. It uses the settings that `walpost run` would use, and needs the rights of `walpost setup`. It puts
    /// load on both servers: about 600 bytes of write-ahead log a row.
    Bench(BenchArgs),
    /// Show the version
    Version(VersionArgs),
}

#[derive(Clone, Debug, Default, Args)]
pub struct RunArgs {
    /// Create what is missing first, as `walpost setup` does
    #[arg(long)]
    pub setup: bool,
    /// End with 0 once everything that was committed before the start is confirmed
    #[arg(long)]
    pub until_caught_up: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct SetupArgs {
    /// Write SQL for a migration to standard output and touch nothing
    #[arg(long)]
    pub print: bool,
    /// Create the outbox table as well
    #[arg(long)]
    pub create_table: bool,
    /// Table layout to create or to expect; also in the configuration as `preset`
    #[arg(long, value_name = "PRESET", value_parser = PossibleValuesParser::new(choices("preset")))]
    pub preset: Option<String>,
    /// Grant what the relay needs, and no more, to this role
    #[arg(long, value_name = "ROLE")]
    pub grants: Option<String>,
    /// Take over a record that another Kafka cluster or relay left
    #[arg(long)]
    pub adopt: bool,
    /// Go on after a lost slot or a gap without healing it; says what may be missing
    #[arg(long)]
    pub accept_gap: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct TeardownArgs {
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say OK, or everything that is wrong (exit code 78)
    Check(ConfigCheckArgs),
    /// Print the settings that count and where each comes from; secrets are not shown
    Show(ConfigShowArgs),
    /// Print a file with every setting, its default and its help
    Template,
}

#[derive(Clone, Debug, Default, Args)]
pub struct ConfigCheckArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct ConfigShowArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct DemoArgs {}

#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// Rows of the backlog; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(..=1_000_000_000))]
    pub rows: u32,
    /// Rows of the backlog in one transaction
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rows_per_commit: u32,
    /// Bytes of a payload, about
    #[arg(long, value_name = "BYTES", default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub payload_bytes: u32,
    /// Different keys
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub keys: u32,
    /// Commits a second of the steady load, one row each; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub rate: u32,
    /// Seconds of the steady load, after three that do not count
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Connections that write the steady load
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub writers: u32,
    /// Partitions of the scratch topic; topics.create wins where it has a number
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub partitions: u16,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct VersionArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The settings that have a flag. Addresses and properties may hold a password, so they are secrets here.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Settings (before or after the command)")]
pub struct SettingFlags {
    #[arg(long, value_name = "URL", value_parser = secret, help = help("postgres.url"))]
    pub database_url: Option<Secret>,
    #[arg(long, value_name = "TABLE", help = help("postgres.table"))]
    pub table: Option<String>,
    #[arg(long, value_name = "SLOT", help = help("postgres.slot"))]
    pub slot: Option<String>,
    #[arg(long, value_name = "NAME", help = help("postgres.publication"))]
    pub publication: Option<String>,
    #[arg(long, value_name = "HOST:PORT,...", help = help("kafka.brokers"))]
    pub brokers: Option<String>,
    #[arg(
        short = 'X',
        long = "kafka",
        value_name = "NAME=VALUE",
        value_parser = property,
        help = "A librdkafka property; may be given several times [env: WALPOST_KAFKA_<NAME>] [file: kafka.properties]"
    )]
    pub kafka: Vec<PropertyFlag>,
    #[arg(long, value_name = "HOW", help = help("topics.create"))]
    pub topics_create: Option<String>,
    #[arg(long, value_name = "TEMPLATE", help = help("route.topic"))]
    pub topic: Option<String>,
    #[arg(long, value_name = "ADDRESS", help = help("http.listen"))]
    pub http: Option<String>,
    #[arg(long, value_name = "NAME", help = help("name"))]
    pub name: Option<String>,
    #[arg(
        short,
        long,
        value_name = "FILE",
        help = "The configuration file, TOML [env: WALPOST_CONFIG] [default: none]"
    )]
    pub config: Option<PathBuf>,
    #[arg(long, value_name = "LEVEL", help = help("log.level"))]
    pub log_level: Option<String>,
    #[arg(long, value_name = "FORMAT", help = help("log.format"))]
    pub log_format: Option<String>,
}

/// `-X name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyFlag {
    pub name: String,
    pub value: Secret,
}

impl Cli {
    /// Parses the arguments of this process. Prints help or what is wrong and exits with 0 or 2 otherwise.
    pub fn parse() -> Cli {
        Cli::try_parse_from(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// Parses the given arguments, the name of the program first.
    pub fn try_parse_from<I, T>(arguments: I) -> Result<Cli, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let mut command = Cli::command();
        let matches = command.try_get_matches_from_mut(arguments)?;
        Cli::from_matches(&matches).map_err(|error| error.format(&mut command))
    }

    /// clap's description of the command line.
    ///
    /// The flags of settings are added at every level by hand, not as clap's global arguments: of those, the ones after
    /// the command would replace the ones before it, and `-X a=1 run -X b=2` would silently lose `a`.
    pub fn command() -> clap::Command {
        fn with_settings(command: clap::Command) -> clap::Command {
            // A group of arguments would put its own description in the place of the command's.
            let about = command.get_about().cloned().unwrap_or_default();
            let long_about = command.get_long_about().cloned();
            let command = SettingFlags::augment_args(command).about(about).mut_subcommands(with_settings);
            match long_about {
                Some(long_about) => command.long_about(long_about),
                None => command.long_about(None),
            }
        }
        with_settings(Shape::command())
    }

    fn from_matches(matches: &ArgMatches) -> Result<Cli, clap::Error> {
        let Shape { command } = Shape::from_arg_matches(matches)?;
        let mut settings = SettingFlags::default();
        let mut level = Some(matches);
        while let Some(matches) = level {
            settings.merge(SettingFlags::from_arg_matches(matches)?);
            level = matches.subcommand().map(|(_, matches)| matches);
        }
        Ok(Cli { settings, command })
    }

    /// Which ends the command cannot do without.
    fn needs(&self) -> Needs {
        match &self.command {
            Command::Run(_) | Command::Doctor(_) | Command::Recover(_) | Command::Bench(_) => {
                Needs { postgres: true, kafka: true }
            }
            Command::Setup(args) => Needs { postgres: !args.print, kafka: false },
            Command::Status(_) | Command::Parked(_) | Command::Teardown(_) => Needs { postgres: true, kafka: false },
            Command::Config(args) => match args.command {
                // As `run` would need them.
                ConfigCommand::Check(_) => Needs { postgres: true, kafka: true },
                ConfigCommand::Show(_) | ConfigCommand::Template => Needs::default(),
            },
            Command::Demo(_) | Command::Version(_) => Needs::default(),
        }
    }
}

impl SettingFlags {
    /// A flag nearer to the command's end wins; properties add up.
    fn merge(&mut self, later: SettingFlags) {
        let SettingFlags {
            database_url,
            table,
            slot,
            publication,
            brokers,
            kafka,
            topics_create,
            topic,
            http,
            name,
            config,
            log_level,
            log_format,
        } = later;
        fn replace<T>(earlier: &mut Option<T>, later: Option<T>) {
            *earlier = later.or(earlier.take());
        }
        replace(&mut self.database_url, database_url);
        replace(&mut self.table, table);
        replace(&mut self.slot, slot);
        replace(&mut self.publication, publication);
        replace(&mut self.brokers, brokers);
        self.kafka.extend(kafka);
        replace(&mut self.topics_create, topics_create);
        replace(&mut self.topic, topic);
        replace(&mut self.http, http);
        replace(&mut self.name, name);
        replace(&mut self.config, config);
        replace(&mut self.log_level, log_level);
        replace(&mut self.log_format, log_format);
    }

    /// Key and value of each flag that was given.
    fn values(&self) -> Vec<(&'static str, Secret)> {
        let texts = [
            ("postgres.table", &self.table),
            ("postgres.slot", &self.slot),
            ("postgres.publication", &self.publication),
            ("kafka.brokers", &self.brokers),
            ("topics.create", &self.topics_create),
            ("route.topic", &self.topic),
            ("http.listen", &self.http),
            ("name", &self.name),
            ("log.level", &self.log_level),
            ("log.format", &self.log_format),
        ];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key, Secret::new(text.as_ref()?))));
        self.database_url.iter().map(|url| ("postgres.url", url.clone())).chain(texts).collect()
    }
}

/// Joins the flags with the other layers of the configuration.
pub fn load(cli: &Cli, environment: &Environment) -> Result<Loaded, ConfigErrors> {
    let mut given = Given { file: cli.settings.config.clone(), ..Given::default() };
    for (key, value) in cli.settings.values() {
        if let Some(flag) = settings::find(key).and_then(|setting| setting.flag) {
            given.settings.push((key, format!("--{flag}"), value));
        }
    }
    if let Command::Setup(SetupArgs { preset: Some(preset), .. }) = &cli.command {
        given.settings.push(("preset", "--preset".to_owned(), Secret::new(preset)));
    }
    given.properties = cli.settings.kafka.iter().map(|flag| (flag.name.clone(), flag.value.clone())).collect();
    config::load(&given, environment, cli.needs())
}

/// The help of a flag, from the table.
fn help(key: &str) -> String {
    let Some(setting) = settings::find(key) else {
        return String::new();
    };
    let mut variables = vec![setting.variable().into_owned()];
    if setting.is_secret() {
        variables.push(format!("{}_FILE", setting.variable()));
    }
    variables.extend(setting.foreign.iter().map(|name| (*name).to_owned()));
    let default = setting.default.map(|text| format!(" [default: {text}]")).unwrap_or_default();
    format!("{} [env: {}] [file: {}]{default}", setting.help, variables.join(", "), setting.key)
}

/// The names of a setting that is a choice.
fn choices(key: &str) -> Vec<&'static str> {
    match settings::find(key).map(|setting| &setting.kind) {
        Some(Kind::Choice(choices)) => choices.iter().map(|(name, _)| *name).collect(),
        _ => Vec::new(),
    }
}

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

fn property(text: &str) -> Result<PropertyFlag, &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok(PropertyFlag { name: name.trim().to_owned(), value: Secret::new(value) })
        }
        _ => Err("write name=value, such as linger.ms=5"),
    }
}

#[cfg(test)]
mod tests;
