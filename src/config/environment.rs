//! The environment as a value, so that a test can bring its own, and what its variables say. A variable that begins with
//! `WALPOST_` and is none of ours is a problem: it is most likely a misspelt setting that would be ignored silently.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use super::accept::Raw;
use super::kafka;
use super::load::{Entry, Target};
use super::problem::{Problem, Source, nearest};
use super::settings::SETTINGS;

/// Names the configuration file; no setting, because the file cannot name itself.
pub const FILE_VARIABLE: &str = "WALPOST_CONFIG";
const PREFIX: &str = "WALPOST_";

/// Of scripts and tests around the program, which may well run it in their own environment.
const OF_SCRIPTS: [&str; 2] = ["WALPOST_BIN", "WALPOST_CACHE"];
const OF_TESTS: [&str; 2] = ["WALPOST_TEST_", "WALPOST_SIM_"];

/// The variables of a process. Its `Debug` shows names only.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    /// Variables whose value is not Unicode.
    unreadable: BTreeSet<String>,
}

impl Environment {
    /// Those of this process.
    pub fn from_process() -> Self {
        let mut environment = Environment::default();
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            match value.into_string() {
                Ok(value) => {
                    environment.variables.insert(name, value);
                }
                Err(_) => {
                    environment.unreadable.insert(name);
                }
            }
        }
        environment
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// As [`Environment::get`], where an empty variable counts as unset: so do other programs treat their own.
    pub fn get_foreign(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Environment { variables, unreadable: BTreeSet::new() }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

/// What the variables of other programs and our own give.
pub(super) fn read(environment: &Environment, problems: &mut Vec<Problem>) -> Vec<Entry> {
    let mut entries = Vec::new();
    for setting in SETTINGS {
        let found = setting.foreign.iter().find_map(|name| Some((name, environment.get_foreign(name)?)));
        if let Some((name, value)) = found {
            let source = Source::Foreign((*name).to_owned());
            entries.push(Entry { target: Target::Setting(setting), raw: Raw::Text(value.to_owned()), source });
        }
    }
    for name in environment.unreadable.iter().filter(|name| name.starts_with(PREFIX)) {
        problems.push(Problem::at(&Source::Variable(name.clone()), "", "the value is not valid UTF-8"));
    }
    for (name, value) in environment.variables.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
        if name == FILE_VARIABLE {
            continue;
        }
        let source = Source::Variable(name.clone());
        if let Some(target) = target(name) {
            let raw = Raw::Text(value.clone());
            if target.is_file() && value.is_empty() {
                problems.push(Problem::at(&source, target.key(), "is empty: name a file, or unset it"));
            } else {
                entries.push(Entry { target, raw, source });
            }
        } else if !is_service_link(name, value) && !is_of_scripts(name) {
            problems.push(Problem::at(&source, "", unknown(name)));
        }
    }
    entries
}

fn target(name: &str) -> Option<Target> {
    if let Some(setting) = SETTINGS.iter().find(|setting| setting.variable() == name) {
        return Some(Target::Setting(setting));
    }
    if let Some(base) = name.strip_suffix("_FILE")
        && let Some(setting) = SETTINGS.iter().find(|setting| setting.is_secret() && setting.variable() == base)
    {
        return Some(Target::SettingFile(setting));
    }
    let suffix = name.strip_prefix("WALPOST_KAFKA_")?;
    if let Some(property) = kafka::from_variable(suffix) {
        return Some(Target::Property(property));
    }
    let property = kafka::from_variable(suffix.strip_suffix("_FILE")?)?;
    kafka::is_secret(property).then_some(Target::PropertyFile(property))
}

fn is_of_scripts(name: &str) -> bool {
    OF_SCRIPTS.contains(&name) || OF_TESTS.iter().any(|prefix| name.starts_with(prefix))
}

/// Kubernetes describes every service of a namespace to every container of it in variables: a service called `walpost`
/// gives `WALPOST_SERVICE_HOST`, `WALPOST_PORT_9464_TCP_ADDR` and so on. Those are none of ours and no mistake.
fn is_service_link(name: &str, value: &str) -> bool {
    let parts: Vec<&str> = name.split('_').collect();
    let protocol = |part: &&str| matches!(*part, "TCP" | "UDP" | "SCTP");
    let number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match parts.as_slice() {
        [.., "SERVICE", "HOST"] | [.., "SERVICE", "PORT"] => true,
        [.., "PORT", port, proto, "ADDR" | "PORT" | "PROTO"] if number(port) && protocol(proto) => true,
        [.., "PORT", port, proto] if number(port) && protocol(proto) => true,
        // `tcp://10.0.0.7:9464`; a bare number is somebody who looks for the setting of a port.
        [.., "PORT"] => value.contains("://"),
        // With the name of the port behind: WALPOST_SERVICE_PORT_HTTP_METRICS.
        _ => parts.windows(2).any(|pair| pair == ["SERVICE", "PORT"]),
    }
}

fn unknown(name: &str) -> String {
    let wrong = "is no variable of walpost";
    if let Some(setting) = SETTINGS.iter().find(|setting| setting.variable_by_rule() == name) {
        return format!("{wrong}: {} is set by {}", setting.key, setting.variable());
    }
    if let Some(base) = name.strip_suffix("_FILE") {
        let is_plain = target(base).is_some();
        if is_plain {
            return format!("{wrong}: only secrets can be given as a file; set {base}");
        }
    }
    let known = SETTINGS.iter().flat_map(|setting| {
        let variable = setting.variable().into_owned();
        let file = setting.is_secret().then(|| format!("{variable}_FILE"));
        [Some(variable), file].into_iter().flatten()
    });
    let properties = kafka::passed_on().flat_map(|property| {
        let variable = kafka::variable(property);
        let file = kafka::is_secret(property).then(|| format!("{variable}_FILE"));
        [Some(variable), file].into_iter().flatten()
    });
    let known: Vec<String> = known.chain(properties).chain([FILE_VARIABLE.to_owned()]).collect();
    match nearest(name, known.iter().map(String::as_str)) {
        Some(right) => format!("{wrong}; did you mean {right}?"),
        None => format!("{wrong}: unset it (`walpost config template` lists all that there are)"),
    }
}

/// Whether libpq's own variables say where the database is.
pub(super) fn names_a_database(environment: &Environment) -> bool {
    const LIBPQ: [&str; 6] = ["PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"];
    LIBPQ.iter().any(|name| environment.get_foreign(name).is_some())
}

/// The file that `WALPOST_CONFIG` names.
pub(super) fn file_variable(environment: &Environment, problems: &mut Vec<Problem>) -> Option<PathBuf> {
    let value = environment.get(FILE_VARIABLE)?;
    if value.is_empty() {
        let source = Source::Variable(FILE_VARIABLE.to_owned());
        problems.push(Problem::at(&source, "", "is empty: name a file, or unset it"));
        return None;
    }
    Some(PathBuf::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_scripts_around_the_program_are_no_mistake() {
        let environment: Environment =
            [("WALPOST_BIN", "target/release/walpost"), ("WALPOST_CACHE", "/var/cache/x"), ("WALPOST_TEST_ROWS", "7")]
                .into_iter()
                .collect();
        let mut problems = Vec::new();
        assert!(read(&environment, &mut problems).is_empty() && problems.is_empty());
        let environment: Environment = [("WALPOST_BINARY", "x")].into_iter().collect();
        read(&environment, &mut problems);
        assert_eq!(problems.len(), 1);
    }

    #[test]
    fn variables_that_kubernetes_adds_for_a_service_are_no_mistake() {
        let links_or_not = [
            ("WALPOST_SERVICE_HOST", "10.0.0.7", true),
            ("WALPOST_SERVICE_PORT", "9464", true),
            ("WALPOST_SERVICE_PORT_HTTP_METRICS", "9464", true),
            ("WALPOST_PORT", "tcp://10.0.0.7:9464", true),
            ("WALPOST_PORT_9464_TCP", "tcp://10.0.0.7:9464", true),
            ("WALPOST_PORT_9464_TCP_ADDR", "10.0.0.7", true),
            ("WALPOST_PORT_9464_TCP_PROTO", "tcp", true),
            ("WALPOST_METRICS_SERVICE_HOST", "10.0.0.7", true),
            ("WALPOST_KAFKA_PORT_9092_TCP_PORT", "9092", true),
            ("WALPOST_HTTP_PORT", "9464", false),
            ("WALPOST_SLOTT", "x", false),
            ("WALPOST_PORT_X_TCP", "x", false),
        ];
        for (name, value, link) in links_or_not {
            assert_eq!(is_service_link(name, value), link, "{name}");
        }
    }

    #[test]
    fn an_unknown_variable_is_answered_with_the_right_one() {
        assert!(unknown("WALPOST_SLOTT").contains("did you mean WALPOST_SLOT?"));
        assert!(unknown("WALPOST_POSTGRES_URL").contains("WALPOST_DATABASE_URL"));
        assert!(unknown("WALPOST_KAFKA_BROKERS").contains("WALPOST_BROKERS"));
        assert!(unknown("WALPOST_SLOT_FILE").contains("only secrets"));
        assert!(unknown("WALPOST_KAFKA_LINGER_MSS").contains("WALPOST_KAFKA_LINGER_MS"));
        assert!(unknown("WALPOST_ENTIRELY_DIFFERENT_THING").contains("config template"));
    }

    #[test]
    fn its_debug_form_shows_no_value() {
        let environment: Environment = [("WALPOST_DATABASE_URL", "hunter2")].into_iter().collect();
        assert!(!format!("{environment:?}").contains("hunter2"));
    }
}
