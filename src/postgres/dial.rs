//! From an address to a socket on which a session can begin: hosts in order, every IP address of each, TLS as the
//! mode says, all within `connect_timeout`. The replication connection and the SQL sessions differ only in the
//! `Login` that they run on the socket.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_openssl::SslStream;

use crate::config::Secret;
use crate::postgres::address::{Address, Host, Keepalive, Server, SessionAttrs};
use crate::postgres::error::{Attempt, ConnectError, ErrorKind, Failure};
use crate::postgres::passfile;
use crate::postgres::tls::{SslMode, Tls, TlsError, server_end_point};
use crate::source::protocol::ProtocolError;

/// Where libpq as Debian and as upstream builds it looks for a socket.
const SOCKET_FOLDERS: &[&str] = &["/var/run/postgresql", "/tmp"];

/// What a kind of session does on a fresh socket: startup and authentication.
pub(crate) trait Login: Sync {
    type Session: Send;
    fn begin(&self, socket: Socket, entry: &Entry) -> impl Future<Output = Result<Self::Session, Failure>> + Send;
}

/// With what to enter at the server that was reached.
pub(crate) struct Entry<'a> {
    pub address: &'a Address,
    pub password: Option<Secret>,
    pub session_attrs: SessionAttrs,
    /// For messages: host, port, IP address.
    pub target: String,
}

impl Entry<'_> {
    /// Is this the kind of server that target_session_attrs asks for? Since PostgreSQL 14 it says so by itself, in two
    /// parameters; where it does not, it is taken.
    pub(crate) fn check_attrs(&self, parameter: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
        let on = |name| parameter(name).map(|value| value == "on");
        let standby = on("in_hot_standby");
        let read_only = match (standby, on("default_transaction_read_only")) {
            (Some(standby), Some(default)) => Some(standby || default),
            _ => None,
        };
        let (wanted, refused, found) = match self.session_attrs {
            SessionAttrs::Any | SessionAttrs::PreferStandby => return Ok(()),
            SessionAttrs::ReadWrite => ("read-write", read_only == Some(true), "read-only or a standby"),
            SessionAttrs::ReadOnly => ("read-only", read_only == Some(false), "writable"),
            SessionAttrs::Primary => ("primary", standby == Some(true), "a standby"),
            SessionAttrs::Standby => ("standby", standby == Some(false), "a primary"),
        };
        if refused { Err(Failure::SessionAttrs { wanted, found }) } else { Ok(()) }
    }
}

/// Tries servers until one lets us in; the error names every try.
pub(crate) async fn connect<L: Login>(address: &Address, login: &L) -> Result<L::Session, ConnectError> {
    let mut attempts = Vec::new();
    let refused =
        |attempts| ConnectError::Connect { user: address.user.clone(), database: address.database.clone(), attempts };
    let tls = match (address.tls.mode > SslMode::Disable).then(|| Tls::new(&address.tls, address.home.as_deref())) {
        None => None,
        Some(Ok(tls)) => Some(tls),
        Some(Err(error)) => {
            let target = address.servers.first().map(Server::to_string).unwrap_or_default();
            attempts.push(Attempt { target, failure: error.into() });
            return Err(refused(attempts));
        }
    };
    // prefer-standby: first only standbys, then whatever there is.
    let passes: &[SessionAttrs] = match address.session_attrs {
        SessionAttrs::PreferStandby => &[SessionAttrs::Standby, SessionAttrs::Any],
        _ => std::slice::from_ref(&address.session_attrs),
    };
    for session_attrs in passes {
        for server in shuffled(&address.servers, address.shuffle) {
            let endpoints = match within(address, endpoints(server)).await {
                Ok(endpoints) => endpoints,
                Err(failure) => {
                    attempts.push(Attempt { target: server.to_string(), failure });
                    continue;
                }
            };
            for endpoint in shuffled(&endpoints, address.shuffle) {
                let entry = Entry {
                    address,
                    password: password(address, server),
                    session_attrs: *session_attrs,
                    target: describe(server, endpoint),
                };
                for &step in steps(address.tls.mode, endpoint) {
                    let outcome = within(address, async {
                        let socket = open(server, endpoint, step, tls.as_ref(), address).await?;
                        login.begin(socket, &entry).await
                    })
                    .await;
                    let failure = match outcome {
                        Ok(session) => return Ok(session),
                        Err(failure) => failure,
                    };
                    let (ends, other_way) = (ends_the_search(&failure), helped_by_other_way(step, &failure));
                    attempts.push(Attempt { target: entry.target.clone(), failure });
                    if other_way {
                        continue;
                    }
                    if ends {
                        return Err(refused(attempts));
                    }
                    break;
                }
            }
        }
    }
    Err(refused(attempts))
}

