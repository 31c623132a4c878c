//! The configuration as a whole: every setting through every layer, every problem at once, no secret anywhere.

use proptest::prelude::*;

use super::problem::Problem;
use super::settings::{Kind, SETTINGS, Setting, find};
use super::*;

/// A value that is not the default, as the environment writes it and as the file writes it.
fn other_value(setting: &Setting) -> (&'static str, &'static str) {
    match (&setting.kind, setting.key) {
        (_, "kafka.brokers") => ("other-1:9092,other-2:9092", "[\"other-1:9092\", \"other-2:9092\"]"),
        (_, "topics.create") => ("partitions=6,replication=3", "{ partitions = 6, replication = 3 }"),
        (_, "http.listen") => ("127.0.0.1:9999", "\"127.0.0.1:9999\""),
        (_, "log.level") => ("walpost=debug,warn", "\"walpost=debug,warn\""),
        (Kind::Text(_), _) => ("other", "\"other\""),
        (Kind::Secret(_), _) => ("host=other password=hunter2", "\"host=other password=hunter2\""),
        (Kind::Integer { .. }, _) => ("77", "77"),
        (Kind::Size { .. }, _) => ("77MB", "\"77MB\""),
        (Kind::Duration { .. }, _) => ("7s", "\"7s\""),
        (Kind::Switch(_), _) => ("false", "false"),
        (Kind::List(_), _) => ("other, second", "[\"other\", \"second\"]"),
        (Kind::Map(_), _) => ("a=b,c=d", "{ a = \"b\", c = \"d\" }"),
        (Kind::Choice(choices), _) => match choices.last().unwrap().0 {
            "allow" => ("allow", "\"allow\""),
            "skip" => ("skip", "\"skip\""),
            "park" => ("park", "\"park\""),
            "debezium" => ("debezium", "\"debezium\""),
            "plain" => ("plain", "\"plain\""),
            "fnv1a" => ("fnv1a", "\"fnv1a\""),
            "json" => ("json", "\"json\""),
            other => panic!("no test value for the choice {other}"),
        },
        (Kind::Joined(_), key) => panic!("no test value for {key}"),
    }
}

/// Shows secrets, so that two configurations can be compared.
fn everything(config: &Config) -> String {
    let secret =
        |source: &Option<SecretSource>| source.as_ref().map(|source| source.read().unwrap().expose().to_owned());
    let properties: Vec<_> = config.kafka.properties.iter().map(|(k, v)| (k.clone(), v.expose().to_owned())).collect();
    let secrets = (secret(&config.postgres.url), secret(&config.postgres.password), properties);
    format!("{config:?} {secrets:?}")
}

fn environment<const N: usize>(variables: [(&str, &str); N]) -> Environment {
    variables.into_iter().collect()
}

struct File {
    directory: tempfile::TempDir,
}

impl File {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("walpost.toml"), text).unwrap();
        File { directory }
    }
    fn given(&self) -> Given {
        Given { file: Some(self.directory.path().join("walpost.toml")), ..Given::default() }
    }
}

fn from_file(text: &str) -> Result<Loaded, ConfigErrors> {
    load(&File::new(text).given(), &Environment::default(), Needs::default())
}

fn from_environment<const N: usize>(variables: [(&str, &str); N]) -> Result<Loaded, ConfigErrors> {
    load(&Given::default(), &environment(variables), Needs::default())
}

fn from_flag(key: &'static str, value: &str) -> Result<Loaded, ConfigErrors> {
    let flag = format!("--{}", find(key).unwrap().flag.unwrap());
    let settings = vec![(key, flag, Secret::new(value))];
    load(&Given { settings, ..Given::default() }, &Environment::default(), Needs::default())
}

fn problems(result: Result<Loaded, ConfigErrors>) -> Vec<String> {
    result.unwrap_err().problems.iter().map(Problem::to_string).collect()
}

