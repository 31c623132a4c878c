//! Everything that takes part: three brokers and a Postgres, each behind proxies, an outbox under load, two relays with a
//! supervisor that starts them again. Knows how to hurt each part and how to heal it; which, and when, is not its matter.

use std::fs;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::diary::Diary;
use crate::kit::*;
use crate::plan::BROKERS;

/// What the brokers give every topic. Time of arrival, so that the evidence shows when a record came; leaders that soon
/// go back to where they were.
const BROKER: [&str; 4] = [
    "min.insync.replicas=2",
    "log.message.timestamp.type=LogAppendTime",
    "leader.imbalance.check.interval.seconds=15",
    // A broker that is killed is missed soon.
    "broker.session.timeout.ms=6000",
];

/// Rows for topics that come into being.
const NEW_ROWS: u64 = 300;

/// Settings of the relays, in turn. The window: the default, and such that one transaction is larger. How long records
/// gather: as by default, and so long that batches get large, which is what a topic's limit can refuse.
const SETTINGS: [(&str, &str); 3] = [("50000", "1"), ("300", "20"), ("3000", "50")];

/// States that only a person ends: nothing that happens here may lead there.
const STANDSTILLS: [&str; 4] = ["gap", "lost", "publication_changed", "stopped"];

/// Faults that overlap may keep the relays from their work for a while. Longer than this is no while.
const STANDSTILL_MAX: Duration = seconds(120);

/// A relay that is frozen, or whose line is, cannot let go: then Postgres waits for its own `wal_sender_timeout`.
const SHUTDOWN_MAX: Duration = seconds(30);

/// `shutdown.timeout` is 25 s. The last words after it have bounds of their own, 15 s in all where both ends hang: a status
/// frame and the end of the stream 5 s each, the record 3 s, requests under way 2 s.
const STOP_MAX: Duration = seconds(45);

/// A process that is so young may not have come to its `main` yet, and dies of SIGTERM like any other.
const YOUNG: Duration = seconds(1);

pub struct Relay {
    /// `a` or `b`.
    name: char,
    /// The latest, running or ended. None before the first start and while the supervisor waits.
    process: Option<Walpost>,
    /// Between it and Postgres.
    pub line: Proxy,
    starts: usize,
    started_at: Instant,
    pub frozen: bool,
    /// At the last look.
    published: u64,
    state: String,
}

pub struct Arena {
    pub diary: Diary,
    pub kafka: Kafka,
    pub postgres: Postgres,
    pub scene: Scene,
    pub relays: [Relay; 2],
    pub topics: Vec<String>,
    new_topics: Vec<String>,
    new_rows: Vec<JoinHandle<Vec<Expected>>>,
    /// SIGSTOPped, and not yet continued.
    frozen_walsender: Option<i32>,
    altering: Option<JoinHandle<()>>,
    logs: PathBuf,
    pub read_back: bool,
    looked_at: Instant,
    pub progress: Progress,
}

/// What was seen of the relays over the whole run.
pub struct Progress {
    /// The last delivery that was seen.
    pub moved_at: Instant,
    /// The longest time without a delivery, and when it ended.
    pub standstill: (Duration, Instant),
    pub memory_peak: u64,
    pub starts: usize,
    /// Of Postgres, fast.
    pub shutdown_longest: Duration,
    /// From SIGTERM to the end of a relay.
    pub stop_longest: Duration,
}

impl Arena {
    /// `logs`: a folder that outlives the run. `read_back`: the relays' setting.
    pub fn build(logs: PathBuf, mut diary: Diary, read_back: bool) -> Arena {
        diary.note("three brokers and a Postgres are started");
        let kafka = Kafka::builder().brokers(BROKERS).heap("256m").proxied();
        let kafka = BROKER.iter().fold(kafka, |kafka, line| kafka.property(line)).start();
        // A relay that froze is missed after so long; a crash takes the slot back to the last checkpoint.
        let postgres =
            Postgres::builder(MAJOR).conf("wal_sender_timeout = 8s").conf("checkpoint_timeout = 30s").start();
        let scene = Scene::new(&postgres, &kafka, Table::Walpost);
        let relay = |name| Relay {
            name,
            process: None,
            line: Proxy::before(postgres.port),
            starts: 0,
            started_at: Instant::now(),
            frozen: false,
            published: 0,
            state: String::new(),
        };
        let now = Instant::now();
        Arena {
            diary,
            relays: [relay('a'), relay('b')],
            kafka,
            postgres,
            scene,
            topics: Vec::new(),
            new_topics: Vec::new(),
            new_rows: Vec::new(),
            frozen_walsender: None,
            altering: None,
            logs,
            read_back,
            looked_at: now,
            progress: Progress {
                moved_at: now,
                standstill: (Duration::ZERO, now),
                memory_peak: 0,
                starts: 0,
                shutdown_longest: Duration::ZERO,
                stop_longest: Duration::ZERO,
            },
        }
    }