async fn within<T>(address: &Address, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match address.connect_timeout {
        Some(limit) => {
            tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(Failure::Timeout(limit.as_secs())))
        }
        None => work.await,
    }
}

/// A server that answered and refused us will refuse us everywhere; the others may be tried for the rest.
fn ends_the_search(failure: &Failure) -> bool {
    use ErrorKind::*;
    !matches!(failure.kind(), Unreachable | ShuttingDown | TooManyConnections | ReadOnly | Tls | Protocol)
}

fn shuffled<T>(items: &[T], shuffle: bool) -> Vec<&T> {
    let mut order: Vec<&T> = items.iter().collect();
    if shuffle {
        let mut random = [0; 8];
        for at in (1..order.len()).rev() {
            // Without randomness the order stays, which is no reason to fail.
            let _ = openssl::rand::rand_bytes(&mut random);
            order.swap(at, (u64::from_ne_bytes(random) % (at as u64 + 1)) as usize);
        }
    }
    order
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

async fn endpoints(server: &Server) -> Result<Vec<Endpoint>, Failure> {
    if let Some(ip) = server.hostaddr {
        return Ok(vec![Endpoint::Tcp(SocketAddr::new(ip, server.port))]);
    }
    let name = match &server.host {
        Host::Unix(folder) => return Ok(vec![Endpoint::Unix(socket_file(folder, server.port))]),
        Host::Tcp(name) => name,
        Host::Default => {
            let file = SOCKET_FOLDERS.iter().map(|folder| socket_file(Path::new(folder), server.port));
            if let Some(file) = file.into_iter().find(|file| file.exists()) {
                return Ok(vec![Endpoint::Unix(file)]);
            }
            "localhost"
        }
    };
    let found: Vec<Endpoint> =
        lookup_host((name, server.port)).await.map_err(Failure::Resolve)?.map(Endpoint::Tcp).collect();
    if found.is_empty() {
        return Err(Failure::Resolve(io::Error::new(io::ErrorKind::NotFound, "it has no address")));
    }
    Ok(found)
}

fn socket_file(folder: &Path, port: u16) -> PathBuf {
    folder.join(format!(".s.PGSQL.{port}"))
}

fn describe(server: &Server, endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Unix(path) => path.display().to_string(),
        Endpoint::Tcp(socket) => {
            let family = if socket.is_ipv4() { "IPv4" } else { "IPv6" };
            match &server.host {
                Host::Tcp(name) if *name == socket.ip().to_string() => format!("{server} ({family})"),
                Host::Default if server.hostaddr.is_some() => format!("{server} ({family})"),
                _ => format!("{server} ({family} {})", socket.ip()),
            }
        }
    }
}

fn password(address: &Address, server: &Server) -> Option<Secret> {
    if address.password.is_some() {
        return address.password.clone();
    }
    let path = address.passfile.clone().or_else(|| Some(address.home.as_ref()?.join(".pgpass")))?;
    // As in libpq, the usual socket folder goes by the name of localhost.
    let host = match (&server.host, server.hostaddr) {
        (Host::Tcp(name), _) => name.clone(),
        (Host::Unix(folder), _) if SOCKET_FOLDERS.iter().any(|usual| folder == Path::new(usual)) => "localhost".into(),
        (Host::Unix(folder), _) => folder.display().to_string(),
        (Host::Default, Some(ip)) => ip.to_string(),
        (Host::Default, None) => "localhost".into(),
    };
    passfile::look_up(&path, &host, server.port, &address.database, &address.user)
}

