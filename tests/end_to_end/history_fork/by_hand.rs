//! What people and addresses do meanwhile: a slot that is made by hand on the new server, and a relay whose two connections
//! end at two servers.

use super::*;

/// What the relay remembers of the old server says nothing of the new one: the slot starts behind rows that nobody read,
/// though before a position that the old server had confirmed.
#[test]
fn a_slot_that_is_made_by_hand_is_a_gap_however_far_the_old_server_was() {
    for &(major, how) in forms(&[(16, Relay::Late), (17, Relay::Watching), (14, Relay::Restarted)]) {
        let (mut fork, new) = failover(major, how, false);
        let sql = new.sql(&fork.case.scene.name);
        sql.execute(&fork.case.row("k", 21..=23));
        sql.value(&format!("select pg_create_logical_replication_slot('{}', 'pgoutput')", fork.case.scene.name));
        let last = fork.outgrow(&new, 24);
        fork.relay().wait_state("gap", seconds(60));
        assert_eq!(fork.case.arrived(), Vec::from_iter(1..=20));
        let last = fork.recover(last);
        fork.assert_survived(last);
        fork.relay().stop();
    }
}

/// The same on a disk that was put back, where not even the timeline tells.
#[test]
fn a_slot_that_is_made_by_hand_on_a_disk_that_was_put_back_is_a_gap() {
    for &how in forms(&[Relay::Late, Relay::Watching]) {
        let mut postgres = Postgres::start_major(MAJOR);
        let mut fork = Fork::new(&postgres, how);
        fork.start(&postgres);
        fork.shared();
        let kept: PathBuf = postgres.keep_disk();
        postgres.start();
        fork.reconnect(&postgres);
        fork.lost();
        postgres.stop(Stop::Fast, seconds(30));
        postgres.put_back(&kept);
        postgres.drop_slots();
        postgres.start();
        let sql = postgres.sql(&fork.case.scene.name);
        sql.execute(&fork.case.row("k", 21..=23));
        sql.value(&format!("select pg_create_logical_replication_slot('{}', 'pgoutput')", fork.case.scene.name));
        let last = fork.outgrow(&postgres, 24);
        fork.relay().wait_state("gap", seconds(60));
        assert_eq!(fork.case.arrived(), Vec::from_iter(1..=20));
        let last = fork.recover(last);
        fork.assert_survived(last);
        fork.relay().stop();
    }
}

/// The old primary lives on beside the promoted one. New connections reach the new one, and the stream is still the old
/// one's: its positions must not be written into the record of the other.
#[test]
fn a_record_of_one_server_is_not_written_for_the_stream_of_another() {
    let mut old = Postgres::start_major(MAJOR);
    let mut fork = Fork::new(&old, Relay::Watching);
    let new = old.copy(true, &[]);
    fork.start(&old);
    fork.shared();
    let end = fork.case.end_of_wal();
    let there = new.sql(&fork.case.scene.name);
    wait_for(seconds(30), "a standby that has replayed all", || {
        there.is_true(&format!("select pg_last_wal_replay_lsn() >= '{end}'"))
    });
    promote(&new);
    let record = "select confirmed_lsn || ' ' || horizon from walpost.checkpoint";
    let before = there.value(record);
    there.execute(&fork.case.row("k", 21..=23));
    fork.proxy.lead_to(new.port);
    // Only the connection beside the stream ends.
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'walpost control'";
    fork.case.sql.execute(cut);
    fork.case.insert(11..=20);
    wait_for(seconds(60), "a relay that has noticed", || ["lost", "gap"].contains(&fork.relay().state().as_str()));
    assert_eq!(there.value(record), before);
    fork.reconnect(&new);
    let last = fork.recover(23);
    fork.assert_survived(last);
    fork.relay().stop();
}
