//! The other end of the replication connection: sends what comes from the asked position on, takes status frames, and goes
//! when it is told to or cut.

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use walpost::lsn::Lsn;
use walpost::source::pgoutput::encode::{self, Cell};
use walpost::source::protocol::{MESSAGE_BYTES_MAX, take_message};
use walpost::source::{Column, Relation};

use std::sync::Arc;
use std::time::Duration;

use crate::log::{Kind, RowId};
use crate::world::{Server, Shared, State};

const TABLE: u32 = 16_400;
/// No clock shows it, so nothing depends on how long a run takes.
const COMMIT_MICROS: i64 = 4_000_000_000_000_000;
/// `wal_sender_timeout`, and the half after which the server asks for a reply.
const SENDER_TIMEOUT: Duration = Duration::from_secs(60);
const ASKS_AFTER: Duration = Duration::from_secs(30);
/// A relay says how far it is each second; a write of it may take five.
const STATUS_WITHIN: Duration = Duration::from_secs(15);
/// For the relay to close first.
const FAREWELL: Duration = Duration::from_secs(5);
/// TCP's user timeout: a relay notices a connection on which nothing passes before the server does.
const NOTICED_AFTER: Duration = Duration::from_secs(20);

/// Ends a connection from outside.
#[derive(Default)]
pub struct Reins {
    pub cut: Notify,
    pub hang: Notify,
}

/// Starts to stream from the slot, which must be free. The start is checked like a confirmation: what lies before it is
/// never sent.
pub fn start(world: &Shared, relay: u32, from: Lsn) -> DuplexStream {
    let mut state = world.lock();
    let begin = from.max(state.postgres.confirmed);
    state.note(|| format!("relay {relay}: streams from {begin}, asked for {from}"));
    state.check_confirmed(begin, "where a session begins");
    let (ours, theirs) = duplex(state.plan.pipe_bytes);
    let connection = state.postgres.connections;
    state.postgres.connections += 1;
    state.postgres.holder = Some(connection);
    let reins = Arc::new(Reins::default());
    let held = &mut state.relays[relay as usize];
    (held.reins, held.said_goodbye) = (Some(reins.clone()), false);
    // So many bytes pass, if that is how this connection ends.
    let cuts = state.plan.has(crate::plan::Fault::CutStream) && !state.calm && state.dice.percent(30);
    let passes = if cuts { state.dice.within(0..=6_000) } else { u64::MAX };
    drop(state);
    let sender = Sender { world: world.clone(), relay, connection, passes, sent: begin, reply: Notify::new() };
    tokio::spawn(sender.run(theirs, begin, reins));
    ours
}

struct Sender {
    world: Shared,
    relay: u32,
    connection: u64,
    /// Bytes until the connection breaks.
    passes: u64,
    /// Everything before it was sent.
    sent: Lsn,
    /// The relay wants an answer.
    reply: Notify,
}

/// Why a connection is over on the server's side.
enum Over {
    Gone,
    TimedOut,
    Hung,
}

impl Sender {
    async fn run(mut self, socket: DuplexStream, begin: Lsn, reins: Arc<Reins>) {
        let (mut reading, mut writing) = split(socket);
        let (world, relay) = (self.world.clone(), self.relay);
        let mut server = world.server.subscribe();
        let reply = std::mem::take(&mut self.reply);
        let over = tokio::select! {
            biased;
            () = reins.cut.notified() => Over::Gone,
            () = reins.hang.notified() => Over::Hung,
            _ = server.wait_for(|server| *server == Server::Down) => Over::Gone,
            over = take_status(&world, relay, &mut reading, &reply) => over,
            () = self.send(&mut writing, begin, &reply) => Over::Gone,
        };
        let end = match over {
            Over::Gone => "ends",
            Over::TimedOut => "is ended by the server, which heard nothing for long",
            Over::Hung => "hangs",
        };
        world.lock().note(|| format!("relay {relay}: connection {} {end}", self.connection));
        if let Over::Hung = over {
            world.pass(NOTICED_AFTER).await;
            drop((reading, writing));
            world.pass(SENDER_TIMEOUT - NOTICED_AFTER).await;
        } else {
            drop((reading, writing));
            let pause = world.lock().dice.delay(0..=400);
            world.pass(pause).await;
        }
        let mut state = world.lock();
        if state.postgres.holder == Some(self.connection) {
            state.postgres.holder = None;
        }
    }

