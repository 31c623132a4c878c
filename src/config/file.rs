//! The TOML file: which settings it gives, each with its line. Unknown keys are problems that name the nearest right one.
//! toml's own error text is not shown as a whole, because it repeats the line, which may hold a secret.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::accept::Raw;
use super::kafka;
use super::load::{Entry, Target};
use super::problem::{Problem, Source, nearest};
use super::settings::{self, SETTINGS};

/// The table of librdkafka properties.
pub const PROPERTIES: &str = "kafka.properties";

/// What the file at `path` gives; `named_by` is the flag or variable that named it. None: the file could not be read at
/// all, so that nothing is known about what it sets.
pub(super) fn read(path: &Path, named_by: &Source, problems: &mut Vec<Problem>) -> Option<Vec<Entry>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let text = format!("cannot read the configuration file {}: {error}", path.display());
            problems.push(Problem::at(named_by, "", text));
            return None;
        }
    };
    parse(&text, path, problems)
}

fn parse(text: &str, path: &Path, problems: &mut Vec<Problem>) -> Option<Vec<Entry>> {
    let mut walk = Walk { text, path, entries: Vec::new(), problems };
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        for error in errors {
            let line = error.span().map(|span| line(text, span.start));
            let source = Source::File { path: path.to_owned(), line };
            let text = format!("not valid TOML: {}", error.message());
            walk.problems.push(Problem { source: Some(source), key: None, text });
        }
        return None;
    }
    walk.table("", table.get_ref());
    Some(walk.entries)
}

fn line(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|b| *b == b'\n').count() + 1
}

struct Walk<'a> {
    text: &'a str,
    path: &'a Path,
    entries: Vec<Entry>,
    problems: &'a mut Vec<Problem>,
}

impl Walk<'_> {
    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        // By line, so that problems come in the order of the file.
        let mut members: Vec<_> = table.iter().collect();
        members.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in members {
            let key = join(prefix, name.get_ref());
            let source = self.source(name.span().start);
            self.member(key, value, source);
        }
    }

    fn member(&mut self, key: String, value: &Spanned<DeValue<'_>>, source: Source) {
        if let Some(setting) = settings::find(&key) {
            let raw = raw(value.get_ref());
            self.entries.push(Entry { target: Target::Setting(setting), raw, source });
            return;
        }
        let file_of = key.strip_suffix("_file").and_then(settings::find).filter(|setting| setting.is_secret());
        if let Some(setting) = file_of {
            self.secret_file(Target::SettingFile(setting), &key, value.get_ref(), source);
            return;
        }
        let section = key == PROPERTIES || SETTINGS.iter().any(|s| s.key.starts_with(&format!("{key}.")));
        match value.get_ref() {
            DeValue::Table(table) if key == PROPERTIES => self.properties("", table),
            DeValue::Table(table) if section => self.table(&key, table),
            _ if section => self.problems.push(Problem::at(&source, &key, format!("is a section: write [{key}]"))),
            _ => self.problems.push(Problem::at(&source, &key, unknown(&key))),
        }
    }

    /// `"linger.ms" = 5` and `linger.ms = 5` are the same here, though TOML nests the second.
    fn properties(&mut self, prefix: &str, table: &DeTable<'_>) {
        let mut members: Vec<_> = table.iter().collect();
        members.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in members {
            let name_text = join(prefix, name.get_ref());
            let key = format!("{PROPERTIES}.{name_text}");
            let source = self.source(name.span().start);
            if let DeValue::Table(table) = value.get_ref() {
                self.properties(&name_text, table);
            } else if let Some(property) = kafka::canonical(&name_text) {
                let raw = raw(value.get_ref());
                self.entries.push(Entry { target: Target::Property(property), raw, source });
            } else if let Some(property) = kafka_secret_file(&name_text) {
                self.secret_file(Target::PropertyFile(property), &key, value.get_ref(), source);
            } else {
                self.problems.push(Problem::at(&source, key, kafka::unknown(&name_text)));
            }
        }
    }

    /// A path that is not absolute counts from the directory of the configuration file.
    fn secret_file(&mut self, target: Target, key: &str, value: &DeValue<'_>, source: Source) {
        match value {
            DeValue::String(path) if !path.is_empty() => {
                let base = self.path.parent().map(Path::to_path_buf).unwrap_or_default();
                let path = base.join(path.as_ref()).to_string_lossy().into_owned();
                self.entries.push(Entry { target, raw: Raw::Text(path), source });
            }
            _ => self.problems.push(Problem::at(&source, key, "must be the path of a file, in quotes")),
        }
    }

    fn source(&self, offset: usize) -> Source {
        Source::File { path: self.path.to_owned(), line: Some(line(self.text, offset)) }
    }
}

