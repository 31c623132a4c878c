//! `walpost config check | show | template`: what walpost understood of its settings, without connecting to anything.

use std::io::{self, Write};

use crate::cli::{self, Cli, ConfigCommand, exit};
use crate::config::{ConfigErrors, Environment, Loaded, Problem, show, template};
use crate::error_text::ErrorText as _;
use crate::postgres::Connector;
use crate::router::Router;

/// Prints what was asked for and returns the exit code. Problems are the result of `check` and go to `out`; for `show`
/// they are an error and go to `err`.
pub fn run(
    cli: &Cli,
    command: &ConfigCommand,
    environment: &Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<u8> {
    match command {
        ConfigCommand::Check(args) => check(cli, args.json, environment, out),
        ConfigCommand::Show(args) => match cli::load(cli, environment) {
            Ok(loaded) => {
                for warning in &loaded.warnings {
                    writeln!(err, "warning: {warning}")?;
                }
                if args.json {
                    writeln!(out, "{:#}", show::json(&loaded))?;
                } else {
                    out.write_all(show::toml(&loaded).as_bytes())?;
                }
                Ok(exit::DONE)
            }
            Err(errors) => {
                writeln!(err, "{errors}")?;
                Ok(exit::CONFIGURATION)
            }
        },
        ConfigCommand::Template => {
            out.write_all(template::template().as_bytes())?;
            Ok(exit::DONE)
        }
    }
}

fn check(cli: &Cli, json: bool, environment: &Environment, out: &mut dyn Write) -> io::Result<u8> {
    let (warnings, errors) = match cli::load(cli, environment) {
        Ok(loaded) => {
            let problems = refused_by_its_user(&loaded);
            (loaded.warnings, (!problems.is_empty()).then_some(ConfigErrors { problems }))
        }
        Err(errors) => (Vec::new(), Some(errors)),
    };
    if json {
        writeln!(out, "{:#}", check_json(&warnings, errors.as_ref()))?;
    } else {
        for warning in &warnings {
            writeln!(out, "warning: {warning}")?;
        }
        match &errors {
            None => writeln!(out, "OK")?,
            Some(errors) => writeln!(out, "{errors}")?,
        }
    }
    Ok(if errors.is_some() { exit::CONFIGURATION } else { exit::DONE })
}

/// What only the piece that uses a value can judge: the template of topics, the address of Postgres.
fn refused_by_its_user(loaded: &Loaded) -> Vec<Problem> {
    let problem = |key: &str, text: String| {
        let effective = loaded.sources.iter().find(|effective| effective.key.trim_end_matches("_file") == key);
        Problem { source: effective.map(|effective| effective.source.clone()), key: Some(key.to_owned()), text }
    };
    let template = Router::new(&loaded.config).err().map(|error| problem("route.topic", error.text()));
    let address = Connector::new(&loaded.config.postgres).err().map(|error| {
        let text = format!("{}: {}", error.text(), error.remedy());
        problem("postgres.url", text)
    });
    template.into_iter().chain(address).collect()
}

fn check_json(warnings: &[String], errors: Option<&ConfigErrors>) -> serde_json::Value {
    let problems = errors.map(|errors| errors.problems.as_slice()).unwrap_or_default();
    let problems: Vec<serde_json::Value> = problems
        .iter()
        .map(|problem| {
            let source = problem.source.as_ref().map(ToString::to_string);
            let key = problem.key.as_deref().filter(|key| !key.is_empty());
            serde_json::json!({ "source": source, "key": key, "text": problem.text })
        })
        .collect();
    serde_json::json!({ "ok": problems.is_empty(), "problems": problems, "warnings": warnings })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;

    fn run_line(line: &str, environment: &Environment) -> (u8, String, String) {
        let cli = Cli::try_parse_from(line.split_ascii_whitespace()).unwrap();
        let Command::Config(args) = &cli.command else { panic!("{line}") };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(&cli, &args.command, environment, &mut out, &mut err).unwrap();
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn check_says_ok_or_everything_that_is_wrong() {
        let good: Environment = [("DATABASE_URL", "postgres://h/d"), ("KAFKA_BROKERS", "h:9092")].into_iter().collect();
        assert_eq!(run_line("walpost config check", &good), (exit::DONE, "OK\n".to_owned(), String::new()));
        let bad: Environment = [("WALPOST_SLOT", "My-Slot"), ("WALPOST_HTTP", "x")].into_iter().collect();
        let (code, out, _) = run_line("walpost config check", &bad);
        assert_eq!(code, exit::CONFIGURATION);
        assert!(out.starts_with("the configuration has 4 problems:\n  "), "{out}");
        let (code, out, _) = run_line("walpost config check --json", &bad);
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, value["ok"].as_bool()), (exit::CONFIGURATION, Some(false)));
        assert_eq!(value["problems"][0]["source"], "WALPOST_SLOT");
        let line = "walpost config check --topic {unclosed --database-url postgres://u:hunter2@h:port/d";
        let (code, out, _) = run_line(line, &good);
        assert_eq!(code, exit::CONFIGURATION);
        assert!(out.contains("\n  --topic: ") && out.contains("\n  --database-url: "), "{out}");
        assert!(!out.contains("hunter2"), "{out}");
        let (_, out, _) = run_line("walpost config check --database-url postgres://u:p@h/d --brokers h", &good);
        assert!(out.starts_with("warning: --database-url") && out.ends_with("OK\n"), "{out}");
    }

    #[test]
    fn show_prints_the_settings_without_secrets_or_the_problems() {
        let environment: Environment = [("WALPOST_DATABASE_URL", "postgres://u:hunter2@h/d")].into_iter().collect();
        let (code, out, err) = run_line("walpost config show --slot mine", &environment);
        assert_eq!((code, err.as_str()), (exit::DONE, ""));
        let has = |start: &str, end: &str| out.lines().any(|line| line.starts_with(start) && line.ends_with(end));
        assert!(has("url = \"***\"", "# WALPOST_DATABASE_URL"), "{out}");
        assert!(has("slot = \"mine\"", "# --slot"), "{out}");
        assert!(!out.contains("hunter2"));
        let (_, json, _) = run_line("walpost config show --json", &environment);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["postgres.url"]["value"], "***");
        let (code, out, err) = run_line("walpost config show --http x", &environment);
        assert_eq!((code, out.as_str()), (exit::CONFIGURATION, ""));
        assert!(err.contains("--http: "));
    }

    #[test]
    fn template_prints_a_file_that_check_accepts() {
        let (code, out, _) = run_line("walpost config template", &Environment::default());
        assert_eq!(code, exit::DONE);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("walpost.toml");
        std::fs::write(&path, out).unwrap();
        let line = format!("walpost config check -c {} --brokers h --database-url postgres://h/d", path.display());
        assert_eq!(run_line(&line, &Environment::default()).1, "OK\n");
    }
}
