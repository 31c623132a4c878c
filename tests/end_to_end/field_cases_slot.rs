//! Cases of `docs/field-cases.md`: slots that are lost, moved, taken, not to be had, or held back by somebody else.

use crate::kit::*;

fn slots(postgres: &Postgres) -> i64 {
    postgres.sql("postgres").number("select count(*) from pg_replication_slots")
}

/// A relay that streams loses its slot: it says so at once, stays up, makes no new one and does not try for ever.
#[test]
fn a_slot_that_is_dropped_under_a_running_relay_is_lost() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::new(&postgres, kafka);
    let relay = case.scene.walpost("run").spawn();
    case.insert([1]);
    case.wait_arrived(&[1]);
    let slot = &case.scene.name;
    let pid = postgres.walsender(slot).expect("a walsender");
    wait_for(seconds(30), "a moment without a holder", || {
        case.sql.value(&format!("select pg_terminate_backend({pid})"));
        case.sql.execute(&format!(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = '{slot}'"
        ));
        case.sql.try_execute(&format!("select pg_drop_replication_slot('{slot}')")).is_ok()
    });
    case.insert([2]);
    relay.wait_state("lost", seconds(30));
    let lines = relay.log().lines().count();
    hold(seconds(5), "lost, up, and no slot made in silence", || {
        relay.state() == "lost" && slots(&postgres) == 0 && relay.log().lines().count() < lines + 20
    });
    assert!(
        relay.readyz().1.contains("setup --accept-gap") || relay.status()["remedy"].to_string().contains("walpost ")
    );
    relay.stop();
}

/// A slot of the same name is not the same slot: what committed in between is not in it.
#[test]
fn a_slot_that_was_made_again_under_the_same_name_is_a_gap() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    for plugin in ["pgoutput", "test_decoding"] {
        let case = Case::new(&postgres, kafka);
        case.insert([1]);
        case.scene.catch_up(seconds(40));
        let slot = &case.scene.name;
        case.sql.value(&format!("select pg_drop_replication_slot('{slot}')"));
        case.insert([2, 3]);
        case.sql.value(&format!("select pg_create_logical_replication_slot('{slot}', '{plugin}')"));
        case.insert([4]);
        let relay = case.scene.walpost("run").spawn();
        wait_for(seconds(40), "a relay that refuses", || {
            relay.try_status().is_some_and(|status| !status["reason"].as_str().unwrap_or_default().is_empty())
                && !["starting", "streaming", "catching_up", ""].contains(&relay.state().as_str())
                || plugin == "test_decoding" && relay.log().contains("test_decoding")
        });
        assert!(!relay.readyz().0, "{}", relay.status());
        if plugin == "pgoutput" {
            assert_eq!(relay.state(), "gap");
        }
        assert_eq!(case.arrived(), [1]);
        relay.stop();
    }
}

/// Another database's slot is a wrong setting, not a lost slot, though the server has one SQLSTATE for both.
#[test]
fn a_slot_of_another_database_is_not_called_lost() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let (ours, theirs) = (Case::new(&postgres, kafka), Case::new(&postgres, kafka));
    let wrong = ours.scene.walpost("run").slot(&theirs.scene.name).spawn();
    wait_for(seconds(40), "the other database's name", || {
        wrong.get("/readyz").is_ok_and(|(code, said)| code == 503 && said.contains(&theirs.scene.name))
    });
    assert_ne!(wrong.state(), "lost");
    wrong.stop();
    theirs.insert([1]);
    theirs.scene.catch_up(seconds(40));
    theirs.wait_arrived(&[1]);
}