/// The secret property that `sasl.password_file` gives as a file.
pub(super) fn kafka_secret_file(name: &str) -> Option<&'static str> {
    kafka::canonical(name.strip_suffix("_file")?).filter(|property| kafka::is_secret(property))
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(integer) if integer.radix() == 10 => Raw::Number(integer.as_str().to_owned()),
        DeValue::Integer(_) => Raw::Other("a number that is not decimal"),
        DeValue::Float(float) => Raw::Number(float.as_str().to_owned()),
        DeValue::Boolean(bool) => Raw::Bool(*bool),
        DeValue::Datetime(_) => Raw::Other("a date or time"),
        DeValue::Array(items) => {
            let texts: Option<Vec<String>> = items.iter().map(|item| scalar(item.get_ref())).collect();
            texts.map_or(Raw::Other("an array of something else than strings"), Raw::List)
        }
        DeValue::Table(table) => {
            let member = |(name, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
                let name: &std::borrow::Cow<'_, str> = name.get_ref();
                Some((name.to_string(), scalar(value.get_ref())?))
            };
            let texts: Option<BTreeMap<String, String>> = table.iter().map(member).collect();
            texts.map_or(Raw::Other("a table of something else than strings"), Raw::Map)
        }
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(integer) if integer.radix() == 10 => Some(integer.as_str().to_owned()),
        _ => None,
    }
}

fn unknown(key: &str) -> String {
    let wrong = "is no setting of walpost";
    // A setting at the wrong place: `table` without its section, or under the name of its flag or variable.
    let leaf = key.rsplit('.').next().unwrap_or(key).replace('-', "_").to_ascii_lowercase();
    let same_leaf = |setting: &&settings::Setting| {
        let own_leaf = setting.key.rsplit('.').next().unwrap_or(setting.key);
        let variable = setting.variable().trim_start_matches("WALPOST_").to_ascii_lowercase();
        let flag = setting.flag.map(|flag| flag.replace('-', "_"));
        flag.as_deref() == Some(leaf.as_str()) || variable == leaf || own_leaf == leaf
    };
    let spelled = nearest(key, SETTINGS.iter().map(|setting| setting.key));
    let moved = || SETTINGS.iter().filter(|setting| setting.flag.is_some()).find(same_leaf);
    let moved = || moved().or_else(|| SETTINGS.iter().find(same_leaf)).map(|setting| setting.key);
    let sections = || {
        let sections = SETTINGS.iter().filter_map(|setting| Some(setting.key.rsplit_once('.')?.0));
        nearest(key, sections.chain([PROPERTIES]))
    };
    let property = || kafka::canonical(key.strip_prefix("kafka.").unwrap_or(key));
    if let Some(right) = spelled.or_else(moved).or_else(sections) {
        return format!("{wrong}; did you mean {right}?");
    }
    if let Some(property) = property() {
        return format!("{wrong}; librdkafka's properties go under [{PROPERTIES}]: \"{property}\"");
    }
    format!("{wrong}: remove it (`walpost config template` lists all that there are)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        parse(text, Path::new("walpost.toml"), &mut problems);
        problems.iter().map(Problem::to_string).collect()
    }

    #[test]
    fn an_unknown_key_is_answered_with_the_right_one_and_its_line() {
        let cases = [
            ("[window]\nmesages = 1", "walpost.toml:2: window.mesages: ", "did you mean window.messages?"),
            ("table = \"x\"", "walpost.toml:1: table: ", "did you mean postgres.table?"),
            ("topic = \"x\"", "walpost.toml:1: topic: ", "did you mean route.topic?"),
            ("database_url = \"x\"", "walpost.toml:1: ", "did you mean postgres.url?"),
            ("[windw]\nbytes = 1\nmessages = 2", "walpost.toml:1: windw: ", "did you mean window?"),
            ("[kafka]\nacks = 1", "walpost.toml:2: kafka.acks: ", "[kafka.properties]"),
            ("[postgres]\ntable_file = \"x\"", "walpost.toml:2: ", "postgres.table"),
            ("zzzzzzzz = 1", "walpost.toml:1: ", "config template"),
            ("\nwindow = 5", "walpost.toml:2: ", "[window]"),
            ("[kafka.properties]\n\"linger.mss\" = 5", "walpost.toml:2: ", "did you mean linger.ms?"),
            ("[kafka.properties]\nlinger.mss = 5", "walpost.toml:2: ", "did you mean linger.ms?"),
        ];
        for (text, place, right) in cases {
            let problems = problems_of(text);
            let [problem] = problems.as_slice() else { panic!("{text:?}: {problems:?}") };
            assert!(problem.starts_with(place) && problem.contains(right), "{text:?}: {problem}");
        }
    }

    #[test]
    fn broken_toml_is_reported_with_lines_and_without_what_the_lines_hold() {
        let problems = problems_of("[postgres]\npassword = \"hunter2\n[kafka\nbrokers = hunter2");
        assert!(problems.iter().any(|problem| problem.starts_with("walpost.toml:2: ")), "{problems:?}");
        assert!(problems.iter().all(|problem| !problem.contains("hunter2")), "{problems:?}");
    }
}
