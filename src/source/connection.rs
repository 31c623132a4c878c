//! A replication connection up to the moment when it streams: startup as a walsender of one database, the few
//! commands that a walsender knows, and simple queries. The extended query protocol does not exist there.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::lsn::Lsn;
use crate::postgres::dial::{self, Entry, Login, Socket};
use crate::postgres::error::{ConnectError, Failure, ServerError};
use crate::postgres::{Connector, NO_TRANSACTION_TIMEOUT, version_number};
use crate::source::auth::{log_in, unexpected};
use crate::source::protocol::{
    self, MESSAGE_BYTES_MAX, Message, ProtocolError, message_bytes, take_message, take_text,
};
use crate::source::stream::Stream;

/// No answer to a command is larger, and what is no Postgres is not trusted with memory.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A new piece of memory is begun when less than the second is left of the old one, so that reads never get tiny. Rows point
/// into it, and it is free when the last of them is gone.
const CHUNK_BYTES: usize = 64 * 1024;
const ROOM_BYTES_MIN: usize = 8 * 1024;

/// IDENTIFY_SYSTEM and START_REPLICATION wait for nothing on the server.
const COMMAND_WITHIN: Duration = Duration::from_secs(30);

/// What IDENTIFY_SYSTEM tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemIdentity {
    /// Differs between clusters; survives a failover, not a dump and restore.
    pub system_identifier: String,
    /// Grows by one at each failover.
    pub timeline: u32,
    /// How far the server's log is flushed.
    pub xlogpos: Lsn,
    pub dbname: String,
}

/// A walsender that waits for commands.
pub struct Connection {
    wire: Wire,
    identity: Identity,
    /// What the server said of the query whose rows are being taken; told at the query's end.
    failure: Option<Failure>,
}

/// For error texts.
struct Identity {
    target: String,
    user: String,
    database: String,
}

impl Connection {
    /// Connects with `replication=database`.
    pub async fn connect(connector: &Connector, application_name: &str) -> Result<Connection, ConnectError> {
        let address = connector.address()?;
        dial::connect(&address, &ReplicationLogin { application_name }).await
    }

    /// Which cluster, which timeline, how far.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, ConnectError> {
        const COMMAND: &str = "IDENTIFY_SYSTEM";
        let outcome = tokio::time::timeout(COMMAND_WITHIN, self.wire.query(COMMAND)).await;
        let outcome = match outcome.unwrap_or(Err(Failure::Timeout(COMMAND_WITHIN.as_secs()))) {
            Ok(rows) => identity(rows),
            Err(failure) => Err(failure),
        };
        outcome.map_err(|failure| self.identity.failed(COMMAND, no_walsender(failure)))
    }

    /// Runs SQL, or a replication command, and returns the rows of all its statements as text. Waits as long as the
    /// server does. After an error of the server the connection is good for more.
    pub async fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, ConnectError> {
        self.wire.query(sql).await.map_err(|failure| self.identity.failed(sql, failure))
    }

    /// Sends SQL whose rows are then taken with [`Connection::data_row`], all of them. Not to be cancelled.
    pub(super) async fn send_query(&mut self, sql: &str) -> Result<(), Failure> {
        self.wire.send("sending a query", |out| frontend::query(sql, out)).await
    }

    /// The body of the next DataRow, of whatever size Postgres allows; None at the end of the query. Cancel-safe.
    pub(super) async fn data_row(&mut self) -> Result<Option<Bytes>, Failure> {
        const DURING: &str = "reading the rows of a query";
        loop {
            let message = self.wire.message_up_to(MESSAGE_BYTES_MAX, DURING).await?;
            match message.tag {
                b'D' => return Ok(Some(message.body)),
                b'T' | b'C' | b'I' => {}
                b'E' => {
                    let error = ServerError::parse(&message.body);
                    if matches!(error.severity.as_str(), "FATAL" | "PANIC") {
                        return Err(Failure::server(error));
                    }
                    self.failure = Some(Failure::server(error));
                }
                b'Z' => return self.failure.take().map_or(Ok(None), Err),
                _ => return Err(unexpected(message, "among the rows of a query")),
            }
        }
    }

    /// The error of something that was done over this connection.
    pub(super) fn failed(&self, operation: &str, failure: Failure) -> ConnectError {
        self.identity.failed(operation, failure)
    }

    /// `170011` for 17.11.
    pub fn server_version(&self) -> u32 {
        self.parameter("server_version").map_or(0, version_number)
    }

    /// What the server reported of its settings (`server_version`, `in_hot_standby`, `TimeZone`, ...).
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.wire.parameters.get(name).map(String::as_str)
    }

    /// Host, port and IP address of the server that let us in.
    pub fn target(&self) -> &str {
        &self.identity.target
    }

    /// Whether what we send and receive is encrypted.
    pub fn is_tls(&self) -> bool {
        self.wire.socket.is_tls()
    }

    /// Starts streaming. `at` is the last position that we confirmed, or 0/0 for the slot's own: never one ahead of
    /// that, the server would skip to it.
    pub async fn start_replication(mut self, slot: &str, publication: &str, at: Lsn) -> Result<Stream, ConnectError> {
        let command = protocol::start_replication(slot, publication, at);
        let outcome = tokio::time::timeout(COMMAND_WITHIN, async {
            self.wire.send("starting replication", |out| frontend::query(&command, out)).await?;
            let message = self.wire.message("starting replication").await?;
            match message.tag {
                b'W' => Ok(()),
                _ => Err(unexpected(message, "as the answer to START_REPLICATION")),
            }
        })
        .await;
        match outcome.unwrap_or(Err(Failure::Timeout(COMMAND_WITHIN.as_secs()))) {
            Ok(()) => Ok(Stream::new(self.wire.socket, self.wire.buffer)),
            Err(failure) => {
                let operation = format!("START_REPLICATION on slot {slot:?}");
                Err(self.identity.failed(&operation, no_walsender(failure)))
            }
        }
    }
}

