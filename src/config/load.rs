//! The layers become one [`Config`], or every problem at once. What a layer gives is checked also where a higher layer
//! overrides it: a mistake in the file should not wait for the day on which a variable goes away. Variables of other
//! programs are checked only where they count.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::accept::Raw;
use super::defaults;
use super::environment::{self, Environment};
use super::problem::{ConfigErrors, Problem, Source};
use super::settings::{self, FEEDBACK_INTERVAL_WARN, Kind, SETTINGS, Setting};
use super::{Config, Secret, SecretSource, file, kafka, values};

/// What the command line gives.
#[derive(Default)]
pub struct Given {
    /// Key, flag with dashes, value.
    pub settings: Vec<(&'static str, String, Secret)>,
    /// `-X name=value`: the name and the value.
    pub properties: Vec<(String, Secret)>,
    pub file: Option<PathBuf>,
}

/// Which ends a command cannot do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    pub postgres: bool,
    pub kafka: bool,
}

/// A configuration, and how it came about.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    /// For the log of whoever starts: sentences that read alone.
    pub warnings: Vec<String>,
    /// Every setting in the order of the table, then the properties that were given.
    pub sources: Vec<Effective>,
}

/// The value that counts, ready to be shown: it holds no secret.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// With its section; a property as `kafka.properties.linger.ms`; a secret in a file with `_file`.
    pub key: String,
    /// None: not set.
    pub value: Option<toml::Value>,
    /// What being unset means, where it is.
    pub unset: &'static str,
    pub source: Source,
}

/// What a layer says about one setting.
pub(super) struct Entry {
    pub target: Target,
    pub raw: Raw,
    pub source: Source,
}

