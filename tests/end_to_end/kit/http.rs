//! Enough of HTTP to ask walpost's admin server for a page.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Status code and body of a GET on a loopback port.
pub fn get(port: u16, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let broken = || io::Error::new(io::ErrorKind::InvalidData, format!("not an HTTP answer: {answer:?}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(broken)?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(broken)?;
    let body = match head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        true => unchunk(body),
        false => body.to_owned(),
    };
    Ok((code, body))
}

fn unchunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || rest.len() < size {
            break;
        }
        whole += &rest[..size];
        body = rest[size..].trim_start_matches("\r\n");
    }
    whole
}
