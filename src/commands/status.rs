//! `walpost status`: one screen on the relay, or with `--json` the document that scripts read. A running relay is asked
//! at its admin server; without one, what Postgres says about the slot is shown. It changes nothing anywhere.

use std::future::Future;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::Config;
use crate::telemetry::{SlotStatus, State, Status, WalStatus, facts};

/// The relay answers in a millisecond; what takes this long hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// How long Postgres may take to say something about the slot.
const SLOT_WITHIN: Duration = Duration::from_secs(15);

/// A status is about 1 kB. More than this is not from a relay.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Prints the status to `out`. `slot_lookup` asks Postgres for the slot's row and its lag; it is awaited only where no
/// relay answers.
pub async fn run(
    config: &Config,
    json: bool,
    slot_lookup: impl Future<Output = Option<(SlotStatus, Option<u64>)>>,
    out: &mut dyn Write,
) -> io::Result<()> {
    match ask(config.http.listen, ANSWER_WITHIN).await {
        Ok(answer) => {
            let notes = notes(config, &answer);
            if json {
                for note in notes {
                    tracing::warn!("{note}");
                }
                // As the relay wrote it: a newer one may say more than this version knows.
                return print_json(&answer.document, out);
            }
            print_text(&answer.status, &notes, out)
        }
        Err(silence) => {
            let slot = tokio::time::timeout(SLOT_WITHIN, slot_lookup).await.unwrap_or(None);
            let status = without_relay(config, &silence, slot);
            if json { print_json(&status, out) } else { print_text(&status, &[], out) }
        }
    }
}

/// What a running relay said.
struct Answer {
    from: SocketAddr,
    document: serde_json::Value,
    status: Status,
}

/// Why no relay could be asked. One sentence each.
#[derive(Debug, thiserror::Error)]
enum Silence {
    #[error("no relay can be asked, because http.listen is off")]
    Off,
    #[error("no relay can be asked, because http.listen has port 0")]
    AnyPort,
    #[error("no relay answers at http://{0} (http.listen): {1}")]
    Unreachable(SocketAddr, io::Error),
    #[error("something listens at http://{0} (http.listen), but it did not answer within {1:?}")]
    Slow(SocketAddr, Duration),
    #[error("what answers at http://{0} (http.listen) is no walpost of a version that this one understands: {1}")]
    Stranger(SocketAddr, String),
}

