//! Why nothing was healed, or not to the end, with the remedy in the text, and the exit code that belongs to it.

use crate::cli::exit;
use crate::commands::setup::{by_kind, by_sqlstate};
use crate::names::TableNameError;
use crate::postgres::catalog::CatalogError;
use crate::postgres::checkpoint::CheckpointError;
use crate::postgres::parked::ParkedError;
use crate::postgres::recovery::Untold;
use crate::postgres::schema::{ColumnsError, TableProblem};
use crate::postgres::slot::{OpenTransaction, SlotError};
use crate::postgres::{AddressError, ConnectError};
use crate::relay::republish::PublishError;
use crate::sink::SettingsRefused;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("{}; {}", .0, .0.remedy())]
    Address(AddressError),
    #[error("{}; {}", .0, .0.remedy())]
    Connect(Box<ConnectError>),
    #[error(transparent)]
    Kafka(#[from] SettingsRefused),
    #[error("no broker answers: {0}; start the brokers, or mend kafka.brokers (--brokers) or what the error names")]
    NoKafka(String),
    #[error("signals cannot be listened for")]
    Signals(#[source] std::io::Error),
    #[error("postgres.table cannot be used")]
    TableName(#[from] TableNameError),
    #[error("{0}")]
    Table(#[from] TableProblem),
    #[error("the settings do not fit the table")]
    Columns(#[from] ColumnsError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Parked(#[from] ParkedError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Slot(#[from] SlotError),
    #[error("this server is a standby (in recovery); connect to the primary")]
    Standby,
    #[error("{reason}; {remedy}")]
    NoRecord { reason: String, remedy: &'static str },
    #[error("{reason}. {remedy}")]
    Refused { reason: String, remedy: String },
    #[error(
        "{reason}. Which rows are at risk cannot be told: {untold}. A person must decide: {remedy}`walpost recover \
        --all-rows` publishes every row of the table again, `walpost setup --accept-gap` goes on without them"
    )]
    Untold { reason: String, untold: Untold, remedy: &'static str },
    #[error("the table has no column published_at, so --unmarked-only has nothing to go by; leave it out")]
    NoMark,
    #[error("slot {slot} is held by {holder}; stop that first, then run `walpost recover` again")]
    Active { slot: String, holder: String },
    #[error("slot {slot} is being recovered by {holder}; let that finish, or end it and run `walpost recover` again")]
    AtWork { slot: String, holder: String },
    #[error("the record of slot {slot} was changed in this moment; run `walpost recover` again")]
    Changed { slot: String },
    #[error(
        "slot {slot} could not be made within {within_s} s, because it waits for transactions that are open{}; end them, \
        or try again",
        Open(open)
    )]
    Blocked { slot: String, within_s: u64, open: Vec<OpenTransaction> },
    #[error(
        "the role may not read all rows of {table}: {failure}; as its owner run `walpost setup --grants ROLE`, and where row \
        security is on, as a superuser ALTER ROLE ... BYPASSRLS"
    )]
    Unreadable { table: String, failure: String },
    #[error("the replication connection failed: {}; {}", .0, .0.remedy())]
    Replication(Box<ConnectError>),
    #[error(
        "table {table} was rewritten or truncated (by ALTER TABLE, VACUUM FULL, CLUSTER, TRUNCATE) while the slot was \
        made, so what was to be read of it is not there; run `walpost recover` again when that is done"
    )]
    Rewritten { table: String },
    #[error("{0}")]
    Publish(#[from] PublishError),
    #[error("the publication or the table was changed while rows were published ({what}); run `walpost recover` again")]
    PublicationChanged { what: String },
    #[error(
        "slot {slot}, which was made for this recovery, {what} while rows were published; mend that and run `walpost \
        recover` again"
    )]
    SlotGone { slot: String, what: String },
    #[error("recover publishes rows; say --yes, because there is no terminal to ask on (--dry-run shows them first)")]
    NotConfirmed,
    #[error("nothing was changed")]
    Declined,
    #[error("interrupted")]
    Interrupted,
    #[error("could not write the output")]
    Output(#[from] std::io::Error),
}

