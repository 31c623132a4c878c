//! A replication connection in CopyBoth mode: bytes in, frames out, status frames back. One task owns it.
//!
//! Reading has two halves, so that the loop above can put any of its work between them: `readable` waits and fills
//! the buffer, `next` takes frames out of it and does no I/O. The loop drains `next` until it is None before it waits
//! again; when it waits it may first pause for a moment, and then gets more at once (a *gulp*), which is what keeps the
//! walsender cheap.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::lsn::Lsn;
use crate::postgres::error::{ServerError, StreamError};
use crate::source::protocol::{
    Frame, MESSAGE_BYTES_MAX, Message, ProtocolError, StandbyStatusUpdate, message_bytes, take_message,
};

/// One chunk of memory. Frames point into it, and it is free when the last of them is gone.
const CHUNK_BYTES: usize = 256 * 1024;

/// A new chunk is begun when less than this is left of the old one, so that reads never get tiny.
const ROOM_BYTES_MIN: usize = 16 * 1024;

/// A server that does not take 39 bytes in this time is gone, or hangs.
const WRITE_WITHIN: Duration = Duration::from_secs(5);

/// For the whole of a clean end; the server may still have a socket full of rows for us.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// The peer is gone; what it said has come already or never will.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);

/// What a stream runs over.
pub trait Wire: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire for S {}

/// The stream of one slot. `S` is the socket.
pub struct Stream<S = crate::postgres::dial::Socket> {
    socket: S,
    buffer: BytesMut,
    received: Lsn,
    out: BytesMut,
    write_within: Duration,
    finish_within: Duration,
}

impl<S: Wire> Stream<S> {
    /// `buffer` holds what was read behind the answer to START_REPLICATION.
    pub fn new(socket: S, buffer: BytesMut) -> Self {
        let mut stream = Stream {
            socket,
            buffer,
            received: Lsn::INVALID,
            out: BytesMut::new(),
            write_within: WRITE_WITHIN,
            finish_within: FINISH_WITHIN,
        };
        stream.renew(CHUNK_BYTES);
        stream
    }