/// 18 can give up a slot because nobody used it for a while: another setting than the size of the log, another advice.
#[test]
fn a_slot_that_was_idle_for_too_long_is_lost_for_that_reason() {
    let (kafka, postgres) =
        (Kafka::shared(), Postgres::builder(18).conf("idle_replication_slot_timeout = '2s'").start());
    let case = Case::new(&postgres, kafka);
    let doctor = case.scene.walpost("doctor").output(seconds(60));
    assert!(doctor.stdout.contains("idle_replication_slot_timeout"), "{}", doctor.stdout);
    let slot = &case.scene.name;
    wait_for(seconds(40), "the server to give the slot up", || {
        case.sql.execute("checkpoint");
        let reason = case
            .sql
            .optional(&format!("select invalidation_reason from pg_replication_slots where slot_name = '{slot}'"));
        reason.as_deref() == Some("idle_timeout")
    });
    let relay = case.scene.walpost("run").spawn();
    relay.wait_state("lost", seconds(30));
    let said = relay.status().to_string();
    assert!(said.contains("idle_replication_slot_timeout") && !said.contains("max_slot_wal_keep_size"), "{said}");
    relay.stop();
}

/// No slot and no walsender left: the limit is named where a person must raise it, and waited for where it passes.
#[test]
fn limits_of_the_server_are_named_or_waited_for() {
    let kafka = Kafka::shared();
    let postgres = Postgres::builder(MAJOR).conf("max_replication_slots = 1").conf("max_wal_senders = 1").start();
    let case = Case::without_setup(&postgres, kafka);
    case.sql.value("select pg_create_physical_replication_slot('somebody_elses')");
    let setup = case.scene.walpost("setup").output(seconds(30));
    assert_ne!(setup.code, 0);
    assert!(setup.stderr.contains("max_replication_slots"), "{}", setup.stderr);
    case.sql.value("select pg_drop_replication_slot('somebody_elses')");
    case.scene.walpost("setup").succeeds(seconds(30));
    // Ours is among them: full is no matter.
    case.scene.walpost("setup").succeeds(seconds(30));
    let relay = case.scene.walpost("run").spawn();
    case.insert([1]);
    case.wait_arrived(&[1]);
    relay.kill9();
    let relay = case.scene.walpost("run").spawn();
    case.insert([2]);
    case.wait_contains([1, 2]);
    let second = case.scene.walpost("run").spawn();
    wait_for(seconds(30), "a second one that says why it waits", || {
        second.get("/readyz").is_ok_and(|(_, said)| said.contains("pid ") || said.contains("max_wal_senders"))
    });
    relay.stop();
    second.wait_streaming();
    second.stop();
}

/// A slot can be made only when every transaction of the moment has ended. That is said, with who it is; a relay that waits
/// goes on by itself, and leaves no half-made slot behind.
#[test]
fn a_first_start_behind_an_open_transaction_says_so_and_goes_on() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::without_setup(&postgres, kafka);
    let other = case.scene.sql();
    other.execute("create table theirs (n int); begin; insert into theirs values (1)");
    let pid = other.value("select pg_backend_pid()");
    let relay = case.scene.walpost("run --setup").spawn();
    relay.wait_log(&format!("pid {pid}"), seconds(30));
    assert!(relay.get("/livez").is_ok_and(|(code, _)| code == 200));
    other.execute("commit");
    relay.wait_streaming();
    case.insert([1]);
    case.wait_arrived(&[1]);
    relay.stop();
    assert_eq!(slots(&postgres), 1);
}

/// What an open transaction holds is not laid at the relay's door: two distances, of which one is the relay's.
#[test]
fn log_that_an_open_transaction_holds_is_told_from_lag() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::new(&postgres, kafka);
    let relay = case.scene.walpost("run").spawn();
    relay.wait_streaming();
    let other = postgres.create_database("elsewhere");
    other.execute("create table theirs (n int); begin; insert into theirs values (1)");
    case.sql.execute("create table busy (filler text)");
    for _ in 0..3 {
        case.sql.execute("insert into busy select repeat('x', 1000) from generate_series(1, 30000)");
        case.sql.execute("checkpoint");
    }
    case.scene.wait_slot_follows(seconds(30));
    wait_for(seconds(30), "two distances that differ", || {
        let (retained, lag) =
            (relay.metric("walpost_slot_retained_wal_bytes", ""), relay.metric("walpost_slot_lag_bytes", ""));
        retained.zip(lag).is_some_and(|(retained, lag)| retained > 80e6 && lag < 10e6)
    });
    relay.stop();
}