fn in_section(setting: &Setting, value: &str) -> String {
    match setting.key.rsplit_once('.') {
        Some((section, leaf)) => format!("[{section}]\n{leaf} = {value}\n"),
        None => format!("{} = {value}\n", setting.key),
    }
}

#[test]
fn every_setting_is_taken_from_the_file_the_environment_and_its_flag() {
    let default = everything(&Config::default());
    for setting in SETTINGS {
        let (text, toml) = other_value(setting);
        let variable = setting.variable();
        let by_variable = from_environment([(&variable, text)]).unwrap_or_else(|e| panic!("{}: {e}", setting.key));
        let by_file = from_file(&in_section(setting, toml)).unwrap_or_else(|e| panic!("{}: {e}", setting.key));
        assert_eq!(everything(&by_variable.config), everything(&by_file.config), "{}", setting.key);
        assert_ne!(everything(&by_variable.config), default, "{} changes nothing", setting.key);
        if setting.flag.is_some() {
            let by_flag = from_flag(setting.key, text).unwrap();
            assert_eq!(everything(&by_flag.config), everything(&by_file.config), "{}", setting.key);
        }
    }
}

#[test]
fn a_flag_wins_over_the_environment_over_the_file_over_foreign_variables_over_the_default() {
    for setting in SETTINGS {
        let (text, toml) = other_value(setting);
        let key = setting.key;
        let source_of = |loaded: &Loaded| loaded.sources.iter().find(|e| e.key == key).unwrap().source.clone();
        let file = File::new(&in_section(setting, toml));
        let mut given = file.given();
        let mut variables: Vec<(String, String)> = Vec::new();
        let empty = load(&Given::default(), &Environment::default(), Needs::default()).unwrap();
        assert_eq!(source_of(&empty), Source::Default, "{key}");

        variables.extend(setting.foreign.iter().map(|name| ((*name).to_owned(), text.to_owned())));
        if let Some(first) = setting.foreign.first() {
            let loaded = load(&Given::default(), &variables.clone().into_iter().collect(), Needs::default()).unwrap();
            assert_eq!(source_of(&loaded), Source::Foreign((*first).to_owned()), "{key}");
        }
        let loaded = load(&given, &variables.clone().into_iter().collect(), Needs::default()).unwrap();
        assert!(matches!(source_of(&loaded), Source::File { line: Some(1 | 2), .. }), "{key}");

        variables.push((setting.variable().into_owned(), text.to_owned()));
        let loaded = load(&given, &variables.clone().into_iter().collect(), Needs::default()).unwrap();
        assert_eq!(source_of(&loaded), Source::Variable(setting.variable().into_owned()), "{key}");

        if let Some(flag) = setting.flag {
            given.settings.push((key, format!("--{flag}"), Secret::new(text)));
            let loaded = load(&given, &variables.into_iter().collect(), Needs::default()).unwrap();
            assert_eq!(source_of(&loaded), Source::Flag(format!("--{flag}")), "{key}");
        }
    }
}

#[test]
fn the_winning_layer_gives_the_value() {
    let file = File::new("[postgres]\nslot = \"from_file\"\n[kafka.properties]\nlinger.ms = 3\nbatch.size = 9");
    let mut given = file.given();
    let variables = environment([("WALPOST_SLOT", "from_variable"), ("WALPOST_KAFKA_LINGER_MS", "4")]);
    let loaded = load(&given, &variables, Needs::default()).unwrap();
    assert_eq!(loaded.config.postgres.slot, "from_variable");
    assert_eq!(loaded.config.kafka.properties["linger.ms"].expose(), "4");
    assert_eq!(loaded.config.kafka.properties["batch.size"].expose(), "9");

    given.settings.push(("postgres.slot", "--slot".to_owned(), Secret::new("from_flag")));
    // The other name of linger.ms.
    given.properties.push(("queue.buffering.max.ms".to_owned(), Secret::new("5")));
    let loaded = load(&given, &variables, Needs::default()).unwrap();
    assert_eq!(loaded.config.postgres.slot, "from_flag");
    assert_eq!(loaded.config.kafka.properties["linger.ms"].expose(), "5");
}

