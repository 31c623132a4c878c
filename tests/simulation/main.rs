//! The loop in a world of its own: the real session, tracker, router and sink between a scripted Postgres and a scripted
//! Kafka, in virtual time, with faults that a seed decides.
//!
//! ```text
//!  plan      what a seed makes of the world          dice    its one source of chance
//!  log       Postgres' log        ledger             what has become of each row, and whether that is right
//!  postgres  slot and record      shelf              what is parked
//!  walsender, control             the server's ends of the two connections
//!  kafka/    brokers, and librdkafka in front of them
//!  relay     one process after the other             mortal  which may die at any await point
//!  faults    what goes wrong      run                one seed from beginning to end
//! ```
//!
//! `WALPOST_SIM_SEED=7` replays one seed and prints each step; `WALPOST_SIM_SEEDS=100000` runs so many, from
//! `WALPOST_SIM_FROM` on. A failure names its seed and the command that replays it.

mod control;
mod dice;
mod faults;
mod kafka;
mod ledger;
mod log;
mod mortal;
mod plan;
mod postgres;
mod relay;
mod run;
mod shelf;
mod walsender;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use walpost::planted::Bug;

use run::{Outcome, run};
use world::Trace;

/// What the usual test run has time for.
const SEEDS: u64 = 40_000;
/// Within so many each planted bug is found.
const SEEDS_FOR_A_BUG: u64 = 20_000;
const FAILURES_SHOWN: usize = 8;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.trim().parse().unwrap_or_else(|error| panic!("{name}={text:?}: {error}")))
}

/// Runs seeds on all processors, until one says that it is enough. Each seed is a world of its own on one thread.
fn run_all(from: u64, count: u64, bug: Option<Bug>, each: impl Fn(u64, Outcome) -> bool + Sync) {
    let next = AtomicU64::new(from);
    let enough = AtomicBool::new(false);
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        return;
                    }
                    if !each(seed, run(seed, bug, Trace::Off)) {
                        enough.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

#[test]
fn every_seed_keeps_the_promises() {
    if let Some(seed) = number("WALPOST_SIM_SEED") {
        show_logs();
        assert_eq!(run(seed, None, Trace::Print).broken, None);
        return;
    }
    let (from, count) = (number("WALPOST_SIM_FROM").unwrap_or(0), number("WALPOST_SIM_SEEDS").unwrap_or(SEEDS));
    let began = Instant::now();
    let failures = Mutex::new(Vec::new());
    let sum = Mutex::new((0, 0, Duration::ZERO));
    run_all(from, count, None, |seed, outcome| {
        let mut sum = sum.lock().expect("no thread has failed");
        *sum = (sum.0 + outcome.rows, sum.1 + outcome.repeats, sum.2 + outcome.virtual_time);
        let mut failures = failures.lock().expect("no thread has failed");
        failures.extend(outcome.broken.map(|text| (seed, text)));
        failures.len() < FAILURES_SHOWN
    });
    let (rows, repeats, time) = sum.into_inner().expect("no thread has failed");
    println!(
        "{count} seeds from {from}: {rows} rows, {repeats} of them repeated, {} hours of virtual time in {} s",
        time.as_secs() / 3600,
        began.elapsed().as_secs()
    );
    let mut failures = failures.into_inner().expect("no thread has failed");
    failures.sort();
    for (seed, text) in &failures {
        println!(
            "seed {seed}: {text}\n  WALPOST_SIM_SEED={seed} cargo test --features simulation --test simulation \
             every_seed -- --nocapture"
        );
    }
    assert!(failures.is_empty(), "a promise is broken");
}

#[test]
fn each_planted_bug_is_found() {
    if number("WALPOST_SIM_SEED").is_some() {
        return;
    }
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let found = Mutex::new(None);
        run_all(0, SEEDS_FOR_A_BUG, Some(*bug), |seed, outcome| {
            let Some(text) = outcome.broken else { return true };
            let mut found = found.lock().expect("no thread has failed");
            found.get_or_insert((seed, text));
            false
        });
        match found.into_inner().expect("no thread has failed") {
            Some((seed, text)) => println!("{bug:?} is found by seed {seed}: {text}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found within {SEEDS_FOR_A_BUG} seeds: {missed:?}");
}

#[test]
fn a_seed_runs_again_as_it_ran_before() {
    for seed in 0..40 {
        let (once, again) = (run(seed, None, Trace::Keep(Vec::new())), run(seed, None, Trace::Keep(Vec::new())));
        assert!(once.trace.len() > 10, "seed {seed} does something");
        assert_eq!(once.trace, again.trace, "seed {seed}");
    }
}

/// What the relays log goes between the steps.
fn show_logs() {
    let logs = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).without_time().with_target(false);
    let _ = logs.with_ansi(false).with_writer(std::io::stdout).try_init();
}
