//! `walpost recover` heals a lost slot from the table: no committed row is lost, whenever it is cut off; rows may repeat;
//! what streams keeps its order; and it publishes nothing where nothing tells what to publish.

use std::collections::HashSet;

use serde_json::Value;

use crate::kit::*;

mod cut_off;
mod refuses;
mod set_aside;

/// Ends whoever reads the slot, by itself for good, and drops it.
#[track_caller]
fn drop_slot(scene: &Scene) {
    let (sql, slot) = (scene.sql(), &scene.name);
    wait_for(seconds(10), "the slot to be free", || {
        sql.is_true(&format!("select not active from pg_replication_slots where slot_name = '{slot}'"))
    });
    sql.value(&format!("select pg_drop_replication_slot('{slot}')"));
}

/// Makes every row count as one that may be missing.
#[track_caller]
fn doubt_everything(scene: &Scene) {
    scene.sql().execute("update walpost.checkpoint set horizon = '3'");
}

#[track_caller]
fn recovered(scene: &Scene) -> Value {
    json(&scene.walpost("recover --yes --json").succeeds(seconds(60)))
}

#[track_caller]
fn json(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}\n{}", output.stdout, output.stderr))
}

/// A row of its own key, and how it must arrive.
fn row(workload: &Workload, number: u64) -> (Message, Expected) {
    let [aggregate_type, _] = workload.aggregate_types();
    let [topic, _] = workload.topics();
    let message = Message {
        id: Random::new(u64::from(unique())).uuid(),
        aggregate_type,
        key: format!("own-{number}"),
        event_type: "Own".into(),
        topic: String::new(),
        payload: format!("{{\"n\": {number}}}"),
        headers: "{}".into(),
    };
    let expected = Expected {
        id: message.id.clone(),
        topic,
        key: message.key.clone(),
        value: message.payload.clone(),
        event_type: Some("Own".into()),
        headers: Vec::new(),
        sequence: number,
        transaction: u64::from(unique()),
    };
    (message, expected)
}

/// The slot goes amid load, with transactions of every kind open: begun before the loss and after it, with savepoints,
/// prepared, committed and rolled back while the new slot is made. WALPOST_TEST_RATE=400 is the load of 5,000 rows a second.
#[test]
fn heals_a_slot_that_was_dropped_amid_load() {
    let rate: u32 = std::env::var("WALPOST_TEST_RATE").ok().and_then(|rate| rate.parse().ok()).unwrap_or(60);
    for major in [14, MAJOR, 18] {
        let kafka = Kafka::shared();
        let postgres = Postgres::builder(major).conf("max_prepared_transactions = 10").start();
        let scene = Scene::new(&postgres, kafka, Table::Walpost);
        let workload = scene.workload().transactions_per_second(rate);
        let mut own = Vec::new();
        let mut open = |begin: &str, number| {
            let ((message, expected), sql) = (row(&workload, number), scene.sql());
            sql.execute(begin);
            insert(&sql, scene.table, "outbox_messages", &[message]);
            own.push(expected);
            sql
        };
        let load = workload.start();
        let relay = scene.walpost("run").spawn();
        relay.wait_published(200, seconds(40));
        let old = open("set application_name = 'the-old-one'; begin", 1);
        let prepared = open("begin", 2);
        prepared.execute("prepare transaction 'old'");
        let ghost = open("begin", 3);
        // The horizon comes up to the oldest of them and no further: its row is the first that may be missing.
        let oldest = old.value("select pg_current_xact_id()");
        wait_for(seconds(40), "the horizon to come up to the oldest transaction", || {
            scene.sql().is_true(&format!("select horizon = '{oldest}' from walpost.checkpoint"))
        });
        relay.kill9();
        drop_slot(&scene);
        let before = load.committed();
        let began = std::time::Instant::now();
        wait_for(seconds(40), "rows that no slot saw", || load.committed() > before + 300);
        let relay = scene.walpost("run").spawn();
        relay.wait_state("lost", seconds(30));
        let written = (load.committed() - before) as f64 / began.elapsed().as_secs_f64();
        println!("Postgres {major}: {written:.0} rows a second");
        assert!(relay.status()["remedy"].as_str().is_some_and(|remedy| remedy.contains("walpost recover")));

        let young = open("begin; savepoint a", 4);
        young.execute("savepoint b");
        let recover = scene.walpost("recover --yes").spawn();
        // It names whom it waits for, and the relay says that it waits.
        recover.wait_log("the-old-one", seconds(30));
        recover.wait_log("prepared transaction", seconds(30));
        relay.wait_state("recovering", seconds(30));
        old.execute("commit");
        ghost.execute("rollback");
        young.execute("release savepoint a; commit");
        prepared.execute("commit prepared 'old'");
        assert_eq!(recover.wait_exit(seconds(60)), 0, "{}", recover.log_tail());

        let from_here = relay.published();
        relay.wait_published(from_here + 100, seconds(60));
        let mut expected = load.stop();
        relay.stop();
        scene.catch_up(seconds(60));
        own.remove(2);
        expected.extend(own);
        let report = kafka.verify(&workload, &expected);
        report.assert_at_least_once();
        let (repeated, from_table) = (report.repeated.len(), report.from_table);
        println!("{} rows, {from_table} from the table, {repeated} repeated", expected.len());
        assert!(report.from_table >= 300, "{report}");
        // What was published before, and since the horizon of a moment before the loss: the transaction that was open then
        // held it back.
        assert!(report.repeated.len() < report.from_table, "{report}");
        no_overlap(kafka, &workload);
    }
}

