//! A recovery that is killed, at any of its steps, is begun again and loses nothing.

use super::*;

/// A database whose rows since the last run are in no stream.
fn lost(postgres: &Postgres, kafka: &Kafka) -> (Scene, Workload, Vec<Expected>) {
    let scene = Scene::new(postgres, kafka, Table::Walpost);
    scene.catch_up(seconds(40));
    let workload = scene.workload().rows(2_000);
    // There beforehand, so that they can be looked at at any moment.
    workload.topics().iter().for_each(|topic| kafka.create_topic(topic, 4, &[]));
    let expected = workload.run();
    drop_slot(&scene);
    (scene, workload, expected)
}

/// As if the last relay had been killed: then the recovery waits five seconds before it sends anything.
fn unsigned(scene: &Scene) {
    scene.sql().execute("update walpost.checkpoint set state = 'streaming', holder = 'a relay that was killed'");
}

fn state(scene: &Scene) -> String {
    scene.sql().value("select state from walpost.checkpoint")
}

fn slots(scene: &Scene) -> i64 {
    scene.sql().number(&format!("select count(*) from pg_replication_slots where slot_name = '{}'", scene.name))
}

/// A session that keeps the record from being written, until it is dropped.
fn lock_record(scene: &Scene) -> Sql {
    let sql = scene.sql();
    sql.execute("begin");
    sql.value("select slot_name from walpost.checkpoint for update");
    sql
}

#[track_caller]
fn wait_for_a_session_that_waits_for_the_record(scene: &Scene) {
    let sql = scene.sql();
    wait_for(seconds(40), "the recovery to wait for the record", || {
        sql.is_true(
            "select exists (select from pg_stat_activity where application_name = 'walpost recover'
               and wait_event_type = 'Lock')",
        )
    });
}

/// The server's processes notice by themselves that nobody is there any more, also while they wait for a lock.
#[track_caller]
fn kill_and_wait_for_the_servers_end(scene: &Scene, recover: &Walpost) {
    recover.kill9();
    let sql = scene.sql();
    wait_for(seconds(10), "the end of the recovery's sessions", || {
        sql.is_true("select not exists (select from pg_stat_activity where application_name = 'walpost recover')")
    });
}

/// Nothing streams before it is done; done again it is whole.
#[track_caller]
fn is_healed_by_the_next_one(scene: &Scene, kafka: &Kafka, workload: &Workload, expected: &[Expected]) {
    let refused = scene.walpost("run --until-caught-up").output(seconds(60));
    assert_eq!(refused.code, 100, "a relay streams in the middle of a recovery: {}", refused.stderr);
    assert!(refused.stderr.contains("walpost recover"), "{}", refused.stderr);
    scene.walpost("recover --yes").succeeds(seconds(90));
    assert_eq!(state(scene), "signed_off");
    scene_goes_on(scene, kafka);
    kafka.verify(workload, expected).assert_at_least_once();
}

#[test]
fn before_it_has_said_so_in_the_record() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let (scene, workload, expected) = lost(&postgres, kafka);
    let holder = lock_record(&scene);
    let recover = scene.walpost("recover --yes").spawn();
    wait_for_a_session_that_waits_for_the_record(&scene);
    kill_and_wait_for_the_servers_end(&scene, &recover);
    drop(holder);
    assert_ne!(state(&scene), "recovering");
    is_healed_by_the_next_one(&scene, kafka, &workload, &expected);
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// The server process that makes the slot notices by itself that nobody is there any more.
#[test]
fn while_the_slot_is_being_made() {
    for major in [14, 18] {
        let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(major));
        let (scene, workload, expected) = lost(&postgres, kafka);
        let open = scene.sql();
        open.execute("create table other (n int); begin; insert into other values (1)");
        let recover = scene.walpost("recover --yes").spawn();
        recover.wait_log("waiting for the transactions that are open", seconds(40));
        assert_eq!((slots(&scene), state(&scene).as_str()), (1, "recovering"));
        recover.kill9();
        // At once, so that the half-made slot is met.
        let again = scene.walpost("recover --yes").spawn();
        again.wait_log("waiting for the transactions that are open", seconds(40));
        again.kill9();
        open.execute("commit");
        is_healed_by_the_next_one(&scene, kafka, &workload, &expected);
        kafka.verify(&workload, &expected).assert_exactly_once();
    }
}

