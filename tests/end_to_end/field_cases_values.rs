//! Cases of `docs/field-cases.md`: payloads, keys and headers that relays have changed, refused or choked on.

use crate::kit::*;

/// An outbox whose payload has another type, set up.
fn of_type<'a>(postgres: &Postgres, kafka: &'a Kafka, payload: &str) -> Case<'a> {
    let case = Case::without_setup(postgres, kafka);
    case.sql
        .execute(&format!("alter table outbox_messages alter payload type {payload} using payload::text::{payload}"));
    case.scene.walpost("setup").succeeds(seconds(30));
    case
}

/// Publishes rows with these payloads (SQL), and returns the values that arrived.
fn published(case: &Case, kafka: &Kafka, payloads: &[&str]) -> Vec<Option<Vec<u8>>> {
    for payload in payloads {
        case.sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
             values ('a', 'k', 'e', '{}', {payload})",
            case.topic
        ));
    }
    case.scene.catch_up(seconds(60));
    kafka.read(&[&case.topic]).into_iter().map(|record| record.value).collect()
}

fn bytes(texts: &[&str]) -> Vec<Option<Vec<u8>>> {
    texts.iter().map(|text| Some(text.as_bytes().to_vec())).collect()
}

/// No payload is parsed: what cannot be held in a number, a character or a map of some language passes all the same.
#[test]
fn a_payload_arrives_as_the_bytes_that_postgres_has() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let texts = [
        r#"{"a":"\u0000"}"#,
        r#"{"half":"\ud800"}"#,
        r#"[9007199254740993,1234567890123456789,1e400,0.1000,1E-20,-0,0.1234567890123456789012345678901234567890]"#,
        "{\"b\" :1,\t\"a\":null, \"b\": 2, \"c\": {\"d\": [null, {}]}}",
        "null",
        r#""""#,
        "{}",
        "\"e\u{301}\u{1F600}\u{7f}\"",
    ];
    let quoted: Vec<String> = texts.iter().map(|text| format!("'{text}'")).collect();
    let quoted: Vec<&str> = quoted.iter().map(String::as_str).collect();
    for payload in ["json", "text"] {
        let case = of_type(&postgres, kafka, payload);
        assert_eq!(published(&case, kafka, &quoted), bytes(&texts), "{payload}");
    }
    let empty = of_type(&postgres, kafka, "text");
    assert_eq!(published(&empty, kafka, &["''", "'{}'"]), bytes(&["", "{}"]));
    // jsonb has its own form, and that is what arrives.
    let case = Case::new(&postgres, kafka);
    let seen = published(&case, kafka, &[quoted[2], quoted[3], quoted[4], quoted[5], quoted[6]]);
    let stored = case.sql.rows("select payload::text from outbox_messages order by id");
    let stored: Vec<Option<Vec<u8>>> = stored.into_iter().map(|row| row[0].clone().map(String::into_bytes)).collect();
    assert_eq!(seen, stored);
    assert!(seen[0].as_ref().is_some_and(|value| value.len() > 400), "1e400 in full");
    // NULL is none of these: it is set aside unless tombstones are wanted.
    assert_eq!(published(&case, kafka, &["null"]), seen);
    let parked = case.scene.walpost("parked list --json").succeeds(seconds(20));
    assert!(parked.stdout.contains("null_payload"), "{}", parked.stdout);
}

#[test]
fn bytea_arrives_as_the_stored_bytes_whatever_the_role_prints() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::without_setup(&postgres, kafka);
    case.sql.execute("alter table outbox_messages drop payload, add payload bytea");
    case.sql.execute("alter role postgres set bytea_output = 'escape'");
    case.scene.walpost("setup").succeeds(seconds(30));
    let all: Vec<u8> = (0..=255).collect();
    let hex: String = all.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(published(&case, kafka, &[&format!("'\\x{hex}'"), "''"]), [Some(all), Some(Vec::new())]);
}

#[test]
fn numbers_that_json_does_not_have_are_headers_as_postgres_prints_them() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::without_setup(&postgres, kafka);
    case.sql.execute("alter table outbox_messages add amount numeric, add rate float8");
    let file = new_dir("config").join("walpost.toml");
    std::fs::write(&file, "[headers]\ncolumns = { amount = \"amount\", rate = \"rate\" }\n").expect("a file");
    let walpost = |arguments: &str| case.scene.walpost(arguments).env("WALPOST_CONFIG", file.to_str().expect("a path"));
    walpost("setup").succeeds(seconds(30));
    case.sql.execute(&format!(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload, amount, rate)
         select 'a', 'k', 'e', '{}', '{{}}', a::numeric, r::float8 from
         (values ('NaN', '-Infinity'), ('Infinity', 'NaN'), (repeat('7', 600) || '.' || repeat('3', 300), '0.1'), (null, '-0')) v (a, r)",
        case.topic
    ));
    walpost("run --until-caught-up").succeeds(seconds(60));
    let seen = kafka.read(&[&case.topic]);
    let header = |name: &str| Vec::from_iter(seen.iter().map(|record| record.header(name)));
    let long = format!("{}.{}", "7".repeat(600), "3".repeat(300));
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(header("amount"), [some("NaN"), some("Infinity"), some(&long), None]);
    assert_eq!(header("rate"), [some("-Infinity"), some("NaN"), some("0.1"), some("-0")]);
}