#[test]
fn foreign_variables_are_read_in_their_order_and_an_empty_one_counts_as_unset() {
    let both = from_environment([("KAFKA_BOOTSTRAP_SERVERS", "a:1"), ("KAFKA_BROKERS", "b:1")]).unwrap();
    assert_eq!(both.config.kafka.brokers.as_deref(), Some("a:1"));
    let second = from_environment([("KAFKA_BOOTSTRAP_SERVERS", ""), ("KAFKA_BROKERS", "b:1")]).unwrap();
    assert_eq!(second.config.kafka.brokers.as_deref(), Some("b:1"));
    // What another program's variable says is checked only where it counts.
    assert!(from_environment([("RUST_LOG", "inof")]).is_err());
    assert!(from_environment([("RUST_LOG", "inof"), ("WALPOST_LOG_LEVEL", "info")]).is_ok());
}

#[test]
fn the_defaults_are_those_that_are_documented() {
    let config = Config::default();
    assert_eq!(config.postgres.table, "outbox_messages");
    assert_eq!((config.postgres.slot.as_str(), config.postgres.publication.as_str()), ("walpost", "walpost"));
    assert_eq!(config.route.topic, "outbox.event.{aggregate_type}");
    assert_eq!(config.topics.create, TopicsCreate::Broker);
    assert_eq!((config.window.messages, config.window.bytes), (50_000, 32 << 20));
    assert_eq!(config.feedback.interval, Duration::from_secs(1));
    assert_eq!(config.shutdown.timeout, Duration::from_secs(25));
    assert_eq!(config.http.listen, Some(([127, 0, 0, 1], 9464).into()));
    assert_eq!((config.headers.id.as_str(), config.headers.event_type.as_str()), ("id", "eventType"));
    assert_eq!((config.headers.token.as_str(), config.headers.created_at.as_str()), ("token", ""));
    assert_eq!((config.on_poison, config.on_route_error), (OnPoison::Park, OnRouteError::Wait));
    assert_eq!((config.log.level.as_str(), config.log.format), ("info", None));
    // What the table calls a default is what its own kind accepts.
    for setting in SETTINGS.iter().filter(|setting| setting.default.is_some()) {
        let text = accept::Raw::Text(setting.default.unwrap().to_owned());
        assert_eq!(setting.accept(&mut Config::default(), &text), Ok(()), "{}", setting.key);
    }
}

#[test]
fn every_setting_is_explained_and_named_once() {
    for (position, setting) in SETTINGS.iter().enumerate() {
        assert!(!setting.help.is_empty() && !setting.help.ends_with('.'), "{}", setting.key);
        assert!(setting.default.is_some() || !setting.unset.is_empty(), "{}", setting.key);
        for other in &SETTINGS[..position] {
            assert_ne!(setting.key, other.key);
            assert_ne!(setting.variable(), other.variable());
            assert!(setting.flag.is_none() || setting.flag != other.flag);
        }
    }
}

