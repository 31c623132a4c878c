//! What can go wrong between us and Postgres, said for the person who has to mend it: what failed, on which of the
//! addresses, why, and (`remedy`) what to do. `ErrorKind` is the part that code decides by.

use std::fmt;
use std::io;

use crate::postgres::address::AddressError;
use crate::postgres::tls::TlsError;
use crate::source::protocol::{ProtocolError, take_text};

/// Why it failed, as far as the reaction differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No server answered: name, network, refused, timed out, connection broken.
    Unreachable,
    /// 57P01 to 57P03: stopping, crashed, or not up yet.
    ShuttingDown,
    /// 53300: also `max_wal_senders`.
    TooManyConnections,
    /// 55006.
    SlotInUse,
    /// Class 28: password, pg_hba.conf, role.
    Auth,
    /// 3D000.
    NoDatabase,
    /// 42501.
    NotPermitted,
    Tls,
    /// Something between us and Postgres that does not pass replication on.
    Pooler,
    /// 25006, and a server that target_session_attrs does not want.
    ReadOnly,
    /// 42704 and 42P01: no such slot, publication, table.
    UndefinedObject,
    /// 55000: slot invalidated, wal_level too low.
    ObjectNotInState,
    /// The other side does not speak as Postgres speaks.
    Protocol,
    Other,
}

impl ErrorKind {
    /// The kind that a SQLSTATE stands for.
    pub fn of_sqlstate(sqlstate: &str) -> ErrorKind {
        match sqlstate {
            "57P01" | "57P02" | "57P03" => ErrorKind::ShuttingDown,
            "53300" => ErrorKind::TooManyConnections,
            "55006" => ErrorKind::SlotInUse,
            "3D000" => ErrorKind::NoDatabase,
            "42501" => ErrorKind::NotPermitted,
            "25006" => ErrorKind::ReadOnly,
            "42704" | "42P01" => ErrorKind::UndefinedObject,
            "55000" => ErrorKind::ObjectNotInState,
            "08P01" => ErrorKind::Protocol,
            _ if sqlstate.starts_with("28") => ErrorKind::Auth,
            _ if sqlstate.starts_with("08") => ErrorKind::Unreachable,
            _ => ErrorKind::Other,
        }
    }

    /// The label of the metric.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::ShuttingDown => "shutting_down",
            ErrorKind::TooManyConnections => "too_many_connections",
            ErrorKind::SlotInUse => "slot_in_use",
            ErrorKind::Auth => "auth",
            ErrorKind::NoDatabase => "no_database",
            ErrorKind::NotPermitted => "not_permitted",
            ErrorKind::Tls => "tls",
            ErrorKind::Pooler => "pooler",
            ErrorKind::ReadOnly => "read_only",
            ErrorKind::UndefinedObject => "undefined_object",
            ErrorKind::ObjectNotInState => "object_not_in_state",
            ErrorKind::Protocol => "protocol",
            ErrorKind::Other => "other",
        }
    }

    /// It may pass by itself, without anybody changing anything.
    pub fn is_temporary(self) -> bool {
        use ErrorKind::*;
        matches!(self, Unreachable | ShuttingDown | TooManyConnections | SlotInUse)
    }
}

/// The kind of an error that the SQL client returned.
pub fn kind_of(error: &tokio_postgres::Error) -> ErrorKind {
    Failure::from_client(error).kind()
}

/// An ErrorResponse or NoticeResponse of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerError {
    pub severity: String,
    pub sqlstate: String,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
}

impl ServerError {
    /// Reads the body of the message; what is missing or cut short stays empty.
    pub fn parse(mut body: &[u8]) -> ServerError {
        let mut error = ServerError::default();
        while let Some((&field, rest)) = body.split_first().filter(|(field, _)| **field != 0) {
            body = rest;
            let Ok(text) = take_text(&mut body) else { break };
            match field {
                // 'V' is never translated and comes after 'S'.
                b'S' | b'V' => error.severity = text,
                b'C' => error.sqlstate = text,
                b'M' => error.message = text,
                b'D' => error.detail = Some(text),
                b'H' => error.hint = Some(text),
                _ => {}
            }
        }
        error
    }

    pub fn kind(&self) -> ErrorKind {
        // Connection poolers know only a few startup parameters, and say so in these words.
        if self.message.to_ascii_lowercase().contains("unsupported startup parameter") {
            return ErrorKind::Pooler;
        }
        ErrorKind::of_sqlstate(&self.sqlstate)
    }
}

