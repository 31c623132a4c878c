//! Where the real servers come from: `scripts/stack`, asked once per run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex};

/// Every major version of Postgres that walpost supports.
pub const MAJORS: [u32; 5] = [14, 15, 16, 17, 18];

/// The version for tests that need only one.
pub const MAJOR: u32 = 17;

/// The folder with `postgres` and `initdb` of a major version.
pub fn postgres_bindir(major: u32) -> PathBuf {
    static SEEN: LazyLock<Mutex<HashMap<u32, PathBuf>>> = LazyLock::new(Mutex::default);
    let mut seen = SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    seen.entry(major).or_insert_with(|| PathBuf::from(stack(&["bindir", &major.to_string()]))).clone()
}

pub fn kafka_classpath() -> &'static str {
    static SEEN: LazyLock<String> = LazyLock::new(|| stack(&["kafka-classpath"]));
    &SEEN
}

pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn stack(arguments: &[&str]) -> String {
    let output = Command::new(repository().join("scripts/stack"))
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .expect("scripts/stack and bash");
    assert!(output.status.success(), "scripts/stack {arguments:?} failed; it says why above");
    String::from_utf8(output.stdout).expect("a path").trim().to_owned()
}

/// How Java is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jvm {
    /// To start quickly rather than to run fast for long.
    Quick,
    /// As Kafka's own start script sets it, and with its whole heap from the start.
    Lasting,
}

impl Jvm {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Jvm::Quick => &["-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:+UseSerialGC"],
            Jvm::Lasting => &[
                "-server",
                "-XX:+UseG1GC",
                "-XX:MaxGCPauseMillis=20",
                "-XX:InitiatingHeapOccupancyPercent=35",
                "-XX:+ExplicitGCInvokesConcurrent",
            ],
        }
    }
}

/// A Java program out of Kafka's jars, set to start quickly.
pub fn java(heap: &str) -> Command {
    java_as(Jvm::Quick, heap)
}

/// A Java program out of Kafka's jars.
pub fn java_as(jvm: Jvm, heap: &str) -> Command {
    let mut command = Command::new("java");
    command.args(jvm.flags()).arg(format!("-Xmx{heap}"));
    if jvm == Jvm::Lasting {
        command.arg(format!("-Xms{heap}"));
    }
    command
        .arg(format!("-Dlog4j2.configurationFile={}", repository().join("scripts/kafka/log4j2.properties").display()))
        .args(["-cp", kafka_classpath()]);
    command
}
