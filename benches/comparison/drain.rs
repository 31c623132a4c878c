//! A backlog is made once for all that can share it; each run reads it on a copy of the slot that stood before it, and ends
//! when the topics' end offsets add up to the rows. Times are the broker's, so that no consumer competes for the cores.

use std::collections::BTreeMap;
use std::time::Duration;

use super::kit::{pace, seconds};
use super::load;
use super::meter::{Reading, cpu_s, now_s, peak_rss_mb};
use super::relay::Relay;
use super::servers::Servers;
use super::spec::{Peer, Spec};

/// What a run measured: name, which ends in its unit, to value.
pub type Figures = BTreeMap<String, f64>;

const MASTER: &str = "bench_master";

/// Until a run is given up.
const GIVE_UP_S: f64 = 1200.0;

/// Between two looks at the topics.
const LOOK: Duration = Duration::from_millis(100);

/// Above this, times are those at which the harness saw the offsets: to ask for each partition's records takes too long.
const TOPICS_TIMED_BY_BROKER: u64 = 10;

/// A backlog in the log that all its readers share.
pub struct Backlog {
    spec: Spec,
    /// The position behind its last row.
    end: String,
}

/// Runs a drain. `shared` is the backlog that is there.
pub fn run(servers: &Servers, spec: &Spec, shared: &mut Option<Backlog>) -> Figures {
    let mut end = None;
    if spec.peer == Peer::Polling {
        // It marks its rows, so its backlog is made again for each run, in a table of its own.
        eprintln!("bench:   making the backlog");
        servers.fresh_polled_table();
        load::backlog(servers, spec);
    } else {
        if !shared.as_ref().is_some_and(|there| there.spec.same_backlog(spec)) {
            *shared = None;
            eprintln!("bench:   making the backlog");
            servers.fresh_table();
            servers.set_up_walpost(MASTER);
            load::backlog(servers, spec);
            *shared = Some(Backlog { spec: spec.clone(), end: servers.sql.value("select pg_current_wal_lsn()") });
        }
        end = shared.as_ref().map(|there| there.end.clone());
    }
    servers.fresh_topics(spec);
    servers.rest();
    let slot = if spec.peer.reads_slot() { servers.copy_slot(MASTER, spec.peer) } else { String::new() };
    // Writes log past the end, which shows a reader that it got there.
    servers.sql.execute("checkpoint");

    let start = Reading::take(servers, None, spec.peer.table());
    let relay = Relay::start(servers, spec.peer, &slot, end.as_deref());
    let mut figures = watch(servers, spec, &relay, &start);
    relay.stop();
    if spec.peer.writes_kafka() {
        let delivered = servers.delivered(spec);
        assert_eq!(
            delivered,
            spec.rows,
            "records in Kafka after {} has ended, and the rows that were committed",
            spec.peer.name()
        );
        figures.insert("delivered".to_owned(), delivered as f64);
    } else if let Some(end) = &end {
        // Its rows go where nobody counts them.
        let reached = servers.confirmed_up_to(&slot, end);
        assert!(reached, "{} has ended and has not confirmed the end of the backlog, {end}", spec.peer.name());
    }
    if spec.peer.reads_slot() {
        servers.drop_slot(&slot);
    } else {
        // No autovacuum of it while others are measured.
        servers.drop_polled_table();
    }
    figures
}

fn watch(servers: &Servers, spec: &Spec, relay: &Relay, start: &Reading) -> Figures {
    let rows = spec.rows as f64;
    let (mut walsender, mut walsender_cpu) = (None, None);
    let (mut relay_cpu, mut rss) = (0.0, 0.0);
    let (mut seen_first, mut half) = (None, None);
    let deadline = now_s() + GIVE_UP_S;
    loop {
        // Before the question, so that the second half is rather too long than too short.
        let asked = now_s();
        let delivered = if spec.peer.writes_kafka() { servers.delivered(spec) } else { 0 };
        if spec.peer.reads_slot() {
            walsender = walsender.or_else(|| servers.walsender(&relay.slot));
        }
        walsender_cpu = walsender.and_then(cpu_s).or(walsender_cpu);
        relay_cpu = cpu_s(relay.pid()).unwrap_or(0.0).max(relay_cpu);
        rss = peak_rss_mb(relay.pid()).unwrap_or(rss);
        let now = now_s();
        if delivered > 0 {
            seen_first = seen_first.or(Some(now));
        }
        if half.is_none() && delivered * 2 >= spec.rows {
            half = Some((asked, delivered as f64));
        }
        if spec.peer.writes_kafka() {
            if delivered >= spec.rows {
                break;
            }
            relay.check();
        } else if let Some(code) = relay.exit_code() {
            assert_eq!(code, 0, "{} failed\n{}", spec.peer.name(), relay.log_tail());
            break;
        }
        assert!(now < deadline, "{delivered} of {rows} rows after {GIVE_UP_S} s\n{}", relay.log_tail());
        pace(std::time::Instant::now() + LOOK);
    }
    let used = Reading::take(servers, None, spec.peer.table()).since(start);
    let (first, last) = match spec.peer.writes_kafka() {
        true if spec.topics <= TOPICS_TIMED_BY_BROKER => servers.append_times(&servers.ends(spec)),
        true => (seen_first.unwrap_or(relay.started_s), now_s()),
        false => (relay.started_s, now_s()),
    };
    let duration = (last - first).max(0.001);
    let mut figures = Figures::new();
    let mut put = |name: &str, value: f64| figures.insert(name.to_owned(), value);
    put("rate", rows / duration);
    put("us_per_row", duration * 1e6 / rows);
    put("mb_per_s", rows * spec.payload as f64 / 1e6 / duration);
    put("rate_with_start", rows / (last - relay.started_s).max(0.001));
    if spec.peer.writes_kafka() {
        put("start_s", first - relay.started_s);
        put("kafka_cpu_us", used.kafka_cpu_s * 1e6 / rows);
        if let Some((at, delivered)) = half.filter(|&(at, delivered)| delivered < rows && last - at > 0.05) {
            put("rate_second_half", (rows - delivered) / (last - at));
        }
    }
    put("peak_rss_mb", rss);
    put("relay_cpu_us", relay_cpu * 1e6 / rows);
    put("postgres_cpu_us", used.postgres_cpu_s * 1e6 / rows);
    if let Some(walsender_cpu) = walsender_cpu {
        put("walsender_cpu_us", walsender_cpu * 1e6 / rows);
    }
    put("wal_bytes", used.wal_bytes / rows);
    figures
}

/// Waits until a table's rows are all in Kafka; false where they are not within the bound.
pub fn wait_delivered(servers: &Servers, spec: &Spec, rows: u64, bound_s: u64) -> bool {
    let deadline = std::time::Instant::now() + seconds(bound_s);
    while servers.delivered(spec) < rows {
        if std::time::Instant::now() > deadline {
            return false;
        }
        pace(std::time::Instant::now() + LOOK);
    }
    true
}
