//! What happens once: a start, a takeover, a restart, an outage of Kafka. walpost alone, but for the start.

use std::time::{Duration, Instant};

use super::drain::{Figures, wait_delivered};
use super::kit::pace;
use super::load;
use super::meter::{now_s, peak_rss_mb};
use super::relay::Relay;
use super::servers::Servers;
use super::spec::{Peer, Spec};

const BOUND_S: u64 = 120;

fn empty(servers: &Servers, spec: &Spec) -> String {
    servers.fresh_table_of(spec.peer);
    servers.fresh_topics(spec);
    servers.rest();
    servers.new_slot(spec.peer)
}

fn one(name: &str, value: f64) -> Figures {
    Figures::from([(name.to_owned(), value)])
}

/// The append of the newest record, once there are so many.
fn appended_s(servers: &Servers, spec: &Spec, records: u64, relay: &Relay) -> f64 {
    let there = wait_delivered(servers, spec, records, BOUND_S);
    assert!(there, "no row arrived within {BOUND_S} s\n{}", relay.log_tail());
    let (_, last) = servers.append_times(&servers.ends(spec));
    servers.rest();
    last
}

pub fn start(servers: &Servers, spec: &Spec) -> Figures {
    let slot = empty(servers, spec);
    load::one_row(servers, spec);
    let relay = Relay::start(servers, spec.peer, &slot, None);
    let figures = one("start_s", appended_s(servers, spec, 1, &relay) - relay.started_s);
    relay.stop();
    servers.drop_slot(&slot);
    figures
}

pub fn takeover(servers: &Servers, spec: &Spec) -> Figures {
    let slot = empty(servers, spec);
    let leader = Relay::start(servers, Peer::Walpost, &slot, None);
    leader.wait_reading(servers);
    let standby = Relay::start(servers, Peer::Walpost, &slot, None);
    standby.wait_standby();
    load::one_row(servers, spec);
    appended_s(servers, spec, 1, &leader);
    let killed = now_s();
    leader.signal(libc::SIGKILL);
    load::one_row(servers, spec);
    let figures = one("takeover_s", appended_s(servers, spec, 2, &standby) - killed);
    leader.stop();
    standby.stop();
    servers.drop_slot(&slot);
    figures
}

pub fn restart(servers: &Servers, spec: &Spec) -> Figures {
    let slot = empty(servers, spec);
    let old = Relay::start(servers, Peer::Walpost, &slot, None);
    old.wait_reading(servers);
    load::one_row(servers, spec);
    appended_s(servers, spec, 1, &old);
    let asked = now_s();
    old.stop();
    let ended = now_s();
    load::one_row(servers, spec);
    let new = Relay::start(servers, Peer::Walpost, &slot, None);
    let mut figures = one("restart_s", appended_s(servers, spec, 2, &new) - asked);
    figures.insert("stop_s".to_owned(), ended - asked);
    new.stop();
    servers.drop_slot(&slot);
    figures
}

/// The load ends when Kafka is back, so that what is measured is the backlog alone.
pub fn outage(servers: &mut Servers, spec: &Spec) -> Figures {
    let slot = empty(servers, spec);
    let relay = Relay::start(servers, spec.peer, &slot, None);
    relay.wait_reading(servers);
    let before = load::steady(servers, spec, spec.warm_up.max(1));
    load::finish(&before, spec.warm_up.max(1));
    servers.kafka.stop();
    let writer = load::steady(servers, spec, spec.seconds);
    load::finish(&writer, spec.seconds);
    servers.kafka.start();
    let back = now_s();
    let rows = servers.sql.number(&format!("select count(*) from {}", spec.peer.table())) as u64;
    let there = wait_delivered(servers, spec, rows, BOUND_S);
    assert!(there, "the backlog of the outage did not arrive within {BOUND_S} s\n{}", relay.log_tail());
    pace(Instant::now() + Duration::from_millis(200));
    let mut figures = one("caught_up_s", servers.append_times(&servers.ends(spec)).1 - back);
    figures.insert("backlog_rows".to_owned(), (spec.rate * spec.seconds) as f64);
    figures.insert("peak_rss_mb".to_owned(), peak_rss_mb(relay.pid()).unwrap_or(0.0));
    figures.insert("repeated".to_owned(), servers.delivered(spec) as f64 - rows as f64);
    relay.stop();
    servers.rest();
    servers.drop_slot(&slot);
    figures
}