/// A database in LATIN1 is converted by the server; the bytes of one in SQL_ASCII pass as they are. Names beyond ASCII work.
#[test]
fn databases_that_are_not_utf_8_lose_nothing() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let other = |encoding: &str| {
        let name = format!("other{}", unique());
        let admin = postgres.sql("postgres");
        admin.execute(&format!("create database {name} encoding '{encoding}' template template0 locale 'C'"));
        let sql = postgres.sql(&name);
        Table::Walpost.create(&sql, "outbox_messages");
        sql.execute("alter table outbox_messages alter payload type text");
        let scene =
            Scene { url: postgres.url(&name), brokers: kafka.bootstrap(), name: name.clone(), table: Table::Walpost };
        scene.walpost("setup").succeeds(seconds(30));
        kafka.create_topic(&name, 1, &[]);
        (scene, sql, name)
    };
    let (scene, sql, topic) = other("LATIN1");
    sql.execute(&format!(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
         values ('a', 'clé', 'e', '{topic}', 'é')"
    ));
    scene.catch_up(seconds(60));
    let seen = kafka.read(&[&topic]);
    assert_eq!((seen[0].key.as_deref(), seen[0].value.as_deref()), (Some("clé".as_bytes()), Some("é".as_bytes())));

    let (scene, sql, topic) = other("SQL_ASCII");
    let insert = |payload: &str| {
        sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
             values ('a', 'k', 'e', '{topic}', {payload})"
        ));
    };
    insert("'fine'");
    scene.catch_up(seconds(60));
    insert("chr(255) || 'x'");
    // What is no UTF-8 passes as it is; where it stands in a name that must be text, the row is parked, whole.
    sql.execute("insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload) values ('a' || chr(255), 'k2', 'e', 'ü' || chr(254))");
    let relay = scene.walpost("run").spawn();
    insert("'after'");
    relay.wait_status(seconds(40), "a parked message", |status| {
        status["parked"]["messages"].as_u64().filter(|n| *n == 1)
    });
    wait_for(seconds(40), "what was written after it", || kafka.count(&[&topic]) == 3);
    let values: Vec<_> = kafka.read(&[&topic]).into_iter().filter_map(|record| record.value).collect();
    assert_eq!(values, [&b"fine"[..], b"\xffx", b"after"]);
    relay.stop();
    // Under another topic the parked row goes its way, and no byte of it is another.
    let elsewhere = format!("elsewhere-{}", unique());
    kafka.create_topic(&elsewhere, 1, &[]);
    scene.walpost("parked retry --all").succeeds(seconds(30));
    let relay = scene.walpost("run").arg("--topic").arg(&elsewhere).spawn();
    wait_for(seconds(40), "the parked row", || kafka.count(&[&elsewhere]) == 1);
    assert_eq!(kafka.read(&[&elsewhere])[0].value.as_deref(), Some(&b"\xc3\xbc\xfe"[..]));
    relay.stop();
    let doctor = scene.walpost("doctor").output(seconds(60));
    assert!(doctor.stdout.contains("SQL_ASCII"), "{}", doctor.stdout);

    let named = Case::without_setup(&postgres, kafka);
    named.sql.execute("alter table outbox_messages rename aggregate_id to ключ");
    let walpost = |arguments: &str| named.scene.walpost(arguments).env("WALPOST_COLUMNS_AGGREGATE_ID", "ключ");
    walpost("setup").succeeds(seconds(30));
    named.sql.execute(&named.row("e\u{301}\u{1F600}", [1]).replace("aggregate_id", "ключ"));
    walpost("run --until-caught-up").succeeds(seconds(60));
    assert_eq!(kafka.read(&[&named.topic])[0].key.as_deref(), Some("e\u{301}\u{1F600}".as_bytes()));
}

