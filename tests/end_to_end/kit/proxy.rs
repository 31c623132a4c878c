//! A TCP proxy on loopback, to stand between the relay and a server: it cuts, freezes and delays what passes.
//!
//! Two threads for each connection, one a direction. What is frozen stays open on both sides, and not even an end passes:
//! neither peer can tell it from a network that lost the other.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::wait::pace;

/// A delay holds back so much at a time, which is also the most that passes within one.
const CHUNK_BYTES: usize = 64 * 1024;

pub struct Proxy {
    pub port: u16,
    /// The server's port, at first.
    pub upstream: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    upstream: u16,
    frozen: bool,
    delay: Duration,
    closed: bool,
    next: u64,
    /// Both ends of each, the client's first; the server's once it was reached.
    connections: HashMap<u64, Vec<TcpStream>>,
}

impl Proxy {
    /// Before the server at a port of loopback, which need not listen yet.
    pub fn before(upstream: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", super::run::free_port())).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared::default());
        shared.lock().upstream = upstream;
        let accepting = Arc::clone(&shared);
        spawn(move || {
            for client in listener.incoming() {
                if accepting.lock().closed {
                    return;
                }
                if let Ok(client) = client {
                    let shared = Arc::clone(&accepting);
                    spawn(move || serve(&shared, client));
                }
            }
        });
        Proxy { port, upstream, shared }
    }

    /// Ends every connection; new ones are taken.
    pub fn cut(&self) {
        let connections = std::mem::take(&mut self.shared.lock().connections);
        connections.values().flatten().for_each(end);
        self.shared.changed.notify_all();
    }

    /// New connections go to another server, as after a failover behind one address; those that stand stay where they are. A
    /// port at which nobody listens refuses them.
    pub fn lead_to(&self, upstream: u16) {
        self.shared.lock().upstream = upstream;
    }

    /// Half-open: no byte passes and nothing ends, until [`Proxy::resume`]. New connections are taken, and wait too.
    pub fn freeze(&self) {
        self.shared.lock().frozen = true;
    }

    /// Every byte passes so much later, each way.
    pub fn delay(&self, delay: Duration) {
        self.shared.lock().delay = delay;
    }

    /// Undoes freeze and delay. What was held back passes, in order.
    pub fn resume(&self) {
        let mut state = self.shared.lock();
        (state.frozen, state.delay) = (false, Duration::ZERO);
        self.shared.changed.notify_all();
    }

    pub fn connections(&self) -> usize {
        self.shared.lock().connections.len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.cut();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits while the line is frozen. How much later to pass on; None: the connection was cut.
    fn gate(&self, connection: u64) -> Option<Duration> {
        let mut state = self.lock();
        while state.frozen && state.connections.contains_key(&connection) {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state.connections.contains_key(&connection).then_some(state.delay)
    }

    /// None: the proxy is closed, or the connection was cut.
    fn register(&self, connection: Option<u64>, stream: &TcpStream) -> Option<u64> {
        let stream = stream.try_clone().ok()?;
        let mut state = self.lock();
        match connection {
            Some(connection) => state.connections.get_mut(&connection)?.push(stream),
            None if state.closed => return None,
            None => {
                state.next += 1;
                let number = state.next;
                state.connections.insert(number, vec![stream]);
            }
        }
        Some(connection.unwrap_or(state.next))
    }

    fn finish(&self, connection: u64) {
        let ends = self.lock().connections.remove(&connection);
        ends.iter().flatten().for_each(end);
    }
}

fn serve(shared: &Arc<Shared>, client: TcpStream) -> Option<()> {
    let connection = shared.register(None, &client)?;
    let server = shared.gate(connection).and_then(|_| {
        let upstream = shared.lock().upstream;
        TcpStream::connect(("127.0.0.1", upstream)).ok()
    });
    let Some(server) = server.filter(|server| shared.register(Some(connection), server).is_some()) else {
        shared.finish(connection);
        return None;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (other_client, other_server) = (client.try_clone().ok()?, server.try_clone().ok()?);
    let back = {
        let shared = Arc::clone(shared);
        spawn(move || copy(&shared, connection, other_server, other_client))
    };
    copy(shared, connection, client, server);
    let _ = back.join();
    shared.finish(connection);
    Some(())
}

/// Until one side ends, which the other is told, or something fails, which ends both.
fn copy(shared: &Shared, connection: u64, mut from: TcpStream, mut to: TcpStream) {
    if pass(shared, connection, &mut from, &mut to).is_err() {
        shared.finish(connection);
    }
}

fn pass(shared: &Shared, connection: u64, from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let count = from.read(&mut buffer)?;
        let came = Instant::now();
        let delay = shared.gate(connection).ok_or(io::ErrorKind::ConnectionAborted)?;
        if !delay.is_zero() {
            pace(came + delay);
        }
        match count {
            0 => return to.shutdown(Shutdown::Write),
            _ => to.write_all(&buffer[..count])?,
        }
    }
}

fn end(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new().name("proxy".into()).spawn(work).expect("a thread")
}