struct Open<'a>(&'a [OpenTransaction]);

impl std::fmt::Display for Open<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, open) in self.0.iter().enumerate() {
            write!(f, "{}{open}", if index == 0 { ": " } else { "; " })?;
        }
        Ok(())
    }
}

impl RecoverError {
    /// The exit code of a one-shot command.
    pub fn exit_code(&self) -> u8 {
        match self {
            RecoverError::Address(_)
            | RecoverError::Kafka(_)
            | RecoverError::TableName(_)
            | RecoverError::Table(_)
            | RecoverError::Columns(_)
            | RecoverError::NoRecord { .. }
            | RecoverError::Refused { .. } => exit::CONFIGURATION,
            RecoverError::Connect(error) => by_kind(error.kind()),
            RecoverError::Replication(error) => later(error),
            RecoverError::NoKafka(_) => exit::UNREACHABLE,
            RecoverError::Signals(_) => exit::BUG,
            RecoverError::Catalog(error) => by_sqlstate(error.sqlstate()),
            RecoverError::Checkpoint(error) => by_sqlstate(error.sqlstate()),
            RecoverError::Parked(error) => by_sqlstate(error.sqlstate()),
            RecoverError::Slot(error) => by_sqlstate(error.sqlstate()),
            RecoverError::Unreadable { .. } => exit::NOT_PERMITTED,
            RecoverError::Untold { .. } => exit::DECISION,
            RecoverError::Publish(error) => match error {
                PublishError::Read(error) => later(error),
                PublishError::Unsendable(_)
                | PublishError::Refused { .. }
                | PublishError::Topic { .. }
                | PublishError::Full { .. } => exit::DECISION,
                PublishError::Parked(error) => by_sqlstate(error.sqlstate()),
                PublishError::Sink(_) => exit::TEMPORARY,
            },
            RecoverError::NoMark | RecoverError::NotConfirmed => exit::USAGE,
            RecoverError::Declined => exit::FOUND,
            RecoverError::Standby
            | RecoverError::Active { .. }
            | RecoverError::AtWork { .. }
            | RecoverError::Changed { .. }
            | RecoverError::Blocked { .. }
            | RecoverError::Rewritten { .. }
            | RecoverError::PublicationChanged { .. }
            | RecoverError::SlotGone { .. }
            | RecoverError::Interrupted
            | RecoverError::Output(_) => exit::TEMPORARY,
        }
    }

    /// What a person can do about a row or a topic, beside starting over.
    pub fn advice(&self) -> Option<String> {
        let RecoverError::Publish(error) = self else { return None };
        match error {
            PublishError::Unsendable(_) => Some(
                "correct the row in the table, or change the setting that the reason names; or leave it out with \
                 WALPOST_ON_POISON=skip walpost recover"
                    .to_owned(),
            ),
            PublishError::Refused { reason: "too_large", topic, .. } => Some(format!(
                "raise max.message.bytes of the topic {topic:?}, or leave the message out with WALPOST_ON_POISON=skip \
                 walpost recover"
            )),
            PublishError::Refused { topic, .. } => Some(format!(
                "make the topic {topic:?} accept it, or leave the message out with WALPOST_ON_POISON=skip walpost recover"
            )),
            PublishError::Topic { remedy, .. } => Some(remedy.clone()),
            PublishError::Read(error) => Some(error.remedy()),
            PublishError::Full { .. } => Some(
                "see what is parked (walpost parked list), or raise parked.max_rows and parked.max_bytes".to_owned(),
            ),
            PublishError::Parked(_) | PublishError::Sink(_) => None,
        }
    }
}

/// Of a connection that stood before.
fn later(error: &ConnectError) -> u8 {
    match by_kind(error.kind()) {
        code @ (exit::UNREACHABLE | exit::NOT_PERMITTED) => code,
        _ => exit::TEMPORARY,
    }
}