#[test]
fn all_problems_are_reported_at_once_each_with_its_place() {
    let file = File::new(
        "on_poison = \"pause\"\n[postgres]\ntabel = \"x\"\n[window]\nmessages = 0\n[kafka.properties]\nacks = 1\n\
         max.request.size = 5\n",
    );
    let mut given = file.given();
    given.settings.push(("postgres.slot", "--slot".to_owned(), Secret::new("My-Slot")));
    given.properties.push(("linger.mss".to_owned(), Secret::new("5")));
    let variables = environment([
        ("WALPOST_FEEDBACK_INTERVAL", "5"),
        ("WALPOST_SLOTT", "x"),
        ("WALPOST_KAFKA_GROUP_ID", "x"),
        ("WALPOST_PUBLICATION", ""),
    ]);
    let problems = problems(load(&given, &variables, Needs { postgres: true, kafka: true }));
    let expected = [
        ("walpost.toml:1: on_poison: ", "park, stop, dead_letter or skip"),
        ("walpost.toml:3: postgres.tabel: ", "did you mean postgres.table?"),
        ("walpost.toml:5: window.messages: ", "1 to 10000000"),
        ("walpost.toml:7: kafka.properties.acks: ", "in-sync"),
        ("walpost.toml:8: kafka.properties.max.request.size: ", "message.max.bytes"),
        ("--slot: ", "1 to 63 of a-z, 0-9 and _"),
        ("--kafka: ", "did you mean linger.ms?"),
        ("WALPOST_FEEDBACK_INTERVAL: ", "5s or 5ms"),
        ("WALPOST_SLOTT: ", "did you mean WALPOST_SLOT?"),
        ("WALPOST_KAFKA_GROUP_ID: ", "consumers"),
        ("WALPOST_PUBLICATION: ", "is empty"),
        ("postgres.url: ", "WALPOST_DATABASE_URL"),
        ("kafka.brokers: ", "WALPOST_BROKERS"),
    ];
    for (place, right) in expected {
        assert!(problems.iter().any(|p| p.contains(place) && p.contains(right)), "{place} {right}: {problems:#?}");
    }
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
}

#[test]
fn a_missing_end_is_a_problem_only_where_it_is_needed() {
    let needs = Needs { postgres: true, kafka: false };
    assert!(load(&Given::default(), &Environment::default(), needs).is_err());
    assert!(load(&Given::default(), &environment([("PGHOST", "/run/postgresql")]), needs).is_ok());
    assert!(load(&Given::default(), &environment([("DATABASE_URL", "postgres://h/d")]), needs).is_ok());
    // The file could name them, had it been readable: it is the one problem.
    let given = Given { file: Some("/nonexistent/walpost.toml".into()), ..Given::default() };
    let problems = problems(load(&given, &Environment::default(), needs));
    assert!(matches!(problems.as_slice(), [one] if one.starts_with("--config: ")), "{problems:?}");
}

#[test]
fn an_empty_variable_is_a_problem_unless_empty_has_a_meaning() {
    for setting in SETTINGS {
        let variable = setting.variable();
        let loaded = from_environment([(&variable, "")]);
        assert_eq!(loaded.is_ok(), setting.empty.is_some(), "{}", setting.key);
    }
    assert_eq!(from_environment([("WALPOST_HEADERS_TOKEN", "")]).unwrap().config.headers.token, "");
    assert!(from_environment([("WALPOST_CONFIG", "")]).is_err());
    assert!(from_environment([("WALPOST_DATABASE_URL_FILE", "")]).is_err());
}

#[test]
fn a_value_of_the_wrong_type_or_out_of_bounds_says_what_is_right() {
    let cases = [
        ("name = 5", "put it in quotes"),
        ("[window]\nmessages = 10000001", "1 to 10000000"),
        ("[window]\nbytes = 5", "1MiB to 1GiB"),
        ("[window]\nbytes = \"32M\"", "32MiB or 32MB"),
        ("[window]\nbytes = true", "a size"),
        ("[shutdown]\ntimeout = 25", "25s or 25ms"),
        ("[feedback]\ninterval = \"5ms\"", "10ms to 1h"),
        ("[topics]\ncreate = { partitions = 6 }", "replication is missing"),
        ("[topics]\ncreate = \"nevre\"", "did you mean never?"),
        ("[columns]\nid = 5", "an array of strings"),
        ("[columns]\nid = [[\"x\"]]", "an array of strings"),
        ("[headers]\ncolumns = \"x\"", "name=value"),
        ("[kafka]\nbrokers = \"kafka://h:9092\"", "security.protocol"),
        ("[http]\nlisten = \"example.org:80\"", "127.0.0.1:9464"),
        ("preset = \"larvael\"", "did you mean laravel?"),
        ("[log]\nlevel = \"inof\"", "did you mean info?"),
        ("[kafka.properties]\n\"linger.ms\" = 2020-01-01", "a string, a number"),
    ];
    for (text, right) in cases {
        let problems = problems(from_file(text));
        assert!(matches!(problems.as_slice(), [one] if one.contains(right)), "{text}: {problems:?}");
    }
}

