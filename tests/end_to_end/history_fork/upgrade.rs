//! A server that `pg_upgrade` has made: another system identifier, positions of its own, and transaction ids that go on.

use super::*;

/// What the operator does with the slot before the upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Nothing: before 17 no logical slot comes along, and nothing minds it.
    Left,
    /// From 17 on it has to be one or the other: pg_upgrade wants a slot that has nothing to read any more, and the record of
    /// what was confirmed is in the log itself.
    Dropped,
    Advanced,
}

/// The old one stopped with rows 11 to 20 unpublished, where no relay was there; the new one runs.
fn upgraded<'a>(from: u32, to: u32, how: Relay, slot: Slot) -> (Fork<'a>, Postgres) {
    let mut old = Postgres::start_major(from);
    let mut fork = Fork::new(&old, how);
    fork.start(&old);
    fork.shared();
    if how == Relay::Restarted {
        fork.relay.take().expect("a relay").stop();
    }
    fork.case.insert(11..=20);
    if how != Relay::Restarted {
        fork.case.wait_arrived(&Vec::from_iter(1..=20));
    }
    if slot != Slot::Left {
        old.stop(Stop::Fast, seconds(30));
        let refused = old.upgrade(to).err().expect("a slot that stands in the way");
        assert!(refused.contains("has not consumed the WAL yet"), "{refused}");
        old.start();
        fork.proxy.lead_to(free_port());
        fork.proxy.cut();
        fork.reconnect(&old);
        let name = &fork.case.scene.name;
        wait_for(seconds(30), "a slot that nobody reads", || old.walsender(name).is_none());
        fork.case.sql.value(&match slot {
            Slot::Dropped => format!("select pg_drop_replication_slot('{name}')"),
            _ => format!("select pg_replication_slot_advance('{name}', pg_current_wal_lsn())"),
        });
    }
    old.stop(Stop::Fast, seconds(30));
    let mut new = old.upgrade(to).unwrap_or_else(|said| panic!("{said}"));
    new.start();
    fork.proxy.lead_to(new.port);
    fork.reconnect(&new);
    if how == Relay::Restarted {
        fork.start(&new);
    }
    (fork, new)
}

#[test]
#[ignore = "for the night: wants complete installations of Postgres 15, 17 and 18, in WALPOST_TEST_PG_UPGRADE"]
fn a_server_that_pg_upgrade_has_made_is_healed_at_the_operators_word() {
    for (from, to, how, slot) in [
        (15, 17, Relay::Watching, Slot::Left),
        (15, 18, Relay::Restarted, Slot::Left),
        (17, 18, Relay::Watching, Slot::Dropped),
        (17, 18, Relay::Restarted, Slot::Advanced),
    ] {
        let (fork, new) = upgraded(from, to, how, slot);
        fork.case.insert(21..=25);
        fork.relay().wait_state(if slot == Slot::Advanced { "gap" } else { "lost" }, seconds(60));
        let refused = fork.case.scene.walpost("recover --yes").output(seconds(30));
        assert!(refused.code == 100 && refused.stderr.contains("--after-pg-upgrade"), "{}", refused.stderr);
        fork.case.scene.walpost("recover --yes --after-pg-upgrade").succeeds(seconds(60));
        fork.case.insert(26..=30);
        fork.assert_survived(30);
        fork.relay().stop();
        drop(new);
    }
}