    pub fn create_topics(&mut self, workload: &Workload, partitions: i32) {
        for topic in workload.topics() {
            self.kafka.create_topic(&topic, partitions, &[]);
            self.topics.push(topic);
        }
    }

    /// As fast as they can be written, beside the load.
    pub fn write_to_new_topics(&mut self) {
        let workload = self.scene.workload().writers(2).rows(NEW_ROWS);
        self.new_topics.extend(workload.topics());
        self.new_rows.push(thread::spawn(move || workload.run()));
    }

    /// Every topic, and every row that was committed to those that came into being.
    pub fn all_new(&mut self) -> Vec<Expected> {
        let new = std::mem::take(&mut self.new_topics);
        self.topics.extend(new);
        self.new_rows.drain(..).flat_map(|rows| rows.join().expect("writers that did not fail")).collect()
    }

    pub fn topic_names(&self) -> Vec<&str> {
        self.topics.iter().map(String::as_str).collect()
    }

    pub fn start_relay(&mut self, index: usize) {
        let relay = &mut self.relays[index];
        let command = self.scene.walpost("run").env("WALPOST_BROKERS", self.kafka.proxied_bootstrap());
        let command = command.env("WALPOST_DATABASE_URL", self.postgres.url_by(&relay.line, &self.scene.name));
        let (window, linger) = SETTINGS[relay.starts % SETTINGS.len()];
        let command = command.env("WALPOST_WINDOW_MESSAGES", window).env("WALPOST_KAFKA_LINGER_MS", linger);
        let command = command.env("WALPOST_READ_BACK", self.read_back.to_string());
        relay.process = Some(command.spawn());
        (relay.starts, relay.started_at) = (relay.starts + 1, Instant::now());
        self.progress.starts += 1;
        (relay.published, relay.frozen, relay.state) = (0, false, String::new());
    }

    pub fn signal_relay(&mut self, index: usize, signal: i32) {
        let relay = &mut self.relays[index];
        match signal {
            libc::SIGSTOP => relay.frozen = true,
            libc::SIGCONT => relay.frozen = false,
            _ => {}
        }
        relay.process().signal(signal);
    }

    pub fn relay_has_ended(&self, index: usize) -> bool {
        self.relays[index].process.as_ref().is_none_or(|process| !process.is_running())
    }

    /// Takes an ended relay away and keeps its log. `clean`: it was asked to end in good order.
    pub fn bury(&mut self, index: usize, clean: bool) {
        let relay = &mut self.relays[index];
        let Some(process) = relay.process.take() else { return };
        let code = process.exit_code().expect("a relay that has ended");
        let _ = fs::write(self.logs.join(relay.log_name()), process.log());
        let killed_young = code == 128 + libc::SIGTERM && relay.started_at.elapsed() < YOUNG;
        if clean && code != 0 && !killed_young {
            self.diary.finding(format!("relay {} ended with code {code} after SIGTERM", relay.name));
        } else if !clean && code != 128 + libc::SIGKILL {
            self.diary.finding(format!("relay {} ended by itself with code {code}", relay.name));
        }
    }

    /// The relay that holds the slot, as far as it can be known: a frozen one does not say.
    pub fn leader(&self) -> Option<usize> {
        (0..2).find(|&index| {
            let relay = &self.relays[index];
            !relay.frozen && relay.process.as_ref().is_some_and(Walpost::is_leader)
        })
    }

    pub fn is_standby(&self, index: usize) -> bool {
        self.relays[index].state == "standby"
    }

    /// SIGKILL for the walsender, or for a session of the load where nobody streams.
    pub fn kill_backend(&mut self) {
        let any = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()";
        let backend = || {
            let sql = Sql::try_connect(&self.postgres.url("postgres")).ok()?;
            sql.try_rows(any).ok()?.first()?.first()?.as_ref()?.parse().ok()
        };
        match self.postgres.try_walsender(&self.scene.name).or_else(backend) {
            Some(pid) => kill(pid, libc::SIGKILL),
            None => self.diary.note("no session of Postgres to kill"),
        }
    }

    pub fn terminate_walsender(&mut self) {
        let terminate = "select pg_terminate_backend(pid) from pg_stat_replication";
        let Ok(sql) = Sql::try_connect(&self.postgres.url("postgres")) else { return };
        let _ = sql.try_rows(terminate);
    }

    pub fn freeze_walsender(&mut self) {
        self.frozen_walsender = self.postgres.try_walsender(&self.scene.name);
        match self.frozen_walsender {
            Some(pid) => kill(pid, libc::SIGSTOP),
            None => self.diary.note("no walsender to freeze"),
        }
    }

