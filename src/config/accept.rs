//! What was written becomes a value of [`Config`], by the kind of its setting. Pure.

use std::collections::BTreeMap;

use super::problem::quoted;
use super::settings::{Kind, Setting};
use super::{Config, Secret, SecretSource, values};

/// A value as it was written. A variable and a flag only have texts; the file also has types. It may hold a secret, so
/// it has no `Debug`.
#[derive(Clone)]
pub enum Raw {
    Text(String),
    /// A number of the file, as its digits.
    Number(String),
    Bool(bool),
    List(Vec<String>),
    Map(BTreeMap<String, String>),
    /// A type that no setting has, by its name.
    Other(&'static str),
}

impl Raw {
    fn what(&self) -> &'static str {
        match self {
            Raw::Text(_) => "a string",
            Raw::Number(_) => "a number",
            Raw::Bool(_) => "a boolean",
            Raw::List(_) => "an array",
            Raw::Map(_) => "a table",
            Raw::Other(what) => what,
        }
    }

    fn is_empty_text(&self) -> bool {
        matches!(self, Raw::Text(text) if text.is_empty())
    }

    fn or_not(&self, expected: &str) -> String {
        format!("is {}, but must be {expected}", self.what())
    }

    /// The value in one line, as the environment writes it.
    fn joined(&self) -> Result<String, String> {
        match self {
            Raw::Text(text) => Ok(text.clone()),
            Raw::List(items) => Ok(items.join(",")),
            Raw::Map(map) => {
                Ok(map.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(","))
            }
            Raw::Number(_) | Raw::Bool(_) | Raw::Other(_) => Err(self.or_not("a string")),
        }
    }
}

impl Setting {
    /// Puts the value into the configuration, or says what is wrong with it. A secret is never quoted.
    pub fn accept(&self, config: &mut Config, raw: &Raw) -> Result<(), String> {
        if raw.is_empty_text() && self.empty.is_none() {
            return Err("is empty: give it a value, or leave it out".to_owned());
        }
        match &self.kind {
            Kind::Text(set) => set(config, text(raw, "a string")?),
            Kind::Joined(set) => set(config, &raw.joined()?),
            Kind::Integer { min, max, set } => {
                set(config, values::integer(text_or_number(raw, "a whole number")?, *min, *max)?);
                Ok(())
            }
            Kind::Size { min, max, set } => {
                let text = text_or_number(raw, "a size such as \"32MiB\" or a number of bytes")?;
                set(config, values::size(text, *min, *max)?);
                Ok(())
            }
            Kind::Duration { min, max, set } => {
                let text = text_or_number(raw, "a duration such as \"25s\"")?;
                set(config, values::duration(text, *min, *max)?);
                Ok(())
            }
            Kind::Choice(choices) => {
                let wanted = values::choice(text(raw, "a string")?, choices.iter().map(|(name, _)| *name))?;
                if let Some((_, set)) = choices.iter().find(|(name, _)| *name == wanted) {
                    set(config);
                }
                Ok(())
            }
            Kind::Switch(set) => {
                let on = match raw {
                    Raw::Bool(on) => *on,
                    raw => values::choice(text(raw, "true or false")?, ["true", "false"].into_iter())? == "true",
                };
                set(config, on);
                Ok(())
            }
            Kind::List(set) => {
                set(config, list(raw)?);
                Ok(())
            }
            Kind::Map(set) => {
                set(config, map(raw)?);
                Ok(())
            }
            Kind::Secret(set) => {
                set(config, SecretSource::Value(Secret::new(text(raw, "a string")?)));
                Ok(())
            }
        }
    }
}

fn text<'a>(raw: &'a Raw, expected: &str) -> Result<&'a str, String> {
    match raw {
        Raw::Text(text) => Ok(text),
        Raw::Number(_) | Raw::Bool(_) => Err(format!("{}: put it in quotes", raw.or_not(expected))),
        other => Err(other.or_not(expected)),
    }
}

fn text_or_number<'a>(raw: &'a Raw, expected: &str) -> Result<&'a str, String> {
    match raw {
        Raw::Text(text) | Raw::Number(text) => Ok(text),
        other => Err(other.or_not(expected)),
    }
}

/// An array, or names separated by commas. Empty means none.
pub(super) fn list(raw: &Raw) -> Result<Vec<String>, String> {
    let items: Vec<String> = match raw {
        Raw::List(items) => items.clone(),
        Raw::Text(text) if text.is_empty() => Vec::new(),
        Raw::Text(text) => text.split(',').map(|item| item.trim().to_owned()).collect(),
        other => return Err(other.or_not("an array of strings")),
    };
    if items.iter().any(String::is_empty) {
        return Err("has an empty name in it: separate names by one comma".to_owned());
    }
    Ok(items)
}

/// A table, or `name=value` separated by commas. Empty means none.
pub(super) fn map(raw: &Raw) -> Result<BTreeMap<String, String>, String> {
    let mut map = BTreeMap::new();
    match raw {
        Raw::Map(table) => map.clone_from(table),
        Raw::Text(text) if text.is_empty() => {}
        Raw::Text(text) => {
            for part in text.split(',') {
                let Some((name, value)) = part.split_once('=') else {
                    return Err(format!("{} is not name=value", quoted(part)));
                };
                if map.insert(name.trim().to_owned(), value.trim().to_owned()).is_some() {
                    return Err(format!("{} is given twice", quoted(name.trim())));
                }
            }
        }
        other => return Err(other.or_not("a table of strings")),
    }
    if map.iter().any(|(name, value)| name.is_empty() || value.is_empty()) {
        return Err("has an empty name or value in it".to_owned());
    }
    Ok(map)
}