/// One way of using TLS. A mode is a list of ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Plain,
    Tls,
    /// TLS if the server offers it, else plain on the same socket.
    Offered,
}

fn steps(mode: SslMode, endpoint: &Endpoint) -> &'static [Step] {
    match (mode, endpoint) {
        // Postgres offers no TLS on a Unix socket, and libpq does not ask.
        (_, Endpoint::Unix(_)) | (SslMode::Disable, _) => &[Step::Plain],
        (SslMode::Allow, _) => &[Step::Plain, Step::Tls],
        (SslMode::Prefer, _) => &[Step::Offered, Step::Plain],
        (SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull, _) => &[Step::Tls],
    }
}

/// Would the mode's next way have a chance? Not after a wrong password: it would be sent a second time.
fn helped_by_other_way(step: Step, failure: &Failure) -> bool {
    let refused = failure
        .sqlstate()
        .is_some_and(|sqlstate| (sqlstate.starts_with("28") && sqlstate != "28P01") || sqlstate.starts_with("08"));
    match step {
        Step::Plain => refused,
        Step::Offered => refused || matches!(failure, Failure::Tls(_)),
        Step::Tls => false,
    }
}

async fn open(
    server: &Server,
    endpoint: &Endpoint,
    step: Step,
    tls: Option<&Tls>,
    address: &Address,
) -> Result<Socket, Failure> {
    let mut raw = match endpoint {
        Endpoint::Unix(path) => RawSocket::Unix(UnixStream::connect(path).await.map_err(Failure::Connect)?),
        Endpoint::Tcp(socket) => {
            let stream = TcpStream::connect(socket).await.map_err(Failure::Connect)?;
            tune(&stream, &address.keepalive).map_err(Failure::Connect)?;
            RawSocket::Tcp(stream)
        }
    };
    let Some(tls) = tls.filter(|_| step != Step::Plain) else { return Ok(Socket::Plain(raw)) };
    if !address.tls.direct && !offers_tls(&mut raw).await? {
        return match step {
            Step::Offered => Ok(Socket::Plain(raw)),
            _ => Err(TlsError::Refused(address.tls.mode).into()),
        };
    }
    let host = match &server.host {
        Host::Tcp(name) => Some(name.as_str()),
        Host::Default if server.hostaddr.is_none() => Some("localhost"),
        _ => None,
    };
    // OpenSSL reads a record's header and its body apart; the buffer halves the system calls.
    let stream = tls.handshake(host, BufReader::with_capacity(64 * 1024, raw)).await?;
    Ok(Socket::Tls(Box::new(stream)))
}

/// Asks whether the server speaks TLS. Exactly one byte is read: what a man in the middle puts behind it goes into the
/// handshake and breaks it.
async fn offers_tls(raw: &mut RawSocket) -> Result<bool, Failure> {
    const DURING: &str = "asking for TLS";
    let mut request = bytes::BytesMut::new();
    postgres_protocol::message::frontend::ssl_request(&mut request);
    raw.write_all(&request).await.map_err(|error| Failure::io(DURING, error))?;
    match raw.read_u8().await.map_err(|error| Failure::io(DURING, error))? {
        b'S' => Ok(true),
        b'N' => Ok(false),
        // An error text before TLS could come from anybody and is not read.
        tag => Err(ProtocolError::Unexpected { tag, during: "as the answer to the request for TLS" }.into()),
    }
}

/// SO_RCVBUF stays as it is: setting it would switch the kernel's own tuning off.
fn tune(stream: &TcpStream, keepalive: &Keepalive) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    if keepalive.enabled {
        socket.set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(keepalive.idle)
                .with_interval(keepalive.interval)
                .with_retries(keepalive.count),
        )?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(keepalive.user_timeout)?;
    Ok(())
}

/// A connected socket, with or without TLS.
pub enum Socket {
    Plain(RawSocket),
    Tls(Box<SslStream<BufReader<RawSocket>>>),
}