/// A server that does not know the replication commands is no walsender: the startup parameter did not get through to
/// Postgres.
fn no_walsender(failure: Failure) -> Failure {
    match failure {
        Failure::Server(error) if error.sqlstate == "42601" => Failure::Pooler(error),
        failure => failure,
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.identity.target)
    }
}

impl Identity {
    fn failed(&self, operation: &str, failure: Failure) -> ConnectError {
        ConnectError::Command {
            operation: operation.to_owned(),
            server: self.target.clone(),
            user: self.user.clone(),
            database: self.database.clone(),
            failure,
        }
    }
}

fn identity(rows: Vec<Vec<Option<String>>>) -> Result<SystemIdentity, Failure> {
    let mut columns = rows.into_iter().next().unwrap_or_default().into_iter();
    let mut next = || columns.next().flatten();
    let parsed = (|| {
        Some(SystemIdentity {
            system_identifier: next()?,
            timeline: next()?.parse().ok()?,
            xlogpos: next()?.parse().ok()?,
            dbname: next().unwrap_or_default(),
        })
    })();
    parsed.ok_or_else(|| ProtocolError::Other("IDENTIFY_SYSTEM returned no such row as Postgres does".into()).into())
}

struct ReplicationLogin<'a> {
    application_name: &'a str,
}

impl Login for ReplicationLogin<'_> {
    type Session = Connection;

    async fn begin(&self, socket: Socket, entry: &Entry<'_>) -> Result<Connection, Failure> {
        let mut wire = Wire { socket, buffer: BytesMut::new(), parameters: HashMap::new() };
        log_in(&mut wire, entry, self.application_name).await?;
        entry.check_attrs(|name| wire.parameters.get(name).cloned())?;
        let identity = Identity {
            target: entry.target.clone(),
            user: entry.address.user.clone(),
            database: entry.address.database.clone(),
        };
        let mut connection = Connection { wire, identity, failure: None };
        if connection.parameter("server_encoding") == Some("SQL_ASCII") {
            // Such a database checks no text. Asked for UTF-8 the server would refuse, again and again, to send the first
            // row that is none; Kafka's values are bytes and take it as it is.
            connection.wire.query("SET client_encoding = 'SQL_ASCII'").await?;
        }
        if connection.server_version() >= 170_000 {
            connection.wire.query(NO_TRANSACTION_TIMEOUT).await?;
        }
        Ok(connection)
    }
}

