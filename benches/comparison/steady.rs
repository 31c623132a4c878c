//! One-row commits at a steady rate, and the empty outbox: what relaying costs while little or nothing waits. A latency is the
//! broker's append time minus the server's clock inside the insert: it has the commit in it, and no consumer.

use std::time::{Duration, Instant};

use super::drain::{Figures, wait_delivered};
use super::kit::{Sql, pace};
use super::load;
use super::meter::{Reading, cpu_s, now_s, peak_rss_mb};
use super::relay::Relay;
use super::servers::Servers;
use super::spec::{Peer, Spec};

/// For the rows that are left when the writers have ended.
const DELIVER_WITHIN_S: u64 = 180;

pub fn run(servers: &Servers, spec: &Spec) -> Figures {
    let table = spec.peer.table();
    let (relay, slot) = ready(servers, spec);
    let total = spec.warm_up + spec.seconds;
    let reader = spec.old_snapshot.then(|| {
        let reader = Sql::connect(&servers.url);
        reader.execute(&format!("begin isolation level repeatable read; select count(*) from {table}"));
        reader
    });
    servers.sql.execute("checkpoint");
    let writer = load::steady(servers, spec, total);
    pace(Instant::now() + Duration::from_secs(spec.warm_up));
    let pid = relay.as_ref().map(Relay::pid);
    let sender = || relay.as_ref().and_then(|_| servers.walsender(&slot)).and_then(cpu_s);
    let sender_before = sender();
    let rows_before = inserted(servers, table);
    let start = Reading::take(servers, pid, table);
    load::finish(&writer, total);
    let used = Reading::take(servers, pid, table).since(&start);
    let rows_measured = (inserted(servers, table) - rows_before).max(1.0);

    let mut figures = costs(&used, pid);
    if let (Some(before), Some(after)) = (sender_before, sender()) {
        figures.insert("walsender_cpu_s".to_owned(), after - before);
    }
    figures.insert("wal_bytes".to_owned(), used.wal_bytes / rows_measured);
    figures.insert("scans".to_owned(), used.scans);
    figures.insert("statements".to_owned(), used.statements);
    if let Some(reader) = reader {
        reader.execute("commit");
    }
    servers.sql.execute("select pg_stat_force_next_flush()");
    let one = |expression: &str| servers.sql.number(&format!("select {expression}")) as f64;
    figures.insert("dead_rows".to_owned(), one(&format!("pg_stat_get_dead_tuples('{table}'::regclass)")));
    figures.insert("table_mb".to_owned(), one(&format!("pg_total_relation_size('{table}')")) / 1e6);
    let rows = one(&format!("count(*) from {table}"));
    figures.insert("rate_reached".to_owned(), rows / total as f64);
    if let Some(relay) = &relay {
        relay.check();
    }
    if spec.peer.writes_kafka() {
        let complete = wait_delivered(servers, spec, rows as u64, DELIVER_WITHIN_S);
        assert!(complete, "{} did not deliver {rows} rows within {DELIVER_WITHIN_S} s", spec.peer.name());
        latencies(servers, spec, start.time_s, &mut figures);
    }
    end(servers, relay, &slot);
    figures
}

/// An empty outbox.
pub fn idle(servers: &Servers, spec: &Spec) -> Figures {
    let (relay, slot) = ready(servers, spec);
    pace(Instant::now() + Duration::from_secs(spec.warm_up));
    let pid = relay.as_ref().map(Relay::pid);
    let start = Reading::take(servers, pid, spec.peer.table());
    pace(Instant::now() + Duration::from_secs(spec.seconds));
    let used = Reading::take(servers, pid, spec.peer.table()).since(&start);
    if let Some(relay) = &relay {
        relay.check();
    }
    let mut figures = costs(&used, pid);
    figures.insert("commits".to_owned(), used.commits);
    figures.insert("wal_bytes".to_owned(), used.wal_bytes);
    end(servers, relay, &slot);
    figures
}

/// An empty table, empty topics and a relay that reads.
fn ready(servers: &Servers, spec: &Spec) -> (Option<Relay>, String) {
    servers.fresh_table_of(spec.peer);
    servers.fresh_topics(spec);
    servers.rest();
    let slot = servers.new_slot(spec.peer);
    let relay = (spec.peer != Peer::None).then(|| Relay::start(servers, spec.peer, &slot, None));
    if let Some(relay) = &relay {
        relay.wait_reading(servers);
    }
    (relay, slot)
}

fn end(servers: &Servers, relay: Option<Relay>, slot: &str) {
    if let Some(relay) = relay {
        relay.stop();
    }
    servers.drop_slot(slot);
    // Autovacuum of it would write log while others are measured.
    servers.drop_polled_table();
}

fn costs(used: &Reading, relay: Option<i32>) -> Figures {
    let mut figures = Figures::new();
    figures.insert("seconds".to_owned(), used.time_s);
    figures.insert("postgres_cpu_s".to_owned(), used.postgres_cpu_s);
    figures.insert("kafka_cpu_s".to_owned(), used.kafka_cpu_s);
    if let Some(relay) = relay {
        figures.insert("relay_cpu_s".to_owned(), used.relay_cpu_s);
        figures.insert("peak_rss_mb".to_owned(), peak_rss_mb(relay).unwrap_or(0.0));
    }
    figures
}

/// Rows that were given an id so far: a look that does not scan the table.
fn inserted(servers: &Servers, table: &str) -> f64 {
    let last = format!("select coalesce(pg_sequence_last_value(pg_get_serial_sequence('{table}', 'id')), 0)");
    servers.sql.number(&last) as f64
}

/// Of the rows that were inserted since then.
fn latencies(servers: &Servers, spec: &Spec, since_s: f64, figures: &mut Figures) {
    let topics = spec.topic_names();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let mut taken = Vec::new();
    let mut delivered = 0.0;
    servers.kafka.scan(&topics, |seen| {
        delivered += 1.0;
        let value: serde_json::Value = serde_json::from_slice(&seen.value.unwrap_or_default()).unwrap_or_default();
        let inserted_ms = value["at"].as_f64().unwrap_or(0.0) / 1000.0;
        if inserted_ms >= since_s * 1000.0 {
            taken.push(seen.timestamp as f64 - inserted_ms);
        }
    });
    assert!(!taken.is_empty(), "no row was inserted between {since_s} and {}", now_s());
    taken.sort_by(f64::total_cmp);
    let at = |share: f64| taken[((taken.len() as f64 * share) as usize).min(taken.len() - 1)];
    for (name, share) in [("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999), ("max_ms", 1.0)] {
        figures.insert(name.to_owned(), at(share));
    }
    figures.insert("delivered".to_owned(), delivered);
    figures.insert("measured".to_owned(), taken.len() as f64);
}
