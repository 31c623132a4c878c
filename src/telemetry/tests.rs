//! The telemetry as its readers see it: over a real socket, and in the log.

use std::io::{self, Write};
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing_subscriber::fmt::MakeWriter;

use super::*;
use crate::lsn::Lsn;

fn telemetry() -> Arc<Telemetry> {
    Telemetry::new("1.2.3", &[("librdkafka", "2.12.1")])
}

async fn served(telemetry: &Arc<Telemetry>) -> server::Server {
    server::serve("127.0.0.1:0".parse().unwrap(), telemetry.clone()).await.unwrap()
}

/// Status code, head and body of one request.
async fn request(address: SocketAddr, method: &str, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{method} {path} HTTP/1.1\r\nHost: relay\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, head.to_lowercase(), body.to_owned())
}

#[tokio::test]
async fn readyz_is_200_in_exactly_the_ready_states_and_says_the_remedy() {
    let telemetry = telemetry();
    let server = served(&telemetry).await;
    for state in State::ALL {
        telemetry.set_state(state, "it is so", "do this");
        let (code, head, body) = request(server.address(), "GET", "/readyz").await;
        assert_eq!(code, if state.is_ready() { 200 } else { 503 }, "{state}");
        assert_eq!(body, format!("{state}: it is so\ndo this\n"));
        assert!(head.contains("content-type: text/plain"), "{head}");
    }
    telemetry.set_state(State::Streaming, "", "");
    let (_, _, body) = request(server.address(), "GET", "/readyz").await;
    assert_eq!(body, "streaming: rows are published as they are committed\n");
    server.stop().await;
}

#[tokio::test]
async fn livez_does_not_depend_on_the_state() {
    let telemetry = telemetry();
    let server = served(&telemetry).await;
    telemetry.set_state(State::Lost, "the slot is gone", "walpost recover");
    assert_eq!(request(server.address(), "GET", "/livez").await.0, 200);
    telemetry.turned();
    assert_eq!(request(server.address(), "GET", "/livez").await.0, 200);
    server.stop().await;
}

#[tokio::test]
async fn livez_is_503_once_the_loop_does_not_turn() {
    let mut telemetry = Arc::into_inner(telemetry()).unwrap();
    telemetry.started = Instant::now().checked_sub(Duration::from_secs(100)).unwrap();
    let telemetry = Arc::new(telemetry);
    let server = served(&telemetry).await;
    let (code, _, body) = request(server.address(), "GET", "/livez").await;
    assert_eq!((code, body.as_str()), (503, "the relay's loop has not begun to turn within 60 s\n"));
    telemetry.turned();
    assert_eq!(request(server.address(), "GET", "/livez").await.0, 200);
    // 40 s into its life, 60 s ago.
    telemetry.turned.store(40_001, Ordering::Relaxed);
    let (code, _, body) = request(server.address(), "GET", "/livez").await;
    assert_eq!((code, body.as_str()), (503, "the relay's loop has not turned for 1 min 0 s\n"));
    server.stop().await;
}

