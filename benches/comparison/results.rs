//! Results as JSON lines in the target directory, appended as each run ends: what was measured stays, whatever happens then.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::drain::Figures;
use super::kit::repository;
use super::spec::Spec;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub spec: Spec,
    /// Seconds since 1970.
    pub at_s: u64,
    /// The commit that was measured, `-dirty` where the tree was not as committed.
    pub revision: String,
    pub figures: Figures,
}

/// Of the tree as it is now.
pub fn revision() -> String {
    let described = Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(repository()).output();
    let text = described.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    if text.is_empty() { "an unknown commit".to_owned() } else { text }
}

pub struct Results {
    path: PathBuf,
    pub all: Vec<Outcome>,
}

impl Results {
    /// Those of a file; none where it does not exist. A line that cannot be read is said and passed over.
    pub fn open(path: &Path) -> Results {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut all = Vec::new();
        for (number, line) in text.lines().enumerate() {
            match serde_json::from_str(line) {
                Ok(outcome) => all.push(outcome),
                Err(error) => eprintln!("bench: {}:{}: passed over: {error}", path.display(), number + 1),
            }
        }
        Results { path: path.to_owned(), all }
    }

    pub fn add(&mut self, outcome: Outcome) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&self.path).expect("the file of results");
        writeln!(file, "{}", serde_json::to_string(&outcome).expect("JSON")).expect("room for a result");
        self.all.push(outcome);
    }

    /// How many runs there are of a measurement.
    pub fn count(&self, spec: &Spec) -> usize {
        self.all.iter().filter(|outcome| outcome.spec == *spec).count()
    }

    /// Median, lowest and highest of a figure.
    pub fn spread(&self, spec: &Spec, figure: &str) -> Option<Spread> {
        let of_spec = self.all.iter().filter(|outcome| outcome.spec == *spec);
        let mut values: Vec<f64> = of_spec.filter_map(|outcome| outcome.figures.get(figure).copied()).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Spread { median, low, high, runs: values.len() })
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub runs: usize,
}