/// What was read from the table is not streamed by the new slot as well.
#[track_caller]
fn no_overlap(kafka: &Kafka, workload: &Workload) {
    let topics = workload.topics();
    let records = kafka.read(&topics.each_ref().map(String::as_str));
    let read: HashSet<String> =
        records.iter().filter(|seen| seen.header("origin").is_some()).filter_map(|seen| seen.header("id")).collect();
    let token = |seen: &Seen| seen.header("token").as_deref().and_then(Token::parse);
    let last_epoch = records.iter().filter_map(token).map(|token| token.epoch).max().expect("streamed rows");
    let of_the_new_slot = records.iter().filter(|seen| token(seen).is_some_and(|token| token.epoch == last_epoch));
    let twice: Vec<_> = of_the_new_slot.filter_map(|seen| seen.header("id")).filter(|id| read.contains(id)).collect();
    assert!(
        twice.is_empty(),
        "{} rows came from the table and through the new slot, as {:?}",
        twice.len(),
        twice.first()
    );
}

/// Key, value, topic, partition and headers are those of the stream, whichever the table.
#[test]
fn publishes_what_the_stream_would_have_published() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    for table in TABLES {
        let scene = Scene::new(&postgres, kafka, table);
        let workload = scene.workload().rows(300);
        let expected = workload.run();
        scene.catch_up(seconds(60));
        kafka.verify(&workload, &expected).assert_exactly_once();
        drop_slot(&scene);
        doubt_everything(&scene);
        let result = recovered(&scene);
        assert_eq!((&result["healed"], &result["rows"]), (&Value::from(true), &Value::from(300)), "{result}");
        let counts = result["topics"].as_object().expect("topics").values().filter_map(Value::as_u64);
        assert_eq!(counts.sum::<u64>(), 300, "{result}");
        let report = kafka.verify(&workload, &expected);
        report.assert_at_least_once();
        assert_eq!((report.from_table, report.repeated.len()), (300, 300), "{table:?}: {report}");
        same_as_streamed(kafka, &workload.topics());
        // Only Debezium's id is no sequence: then the oldest transaction comes first.
        let order = if table == Table::Debezium { "ORDER BY age(xmin) DESC, ctid" } else { "ORDER BY id" };
        assert!(result["select"].as_str().is_some_and(|select| select.ends_with(order)), "{result}");
    }
}

/// Each record that was read from the table is one that was streamed, but for the token.
#[track_caller]
fn same_as_streamed(kafka: &Kafka, topics: &[String]) {
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let (read, streamed): (Vec<Seen>, Vec<Seen>) =
        kafka.read(&topics).into_iter().partition(|seen| seen.header("origin").is_some());
    assert!(!read.is_empty(), "nothing was read from the table");
    for seen in &read {
        let id = seen.header("id");
        let twin = streamed.iter().find(|twin| twin.header("id") == id).expect("it was streamed before");
        let plain = |seen: &Seen| {
            let headers = seen.headers.iter().filter(|(name, _)| name != "token" && name != "origin");
            (
                seen.topic.clone(),
                seen.partition,
                seen.key.clone(),
                seen.value.clone(),
                headers.cloned().collect::<Vec<_>>(),
            )
        };
        assert_eq!(plain(seen), plain(twin));
    }
}

