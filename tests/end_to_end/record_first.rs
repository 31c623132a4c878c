//! Record first, confirm second: Postgres never hears of an LSN before walpost.checkpoint holds it. And what is on record is
//! what tells a slot that was moved, re-created or lost, and a publication that was changed: none of it is silent.

use crate::kit::*;

#[test]
fn the_slot_is_never_ahead_of_the_record() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let load = scene.workload().transactions_per_second(100).start();
    let relay = scene.walpost("run").env("WALPOST_FEEDBACK_INTERVAL", "50ms").spawn();
    relay.wait_published(100, seconds(40));
    let sql = scene.sql();
    let slot = format!("select confirmed_flush_lsn from pg_replication_slots where slot_name = '{}'", scene.name);
    let mut positions = std::collections::BTreeSet::new();
    hold(seconds(10), "the record holds what the slot was told", || {
        // The slot is looked at first: the record may only be further.
        let confirmed = sql.value(&slot);
        let recorded = sql.is_true(&format!(
            "select confirmed_lsn >= '{confirmed}'::pg_lsn from walpost.checkpoint where slot_name = '{}'",
            scene.name
        ));
        positions.insert(confirmed);
        recorded
    });
    assert!(positions.len() >= 4, "the slot hardly moved, so nothing was tested: {positions:?}");
    drop(load);
    relay.stop();
}

/// Ends in a state that needs a person: up, not ready, with one sentence and a remedy, and nothing is read meanwhile.
#[track_caller]
fn assert_told(scene: &Scene, relay: &Walpost, state: &str) {
    relay.wait_state(state, seconds(30));
    let (ready, sentence) = relay.readyz();
    assert!(!ready && sentence.len() > 20, "/readyz says {sentence:?}");
    let status = relay.status();
    for field in ["reason", "remedy"] {
        assert!(status[field].as_str().is_some_and(|text| !text.is_empty()), "no {field}: {status}");
    }
    assert!(status["remedy"].as_str().is_some_and(|remedy| remedy.contains("walpost ")), "{status}");
    assert!(relay.is_running(), "it must stay up, or its state cannot be seen");
    let one_shot = scene.walpost("run --until-caught-up").output(seconds(60));
    assert_eq!(one_shot.code, 100, "a person must decide: {}", one_shot.stderr);
}

/// Decides, and insists that rows flow again.
#[track_caller]
fn accept_and_go_on(scene: &Scene, kafka: &Kafka) {
    scene.walpost("setup --accept-gap").succeeds(seconds(30));
    let workload = scene.workload().rows(50);
    let expected = workload.run();
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_exactly_once();
}

#[test]
fn a_slot_that_was_moved_is_a_gap() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(40));
    let workload = scene.workload().rows(20);
    workload.run();
    scene.sql().value(&format!("select pg_replication_slot_advance('{}', pg_current_wal_lsn())", scene.name));
    let relay = scene.walpost("run").spawn();
    assert_told(&scene, &relay, "gap");
    assert_eq!(relay.published(), 0);
    assert_eq!(kafka.count(&workload.topics().each_ref().map(String::as_str)), 0);
    relay.stop();
    accept_and_go_on(&scene, kafka);
}

#[test]
fn a_slot_that_was_dropped_is_lost_and_never_made_again_in_silence() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(40));
    let drop_slot = format!("select pg_drop_replication_slot('{}')", scene.name);
    scene.sql().value(&drop_slot);
    let relay = scene.walpost("run --setup").spawn();
    assert_told(&scene, &relay, "lost");
    assert_eq!(postgres.walsender(&scene.name), None);
    assert_eq!(
        scene.sql().number(&format!("select count(*) from pg_replication_slots where slot_name = '{}'", scene.name)),
        0
    );
    relay.stop();
    accept_and_go_on(&scene, kafka);
}

#[test]
fn a_slot_that_outgrew_its_limit_is_lost() {
    let kafka = Kafka::shared();
    let postgres = Postgres::builder(MAJOR).conf("max_slot_wal_keep_size = 32MB").conf("max_wal_size = 64MB").start();
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(40));
    let sql = scene.sql();
    sql.execute("create table busy (filler text)");
    sql.execute("insert into busy select repeat('x', 1000) from generate_series(1, 120000)");
    wait_for(seconds(40), "the server to give the slot up", || {
        sql.execute("checkpoint");
        sql.value(&format!("select wal_status from pg_replication_slots where slot_name = '{}'", scene.name)) == "lost"
    });
    let relay = scene.walpost("run").spawn();
    assert_told(&scene, &relay, "lost");
    relay.stop();
    accept_and_go_on(&scene, kafka);
}

#[test]
fn a_publication_that_was_changed_stops_everything() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let relay = scene.walpost("run").spawn();
    relay.wait_streaming();
    let sql = scene.sql();
    sql.execute("alter publication walpost drop table outbox_messages");
    // Never decoded, and found out for that reason.
    scene.workload().rows(20).run();
    sql.execute("alter publication walpost add table outbox_messages");
    scene.workload().rows(20).run();
    assert_told(&scene, &relay, "publication_changed");
    relay.stop();
    accept_and_go_on(&scene, kafka);
}

#[test]
fn a_restored_database_is_not_taken_for_the_old_one() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(40));
    // As after a dump and a restore: the record came along, the slot did not.
    let sql = scene.sql();
    sql.value(&format!("select pg_drop_replication_slot('{}')", scene.name));
    sql.execute("update walpost.checkpoint set system_identifier = '7000000000000000001'");
    let relay = scene.walpost("run").spawn();
    wait_for(seconds(30), "a relay that refuses", || ["lost", "gap"].contains(&relay.state().as_str()));
    assert!(!relay.readyz().0);
    relay.stop();
}

/// Nothing is silent: also not a start that waits for a lock on the record.
#[test]
fn a_start_that_waits_for_a_lock_on_the_record_says_so() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(40));
    let holder = scene.sql();
    holder.execute("begin");
    holder.execute("select from walpost.checkpoint for update");
    let workload = scene.workload().rows(100);
    let expected = workload.run();
    let relay = scene.walpost("run").spawn();
    wait_for(seconds(30), "a relay that says what it waits for", || {
        relay.get("/readyz").is_ok_and(|(code, why)| code == 503 && why.contains("walpost.checkpoint"))
    });
    holder.execute("rollback");
    relay.wait_published(100, seconds(30));
    relay.stop();
    kafka.verify(&workload, &expected).assert_at_least_once();
}

/// A second relay that is set up for another publication, by mistake, stands still by itself: the one that streams goes on.
#[test]
fn a_relay_with_another_publication_does_not_stop_the_one_that_streams() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::new(&postgres, kafka);
    let relay = case.scene.walpost("run").spawn();
    case.insert([1]);
    case.wait_arrived(&[1]);
    let other = case.scene.walpost("run").env("WALPOST_PUBLICATION", "another").spawn();
    other.wait_state("publication_changed", seconds(40));
    case.insert([2]);
    case.wait_arrived(&[1, 2]);
    other.stop();
    // It writes its record at least once a second while rows come, and would see there that it was changed.
    let confirmed = case.end_of_wal();
    case.insert([3]);
    wait_for(seconds(20), "a record behind the last row but one", || case.is_confirmed(&confirmed));
    assert_eq!(relay.state(), "streaming");
    relay.stop();
}
