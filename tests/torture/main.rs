//! Torture: the built binary under load, two relays, a real Postgres and three real brokers, and every few seconds
//! another fault, chosen by a seeded source. Afterwards everything heals, the relays catch up unaided, and every row that
//! was committed is compared with every record that arrived.
//!
//! `make torture` runs it (`make torture SEED=7 MINUTES=30`); `make test` runs two minutes of it with a fixed seed. With
//! FAULTS=kills processes die and nothing else happens, with FAULTS=limits the topics' limit falls again and again; with READ_BACK=false the relays do not read the topics back. What
//! happened is in the folder `torture` of the target directory: `report.md`, `diary.log`, the logs of all processes in
//! `logs`, and, where rows are not as they must be, `evidence.txt`.
//!
//! `plan` chooses, `lanes` carries out, `arena` has the servers and relays, `audit` compares, `report` tells.

mod arena;
mod audit;
mod diary;
#[path = "../end_to_end/kit/mod.rs"]
mod kit;
mod lanes;
mod plan;
mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arena::Arena;
use diary::Diary;
use kit::{Load, Workload, pace, seconds};
use lanes::Lanes;
use plan::{Mix, Plan};

/// Of the run that belongs to `make test`.
const SEED: u64 = 20_260_729;
const MINUTES: f64 = 2.0;

/// Between two turns of everything that is going on.
const TURN: Duration = Duration::from_millis(50);

/// Faults nearer to each other than this strike together.
const AT_ONCE: Duration = Duration::from_millis(500);

/// For rows to flow again after a kill; then the next one comes all the same.
const FLOWS_WITHIN: Duration = seconds(45);

/// For what is broken to heal, once no more is broken: a broker has to come back and to copy what it missed.
const HEAL_WITHIN: Duration = seconds(300);

/// For the relays to deliver what is left, unaided.
const CATCH_UP_WITHIN: Duration = seconds(180);

#[test]
fn no_row_is_lost_swapped_or_invented_whatever_fails_at_once() {
    let seed = setting("SEED", SEED);
    let minutes = setting("MINUTES", MINUTES);
    let report = std::env::var("REPORT").map_or_else(|_| folder().join("report.md"), PathBuf::from);
    let logs = folder().join("logs");
    let _ = fs::remove_dir_all(&logs);
    let _ = fs::remove_file(folder().join("evidence.txt"));
    fs::create_dir_all(&logs).expect("a folder for the logs");
    let mut diary = Diary::open(&folder().join("diary.log"));
    let mix = match setting("FAULTS", "all".to_owned()).as_str() {
        "all" => Mix::All,
        "kills" => Mix::Kills,
        "limits" => Mix::Limits,
        other => panic!("FAULTS={other} is not understood"),
    };
    let read_back = setting("READ_BACK", true);
    diary.note(&format!("SEED={seed} MINUTES={minutes} FAULTS={mix:?} READ_BACK={read_back}"));
    let arena = Arena::build(logs, diary, read_back);
    torture(seed, mix, Duration::from_secs_f64(minutes * 60.0), arena, &report);
}

