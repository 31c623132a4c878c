//! Cases of `docs/field-cases.md`: standbys, promotions, copies, and what a relay may believe of a server that answers at
//! the old address.

use crate::kit::*;

/// The same relay, at another server.
fn at(case: &Case, postgres: &Postgres) -> WalpostCommand {
    case.scene.walpost("run").env("WALPOST_DATABASE_URL", postgres.url(&case.scene.name))
}

#[track_caller]
fn promote(postgres: &Postgres) {
    assert!(postgres.sql("postgres").is_true("select pg_promote(true, 30)"));
}

#[track_caller]
fn wait_not_ready(relay: &Walpost, word: &str) {
    wait_for(seconds(40), &format!("a relay that is not ready and says {word:?}"), || {
        relay.get("/readyz").is_ok_and(|(code, said)| code == 503 && said.contains(word))
    });
}

/// Asynchronous failover without the slot: the new primary lacks what was published last, and the slot that somebody made on
/// it lacks what committed before. Neither is streamed over in silence.
#[test]
fn a_promoted_server_without_the_slot_is_not_gone_on_with() {
    let kafka = Kafka::shared();
    let mut old = Postgres::start_major(MAJOR);
    let mut case = Case::new(&old, kafka);
    case.insert([1]);
    case.scene.catch_up(seconds(40));
    let mut new = old.copy(true, &[]);
    case.reconnect();
    // A standby is waited for, not used: it may be promoted any moment.
    let relay = at(&case, &new).spawn();
    wait_not_ready(&relay, "recovery");
    assert_eq!(
        case.scene.walpost("setup").env("WALPOST_DATABASE_URL", new.url(&case.scene.name)).output(seconds(30)).code,
        75
    );

    new.stop(Stop::Fast, seconds(20));
    case.insert([2]);
    case.scene.catch_up(seconds(40));
    case.wait_arrived(&[1, 2]);
    old.kill9();
    new.start();
    promote(&new);
    relay.wait_state("lost", seconds(60));
    let sql = new.sql(&case.scene.name);
    sql.execute(&case.row("k", [3]));
    sql.value(&format!("select pg_create_logical_replication_slot('{}', 'pgoutput')", case.scene.name));
    sql.execute(&case.row("k", [4]));
    relay.wait_state("gap", seconds(60));
    assert_eq!(case.arrived(), [1, 2]);
    let url = new.url(&case.scene.name);
    case.scene.walpost("setup --accept-gap").env("WALPOST_DATABASE_URL", url).succeeds(seconds(30));
    sql.execute(&case.row("k", [5]));
    case.wait_contains([5]);
    assert!(!case.arrived().contains(&3), "what the gap is about");
    relay.stop();
}

/// From 17 on the slot comes along, a little behind: nothing is lost, the order holds, and what comes again is left out.
#[test]
fn a_slot_that_was_copied_to_the_standby_loses_nothing() {
    let kafka = Kafka::shared();
    let mut old = Postgres::start_major(17);
    let mut case = Case::new(&old, kafka);
    let flag = format!("select failover from pg_replication_slots where slot_name = '{}'", case.scene.name);
    assert!(case.sql.is_true(&flag), "setup asks for a slot that standbys copy");
    case.sql.value("select pg_create_physical_replication_slot('standby', true)");
    let new =
        old.copy(true, &["primary_slot_name = 'standby'", "hot_standby_feedback = on", "sync_replication_slots = on"]);
    case.reconnect();
    let relay = case.scene.walpost("run").spawn();
    case.insert(1..=10);
    case.wait_arrived(&Vec::from_iter(1..=10));
    case.sql.execute("create table busy (filler text)");
    let synced =
        format!("select synced and not temporary from pg_replication_slots where slot_name = '{}'", case.scene.name);
    wait_for(seconds(60), "a copied slot", || {
        // Made final only once the original has let go of the log that the copy lacks.
        case.sql.execute("insert into busy select repeat('x', 1000) from generate_series(1, 500)");
        case.sql.value("select pg_log_standby_snapshot()");
        new.sql("postgres").is_true(&synced)
    });
    case.insert(11..=20);
    case.wait_arrived(&Vec::from_iter(1..=20));
    let end = case.end_of_wal();
    wait_for(seconds(30), "a standby that has all", || {
        new.sql("postgres").is_true(&format!("select pg_last_wal_replay_lsn() >= '{end}'"))
    });
    relay.kill9();
    old.kill9();
    promote(&new);
    new.sql(&case.scene.name).execute(&case.row("k", 21..=30));
    let relay = at(&case, &new).spawn();
    case.wait_arrived(&Vec::from_iter(1..=30));
    let tokens: Vec<Token> = kafka
        .read(&[&case.topic])
        .iter()
        .map(|record| Token::parse(&record.header("token").expect("a token")).expect("a token"))
        .collect();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "a consumer can tell old from new: {tokens:?}");
    assert!(tokens[29].epoch > tokens[0].epoch, "a new history is a new epoch");
    relay.stop();
}

/// A copy of production with production's settings: it has the record, and no slot; it does not publish.
#[test]
fn a_copy_of_the_server_publishes_nothing_by_itself() {
    let (kafka, mut original) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let mut case = Case::new(&original, kafka);
    case.insert([1]);
    case.scene.catch_up(seconds(40));
    let copy = original.copy(false, &[]);
    case.reconnect();
    let sql = copy.sql(&case.scene.name);
    sql.execute(&case.row("k", [2]));
    let relay = at(&case, &copy).args("--setup").spawn();
    relay.wait_state("lost", seconds(40));
    assert_eq!(sql.number("select count(*) from pg_replication_slots"), 0);
    relay.stop();
    case.insert([3]);
    case.scene.catch_up(seconds(40));
    assert_eq!(case.arrived(), [1, 3], "the original is untouched");
}

/// A server that waits for a standby before it sends anything: rows commit and none comes. That is no idle stream.
#[test]
fn a_server_that_waits_for_a_standby_is_not_called_idle() {
    let (kafka, postgres) =
        (Kafka::shared(), Postgres::builder(17).conf("synchronized_standby_slots = 'standby'").start());
    let case = Case::new(&postgres, kafka);
    case.sql.value("select pg_create_physical_replication_slot('standby')");
    let doctor = case.scene.walpost("doctor").output(seconds(60));
    assert!(doctor.stdout.contains("synchronized_standby_slots"), "{}", doctor.stdout);
    let relay = case.scene.walpost("run").spawn();
    relay.wait_streaming();
    case.insert([1]);
    wait_for(seconds(60), "words about the standby", || {
        relay.get("/readyz").is_ok_and(|(_, said)| said.contains("standby"))
            || relay.log().contains("synchronized_standby_slots")
    });
    case.sql.execute("alter system reset synchronized_standby_slots");
    case.sql.execute("alter system set synchronized_standby_slots = ''");
    case.sql.execute("select pg_reload_conf()");
    case.wait_arrived(&[1]);
    relay.stop();
}
