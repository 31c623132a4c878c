//! The frames of the streaming replication protocol, and the few rules of the frontend/backend protocol that carry
//! them. Pure: bytes in, values out. Nothing here trusts a length or a count that came over the wire, and nothing
//! panics on input.
//!
//! ```text
//!  message  = tag (1 byte), length (4 bytes, counts itself), body
//!  CopyData = message 'd' whose body is XLogData ('w') or PrimaryKeepalive ('k'); from us StandbyStatusUpdate ('r')
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::lsn::Lsn;
use crate::source::Value;

/// The first version whose slots may be marked to be copied to standbys.
const FAILOVER_SLOTS: u32 = 170_000;

/// Postgres builds no message above 1 GiB (its largest allocation); what is longer is not Postgres, or not in step.
pub const MESSAGE_BYTES_MAX: usize = (1 << 30) + 1024;

/// Tag and length.
const HEADER_BYTES: usize = 5;

/// Postgres counts microseconds from 2000-01-01; this is how far that lies after the Unix epoch.
const POSTGRES_EPOCH: Duration = Duration::from_secs(946_684_800);

/// What the server sends inside CopyData.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A piece of the decoded log: one pgoutput message.
    XLogData {
        /// Position of the change. A row's is inside its transaction: never confirm it.
        start: Lsn,
        wal_end: Lsn,
        /// The server's clock when it sent the frame.
        sent: SystemTime,
        data: Bytes,
    },
    /// The server is alive, and has nothing unsent before `wal_end`.
    PrimaryKeepalive { wal_end: Lsn, sent: SystemTime, reply_requested: bool },
}

impl Frame {
    /// The furthest position that the frame tells of; what status frames report as written.
    pub fn received(&self) -> Lsn {
        match self {
            Frame::XLogData { start, wal_end, .. } => (*start).max(*wal_end),
            Frame::PrimaryKeepalive { wal_end, .. } => *wal_end,
        }
    }

    /// Reads the body of a CopyData message.
    pub fn parse(mut body: Bytes) -> Result<Frame, ProtocolError> {
        let tag = body.try_get_u8().map_err(|_| ProtocolError::Truncated("CopyData"))?;
        match tag {
            b'w' => {
                let short = |_| ProtocolError::Truncated("XLogData");
                let start = Lsn(body.try_get_u64().map_err(short)?);
                let wal_end = Lsn(body.try_get_u64().map_err(short)?);
                let sent = system_time(body.try_get_i64().map_err(short)?);
                Ok(Frame::XLogData { start, wal_end, sent, data: body })
            }
            b'k' => {
                let short = |_| ProtocolError::Truncated("PrimaryKeepalive");
                let wal_end = Lsn(body.try_get_u64().map_err(short)?);
                let sent = system_time(body.try_get_i64().map_err(short)?);
                let reply_requested = body.try_get_u8().map_err(short)? != 0;
                Ok(Frame::PrimaryKeepalive { wal_end, sent, reply_requested })
            }
            tag => Err(ProtocolError::UnknownFrame(tag)),
        }
    }
}

/// What we tell the server of our progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyStatusUpdate {
    /// Received: only a number in `pg_stat_replication`.
    pub write: Lsn,
    /// Confirmed: the server may forget everything before it.
    pub flush: Lsn,
    /// Equal to `flush` here; `remote_apply` would wait for it.
    pub apply: Lsn,
    pub sent: SystemTime,
    /// Ask for a keepalive at once: the probe for a dead peer.
    pub reply_requested: bool,
}

impl StandbyStatusUpdate {
    /// The usual frame: received up to `write`, confirmed up to `confirmed`.
    pub fn new(write: Lsn, confirmed: Lsn) -> Self {
        // A server that restarted may never have sent what we confirmed; write must still not lie behind flush.
        let write = write.max(confirmed);
        Self { write, flush: confirmed, apply: confirmed, sent: SystemTime::now(), reply_requested: false }
    }

