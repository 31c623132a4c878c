//! Connections to Postgres: one address, one TLS, one set of session settings for the replication connection (in
//! `source`) and for SQL.
//!
//! ```text
//!  dsn      the text → names and values              (pure)
//!  address  those, PG* and defaults → Address        (pure)
//!  dial     Address → Socket: hosts, IP addresses, TLS, time-outs
//!  tls      libpq's six modes on OpenSSL
//!  error    what went wrong, and the remedy
//! ```
//!
//! On top of the SQL session: the slot, the catalog, walpost's schema and its checkpoint.

use std::future::poll_fn;
use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_postgres::AsyncMessage;
use tokio_postgres::config::{SslMode, SslNegotiation};

use crate::config::{self, Secret, SecretSource};

pub mod address;
pub mod catalog;
pub mod checkpoint;
pub mod control;
pub(crate) mod dial;
mod dsn;
pub mod error;
pub mod fingerprint;
pub mod history;
pub mod parked;
mod passfile;
pub mod recovery;
pub mod schema;
pub mod server;
pub mod shards;
pub mod slot;
pub mod steps;
pub mod tls;

pub use address::AddressError;
pub use error::{Closed, ConnectError, ErrorKind, Failure, ServerError, StreamError, kind_of};
pub use tokio_postgres::{Client, Error as SqlError};

use address::{Address, ChannelBinding};
use dial::{Entry, Login, Socket};

/// The text forms that rows and answers arrive in, as Postgres' own receiver pins them, and no time-out that a role or
/// a database could have set: a session of ours may wait for long.
const SESSION_OPTIONS: &str = "-c bytea_output=hex -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3 \
                               -c timezone=UTC -c statement_timeout=0 -c lock_timeout=0 \
                               -c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0";

/// Known to PostgreSQL 17 and later only, so it cannot be among the startup options. It would end a walsender in the
/// middle of a long transaction.
pub(crate) const NO_TRANSACTION_TIMEOUT: &str = "SET transaction_timeout = 0";

/// The value of `options` at startup: the user's settings first, so that ours win.
pub(crate) fn session_options(address: &Address) -> String {
    match &address.options {
        Some(options) => format!("{options} {SESSION_OPTIONS}"),
        None => SESSION_OPTIONS.to_owned(),
    }
}

/// `170011` for "17.11"; 0 for what is no version.
pub(crate) fn version_number(text: &str) -> u32 {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    // "18beta1" is no 18.1.
    let minor = if text.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with('.') { minor } else { 0 };
    major.saturating_mul(10_000).saturating_add(minor)
}

/// Knows how to reach Postgres. Secrets in files, and the password file, are read anew at each connect.
#[derive(Clone, Debug)]
pub struct Connector {
    postgres: Arc<config::Postgres>,
    description: String,
}

impl Connector {
    /// Reads the address once, to report what is wrong with it before anything starts.
    pub fn new(postgres: &config::Postgres) -> Result<Connector, AddressError> {
        let mut connector = Connector { postgres: Arc::new(postgres.clone()), description: String::new() };
        connector.description = connector.address()?.describe();
        Ok(connector)
    }

    /// `host:port/database as user`, without a secret.
    pub fn describe(&self) -> String {
        self.description.clone()
    }

    /// The address as of now.
    pub(crate) fn address(&self) -> Result<Address, AddressError> {
        let url = read(self.postgres.url.as_ref(), "the Postgres address")?;
        let mut address = Address::parse(url.as_ref().map_or("", Secret::expose), &|name| std::env::var(name).ok())?;
        if let Some(password) = read(self.postgres.password.as_ref(), "the Postgres password")? {
            address.password = Some(password);
        }
        Ok(address)
    }

    /// Opens an SQL session.
    pub async fn sql(&self, application_name: &str) -> Result<Session, ConnectError> {
        let address = self.address()?;
        dial::connect(&address, &SqlLogin { application_name }).await
    }
}

fn read(source: Option<&SecretSource>, what: &'static str) -> Result<Option<Secret>, AddressError> {
    let secret = source.map(SecretSource::read).transpose();
    secret.map_err(|source| AddressError::File { what, source })
}

/// An SQL session. Dropping it ends it in good order.
pub struct Session {
    pub client: Client,
    server_version: u32,
    target: String,
    ending: oneshot::Receiver<Closed>,
    closed: Option<Closed>,
}

impl Session {
    /// Resolves when the connection has ended, and says how. Cancel-safe, and may be asked again.
    pub async fn closed(&mut self) -> Closed {
        if self.closed.is_none() {
            let closed = (&mut self.ending).await.unwrap_or_else(|_| Closed {
                server: None,
                reason: "the task of the SQL session ended with the program".to_owned(),
            });
            self.closed = Some(closed);
        }
        self.closed.clone().unwrap_or_else(|| unreachable!("set above"))
    }

    /// `170011` for 17.11.
    pub fn server_version(&self) -> u32 {
        self.server_version
    }

