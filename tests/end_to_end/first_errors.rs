//! What a newcomer meets first. `run` stays up, not ready, and says what to do; one-shot commands end with the code for it.

use crate::kit::*;

/// A relay that runs, is not ready, and whose probe and log name each of these words.
#[track_caller]
fn assert_says(command: WalpostCommand, words: &[&str]) -> Walpost {
    let relay = command.spawn();
    let mut said = String::new();
    let all_said = |text: &str| words.iter().all(|word| text.to_lowercase().contains(&word.to_lowercase()));
    wait_for(seconds(45), &format!("{words:?} in what the probe says"), || {
        assert!(relay.is_running(), "run ended instead of waiting\n{}", relay.log_tail());
        said = relay.get("/readyz").map(|(_, body)| body).unwrap_or_default();
        all_said(&said)
    });
    assert!(!relay.readyz().0, "ready: {said}");
    assert!(all_said(&relay.log()), "the log does not say what the probe says: {said}");
    assert!(relay.get("/livez").is_ok_and(|(code, _)| code == 200), "alive, whatever the two ends do");
    relay
}

#[test]
fn a_wrong_password() {
    let (kafka, postgres) =
        (Kafka::shared(), Postgres::builder(MAJOR).hba("host all relay 127.0.0.1/32 scram-sha-256").start());
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.sql().execute("create role relay login superuser password 'right'");
    let url = |password: &str| format!("postgres://relay:{password}@127.0.0.1:{}/{}", postgres.port, scene.name);
    let wrong = scene.walpost("run").env("WALPOST_DATABASE_URL", url("secret-typo"));
    let relay = assert_says(wrong, &["password", "relay"]);
    assert!(!relay.log().contains("secret-typo"));
    let setup = scene.walpost("setup").env("WALPOST_DATABASE_URL", url("secret-typo")).output(seconds(30));
    assert_eq!(setup.code, 77, "{}", setup.stderr);
}

#[test]
fn a_password_file_that_is_set_right_is_read_again() {
    let (kafka, postgres) =
        (Kafka::shared(), Postgres::builder(MAJOR).hba("host all relay 127.0.0.1/32 scram-sha-256").start());
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.sql().execute("create role relay login superuser password 'right'");
    let file = new_dir("secret").join("password");
    std::fs::write(&file, "old\n").expect("a file for the password");
    let relay = assert_says(
        scene
            .walpost("run")
            .env("WALPOST_DATABASE_URL", postgres.url_as("relay", &scene.name))
            .env("WALPOST_POSTGRES_PASSWORD_FILE", file.to_str().expect("a plain path")),
        &["password"],
    );
    std::fs::write(&file, "right\n").expect("a file for the password");
    relay.wait_streaming();
    relay.stop();
}

#[test]
fn wal_level_is_replica() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::builder(MAJOR).conf("wal_level = replica").start());
    let scene = Scene::without_setup(&postgres, kafka, Table::Walpost);
    assert_says(scene.walpost("run --setup"), &["wal_level", "logical", "restart"]);
    let setup = scene.walpost("setup").output(seconds(30));
    assert_eq!(setup.code, 78, "{}", setup.stderr);
    assert!(setup.stderr.contains("wal_level") || setup.stdout.contains("wal_level"), "{setup:?}");
}

#[test]
fn a_role_without_rights() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.sql().execute("create role nobody_much login");
    let run = scene.walpost("run").env("WALPOST_DATABASE_URL", postgres.url_as("nobody_much", &scene.name));
    assert_says(run, &["nobody_much"]);
}

#[test]
fn no_table() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::without_setup(&postgres, kafka, Table::Walpost);
    let run = scene.walpost("run --setup").env("WALPOST_TABLE", "outbox_mesages");
    assert_says(run, &["outbox_mesages"]);
}

#[test]
fn nothing_was_set_up() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::without_setup(&postgres, kafka, Table::Walpost);
    assert_says(scene.walpost("run"), &["walpost setup"]);
}

/// Rows of another table must never be published as if they were events: nothing but the publication tells them apart.
#[test]
fn the_publication_carries_another_table_too() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.sql().execute("create table billing (like outbox_messages including all)");
    scene.sql().execute("alter publication walpost add table billing");
    let setup = scene.walpost("setup").output(seconds(30));
    assert_eq!(setup.code, 78, "{}", setup.stderr);
    assert!(setup.stderr.contains("billing"), "{}", setup.stderr);
    let doctor = scene.walpost("doctor").output(seconds(60));
    assert_eq!(doctor.code, 1, "{}", doctor.stdout);
    let relay = assert_says(scene.walpost("run"), &["publi"]);
    assert_eq!(relay.state(), "publication_changed");
}

#[test]
fn a_topic_is_missing_where_none_is_made() {
    let (kafka, postgres) =
        (Kafka::builder().property("auto.create.topics.enable=false").start(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let workload = scene.workload().rows(20);
    let expected = workload.run();
    // Which aggregate comes first is chance: only one topic is missing.
    for topic in workload.topics().iter().skip(1) {
        kafka.create_topic(topic, 4, &[]);
    }
    let relay = assert_says(scene.walpost("run"), &[&workload.aggregate_types()[0]]);
    assert_eq!(relay.state(), "waiting_for_topic");
    kafka.create_topic(&workload.topics()[0], 4, &[]);
    relay.wait_published(20, seconds(60));
    relay.stop();
    kafka.verify(&workload, &expected).assert_exactly_once();
}

#[test]
fn topics_are_made_with_the_shape_that_was_asked_for() {
    let (kafka, postgres) =
        (Kafka::builder().property("auto.create.topics.enable=false").start(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, &kafka, Table::Walpost);
    let workload = scene.workload().rows(20);
    let expected = workload.run();
    let run = scene.walpost("run --until-caught-up --topics-create partitions=7,replication=1");
    run.succeeds(seconds(60));
    assert!(workload.topics().iter().all(|topic| kafka.partition_count(topic) == 7));
    kafka.verify(&workload, &expected).assert_exactly_once();
}

#[test]
fn no_broker() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    scene.workload().rows(5).run();
    let nowhere = format!("127.0.0.1:{}", free_port());
    assert_says(scene.walpost("run").env("WALPOST_BROKERS", &nowhere), &[&nowhere]);
    let one_shot = scene.walpost("run --until-caught-up").env("WALPOST_BROKERS", &nowhere).output(seconds(120));
    assert_eq!(one_shot.code, 69, "{}", one_shot.stderr);
}

#[test]
fn no_postgres() {
    let nowhere = free_port();
    let url = format!("postgres://app@127.0.0.1:{nowhere}/app");
    let run = walpost("run").env("WALPOST_DATABASE_URL", &url).env("WALPOST_BROKERS", Kafka::shared().bootstrap());
    assert_says(run, &[&nowhere.to_string()]);
    let setup = walpost("setup").env("WALPOST_DATABASE_URL", &url).output(seconds(60));
    assert_eq!(setup.code, 69, "{}", setup.stderr);
}

/// A slot that somebody else's client holds: say who, wait, and take it when it is free.
#[test]
fn the_slot_is_in_use() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let first = scene.walpost("run").spawn();
    first.wait_streaming();
    let doctor = scene.walpost("doctor").output(seconds(60));
    assert!(doctor.stdout.contains("pid "), "doctor does not say who holds the slot: {}", doctor.stdout);
    let teardown = scene.walpost("teardown --yes").output(seconds(30));
    assert_ne!(teardown.code, 0, "teardown dropped a slot that is in use");
    assert!(first.is_running() && first.state() == "streaming");
    first.stop();
}
