//! Why setup did not come to its end, with the remedy in the text, and the exit code that belongs to it.

use crate::names::TableNameError;
use crate::postgres::catalog::CatalogError;
use crate::postgres::checkpoint::CheckpointError;
use crate::postgres::schema::{ColumnsError, TableProblem};
use crate::postgres::slot::SlotError;
use crate::postgres::steps::StepError;
use crate::postgres::{AddressError, ConnectError, ErrorKind};

/// Why setup did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("{}; {}", .0, .0.remedy())]
    Address(AddressError),
    #[error("{}; {}", .0, .0.remedy())]
    Connect(Box<ConnectError>),
    #[error("postgres.table cannot be used")]
    TableName(#[from] TableNameError),
    #[error("{0}")]
    Table(#[from] TableProblem),
    #[error("the settings do not fit the table")]
    Columns(#[from] ColumnsError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Slot(#[from] SlotError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("this is PostgreSQL {version}; walpost needs 14 or later")]
    Version { version: String },
    #[error("this server is a standby (in recovery); connect to the primary")]
    Standby,
    #[error(
        "wal_level is {level}, and logical decoding needs logical; run ALTER SYSTEM SET wal_level = logical and \
        restart the server{pending} (Amazon RDS and Aurora: rds.logical_replication = 1; Cloud SQL: \
        cloudsql.logical_decoding = on; Azure: wal_level in the server's parameters)"
    )]
    WalLevel { level: String, pending: &'static str },
    #[error(
        "all {limit} replication slots of the server are taken ({}); drop one that nobody needs, or raise \
        max_replication_slots and restart", holders.join(", ")
    )]
    NoSlotLeft { limit: i64, holders: Vec<String> },
    #[error("{reason}. A person must decide: {remedy}")]
    Decide { reason: String, remedy: String },
    #[error("{reason}. {remedy}")]
    Refused { reason: String, remedy: String },
    #[error(
        "slot {slot} is older than its publication {publication}, which is not there yet: it reads the catalog as of \
        each change, and would not find it. Drop the slot (`walpost teardown`) and run `walpost setup` again, or let \
        `walpost setup --accept-gap` move it to the present"
    )]
    SlotBeforePublication { slot: String, publication: String },
    #[error("slot {slot} is held by {holder}; stop that first")]
    SlotHeld { slot: String, holder: String },
    #[error("slot {slot} is being recovered by {holder}; let that finish, or end it first")]
    AtWork { slot: String, holder: String },
    #[error("role {role} does not exist; run CREATE ROLE {role} LOGIN REPLICATION PASSWORD '...' first")]
    NoRole { role: String },
    #[error("could not write the output")]
    Output(#[from] std::io::Error),
}

impl SetupError {
    /// The exit code of a one-shot command.
    pub fn exit_code(&self) -> u8 {
        match self {
            SetupError::Address(_) => 78,
            SetupError::Connect(error) => by_kind(error.kind()),
            SetupError::TableName(_)
            | SetupError::Table(_)
            | SetupError::Columns(_)
            | SetupError::Version { .. }
            | SetupError::WalLevel { .. }
            | SetupError::Refused { .. }
            | SetupError::NoRole { .. } => 78,
            SetupError::Decide { .. } | SetupError::SlotBeforePublication { .. } => 100,
            SetupError::Standby
            | SetupError::NoSlotLeft { .. }
            | SetupError::SlotHeld { .. }
            | SetupError::AtWork { .. } => 75,
            SetupError::Output(_) => 75,
            SetupError::Catalog(error) => by_sqlstate(error.sqlstate()),
            SetupError::Checkpoint(error) => by_sqlstate(error.sqlstate()),
            SetupError::Slot(error) => by_sqlstate(error.sqlstate()),
            SetupError::Step(error) => by_sqlstate(error.sqlstate()),
        }
    }
}

/// The exit code for a connection that could not be made.
pub(crate) fn by_kind(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Unreachable | ErrorKind::ShuttingDown | ErrorKind::ReadOnly => 69,
        ErrorKind::TooManyConnections | ErrorKind::SlotInUse => 75,
        ErrorKind::Auth | ErrorKind::NotPermitted => 77,
        ErrorKind::NoDatabase
        | ErrorKind::Tls
        | ErrorKind::Pooler
        | ErrorKind::UndefinedObject
        | ErrorKind::ObjectNotInState
        | ErrorKind::Protocol
        | ErrorKind::Other => 78,
    }
}

/// 77 for what is not permitted; the rest may pass.
pub(crate) fn by_sqlstate(code: Option<&str>) -> u8 {
    if code == Some("42501") { 77 } else { 75 }
}
