//! The effective settings, each with where it came from, as TOML or JSON. What is shown comes from [`Loaded::sources`],
//! which holds no secret.

use std::fmt::Write as _;

use super::Loaded;
use super::file::PROPERTIES;
use super::load::Effective;

/// TOML, the source of each value behind it as a comment.
pub fn toml(loaded: &Loaded) -> String {
    let mut lines: Vec<(String, String)> = Vec::new();
    let mut section = "";
    for effective in &loaded.sources {
        let (own_section, leaf) = split(&effective.key);
        if own_section != section {
            section = own_section;
            lines.push((String::new(), String::new()));
            lines.push((format!("[{section}]"), String::new()));
        }
        lines.push(match &effective.value {
            Some(value) => (format!("{leaf} = {value}"), effective.source.to_string()),
            None => (format!("# {leaf} is not set"), effective.unset.to_owned()),
        });
    }
    let width = lines.iter().map(|(left, _)| left.chars().count()).filter(|width| *width <= 60).max().unwrap_or(0);
    let mut text = String::new();
    for (left, comment) in lines {
        // Writing to a String cannot fail.
        let _ = if comment.is_empty() {
            writeln!(text, "{left}")
        } else if left.starts_with('#') {
            writeln!(text, "{left}: {comment}")
        } else {
            writeln!(text, "{left:width$}  # {comment}")
        };
    }
    text
}

/// One member for each setting: `{"window.bytes": {"value": "32MiB", "source": "default"}}`.
pub fn json(loaded: &Loaded) -> serde_json::Value {
    let member = |effective: &Effective| {
        let value = serde_json::to_value(&effective.value).unwrap_or(serde_json::Value::Null);
        let source = effective.source.to_string();
        (effective.key.clone(), serde_json::json!({ "value": value, "source": source }))
    };
    serde_json::Value::Object(loaded.sources.iter().map(member).collect())
}

/// Section and rest; a property's name has dots and is quoted.
fn split(key: &str) -> (&str, String) {
    if let Some(name) = key.strip_prefix(PROPERTIES).and_then(|rest| rest.strip_prefix('.')) {
        return (PROPERTIES, format!("\"{name}\""));
    }
    match key.rsplit_once('.') {
        Some((section, leaf)) => (section, leaf.to_owned()),
        None => ("", key.to_owned()),
    }
}