impl From<&tokio_postgres::error::DbError> for ServerError {
    fn from(error: &tokio_postgres::error::DbError) -> Self {
        ServerError {
            severity: error.severity().to_owned(),
            sqlstate: error.code().code().to_owned(),
            message: error.message().to_owned(),
            detail: error.detail().map(str::to_owned),
            hint: error.hint().map(str::to_owned),
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = if self.severity.is_empty() { "ERROR" } else { &self.severity };
        write!(f, "{severity}: {} (SQLSTATE {})", self.message, self.sqlstate)?;
        if let Some(detail) = &self.detail {
            write!(f, "; detail: {detail}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ServerError {}

/// Authentication did not even get to an answer of the server.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error("the server asks for a password and none is given")]
    PasswordMissing,
    #[error("the server asks for {0} authentication, which walpost does not speak")]
    Unsupported(String),
    #[error("channel_binding=require, but {0}")]
    ChannelBinding(&'static str),
    #[error(
        "the server's scram_iterations is above 100000, the most that walpost accepts \
         (more would let a false server keep us busy)"
    )]
    ScramIterations,
    #[error("SCRAM failed: {0}")]
    Scram(String),
}

/// Why one try, or one command, failed. The texts are whole: they hold their cause, because several of them are
/// listed in one sentence.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the host name cannot be resolved ({0})")]
    Resolve(io::Error),
    #[error("no answer within {0} s")]
    Timeout(u64),
    #[error("{0}")]
    Connect(io::Error),
    #[error("the connection broke while {during} ({cause})")]
    Io { during: &'static str, cause: io::Error },
    #[error("the server closed the connection while {0}")]
    Closed(&'static str),
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("{0}")]
    Server(Box<ServerError>),
    #[error("{0}")]
    Auth(#[from] AuthError),
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error("the server is {found}, and target_session_attrs={wanted}")]
    SessionAttrs { wanted: &'static str, found: &'static str },
    #[error("it does not understand replication commands ({0})")]
    Pooler(Box<ServerError>),
    #[error("{0}")]
    Other(String),
}

impl Failure {
    pub(crate) fn server(error: ServerError) -> Failure {
        Failure::Server(Box::new(error))
    }

    pub(crate) fn io(during: &'static str, cause: io::Error) -> Failure {
        match cause.kind() {
            io::ErrorKind::UnexpectedEof => Failure::Closed(during),
            _ => Failure::Io { during, cause },
        }
    }

    /// Sorts an error of the SQL client. It tells its own causes apart only by text.
    pub(crate) fn from_client(error: &tokio_postgres::Error) -> Failure {
        if let Some(error) = error.as_db_error() {
            return Failure::server(error.into());
        }
        if error.is_closed() {
            return Failure::Closed("waiting for an answer");
        }
        let cause = std::error::Error::source(error);
        if let Some(cause) = cause.and_then(|cause| cause.downcast_ref::<io::Error>()) {
            return Failure::io("waiting for an answer", io::Error::new(cause.kind(), cause.to_string()));
        }
        let text = match cause {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        if text.contains("password missing") {
            AuthError::PasswordMissing.into()
        } else if text.contains("channel binding") {
            AuthError::ChannelBinding("the server did not use it").into()
        } else if text.contains("iteration count") {
            AuthError::ScramIterations.into()
        } else if text.contains("unsupported authentication method") {
            AuthError::Unsupported("GSSAPI, SSPI or another unknown".to_owned()).into()
        } else if text.contains("SASL mechanism") {
            AuthError::Unsupported("an unknown SASL".to_owned()).into()
        } else if text.contains("authentication error") {
            AuthError::Scram(text).into()
        } else {
            Failure::Other(text)
        }
    }

    pub fn kind(&self) -> ErrorKind {
        match self {
            Failure::Resolve(_)
            | Failure::Timeout(_)
            | Failure::Connect(_)
            | Failure::Io { .. }
            | Failure::Closed(_) => ErrorKind::Unreachable,
            Failure::Tls(_) => ErrorKind::Tls,
            Failure::Server(error) => error.kind(),
            Failure::Auth(_) => ErrorKind::Auth,
            Failure::Protocol(_) => ErrorKind::Protocol,
            Failure::SessionAttrs { .. } => ErrorKind::ReadOnly,
            Failure::Pooler(_) => ErrorKind::Pooler,
            Failure::Other(_) => ErrorKind::Other,
        }
    }

    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Failure::Server(error) | Failure::Pooler(error) => Some(&error.sqlstate),
            _ => None,
        }
    }

    fn remedy(&self, user: &str, database: &str) -> String {
        match self {
            Failure::Resolve(_) => "check the host's spelling in the address, and this machine's name server".into(),
            Failure::Timeout(_) => "check host and port, firewalls between here and there, and that the server is not \
                                    overloaded; connect_timeout in the address sets how long to wait"
                .into(),
            Failure::Connect(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => {
                "nothing listens there: check host and port, that Postgres runs, and that its listen_addresses covers \
                 that address (IPv4 and IPv6 are separate)"
                    .into()
            }
            Failure::Connect(cause) if cause.kind() == io::ErrorKind::NotFound => {
                "no socket file there: check that Postgres runs and its unix_socket_directories, or name a host".into()
            }
            Failure::Connect(_) | Failure::Io { .. } | Failure::Closed(_) => {
                "check that the server is up (its log says why it closed a connection) and reachable from here".into()
            }
            Failure::Tls(error) => error.remedy(),
            Failure::Auth(error) => auth_remedy(error, user),
            Failure::Server(error) => server_remedy(error, user, database),
            Failure::Protocol(_) => "check that host and port belong to a Postgres server".into(),
            Failure::SessionAttrs { .. } => {
                "name the primary in the address, or all servers with target_session_attrs=read-write".into()
            }
            Failure::Pooler(_) => POOLER.into(),
            Failure::Other(_) => "see the server's log".into(),
        }
    }
}

const POOLER: &str = "logical replication needs a direct connection: give the address of Postgres itself, not of a \
                      pooler such as PgBouncer (often another port or host name)";

fn auth_remedy(error: &AuthError, user: &str) -> String {
    match error {
        AuthError::PasswordMissing => format!(
            "give the password of {user:?}: WALPOST_POSTGRES_PASSWORD_FILE, postgres.password_file, PGPASSWORD or \
             ~/.pgpass"
        ),
        AuthError::Unsupported(_) => {
            format!("in pg_hba.conf, give {user:?} a line with scram-sha-256 (or cert, peer, md5, password)")
        }
        AuthError::ChannelBinding(_) => {
            "use TLS, SCRAM passwords and a server certificate with an RSA or ECDSA signature, or \
             channel_binding=prefer"
                .into()
        }
        AuthError::ScramIterations => {
            format!("set scram_iterations to at most 100000 on the server and set the password of {user:?} anew")
        }
        AuthError::Scram(_) => format!("check the password of {user:?}, and that the server is the one you mean"),
    }
}

fn server_remedy(error: &ServerError, user: &str, database: &str) -> String {
    match error.sqlstate.as_str() {
        "28P01" => return format!("the password of {user:?} is wrong (or the role has none, or it expired): check it"),
        "28000" if error.message.contains("certificate") => {
            return format!("give the client certificate of {user:?} as sslcert and its key as sslkey");
        }
        "57P03" => return "the server is starting up or in recovery: wait".into(),
        "57P01" | "57P02" => return "the server is being stopped, or somebody ended the session: wait".into(),
        _ => {}
    }
    match error.kind() {
        ErrorKind::Auth => format!(
            "pg_hba.conf must have a line for {user:?} from this machine to database {database:?} (logical replication \
             uses the database's name there, not `replication`), and if it is `hostssl` use sslmode=require; the role \
             must exist and have LOGIN"
        ),
        ErrorKind::TooManyConnections => {
            "the server has no room for one more: raise max_connections (for a replication connection max_wal_senders), \
             or end sessions that are not needed"
                .into()
        }
        ErrorKind::SlotInUse => {
            "another process reads from the slot (a second relay stands by until it is free); if none should, end the \
             session that pg_replication_slots.active_pid names"
                .into()
        }
        ErrorKind::NoDatabase => format!("create database {database:?}, or correct its name in the address"),
        ErrorKind::NotPermitted => {
            format!("run `ALTER ROLE \"{user}\" REPLICATION` as a superuser, and see `walpost setup --grants`")
        }
        ErrorKind::ReadOnly => {
            "this server is a standby or read-only: name the primary, or all servers with \
             target_session_attrs=read-write"
                .into()
        }
        ErrorKind::UndefinedObject => "`walpost doctor` says what is missing, `walpost setup` makes it".into(),
        ErrorKind::ObjectNotInState => {
            "either wal_level is not `logical` (set it and restart Postgres) or the slot was invalidated (see \
             `walpost doctor`)"
                .into()
        }
        ErrorKind::Pooler => POOLER.into(),
        ErrorKind::ShuttingDown => "wait until the server is back".into(),
        _ => "see the message above and the server's log".into(),
    }
}

/// One try to connect: to what, and how it ended.
#[derive(Debug)]
pub struct Attempt {
    /// Host, port and IP address, or the path of the socket.
    pub target: String,
    pub failure: Failure,
}

/// A connection could not be made, or a command on it failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the address of Postgres cannot be used")]
    Address(#[from] AddressError),
    #[error("cannot connect to Postgres as {user:?} to database {database:?}: {}", list(attempts))]
    Connect { user: String, database: String, attempts: Vec<Attempt> },
    #[error("{operation} failed at {server}: {failure}")]
    Command { operation: String, server: String, user: String, database: String, failure: Failure },
}

fn list(attempts: &[Attempt]) -> String {
    let texts: Vec<String> =
        attempts.iter().map(|attempt| format!("{}: {}", attempt.target, attempt.failure)).collect();
    texts.join("; ")
}

impl ConnectError {
    /// The failure that says most: with several tries, the last that got an answer from a server.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            ConnectError::Address(_) => None,
            ConnectError::Connect { attempts, .. } => attempts
                .iter()
                .map(|attempt| &attempt.failure)
                .rfind(|failure| failure.kind() != ErrorKind::Unreachable)
                .or(attempts.last().map(|attempt| &attempt.failure)),
            ConnectError::Command { failure, .. } => Some(failure),
        }
    }

    pub fn kind(&self) -> ErrorKind {
        self.failure().map_or(ErrorKind::Other, Failure::kind)
    }

    pub fn sqlstate(&self) -> Option<&str> {
        self.failure().and_then(Failure::sqlstate)
    }

    /// What to do about it, in one sentence.
    pub fn remedy(&self) -> String {
        match self {
            ConnectError::Address(error) => error.remedy(),
            ConnectError::Connect { user, database, .. } | ConnectError::Command { user, database, .. } => {
                self.failure().map(|failure| failure.remedy(user, database)).unwrap_or_default()
            }
        }
    }
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// What the server said, if it said something. When a statement was running, the server's word went to that
    /// statement as its error, and is not here.
    pub server: Option<ServerError>,
    pub reason: String,
}

impl Closed {
    pub fn sqlstate(&self) -> Option<&str> {
        self.server.as_ref().map(|error| error.sqlstate.as_str())
    }