pub enum RawSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// The hash for SCRAM's channel binding: only with TLS, and only where the certificate has one.
    pub(crate) fn server_end_point(&self) -> Option<Vec<u8>> {
        match self {
            Socket::Plain(_) => None,
            Socket::Tls(stream) => server_end_point(stream.ssl().peer_certificate()?.as_ref()),
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Socket::Tls(_))
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_tls() { "Socket(TLS)" } else { "Socket(plain)" })
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Socket::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl AsyncRead for RawSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            RawSocket::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            RawSocket::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for RawSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            RawSocket::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            RawSocket::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            RawSocket::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            RawSocket::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            RawSocket::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            RawSocket::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::error::ServerError;

    fn refusal(sqlstate: &str) -> Failure {
        Failure::server(ServerError { sqlstate: sqlstate.to_owned(), ..ServerError::default() })
    }

    #[test]
    fn a_wrong_password_is_sent_only_once() {
        for step in [Step::Plain, Step::Offered, Step::Tls] {
            assert!(!helped_by_other_way(step, &refusal("28P01")), "{step:?}");
        }
        assert!(helped_by_other_way(Step::Plain, &refusal("28000")));
        assert!(helped_by_other_way(Step::Offered, &refusal("28000")));
        assert!(!helped_by_other_way(Step::Plain, &refusal("3D000")));
        assert!(!helped_by_other_way(Step::Tls, &TlsError::NotDirect.into()));
        assert!(helped_by_other_way(Step::Offered, &TlsError::NotDirect.into()));
    }

    #[test]
    fn the_next_host_is_tried_unless_this_one_refused_us() {
        for sqlstate in ["57P03", "53300", "08006"] {
            assert!(!ends_the_search(&refusal(sqlstate)), "{sqlstate}");
        }
        for sqlstate in ["28P01", "28000", "3D000", "42501"] {
            assert!(ends_the_search(&refusal(sqlstate)), "{sqlstate}");
        }
        assert!(!ends_the_search(&Failure::Timeout(1)));
        assert!(!ends_the_search(&Failure::SessionAttrs { wanted: "primary", found: "a standby" }));
    }

    #[test]
    fn target_session_attrs_go_by_what_the_server_reports() {
        let address = Address::parse("host=h user=u", &|_| None).unwrap();
        let accepts = |session_attrs, standby: &str, read_only: &str| {
            let entry = Entry { address: &address, password: None, session_attrs, target: String::new() };
            let parameter = |name: &str| match name {
                "in_hot_standby" => (!standby.is_empty()).then(|| standby.to_owned()),
                _ => (!read_only.is_empty()).then(|| read_only.to_owned()),
            };
            entry.check_attrs(parameter).is_ok()
        };
        use SessionAttrs::*;
        assert!(
            accepts(ReadWrite, "off", "off") && !accepts(ReadWrite, "on", "off") && !accepts(ReadWrite, "off", "on")
        );
        assert!(accepts(ReadOnly, "on", "off") && accepts(ReadOnly, "off", "on") && !accepts(ReadOnly, "off", "off"));
        assert!(accepts(Primary, "off", "on") && !accepts(Primary, "on", "on"));
        assert!(accepts(Standby, "on", "off") && !accepts(Standby, "off", "off"));
        for session_attrs in [Any, ReadWrite, ReadOnly, Primary, Standby] {
            assert!(accepts(session_attrs, "", ""), "{session_attrs:?}");
        }
    }

    #[test]
    fn a_target_names_host_port_and_family() {
        let server = |host: &str| Server { host: Host::Tcp(host.into()), hostaddr: None, port: 5 };
        let v4 = Endpoint::Tcp("10.0.0.1:5".parse().unwrap());
        let v6 = Endpoint::Tcp("[::1]:5".parse().unwrap());
        assert_eq!(describe(&server("db"), &v4), "db:5 (IPv4 10.0.0.1)");
        assert_eq!(describe(&server("10.0.0.1"), &v4), "10.0.0.1:5 (IPv4)");
        assert_eq!(describe(&server("::1"), &v6), "[::1]:5 (IPv6)");
        assert_eq!(describe(&server("db"), &v6), "db:5 (IPv6 ::1)");
    }
}