/// Socket and read buffer; takes in what the server may say at any time.
pub(crate) struct Wire {
    socket: Socket,
    buffer: BytesMut,
    parameters: HashMap<String, String>,
}

impl Wire {
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(crate) async fn send(
        &mut self,
        during: &'static str,
        write: impl FnOnce(&mut BytesMut) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let mut out = BytesMut::new();
        write(&mut out).map_err(|error| ProtocolError::Other(error.to_string()))?;
        self.socket.write_all(&out).await.map_err(|error| Failure::io(during, error))?;
        self.socket.flush().await.map_err(|error| Failure::io(during, error))
    }

    /// The next message that is an answer to something. An error of the server is returned as a message: some callers
    /// have to read on after it.
    pub(crate) async fn message(&mut self, during: &'static str) -> Result<Message, Failure> {
        self.message_up_to(ANSWER_BYTES_MAX, during).await
    }

    /// The same, with another bound on its size. Cancel-safe: what was read is kept.
    async fn message_up_to(&mut self, bytes_max: usize, during: &'static str) -> Result<Message, Failure> {
        loop {
            while message_bytes(&self.buffer, bytes_max)?.is_none_or(|total| self.buffer.len() < total) {
                if self.buffer.capacity() - self.buffer.len() < ROOM_BYTES_MIN {
                    self.buffer.reserve(CHUNK_BYTES);
                }
                let count = self.socket.read_buf(&mut self.buffer).await.map_err(|error| Failure::io(during, error))?;
                if count == 0 {
                    return Err(Failure::Closed(during));
                }
            }
            match take_message(&mut self.buffer, bytes_max)? {
                Some(Message { tag: b'S', body }) => self.set_parameter(body)?,
                Some(Message { tag: b'N', body }) => {
                    let notice = ServerError::parse(&body);
                    tracing::debug!(sqlstate = notice.sqlstate, "Postgres says: {}", notice.message);
                }
                Some(message) => return Ok(message),
                None => {}
            }
        }
    }

    fn set_parameter(&mut self, body: Bytes) -> Result<(), ProtocolError> {
        let mut rest = &body[..];
        let name = take_text(&mut rest)?;
        self.parameters.insert(name, take_text(&mut rest)?);
        Ok(())
    }

    async fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, Failure> {
        const DURING: &str = "waiting for the answer to a command";
        self.send(DURING, |out| frontend::query(sql, out)).await?;
        let (mut rows, mut failure) = (Vec::new(), None);
        loop {
            let message = self.message(DURING).await?;
            match message.tag {
                b'D' => rows.push(protocol::data_row(&message.body)?),
                b'T' | b'C' | b'I' => {}
                b'E' => {
                    let error = ServerError::parse(&message.body);
                    let last = matches!(error.severity.as_str(), "FATAL" | "PANIC");
                    failure = Some(Failure::server(error));
                    if last {
                        break;
                    }
                }
                b'Z' => break,
                _ => return Err(unexpected(message, "as the answer to a command")),
            }
        }
        failure.map_or(Ok(rows), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identify_system_is_read_or_refused_whole() {
        let row = |cells: &[&str]| vec![cells.iter().map(|cell| Some((*cell).to_owned())).collect::<Vec<_>>()];
        let seen = identity(row(&["7412345678901234567", "2", "16/B374D848", "shop"])).unwrap();
        let expected = SystemIdentity {
            system_identifier: "7412345678901234567".into(),
            timeline: 2,
            xlogpos: Lsn(0x16_B374_D848),
            dbname: "shop".into(),
        };
        assert_eq!(seen, expected);
        for odd in [row(&[]), row(&["1", "x", "0/0", "d"]), row(&["1", "1", "0", "d"]), vec![]] {
            assert!(identity(odd).is_err());
        }
    }
}
