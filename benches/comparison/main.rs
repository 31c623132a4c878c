//! The comparison: walpost against what users have today, on the same servers, in turns. `make bench` runs the whole plan
//! and renders docs/performance.md; each measurement is a subcommand too. Needs what the tests need, and pgbench, pg_recvlogical
//! and, for Debezium, Maven.
//!
//! `spec` says what one measurement is, `drain`, `steady` and `events` carry it out, `results` keeps what came out, `report` and
//! `plot` show it. Nothing of walpost's library is used.

mod drain;
mod events;
#[path = "../../tests/end_to_end/kit/mod.rs"]
mod kit;
mod load;
mod meter;
mod plan;
mod plot;
mod polling;
mod relay;
mod report;
mod results;
mod servers;
mod spec;
mod steady;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use plan::Form;
use results::{Outcome, Results};
use servers::Servers;
use spec::{Peer, Spec, Workload};

/// Measures walpost against its peers. Results are appended to a file; what is there is not measured again.
#[derive(Parser)]
struct Cli {
    /// The file of results [default: bench/results.jsonl in the target directory]
    #[arg(long, global = true)]
    results: Option<PathBuf>,
    /// What `cargo bench` adds to the arguments of every bench.
    #[arg(long, global = true, hide = true)]
    bench: bool,
    #[command(subcommand)]
    command: Option<Task>,
}

#[derive(Args)]
struct Who {
    #[arg(long, value_enum, value_delimiter = ',', default_value = "walpost")]
    peers: Vec<Peer>,
    #[arg(long, default_value_t = 1)]
    runs: usize,
}

#[derive(Subcommand)]
enum Task {
    /// The whole plan, then the report
    Plan {
        /// Some ten minutes: one run each, fewer rows and peers
        #[arg(long)]
        short: bool,
        /// With 5,000,000 rows where others have fewer
        #[arg(long, conflicts_with = "short")]
        long: bool,
        /// Shows the measurements and runs none
        #[arg(long)]
        list: bool,
    },
    /// A backlog, read as fast as it goes
    Drain {
        #[command(flatten)]
        who: Who,
        #[arg(long, default_value_t = 100_000)]
        rows: u64,
        #[arg(long, default_value_t = 1000)]
        per_commit: u64,
        /// Bytes of a payload, about
        #[arg(long, default_value_t = spec::USUAL_PAYLOAD)]
        payload: u64,
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        topics: u64,
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
        keys: u64,
    },
    /// One-row commits at a rate
    Steady {
        #[command(flatten)]
        who: Who,
        /// Rows a second
        #[arg(long, default_value_t = 1000)]
        rate: u64,
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Seconds of load before the measurement
        #[arg(long, default_value_t = 30)]
        warm_up: u64,
        /// A reader keeps its snapshot open all the while
        #[arg(long)]
        old_snapshot: bool,
    },
    /// An empty outbox
    Idle {
        #[command(flatten)]
        who: Who,
        #[arg(long, default_value_t = 30)]
        seconds: u64,
    },
    /// From the start of the process to the append of a row that waits
    Start {
        #[command(flatten)]
        who: Who,
    },
    /// From kill -9 of the leader to the next append
    Takeover {
        #[arg(long, default_value_t = 1)]
        runs: usize,
    },
    /// From SIGTERM to the next append by a relay that is started then
    Restart {
        #[arg(long, default_value_t = 1)]
        runs: usize,
    },
    /// Load while Kafka is stopped, and how long it takes to catch up
    Outage {
        #[arg(long, default_value_t = 1)]
        runs: usize,
        /// Rows a second
        #[arg(long, default_value_t = 1000)]
        rate: u64,
        /// How long Kafka is away
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Renders docs/performance.md and its plots from the results
    Report,
    #[command(hide = true)]
    Polling,
}

/// Of drains that are not kept.
const WARM_UP_ROWS: u64 = 300_000;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let path = cli.results.unwrap_or_else(|| folder().join("results.jsonl"));
    let each = |peers: &[Peer], make: &dyn Fn(Peer) -> Spec| vec![peers.iter().map(|&peer| make(peer)).collect()];
    let alone = |workload| vec![vec![Spec::new(workload, Peer::Walpost)]];
    let (groups, runs) = match cli.command {
        // `cargo bench` without a name runs every bench: this one only when it is asked.
        None => {
            eprintln!("bench: nothing was asked; `make bench` runs the plan, `-- --help` shows the measurements");
            return ExitCode::SUCCESS;
        }
        Some(Task::Polling) => {
            let Err(error) = polling::run() else { return ExitCode::SUCCESS };
            eprintln!("polling: {error}");
            return ExitCode::FAILURE;
        }
        Some(Task::Report) => return report::write(&Results::open(&path)),
        Some(Task::Plan { short, long, list }) => {
            let form = if short {
                Form::Short
            } else if long {
                Form::Long
            } else {
                Form::Usual
            };
            if list {
                for spec in plan::groups(form).iter().flatten() {
                    println!("{}: {}", spec.peer.name(), spec.title());
                }
                return ExitCode::SUCCESS;
            }
            let mut results = open(&path);
            perform(&plan::groups(form), plan::runs(form), &mut results);
            return report::write(&results);
        }
        Some(Task::Drain { who, rows, per_commit, payload, topics, keys }) => {
            let make = |peer| Spec { payload, topics, keys, ..Spec::drain(peer, rows, per_commit) };
            (each(&who.peers, &make), who.runs)
        }
        Some(Task::Steady { who, rate, seconds, warm_up, old_snapshot }) => {
            (each(&who.peers, &|peer| Spec::steady(peer, rate, seconds, warm_up, old_snapshot)), who.runs)
        }
        Some(Task::Idle { who, seconds }) => {
            (each(&who.peers, &|peer| Spec { seconds, warm_up: 5, ..Spec::new(Workload::Idle, peer) }), who.runs)
        }
        Some(Task::Start { who }) => (each(&who.peers, &|peer| Spec::new(Workload::Start, peer)), who.runs),
        Some(Task::Takeover { runs }) => (alone(Workload::Takeover), runs),
        Some(Task::Restart { runs }) => (alone(Workload::Restart), runs),
        Some(Task::Outage { runs, rate, seconds }) => {
            let spec = Spec { rate, seconds, warm_up: 5, ..Spec::new(Workload::Outage, Peer::Walpost) };
            (vec![vec![spec]], runs)
        }
    };
    perform(&groups, runs, &mut open(&path));
    ExitCode::SUCCESS
}

