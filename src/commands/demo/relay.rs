//! The relay of the demo: this same program as a child, `walpost run`, so that what is shown is what a user runs.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::config::Secret;

use super::child::{Child, Signal};
use super::screen::Screen;

const READY_WITHIN: Duration = Duration::from_secs(60);
const STILL_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Longer than `shutdown.timeout`.
const DRAINED_WITHIN: Duration = Duration::from_secs(40);

/// The relay does not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error("walpost itself cannot be started again")]
    Start(#[source] io::Error),
    #[error("the relay ended ({status}); its log ends with:\n{tail}")]
    Ended { status: String, tail: String },
    #[error("the relay did not get ready within {} s: {answer}; its log ends with:\n{tail}", READY_WITHIN.as_secs())]
    NotReady { answer: String, tail: String },
    #[error("the relay did not end within {} s after SIGTERM; its log ends with:\n{tail}", DRAINED_WITHIN.as_secs())]
    NotDrained { tail: String },
    #[error("nothing can be printed")]
    Output(#[from] io::Error),
}

/// How the relay is started.
pub struct Launch {
    pub database_url: String,
    pub password: Secret,
    pub brokers: String,
    pub http_port: u16,
    /// Gets its log lines.
    pub log: PathBuf,
}

/// A running relay. Dropped, it is killed.
pub struct Relay {
    child: Child,
    http_port: u16,
}

impl Launch {
    fn arguments(&self) -> [String; 8] {
        [
            "run".into(),
            "--setup".into(),
            "--database-url".into(),
            self.database_url.clone(),
            "--brokers".into(),
            self.brokers.clone(),
            "--http".into(),
            format!("127.0.0.1:{}", self.http_port),
        ]
    }

    /// As a person would type it.
    pub fn command_line(&self) -> String {
        let [run, setup, url, url_value, brokers, brokers_value, http, http_value] = self.arguments();
        format!(
            "$ walpost {run} {setup} {url} {url_value} \\\n      {brokers} {brokers_value} {http} {http_value}\n\
             # the password is in the environment, as WALPOST_POSTGRES_PASSWORD"
        )
    }

    pub fn start(&self) -> Result<Relay, RelayError> {
        let mut command = Command::new(std::env::current_exe().map_err(RelayError::Start)?);
        command.args(self.arguments());
        // What the person has set is for their own relay, not for this one.
        for (name, _) in std::env::vars_os() {
            let foreign = ["WALPOST_", "PG", "KAFKA_", "DATABASE_URL", "RUST_LOG"];
            if name.to_str().is_some_and(|name| foreign.iter().any(|prefix| name.starts_with(prefix))) {
                command.env_remove(name);
            }
        }
        command.env("WALPOST_POSTGRES_PASSWORD", self.password.expose()).env("WALPOST_LOG_FORMAT", "pretty");
        let child = Child::spawn(command, self.log.clone(), Signal::Kill).map_err(RelayError::Start)?;
        Ok(Relay { child, http_port: self.http_port })
    }
}

impl Relay {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// An error once it has ended by itself.
    pub fn check(&mut self) -> Result<(), RelayError> {
        match self.child.ended() {
            Some(status) => Err(RelayError::Ended { status: status.to_string(), tail: self.child.tail() }),
            None => Ok(()),
        }
    }

    /// Waits until its readiness probe says yes.
    pub async fn ready(&mut self, screen: &Screen) -> Result<(), RelayError> {
        let started = Instant::now();
        let mut still_at = started + STILL_EVERY;
        loop {
            self.check()?;
            let answer = match tokio::time::timeout(ANSWER_WITHIN, probe(self.http_port)).await {
                Ok(Ok((200, _))) => return Ok(()),
                Ok(Ok((_, answer))) => answer,
                Ok(Err(error)) => format!("/readyz: {error}"),
                Err(_) => "/readyz does not answer".to_owned(),
            };
            let now = Instant::now();
            if now >= started + READY_WITHIN {
                return Err(RelayError::NotReady { answer, tail: self.child.tail() });
            }
            if now >= still_at {
                screen.step(&format!("not ready yet: {answer}"))?;
                still_at = now + STILL_EVERY;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill();
    }

    /// SIGTERM, and waits for its orderly end.
    pub async fn drain(&mut self) -> Result<(), RelayError> {
        self.check()?;
        self.child.signal(Signal::Term);
        let deadline = Instant::now() + DRAINED_WITHIN;
        loop {
            match self.child.ended() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    return Err(RelayError::Ended { status: status.to_string(), tail: self.child.tail() });
                }
                None if Instant::now() >= deadline => {
                    return Err(RelayError::NotDrained { tail: self.child.tail() });
                }
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// The end of its log.
    pub fn tail(&self) -> String {
        self.child.tail()
    }
}

/// Status and text of `/readyz`.
async fn probe(port: u16) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    parse(&String::from_utf8_lossy(&answer)).ok_or_else(|| io::Error::other("this is no HTTP"))
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.split_whitespace().next()?.parse().ok()?;
    Some((status, body.trim().replace('\n', " ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probes_answer_is_its_status_and_its_sentence() {
        let answer = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 9\r\n\r\nstarting\n";
        assert_eq!(parse(answer), Some((503, "starting".to_owned())));
        assert_eq!(parse("HTTP/1.1 200 OK\r\n\r\n"), Some((200, String::new())));
        assert_eq!(parse("SSH-2.0"), None);
        assert_eq!(parse("HTTP/1.1 x\r\n\r\n"), None);
    }
}