/// Columns whose text depends on settings, on casts or on padding, and a domain.
#[test]
fn values_are_printed_as_in_the_stream_whatever_the_role_has_set() {
    for major in [14, 18] {
        let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(major));
        let scene = Scene::without_setup(&postgres, kafka, Table::Walpost);
        let sql = scene.sql();
        sql.execute(
            "alter role postgres set bytea_output = 'escape'; alter role postgres set datestyle = 'German';
             alter role postgres set timezone = 'Asia/Kathmandu'; alter role postgres set intervalstyle = 'iso_8601';
             alter role postgres set extra_float_digits = -10;
             create domain bytes as bytea; create domain more_bytes as bytes;
             alter table outbox_messages alter payload type more_bytes using convert_to(payload::text, 'UTF8')::more_bytes,
               add flag boolean, add code char(5), add at timestamptz, add day date, add net inet, add amount numeric,
               add ratio float8, add took interval, add raw bytea, add list text[]",
        );
        scene.walpost("setup").succeeds(seconds(30));
        let [kind, topic] = [format!("odd{}", unique()), String::new()];
        let topics = [format!("outbox.event.{kind}"), topic];
        let columns = "flag=flag,code=code,at=at,day=day,net=net,amount=amount,ratio=ratio,took=took,raw=raw,list=list";
        let settings = |command: &str| scene.walpost(command).env("WALPOST_HEADERS_COLUMNS", columns);
        settings("setup").succeeds(seconds(30));
        sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload, flag, code, at, day, net, amount,
               ratio, took, raw, list) values
             ('{kind}', 'a', 'x', '\\x00ff41'::bytea, true, 'ab', '2026-11-30 16:00:00.25+00', '2026-11-30', '10.0.0.1',
               1.500, 0.1::float8 + 0.2::float8, interval '1 day 02:03:04', '\\xdeadbeef', '{{a,\"b c\",null}}'),
             ('{kind}', 'b', 'x', '\\x'::bytea, false, null, 'infinity', null, '10.0.0.0/8', 'NaN', 1e-320, null, '', '{{}}')"
        ));
        settings("run --until-caught-up").succeeds(seconds(60));
        drop_slot(&scene);
        doubt_everything(&scene);
        settings("recover --yes").succeeds(seconds(60));
        same_as_streamed(kafka, &topics[..1]);
        let seen = kafka.read(&[&topics[0]]);
        assert_eq!(seen.len(), 4);
        assert!(seen.iter().any(|seen| seen.value.as_deref() == Some(b"\0\xffA")), "{seen:?}");
    }
}

#[test]
fn heals_a_slot_that_outgrew_its_limit() {
    for major in [14, 18] {
        let kafka = Kafka::shared();
        let postgres =
            Postgres::builder(major).conf("max_slot_wal_keep_size = 32MB").conf("max_wal_size = 64MB").start();
        let scene = Scene::new(&postgres, kafka, Table::LaravelTopic);
        scene.catch_up(seconds(40));
        let workload = scene.workload().rows(300);
        let expected = workload.run();
        let sql = scene.sql();
        sql.execute("create table busy (filler text)");
        sql.execute("insert into busy select repeat('x', 1000) from generate_series(1, 120000)");
        wait_for(seconds(40), "the server to give the slot up", || {
            sql.execute("checkpoint");
            sql.value(&format!("select wal_status from pg_replication_slots where slot_name = '{}'", scene.name))
                == "lost"
        });
        let result = recovered(&scene);
        assert_eq!(result["rows"], 300, "{result}");
        let more = scene_goes_on(&scene, kafka);
        assert!(more > 0);
        let report = kafka.verify(&workload, &expected);
        report.assert_exactly_once();
        assert_eq!(report.from_table, 300);
    }
}

/// Rows flow again, and none of them repeats.
#[track_caller]
fn scene_goes_on(scene: &Scene, kafka: &Kafka) -> usize {
    let workload = scene.workload().rows(50);
    let expected = workload.run();
    scene.catch_up(seconds(60));
    let report = kafka.verify(&workload, &expected);
    report.assert_exactly_once();
    assert_eq!(report.from_table, 0, "{report}");
    report.seen
}