    pub fn kind(&self) -> ErrorKind {
        self.server.as_ref().map_or(ErrorKind::Unreachable, ServerError::kind)
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// The stream ended, or cannot go on. It has to be dropped.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("Postgres ended the replication stream: {0}")]
    Server(Box<ServerError>),
    #[error("Postgres closed the replication connection without a word")]
    Closed,
    #[error("Postgres ended the replication stream in good order, as it does when it shuts down")]
    Ended,
    #[error("the replication connection broke while {during}")]
    Io { during: &'static str, source: io::Error },
    #[error("a status frame could not be written within {0} s: Postgres, or the network to it, does not take it")]
    WriteTimeout(u64),
    #[error("the replication stream is out of step: {0}")]
    Protocol(#[from] ProtocolError),
}

impl StreamError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            StreamError::Server(error) => error.kind(),
            StreamError::Ended => ErrorKind::ShuttingDown,
            StreamError::Closed | StreamError::Io { .. } | StreamError::WriteTimeout(_) => ErrorKind::Unreachable,
            StreamError::Protocol(_) => ErrorKind::Protocol,
        }
    }

    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            StreamError::Server(error) => Some(&error.sqlstate),
            _ => None,
        }
    }

    /// What to do about it, in one sentence.
    pub fn remedy(&self) -> String {
        match self {
            StreamError::Server(error) if error.sqlstate == "58P01" => {
                "the WAL that the slot needs is gone: see `walpost doctor`, then `walpost recover`".into()
            }
            // Who and where are settled once a stream runs; no remedy for what can happen then names them.
            StreamError::Server(error) => server_remedy(error, "", ""),
            StreamError::Protocol(_) => "this is a defect of walpost or of something between it and Postgres".into(),
            _ => "nothing: walpost connects again".into(),
        }
    }
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