/// The slot is there and looks sound, and not one row is published.
#[test]
fn when_the_slot_is_made_and_nothing_is_published() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let (scene, workload, expected) = lost(&postgres, kafka);
    unsigned(&scene);
    let recover = scene.walpost("recover --yes").spawn();
    recover.wait_log("waiting for requests of the slot's last holder", seconds(40));
    recover.kill9();
    assert_eq!((slots(&scene), state(&scene).as_str()), (1, "recovering"));
    assert_eq!(kafka.count(&workload.topics().each_ref().map(String::as_str)), 0);
    is_healed_by_the_next_one(&scene, kafka, &workload, &expected);
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// Again and again amid the rows, while the application goes on.
#[test]
fn amid_the_rows() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let (scene, workload, mut expected) = lost(&postgres, kafka);
    let bulk = format!("bulk{}", unique());
    let topic = format!("outbox.event.{bulk}");
    kafka.create_topic(&topic, 4, &[]);
    // Large enough to be met in the middle.
    scene.sql().execute(&format!(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload)
         select '{bulk}', n::text, 'x', jsonb_build_object('text', repeat('x', 500)) from generate_series(1, 40000) n"
    ));
    let load = workload.clone().transactions_per_second(50).start();
    let mut arrived = 0;
    for _ in 0..3 {
        let recover = scene.walpost("recover --yes").env("WALPOST_WINDOW_MESSAGES", "500").spawn();
        wait_for(seconds(60), "rows that are published", || {
            assert!(recover.is_running(), "{}", recover.log_tail());
            kafka.count(&[&topic]) > arrived + 2_000
        });
        recover.kill9();
        assert_eq!(state(&scene), "recovering");
        arrived = kafka.count(&[&topic]);
    }
    scene.walpost("recover --yes").succeeds(seconds(120));
    let relay = scene.walpost("run").spawn();
    relay.wait_published(100, seconds(60));
    relay.stop();
    expected.extend(load.stop());
    scene.catch_up(seconds(60));
    kafka.verify(&workload, &expected).assert_at_least_once();
    let keys: std::collections::HashSet<_> = kafka.read(&[&topic]).into_iter().map(|seen| seen.key).collect();
    assert_eq!(keys.len(), 40_000);
}

#[test]
fn when_all_is_published_and_the_record_is_not_written() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let (scene, workload, expected) = lost(&postgres, kafka);
    unsigned(&scene);
    let recover = scene.walpost("recover --yes").spawn();
    recover.wait_log("waiting for requests of the slot's last holder", seconds(40));
    let holder = lock_record(&scene);
    wait_for_a_session_that_waits_for_the_record(&scene);
    kill_and_wait_for_the_servers_end(&scene, &recover);
    drop(holder);
    assert_eq!(state(&scene), "recovering");
    kafka.verify(&workload, &expected).assert_exactly_once();
    is_healed_by_the_next_one(&scene, kafka, &workload, &expected);
    assert_eq!(kafka.verify(&workload, &expected).repeated.len(), 2_000);
}

#[test]
fn by_a_restart_of_postgres() {
    let (kafka, mut postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let (scene, workload, expected) = lost(&postgres, kafka);
    unsigned(&scene);
    let recover = scene.walpost("recover --yes").spawn();
    recover.wait_log("waiting for requests of the slot's last holder", seconds(40));
    let took = postgres.stop(Stop::Fast, seconds(20));
    assert!(took < seconds(5), "the server waited {took:?} for a recovery");
    postgres.start();
    let code = recover.wait_exit(seconds(60));
    assert!([69, 75].contains(&code), "exit code {code}: {}", recover.log_tail());
    is_healed_by_the_next_one(&scene, kafka, &workload, &expected);
}

/// An outage of Kafka does not cut it off: it waits, and says what for.
#[test]
fn not_by_an_outage_of_kafka() {
    let (kafka, postgres) = (Kafka::start_own(), Postgres::start_major(MAJOR));
    let (scene, workload, expected) = lost(&postgres, &kafka);
    unsigned(&scene);
    let recover = scene.walpost("recover --yes").spawn();
    recover.wait_log("waiting for requests of the slot's last holder", seconds(40));
    kafka.pause();
    recover.wait_log("Kafka has confirmed nothing for over", seconds(40));
    kafka.resume();
    assert_eq!(recover.wait_exit(seconds(90)), 0, "{}", recover.log_tail());
    scene_goes_on(&scene, &kafka);
    kafka.verify(&workload, &expected).assert_at_least_once();
}

/// Two at once would each drop the other's slot.
#[test]
fn never_by_a_second_one() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let (scene, workload, expected) = lost(&postgres, kafka);
    let open = scene.sql();
    open.execute("create table other (n int); begin; insert into other values (1)");
    let recover = scene.walpost("recover --yes").spawn();
    recover.wait_log("waiting for the transactions that are open", seconds(40));
    for command in ["recover --yes", "setup --accept-gap", "teardown --yes"] {
        let second = scene.walpost(command).output(seconds(30));
        assert_eq!(second.code, 75, "{command}: {}", second.stderr);
        assert!(second.stderr.contains("is being recovered by pid"), "{command}: {}", second.stderr);
    }
    open.execute("commit");
    assert_eq!(recover.wait_exit(seconds(60)), 0, "{}", recover.log_tail());
    scene_goes_on(&scene, kafka);
    kafka.verify(&workload, &expected).assert_exactly_once();
}

/// SIGTERM ends it at once, with a word on what is left.
#[test]
fn by_a_signal_or_given_up() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let (scene, ..) = lost(&postgres, kafka);
    let open = scene.sql();
    open.execute("create table other (n int); begin; insert into other values (1)");
    let recover = scene.walpost("recover --yes").spawn();
    recover.wait_log("waiting for the transactions that are open", seconds(40));
    recover.sigterm();
    assert_eq!(recover.wait_exit(seconds(10)), 75);
    assert!(recover.log().contains("run `walpost recover` again"), "{}", recover.log_tail());
    open.execute("commit");
    // A person may go on without it.
    let refused = scene.walpost("setup").output(seconds(30));
    assert_eq!(refused.code, 100, "{}", refused.stderr);
    wait_for(seconds(15), "the server process to be gone", || slots(&scene) == 0);
    scene.walpost("setup --accept-gap").succeeds(seconds(30));
    scene_goes_on(&scene, kafka);
}
