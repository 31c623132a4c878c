//! The command line as a user types it.

use super::*;
use crate::config::settings::SETTINGS;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("walpost").chain(line.split_ascii_whitespace()))
}

fn help_of(line: &str) -> String {
    let error = parse(line).unwrap_err();
    assert_eq!(error.exit_code(), 0, "{error}");
    error.to_string()
}

#[test]
fn clap_finds_the_command_line_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn flags_of_settings_stand_before_or_after_the_command() {
    for line in ["--slot a --config f run", "run --slot a --config f", "--slot a run -c f"] {
        let cli = parse(line).unwrap();
        assert_eq!(cli.settings.slot.as_deref(), Some("a"), "{line}");
        assert_eq!(cli.settings.config, Some(PathBuf::from("f")), "{line}");
    }
    assert_eq!(parse("config --slot a check").unwrap().settings.slot.as_deref(), Some("a"));
    assert_eq!(parse("--slot a run --slot b").unwrap().settings.slot.as_deref(), Some("b"));
}

#[test]
fn properties_before_and_after_the_command_add_up() {
    let cli = parse("-X linger.ms=1 config --kafka batch.size=2 show -X sasl.password=a=b").unwrap();
    let given: Vec<_> = cli.settings.kafka.iter().map(|flag| (flag.name.as_str(), flag.value.expose())).collect();
    assert_eq!(given, [("linger.ms", "1"), ("batch.size", "2"), ("sasl.password", "a=b")]);
    assert!(parse("run -X linger.ms").is_err());
}

#[test]
fn the_table_and_the_command_line_have_the_same_flags() {
    let command = Cli::command();
    let mut flags: Vec<String> = command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned).collect();
    flags.retain(|flag| flag != "kafka" && flag != "config");
    let mut table: Vec<String> = SETTINGS.iter().filter_map(|setting| setting.flag).map(str::to_owned).collect();
    flags.sort();
    table.sort();
    assert_eq!(flags, table);
}

#[test]
fn every_flag_of_a_setting_reaches_the_configuration() {
    for setting in SETTINGS {
        let Some(flag) = setting.flag else { continue };
        let value = match flag {
            "log-format" => "json",
            "log-level" => "debug",
            "topics-create" => "never",
            "http" => "off",
            _ => "other",
        };
        let flag = format!("--{flag}");
        let cli = Cli::try_parse_from(["walpost", "config", "show", &flag, value]).unwrap();
        let loaded = load(&cli, &Environment::default()).unwrap();
        let effective = loaded.sources.iter().find(|effective| effective.key == setting.key).unwrap();
        assert_eq!(effective.source, config::Source::Flag(flag));
    }
    let cli = parse("setup --print --preset laravel").unwrap();
    let loaded = load(&cli, &Environment::default()).unwrap();
    assert_eq!(loaded.config.preset, Some(config::Preset::Laravel));
}

#[test]
fn each_command_asks_for_the_ends_that_it_needs() {
    let complaints = |line| {
        let cli = parse(line).unwrap();
        match load(&cli, &Environment::default()) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.problems.into_iter().filter_map(|problem| problem.key).collect(),
        }
    };
    for line in ["run", "doctor", "config check"] {
        assert_eq!(complaints(line), ["postgres.url", "kafka.brokers"], "{line}");
    }
    for line in ["setup", "status", "teardown"] {
        assert_eq!(complaints(line), ["postgres.url"], "{line}");
    }
    for line in ["setup --print", "config show", "demo", "version"] {
        assert!(complaints(line).is_empty(), "{line}");
    }
}

#[test]
fn what_a_user_types_wrong_is_usage() {
    for line in ["", "config", "--slot a", "start", "run --slto a", "setup --preset x", "run --slot a --slot b"] {
        assert_eq!(parse(line).unwrap_err().exit_code(), i32::from(exit::USAGE), "{line:?}");
    }
    assert!(parse("run --slto a").unwrap_err().to_string().contains("'--slot'"));
}

#[test]
fn the_help_says_what_a_beginner_needs() {
    // However wide the terminal is: lines are wrapped by its width.
    let long = help_of("--help").split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "Relays a transactional outbox from Postgres to Kafka",
        "Usage: walpost",
        "run Relay until told to stop",
        "teardown Drop slot and publication",
        "Settings (before or after the command):",
        "--database-url <URL>",
        "[env: WALPOST_DATABASE_URL, WALPOST_DATABASE_URL_FILE, DATABASE_URL]",
        "-X, --kafka <NAME=VALUE>",
        "-c, --config <FILE>",
        "Examples:",
        "Exit codes:",
        "78 wrong configuration",
    ] {
        assert!(long.contains(line), "{line}: {long}");
    }
    // What a command says at length is its own, not that of the group of settings that is added to it.
    let demo = help_of("demo --help");
    assert!(demo.starts_with("Watch rows arrive") && demo.contains("PG_BINDIR"), "{demo}");
    let run = help_of("run --help");
    assert!(run.contains("--until-caught-up") && run.contains("--brokers") && run.contains("Settings (before"));
    for absent in ["tail", "backfill", "replay", "prune", "completions", "man"] {
        assert!(parse(absent).is_err(), "{absent} is not in this release");
    }
    for wrong in
        ["--rate 1000001", "--rows 1000000001", "--rows-per-commit 0", "--keys 0", "--seconds 0", "--writers 0"]
    {
        assert!(parse(&format!("bench {wrong}")).is_err(), "{wrong}");
    }
    assert_eq!(help_of("--version"), format!("walpost {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn parked_messages_are_named_by_their_ids_or_all() {
    for right in
        ["parked list", "parked list --all --limit 5 --json", "parked show 3", "parked retry 1 2", "parked retry --all"]
    {
        assert!(parse(right).is_ok(), "{right}");
    }
    assert!(parse("parked discard 1 --yes --json").is_ok());
    for wrong in
        ["parked", "parked retry", "parked discard", "parked retry 1 --all", "parked show x", "parked list --limit 0"]
    {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn its_debug_form_shows_no_secret() {
    let cli = parse("run --database-url postgres://u:hunter2@h/d -X sasl.password=hunter2").unwrap();
    assert!(!format!("{cli:?}").contains("hunter2"));
}