#[test]
fn a_profile_gives_the_names_of_headers_that_are_not_set_themselves() {
    let loaded = from_file("[headers]\nevent_type = \"kind\"\nprofile = \"plain\"\ncolumns = { a = \"b\" }").unwrap();
    let headers = &loaded.config.headers;
    assert_eq!((headers.id.as_str(), headers.event_type.as_str()), ("message_id", "kind"));
    assert_eq!(headers.columns["a"], "b");
    assert!(show::toml(&loaded).contains("id = \"message_id\""));
}

#[test]
fn every_secret_can_be_a_file_and_loses_one_newline() {
    for (variable, text, secret) in [
        ("WALPOST_DATABASE_URL_FILE", "[postgres]\nurl_file = \"secret\"", "postgres.url_file"),
        ("WALPOST_POSTGRES_PASSWORD_FILE", "[postgres]\npassword_file = \"secret\"", "postgres.password_file"),
        (
            "WALPOST_KAFKA_SASL_PASSWORD_FILE",
            "[kafka.properties]\nsasl.password_file = \"secret\"",
            "kafka.properties.sasl.password_file",
        ),
        (
            "WALPOST_KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET_FILE",
            "[kafka.properties]\n\"sasl.oauthbearer.client.secret_file\" = \"secret\"",
            "kafka.properties.sasl.oauthbearer.client.secret_file",
        ),
    ] {
        // In the file, a path counts from the file's own directory.
        let file = File::new(text);
        let path = file.directory.path().join("secret");
        std::fs::write(&path, "hunter2\n\n").unwrap();
        let by_file = load(&file.given(), &Environment::default(), Needs::default()).unwrap();
        let by_variable = from_environment([(variable, path.to_str().unwrap())]).unwrap();
        for loaded in [by_file, by_variable] {
            let config = everything(&loaded.config);
            assert!(config.contains("\"hunter2\\n\""), "{variable}: one newline goes: {config}");
            assert!(loaded.sources.iter().any(|effective| effective.key == secret), "{variable}");
        }
        std::fs::remove_file(&path).unwrap();
        let missing = problems(from_environment([(variable, path.to_str().unwrap())]));
        assert!(matches!(missing.as_slice(), [one] if one.contains("No such file")), "{missing:?}");
    }
}

#[test]
fn one_layer_may_say_a_thing_only_once() {
    let twice = [
        problems(from_environment([("WALPOST_DATABASE_URL", "x"), ("WALPOST_DATABASE_URL_FILE", "/etc/hostname")])),
        problems(from_file("[postgres]\nurl = \"x\"\nurl_file = \"/etc/hostname\"")),
        problems(from_environment([
            ("WALPOST_KAFKA_SASL_PASSWORD", "x"),
            ("WALPOST_KAFKA_SASL_PASSWORD_FILE", "/etc/hostname"),
        ])),
        problems(from_file("[kafka.properties]\n\"linger.ms\" = 1\n\"queue.buffering.max.ms\" = 2")),
    ];
    for problems in twice {
        assert!(matches!(problems.as_slice(), [one] if one.contains("given twice")), "{problems:?}");
    }
    // Different layers do not contradict each other, and a file that does not count need not exist.
    let file =
        File::new("[postgres]\nurl_file = \"nowhere\"\n[kafka.properties]\n\"sasl.password_file\" = \"nowhere\"");
    let variables = environment([("WALPOST_DATABASE_URL", "x"), ("WALPOST_KAFKA_SASL_PASSWORD", "y")]);
    assert!(load(&file.given(), &variables, Needs::default()).is_ok());
}

