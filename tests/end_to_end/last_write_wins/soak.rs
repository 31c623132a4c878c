//! The same under constant load, with kills at the moments that matter, partitions that are added, and a relay that is frozen
//! while another one takes over. `WALPOST_TEST_ROUNDS=60` is the long form.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// When a relay is killed.
#[derive(Clone, Copy, Debug)]
enum Kill {
    Anywhere,
    /// A message is about to be set aside, and its row waits for the table.
    BeforeThePark,
    AfterThePark,
    /// Kafka has confirmed what the record does not say yet.
    BeforeTheRecord,
    /// The record says what Postgres was perhaps not told.
    AfterTheRecord,
}

const KILLS: [Kill; 5] =
    [Kill::BeforeThePark, Kill::AfterTheRecord, Kill::BeforeTheRecord, Kill::AfterThePark, Kill::Anywhere];

/// The partitions that the topic has, one count after the other.
const LAYOUTS: [i32; 3] = [3, 5, 8];
const ROOM: &str = "3000";

/// What was committed: one writer at a time, so that numbers are in commit order.
struct Ledger {
    sql: Sql,
    random: Random,
    number: u64,
    last: HashMap<String, u64>,
}

struct Soak<'a> {
    kafka: &'a Kafka,
    scene: Scene,
    topic: String,
    ledger: Mutex<Ledger>,
    stop: AtomicBool,
}

/// Ends the writer also where the test fails.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a> Soak<'a> {
    fn new(kafka: &'a Kafka, postgres: &Postgres) -> Soak<'a> {
        let scene = Scene::new(postgres, kafka, Table::Walpost);
        let topic = format!("soak-{}", unique());
        kafka.create_topic(&topic, LAYOUTS[0], &[("max.message.bytes", ROOM), ("cleanup.policy", "compact")]);
        let ledger = Ledger { sql: scene.sql(), random: Random::new(11), number: 0, last: HashMap::new() };
        Soak { kafka, scene, topic, ledger: Mutex::new(ledger), stop: AtomicBool::new(false) }
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// One row of a key, or of any.
    fn write(&self, key: Option<String>, bytes: usize) {
        let mut ledger = self.ledger();
        ledger.number += 1;
        let number = ledger.number;
        let key = key.unwrap_or_else(|| format!("key-{}", ledger.random.below(40)));
        let noise = noise(&mut Random::new(number), bytes);
        ledger.sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
             values ('a', '{key}', 'e', '{}', '{{\"n\": {number}, \"noise\": \"{noise}\"}}')",
            self.topic
        ));
        ledger.last.insert(key, number);
    }

    fn committed(&self) -> u64 {
        self.ledger().number
    }

    fn load(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            // One in eighty is too large, most of the time.
            let bytes = if self.ledger().random.below(80) == 0 { 8_000 } else { 20 };
            self.write(None, bytes);
            pace(Instant::now() + Duration::from_millis(4));
        }
    }

    #[track_caller]
    fn wait_committed(&self, more: u64) {
        let until = self.committed() + more;
        wait_for(seconds(40), "rows under way", || self.committed() >= until);
    }

    fn retry(&self) {
        let retry = self.scene.walpost("parked retry --all").output(seconds(20));
        assert!(retry.code == 0, "{}", retry.stderr);
    }

    /// Kills the relay at that moment.
    fn kill(&self, relay: &Walpost, when: Kill, round: u64) {
        let sql = self.scene.sql();
        let poison = format!("poison-{round}");
        match when {
            Kill::Anywhere => {
                let rows = 1 + self.ledger().random.below(200);
                self.wait_committed(rows);
                relay.kill9();
            }
            Kill::BeforeThePark => {
                let waiting = "select exists (select from pg_locks where not granted
                               and relation = 'walpost.parked_messages'::regclass)";
                sql.execute("begin; lock table walpost.parked_messages in share mode");
                self.write(Some(poison), 8_000);
                wait_for(seconds(40), "a park that waits", || sql.is_true(waiting));
                relay.kill9();
                sql.execute("rollback");
            }
            Kill::AfterThePark => {
                self.write(Some(poison.clone()), 8_000);
                let parked =
                    format!("select exists (select from walpost.parked_messages where key = '{poison}'::bytea)");
                wait_for(seconds(40), "a parked message", || sql.is_true(&parked));
                relay.kill9();
            }
            Kill::BeforeTheRecord => {
                sql.execute("begin; select from walpost.checkpoint for update");
                let before = relay.published();
                // A message to be set aside waits behind the record, and everything behind it.
                wait_for(seconds(40), "deliveries", || relay.published() > before + 20 || relay.state() == "stalled");
                relay.kill9();
                sql.execute("rollback");
            }
            Kill::AfterTheRecord => {
                let record = "select confirmed_lsn from walpost.checkpoint";
                let before = sql.value(record);
                wait_for(seconds(40), "a record", || sql.value(record) != before);
                relay.kill9();
            }
        }
    }

    /// All that was set aside is published, and the relay has told of everything.
    fn settle(&self) {
        self.kafka.alter_topic(&self.topic, &[("max.message.bytes", "100000")]);
        let relay = self.scene.walpost("run").spawn();
        relay.wait_state("streaming", seconds(60));
        wait_for(seconds(90), "nothing to be parked any more", || {
            self.retry();
            relay.try_status().is_some_and(|status| {
                status["parked"]["messages"].as_u64() == Some(0) && status["in_flight"]["messages"].as_u64() == Some(0)
            })
        });
        relay.stop();
        self.scene.catch_up(seconds(60));
        self.retry();
    }

    /// In the partition that a key has now, the last record of the key is its last row; where it has none there, it is the last
    /// one in the partition that it had before, and so on. `frozen`: old records may have been appended late; then it is the one
    /// with the largest token, wherever it is.
    #[track_caller]
    fn assert_last_writes_win(&self, layouts: &[i32], frozen: bool) {
        let ledger = self.ledger();
        let mut seen = std::collections::HashSet::new();
        let mut places: HashMap<(String, i32), u64> = HashMap::new();
        let mut newest: HashMap<String, (Token, u64)> = HashMap::new();
        for record in self.kafka.read(&[&self.topic]) {
            let token = Token::parse(&record.header("token").expect("a token")).expect("a token");
            let key = String::from_utf8(record.key.expect("a key")).expect("text");
            let value: serde_json::Value = serde_json::from_slice(&record.value.expect("a value")).expect("JSON");
            let n = value["n"].as_u64().expect("a number");
            seen.insert(n);
            places.insert((key.clone(), record.partition), n);
            let known = newest.entry(key).or_insert((token, n));
            if token >= known.0 {
                *known = (token, n);
            }
        }
        let missing: Vec<u64> = (1..=ledger.number).filter(|n| !seen.contains(n)).collect();
        assert!(missing.is_empty(), "{} of {} rows are missing: {missing:?}", missing.len(), ledger.number);
        let mut wrong = Vec::new();
        for (key, last) in &ledger.last {
            let by_place = layouts
                .iter()
                .rev()
                .find_map(|&count| places.get(&(key.clone(), partition(key.as_bytes(), count))).copied());
            if by_place != Some(*last) {
                wrong.push(format!("{key}: {by_place:?} instead of {last}"));
            }
            assert_eq!(newest[key].1, *last, "{key}: the largest token is not the last row's");
        }
        println!("{} rows, {} keys; last by place is not last by commit: {wrong:?}", ledger.number, ledger.last.len());
        assert!(frozen || wrong.is_empty(), "{wrong:?}");
    }
}