/// Kafka's limits count key, value and headers, after compression; only the broker's own word refuses a record, and no log
/// line is as long as a key.
#[test]
fn long_keys_and_what_compresses_well_pass_up_to_the_brokers_limit() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = of_type(&postgres, kafka, "text");
    let random = noise(&mut Random::new(7), 1_100_000);
    kafka.alter_topic(&case.topic, &[("max.message.bytes", "300000")]);
    let key = |bytes: usize| random[..bytes].to_owned();
    let insert = |key: &str, payload: &str| {
        case.sql.execute(&format!(
            "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
             values ('a', '{key}', 'e', '{}', {payload})",
            case.topic
        ));
    };
    insert(&key(10_000), "'1'");
    insert("line\nbreak\\u0000", "'2'");
    insert(&key(1_100_000), "'3'");
    insert("k", "repeat('x', 2000000)");
    let relay = case.scene.walpost("run -X compression.type=lz4").spawn();
    wait_for(seconds(60), "three records and one that is set aside", || {
        kafka.count(&[&case.topic]) == 3
            && relay.try_status().is_some_and(|status| status["parked"]["messages"].as_u64() == Some(1))
    });
    let seen = kafka.read(&[&case.topic]);
    assert_eq!(seen[0].key.as_deref(), Some(key(10_000).as_bytes()));
    assert_eq!(seen[1].key.as_deref(), Some(&b"line\nbreak\\u0000"[..]));
    assert_eq!(seen[2].value.as_ref().map(Vec::len), Some(2_000_000));
    assert!(relay.log().lines().all(|line| line.len() < 5_000), "a log line holds a key");
    assert!(!relay.get("/metrics").expect("metrics").1.contains(&random[..50]));
    relay.stop();
}

/// A row's own time may be anything: records carry the time of sending, which no broker refuses and no retention eats.
#[test]
fn the_time_of_a_record_is_that_of_its_sending() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let case = Case::new(&postgres, kafka);
    let limits = [("message.timestamp.before.max.ms", "3600000"), ("message.timestamp.after.max.ms", "3600000")];
    kafka.alter_topic(&case.topic, &limits);
    case.sql.execute(&format!(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload, created_at)
         select 'a', 'k', 'e', '{}', '{{}}', t::timestamptz
         from unnest(array['1999-01-01', '2099-01-01', 'infinity', '-infinity', '4000-01-01 BC']) t",
        case.topic
    ));
    let now =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_millis() as i64;
    let before = now();
    case.scene.walpost("run --until-caught-up").env("WALPOST_HEADERS_CREATED_AT", "createdAt").succeeds(seconds(60));
    let seen = kafka.read(&[&case.topic]);
    assert_eq!(seen.len(), 5);
    assert!(seen.iter().all(|record| (before..=now()).contains(&record.timestamp)), "{seen:?}");
    assert_eq!(seen[2].header("createdAt").as_deref(), Some("infinity"));
}

/// Columns come, go, change their type and their name while rows are in flight; values are found by name. A name that is
/// needed and gone stops at that row: no other column takes its place, and the position stays.
#[test]
fn columns_may_change_while_rows_are_in_flight() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    for (column, other) in [("payload", "body"), ("aggregate_id", "agregate_id")] {
        let case = Case::without_setup(&postgres, kafka);
        case.sql.execute("create type colour as enum ('red'); create domain short as text check (length(value) < 9)");
        case.sql.execute("create type pair as (a int, b text); create publication walpost for table outbox_messages with (publish = 'insert')");
        case.scene.walpost("setup").succeeds(seconds(30));
        let run = || case.scene.walpost("run");
        let (relay, first) = (run().spawn(), case.row("k", [1]));
        relay.wait_streaming();
        let row = |number| case.row("k", [number]);
        case.sql.execute(&format!(
            "begin; {first}
             alter table outbox_messages add colour colour default 'red', add short short default 'x', add pair pair default (1, 'b'), add n int;
             {} select pg_logical_emit_message(true, 'somebody', 'else');
             alter table outbox_messages drop n, drop created_at; {}
             alter table outbox_messages alter payload type json using payload::json; {} commit",
            row(2), row(3), row(4)
        ));
        case.wait_arrived(&[1, 2, 3, 4]);
        // Rows that another server's subscription wrote. Origins belong to the whole server.
        let origin = &case.scene.name;
        case.sql.value(&format!("select pg_replication_origin_create('{origin}')"));
        case.sql.value(&format!("select pg_replication_origin_session_setup('{origin}')"));
        case.insert([5]);
        case.sql.value("select pg_replication_origin_session_reset()");
        case.wait_arrived(&[1, 2, 3, 4, 5]);

        let before = case.end_of_wal();
        case.sql.execute(&format!("begin; {} alter table outbox_messages rename {column} to {other};", row(6)));
        case.sql.execute(
            &row(7)
                .replace(&format!("{column},"), &format!("{other},"))
                .replace(&format!("{column})"), &format!("{other})")),
        );
        case.sql.execute("commit");
        relay.wait_state("stopped", seconds(40));
        let said = relay.status().to_string();
        assert!(said.contains(column), "{said}");
        assert!(!case.arrived().contains(&7) && !case.is_confirmed(&case.end_of_wal()), "stood at {before}");
        relay.stop();
        let both = format!("{column},{other}");
        let relay = run().env(&format!("WALPOST_COLUMNS_{}", column.to_uppercase()), &both).spawn();
        case.wait_contains([6, 7]);
        relay.stop();
        let mut arrived = case.arrived();
        arrived.dedup();
        assert_eq!(arrived, [1, 2, 3, 4, 5, 6, 7]);
        assert!(kafka.read(&[&case.topic]).iter().all(|record| record.key.as_deref() == Some(b"k")));
    }
}