    /// Appends the whole message, CopyData header included.
    pub fn encode(&self, out: &mut BytesMut) {
        const BODY_BYTES: u32 = 1 + 8 + 8 + 8 + 8 + 1;
        out.reserve(1 + 4 + BODY_BYTES as usize);
        out.put_u8(b'd');
        out.put_u32(4 + BODY_BYTES);
        out.put_u8(b'r');
        out.put_u64(self.write.0);
        out.put_u64(self.flush.0);
        out.put_u64(self.apply.0);
        out.put_i64(postgres_micros(self.sent));
        out.put_u8(self.reply_requested.into());
    }
}

/// One message of the server, still unread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub tag: u8,
    pub body: Bytes,
}

/// Bytes of the message at the start of `buffer`, header included; None while the header is incomplete.
pub fn message_bytes(buffer: &[u8], max: usize) -> Result<Option<usize>, ProtocolError> {
    let mut header = buffer;
    let (Ok(tag), Ok(length)) = (header.try_get_u8(), header.try_get_u32()) else { return Ok(None) };
    let length = length as usize;
    if length < 4 || length >= max {
        return Err(ProtocolError::Length { tag, length, max });
    }
    Ok(Some(1 + length))
}

/// Splits the first whole message off, without copying it; None when more bytes are needed.
pub fn take_message(buffer: &mut BytesMut, max: usize) -> Result<Option<Message>, ProtocolError> {
    match message_bytes(buffer, max)? {
        Some(total) if buffer.len() >= total => {
            let mut body = buffer.split_to(total).freeze();
            let tag = body.first().copied().unwrap_or_default();
            body.advance(HEADER_BYTES);
            Ok(Some(Message { tag, body }))
        }
        _ => Ok(None),
    }
}

/// Takes a zero-terminated text; invalid UTF-8 (an error sent before the encoding was settled) is replaced.
pub fn take_text(body: &mut &[u8]) -> Result<String, ProtocolError> {
    let end = body.iter().position(|byte| *byte == 0).ok_or(ProtocolError::Truncated("text"))?;
    let (text, rest) = body.split_at(end);
    *body = rest.get(1..).unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Reads a DataRow in text format, as simple queries return it.
pub fn data_row(mut body: &[u8]) -> Result<Vec<Option<String>>, ProtocolError> {
    let short = |_| ProtocolError::Truncated("DataRow");
    let count = body.try_get_u16().map_err(short)?;
    (0..count)
        .map(|_| match body.try_get_i32().map_err(short)? {
            length if length < 0 => Ok(None),
            length => {
                let (value, rest) =
                    body.split_at_checked(length as usize).ok_or(ProtocolError::Truncated("DataRow"))?;
                body = rest;
                Ok(Some(String::from_utf8_lossy(value).into_owned()))
            }
        })
        .collect()
}

/// Where the values of a DataRow lie in it, without copying them.
pub fn data_row_values(body: &[u8]) -> Result<Vec<Value>, ProtocolError> {
    let short = |_| ProtocolError::Truncated("DataRow");
    let mut rest = body;
    let count = rest.try_get_u16().map_err(short)?;
    // A value takes at least 4 bytes, so a wrong count cannot make us allocate more than was sent.
    let mut values = Vec::with_capacity(usize::from(count).min(rest.len() / 4));
    for _ in 0..count {
        let length = rest.try_get_i32().map_err(short)?;
        let Ok(length) = usize::try_from(length) else {
            values.push(Value::Null);
            continue;
        };
        let start = body.len() - rest.len();
        (_, rest) = rest.split_at_checked(length).ok_or(ProtocolError::Truncated("DataRow"))?;
        values.push(Value::Text(start..start + length));
    }
    Ok(values)
}

/// A double-quoted SQL identifier.
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The START_REPLICATION command for one slot and one publication.
///
/// `publication_names` is a list of identifiers inside a string literal, so a name is quoted twice. Logical messages
/// are not asked for: servers before 14 do not know the option.
pub fn start_replication(slot: &str, publication: &str, at: Lsn) -> String {
    format!(
        "START_REPLICATION SLOT {} LOGICAL {at} (proto_version '1', publication_names '{}')",
        quote_identifier(slot),
        quote_identifier(publication).replace('\'', "''"),
    )
}

/// The command that makes a pgoutput slot whose consistent point is the snapshot of the transaction in which it runs: that
/// transaction then sees what committed before that point and nothing else. `version` is the server's.
pub fn create_slot_with_snapshot(slot: &str, version: u32) -> String {
    let options = if version >= FAILOVER_SLOTS { "(SNAPSHOT 'use', FAILOVER)" } else { "USE_SNAPSHOT" };
    format!("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {options}", quote_identifier(slot))
}

/// The time that Postgres writes as microseconds since 2000-01-01. What no clock can show becomes the epoch itself.
pub fn system_time(micros: i64) -> SystemTime {
    let epoch = UNIX_EPOCH + POSTGRES_EPOCH;
    let distance = Duration::from_micros(micros.unsigned_abs());
    let time = if micros < 0 { epoch.checked_sub(distance) } else { epoch.checked_add(distance) };
    time.unwrap_or(epoch)
}

fn postgres_micros(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH + POSTGRES_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
    }
}