#[test]
fn a_queue_below_the_window_is_refused_with_its_place() {
    let problems = problems(from_file("[kafka.properties]\nqueue.buffering.max.messages = 100"));
    assert!(
        matches!(problems.as_slice(), [one] if one.contains("walpost.toml:2: ") && one.contains("window.messages")),
        "{problems:?}"
    );
}

#[test]
fn a_password_on_the_command_line_is_taken_with_a_warning() {
    let visible = ["postgres://u:pw@h/d", "host=h password = pw", "postgres://h/d?password=pw"];
    for address in visible {
        let loaded = from_flag("postgres.url", address).unwrap();
        assert!(matches!(loaded.warnings.as_slice(), [one] if one.contains("other users")), "{address}");
    }
    for address in ["postgres://u@h/d", "postgres://u:@h/d", "host=h user=password", "postgres://h/d?sslmode=require"] {
        assert!(from_flag("postgres.url", address).unwrap().warnings.is_empty(), "{address}");
    }
    let properties = vec![("sasl.password".to_owned(), Secret::new("pw"))];
    let given = Given { properties, ..Given::default() };
    let loaded = load(&given, &Environment::default(), Needs::default()).unwrap();
    assert!(matches!(loaded.warnings.as_slice(), [one] if one.contains("WALPOST_KAFKA_SASL_PASSWORD_FILE")));
    assert!(from_environment([("WALPOST_DATABASE_URL", visible[0])]).unwrap().warnings.is_empty());
}

#[test]
fn a_long_feedback_interval_is_warned_about() {
    assert!(from_environment([("WALPOST_FEEDBACK_INTERVAL", "20s")]).unwrap().warnings.is_empty());
    let loaded = from_environment([("WALPOST_FEEDBACK_INTERVAL", "21s")]).unwrap();
    assert!(loaded.warnings.iter().any(|warning| warning.contains("wal_sender_timeout")));
}

#[test]
fn the_example_file_is_the_template_and_loads() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/walpost.example.toml");
    let example = std::fs::read_to_string(path).unwrap();
    assert!(example == template::template(), "run `walpost config template > walpost.example.toml`");
    let loaded = from_file(&example).unwrap();
    assert_eq!(everything(&loaded.config), everything(&Config::default()), "as it is, it changes nothing");
    for setting in SETTINGS {
        let leaf = setting.key.rsplit('.').next().unwrap();
        assert!(example.lines().any(|line| line.starts_with(&format!("#{leaf} = "))), "{}", setting.key);
        assert!(example.contains(&*setting.variable()), "{}", setting.key);
        assert!(setting.flag.is_none_or(|flag| example.contains(&format!("--{flag}"))), "{}", setting.key);
    }
}

#[test]
fn every_line_of_the_template_is_right_when_its_mark_is_taken_away() {
    let uncommented: String = template::template()
        .lines()
        .filter(|line| !line.contains("_file"))
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let loaded = from_file(&uncommented).unwrap_or_else(|errors| panic!("{errors}\n{uncommented}"));
    for setting in SETTINGS {
        let effective = loaded.sources.iter().find(|effective| effective.key == setting.key).unwrap();
        assert!(matches!(effective.source, Source::File { .. }), "{}", setting.key);
        // A default that is written out is the default.
        if let (Some(default), false) = (setting.default, setting.is_secret()) {
            let shown = effective.value.as_ref().unwrap();
            let shown = shown.as_str().map_or_else(|| shown.to_string(), str::to_owned);
            assert_eq!(shown, default, "{}", setting.key);
        }
    }
}