async fn ask(listen: Option<SocketAddr>, within: Duration) -> Result<Answer, Silence> {
    let mut from = listen.ok_or(Silence::Off)?;
    if from.port() == 0 {
        return Err(Silence::AnyPort);
    }
    // "All addresses" can be listened at, but not everywhere called.
    if from.ip().is_unspecified() {
        from.set_ip(match from.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    let answer = match tokio::time::timeout(within, fetch(from)).await {
        Ok(answer) => answer.map_err(|error| Silence::Unreachable(from, error))?,
        Err(_) => return Err(Silence::Slow(from, within)),
    };
    let document = document(&answer).map_err(|what| Silence::Stranger(from, what))?;
    let status = serde_json::from_value(document.clone()).map_err(|e| Silence::Stranger(from, e.to_string()))?;
    Ok(Answer { from, document, status })
}

/// HTTP 1.0 needs no client: the answer ends where the connection ends.
async fn fetch(from: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(from).await?;
    stream.write_all(format!("GET /status HTTP/1.0\r\nHost: {from}\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// The JSON of an HTTP answer, or what is wrong with it.
fn document(answer: &[u8]) -> Result<serde_json::Value, String> {
    let text = std::str::from_utf8(answer).map_err(|_| "the answer is no text".to_owned())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("the answer is not HTTP")?;
    let first = head.lines().next().unwrap_or_default();
    if !first.starts_with("HTTP/1.") || first.split(' ').nth(1) != Some("200") {
        return Err(format!("it says {:?}", first.chars().take(80).collect::<String>()));
    }
    serde_json::from_str(body).map_err(|error| error.to_string())
}

/// What is odd about the answer, for whoever asked.
fn notes(config: &Config, answer: &Answer) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(slot) = &answer.status.slot.name
        && *slot != config.postgres.slot
    {
        notes.push(format!(
            "the relay at http://{} reads slot {slot:?}, not {:?} as set here (postgres.slot, --slot): this is its status. \
             Name the other relay's address with --http.",
            answer.from, config.postgres.slot
        ));
    }
    notes
}

fn without_relay(config: &Config, silence: &Silence, found: Option<(SlotStatus, Option<u64>)>) -> Status {
    let slot_is_there = found.is_some();
    let (mut slot, lag_bytes) = found.unwrap_or_default();
    slot.name.get_or_insert_with(|| config.postgres.slot.clone());
    let (reason, remedy) = if slot.wal_status == Some(WalStatus::Lost) {
        (
            format!("{silence}. The slot is lost"),
            "`walpost setup --accept-gap` prints what may be missing and makes a new one; then start the relay with `walpost run`.",
        )
    } else if slot.active == Some(true) {
        (
            format!("{silence}. But the slot is in use, so a relay reads it elsewhere"),
            "Name the address of that relay with --http.",
        )
    } else if let Silence::Slow(..) | Silence::Stranger(..) = silence {
        (silence.to_string(), "Name the address of the relay with --http, or start one with `walpost run`.")
    } else if slot_is_there {
        (silence.to_string(), "Start it with `walpost run`; the slot keeps what is committed meanwhile.")
    } else {
        (silence.to_string(), "Start it with `walpost run`; `walpost doctor` says what it lacks.")
    };
    Status {
        reason: Some(reason),
        remedy: Some(remedy.to_owned()),
        slot,
        lag_bytes,
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        ..Status::of(State::NotRunning)
    }
}

fn print_json(document: &impl serde::Serialize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", serde_json::to_string_pretty(document)?)
}

fn print_text(status: &Status, notes: &[String], out: &mut dyn Write) -> io::Result<()> {
    let mut line = |label: &str, value: &str| writeln!(out, "{label:<12}{value}");
    for note in notes {
        line("note", note)?;
    }
    let ready = if status.state.is_ready() { "ready" } else { "not ready" };
    match status.state {
        State::NotRunning => line("state", status.state.as_str())?,
        state => line("state", &format!("{state} ({ready})"))?,
    }
    line("reason", status.reason())?;
    if let Some(remedy) = &status.remedy {
        line("remedy", remedy)?;
    }
    for (label, value) in facts(status) {
        // Without a relay most is unknown, and a screen of that word helps nobody.
        if status.state != State::NotRunning || value != "unknown" {
            line(label, &value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::config;
    use crate::lsn::Lsn;
    use crate::telemetry::{Telemetry, server};
    use tokio::net::TcpListener;

    fn config(listen: Option<SocketAddr>) -> Config {
        Config {
            name: "walpost".into(),
            postgres: config::Postgres {
                url: None,
                password: None,
                table: "outbox_messages".into(),
                slot: "walpost".into(),
                publication: "walpost".into(),
            },
            kafka: config::Kafka { brokers: None, properties: BTreeMap::new() },
            topics: config::Topics { create: config::TopicsCreate::Broker },
            route: config::Route { topic: "t".into(), partitioner: config::Partitioner::Murmur2 },
            columns: config::Columns::default(),
            headers: config::Headers {
                id: "id".into(),
                event_type: "eventType".into(),
                token: "token".into(),
                created_at: String::new(),
                origin: "origin".into(),
                columns: BTreeMap::new(),
            },
            preset: None,
            read_back: true,
            on_poison: config::OnPoison::Stop,
            on_route_error: config::OnRouteError::Wait,
            parked: config::Parked { max_rows: 10, max_bytes: 1000 },
            dead_letter: config::DeadLetter { topic: "dead".into() },
            on_null_payload: config::OnNullPayload::Error,
            on_null_key: config::OnNullKey::Error,
            window: config::Window { messages: 1, bytes: 1 },
            feedback: config::Feedback { interval: Duration::from_secs(1) },
            shutdown: config::Shutdown { timeout: Duration::from_secs(1) },
            http: config::Http { listen },
            log: config::Log { level: "info".into(), format: None },
        }
    }

    async fn printed(config: &Config, json: bool, slot: Option<(SlotStatus, Option<u64>)>) -> String {
        let mut out = Vec::new();
        run(config, json, async { slot }, &mut out).await.unwrap();
        String::from_utf8(out).unwrap()
    }

    async fn relay(slot: &str) -> (Arc<Telemetry>, server::Server) {
        let telemetry = Telemetry::new("9.9.9", &[]);
        telemetry.set_state(State::Stalled, "no broker answers", "start a broker");
        telemetry.update(|status| {
            status.slot.name = Some(slot.into());
            status.slot.confirmed_flush_lsn = Some(Lsn(0x16_B374_D848));
            status.lag_bytes = Some(3 << 20);
        });
        let server = server::serve("127.0.0.1:0".parse().unwrap(), telemetry.clone()).await.unwrap();
        (telemetry, server)
    }

    /// An address where nothing listens.
    async fn nobody() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }

    #[tokio::test]
    async fn json_is_what_the_running_relay_says() {
        let (telemetry, server) = relay("walpost").await;
        let text = printed(&config(Some(server.address())), true, None).await;
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), telemetry.status());
        server.stop().await;
    }

    #[tokio::test]
    async fn one_screen_says_state_reason_remedy_and_numbers() {
        let (_telemetry, server) = relay("walpost").await;
        let text = printed(&config(Some(server.address())), false, None).await;
        for part in ["stalled (not ready)", "no broker answers", "start a broker", "16/B374D848", "3.0 MiB", "9.9.9"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(text.lines().count() < 24 && !text.contains("note"), "{text}");
        server.stop().await;
    }

    #[tokio::test]
    async fn a_relay_of_another_slot_is_not_mistaken_for_ours() {
        let (_telemetry, server) = relay("other").await;
        let text = printed(&config(Some(server.address())), false, None).await;
        assert!(text.starts_with("note") && text.contains("reads slot \"other\", not \"walpost\""), "{text}");
        server.stop().await;
    }

    #[tokio::test]
    async fn a_relay_on_all_addresses_is_found() {
        let telemetry = Telemetry::new("9.9.9", &[]);
        let server = server::serve("0.0.0.0:0".parse().unwrap(), telemetry).await.unwrap();
        let text = printed(&config(Some(server.address())), false, None).await;
        assert!(text.contains("starting (not ready)"), "{text}");
        server.stop().await;
    }

    #[tokio::test]
    async fn without_a_relay_the_slot_is_shown_as_postgres_knows_it() {
        let slot = SlotStatus { active: Some(false), wal_status: Some(WalStatus::Extended), ..Default::default() };
        let config = config(Some(nobody().await));
        let text = printed(&config, true, Some((slot, Some(7)))).await;
        let status: Status = serde_json::from_str(&text).unwrap();
        assert_eq!((status.state, status.lag_bytes), (State::NotRunning, Some(7)));
        assert_eq!((status.slot.name.as_deref(), status.slot.active), (Some("walpost"), Some(false)));
        assert_eq!((status.published, status.in_flight.messages, status.kafka.connected), (None, None, None));
        assert!(status.remedy.unwrap().contains("walpost run"));
    }

    #[tokio::test]
    async fn a_slot_in_use_without_an_answering_relay_is_explained() {
        let slot = SlotStatus { active: Some(true), ..Default::default() };
        let text = printed(&config(None), false, Some((slot, None))).await;
        assert!(
            text.contains("not_running") && text.contains("reads it elsewhere") && text.contains("--http"),
            "{text}"
        );
        assert!(!text.contains("unknown"), "{text}");
    }

    #[tokio::test]
    async fn a_lost_slot_is_told_also_without_a_relay() {
        let slot = SlotStatus { wal_status: Some(WalStatus::Lost), ..Default::default() };
        let text = printed(&config(None), false, Some((slot, None))).await;
        assert!(text.contains("The slot is lost") && text.contains("--accept-gap"), "{text}");
    }

    #[tokio::test]
    async fn another_program_at_the_address_is_no_relay() {
        for (answer, says) in [
            ("HTTP/1.1 404 Not Found\r\n\r\n", "404 Not Found"),
            ("HTTP/1.1 200 OK\r\n\r\n<html>", "expected value"),
            ("HTTP/1.1 200 OK\r\n\r\n{\"state\":\"dancing\"}", "dancing"),
            ("SSH-2.0\r\n", "not HTTP"),
            ("", "not HTTP"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let config = config(Some(listener.local_addr().unwrap()));
            let stranger = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 256];
                let _ = stream.read(&mut request).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let (text, ()) = tokio::join!(printed(&config, false, None), stranger);
            assert!(text.contains("not_running") && text.contains("is no walpost") && text.contains(says), "{text}");
        }
    }

    #[tokio::test]
    async fn a_relay_that_hangs_does_not_hang_the_command() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silence = ask(listener.local_addr().ok(), Duration::from_millis(20)).await.err().unwrap();
        assert!(silence.to_string().ends_with("did not answer within 20ms"), "{silence}");
    }
}