/// The bytes are not what the protocol allows: the other side is no Postgres, or the stream is out of step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("a {0} message ends too early")]
    Truncated(&'static str),
    #[error("message {:?} claims a length of {length} bytes; the limit is {max}", char::from(*.tag))]
    Length { tag: u8, length: usize, max: usize },
    #[error("unknown replication frame {:?}", char::from(*.0))]
    UnknownFrame(u8),
    #[error("unexpected message {:?} {during}", char::from(*.tag))]
    Unexpected { tag: u8, during: &'static str },
    #[error("{0}")]
    Other(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn copy_data(body: &[u8]) -> BytesMut {
        let mut out = BytesMut::new();
        out.put_u8(b'd');
        out.put_u32(4 + body.len() as u32);
        out.put_slice(body);
        out
    }

    #[test]
    fn an_xlogdata_frame_is_read_without_copying() {
        let mut body = vec![b'w'];
        body.extend(0x16_B374_D848_u64.to_be_bytes());
        body.extend(0x16_B374_D900_u64.to_be_bytes());
        body.extend(1_000_000_i64.to_be_bytes());
        body.extend(b"Irow");
        let mut buffer = copy_data(&body);
        let lies_at = buffer.as_ptr();
        let message = take_message(&mut buffer, MESSAGE_BYTES_MAX).unwrap().unwrap();
        assert_eq!((message.tag, buffer.len()), (b'd', 0));
        let frame = Frame::parse(message.body).unwrap();
        assert_eq!(frame.received(), Lsn(0x16_B374_D900));
        let Frame::XLogData { start, sent, data, .. } = frame else { panic!("{frame:?}") };
        assert_eq!((start, &data[..]), (Lsn(0x16_B374_D848), &b"Irow"[..]));
        assert_eq!(sent, UNIX_EPOCH + POSTGRES_EPOCH + Duration::from_secs(1));
        assert_eq!(data.as_ptr(), lies_at.wrapping_add(5 + 25));
    }

    #[test]
    fn a_keepalive_tells_whether_it_wants_an_answer() {
        for asked in [false, true] {
            let mut body = vec![b'k'];
            body.extend(77_u64.to_be_bytes());
            body.extend(0_i64.to_be_bytes());
            body.push(asked.into());
            let frame = Frame::parse(body.into()).unwrap();
            let expected =
                Frame::PrimaryKeepalive { wal_end: Lsn(77), sent: UNIX_EPOCH + POSTGRES_EPOCH, reply_requested: asked };
            assert_eq!(frame, expected);
        }
    }

    #[test]
    fn a_status_update_has_the_layout_that_the_server_reads() {
        let update = StandbyStatusUpdate {
            write: Lsn(3),
            flush: Lsn(2),
            apply: Lsn(1),
            sent: UNIX_EPOCH + POSTGRES_EPOCH + Duration::from_micros(5),
            reply_requested: true,
        };
        let mut out = BytesMut::new();
        update.encode(&mut out);
        let mut expected = vec![b'd', 0, 0, 0, 38, b'r'];
        for number in [3_u64, 2, 1, 5] {
            expected.extend(number.to_be_bytes());
        }
        expected.push(1);
        assert_eq!(out, expected);
    }

    #[test]
    fn what_is_confirmed_is_never_ahead_of_what_is_written() {
        let update = StandbyStatusUpdate::new(Lsn(5), Lsn(9));
        assert_eq!((update.write, update.flush, update.apply), (Lsn(9), Lsn(9), Lsn(9)));
    }

    #[test]
    fn a_message_waits_for_its_last_byte() {
        let whole = copy_data(b"k123");
        for cut in 0..whole.len() {
            let mut part = BytesMut::from(&whole[..cut]);
            assert_eq!(take_message(&mut part, MESSAGE_BYTES_MAX), Ok(None), "{cut}");
            assert_eq!(part.len(), cut);
        }
    }

    #[test]
    fn an_impossible_length_is_an_error() {
        for length in [0_u32, 3, 0x4000_0500, u32::MAX] {
            let mut header = vec![b'd'];
            header.extend(length.to_be_bytes());
            assert!(message_bytes(&header, MESSAGE_BYTES_MAX).is_err(), "{length}");
        }
        assert_eq!(
            message_bytes(b"HTTP/1.1 400", 1 << 20).unwrap_err().to_string(),
            "message 'H' claims a length of 1414811695 bytes; the limit is 1048576"
        );
    }

    #[test]
    fn odd_names_stay_inside_their_quotes() {
        assert_eq!(
            start_replication("walpost", "O'Brien \"x\", y", Lsn(0x16_B374_D848)),
            "START_REPLICATION SLOT \"walpost\" LOGICAL 16/B374D848 \
             (proto_version '1', publication_names '\"O''Brien \"\"x\"\", y\"')"
        );
    }

    #[test]
    fn a_slot_is_copied_to_standbys_where_the_version_can() {
        assert_eq!(
            create_slot_with_snapshot("relay_1", 160_000),
            "CREATE_REPLICATION_SLOT \"relay_1\" LOGICAL pgoutput USE_SNAPSHOT"
        );
        assert!(create_slot_with_snapshot("relay_1", 170_000).ends_with("(SNAPSHOT 'use', FAILOVER)"));
    }

    #[test]
    fn a_row_knows_null_from_empty() {
        let mut body = 3_u16.to_be_bytes().to_vec();
        body.extend((-1_i32).to_be_bytes());
        body.extend(0_i32.to_be_bytes());
        body.extend(2_i32.to_be_bytes());
        body.extend(b"hi");
        assert_eq!(data_row(&body).unwrap(), [None, Some(String::new()), Some("hi".to_owned())]);
        assert!(data_row(&body[..body.len() - 1]).is_err());
        assert_eq!(data_row_values(&body).unwrap(), [Value::Null, Value::Text(10..10), Value::Text(14..16)]);
        assert!(data_row_values(&body[..body.len() - 1]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(bytes: Vec<u8>) {
            let _ = Frame::parse(bytes.clone().into());
            let _ = data_row(&bytes);
            let _ = data_row_values(&bytes);
            let _ = take_text(&mut &bytes[..]);
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(message)) = take_message(&mut buffer, MESSAGE_BYTES_MAX) {
                let _ = Frame::parse(message.body);
            }
        }

        #[test]
        fn messages_come_out_as_they_went_in_however_they_are_cut(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..8),
            step in 1_usize..50,
        ) {
            let wire: Vec<u8> = bodies.iter().flat_map(|body| copy_data(body).to_vec()).collect();
            let mut buffer = BytesMut::new();
            let mut seen = Vec::new();
            for chunk in wire.chunks(step) {
                buffer.extend_from_slice(chunk);
                while let Some(message) = take_message(&mut buffer, MESSAGE_BYTES_MAX).unwrap() {
                    seen.push(message.body.to_vec());
                }
            }
            prop_assert_eq!(seen, bodies);
        }

        #[test]
        fn times_read_back(micros in -900_000_000_000_000_i64..4_000_000_000_000_000) {
            prop_assert_eq!(postgres_micros(system_time(micros)), micros);
        }

        #[test]
        fn no_time_is_too_odd(micros: i64) {
            let _ = system_time(micros);
        }
    }
}