#[derive(Clone, Copy)]
pub(super) enum Target {
    Setting(&'static Setting),
    /// A secret setting, given as the path of a file.
    SettingFile(&'static Setting),
    /// By its canonical name.
    Property(&'static str),
    PropertyFile(&'static str),
}

impl Target {
    pub(super) fn is_file(&self) -> bool {
        matches!(self, Target::SettingFile(_) | Target::PropertyFile(_))
    }

    pub(super) fn key(&self) -> String {
        match self {
            Target::Setting(setting) => setting.key.to_owned(),
            Target::SettingFile(setting) => format!("{}_file", setting.key),
            Target::Property(name) => format!("{}.{name}", file::PROPERTIES),
            Target::PropertyFile(name) => format!("{}.{name}_file", file::PROPERTIES),
        }
    }

    /// What is set, whichever way.
    fn subject(&self) -> &'static str {
        match self {
            Target::Setting(setting) | Target::SettingFile(setting) => setting.key,
            Target::Property(name) | Target::PropertyFile(name) => name,
        }
    }
}

/// Reads all layers. `needs` says what must be there in the end.
pub fn load(given: &Given, environment: &Environment, needs: Needs) -> Result<Loaded, ConfigErrors> {
    let mut problems = Vec::new();
    let (mut entries, file_is_known) = gather(given, environment, &mut problems);
    entries.sort_by_key(|entry| entry.source.layer());
    given_twice(&entries, &mut problems);

    let mut config = Config::default();
    let mut sources = Vec::new();
    for setting in SETTINGS {
        sources.push(apply_setting(setting, &entries, &mut config, &mut problems));
    }
    sources.extend(apply_properties(&entries, &mut config, &mut problems));
    if file_is_known {
        missing(&config, environment, needs, &mut problems);
    }
    if !problems.is_empty() {
        return Err(ConfigErrors { problems });
    }
    let warnings = warnings(given, &config);
    Ok(Loaded { config, warnings, sources })
}

/// All entries of all layers; and whether the file, if one is named, could be read.
fn gather(given: &Given, environment: &Environment, problems: &mut Vec<Problem>) -> (Vec<Entry>, bool) {
    let path = match &given.file {
        Some(path) => Some((path.clone(), Source::Flag("--config".to_owned()))),
        None => environment::file_variable(environment, problems)
            .map(|path| (path, Source::Variable(environment::FILE_VARIABLE.to_owned()))),
    };
    let from_file = path.as_ref().map(|(path, named_by)| file::read(path, named_by, problems));
    let file_is_known = !matches!(from_file, Some(None));
    let mut entries = from_file.flatten().unwrap_or_default();
    entries.extend(environment::read(environment, problems));
    for (key, flag, value) in &given.settings {
        if let Some(setting) = settings::find(key) {
            let source = Source::Flag(flag.clone());
            entries.push(Entry { target: Target::Setting(setting), raw: Raw::Text(value.expose().to_owned()), source });
        }
    }
    for (name, value) in &given.properties {
        let source = Source::Flag(format!("--kafka {name}"));
        let raw = Raw::Text(value.expose().to_owned());
        if let Some(property) = kafka::canonical(name) {
            entries.push(Entry { target: Target::Property(property), raw, source });
        } else if let Some(property) = file::kafka_secret_file(name) {
            entries.push(Entry { target: Target::PropertyFile(property), raw, source });
        } else {
            problems.push(Problem::at(&Source::Flag("--kafka".to_owned()), "", kafka::unknown(name)));
        }
    }
    (entries, file_is_known)
}

/// One layer may say a thing once: a secret not as itself and as a file, a property not under two names.
fn given_twice(entries: &[Entry], problems: &mut Vec<Problem>) {
    let mut seen: BTreeMap<(u8, &str), &Entry> = BTreeMap::new();
    for entry in entries {
        if let Some(first) = seen.insert((entry.source.layer(), entry.target.subject()), entry) {
            let other = match &first.source {
                Source::File { line: Some(line), .. } => format!("{} in line {line}", first.target.key()),
                source => source.to_string(),
            };
            let text = format!("{} is given twice, here and by {other}: keep one", entry.target.subject());
            problems.push(Problem::at(&entry.source, entry.target.key(), text));
        }
    }
}

fn apply_setting(
    setting: &'static Setting,
    entries: &[Entry],
    config: &mut Config,
    problems: &mut Vec<Problem>,
) -> Effective {
    let own = |entry: &&Entry| match entry.target {
        Target::Setting(target) | Target::SettingFile(target) => target.key == setting.key,
        Target::Property(_) | Target::PropertyFile(_) => false,
    };
    let given: Vec<&Entry> = entries.iter().filter(own).collect();
    let last = given.len().saturating_sub(1);
    for (position, entry) in given.iter().enumerate() {
        let counts = position == last;
        if matches!(entry.source, Source::Foreign(_)) && !counts {
            continue;
        }
        let result = match (&entry.target, &setting.kind, &entry.raw) {
            (Target::SettingFile(_), Kind::Secret(set), Raw::Text(path)) => {
                let secret = SecretSource::File(PathBuf::from(path));
                let readable = if counts { secret.read().map(|_| ()).map_err(with_cause) } else { Ok(()) };
                set(config, secret);
                readable
            }
            _ => setting.accept(config, &entry.raw),
        };
        if let Err(text) = result {
            problems.push(Problem::at(&entry.source, entry.target.key(), text));
        }
    }
    match given.last() {
        Some(entry) => Effective {
            key: entry.target.key(),
            value: Some(shown(setting, entry)),
            unset: "",
            source: entry.source.clone(),
        },
        None => Effective {
            key: setting.key.to_owned(),
            value: defaults::default_text(setting, config).map(|text| text_or_integer(setting, &text)),
            unset: setting.unset,
            source: Source::Default,
        },
    }
}

fn apply_properties(entries: &[Entry], config: &mut Config, problems: &mut Vec<Problem>) -> Vec<Effective> {
    let mut effective: BTreeMap<&str, Effective> = BTreeMap::new();
    for entry in entries {
        let (name, value, shown) = match (&entry.target, &entry.raw) {
            (Target::Property(name), raw) => match property_text(raw) {
                Ok(text) => {
                    let shown = if kafka::is_secret(name) { HIDDEN.to_owned() } else { text.clone() };
                    (*name, Ok(Secret::new(text)), shown)
                }
                Err(wrong) => (*name, Err(wrong), String::new()),
            },
            (Target::PropertyFile(name), Raw::Text(path)) => {
                let counts = !entries
                    .iter()
                    .any(|other| other.target.subject() == *name && other.source.layer() > entry.source.layer());
                if !counts {
                    continue;
                }
                let read = SecretSource::File(PathBuf::from(path)).read().map_err(with_cause);
                (*name, read, path.clone())
            }
            _ => continue,
        };
        let refusal = match &value {
            Ok(value) => kafka::refusal(name, value.expose()),
            Err(wrong) => Some(wrong.clone()),
        };
        if let Some(text) = refusal {
            problems.push(Problem::at(&entry.source, entry.target.key(), text));
            continue;
        }
        if let Ok(value) = value {
            config.kafka.properties.insert(name.to_owned(), value);
        }
        let value = Some(toml::Value::String(shown));
        let shown = Effective { key: entry.target.key(), value, unset: "", source: entry.source.clone() };
        effective.insert(name, shown);
    }
    for (name, text) in kafka::queue_below_window(&config.kafka.properties, &config.window) {
        let source = effective.get(name).map(|effective| effective.source.clone());
        problems.push(Problem { source, key: Some(format!("{}.{name}", file::PROPERTIES)), text });
    }
    effective.into_values().collect()
}

fn property_text(raw: &Raw) -> Result<String, String> {
    match raw {
        Raw::Text(text) | Raw::Number(text) => Ok(text.clone()),
        Raw::Bool(bool) => Ok(bool.to_string()),
        Raw::List(items) => Ok(items.join(",")),
        Raw::Map(_) | Raw::Other(_) => Err("must be a string, a number or a boolean".to_owned()),
    }
}

fn missing(config: &Config, environment: &Environment, needs: Needs, problems: &mut Vec<Problem>) {
    let mut missing = |key: &str, text: &str| {
        if !problems.iter().any(|problem| problem.key.as_deref().is_some_and(|other| other.starts_with(key))) {
            problems.push(Problem { source: None, key: Some(key.to_owned()), text: text.to_owned() });
        }
    };
    if needs.postgres && config.postgres.url.is_none() && !environment::names_a_database(environment) {
        let text = "no database is named: give --database-url, WALPOST_DATABASE_URL (or _FILE), DATABASE_URL, libpq's \
                    PGHOST and so on, or the file's postgres.url";
        missing("postgres.url", text);
    }
    if needs.kafka && config.kafka.brokers.is_none() {
        let text = "no Kafka broker is named: give --brokers, WALPOST_BROKERS, KAFKA_BOOTSTRAP_SERVERS, or the file's \
                    kafka.brokers, such as localhost:9092";
        missing("kafka.brokers", text);
    }
}

fn warnings(given: &Given, config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let address = given.settings.iter().find(|(key, _, _)| *key == "postgres.url");
    if address.is_some_and(|(_, _, address)| values::holds_password(address.expose())) {
        let text = "--database-url holds a password that other users of this machine can see in its list of processes; \
                    WALPOST_DATABASE_URL, or WALPOST_POSTGRES_PASSWORD_FILE, keep it to this process";
        warnings.push(text.to_owned());
    }
    let secrets = given.properties.iter().filter_map(|(name, _)| kafka::canonical(name));
    for name in secrets.filter(|name| kafka::is_secret(name)) {
        let variable = kafka::variable(name);
        warnings.push(format!(
            "--kafka {name} holds a secret that other users of this machine can see in its list of processes; \
             {variable}, or {variable}_FILE, keep it to this process"
        ));
    }
    if config.feedback.interval > FEEDBACK_INTERVAL_WARN {
        warnings.push(format!(
            "feedback.interval is {}: Postgres ends a connection that is silent for wal_sender_timeout (60s unless the \
             server says otherwise), so keep it well below",
            values::duration_text(config.feedback.interval)
        ));
    }
    warnings
}

const HIDDEN: &str = "***";

/// The value in the type that the file has for it.
fn shown(setting: &Setting, entry: &Entry) -> toml::Value {
    use super::accept::{list, map};
    let strings = |items: Vec<String>| toml::Value::Array(items.into_iter().map(toml::Value::String).collect());
    match (&entry.target, &setting.kind, &entry.raw) {
        (Target::Setting(_), Kind::Secret(_), _) => toml::Value::String(HIDDEN.to_owned()),
        (_, Kind::List(_), raw) => strings(list(raw).unwrap_or_default()),
        (_, Kind::Map(_), raw) => {
            let members = map(raw).unwrap_or_default();
            toml::Value::Table(members.into_iter().map(|(k, v)| (k, toml::Value::String(v))).collect())
        }
        (_, _, Raw::Text(text) | Raw::Number(text)) => text_or_integer(setting, text),
        (_, _, Raw::Bool(bool)) => toml::Value::Boolean(*bool),
        (_, _, Raw::List(items)) => toml::Value::String(items.join(",")),
        (_, _, Raw::Map(map)) => {
            let parts: Vec<String> = map.iter().map(|(name, value)| format!("{name}={value}")).collect();
            toml::Value::String(parts.join(","))
        }
        (_, _, Raw::Other(what)) => toml::Value::String((*what).to_owned()),
    }
}

fn text_or_integer(setting: &Setting, text: &str) -> toml::Value {
    let number = match setting.kind {
        Kind::Switch(_) => return toml::Value::Boolean(text == "true"),
        Kind::Integer { .. } | Kind::Size { .. } => text.parse::<i64>().ok(),
        _ => None,
    };
    number.map_or_else(|| toml::Value::String(text.to_owned()), toml::Value::Integer)
}

/// An error and its cause in one sentence: a problem is shown as a whole, there is no chain to follow.
fn with_cause(error: super::SecretFileError) -> String {
    match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