#[tokio::test]
async fn status_is_the_json_of_the_moment() {
    let telemetry = telemetry();
    let server = served(&telemetry).await;
    telemetry.set_state(State::Streaming, "up to date", "");
    telemetry.update(|status| status.slot.confirmed_flush_lsn = Some(Lsn(0x16_B374_D848)));
    telemetry.in_flight(3, 400);
    telemetry.oldest_unconfirmed(None);
    telemetry.metrics.topic("orders").published(7, 700);
    let (code, head, body) = request(server.address(), "GET", "/status").await;
    assert_eq!(code, 200);
    assert!(head.contains("content-type: application/json"), "{head}");
    let json: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(json["slot"]["confirmed_flush_lsn"], "16/B374D848");
    assert_eq!(json["in_flight"], serde_json::json!({ "messages": 3, "bytes": 400 }));
    assert_eq!(json["oldest_unconfirmed_seconds"], 0.0);
    assert_eq!((&json["published"], &json["version"]), (&7.into(), &"1.2.3".into()));
    assert_eq!((&json["remedy"], &json["lag_bytes"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    server.stop().await;
}

#[tokio::test]
async fn every_page_answers_get_and_head_and_nothing_else() {
    let telemetry = telemetry();
    let server = served(&telemetry).await;
    telemetry.set_state(State::Streaming, "up to date", "");
    for path in ["/", "/livez", "/readyz", "/metrics", "/status"] {
        let (code, _, body) = request(server.address(), "GET", path).await;
        assert_eq!((code, body.is_empty()), (200, false), "{path}");
        let (code, head, body) = request(server.address(), "HEAD", path).await;
        assert_eq!((code, body.as_str()), (200, ""), "{path}");
        assert!(!head.contains("content-length: 0"), "{head}");
        for method in ["POST", "PUT", "DELETE"] {
            let (code, head, _) = request(server.address(), method, path).await;
            assert_eq!(code, 405, "{method} {path}");
            assert!(head.contains("allow: get,head"), "{head}");
        }
    }
    assert_eq!(request(server.address(), "GET", "/nothing").await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_stopped_server_frees_its_address() {
    let telemetry = telemetry();
    let server = served(&telemetry).await;
    let address = server.address();
    server.stop().await;
    server::serve(address, telemetry).await.unwrap().stop().await;
}

#[tokio::test]
async fn a_taken_address_is_an_error_that_says_what_to_do() {
    let telemetry = telemetry();
    let server = served(&telemetry).await;
    let error = server::serve(server.address(), telemetry).await.err().unwrap().to_string();
    for part in [&server.address().to_string(), "http.listen", "--http", "already", "off"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    server.stop().await;
}

#[test]
fn every_promised_metric_is_there_from_the_start() {
    let text = telemetry().metrics_text().unwrap();
    for (name, kind) in [
        ("walpost_end_to_end_latency_seconds", "histogram"),
        ("walpost_publish_latency_seconds", "histogram"),
        ("walpost_oldest_unconfirmed_age_seconds", "gauge"),
        ("walpost_confirmed_flush_age_seconds", "gauge"),
        ("walpost_messages_published_total", "counter"),
        ("walpost_bytes_published_total", "counter"),
        ("walpost_messages_failed_total", "counter"),
        ("walpost_messages_parked_total", "counter"),
        ("walpost_parked_messages", "gauge"),
        ("walpost_messages_skipped_total", "counter"),
        ("walpost_retries_total", "counter"),
        ("walpost_in_flight_messages", "gauge"),
        ("walpost_in_flight_bytes", "gauge"),
        ("walpost_slot_lag_bytes", "gauge"),
        ("walpost_slot_retained_wal_bytes", "gauge"),
        ("walpost_slot_safe_wal_bytes", "gauge"),
        ("walpost_slot_wal_status", "gauge"),
        ("walpost_leader", "gauge"),
        ("walpost_connected", "gauge"),
        ("walpost_outbox_rows", "gauge"),
        ("walpost_spill_bytes_total", "counter"),
        ("walpost_clock_skew_seconds", "gauge"),
        ("walpost_build_info", "gauge"),
        ("process_resident_memory_bytes", "gauge"),
        ("process_cpu_seconds_total", "counter"),
        ("process_open_fds", "gauge"),
        ("process_start_time_seconds", "gauge"),
    ] {
        assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name} in\n{text}");
        assert!(text.contains(&format!("# HELP {name} ")), "{name}");
    }
    for line in [
        "walpost_messages_published_total 0",
        "walpost_bytes_published_total 0",
        "walpost_messages_failed_total{reason=\"too_large\"} 0",
        "walpost_retries_total{reason=\"unreachable\",target=\"postgres\"} 0",
        "walpost_connected{target=\"kafka\"} 0",
        "walpost_connected{target=\"postgres\"} 0",
        "walpost_slot_wal_status{status=\"unknown\"} 1",
        "walpost_slot_lag_bytes NaN",
        "walpost_state{state=\"starting\"} 1",
        "walpost_build_info{librdkafka=\"2.12.1\",version=\"1.2.3\"} 1",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} in\n{text}");
    }
}

#[test]
fn the_gauges_follow_the_status() {
    let telemetry = telemetry();
    telemetry.set_state(State::Standby, "", "");
    telemetry.connected(Target::Kafka, EndStatus::connected());
    telemetry.connected(Target::Postgres, EndStatus::failed("refused"));
    telemetry.update(|status| {
        status.lag_bytes = Some(5);
        status.parked.messages = Some(2);
        status.slot.wal_status = Some(WalStatus::Extended);
        status.slot.safe_wal_bytes = Some(-8);
    });
    telemetry.metrics.spilled(100);
    telemetry.metrics.spilled(140);
    telemetry.confirmed_at(Instant::now());
    let text = telemetry.metrics_text().unwrap();
    for line in [
        "walpost_state{state=\"standby\"} 1",
        "walpost_state{state=\"starting\"} 0",
        "walpost_connected{target=\"kafka\"} 1",
        "walpost_connected{target=\"postgres\"} 0",
        "walpost_slot_lag_bytes 5",
        "walpost_slot_safe_wal_bytes -8",
        "walpost_parked_messages 2",
        "walpost_slot_wal_status{status=\"extended\"} 1",
        "walpost_slot_wal_status{status=\"unknown\"} 0",
        "walpost_spill_bytes_total 140",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} in\n{text}");
    }
    assert!(!text.contains("walpost_confirmed_flush_age_seconds NaN"), "{text}");
}

#[test]
fn the_age_of_the_oldest_row_grows_while_the_loop_stands_still() {
    let telemetry = telemetry();
    assert_eq!(telemetry.status().oldest_unconfirmed_seconds, None);
    telemetry.oldest_unconfirmed(Instant::now().checked_sub(Duration::from_secs(5)));
    assert!(telemetry.status().oldest_unconfirmed_seconds.unwrap() >= 5.0);
    assert!(!telemetry.metrics_text().unwrap().contains("walpost_oldest_unconfirmed_age_seconds 0\n"));
}

#[test]
fn ten_thousand_topics_make_a_hundred_series_and_lose_no_count() {
    let telemetry = telemetry();
    for topic in 0..10_000 {
        let topic = telemetry.metrics.topic(&format!("topic-{topic}"));
        topic.published(2, 20);
        topic.observe_end_to_end(Duration::from_millis(3), 2);
    }
    let text = telemetry.metrics_text().unwrap();
    assert_eq!(text.matches("walpost_end_to_end_latency_seconds_count{").count(), metrics::TOPICS_MAX + 1);
    assert!(text.contains("walpost_messages_published_total 20000\n"), "{text}");
    assert!(text.contains("walpost_bytes_published_total 200000\n"));
    assert!(text.contains("walpost_end_to_end_latency_seconds_count{topic=\"topic-99\"} 2\n"));
    assert!(text.contains("walpost_end_to_end_latency_seconds_count{topic=\"other\"} 19800\n"));
}

#[test]
fn a_batch_is_observed_as_its_single_rows_are() {
    let telemetry = telemetry();
    let topic = telemetry.metrics.topic("orders");
    topic.observe_end_to_end(Duration::from_millis(30), 1);
    topic.observe_end_to_end(Duration::from_millis(30), 999);
    telemetry.metrics.observe_publish(Duration::from_secs(1), 10);
    let text = telemetry.metrics_text().unwrap();
    for line in [
        "walpost_end_to_end_latency_seconds_bucket{topic=\"orders\",le=\"0.025\"} 0",
        "walpost_end_to_end_latency_seconds_bucket{topic=\"orders\",le=\"0.05\"} 1000",
        "walpost_publish_latency_seconds_bucket{le=\"0.5\"} 0",
        "walpost_publish_latency_seconds_bucket{le=\"1\"} 10",
        "walpost_publish_latency_seconds_sum 10",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} in\n{text}");
    }
}

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Captured {
    type Writer = Captured;

    fn make_writer(&'a self) -> Captured {
        self.clone()
    }
}

#[test]
fn a_state_is_logged_once_for_each_change_and_as_loud_as_it_is_bad() {
    let captured = Captured::default();
    let subscriber = tracing_subscriber::fmt().with_writer(captured.clone()).with_ansi(false).without_time().finish();
    tracing::subscriber::with_default(subscriber, || {
        let telemetry = telemetry();
        for _ in 0..3 {
            telemetry.set_state(State::Streaming, "up to date", "");
        }
        for _ in 0..3 {
            telemetry.set_state(State::Stalled, "no broker answers", "start a broker");
        }
        telemetry.set_state(State::Stalled, "every broker refuses", "look at its log");
        telemetry.set_state(State::Gap, "the slot was moved", "walpost recover");
    });
    let log = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = log.lines().map(str::trim_start).collect();
    assert_eq!(lines.len(), 4, "{log}");
    assert!(lines[0].starts_with("INFO ") && lines[0].contains("streaming: up to date"), "{log}");
    assert!(lines[1].starts_with("WARN ") && lines[1].contains("remedy=\"start a broker\""), "{log}");
    assert!(lines[2].starts_with("WARN ") && lines[2].contains("every broker refuses"), "{log}");
    assert!(lines[3].starts_with("ERROR ") && lines[3].contains("previous=\"stalled\""), "{log}");
}