fn rounds(few: u64) -> u64 {
    std::env::var("WALPOST_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(few)
}

#[test]
fn through_kills_at_the_moments_that_matter_and_partitions_that_are_added() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let (soak, rounds) = (Soak::new(kafka, &postgres), rounds(5));
    thread::scope(|scope| {
        let stopping = Stopping(&soak.stop);
        scope.spawn(|| soak.load());
        for round in 0..rounds {
            let relay = soak.scene.walpost("run").spawn();
            relay.wait_log("streaming goes on after", seconds(40));
            for (at, &count) in LAYOUTS.iter().enumerate().skip(1) {
                if round == rounds * at as u64 / 3 {
                    kafka.add_partitions(&soak.topic, count as usize);
                }
            }
            soak.retry();
            soak.wait_committed(60);
            soak.kill(&relay, KILLS[round as usize % KILLS.len()], round);
            if round % 7 == 6 {
                // Now and then all of it fits, and what is parked flows.
                kafka.alter_topic(&soak.topic, &[("max.message.bytes", "100000")]);
                soak.retry();
                let relay = soak.scene.walpost("run").spawn();
                relay.wait_published(50, seconds(60));
                relay.kill9();
                kafka.alter_topic(&soak.topic, &[("max.message.bytes", ROOM)]);
            }
        }
        drop(stopping);
    });
    soak.settle();
    soak.assert_last_writes_win(&LAYOUTS, false);
}

/// Frozen for twice as long as the server waits for it, with a standby beside it: it has lost the slot when it wakes, and what
/// it still sends is old.
#[test]
fn through_a_relay_that_was_frozen_until_another_one_took_over() {
    let kafka = Kafka::shared();
    let postgres = Postgres::builder(MAJOR).conf("wal_sender_timeout = '3s'").start();
    let (soak, rounds) = (Soak::new(kafka, &postgres), rounds(1).div_ceil(10));
    thread::scope(|scope| {
        let stopping = Stopping(&soak.stop);
        scope.spawn(|| soak.load());
        let mut relay = soak.scene.walpost("run").spawn();
        relay.wait_published(50, seconds(40));
        for _ in 0..rounds {
            let standby = soak.scene.walpost("run").spawn();
            standby.wait_state("standby", seconds(40));
            soak.retry();
            relay.pause();
            let frozen = Instant::now();
            standby.wait_published(20, seconds(60));
            hold(seconds(6).saturating_sub(frozen.elapsed()), "the standby streams", || standby.is_running());
            relay.resume();
            relay.wait_state("standby", seconds(60));
            relay.stop();
            relay = standby;
            soak.wait_committed(50);
        }
        drop(stopping);
        relay.stop();
    });
    soak.settle();
    soak.assert_last_writes_win(&LAYOUTS[..1], true);
}