#[test]
fn what_show_prints_is_toml_with_sources_and_loads_again() {
    let file = File::new("[window]\nbytes = \"64MB\"\n[kafka.properties]\nlinger.ms = 3");
    let variables = environment([("WALPOST_TOPICS_CREATE", "partitions=6,replication=3")]);
    let loaded = load(&file.given(), &variables, Needs::default()).unwrap();
    let shown = show::toml(&loaded);
    assert!(shown.lines().any(|line| line.starts_with("bytes = \"64MB\"") && line.ends_with("walpost.toml:2")));
    assert!(shown.lines().any(|line| line.starts_with("create = ") && line.ends_with("# WALPOST_TOPICS_CREATE")));
    assert!(shown.lines().any(|line| line.starts_with("slot = \"walpost\"") && line.ends_with("# default")));
    assert!(shown.contains("# preset is not set: found from the table's columns"));
    let again = from_file(&shown).unwrap_or_else(|errors| panic!("{errors}\n{shown}"));
    assert_eq!(everything(&again.config), everything(&loaded.config));
    let json = show::json(&loaded);
    assert_eq!(json["window.bytes"]["value"], "64MB");
    assert_eq!(json["window.messages"], serde_json::json!({ "value": 50000, "source": "default" }));
    assert_eq!(json["preset"]["value"], serde_json::Value::Null);
}

proptest! {
    #[test]
    fn no_secret_is_ever_shown(secret in "[A-Za-z0-9+/]{12,40}") {
        let url = format!("postgres://walpost:{secret}@h/d");
        let file = File::new(&format!(
            "[postgres]\nurl = \"{url}\"\n[kafka.properties]\nsasl.password = \"{secret}\"\n\
             \"ssl.key.password\" = \"{secret}\""
        ));
        let mut given = file.given();
        given.settings.push(("postgres.url", "--database-url".to_owned(), Secret::new(&url)));
        given.properties.push(("sasl.oauthbearer.client.secret".to_owned(), Secret::new(&secret)));
        let variables = environment([
            ("WALPOST_POSTGRES_PASSWORD", secret.as_str()),
            ("WALPOST_KAFKA_SSL_KEYSTORE_PASSWORD", &secret),
            ("DATABASE_URL", &url),
        ]);
        let loaded = load(&given, &variables, Needs::default()).unwrap();
        prop_assert!(everything(&loaded.config).matches(&secret).count() >= 5);
        let printed = [show::toml(&loaded), show::json(&loaded).to_string(), format!("{loaded:?} {variables:?}")];
        for printed in printed {
            prop_assert!(!printed.contains(&secret), "{printed}");
        }
    }

    /// An address or a property under a wrong name or of a wrong type, an address in the wrong setting.
    #[test]
    fn no_problem_shows_a_secret(secret in "[A-Za-z0-9+/]{12,40}") {
        let url = format!("postgres://walpost:{secret}@h/d");
        let file = File::new(&format!(
            "databse_url = \"{url}\"\n[postgres]\nurl = [\"{url}\"]\npasword = \"{secret}\"\n[kafka]\n\
             sasl = \"{secret}\"\n[kafka.properties]\nsasl.pasword = \"{secret}\"\nsasl.password = {{ x = \"{secret}\" }}"
        ));
        let mut given = file.given();
        given.settings.push(("kafka.brokers", "--brokers".to_owned(), Secret::new(&url)));
        given.settings.push(("postgres.slot", "--slot".to_owned(), Secret::new(format!("password={secret}"))));
        given.properties.push(("sasl.pasword".to_owned(), Secret::new(&secret)));
        let variables = environment([("WALPOST_HTTP", url.as_str()), ("WALPOST_PASSWORD", &secret)]);
        let errors = load(&given, &variables, Needs::default()).unwrap_err();
        prop_assert!(errors.problems.len() >= 8, "{errors}");
        prop_assert!(!errors.to_string().contains(&secret), "{errors}");
        let debug = format!("{errors:?}");
        prop_assert!(!debug.contains(&secret), "{debug}");
    }

    #[test]
    fn no_file_makes_it_panic(text in ".{0,200}", bytes in "[a-z\\[\\]=\"'.#\n{}, 0-9]{0,200}") {
        let _ = from_file(&text);
        let _ = from_file(&bytes);
    }
}
