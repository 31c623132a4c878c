//! Cases of `docs/field-cases.md`: rows and transactions whose order, number or position relays have got wrong.

use crate::kit::*;

/// Rows come in the order of their commits, whatever their ids, their position in the log, and whoever restarts meanwhile.
#[test]
fn rows_come_in_the_order_of_commits() {
    let postgres = Postgres::builder(MAJOR).conf("max_prepared_transactions = 5").start();
    let case = Case::new(&postgres, Kafka::shared());
    let relay = case.scene.walpost("run").spawn();
    relay.wait_streaming();

    // The first to insert commits last: its id and its place in the log are smaller than those of what came before it.
    let slow = case.scene.sql();
    slow.execute(&format!("begin; {}", case.row("k", [1])));
    case.insert([2]);
    case.wait_arrived(&[2]);
    relay.stop();
    let relay = case.scene.walpost("run").spawn();
    relay.wait_streaming();
    slow.execute("commit");
    case.wait_arrived(&[2, 1]);

    // Two phases: it counts from its second one, once, and not at all when it is rolled back.
    case.sql.execute(&format!("begin; {} prepare transaction 'kept'", case.row("k", [3])));
    case.sql.execute(&format!("begin; {} prepare transaction 'gone'", case.row("k", [4])));
    case.insert([5]);
    case.wait_arrived(&[2, 1, 5]);
    relay.kill9();
    case.sql.execute("rollback prepared 'gone'");
    case.sql.execute("commit prepared 'kept'");
    case.insert([6]);
    let relay = case.scene.walpost("run").spawn();
    case.wait_arrived(&[2, 1, 5, 3, 6]);

    // A cleaning job that is quicker than the relay takes nothing away, nor does one that knows only `created_at`.
    relay.stop();
    case.sql.execute(&format!("begin; {} delete from outbox_messages; commit", case.row("k", [7])));
    slow.execute(&format!("begin; {}", case.row("k", [8])));
    case.insert([9]);
    slow.execute("commit");
    case.sql.execute("delete from outbox_messages where created_at < now()");
    // An id that is used again is another row.
    case.sql.execute("truncate outbox_messages restart identity");
    case.insert([10]);
    let relay = case.scene.walpost("run").spawn();
    case.wait_arrived(&[2, 1, 5, 3, 6, 7, 9, 8, 10]);
    relay.stop();
}

/// A transaction that fills batches of its own does not pass a row that still waits for company.
#[test]
fn a_large_transaction_does_not_overtake_a_waiting_row() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::new(&postgres, kafka);
    case.scene.walpost("run --until-caught-up").succeeds(seconds(40));
    let relay = case.scene.walpost("run -X linger.ms=300 -X batch.num.messages=500").spawn();
    relay.wait_streaming();
    case.insert([0]);
    case.wait_arrived(&[0]);
    for round in 0..3 {
        let first = 1 + round * 4001;
        case.insert([first]);
        case.sql.execute(&case.row("k", first + 1..first + 4001));
    }
    case.wait_arrived(&Vec::from_iter(0..=12_003));
    relay.stop();
}

/// A row that was written before the routing changed and committed afterwards goes where the relay that reads it sends it.
#[test]
fn a_row_of_an_open_transaction_survives_a_change_of_routing() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::new(&postgres, kafka);
    let relay = case.scene.walpost("run").spawn();
    relay.wait_streaming();
    let slow = case.scene.sql();
    let row = case.row("k", [1]).replace(&format!("'{}'", case.topic), "null");
    slow.execute(&format!("begin; {row}"));
    // What keepalives confirm meanwhile is past the row, and must not matter.
    case.sql.execute("create table busy (filler text)");
    case.sql.execute("insert into busy select repeat('x', 1000) from generate_series(1, 5000)");
    case.scene.wait_slot_follows(seconds(20));
    relay.stop();
    let other = case.scene.walpost("run").args(&format!("--topic {}", case.topic)).spawn();
    other.wait_streaming();
    slow.execute("commit");
    case.wait_arrived(&[1]);
    other.stop();
}

/// A record that is ahead of the server's log must not make the relay ask for rows from there on: it would skip all before.
#[test]
fn a_record_ahead_of_the_server_skips_nothing() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::new(&postgres, kafka);
    case.insert([1, 2]);
    case.scene.catch_up(seconds(40));
    case.wait_arrived(&[1, 2]);
    case.insert([3, 4]);
    case.sql.execute("update walpost.checkpoint set confirmed_lsn = 'FF/0'");
    let relay = case.scene.walpost("run").spawn();
    // It either reads from where the slot stands, or stops and says so; it does not stream past the rows in silence.
    wait_for(seconds(40), "the rows, or a state that needs a person", || {
        case.arrived() == [1, 2, 3, 4] || ["gap", "lost"].contains(&relay.state().as_str())
    });
    case.insert([5]);
    if relay.state() == "streaming" {
        case.wait_arrived(&[1, 2, 3, 4, 5]);
    } else {
        assert!(!relay.readyz().0);
        assert_eq!(case.arrived(), [1, 2]);
    }
    relay.stop();
}
