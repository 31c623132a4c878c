//! docker-compose.yml is not run by a test, so as much of it as possible is checked without Docker: its form, its
//! references, and the settings that it gives walpost, which the binary itself accepts.

use std::process::Command;

use crate::yaml::{Yaml, parse};
use crate::{File, root};

fn compose() -> Yaml {
    parse(&File::read("docker-compose.yml").text).unwrap_or_else(|error| panic!("docker-compose.yml: {error}"))
}

#[test]
fn the_services_are_whole_and_know_each_other() {
    let compose = compose();
    let services = compose.at(&["services"]).expect("services");
    let names = services.keys();
    for wanted in ["postgres", "kafka", "walpost"] {
        assert!(names.contains(&wanted), "no service {wanted}");
    }
    for name in &names {
        let service = services.at(&[name]).expect("listed");
        let image = service.at(&["image"]).and_then(Yaml::text);
        assert!(image.is_some() || service.at(&["build"]).is_some(), "{name} has neither an image nor a build");
        if let Some((_, tag)) = image.map(|image| image.rsplit_once(':').expect("an image with a version")) {
            assert_ne!(tag, "latest", "{name}");
        }
        for needed in service.at(&["depends_on"]).map(Yaml::keys).unwrap_or_default() {
            assert!(names.contains(&needed), "{name} depends on {needed}, which is not a service");
            if service.at(&["depends_on", needed, "condition"]).and_then(Yaml::text) == Some("service_healthy") {
                assert!(services.at(&[needed, "healthcheck", "test"]).is_some(), "{needed} has no health check");
            }
        }
        let volumes = service.at(&["volumes"]).map(Yaml::keys).unwrap_or_default();
        for (from, _) in volumes.iter().filter_map(|volume| volume.split_once(':')) {
            let named = compose.at(&["volumes", from]).is_some();
            assert!(named || root().join(from).exists(), "{name}: {from} is neither a volume nor a file");
        }
    }
    let command = services.at(&["postgres", "command"]).map(Yaml::keys).unwrap_or_default();
    assert!(command.contains(&"wal_level=logical"), "Postgres would not decode: {command:?}");
}

#[test]
fn walpost_accepts_its_settings() {
    let compose = compose();
    let Some(Yaml::Map(environment)) = compose.at(&["services", "walpost", "environment"]) else {
        panic!("the service walpost has no environment")
    };
    let variables = environment.iter().map(|(name, value)| (name.as_str(), value.text().expect("a plain value")));
    let output = Command::new(env!("CARGO_BIN_EXE_walpost"))
        .args(["config", "check"])
        .env_clear()
        .envs(variables.clone())
        .output()
        .expect("the built binary");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let services = compose.at(&["services"]).expect("services").keys();
    for (name, value) in variables.filter(|(name, _)| name.ends_with("_URL") || name.ends_with("_BROKERS")) {
        let named = services.iter().any(|service| value.contains(&format!("{service}:")));
        assert!(named, "{name} names none of the services: {value}");
    }
}

#[test]
fn the_image_is_built_from_what_is_there() {
    let dockerfile = File::read("Dockerfile").text;
    let mut stages = Vec::new();
    for line in dockerfile.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["FROM", image, "AS", stage] => {
                assert!(image.contains(':') && !image.ends_with(":latest"), "{line}");
                stages.push((*stage).to_owned());
            }
            ["FROM", image] => assert!(image.contains(':') && !image.ends_with(":latest"), "{line}"),
            ["COPY", source, ..] if source.starts_with("--from=") => {
                assert!(stages.contains(&source["--from=".len()..].to_owned()), "{line}");
            }
            ["COPY", sources @ .., _] => {
                for source in sources {
                    assert!(root().join(source).exists(), "{line}: {source} is not there");
                }
            }
            _ => {}
        }
    }
    assert!(dockerfile.contains("\nUSER "), "the image runs as root");
    assert!(
        dockerfile.contains("ENTRYPOINT [\"") && dockerfile.contains("walpost\"]"),
        "the image does not run walpost"
    );
    let rust = dockerfile.split("FROM rust:").nth(1).expect("a Rust image");
    let version: Vec<u32> = rust.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
    let least: Vec<u32> = env!("CARGO_PKG_RUST_VERSION").split('.').map_while(|part| part.parse().ok()).collect();
    assert!(version >= least, "Rust {version:?} in the image, {least:?} is needed");
}
