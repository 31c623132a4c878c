//! What happened when: every fault, every healing, every change of a relay's state, written down at once, so that it is
//! there however the run ends; and what was found wrong on the way.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub struct Diary {
    began: Instant,
    file: File,
    /// Promises that were not kept.
    pub findings: Vec<String>,
}

impl Diary {
    pub fn open(path: &Path) -> Diary {
        let file = File::create(path).expect("a file for the diary");
        Diary { began: Instant::now(), file, findings: Vec::new() }
    }

    /// With the clock of the servers' and relays' logs before it, and the seconds since the run began.
    pub fn note(&mut self, text: &str) {
        let line = format!("{} {:7.2} s  {text}", clock(), self.began.elapsed().as_secs_f64());
        println!("{line}");
        let _ = writeln!(self.file, "{line}");
    }

    pub fn finding(&mut self, text: String) {
        self.note(&format!("FOUND: {text}"));
        self.findings.push(text);
    }

    /// Of a moment in milliseconds since 1970.
    pub fn seconds_at_millis(&self, millis: i64) -> f64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.began.elapsed().as_secs_f64() - (now.as_secs_f64() - millis as f64 / 1_000.0)
    }

    pub fn seconds_at(&self, moment: Instant) -> f64 {
        moment.saturating_duration_since(self.began).as_secs_f64()
    }
}

/// UTC, to the millisecond.
fn clock() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, millis) = (now.as_secs() % 86_400, now.subsec_millis());
    format!("{:02}:{:02}:{:02}.{millis:03}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
