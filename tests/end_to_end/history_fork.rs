//! The history of the log forks: a standby that lacks rows is promoted, a backup is recovered to an earlier point, a disk is
//! put back as it was. What was published and did not survive stays in Kafka; positions are given out a second time. Every
//! row of the surviving history arrives, in order: nothing is skipped because something larger is there.

use std::path::PathBuf;

use crate::kit::*;

mod by_hand;
mod upgrade;

/// How the relay lives through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relay {
    /// It sees the server that is short of log, and the rows as they commit.
    Watching,
    /// It finds the address again only when the log has grown past everything that it knew.
    Late,
    /// Another process, which knows what the server tells it.
    Restarted,
}

/// An outbox behind one address, and what happened to it. Rows 1 to 10 survive, 11 to 20 do not, the others come after.
struct Fork<'a> {
    case: Case<'a>,
    kafka: &'a Kafka,
    proxy: Proxy,
    how: Relay,
    relay: Option<Walpost>,
    /// The end of the log that is lost.
    old_end: String,
}

impl<'a> Fork<'a> {
    fn new(postgres: &Postgres, how: Relay) -> Fork<'a> {
        let (kafka, proxy) = (Kafka::shared(), Proxy::before(postgres.port));
        let mut case = Case::new(postgres, kafka);
        case.sql.execute("create table busy (filler text)");
        case.scene.url = postgres.url_by(&proxy, &case.scene.name);
        Fork { case, kafka, proxy, how, relay: None, old_end: String::new() }
    }

    fn start(&mut self, postgres: &Postgres) {
        self.reconnect(postgres);
        self.relay = Some(self.case.scene.walpost("run").spawn());
    }

    fn relay(&self) -> &Walpost {
        self.relay.as_ref().expect("a relay")
    }

    fn reconnect(&mut self, postgres: &Postgres) {
        self.case.sql = postgres.sql(&self.case.scene.name);
    }

    /// Publishes and confirms 1 to 10.
    fn shared(&self) {
        self.case.insert(1..=10);
        self.case.wait_arrived(&Vec::from_iter(1..=10));
        self.wait_confirmed();
    }

    fn wait_confirmed(&self) {
        let end = self.case.end_of_wal();
        self.case.sql.execute("insert into busy select repeat('x', 1000) from generate_series(1, 2000)");
        wait_for(seconds(40), "all rows to be confirmed", || self.case.is_confirmed(&end));
    }

    /// Publishes and confirms 11 to 20; then the relay goes, or its address does.
    fn lost(&mut self) {
        self.case.insert(11..=20);
        self.case.wait_arrived(&Vec::from_iter(1..=20));
        self.wait_confirmed();
        self.old_end = self.case.end_of_wal();
        match self.how {
            Relay::Watching => {}
            Relay::Late => self.proxy.lead_to(free_port()),
            Relay::Restarted => self.relay.take().expect("a relay").kill9(),
        }
    }

    /// Commits rows on the surviving history until its positions have passed the lost ones, and some after. The last number.
    fn outgrow(&mut self, postgres: &Postgres, from: u64) -> u64 {
        self.reconnect(postgres);
        if self.how == Relay::Watching {
            self.proxy.lead_to(postgres.port);
        }
        assert!(!self.has_outgrown(), "the log is no shorter than it was");
        let mut last = from - 1;
        while !self.has_outgrown() {
            last += 1;
            self.case.insert([last]);
            self.case.sql.execute("insert into busy select repeat('x', 1000) from generate_series(1, 100)");
        }
        self.case.insert(last + 1..=last + 5);
        if self.how != Relay::Watching {
            self.proxy.lead_to(postgres.port);
        }
        if self.how == Relay::Restarted {
            self.start(postgres);
        }
        last + 5
    }

    fn has_outgrown(&self) -> bool {
        self.case.sql.is_true(&format!("select pg_current_wal_insert_lsn() > '{}'", self.old_end))
    }

    /// All from 21 on arrive once each, in order; what was there before may have come again.
    #[track_caller]
    fn assert_survived(&self, last: u64) {
        self.case.wait_contains(21..=last);
        let arrived = self.case.arrived();
        let new: Vec<u64> = arrived.iter().copied().filter(|number| *number > 20).collect();
        assert_eq!(new, Vec::from_iter(21..=last), "{:?}: {arrived:?}", self.how);
        let before: Vec<u64> = arrived.iter().copied().take_while(|number| *number <= 20).take(20).collect();
        assert_eq!(before, Vec::from_iter(1..=20), "{:?}: {arrived:?}", self.how);
    }

    /// Whoever keeps the largest token and drops what is not larger drops no row that survived.
    #[track_caller]
    fn assert_tokens_ascend(&self) {
        let records = self.kafka.read(&[&self.case.topic]);
        let tokens: Vec<Token> = records.iter().filter_map(|record| Token::parse(&record.header("token")?)).collect();
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{:?}: {tokens:?}", self.how);
    }

    /// Healed from the table, and the relay that runs goes on. Returns the last number.
    fn recover(&self, last: u64) -> u64 {
        self.case.scene.walpost("recover --yes").succeeds(seconds(60));
        self.case.insert(last + 1..=last + 5);
        last + 5
    }
}

/// The first one, or all of them where `WALPOST_TEST_HISTORIES=all`: each takes some seconds.
fn forms<T>(all: &[T]) -> &[T] {
    if std::env::var("WALPOST_TEST_HISTORIES").is_ok_and(|which| which == "all") { all } else { &all[..1] }
}

