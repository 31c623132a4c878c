//! The report of a run, for people: what was done to it, and what came of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::audit::Audit;
use crate::kit::{MAJOR, repository};
use crate::plan::{Fault, Mix};

pub struct Run<'a> {
    pub seed: u64,
    pub mix: Mix,
    pub read_back: bool,
    /// Between the first fault and the last.
    pub tortured: Duration,
    pub healed_in: Duration,
    /// From the end of the load and of all faults until every row was confirmed. None: never.
    pub caught_up_in: Option<Duration>,
    pub struck: &'a [Fault],
    pub audit: &'a Audit,
    /// The second of the run of a moment in milliseconds since 1970.
    pub seconds_at: &'a dyn Fn(i64) -> f64,
    /// The longest time without a delivery, and the second of the run at which it ended.
    pub standstill: (Duration, f64),
    pub memory_peak: u64,
    pub starts: usize,
    pub shutdown_longest: Duration,
    pub stop_longest: Duration,
    /// Lines of the relays' logs that contain the text.
    pub counted: &'a [(&'static str, usize)],
    pub findings: &'a [String],
}

impl Run<'_> {
    pub fn write(&self, path: &Path) {
        fs::write(path, self.text()).expect("a file for the report");
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let report = &self.audit.report;
        let kills = self.struck.iter().filter(|fault| fault.is_kill()).count();
        let relay_kills = self.struck.iter().filter(|fault| fault.is_kill_of_the_active_relay()).count();
        let repeated = report.repeated.len();
        let verdict = if self.audit.is_good() && self.findings.is_empty() { "kept" } else { "BROKEN" };
        let _ = writeln!(text, "# Torture, seed {}\n", self.seed);
        let _ = writeln!(text, "Promises: **{verdict}**.\n");
        let _ = writeln!(text, "| | |\n| --- | --- |");
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "| {name} | {value} |");
        };
        line("walpost", format!("{}, {}", env!("CARGO_PKG_VERSION"), commit()));
        line("servers", format!("Postgres {MAJOR}, three brokers (replication 3, min.insync.replicas 2), two relays"));
        line("read back", if self.read_back { "yes" } else { "no" }.to_owned());
        let mix = match self.mix {
            Mix::All => "all faults",
            Mix::Kills => "kills alone",
            Mix::Limits => "falling limits alone",
        };
        line("chosen from", mix.to_owned());
        line("tortured for", format!("{:.0} s", self.tortured.as_secs_f64()));
        line("healed after", format!("{:.1} s", self.healed_in.as_secs_f64()));
        let caught_up = self.caught_up_in.map(|took| format!("{:.1} s", took.as_secs_f64()));
        line("caught up after", caught_up.unwrap_or("**never**".to_owned()));
        line("rows committed", report.expected.to_string());
        line("records seen", report.seen.to_string());
        line("faults", self.struck.len().to_string());
        line(
            "kills (SIGKILL of relays, brokers, Postgres)",
            format!("{kills}, {relay_kills} of them of the active relay"),
        );
        for (name, list) in self.audit.faults() {
            line(name, if list.is_empty() { "0".to_owned() } else { format!("**{}**", list.len()) });
        }
        line("repeated", repeated.to_string());
        line("repeated per kill", format!("{:.2}", per(repeated, kills)));
        line("repeated per kill of the active relay", format!("{:.2}", per(repeated, relay_kills)));
        let mut bursts = self.audit.bursts.clone();
        bursts.sort_by_key(|&(_, rows)| std::cmp::Reverse(rows));
        let largest = bursts.iter().take(5).map(|&(at, rows)| format!("{rows} at {:.0} s", (self.seconds_at)(at)));
        let largest: Vec<String> = largest.collect();
        line("bursts of repeats", format!("{}, the largest: {}", bursts.len(), largest.join(", ")));
        let (standstill, at) = self.standstill;
        line("longest time without a delivery", format!("{:.1} s, until {at:.0} s", standstill.as_secs_f64()));
        line("longest fast shutdown of Postgres", format!("{:.1} s", self.shutdown_longest.as_secs_f64()));
        line("longest end of a relay after SIGTERM", format!("{:.1} s", self.stop_longest.as_secs_f64()));
        line("starts of a relay", self.starts.to_string());
        line("largest resident memory of a relay", format!("{:.1} MiB", self.memory_peak as f64 / 1_048_576.0));
        for (name, count) in self.counted {
            line(&format!("log lines: {name}"), count.to_string());
        }
        let _ = writeln!(text, "\n## Faults\n\n| fault | times |\n| --- | --- |");
        let mut counts = BTreeMap::<&str, usize>::new();
        for fault in self.struck {
            *counts.entry(fault.name()).or_default() += 1;
        }
        for (name, count) in counts {
            let _ = writeln!(text, "| {name} | {count} |");
        }
        if !self.findings.is_empty() {
            let _ = writeln!(text, "\n## Found\n");
            for finding in self.findings {
                let _ = writeln!(text, "- {finding}");
            }
        }
        if !self.audit.is_good() {
            let _ = writeln!(text, "\n## Rows\n\n```text\n{report}\n```");
        }
        text
    }
}

fn per(count: usize, by: usize) -> f64 {
    count as f64 / by.max(1) as f64
}

/// The commit that was tortured, where this is a clone.
fn commit() -> String {
    let mut git = std::process::Command::new("git");
    let output = git.args(["describe", "--always", "--dirty"]).current_dir(repository()).output();
    let said = output.ok().filter(|output| output.status.success());
    said.map_or("no commit".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