    async fn send(&mut self, socket: &mut WriteHalf<DuplexStream>, begin: Lsn, reply: &Notify) {
        let world = self.world.clone();
        let mut next = world.lock().log.from(begin);
        let mut told_table = false;
        let mut asks_at = Instant::now() + ASKS_AFTER;
        let mut server = world.server.subscribe();
        loop {
            let grown = world.log_grown.notified();
            let out = {
                let mut state = world.lock();
                if state.relays[self.relay as usize].said_goodbye {
                    self.passes = u64::MAX;
                    Some(([message(b'c', b""), message(b'C', b"COPY 0\0"), message(b'Z', b"I")].concat(), FAREWELL))
                } else if *server.borrow_and_update() == Server::Stopping {
                    Some(self.last_words(&mut state))
                } else {
                    self.next(&mut state, &mut next, &mut told_table)
                }
            };
            if let Some((bytes, pause)) = out {
                if !self.write(socket, &bytes).await {
                    return;
                }
                if !pause.is_zero() {
                    world.pass(pause).await;
                }
                continue;
            }
            let asked = tokio::select! {
                biased;
                () = reply.notified() => false,
                () = grown => continue,
                _ = server.changed() => continue,
                () = tokio::time::sleep_until(asks_at) => true,
            };
            asks_at = Instant::now() + ASKS_AFTER;
            let keepalive = self.keepalive(&mut world.lock(), asked);
            if !self.write(socket, &keepalive).await {
                return;
            }
        }
    }

    /// The next transaction, as the bytes that are sent at once, and how long the walsender takes. None: all is sent.
    fn next(&mut self, state: &mut State, next: &mut usize, told_table: &mut bool) -> Option<(Vec<u8>, Duration)> {
        let mut out = Vec::new();
        let Some(transaction) = state.log.transactions.get(*next) else {
            let grown = self.sent < state.log.end;
            self.sent = self.sent.max(state.log.end);
            // Having decoded what is none of ours, it sometimes says so unasked.
            let says = grown && state.dice.percent(30);
            return says.then(|| (self.keepalive(state, false), Duration::ZERO));
        };
        let (commit_lsn, end_lsn, rows) = (transaction.commit_lsn, transaction.end_lsn, transaction.rows.clone());
        *next += 1;
        let xid = *next as u32;
        put(&mut out, commit_lsn, &encode::begin(commit_lsn.0, COMMIT_MICROS, xid));
        for row in rows {
            let at = Lsn(commit_lsn.0 - 1);
            if !std::mem::replace(told_table, true) || state.dice.percent(3) {
                put(&mut out, at, &encode::relation(&table()));
            }
            if state.dice.percent(5) {
                // Also within a transaction; it tells of nothing new then.
                let keepalive = self.keepalive(state, false);
                out.extend(keepalive);
            }
            put(&mut out, at, &encode::insert(TABLE, &cells(state, row)));
        }
        put(&mut out, end_lsn, &encode::commit(commit_lsn.0, end_lsn.0, COMMIT_MICROS));
        self.sent = end_lsn;
        state.postgres.told = state.postgres.told.max(end_lsn);
        Some((out, state.dice.delay(0..=60)))
    }