    pub fn thaw_walsender(&mut self) {
        if let Some(pid) = self.frozen_walsender.take() {
            kill(pid, libc::SIGCONT);
        }
    }

    /// Sets or, with None, restores the topics' limit, on a thread of its own: the controller may be away.
    pub fn alter_topics(&mut self, limit: Option<u64>) {
        assert!(self.altering.is_none(), "one at a time");
        let (client, topics, limit) = (self.kafka.client_config(), self.topics.clone(), limit.map(|it| it.to_string()));
        self.altering = Some(thread::spawn(move || {
            let configs: Vec<_> = limit.as_deref().map(|limit| ("max.message.bytes", limit)).into_iter().collect();
            for topic in &topics {
                wait_for(seconds(90), "the brokers to change a topic", || {
                    alter_topic(&client, topic, &configs).is_ok()
                });
            }
        }));
    }

    pub fn topics_are_altered(&mut self) -> bool {
        match self.altering.take_if(|altering| altering.is_finished()) {
            Some(altering) => altering.join().map(|()| true).expect("topics that could be changed"),
            None => self.altering.is_none(),
        }
    }

    pub fn kafka_lines(&self, broker: Option<usize>) -> impl Iterator<Item = &Proxy> {
        let chosen = self.kafka.brokers().iter().enumerate().filter(move |(at, _)| broker.is_none_or(|it| it == *at));
        chosen.filter_map(|(_, broker)| broker.proxy.as_ref())
    }

    /// Looks twice a second at how the relays are, and what they do.
    pub fn look(&mut self) {
        let now = Instant::now();
        if now < self.looked_at + Duration::from_millis(500) {
            return;
        }
        self.looked_at = now;
        for relay in &mut self.relays {
            let Some(process) = relay.process.as_ref().filter(|process| !relay.frozen && process.is_running()) else {
                relay.state.clear();
                continue;
            };
            if let Some(memory) = process.memory() {
                self.progress.memory_peak = self.progress.memory_peak.max(memory.peak);
            }
            let Some(status) = process.try_status() else { continue };
            let published = status["published"].as_u64().unwrap_or(0);
            if published > relay.published {
                relay.published = published;
                self.progress.moved_at = now;
            }
            let state = status["state"].as_str().unwrap_or_default();
            if state != relay.state {
                relay.state = state.to_owned();
                let reason = status["reason"].as_str().unwrap_or_default();
                self.diary.note(&format!("relay {} is {state}: {reason}", relay.name));
                if STANDSTILLS.contains(&state) {
                    self.diary.finding(format!("relay {} is {state}: {reason}", relay.name));
                }
            }
        }
        let standstill = now - self.progress.moved_at;
        if standstill > STANDSTILL_MAX && self.progress.standstill.0 <= STANDSTILL_MAX {
            self.diary.finding(format!("no row was delivered for {STANDSTILL_MAX:?}"));
        }
        if standstill > self.progress.standstill.0 {
            self.progress.standstill = (standstill, now);
        }
    }

    pub fn postgres_has_stopped(&mut self, took: Duration) {
        self.diary.note(&format!("Postgres took {:.1} s for its shutdown", took.as_secs_f64()));
        self.progress.shutdown_longest = self.progress.shutdown_longest.max(took);
        if took > SHUTDOWN_MAX {
            self.diary.finding(format!("a fast shutdown of Postgres took {took:?}"));
        }
    }

    pub fn relay_has_stopped(&mut self, index: usize, took: Duration) {
        self.progress.stop_longest = self.progress.stop_longest.max(took);
        if took > STOP_MAX {
            self.diary.finding(format!("relay {} took {took:?} from SIGTERM to its end", self.relays[index].name));
        }
        self.bury(index, true);
    }

    /// Before the load: what stood still until then does not count.
    pub fn begin_measuring(&mut self) {
        let now = Instant::now();
        (self.progress.moved_at, self.progress.standstill) = (now, (Duration::ZERO, now));
    }
}

impl Relay {
    fn process(&self) -> &Walpost {
        self.process.as_ref().expect("a relay that was started")
    }

    fn log_name(&self) -> String {
        format!("relay-{}-{:03}.log", self.name, self.starts)
    }
}

impl Drop for Arena {
    /// The servers' folders are removed with them.
    fn drop(&mut self) {
        for relay in &self.relays {
            if let Some(process) = &relay.process {
                let _ = fs::write(self.logs.join(relay.log_name()), process.log());
            }
        }
        for broker in self.kafka.brokers() {
            let _ = fs::copy(broker.log_path(), self.logs.join(format!("kafka-{}.log", broker.id)));
        }
        let _ = fs::copy(self.postgres.log_path(), self.logs.join("postgres.log"));
    }
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: a plain system call; the pid was a child of the server's a moment ago.
    unsafe { libc::kill(pid, signal) };
}
