//! `walpost parked`: shows what is set aside, and says what is to become of it. Only the relay itself publishes or deletes:
//! these commands leave a wish in the table, which a running relay follows within a second or two.

use std::io::{BufRead, Write};

use serde_json::{Value as Json, json};

use crate::commands::setup::{by_kind, by_sqlstate};
use crate::config::Config;
use crate::outbox::Shown;
use crate::postgres::parked::{self, ParkedError, Shelved, WholeShelved};
use crate::postgres::{AddressError, ConnectError, Connector, Session};
use crate::telemetry::{human_bytes, human_seconds};

/// What the command line asks for.
#[derive(Clone, Debug)]
pub enum ParkedOptions {
    /// `all`: also what waits behind others. At most `limit`.
    List {
        all: bool,
        limit: i64,
        json: bool,
    },
    Show {
        id: i64,
        json: bool,
    },
    Retry {
        which: Which,
        json: bool,
    },
    /// `yes`: do not ask.
    Discard {
        which: Which,
        yes: bool,
        json: bool,
    },
}

/// Parked messages: these, or all that wait for a person.
#[derive(Clone, Debug)]
pub enum Which {
    These(Vec<i64>),
    All,
}

#[derive(Debug, thiserror::Error)]
pub enum ParkedCommandError {
    #[error("{}; {}", .0, .0.remedy())]
    Address(AddressError),
    #[error("{}; {}", .0, .0.remedy())]
    Connect(Box<ConnectError>),
    #[error("nothing is parked here: there is no table walpost.parked_messages; `walpost setup` makes it")]
    NoTable,
    #[error(transparent)]
    Parked(#[from] ParkedError),
    #[error("no message with the id {id} is parked for slot {slot}; see `walpost parked list`")]
    Unknown { id: i64, slot: String },
    #[error("to discard messages is to lose them; say --yes, because there is no terminal to ask on")]
    NotConfirmed,
    #[error("nothing was discarded")]
    Declined,
    #[error("could not write the output")]
    Output(#[from] std::io::Error),
}

impl ParkedCommandError {
    /// The exit code of a one-shot command.
    pub fn exit_code(&self) -> u8 {
        match self {
            ParkedCommandError::Address(_) | ParkedCommandError::NoTable => 78,
            ParkedCommandError::Connect(error) => by_kind(error.kind()),
            ParkedCommandError::Parked(error) => by_sqlstate(error.sqlstate()),
            ParkedCommandError::Unknown { .. } | ParkedCommandError::Declined => 1,
            ParkedCommandError::NotConfirmed => 2,
            ParkedCommandError::Output(_) => 75,
        }
    }
}

/// Connects and does what is asked. `ask` is where an answer is read from; None: there is no terminal.
pub async fn run(
    config: &Config,
    options: ParkedOptions,
    ask: Option<&mut (dyn BufRead + Send)>,
    out: &mut (dyn Write + Send),
) -> Result<(), ParkedCommandError> {
    let connector = Connector::new(&config.postgres).map_err(ParkedCommandError::Address)?;
    let session = connector.sql("walpost parked").await;
    let session = session.map_err(|error| ParkedCommandError::Connect(Box::new(error)))?;
    let slot = config.postgres.slot.as_str();
    match options {
        ParkedOptions::List { all, limit, json } => list(&session, slot, all, limit, json, out).await,
        ParkedOptions::Show { id, json } => show(&session, slot, id, json, out).await,
        ParkedOptions::Retry { which, json } => wish(&session, slot, "retry", &which, json, out).await,
        ParkedOptions::Discard { which, yes, json } => {
            if !yes {
                let Some(answers) = ask else { return Err(ParkedCommandError::NotConfirmed) };
                let what = match &which {
                    Which::These(ids) => format!("{} parked messages", ids.len()),
                    Which::All => "all parked messages that wait for a decision".to_owned(),
                };
                write!(out, "Discard {what} of slot {slot}? They will never be published. [y/N] ")?;
                out.flush()?;
                let mut answer = String::new();
                answers.read_line(&mut answer)?;
                if !matches!(answer.trim(), "y" | "Y" | "yes") {
                    return Err(ParkedCommandError::Declined);
                }
            }
            wish(&session, slot, "discard", &which, json, out).await
        }
    }
}

fn missing(error: ParkedError) -> ParkedCommandError {
    match error.sqlstate() {
        Some("42P01" | "3F000") => ParkedCommandError::NoTable,
        _ => error.into(),
    }
}

async fn list(
    session: &Session,
    slot: &str,
    all: bool,
    limit: i64,
    as_json: bool,
    out: &mut (dyn Write + Send),
) -> Result<(), ParkedCommandError> {
    let found = parked::list(session, slot, all, limit).await.map_err(missing)?;
    if as_json {
        let messages: Vec<Json> = found.iter().map(json_of).collect();
        writeln!(out, "{:#}", json!({ "slot": slot, "messages": messages }))?;
        return Ok(());
    }
    if found.is_empty() {
        writeln!(out, "nothing is parked for slot {slot}")?;
        return Ok(());
    }
    for message in &found {
        let age = human_seconds(message.age_seconds);
        let topic = message.topic.as_deref().unwrap_or("no topic");
        write!(out, "{:>6}  {:<8} {age:>8} ago  {topic}", message.id, message.state)?;
        if let Some(key) = &message.key {
            write!(out, "  key {}", Shown(key))?;
        }
        write!(out, "  {}, {}", message.reason, human_bytes(message.value_bytes))?;
        if message.attempts > 0 {
            write!(out, ", tried again {} times", message.attempts)?;
        }
        if message.behind > 0 {
            write!(out, ", {} wait behind it", message.behind)?;
        }
        writeln!(out)?;
        if !message.error.is_empty() {
            writeln!(out, "        {}", message.error)?;
        }
    }
    writeln!(
        out,
        "`walpost parked show ID` shows one whole; `walpost parked retry ID` publishes it and what waits behind it; `walpost \
         parked discard ID` gives it up"
    )?;
    Ok(())
}

async fn show(
    session: &Session,
    slot: &str,
    id: i64,
    as_json: bool,
    out: &mut (dyn Write + Send),
) -> Result<(), ParkedCommandError> {
    let found = parked::show(session, slot, id).await.map_err(missing)?;
    let Some(WholeShelved { message, value, headers, row, position, epoch }) = found else {
        return Err(ParkedCommandError::Unknown { id, slot: slot.to_owned() });
    };
    let mut whole = json_of(&message);
    let parsed = |text: &str| serde_json::from_str::<Json>(text).unwrap_or(Json::Null);
    whole["value"] = value.as_deref().map_or(Json::Null, text_of);
    whole["headers"] = parsed(&headers);
    whole["row"] = row.as_deref().map_or(Json::Null, parsed);
    whole["epoch"] = epoch.into();
    whole["commit_lsn"] = position.commit_lsn.to_string().into();
    whole["ordinal"] = position.ordinal.into();
    if as_json {
        writeln!(out, "{whole:#}")?;
        return Ok(());
    }
    for (name, value) in whole.as_object().into_iter().flatten() {
        match value {
            Json::Null => {}
            Json::String(text) => writeln!(out, "{name:<11}  {text}")?,
            Json::Array(members) => {
                for member in members {
                    writeln!(out, "{name:<11}  {member}")?;
                }
            }
            other => writeln!(out, "{name:<11}  {other}")?,
        }
    }
    Ok(())
}

async fn wish(
    session: &Session,
    slot: &str,
    wish: &str,
    which: &Which,
    as_json: bool,
    out: &mut (dyn Write + Send),
) -> Result<(), ParkedCommandError> {
    let ids = match which {
        Which::These(ids) => ids.as_slice(),
        Which::All => &[],
    };
    for id in ids {
        if parked::show(session, slot, *id).await.map_err(missing)?.is_none() {
            return Err(ParkedCommandError::Unknown { id: *id, slot: slot.to_owned() });
        }
    }
    let changed = parked::wish(session, slot, wish, ids, matches!(which, Which::All)).await.map_err(missing)?;
    if as_json {
        writeln!(out, "{:#}", json!({ "slot": slot, "wish": wish, "ids": changed }))?;
    } else if changed.is_empty() {
        writeln!(out, "nothing to do: no parked message waits for a decision, or that was asked for already")?;
    } else {
        let does = if wish == "retry" {
            "publishes them, each with what waits behind it,"
        } else {
            "deletes them, and publishes what waits behind them,"
        };
        writeln!(
            out,
            "{} messages: the running relay {does} within a second or two; `walpost parked list` shows what is left",
            changed.len()
        )?;
    }
    Ok(())
}

fn json_of(message: &Shelved) -> Json {
    json!({
        "id": message.id,
        "state": message.state,
        "topic": message.topic,
        "key": message.key.as_deref().map(text_of),
        "message_id": message.message_id,
        "reason": message.reason,
        "error": message.error,
        "attempts": message.attempts,
        "value_bytes": message.value_bytes,
        "parked_at": message.parked_at,
        "behind": message.behind,
    })
}

/// Bytes that are no text are shown as `\x` and hexadecimal digits.
fn text_of(bytes: &[u8]) -> Json {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => format!("\\x{}", hex::encode(bytes)).into(),
    }
}