    /// Waits until something has come, takes what is there, at most a chunk or the rest of one large frame, and returns how
    /// many bytes it was. Returns at once, with 0, when the buffer is full of frames that nobody has taken. Cancel-safe: what
    /// was read is kept.
    pub async fn readable(&mut self) -> Result<usize, StreamError> {
        let limit = self.make_room()?;
        if limit == 0 {
            return Ok(0);
        }
        let Stream { socket, buffer, .. } = self;
        let count = poll_fn(|cx| {
            let mut total = 0;
            // With TLS every row is a record of its own, and a read returns one; without, the second turn costs nothing.
            while total < limit {
                let mut room = (&mut *buffer).limit(limit - total);
                match pin!(socket.read_buf(&mut room)).poll(cx) {
                    Poll::Ready(Ok(0)) => break,
                    Poll::Ready(Ok(count)) => total += count,
                    // What came before is handed out first; an error comes again.
                    Poll::Ready(Err(_)) | Poll::Pending if total > 0 => break,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            Poll::Ready(Ok(total))
        })
        .await;
        match count {
            Ok(0) => Err(StreamError::Closed),
            Ok(count) => Ok(count),
            Err(error) => Err(broken("reading", error)),
        }
    }

    /// The next whole frame of the buffer, without I/O and without copying; None when more has to be read.
    #[expect(clippy::should_implement_trait, reason = "as an Iterator it would end for good at the first None")]
    pub fn next(&mut self) -> Result<Option<Frame>, StreamError> {
        loop {
            let large = self.buffer.len() > CHUNK_BYTES;
            let Some(message) = take_message(&mut self.buffer, MESSAGE_BYTES_MAX)? else { return Ok(None) };
            if large && self.buffer.len() < ROOM_BYTES_MIN {
                // The rest must not keep the memory of a large frame alive.
                self.renew(CHUNK_BYTES);
            }
            match self.take(message)? {
                Taken::Frame(frame) => return Ok(Some(frame)),
                Taken::Aside => {}
                // Not asked for by us: a walsender that has sent everything before a shutdown leaves so.
                Taken::CopyDone | Taken::CommandComplete | Taken::Ready => return Err(StreamError::Ended),
            }
        }
    }

    /// Tells the server how far we are. Not to be cancelled: half a frame would put the stream out of step, so never
    /// put it into a `select!`. It has its own deadline, after which the stream is of no more use.
    pub async fn send_status(&mut self, update: &StandbyStatusUpdate) -> Result<(), StreamError> {
        self.out.clear();
        update.encode(&mut self.out);
        match self.write_out().await {
            Err(StreamError::Io { during, source }) => {
                Err(self.last_words().await.unwrap_or(StreamError::Io { during, source }))
            }
            outcome => outcome,
        }
    }

    /// The furthest position that a taken frame told of: what status frames carry as `write`.
    pub fn received(&self) -> Lsn {
        self.received
    }

    /// Ends the stream in good order: everything that was sent before is known to have arrived when this returns Ok.
    /// Frames that still come are dropped, unconfirmed.
    pub async fn finish(mut self) -> Result<(), StreamError> {
        let within = self.finish_within;
        let ending = async {
            self.out.clear();
            frontend::copy_done(&mut self.out);
            self.write_out().await?;
            loop {
                match take_message(&mut self.buffer, MESSAGE_BYTES_MAX)? {
                    Some(message) => match self.take(message)? {
                        Taken::Ready => break,
                        Taken::Frame(_) | Taken::Aside | Taken::CopyDone | Taken::CommandComplete => {}
                    },
                    None => {
                        self.readable().await?;
                    }
                }
            }
            self.out.clear();
            frontend::terminate(&mut self.out);
            self.write_out().await?;
            // The server may be quicker and close first.
            let _ = self.socket.shutdown().await;
            Ok(())
        };
        let late = |_| Err(broken("ending the stream", io::Error::new(io::ErrorKind::TimedOut, "no answer in time")));
        tokio::time::timeout(within, ending).await.unwrap_or_else(late)
    }

    /// A server says why before it closes. When a write is the first to notice, that word lies unread behind the rows.
    async fn last_words(&mut self) -> Option<StreamError> {
        let reading = async {
            loop {
                match take_message(&mut self.buffer, MESSAGE_BYTES_MAX) {
                    Ok(Some(message)) => match self.take(message) {
                        Ok(Taken::Frame(_) | Taken::Aside) => {}
                        Ok(_) => return Some(StreamError::Ended),
                        Err(error) => return Some(error),
                    },
                    Ok(None) => {
                        self.readable().await.ok()?;
                    }
                    Err(_) => return None,
                }
            }
        };
        tokio::time::timeout(LAST_WORDS_WITHIN, reading).await.ok().flatten()
    }

    fn take(&mut self, message: Message) -> Result<Taken, StreamError> {
        match message.tag {
            b'd' => {
                let frame = Frame::parse(message.body)?;
                self.received = self.received.max(frame.received());
                Ok(Taken::Frame(frame))
            }
            b'c' => Ok(Taken::CopyDone),
            b'C' => Ok(Taken::CommandComplete),
            b'Z' => Ok(Taken::Ready),
            b'E' => Err(StreamError::Server(Box::new(ServerError::parse(&message.body)))),
            b'N' => {
                let notice = ServerError::parse(&message.body);
                tracing::debug!(sqlstate = notice.sqlstate, "Postgres says: {}", notice.message);
                Ok(Taken::Aside)
            }
            // A setting was reloaded.
            b'S' => Ok(Taken::Aside),
            tag => Err(ProtocolError::Unexpected { tag, during: "in the replication stream" }.into()),
        }
    }

    async fn write_out(&mut self) -> Result<(), StreamError> {
        let Stream { socket, out, write_within, .. } = self;
        let write = async {
            socket.write_all(out).await?;
            socket.flush().await
        };
        match tokio::time::timeout(*write_within, write).await {
            Ok(written) => written.map_err(|error| broken("writing", error)),
            Err(_) => Err(StreamError::WriteTimeout(write_within.as_secs())),
        }
    }

    /// Makes sure that reading gets on, and says how much may be read: up to the end of the chunk, or of the one frame
    /// that is larger than a chunk; 0 when a whole frame waits and there is no room beside it.
    fn make_room(&mut self) -> Result<usize, StreamError> {
        let held = self.buffer.len();
        let needed = message_bytes(&self.buffer, MESSAGE_BYTES_MAX)?.unwrap_or(0);
        if needed > CHUNK_BYTES && held < needed {
            if self.buffer.capacity() < needed {
                self.renew(needed);
            }
            return Ok(needed - held);
        }
        let whole = needed > 0 && held >= needed;
        let room = |buffer: &BytesMut| buffer.capacity() - buffer.len();
        if room(&self.buffer) < ROOM_BYTES_MIN {
            if whole {
                return Ok(room(&self.buffer));
            }
            self.renew(CHUNK_BYTES);
        }
        Ok(room(&self.buffer).min(CHUNK_BYTES))
    }

    /// Goes on in a chunk of `bytes`: the old one if no frame points into it and it has that size, else a new one.
    fn renew(&mut self, bytes: usize) {
        let held = self.buffer.len();
        let bytes = bytes.max(held + ROOM_BYTES_MIN);
        let fits = |buffer: &BytesMut| buffer.capacity() >= bytes && buffer.capacity() <= 2 * CHUNK_BYTES.max(bytes);
        if fits(&self.buffer) || (self.buffer.try_reclaim(bytes - held) && fits(&self.buffer)) {
            return;
        }
        let mut chunk = BytesMut::with_capacity(bytes);
        chunk.extend_from_slice(&self.buffer);
        self.buffer = chunk;
    }
}

impl<S> std::fmt::Debug for Stream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream(received {})", self.received)
    }
}

/// What a message was.
enum Taken {
    Frame(Frame),
    Aside,
    CopyDone,
    CommandComplete,
    Ready,
}

fn broken(during: &'static str, source: io::Error) -> StreamError {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => StreamError::Closed,
        _ => StreamError::Io { during, source },
    }
}

#[cfg(test)]
mod tests;
