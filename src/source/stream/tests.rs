use std::time::SystemTime;

use bytes::Bytes;
use tokio::io::{DuplexStream, duplex};

use super::*;

/// A stream whose other end the test plays. The pipe takes `pipe_bytes` before a writer has to wait.
fn stream(pipe_bytes: usize) -> (Stream<DuplexStream>, DuplexStream) {
    let (ours, theirs) = duplex(pipe_bytes);
    (Stream::new(ours, BytesMut::new()), theirs)
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend((body.len() as u32 + 4).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn row(position: u64, data: &[u8]) -> Vec<u8> {
    let mut body = vec![b'w'];
    body.extend(position.to_be_bytes());
    body.extend(position.to_be_bytes());
    body.extend(0_u64.to_be_bytes());
    body.extend(data);
    message(b'd', &body)
}

async fn frame<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut Stream<S>) -> Result<Frame, StreamError> {
    loop {
        if let Some(frame) = stream.next()? {
            return Ok(frame);
        }
        stream.readable().await?;
    }
}

fn data(frame: &Frame) -> Bytes {
    match frame {
        Frame::XLogData { data, .. } => data.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn frames_come_whole_however_the_network_cuts_them() {
    for cut in [1, 3, 29, 30, 31, 1000] {
        let (mut stream, mut server) = stream(64);
        let bytes: Vec<u8> = (1..=20).flat_map(|n| row(n, &vec![n as u8; n as usize])).collect();
        let writer = tokio::spawn(async move {
            for piece in bytes.chunks(cut) {
                server.write_all(piece).await.unwrap();
            }
            server
        });
        for n in 1..=20_u64 {
            let frame = frame(&mut stream).await.unwrap();
            assert_eq!(data(&frame), vec![n as u8; n as usize]);
            assert_eq!(stream.received(), Lsn(n));
        }
        drop(writer.await.unwrap());
    }
}

#[tokio::test]
async fn a_cancelled_wait_loses_no_byte() {
    let (mut stream, mut server) = stream(1 << 20);
    let bytes: Vec<u8> = (1..=50).flat_map(|n| row(n, b"abc")).collect();
    let mut seen = 0;
    for piece in bytes.chunks(7) {
        // Polled once with nothing there, then dropped.
        tokio::select! {
            biased;
            outcome = stream.readable() => panic!("nothing was sent: {outcome:?}"),
            () = std::future::ready(()) => {}
        }
        server.write_all(piece).await.unwrap();
        stream.readable().await.unwrap();
        while let Some(frame) = stream.next().unwrap() {
            seen += 1;
            assert_eq!(frame.received(), Lsn(seen));
        }
    }
    assert_eq!(seen, 50);
}

#[tokio::test]
async fn a_large_frame_gets_its_room_and_gives_it_back() {
    let (mut stream, mut server) = stream(1 << 16);
    let large = vec![7; 5 << 20];
    let bytes = [row(1, b"before"), row(2, &large), row(3, b"after")].concat();
    let writer = tokio::spawn(async move {
        server.write_all(&bytes).await.unwrap();
        server
    });
    assert_eq!(data(&frame(&mut stream).await.unwrap()), "before");
    let seen = frame(&mut stream).await.unwrap();
    assert_eq!(data(&seen), large);
    drop(seen);
    assert_eq!(data(&frame(&mut stream).await.unwrap()), "after");
    stream.make_room().unwrap();
    assert!(stream.buffer.capacity() <= 2 * CHUNK_BYTES, "{}", stream.buffer.capacity());
    drop(writer.await.unwrap());
}

#[tokio::test]
async fn one_read_takes_no_more_than_a_chunk_and_then_waits_to_be_emptied() {
    let (mut stream, mut server) = stream(4 << 20);
    let bytes = row(1, &[0; 100]).repeat(10_000);
    server.write_all(&bytes).await.unwrap();
    for _ in 0..5 {
        stream.readable().await.unwrap();
        assert!(stream.buffer.len() <= CHUNK_BYTES && stream.buffer.capacity() <= 2 * CHUNK_BYTES);
    }
    let mut count = 0;
    while count < 10_000 {
        count += usize::from(frame(&mut stream).await.is_ok());
    }
}

#[tokio::test]
async fn memory_is_used_again_once_its_frames_are_gone() {
    let (mut stream, mut server) = stream(CHUNK_BYTES);
    let mut held = Vec::new();
    for n in 1..=4_000 {
        server.write_all(&row(n, &[0; 1000])).await.unwrap();
        let frame = frame(&mut stream).await.unwrap();
        held.push(frame);
        held.drain(..held.len().saturating_sub(10));
        assert!(stream.buffer.capacity() <= 2 * CHUNK_BYTES);
    }
}

#[tokio::test]
async fn what_the_server_says_beside_the_rows_is_passed_over() {
    let (mut stream, mut server) = stream(1 << 16);
    let notice = message(b'N', b"SNOTICE\0C00000\0Mhello\0\0");
    let setting = message(b'S', b"TimeZone\0UTC\0");
    server.write_all(&[notice, setting, row(9, b"x")].concat()).await.unwrap();
    assert_eq!(frame(&mut stream).await.unwrap().received(), Lsn(9));
}

#[tokio::test]
async fn an_error_of_the_server_keeps_its_sqlstate() {
    let (mut stream, mut server) = stream(1 << 16);
    let error = message(b'E', b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0");
    server.write_all(&error).await.unwrap();
    let error = frame(&mut stream).await.unwrap_err();
    assert_eq!((error.sqlstate(), error.kind()), (Some("57P01"), crate::postgres::ErrorKind::ShuttingDown));
    assert_eq!(
        error.to_string(),
        "Postgres ended the replication stream: FATAL: terminating connection (SQLSTATE 57P01)"
    );
}

#[tokio::test]
async fn the_end_of_the_stream_says_who_ended_it() {
    let (mut stream, server) = self::stream(64);
    drop(server);
    let error = frame(&mut stream).await.unwrap_err();
    assert!(matches!(error, StreamError::Closed), "{error}");

    let (mut stream, mut server) = self::stream(64);
    server.write_all(&message(b'C', b"COPY 0\0")).await.unwrap();
    let error = frame(&mut stream).await.unwrap_err();
    assert!(matches!(error, StreamError::Ended), "{error}");
}

#[tokio::test]
async fn nonsense_is_an_error_and_not_a_wait_for_gigabytes() {
    for nonsense in
        [&b"HTTP/1.1 400 Bad Request"[..], &[b'd', 0xff, 0xff, 0xff, 0xff], &[b'd', 0, 0, 0, 0], &message(b'?', b"")]
    {
        let (mut stream, mut server) = stream(64);
        server.write_all(nonsense).await.unwrap();
        let error = frame(&mut stream).await.unwrap_err();
        assert!(matches!(error, StreamError::Protocol(_)), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_takes_nothing_is_given_up_after_the_deadline() {
    let (mut stream, _server) = stream(10);
    stream.write_within = Duration::from_millis(20);
    let update = StandbyStatusUpdate { sent: SystemTime::UNIX_EPOCH, ..StandbyStatusUpdate::new(Lsn(1), Lsn(1)) };
    let error = stream.send_status(&update).await.unwrap_err();
    assert!(matches!(error, StreamError::WriteTimeout(_)), "{error}");
}

/// An end whose writes fail, as on a socket that the peer has closed, while what it said can still be read.
struct Closing(DuplexStream);

impl AsyncRead for Closing {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Closing {
    fn poll_write(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }
    fn poll_flush(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_write_that_fails_reports_why_the_server_left() {
    for (words, expected) in [(&b"SFATAL\0VFATAL\0C57P01\0Mbye\0\0"[..], Some("57P01")), (b"", None)] {
        let (ours, mut server) = duplex(1 << 16);
        let mut stream = Stream::new(Closing(ours), BytesMut::new());
        server.write_all(&row(1, b"unread")).await.unwrap();
        if !words.is_empty() {
            server.write_all(&message(b'E', words)).await.unwrap();
        }
        drop(server);
        let error = stream.send_status(&StandbyStatusUpdate::new(Lsn(1), Lsn(1))).await.unwrap_err();
        assert_eq!(error.sqlstate(), expected, "{error}");
        assert!(expected.is_some() || matches!(error, StreamError::Io { .. }), "{error}");
    }
}

#[tokio::test]
async fn finish_reads_over_what_still_comes_and_then_says_goodbye() {
    let (stream, mut server) = stream(1 << 16);
    let writer = tokio::spawn(async move {
        let mut done = [0; 5];
        server.read_exact(&mut done).await.unwrap();
        assert_eq!(done, [b'c', 0, 0, 0, 4]);
        let rest = [row(1, b"late"), message(b'c', b""), message(b'C', b"COPY 0\0"), message(b'Z', b"I")].concat();
        server.write_all(&rest).await.unwrap();
        let mut goodbye = Vec::new();
        server.read_to_end(&mut goodbye).await.unwrap();
        assert_eq!(goodbye, [b'X', 0, 0, 0, 4]);
    });
    stream.finish().await.unwrap();
    writer.await.unwrap();
}

#[tokio::test]
async fn finish_does_not_wait_for_ever() {
    let (mut stream, _server) = stream(1 << 16);
    stream.finish_within = Duration::from_millis(20);
    let error = stream.finish().await.unwrap_err();
    assert!(error.to_string().contains("ending the stream"), "{error}");
}
