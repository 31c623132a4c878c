use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::config::{self, Columns, OnPoison, OnRouteError, Preset, TopicsCreate};
use crate::lsn::Lsn;
use crate::outbox::tests::{DEBEZIUM, LARAVEL_TOPIC, WALPOST, any_relation, any_row, relation, row};

pub const TOKEN: Token = Token { epoch: 1_750_000_000, commit_lsn: Lsn(0x16_B374_D848), ordinal: 2 };
const TOKEN_TEXT: &str = "1750000000-00000016B374D848-00000002";

pub fn config() -> Config {
    Config {
        name: "walpost".to_owned(),
        postgres: config::Postgres {
            url: None,
            password: None,
            table: "outbox_messages".to_owned(),
            slot: "walpost".to_owned(),
            publication: "walpost".to_owned(),
        },
        kafka: config::Kafka { brokers: None, properties: BTreeMap::new() },
        topics: config::Topics { create: TopicsCreate::Broker },
        route: config::Route { topic: "outbox.event.{aggregate_type}".to_owned(), partitioner: Partitioner::Murmur2 },
        columns: Columns::default(),
        headers: Headers {
            id: "id".to_owned(),
            event_type: "eventType".to_owned(),
            token: "token".to_owned(),
            created_at: String::new(),
            origin: "origin".into(),
            columns: BTreeMap::new(),
        },
        preset: None,
        read_back: true,
        on_poison: OnPoison::Stop,
        on_route_error: OnRouteError::Wait,
        parked: config::Parked { max_rows: 10, max_bytes: 1000 },
        dead_letter: config::DeadLetter { topic: "dead".into() },
        on_null_payload: OnNullPayload::Error,
        on_null_key: OnNullKey::Error,
        window: config::Window { messages: 50_000, bytes: 32 << 20 },
        feedback: config::Feedback { interval: Duration::from_secs(1) },
        shutdown: config::Shutdown { timeout: Duration::from_secs(25) },
        http: config::Http { listen: None },
        log: config::Log { level: "info".to_owned(), format: None },
    }
}

/// What usually stands in a row of walpost's own table.
fn usual<'a>(others: &[(&'a str, &'a [u8])]) -> Vec<(&'a str, &'a [u8])> {
    let usual: [(&str, &[u8]); 6] = [
        ("id", b"7"),
        ("message_id", b"u-1"),
        ("aggregate_type", b"order"),
        ("aggregate_id", b"key"),
        ("event_type", b"Placed"),
        ("payload", b"{}"),
    ];
    let kept = usual.into_iter().filter(|(name, _)| others.iter().all(|(other, _)| other != name));
    kept.chain(others.iter().copied()).collect()
}

fn without<'a>(name: &str) -> Vec<(&'a str, &'a [u8])> {
    usual(&[]).into_iter().filter(|(other, _)| *other != name).collect()
}

fn route_in(config: &Config, names: &[&str], values: &[(&str, &[u8])]) -> Result<Routed, Poison> {
    let relation = relation(names);
    let mapping = Mapping::resolve(&relation, &config.columns, config.preset).unwrap();
    let mut router = Router::new(config).unwrap();
    router.bind(&relation, &mapping).unwrap();
    let row = row(&relation, values);
    router.route(&mapping.message(&row)?, &row, TOKEN)
}

fn record_in(config: &Config, names: &[&str], values: &[(&str, &[u8])]) -> Record {
    match route_in(config, names, values) {
        Ok(Routed::Publish(record)) => record,
        other => panic!("expected a record: {other:?}"),
    }
}

fn record(values: &[(&str, &[u8])]) -> Record {
    record_in(&config(), &WALPOST, values)
}

fn poison(values: &[(&str, &[u8])]) -> Poison {
    route_in(&config(), &WALPOST, values).unwrap_err()
}

fn headers(record: &Record) -> Vec<(String, Option<String>)> {
    let text = |value: &Bytes| String::from_utf8(value.to_vec()).unwrap();
    record.headers.iter().map(|header| (header.name.to_string(), header.value.as_ref().map(text))).collect()
}

