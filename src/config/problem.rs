//! What can be wrong with a configuration, and where it was written. Every problem reads alone: where it came from,
//! what is wrong, what would be right. A secret is never part of one.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from, in the order of precedence: a later one wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    /// A variable that other programs read as well, such as `DATABASE_URL`.
    Foreign(String),
    File {
        path: PathBuf,
        line: Option<usize>,
    },
    /// A `WALPOST_` variable.
    Variable(String),
    /// A flag, with its dashes.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::Foreign(name) | Source::Variable(name) | Source::Flag(name) => f.write_str(name),
            Source::File { path, line: Some(line) } => write!(f, "{}:{line}", path.display()),
            Source::File { path, line: None } => write!(f, "{}", path.display()),
        }
    }
}

impl Source {
    /// The layer alone: two values of one layer contradict each other, two of different layers do not.
    pub(super) fn layer(&self) -> u8 {
        match self {
            Source::Default => 0,
            Source::Foreign(_) => 1,
            Source::File { .. } => 2,
            Source::Variable(_) => 3,
            Source::Flag(_) => 4,
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// None where nothing was written: a setting that is missing.
    pub source: Option<Source>,
    /// The setting in question, as in the file.
    pub key: Option<String>,
    /// What is wrong, and what would be right.
    pub text: String,
}

impl Problem {
    pub(super) fn at(source: &Source, key: impl Into<String>, text: impl Into<String>) -> Self {
        Problem { source: Some(source.clone()), key: Some(key.into()), text: text.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = &self.source {
            write!(f, "{source}: ")?;
        }
        // A flag or a variable names its setting already; a place in a file does not.
        if let (Some(key), None | Some(Source::File { .. } | Source::Default)) = (&self.key, &self.source) {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.text)
    }
}

/// All that is wrong with a configuration, in the order of the layers. Its `Display` is one line for each.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [one] => write!(f, "the configuration has a problem:\n  {one}"),
            all => {
                write!(f, "the configuration has {} problems:", all.len())?;
                all.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl std::error::Error for ConfigErrors {}

/// The name among `known` that was probably meant by `wrong`, if any is near enough to be a slip of the pen.
pub(super) fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (wrong.chars().count() / 3).clamp(1, 4);
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(wrong, name), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// `"value"` for an error text: short, on one line, and without anything that looks like a password, because an address
/// with one in it is easily pasted into the wrong setting.
pub(super) fn quoted(value: &str) -> String {
    let lower = value.to_ascii_lowercase();
    if (value.contains("://") && value.contains('@')) || lower.contains("password") || lower.contains("secret") {
        return "the value (not shown: it seems to hold a password)".to_owned();
    }
    let mut short: String = value.chars().take(60).collect();
    if short.len() < value.len() {
        short.push('…');
    }
    format!("{short:?}")
}

/// `a, b or c`.
pub(super) fn alternatives<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_named_and_a_different_word_is_not() {
        let known = ["window.bytes", "window.messages", "http.listen"];
        assert_eq!(nearest("windw.bytes", known), Some("window.bytes"));
        assert_eq!(nearest("http.lisetn", known), Some("http.listen"));
        assert_eq!(nearest("frobnicate", known), None);
        assert_eq!(nearest("", known), None);
    }

    #[test]
    fn an_address_with_a_password_is_not_quoted() {
        for value in ["postgres://u:hunter2@h/d", "host=h password=hunter2", "client_secret=hunter2"] {
            assert!(!quoted(value).contains("hunter2"), "{value}");
        }
        assert_eq!(quoted("My Slot"), "\"My Slot\"");
        assert!(quoted(&"é".repeat(200)).chars().count() < 70);
    }

    #[test]
    fn alternatives_read_as_a_sentence() {
        assert_eq!(alternatives(["a"]), "a");
        assert_eq!(alternatives(["a", "b", "c"]), "a, b or c");
    }
}