/// Somebody dropped the slot and made it again, or moved it: the rows between are in no stream.
#[test]
fn heals_a_slot_that_somebody_made_again_or_moved() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let again =
        "select pg_drop_replication_slot('SLOT'); select pg_create_logical_replication_slot('SLOT', 'pgoutput')";
    let moved = "select pg_replication_slot_advance('SLOT', pg_current_wal_lsn())";
    for deed in [again, moved] {
        let scene = Scene::new(&postgres, kafka, Table::Walpost);
        scene.catch_up(seconds(40));
        let workload = scene.workload().rows(200);
        let expected = workload.run();
        scene.sql().execute(&deed.replace("SLOT", &scene.name));
        let result = recovered(&scene);
        assert_eq!(result["rows"], 200, "{result}");
        scene_goes_on(&scene, kafka);
        kafka.verify(&workload, &expected).assert_exactly_once();
    }
}

#[test]
fn heals_rows_that_committed_while_the_publication_did_not_carry_the_table() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(40));
    let sql = scene.sql();
    sql.execute("alter publication walpost drop table outbox_messages");
    let workload = scene.workload().rows(200);
    let expected = workload.run();
    // Nothing would stream afterwards: it says what to run.
    let refused = scene.walpost("recover --yes").output(seconds(30));
    assert_eq!(refused.code, 78, "{}", refused.stderr);
    assert!(refused.stderr.contains("ALTER PUBLICATION walpost ADD TABLE"), "{}", refused.stderr);
    sql.execute("alter publication walpost add table outbox_messages");
    assert_eq!(recovered(&scene)["rows"], 200);
    scene_goes_on(&scene, kafka);
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// What the publication leaves out stays out; a mark narrows it where it is asked for.
#[test]
fn leaves_out_what_the_publication_leaves_out_and_what_is_marked_where_asked() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Laravel);
    scene.catch_up(seconds(40));
    let workload = scene.workload().rows(100);
    let expected = workload.run();
    let sql = scene.sql();
    let (slot, first) = (&scene.name, &expected[0].id);
    sql.execute(&format!(
        "alter publication walpost set table outbox_messages where (message_id <> '{first}');
         select pg_drop_replication_slot('{slot}');
         update outbox_messages set published_at = now() where message_id = '{}'",
        expected[1].id
    ));
    let seen = json(&scene.walpost("recover --dry-run --json").succeeds(seconds(30)));
    assert_eq!((&seen["rows"], &seen["marked"]), (&Value::from(99), &Value::from(1)), "{seen}");
    let result = json(&scene.walpost("recover --yes --json --unmarked-only").succeeds(seconds(60)));
    assert_eq!((&result["rows"], &result["marked"]), (&Value::from(98), &Value::from(0)), "{result}");
    kafka.verify(&workload, &expected[2..]).assert_exactly_once();
}

/// Of a partitioned table all partitions are read, in one order.
#[test]
fn reads_a_partitioned_outbox_whole_and_a_role_with_the_printed_grants_may_do_it() {
    for major in [14, 18] {
        let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(major));
        let scene = Scene::without_setup(&postgres, kafka, Table::Walpost);
        scene.sql().execute(
            "alter table outbox_messages rename to old;
             create table outbox_messages (like old including defaults including identity) partition by hash (aggregate_id);
             drop table old;
             create table outbox_a partition of outbox_messages for values with (modulus 2, remainder 0);
             create table outbox_b partition of outbox_messages for values with (modulus 2, remainder 1);
             create role relay login replication",
        );
        scene.walpost("setup --grants relay").succeeds(seconds(30));
        scene.catch_up(seconds(40));
        let workload = scene.workload().rows(300);
        let expected = workload.run();
        drop_slot(&scene);
        let relay = scene.walpost("recover --yes").env("WALPOST_DATABASE_URL", postgres.url_as("relay", &scene.name));
        relay.succeeds(seconds(60));
        scene_goes_on(&scene, kafka);
        let report = kafka.verify(&workload, &expected);
        report.assert_exactly_once();
        assert_eq!(report.from_table, 300);
    }
}