/// The headers that come of a row's `headers` column alone.
fn row_headers(json: &str) -> Vec<(String, Option<String>)> {
    headers(&record(&usual(&[("headers", json.as_bytes())]))).split_off(3)
}

fn some(name: &str, value: &str) -> (String, Option<String>) {
    (name.to_owned(), Some(value.to_owned()))
}

#[test]
fn a_row_becomes_a_record() {
    let record = record(&usual(&[("headers", br#"{"traceparent": "00-ab"}"#)]));
    assert_eq!(&*record.topic, "outbox.event.order");
    assert_eq!(record.key.as_deref(), Some(b"key".as_slice()));
    assert_eq!(record.value.as_deref(), Some(b"{}".as_slice()));
    assert_eq!(
        headers(&record),
        [some("id", "u-1"), some("eventType", "Placed"), some("token", TOKEN_TEXT), some("traceparent", "00-ab")]
    );
    assert_eq!(record.partition_hash, partition::murmur2(b"key"));
}

#[test]
fn the_partitioner_is_the_one_that_was_set() {
    for partitioner in [Partitioner::Murmur2, Partitioner::Crc32, Partitioner::Fnv1a] {
        let mut config = config();
        config.route.partitioner = partitioner;
        let record = record_in(&config, &WALPOST, &usual(&[]));
        assert_eq!(record.partition_hash, partition::hash(partitioner, b"key"));
    }
}

#[test]
fn names_of_headers_are_settable_and_an_empty_name_switches_one_off() {
    let mut config = config();
    config.headers.id = "message_id".to_owned();
    config.headers.event_type = String::new();
    config.headers.token = String::new();
    config.headers.created_at = "at".to_owned();
    config.headers.columns = BTreeMap::from([("z".into(), "topic".into()), ("a".into(), "aggregate_type".into())]);
    let record = record_in(&config, &WALPOST, &usual(&[("created_at", b"2026"), ("headers", br#"{"id": "free"}"#)]));
    assert_eq!(
        headers(&record),
        [some("message_id", "u-1"), some("at", "2026"), some("a", "order"), ("z".to_owned(), None), some("id", "free")]
    );
}

#[test]
fn a_header_whose_value_is_absent_is_left_out() {
    let mut config = config();
    config.headers.created_at = "at".to_owned();
    let record = record_in(&config, &WALPOST, &without("event_type"));
    assert_eq!(headers(&record), [some("id", "u-1"), some("token", TOKEN_TEXT)]);
}

#[test]
fn a_topic_column_wins_unless_it_is_null_or_empty() {
    assert_eq!(&*record(&usual(&[("topic", b"payments")])).topic, "payments");
    assert_eq!(&*record(&usual(&[("topic", b"")])).topic, "outbox.event.order");
    let mut values = without("aggregate_type");
    values.push(("topic", b"payments"));
    assert_eq!(&*record(&values).topic, "payments");
}

#[test]
fn a_template_names_fields_and_columns() {
    let mut config = config();
    config.route.topic = "{region}.{aggregate_type}-{type}".to_owned();
    let names = [DEBEZIUM.as_slice(), &["region"]].concat();
    let values: [(&str, &[u8]); 6] = [
        ("id", b"u"),
        ("aggregatetype", b"cart"),
        ("aggregateid", b"3"),
        ("type", b"Added"),
        ("payload", b"{}"),
        ("region", b"eu"),
    ];
    assert_eq!(&*record_in(&config, &names, &values).topic, "eu.cart-Added");
}

#[test]
fn a_template_that_is_badly_written_is_an_error_with_its_place() {
    for (template, position, problem) in [
        ("", 1, "it is empty"),
        ("a.{b", 3, "this brace is never closed"),
        ("a.b}", 4, "a closing brace without an opening one"),
        ("a.{}", 3, "no column is named between the braces"),
        ("a.{b{c}}", 5, "a brace within a column's name"),
        ("a{{b}}", 2, "'{' may not stand in a topic's name"),
        ("a}}", 2, "'}' may not stand in a topic's name"),
        ("a b.{c}", 2, "' ' may not stand in a topic's name"),
        ("\u{e9}{c}", 1, "'é' may not stand in a topic's name"),
        ("..", 1, "the names . and .. are not allowed"),
        ("__x", 1, "names that begin with __ are Kafka's own"),
        ("__{x}", 1, "names that begin with __ are Kafka's own"),
    ] {
        let mut config = config();
        config.route.topic = template.to_owned();
        let error = Router::new(&config).unwrap_err();
        assert_eq!((error.position, error.problem.to_string().as_str()), (position, problem), "{template:?}");
        assert!(error.to_string().contains("WALPOST_TOPIC"), "{error}");
    }
    let mut config = config();
    config.route.topic = "x".repeat(250);
    assert!(Router::new(&config).is_err());
}

fn bind_error(config: &Config, names: &[&str]) -> MappingError {
    let relation = relation(names);
    let mapping = Mapping::resolve(&relation, &config.columns, config.preset).unwrap();
    Router::new(config).unwrap().bind(&relation, &mapping).unwrap_err()
}

#[test]
fn a_template_over_a_column_that_does_not_exist_is_refused_when_it_is_bound() {
    let mut config = config();
    config.route.topic = "x.{agregate_type}".to_owned();
    assert_eq!(
        bind_error(&config, &["id", "aggregate_type", "aggregate_id", "payload", "topic"]).to_string(),
        "the topic template x.{agregate_type} names \"agregate_type\", but table public.outbox_messages has no such \
         column (is it \"aggregate_type\"?). The columns that its publication sends are id, aggregate_type, \
         aggregate_id, payload, topic. Mend route.topic (--topic, WALPOST_TOPIC)"
    );
}

#[test]
fn the_aggregate_type_may_be_absent_only_where_nothing_needs_it() {
    assert!(matches!(bind_error(&config(), &["id", "aggregate_id", "payload"]), MappingError::Template { .. }));
    let mut fixed = config();
    fixed.route.topic = "events".to_owned();
    let values: [(&str, &[u8]); 3] = [("id", b"1"), ("aggregate_id", b"a"), ("payload", b"{}")];
    assert_eq!(&*record_in(&fixed, &["id", "aggregate_id", "payload"], &values).topic, "events");

    let names = ["id", "aggregate_id", "payload", "topic"];
    let routed = [values.as_slice(), &[("topic", b"t".as_slice())]].concat();
    assert_eq!(&*record_in(&config(), &names, &routed).topic, "t");
    let poison = route_in(&config(), &names, &values).unwrap_err();
    assert_eq!(poison.reason, PoisonReason::BadTopic);
    assert!(poison.sentence.contains("aggregate_type, for which the table has no column"), "{poison}");
}

#[test]
fn a_header_of_a_column_that_does_not_exist_is_refused_when_it_is_bound() {
    let mut config = config();
    config.headers.columns = BTreeMap::from([("tenant".to_owned(), "tennant_id".to_owned())]);
    let error = bind_error(&config, &[WALPOST.as_slice(), &["tenant_id"]].concat()).to_string();
    assert!(error.starts_with("header \"tenant\" is to hold column \"tennant_id\""), "{error}");
    assert!(error.contains("(is it \"tenant_id\"?)") && error.contains("headers.columns"), "{error}");
}

#[test]
fn null_in_a_column_of_the_template_is_poison() {
    let null = poison(&without("aggregate_type"));
    assert_eq!(null.reason, PoisonReason::BadTopic);
    assert_eq!(
        null.to_string(),
        "column \"aggregate_type\" is NULL, but the topic template outbox.event.{aggregate_type} needs it; write a \
         value, or change route.topic"
    );
    assert!(poison(&usual(&[("aggregate_type", b"")])).sentence.contains("is empty"));
}

#[test]
fn a_name_that_kafka_does_not_allow_is_poison_and_quoted() {
    for topic in ["a b", "__consumer_offsets", ".", "..", "ä", "a/b", "a\0", "a\n"] {
        let poison = poison(&usual(&[("topic", topic.as_bytes())]));
        assert_eq!(poison.reason, PoisonReason::BadTopic, "{topic:?}");
        assert!(!poison.sentence.chars().any(char::is_control), "{poison}");
    }
    assert_eq!(
        poison(&usual(&[("aggregate_type", b"my order")])).to_string(),
        "Kafka allows no topic \"outbox.event.my order\": only letters, digits, '.', '_' and '-' may stand in it, not \
         ' ' (byte 16); mend the row's topic or route.topic"
    );
    let long = poison(&usual(&[("topic", &[b'x'; 300])])).to_string();
    assert!(long.len() < 300 && long.contains("…\" (300 bytes)"), "{long}");
    assert_eq!(poison(&usual(&[("topic", &[0xff])])).reason, PoisonReason::BadTopic);
}

#[test]
fn null_and_empty_keys_are_poison_unless_they_are_allowed() {
    for (values, what) in [(without("aggregate_id"), "NULL"), (usual(&[("aggregate_id", b"")]), "empty")] {
        let poison = poison(&values);
        assert_eq!(poison.reason, PoisonReason::NullKey);
        assert!(poison.sentence.starts_with(&format!("column \"aggregate_id\" is {what},")), "{poison}");

        let mut config = config();
        config.on_null_key = OnNullKey::Allow;
        config.route.partitioner = Partitioner::Crc32;
        let record = record_in(&config, &WALPOST, &values);
        assert_eq!(record.key.as_deref(), (what == "empty").then_some(b"".as_slice()));
        assert_eq!(record.partition_hash, partition::murmur2(b"u-1"));
    }
}

#[test]
fn a_null_payload_is_what_the_setting_says() {
    let poison = poison(&without("payload"));
    assert_eq!(poison.reason, PoisonReason::NullPayload);
    assert!(poison.sentence.starts_with("column \"payload\" is NULL"), "{poison}");
    let mut config = config();
    config.on_null_payload = OnNullPayload::Tombstone;
    assert_eq!(record_in(&config, &WALPOST, &without("payload")).value, None);
    config.on_null_payload = OnNullPayload::Skip;
    let routed = route_in(&config, &WALPOST, &without("payload"));
    assert_eq!(routed, Ok(Routed::Skip(SkipReason::NullPayload)));
    // An empty value is a value.
    assert_eq!(record(&usual(&[("payload", b"")])).value.unwrap(), "");
}

#[test]
fn each_member_is_a_header_in_order_and_nothing_is_printed_anew() {
    assert_eq!(
        row_headers(
            r#" {"b": "plain", "a":"q\"\u20ac\n\ud83d\ude00", "n": 1234567890123456789012, "f":1.10,"e" : 1E400,
                "deep": {"x": [1,  2]}, "list":[ ], "yes":true, "": "", "b":"again", "a\u0062c":-0} "#
        ),
        [
            some("b", "plain"),
            some("a", "q\"€\n😀"),
            some("n", "1234567890123456789012"),
            some("f", "1.10"),
            some("e", "1E400"),
            some("deep", r#"{"x": [1,  2]}"#),
            some("list", "[ ]"),
            some("yes", "true"),
            some("", ""),
            some("b", "again"),
            some("abc", "-0"),
        ]
    );
    assert_eq!(row_headers(r#"{"none": null}"#), [("none".to_owned(), None)]);
    assert_eq!(row_headers(r#"{"zero":"\u0000"}"#), [some("zero", "\0")]);
    for none in ["{}", " { } ", "{\n}"] {
        assert_eq!(row_headers(none), []);
    }
}

#[test]
fn null_headers_are_no_headers() {
    assert_eq!(record(&usual(&[])).headers.len(), 3);
}

#[test]
fn headers_that_are_no_object_are_poison() {
    for (json, said) in [
        ("[]", "an empty PHP array"),
        ("[1]", "an array"),
        ("null", "null"),
        ("\"x\"", "a string"),
        ("1", "a number"),
        ("-1", "a number"),
        ("true", "a boolean"),
        ("", "empty"),
        ("  ", "empty"),
        ("#", "no JSON"),
    ] {
        let poison = poison(&usual(&[("headers", json.as_bytes())]));
        assert_eq!(poison.reason, PoisonReason::BadHeaders, "{json:?}");
        assert!(poison.sentence.contains("column \"headers\"") && poison.sentence.contains(said), "{poison}");
    }
    for json in [r#"{"a":1"#, r#"{"a":1} x"#, r#"{"a"}"#, "{a:1}", r#"{"a":01}"#, r#"{"id":1"#, "{\"a\":\"\n\"}"] {
        let poison = poison(&usual(&[("headers", json.as_bytes())]));
        assert_eq!(poison.reason, PoisonReason::BadHeaders, "{json:?}");
    }
    assert_eq!(poison(&usual(&[("headers", b"{\"a\":\"\xff\"}")])).reason, PoisonReason::BadHeaders);
    assert_eq!(poison(&usual(&[("headers", b"{\"\xff\":1}")])).reason, PoisonReason::BadHeaders);
}

#[test]
fn half_a_surrogate_pair_is_poison_as_a_text_and_passes_within_other_json() {
    for json in [r#"{"a":"\ud800"}"#, r#"{"a":"\udc00x"}"#, r#"{"\ud800":1}"#, r#"{"a":"\ud800\u0041"}"#] {
        let poison = poison(&usual(&[("headers", json.as_bytes())]));
        assert_eq!(poison.reason, PoisonReason::BadHeaders, "{json}");
    }
    assert_eq!(row_headers(r#"{"a":{"b":"\ud800"}}"#), [some("a", r#"{"b":"\ud800"}"#)]);
}

#[test]
fn a_name_with_a_zero_character_is_poison() {
    assert_eq!(poison(&usual(&[("headers", br#"{"a\u0000":1}"#)])).reason, PoisonReason::BadHeaders);
}

#[test]
fn names_of_walposts_own_headers_are_reserved() {
    for json in [r#"{"id":1}"#, r#"{"eventType":"x"}"#, r#"{"a":1,"token":null}"#, r#"{"\u0069d":1}"#] {
        let poison = poison(&usual(&[("headers", json.as_bytes())]));
        assert_eq!(poison.reason, PoisonReason::ReservedHeader, "{json}");
    }
    // Also where the row has no event type, so that what a name means does not change from row to row.
    let mut values = without("event_type");
    values.push(("headers", br#"{"eventType":"x"}"#));
    assert_eq!(poison(&values).reason, PoisonReason::ReservedHeader);
    assert_eq!(row_headers(r#"{"ID":1,"created_at":2}"#).len(), 2);
    let mut config = config();
    config.headers.created_at = "created_at".to_owned();
    config.headers.columns = BTreeMap::from([("tenant".to_owned(), "topic".to_owned())]);
    for json in [r#"{"created_at":2}"#, r#"{"tenant":2}"#] {
        let poison = route_in(&config, &WALPOST, &usual(&[("headers", json.as_bytes())])).unwrap_err();
        assert_eq!(poison.reason, PoisonReason::ReservedHeader, "{json}");
    }
}

#[test]
fn deeply_nested_json_is_passed_on() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(row_headers(&format!("{{\"a\":{deep}}}")), [some("a", &deep)]);
}

#[test]
fn rows_of_several_relations_are_each_routed_by_their_own_columns() {
    let config = config();
    let mut router = Router::new(&config).unwrap();
    let one = relation(&["id", "aggregate_type", "aggregate_id", "payload"]);
    let mut other = relation(&["payload", "aggregate_id", "aggregate_type", "id"]);
    other.oid += 1;
    for _ in 0..2 {
        for relation in [&one, &other] {
            let mapping = Mapping::resolve(relation, &config.columns, None).unwrap();
            router.bind(relation, &mapping).unwrap();
        }
    }
    for relation in [&one, &other, &one] {
        let row = row(relation, &without("event_type"));
        let mapping = Mapping::resolve(relation, &config.columns, None).unwrap();
        let message = mapping.message(&row).unwrap();
        assert_eq!(&*router.topic(&message, &row).unwrap(), "outbox.event.order");
        let Ok(Routed::Publish(record)) = router.route(&message, &row, TOKEN) else { panic!() };
        assert_eq!((&*record.topic, record.key.as_deref()), ("outbox.event.order", Some(b"key".as_slice())));
    }
}

#[test]
fn topics_and_header_names_are_shared_between_records() {
    let config = config();
    let relation = relation(&WALPOST);
    let mapping = Mapping::resolve(&relation, &config.columns, None).unwrap();
    let mut router = Router::new(&config).unwrap();
    router.bind(&relation, &mapping).unwrap();
    let mut record = || {
        let row = row(&relation, &usual(&[("headers", br#"{"traceparent": "x"}"#)]));
        match router.route(&mapping.message(&row).unwrap(), &row, TOKEN) {
            Ok(Routed::Publish(record)) => record,
            other => panic!("{other:?}"),
        }
    };
    let (one, other) = (record(), record());
    assert!(Arc::ptr_eq(&one.topic, &other.topic));
    assert!(one.headers.iter().zip(&other.headers).all(|(one, other)| Arc::ptr_eq(&one.name, &other.name)));
}

proptest! {
    #[test]
    fn any_row_of_any_table_is_routed_or_refused(
        row in any_relation().prop_flat_map(any_row),
        template in prop::sample::select(vec!["outbox.event.{aggregate_type}", "t", "{body}.{payload}"]),
        allow: bool,
    ) {
        let mut config = config();
        config.route.topic = template.to_owned();
        if allow {
            config.on_null_key = OnNullKey::Allow;
            config.on_null_payload = OnNullPayload::Tombstone;
        }
        let mut router = Router::new(&config).unwrap();
        for preset in [None, Some(Preset::Walpost), Some(Preset::Debezium)] {
            let Ok(mapping) = Mapping::resolve(&row.relation, &config.columns, preset) else { continue };
            if router.bind(&row.relation, &mapping).is_err() {
                continue;
            }
            let Ok(message) = mapping.message(&row) else { continue };
            match router.route(&message, &row, TOKEN) {
                Ok(Routed::Publish(record)) => {
                    prop_assert!(topic::check(record.topic.as_bytes()).is_ok());
                    prop_assert!(allow || record.key.is_some_and(|key| !key.is_empty()));
                }
                Ok(Routed::Skip(_)) => prop_assert!(false, "nothing was to be skipped"),
                Err(poison) => prop_assert!(!poison.sentence.is_empty()),
            }
        }
    }

    #[test]
    fn any_headers_are_read_or_refused(json in vec(any::<u8>(), 0..60)) {
        let _ = route_in(&config(), &WALPOST, &usual(&[("headers", &json)]));
        let object = [b"{\"a\":".as_slice(), &json, b"}"].concat();
        let _ = route_in(&config(), &WALPOST, &usual(&[("headers", &object)]));
    }

    #[test]
    fn every_json_text_becomes_the_header_that_it_stands_for(
        members in vec(("[^\\x00]{0,8}", prop::option::of(any::<String>())), 0..6),
    ) {
        let own = ["id", "eventType", "token"];
        let members: Vec<_> = members.into_iter().filter(|(name, _)| !own.contains(&name.as_str())).collect();
        let json: Vec<String> = members
            .iter()
            .map(|(name, value)| format!("{}:{}", serde_json::json!(name), serde_json::json!(value)))
            .collect();
        prop_assert_eq!(row_headers(&format!("{{{}}}", json.join(","))), members);
    }

    #[test]
    fn any_template_is_taken_apart_or_refused(template in "[a{}._ é]{0,12}") {
        let mut config = config();
        config.route.topic = template;
        let _ = Router::new(&config);
    }
}

#[test]
fn laravels_topic_table_needs_no_aggregate_type_of_a_row_with_a_topic() {
    let values: [(&str, &[u8]); 4] = [("id", b"1"), ("topic", b"mails"), ("aggregate_id", b"a"), ("payload", b"{}")];
    assert_eq!(&*record_in(&config(), &LARAVEL_TOPIC, &values).topic, "mails");
}
