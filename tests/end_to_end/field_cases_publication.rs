//! Cases of `docs/field-cases.md`: publications and tables that were changed while a relay relied on them. None may end in a
//! relay that streams, is ready, and lacks rows.

use crate::kit::*;

/// Changes something after row 1 was published, commits row 2 in a way that the stream lacks, and insists on a relay that
/// says so and has not confirmed past row 2.
#[track_caller]
fn a_relay_that_runs_stops(postgres: &Postgres, change: &str, back: &str) {
    let case = Case::new(postgres, Kafka::shared());
    let relay = case.scene.walpost("run").spawn();
    relay.wait_streaming();
    case.insert([1]);
    case.wait_arrived(&[1]);
    let before = case.end_of_wal();
    case.sql.execute(change);
    case.insert([2]);
    let after = case.end_of_wal();
    case.sql.execute("create table busy (filler text)");
    case.sql.execute("insert into busy select repeat('x', 1000) from generate_series(1, 3000)");
    if !back.is_empty() {
        case.sql.execute(back);
        case.insert([3]);
    }
    relay.wait_state("publication_changed", seconds(60));
    let (ready, said) = relay.readyz();
    assert!(!ready && said.contains("publication"), "after {change}: {said}");
    assert!(!case.is_confirmed(&after), "{change}: confirmed to {}, changed at {before}", case.confirmed());
    relay.stop();
    // Nor does a new one go on as if nothing had been.
    let relay = case.scene.walpost("run").spawn();
    relay.wait_state("publication_changed", seconds(60));
    relay.stop();
    let told = case.scene.walpost("setup --accept-gap").output(seconds(30));
    // Where the publication carries another table by now, that comes first.
    let may_go_on = told.code == 0 && (told.stdout.contains("may be missing") || told.stdout.contains("at most"));
    assert!(may_go_on || told.code == 78 && told.stderr.contains("old_outbox"), "{told:?}");
}

#[test]
fn what_the_publication_leaves_out_is_noticed_while_it_runs() {
    let postgres = Postgres::start_major(18);
    a_relay_that_runs_stops(
        &postgres,
        "alter publication walpost set (publish = 'update, delete')",
        "alter publication walpost set (publish = 'insert')",
    );
    // A server from 18 on skips a missing publication without an error.
    a_relay_that_runs_stops(
        &postgres,
        "drop publication walpost",
        "create publication walpost for table outbox_messages with (publish = 'insert')",
    );
    // The new table has the old one's name, and the publication still carries the old one.
    a_relay_that_runs_stops(
        &postgres,
        "begin; alter table outbox_messages rename to old_outbox; \
         create table outbox_messages (like old_outbox including defaults including identity); commit",
        "",
    );
    a_relay_that_runs_stops(&postgres, "alter publication walpost drop table outbox_messages", "");
}

#[test]
fn a_publication_that_was_made_anew_while_no_relay_ran_is_noticed() {
    for major in [15, MAJOR] {
        let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(major));
        let case = Case::new(&postgres, kafka);
        case.insert([1]);
        case.scene.catch_up(seconds(40));
        case.insert([2]);
        case.sql.execute("drop publication walpost");
        case.insert([3]);
        case.sql.execute("create publication walpost for table outbox_messages with (publish = 'insert')");
        case.insert([4]);
        let after = case.end_of_wal();
        let relay = case.scene.walpost("run").spawn();
        relay.wait_state("publication_changed", seconds(40));
        assert!(!case.is_confirmed(&after) && !relay.readyz().0);
        relay.stop();
        case.scene.walpost("setup --accept-gap").succeeds(seconds(30));
        case.insert([5]);
        let relay = case.scene.walpost("run").spawn();
        case.wait_contains([1, 5]);
        relay.stop();
    }
}

/// What `setup` makes concerns the outbox and its inserts alone, so that nobody else's statements fail; what others made
/// for every table is not used.
#[test]
fn other_tables_and_other_statements_are_left_in_peace() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::new(&postgres, kafka);
    // Without a key, updates and deletes fail in the application as soon as a publication carries them.
    case.sql.execute("alter table outbox_messages drop constraint outbox_messages_pkey cascade");
    let relay = case.scene.walpost("run").spawn();
    case.insert([1]);
    case.wait_arrived(&[1]);
    case.sql.execute(
        "update outbox_messages set event_type = 'sent'; delete from outbox_messages; truncate outbox_messages",
    );
    case.insert([2]);
    case.wait_arrived(&[1, 2]);
    relay.stop();

    let every = Case::without_setup(&postgres, kafka);
    every.sql.execute("create publication walpost for all tables; create table billing (n int)");
    let setup = every.scene.walpost("setup").output(seconds(30));
    assert_eq!(setup.code, 78, "{}{}", setup.stdout, setup.stderr);
    // A table outside the log is in such a publication without a word; its rows are never sent.
    let unlogged = Case::without_setup(&postgres, kafka);
    unlogged.sql.execute("alter table outbox_messages set unlogged");
    let setup = unlogged.scene.walpost("setup").output(seconds(30));
    assert!(setup.code == 78 && setup.stderr.contains("LOGGED"), "{} {}", setup.code, setup.stderr);
}

/// Updates, deletes, upserts and truncates come only from a publication that somebody else made. They are no events: counted,
/// confirmed, and nothing is read out of them, least of all a large value that an update leaves out.
#[test]
fn what_is_no_insert_is_counted_and_published_as_nothing() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::without_setup(&postgres, kafka);
    case.sql.execute("create publication walpost for table outbox_messages");
    case.scene.walpost("setup").succeeds(seconds(30));
    case.sql.execute("alter table outbox_messages alter payload set storage external; create table child (n int)");
    let relay = case.scene.walpost("run").spawn();
    relay.wait_streaming();
    let noise = noise(&mut Random::new(1), 12_000);
    case.sql.execute(&case.row("k", [1]).replace("\"n\": 1", &format!("\"n\": 1, \"noise\": \"{noise}\"")));
    case.sql.execute("update outbox_messages set event_type = 'changed'");
    case.sql.execute(
        "insert into outbox_messages (message_id, aggregate_type, aggregate_id, event_type, topic, payload)
         select message_id, aggregate_type, aggregate_id, event_type, topic, payload from outbox_messages
         on conflict (message_id) do update set event_type = 'again'",
    );
    case.sql.execute("delete from outbox_messages");
    case.sql.execute("truncate outbox_messages, child restart identity cascade");
    case.insert([2]);
    case.wait_arrived(&[1, 2]);
    let ignored = |kind: &str| relay.metric("walpost_changes_ignored_total", kind).unwrap_or(0.0);
    wait_for(seconds(10), "the changes that are no events, counted", || {
        ignored("update") == 2.0 && ignored("delete") == 1.0 && ignored("truncate") >= 1.0
    });
    assert!(relay.readyz().0);
    case.scene.wait_slot_follows(seconds(20));
    relay.stop();
}
