//! The example file: every setting with its help, its other names and its default, all commented out. It is made from
//! the table, so it cannot go stale; the copy in the repository is compared with it by a test.

use std::fmt::Write as _;

use super::file::PROPERTIES;
use super::kafka;
use super::problem::alternatives;
use super::settings::{Kind, SETTINGS, Setting};
use super::values::{duration_text, size_text};

const HEAD: &str = "\
walpost's settings. Every line is optional: a value here replaces the default, a WALPOST_ variable replaces a value \
here, and a flag replaces both. A line that begins with `#` and a name is a setting at its default (or an example, where \
there is none): take the `#` away to set it. Every secret can be given as a file instead, by the same name with `_file` \
behind; such a path counts from the directory of this file. Name this file with --config or WALPOST_CONFIG, and test it \
with `walpost config check`.";

const PROPERTIES_HELP: &str = "\
Any property of librdkafka that contradicts no promise of walpost, by its own name; in the environment \
WALPOST_KAFKA_LINGER_MS and so on, on the command line --kafka linger.ms=5 (-X).";

/// The whole file.
pub fn template() -> String {
    let mut text = String::new();
    comment(&mut text, HEAD);
    let mut section = "";
    for setting in SETTINGS {
        let (own_section, leaf) = setting.key.rsplit_once('.').unwrap_or(("", setting.key));
        if own_section != section {
            if section == "kafka" {
                properties(&mut text);
            }
            section = own_section;
            let _ = write!(text, "\n[{section}]\n");
        }
        text.push('\n');
        describe(&mut text, setting);
        let _ = writeln!(text, "#{leaf} = {}", value(setting));
        if setting.is_secret() {
            let _ = writeln!(text, "#{leaf}_file = \"/run/secrets/{leaf}\"");
        }
    }
    text
}

fn properties(text: &mut String) {
    let _ = write!(text, "\n[{PROPERTIES}]\n\n");
    let secrets = format!("{PROPERTIES_HELP} Secrets, which are never shown: {}.", kafka::secrets_text());
    comment(text, &secrets);
    text.push_str("#\"compression.type\" = \"lz4\"\n#\"sasl.password_file\" = \"/run/secrets/kafka\"\n");
}

fn describe(text: &mut String, setting: &Setting) {
    let mut facts = format!("{}.", setting.help);
    match &setting.kind {
        Kind::Integer { min, max, .. } => facts.push_str(&format!(" From {min} to {max}.")),
        Kind::Size { min, max, .. } => facts.push_str(&format!(" From {} to {}.", size_text(*min), size_text(*max))),
        Kind::Duration { min, max, .. } => {
            facts.push_str(&format!(" From {} to {}.", duration_text(*min), duration_text(*max)));
        }
        Kind::Choice(choices) if !choices.iter().any(|(name, _)| setting.help.contains(name)) => {
            facts.push_str(&format!(" One of {}.", alternatives(choices.iter().map(|(name, _)| *name))));
        }
        Kind::List(_) => facts.push_str(" Several names: the first that exists."),
        Kind::Text(_) | Kind::Joined(_) | Kind::Choice(_) | Kind::Switch(_) | Kind::Map(_) | Kind::Secret(_) => {}
    }
    if !setting.unset.is_empty() {
        facts.push_str(&format!(" Not set: {}.", setting.unset));
    }
    if let Some(empty) = setting.empty.filter(|empty| *empty != setting.unset) {
        facts.push_str(&format!(" Empty: {empty}."));
    }
    comment(text, &facts);
    let mut names = vec![setting.variable().into_owned()];
    names.extend(setting.foreign.iter().map(|name| (*name).to_owned()));
    let mut names = names.join(", then ");
    if let Some(flag) = setting.flag {
        names.push_str(&format!("; --{flag}"));
    }
    comment(text, &names);
}

fn value(setting: &Setting) -> String {
    let text = match (setting.default, setting.key) {
        (Some(text), _) => text,
        // The profile decides these; the default profile's names are the ones to show.
        (None, "headers.id") => "id",
        (None, "headers.event_type") => "eventType",
        (None, "headers.token") => "token",
        (None, "headers.created_at") => "",
        (None, "headers.origin") => "origin",
        (None, _) => return setting.example.to_owned(),
    };
    match setting.kind {
        Kind::Integer { .. } | Kind::Switch(_) => text.to_owned(),
        _ => format!("\"{text}\""),
    }
}

/// Wraps at 100 columns.
fn comment(text: &mut String, sentence: &str) {
    let mut line = String::from("#");
    for word in sentence.split_ascii_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > 100 {
            text.push_str(&line);
            text.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
}