fn torture(seed: u64, mix: Mix, duration: Duration, mut arena: Arena, report: &Path) {
    // Some 500 rows a second, so that half an hour of them can be kept: many small transactions, a few large ones.
    let small = arena.scene.workload().transactions_per_second(30).filler_bytes(120);
    let large = arena.scene.workload().writers(1).largest_transaction(1_500).transactions_per_second(1);
    arena.create_topics(&small, 6);
    arena.create_topics(&large, 2);
    let workloads = [small, large];
    (0..2).for_each(|index| arena.start_relay(index));
    kit::wait_for(seconds(60), "a relay that streams", || arena.leader().is_some());
    let loads = workloads.each_ref().map(Workload::start);
    arena.begin_measuring();

    let mut lanes = Lanes::new();
    let began = Instant::now();
    let mut next_at = began;
    let mut plan = Plan::new(seed, mix).peekable();
    while began.elapsed() < duration {
        assert!(loads.iter().all(Load::is_running), "a writer has failed; it says why above");
        turn(&mut arena, &mut lanes);
        let gap = plan.peek().map_or(TURN, |planned| planned.gap);
        // A relay that is killed before it has delivered anything shows nothing.
        let flows = mix != Mix::Kills || gap < AT_ONCE || arena.progress.moved_at > next_at;
        if lanes.has_room() && Instant::now() >= next_at + gap && (flows || next_at.elapsed() > FLOWS_WITHIN) {
            next_at = Instant::now();
            lanes.choose(plan.next().expect("a plan without an end").fault);
        }
    }
    let tortured = began.elapsed();
    arena.diary.note("no more faults: what is broken heals");
    lanes.give_up_waiting();
    let healing = Instant::now();
    while !lanes.is_quiet() {
        assert!(healing.elapsed() < HEAL_WITHIN, "what was broken did not heal within {HEAL_WITHIN:?}");
        turn(&mut arena, &mut lanes);
    }
    let healed_in = healing.elapsed();
    let mut expected: Vec<_> = loads.into_iter().flat_map(Load::stop).collect();
    expected.extend(arena.all_new());
    arena.diary.note(&format!("{} rows were committed; the relays catch up", expected.len()));
    let caught_up_in = catch_up(&mut arena, &mut lanes);
    end_relays(&mut arena, caught_up_in.is_some());

    let topics = arena.topic_names();
    let audit = audit::audit(&arena.kafka, &topics, &expected);
    if !audit.is_good() {
        audit::write_evidence(&folder().join("evidence.txt"), &audit, &arena.kafka, &topics, &expected);
    }
    let (progress, findings) = (&arena.progress, &arena.diary.findings);
    let run = report::Run {
        seed,
        mix,
        read_back: arena.read_back,
        tortured,
        healed_in,
        caught_up_in,
        struck: &lanes.struck,
        audit: &audit,
        seconds_at: &|millis| arena.diary.seconds_at_millis(millis),
        standstill: (progress.standstill.0, arena.diary.seconds_at(progress.standstill.1)),
        memory_peak: progress.memory_peak,
        starts: progress.starts,
        shutdown_longest: progress.shutdown_longest,
        stop_longest: progress.stop_longest,
        counted: &counted(),
        findings,
    };
    run.write(report);
    println!("{}\n{}", report.display(), fs::read_to_string(report).unwrap_or_default());
    assert!(findings.is_empty(), "found on the way: {findings:#?}\n{}", audit.report);
    audit.report.assert_at_least_once();
}

fn turn(arena: &mut Arena, lanes: &mut Lanes) {
    let began = Instant::now();
    lanes.advance(arena);
    arena.look();
    pace(began + TURN);
}

/// How long the relays need until everything that was committed before now is confirmed; None: too long.
fn catch_up(arena: &mut Arena, lanes: &mut Lanes) -> Option<Duration> {
    let began = Instant::now();
    let sql = arena.scene.sql();
    let written = sql.value("select pg_current_wal_insert_lsn()");
    // Something behind it: a position is confirmed at once only where rows were delivered.
    let behind = arena.scene.workload().rows(10);
    behind.topics().iter().for_each(|topic| arena.kafka.create_topic(topic, 1, &[]));
    behind.run();
    let slot = &arena.scene.name;
    let confirmed =
        format!("select confirmed_flush_lsn > '{written}' from pg_replication_slots where slot_name = '{slot}'");
    while began.elapsed() < CATCH_UP_WITHIN {
        if sql.is_true(&confirmed) {
            return Some(began.elapsed());
        }
        turn(arena, lanes);
    }
    None
}

/// In good order, or, where they did not catch up, by force: a fresh one then shows what was stuck and what is lost.
fn end_relays(arena: &mut Arena, good: bool) {
    for index in 0..2 {
        arena.signal_relay(index, if good { libc::SIGTERM } else { libc::SIGKILL });
    }
    kit::wait_for(seconds(60), "the relays' end", || (0..2).all(|index| arena.relay_has_ended(index)));
    (0..2).for_each(|index| arena.bury(index, good));
    if !good {
        arena.diary.finding(format!("the relays did not catch up within {CATCH_UP_WITHIN:?} of the last healing"));
        arena.scene.catch_up(seconds(180));
    }
}

/// What the logs of the relays tell of, line by line.
fn counted() -> Vec<(&'static str, usize)> {
    let texts = [
        "streaming goes on after",
        "a new epoch begins",
        "Kafka deliveries stop to be fed again in order",
        "no delivery report for",
        "it was acknowledged without an offset",
        "lost between walpost and librdkafka",
        "the control connection to Postgres is lost",
    ];
    let logs: Vec<String> = fs::read_dir(folder().join("logs"))
        .expect("the folder of the logs")
        .flatten()
        .filter(|file| file.file_name().to_string_lossy().starts_with("relay"))
        .filter_map(|file| fs::read_to_string(file.path()).ok())
        .collect();
    texts.map(|text| (text, logs.iter().map(|log| log.matches(text).count()).sum())).to_vec()
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => value.parse().unwrap_or_else(|_| panic!("{name}={value} is not understood")),
        _ => default,
    }
}

/// `torture` in the target directory.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory").join("torture")
}