/// The target directory's, found from where this program was built: `target/release/deps`.
fn folder() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    program.ancestors().nth(3).expect("a target directory").join("bench")
}

fn open(path: &std::path::Path) -> Results {
    let folder = path.parent().expect("a file in a folder");
    std::fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{} cannot be made: {error}", folder.display()));
    Results::open(path)
}

/// Runs what the results lack. Within a group the peers take turns, so that what else the machine does hits all alike, and
/// another one begins each time: the first finds a backlog that was just written.
fn perform(groups: &[Vec<Spec>], runs: usize, results: &mut Results) {
    let missing = |results: &Results, spec: &Spec, run| results.count(spec) <= run;
    let total = groups.iter().flatten().map(|spec| runs.saturating_sub(results.count(spec))).sum::<usize>();
    if total == 0 {
        eprintln!("bench: everything that was asked is measured already; another --results measures anew");
        return;
    }
    let mut servers = Servers::start();
    let (mut shared, mut done) = (None, 0);
    let revision = results::revision();
    // Kafka's JVM is cold: whoever came first would pay for it.
    eprintln!("bench: warming the servers up");
    for (peer, per_commit) in [(Peer::Polling, 1000), (Peer::Walpost, 1)] {
        drain::run(&servers, &Spec::drain(peer, WARM_UP_ROWS, per_commit), &mut shared);
    }
    shared = None;
    for group in groups {
        for run in 0..runs {
            let begins = run % group.len();
            for spec in group[begins..].iter().chain(&group[..begins]) {
                if !missing(results, spec, run) {
                    continue;
                }
                done += 1;
                eprintln!("bench: {done}/{total} {}: {}", spec.peer.name(), spec.title());
                let figures = match spec.workload {
                    Workload::Drain => drain::run(&servers, spec, &mut shared),
                    other => {
                        shared = None;
                        match other {
                            Workload::Steady => steady::run(&servers, spec),
                            Workload::Idle => steady::idle(&servers, spec),
                            Workload::Start => events::start(&servers, spec),
                            Workload::Takeover => events::takeover(&servers, spec),
                            Workload::Restart => events::restart(&servers, spec),
                            Workload::Outage => events::outage(&mut servers, spec),
                            Workload::Drain => unreachable!("taken above"),
                        }
                    }
                };
                let shown: Vec<String> = figures.iter().map(|(name, value)| format!("{name} {value:.1}")).collect();
                eprintln!("bench:   {}", shown.join(", "));
                let at_s = meter::now_s() as u64;
                results.add(Outcome { spec: spec.clone(), at_s, revision: revision.clone(), figures });
            }
        }
    }
}