fn promote(postgres: &Postgres) {
    assert!(postgres.sql("postgres").is_true("select pg_promote(true, 30)"));
}

/// A primary and a standby that gets no more after row 10; the primary dies after row 20.
fn failover<'a>(major: u32, how: Relay, slot_too: bool) -> (Fork<'a>, Postgres) {
    let mut old = Postgres::start_major(major);
    let mut fork = Fork::new(&old, how);
    fork.case.sql.value("select pg_create_physical_replication_slot('standby', true)");
    let mut conf = vec!["primary_slot_name = 'standby'", "hot_standby_feedback = on"];
    if slot_too {
        conf.push("sync_replication_slots = on");
    }
    let mut new = old.copy(true, &conf);
    fork.start(&old);
    fork.shared();
    let slot = &fork.case.scene.name;
    let synced = format!("select synced and not temporary from pg_replication_slots where slot_name = '{slot}'");
    wait_for(seconds(60), "a standby with all that there is", || {
        fork.case.sql.execute("insert into busy select repeat('x', 1000) from generate_series(1, 500)");
        if !slot_too {
            return true;
        }
        // Made final only once the original has let go of the log that the copy lacks.
        fork.case.sql.value("select pg_log_standby_snapshot()");
        new.sql("postgres").is_true(&synced)
    });
    let end = fork.case.end_of_wal();
    wait_for(seconds(30), "a standby that has replayed all", || {
        new.sql("postgres").is_true(&format!("select pg_last_wal_replay_lsn() >= '{end}'"))
    });
    new.stop(Stop::Fast, seconds(20));
    fork.lost();
    old.kill9();
    new.start();
    promote(&new);
    (fork, new)
}

#[test]
fn a_promoted_standby_with_the_slot() {
    for &(major, how) in forms(&[(17, Relay::Late), (18, Relay::Watching), (18, Relay::Restarted)]) {
        let (mut fork, new) = failover(major, how, true);
        let last = fork.outgrow(&new, 21);
        fork.assert_survived(last);
        fork.assert_tokens_ascend();
        fork.relay().stop();
    }
}

#[test]
fn a_promoted_standby_without_the_slot_is_healed() {
    for &(major, how) in forms(&[(14, Relay::Watching), (16, Relay::Restarted)]) {
        let (mut fork, new) = failover(major, how, false);
        let last = fork.outgrow(&new, 21);
        fork.relay().wait_state("lost", seconds(60));
        assert_eq!(fork.case.arrived(), Vec::from_iter(1..=20));
        let last = fork.recover(last);
        fork.assert_survived(last);
        fork.relay().stop();
    }
}

/// Recovered to a point before row 11, from a backup of the time before row 1 and the archived log.
fn point_in_time<'a>(major: u32, how: Relay, slots_too: bool) -> (Fork<'a>, Postgres) {
    let mut builder = Postgres::builder(major);
    for line in ARCHIVING {
        builder = builder.conf(line);
    }
    let mut old = builder.start();
    let mut fork = Fork::new(&old, how);
    fork.start(&old);
    fork.relay().wait_streaming();
    let backup = old.base_backup();
    fork.shared();
    fork.case.sql.value("select pg_create_restore_point('before')");
    fork.lost();
    // Also so that the last of the log is archived.
    fork.case.sql.value("select pg_switch_wal()");
    old.stop(Stop::Fast, seconds(30));
    let new = old.restore(&backup, "before", slots_too);
    (fork, new)
}

#[test]
fn a_restore_to_a_point_in_time_is_healed() {
    for &(major, how) in forms(&[(15, Relay::Restarted), (17, Relay::Watching)]) {
        let (mut fork, new) = point_in_time(major, how, false);
        let last = fork.outgrow(&new, 21);
        fork.relay().wait_state("lost", seconds(60));
        let last = fork.recover(last);
        fork.assert_survived(last);
        fork.relay().stop();
    }
}

/// As with a volume's snapshot: the slot is there, as old as the snapshot.
#[test]
fn a_restore_to_a_point_in_time_that_has_the_slot() {
    for &(major, how) in forms(&[(14, Relay::Late), (16, Relay::Watching), (18, Relay::Restarted)]) {
        let (mut fork, new) = point_in_time(major, how, true);
        let last = fork.outgrow(&new, 21);
        fork.assert_survived(last);
        fork.assert_tokens_ascend();
        fork.relay().stop();
    }
}

/// The same server on its disk of yesterday: same identifier, same timeline; slot and record are as old as all else.
#[test]
fn a_disk_that_is_put_back_as_it_was() {
    for &(major, how) in forms(&[(17, Relay::Late), (15, Relay::Watching), (18, Relay::Restarted)]) {
        let mut postgres = Postgres::start_major(major);
        let mut fork = Fork::new(&postgres, how);
        fork.start(&postgres);
        fork.shared();
        let kept: PathBuf = postgres.keep_disk();
        postgres.start();
        fork.reconnect(&postgres);
        fork.lost();
        postgres.stop(Stop::Fast, seconds(30));
        postgres.put_back(&kept);
        postgres.start();
        let last = fork.outgrow(&postgres, 21);
        fork.assert_survived(last);
        if how != Relay::Restarted {
            fork.assert_tokens_ascend();
        }
        fork.relay().stop();
    }
}
