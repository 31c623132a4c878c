//! The admin server: probes, metrics, the status and a page for people. It answers GET and HEAD and changes nothing.
//!
//! It must never cost the relay anything: connections are bounded in number and in time and serve one request each, so
//! that a client that hangs holds neither a file descriptor nor a place for long.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::State as Shared;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};

use super::{Telemetry, page};

/// Connections at a time. Probes, Prometheus and a few people need a handful.
const CONNECTIONS_MAX: usize = 64;

/// How long a connection may last, from accepting it to its last byte.
const CONNECTION_WITHIN: Duration = Duration::from_secs(5);

/// How long [`Server::stop`] waits for answers under way.
const STOP_WITHIN: Duration = Duration::from_secs(2);

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The admin server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot serve probes, metrics and status at http://{listen} (http.listen, --http, WALPOST_HTTP): {advice}")]
    Bind { listen: SocketAddr, advice: &'static str, source: io::Error },
}

impl ServeError {
    fn bind(listen: SocketAddr, source: io::Error) -> ServeError {
        let advice = match source.kind() {
            io::ErrorKind::AddrInUse => {
                "something listens there already, perhaps another walpost; choose another port, or `off`"
            }
            io::ErrorKind::AddrNotAvailable => {
                "this machine has no such address; 127.0.0.1 serves this machine only, 0.0.0.0 all networks, `off` nobody"
            }
            io::ErrorKind::PermissionDenied => "this user may not listen there; choose a port above 1023, or `off`",
            _ => "choose another address, or `off`",
        };
        ServeError::Bind { listen, advice, source }
    }
}

/// A running admin server. Dropping it stops it.
#[must_use = "the server stops when this is dropped"]
pub struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    /// Where it listens: the port is chosen by the system where the setting says 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections and gives answers under way two seconds.
    pub async fn stop(mut self) {
        let _ = self.stop.send(());
        if tokio::time::timeout(STOP_WITHIN, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// Binds, so that a taken port is an error of the start, then serves from a task of its own.
pub async fn serve(listen: SocketAddr, telemetry: Arc<Telemetry>) -> Result<Server, ServeError> {
    let listener = TcpListener::bind(listen).await.map_err(|source| ServeError::bind(listen, source))?;
    let address = listener.local_addr().map_err(|source| ServeError::bind(listen, source))?;
    tracing::info!(%address, "probes, metrics and status are served at http://{address}/");
    Ok(start(listener, address, CONNECTION_WITHIN, telemetry))
}

fn start(listener: TcpListener, address: SocketAddr, within: Duration, telemetry: Arc<Telemetry>) -> Server {
    let bounded = Bounded { listener, within, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) };
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        // Never an error: what fails is one connection, and accepting is tried again.
        let _ = axum::serve(bounded, router(telemetry)).with_graceful_shutdown(stopped).await;
    });
    Server { address, stop, task }
}

fn router(telemetry: Arc<Telemetry>) -> Router {
    Router::new()
        .route("/", get(root))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .fallback(not_found)
        .method_not_allowed_fallback(read_only)
        .with_state(telemetry)
}

async fn root(Shared(telemetry): Shared<Arc<Telemetry>>) -> Response {
    let page = answer(StatusCode::OK, HTML, page::render(&telemetry.status()));
    ([(header::CONTENT_SECURITY_POLICY, page::POLICY)], page).into_response()
}

async fn livez(Shared(telemetry): Shared<Arc<Telemetry>>) -> Response {
    if telemetry.is_live() {
        answer(StatusCode::OK, TEXT, "alive\n".to_owned())
    } else {
        answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, telemetry.why_not_live())
    }
}

async fn readyz(Shared(telemetry): Shared<Arc<Telemetry>>) -> Response {
    let status = telemetry.status();
    let code = if status.state.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut text = format!("{}: {}\n", status.state, status.reason());
    if let Some(remedy) = &status.remedy {
        text += remedy;
        text.push('\n');
    }
    answer(code, TEXT, text)
}

async fn metrics(Shared(telemetry): Shared<Arc<Telemetry>>) -> Response {
    match telemetry.metrics_text() {
        Ok(text) => answer(StatusCode::OK, PROMETHEUS, text),
        Err(error) => {
            answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("the metrics cannot be written: {error}\n"))
        }
    }
}

async fn status(Shared(telemetry): Shared<Arc<Telemetry>>) -> Response {
    match serde_json::to_string_pretty(&telemetry.status()) {
        Ok(json) => answer(StatusCode::OK, JSON, json + "\n"),
        Err(error) => {
            answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("the status cannot be written: {error}\n"))
        }
    }
}

async fn not_found() -> Response {
    answer(StatusCode::NOT_FOUND, TEXT, "there are /, /livez, /readyz, /metrics and /status\n".to_owned())
}

async fn read_only() -> Response {
    answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD: this server changes nothing\n".to_owned())
}

fn answer(code: StatusCode, content_type: &'static str, body: String) -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONNECTION, "close"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (code, headers, body).into_response()
}

/// A listener that waits with the next connection until there is a place for it.
struct Bounded {
    listener: TcpListener,
    /// How long a connection may last.
    within: Duration,
    places: Arc<Semaphore>,
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let Ok(place) = self.places.clone().acquire_owned().await else { std::future::pending().await };
        let (stream, peer) = axum::serve::Listener::accept(&mut self.listener).await;
        let deadline = Box::pin(tokio::time::sleep_until(Instant::now() + self.within));
        (Connection { stream, deadline, _place: place }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails at its deadline, whoever it waits for.
struct Connection {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// The stream's own answer, or an error once the time is up.
    fn within<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = poll(Pin::new(&mut self.stream), context) {
            return Poll::Ready(done);
        }
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.within(context, |stream, context| stream.poll_read(context, into))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.within(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.within(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.within(context, |stream, context| stream.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn clients_that_hang_do_not_keep_the_probe_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = start(listener, address, Duration::from_millis(100), Telemetry::new("1.2.3", &[]));
        let mut hanging = Vec::new();
        for _ in 0..CONNECTIONS_MAX + 6 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
            hanging.push(stream);
        }
        let probe = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /livez HTTP/1.0\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = tokio::time::timeout(Duration::from_secs(10), probe).await.unwrap();
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
        server.stop().await;
    }
}
