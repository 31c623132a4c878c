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
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use run::{Outcome, run};
use world::Trace;

/// What the usual test run has time for.
const SEEDS: u64 = 2_000;
const FAILURES_SHOWN: usize = 8;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.trim().parse().unwrap_or_else(|error| panic!("{name}={text:?}: {error}")))
}

/// Runs seeds on all processors, until some have failed. Each seed is a world of its own on one thread.
fn run_all(from: u64, count: u64, each: impl Fn(u64, Outcome) -> bool + Sync) {
    let next = AtomicU64::new(from);
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count || !each(seed, run(seed, Trace::Off)) {
                        return;
                    }
                }
            });
        }
    });
}

#[test]
fn every_seed_keeps_the_promises() {
    if let Some(seed) = number("WALPOST_SIM_SEED") {
        let outcome = run(seed, Trace::Print);
        assert_eq!(outcome.broken, None);
        return;
    }
    let (from, count) = (number("WALPOST_SIM_FROM").unwrap_or(0), number("WALPOST_SIM_SEEDS").unwrap_or(SEEDS));
    let began = Instant::now();
    let failures = Mutex::new(Vec::new());
    let sum = Mutex::new((0, 0, Duration::ZERO));
    run_all(from, count, |seed, outcome| {
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
            "seed {seed}: {text}\n  WALPOST_SIM_SEED={seed} cargo test --features simulation --test simulation -- --nocapture"
        );
    }
    assert!(failures.is_empty(), "a promise is broken");
}