    fn keepalive(&self, state: &mut State, reply_requested: bool) -> Vec<u8> {
        state.postgres.told = state.postgres.told.max(self.sent);
        let mut body = vec![b'k'];
        body.extend(self.sent.0.to_be_bytes());
        body.extend(0_u64.to_be_bytes());
        body.push(reply_requested.into());
        message(b'd', &body)
    }

    /// What a relay hears of a server that shuts down: a word, or keepalives without a pause.
    fn last_words(&mut self, state: &mut State) -> (Vec<u8>, Duration) {
        if state.dice.percent(50) {
            let words = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0";
            self.passes = 0;
            return (message(b'E', words), Duration::ZERO);
        }
        (self.keepalive(state, true), Duration::from_millis(1))
    }

    /// False: the relay is gone, or the connection is over here.
    async fn write(&mut self, socket: &mut WriteHalf<DuplexStream>, bytes: &[u8]) -> bool {
        let last_words = self.passes == 0 && bytes.first() == Some(&b'E');
        let count = if last_words { bytes.len() } else { self.passes.min(bytes.len() as u64) as usize };
        self.passes = self.passes.saturating_sub(count as u64);
        socket.write_all(&bytes[..count]).await.is_ok() && count == bytes.len() && !last_words
    }
}

/// Takes status frames until the relay ends the stream.
async fn take_status(world: &Shared, relay: u32, socket: &mut ReadHalf<DuplexStream>, reply: &Notify) -> Over {
    let mut buffer = BytesMut::new();
    let mut heard_at = Instant::now();
    loop {
        match timeout_at(heard_at + SENDER_TIMEOUT, socket.read_buf(&mut buffer)).await {
            Ok(Ok(count)) if count > 0 => {}
            Ok(_) => return Over::Gone,
            Err(_) => return Over::TimedOut,
        }
        while let Ok(Some(message)) = take_message(&mut buffer, MESSAGE_BYTES_MAX) {
            let mut body = message.body;
            match message.tag {
                b'd' if body.len() == 34 => {
                    body.advance(1);
                    let (write, flush) = (Lsn(body.get_u64()), Lsn(body.get_u64()));
                    let mut state = world.lock();
                    if heard_at.elapsed() > STATUS_WITHIN && !state.relays[relay as usize].was_frozen {
                        state.violated(format!("relay {relay} said nothing for {:?}", heard_at.elapsed()));
                    }
                    heard_at = Instant::now();
                    state.status(write, flush);
                    body.advance(16);
                    if body.get_u8() != 0 {
                        reply.notify_one();
                    }
                }
                b'c' => {
                    world.lock().relays[relay as usize].said_goodbye = true;
                    reply.notify_one();
                }
                _ => return Over::Gone,
            }
        }
    }
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend((body.len() as u32 + 4).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn put(out: &mut Vec<u8>, position: Lsn, data: &[u8]) {
    let mut body = vec![b'w'];
    body.extend(position.0.to_be_bytes());
    body.extend(position.0.to_be_bytes());
    body.extend(0_u64.to_be_bytes());
    body.extend(data);
    out.extend(message(b'd', &body));
}

fn table() -> Relation {
    let names = ["id", "message_id", "aggregate_type", "aggregate_id", "event_type", "payload"];
    let columns = names.iter().map(|name| Column { name: (*name).to_owned(), type_oid: 25, key: *name == "id" });
    Relation { oid: TABLE, schema: "public".to_owned(), name: "outbox_messages".to_owned(), columns: columns.collect() }
}

fn cells(state: &State, id: RowId) -> [Cell; 6] {
    let row = &state.log.rows[id];
    let text = |text: String| Cell::Text(text.into_bytes());
    [
        text(id.to_string()),
        text(id.to_string()),
        text(format!("t{}", row.topic)),
        if row.kind == Kind::NoKey { Cell::Null } else { text(format!("k{}", row.key)) },
        Cell::from("happened"),
        if row.kind == Kind::Unwanted { Cell::Null } else { Cell::Text(vec![b'x'; row.bytes]) },
    ]
}