    /// Host, port and IP address of the server that let us in.
    pub fn target(&self) -> &str {
        &self.target
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.target)
    }
}

struct SqlLogin<'a> {
    application_name: &'a str,
}

impl Login for SqlLogin<'_> {
    type Session = Session;

    async fn begin(&self, socket: Socket, entry: &Entry<'_>) -> Result<Session, Failure> {
        let address = entry.address;
        let mut config = tokio_postgres::Config::new();
        config
            .user(&address.user)
            .dbname(&address.database)
            .application_name(self.application_name)
            .options(session_options(address))
            .channel_binding(match address.channel_binding {
                ChannelBinding::Disable => tokio_postgres::config::ChannelBinding::Disable,
                ChannelBinding::Prefer => tokio_postgres::config::ChannelBinding::Prefer,
                ChannelBinding::Require => tokio_postgres::config::ChannelBinding::Require,
            })
            // The socket is ready, TLS and all: "direct" makes the client ask for no more than the `Ready` below.
            .ssl_mode(SslMode::Require)
            .ssl_negotiation(SslNegotiation::Direct);
        if let Some(password) = &entry.password {
            config.password(password.expose());
        }
        let (client, mut connection) =
            config.connect_raw(socket, Ready).await.map_err(|error| Failure::from_client(&error))?;
        entry.check_attrs(|name| connection.parameter(name).map(str::to_owned))?;
        let server_version = connection.parameter("server_version").map_or(0, version_number);
        let (report, ending) = oneshot::channel();
        tokio::spawn(async move {
            let closed = loop {
                match poll_fn(|cx| connection.poll_message(cx)).await {
                    Some(Ok(AsyncMessage::Notice(notice))) => {
                        tracing::debug!(sqlstate = notice.code().code(), "Postgres says: {}", notice.message());
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break ended(&error),
                    None => break Closed { server: None, reason: "the session was closed from this side".to_owned() },
                }
            };
            // Nobody may be left to hear it.
            let _ = report.send(closed);
        });
        let session = Session { client, server_version, target: entry.target.clone(), ending, closed: None };
        if server_version >= 170_000 {
            session.batch_execute(NO_TRANSACTION_TIMEOUT).await.map_err(|error| Failure::from_client(&error))?;
        }
        Ok(session)
    }
}

fn ended(error: &tokio_postgres::Error) -> Closed {
    match Failure::from_client(error) {
        Failure::Server(server) => Closed { reason: server.to_string(), server: Some(*server) },
        failure => Closed { server: None, reason: failure.to_string() },
    }
}

/// Hands the client the socket as it is, which has its TLS already.
struct Ready;

impl tokio_postgres::tls::TlsConnect<Socket> for Ready {
    type Stream = Socket;
    type Error = std::io::Error;
    type Future = std::future::Ready<Result<Socket, std::io::Error>>;

    fn connect(self, socket: Socket) -> Self::Future {
        std::future::ready(Ok(socket))
    }
}

impl tokio_postgres::tls::TlsStream for Socket {
    fn channel_binding(&self) -> tokio_postgres::tls::ChannelBinding {
        match self.server_end_point() {
            Some(hash) => tokio_postgres::tls::ChannelBinding::tls_server_end_point(hash),
            None => tokio_postgres::tls::ChannelBinding::none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_numbers() {
        let table = [
            ("17.11", 170_011),
            ("15.19 (Debian 15.19-1.pgdg12+1)", 150_019),
            ("18beta1", 180_000),
            ("19devel", 190_000),
            ("", 0),
            ("x", 0),
        ];
        for (text, number) in table {
            assert_eq!(version_number(text), number, "{text}");
        }
    }

    #[test]
    fn our_session_settings_come_last_and_so_win() {
        let address = Address::parse("host=h user=u options='-c timezone=CET'", &|_| None).unwrap();
        let options = session_options(&address);
        assert!(options.find("timezone=CET") < options.find("timezone=UTC"), "{options}");
    }

    #[test]
    fn a_secret_file_is_read_at_each_connect() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let postgres = config::Postgres {
            url: Some(SecretSource::Value(Secret::new("postgres://u:old@h/d"))),
            password: Some(SecretSource::File(file.path().to_owned())),
            table: "t".into(),
            slot: "s".into(),
            publication: "p".into(),
        };
        assert!(Connector::new(&postgres).is_err(), "an empty file is no password");
        std::fs::write(file.path(), "zeroth").unwrap();
        let connector = Connector::new(&postgres).unwrap();
        assert_eq!(connector.describe(), "h:5432/d as u");
        for password in ["first", "second "] {
            std::fs::write(file.path(), format!("{password}\n")).unwrap();
            assert_eq!(connector.address().unwrap().password, Some(Secret::new(password)));
        }
        drop(file);
        let error = connector.address().unwrap_err();
        assert!(error.to_string().contains("the Postgres password"), "{error}");
    }
}
