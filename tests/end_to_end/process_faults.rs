//! What befalls the process itself: nobody takes its log, its memory is limited, its clock jumps, it is frozen.

use std::fs;
use std::path::{Path, PathBuf};

use crate::kit::*;

const MIB: u64 = 1 << 20;

/// Everything arrives once and in time, with a standard error that takes nothing.
#[track_caller]
fn assert_relays(scene: &Scene, kafka: &Kafka, relay: &Walpost) {
    let workload = scene.workload().rows(2_000);
    let expected = workload.run();
    kafka.wait_arrived(&workload, &expected, seconds(40));
    relay.wait_streaming();
    kafka.verify(&workload, &expected).assert_exactly_once();
}

#[test]
fn a_standard_error_that_takes_nothing_stops_no_row() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let relay = scene.walpost("run").env("WALPOST_LOG_LEVEL", "debug").stderr_to("/dev/full").spawn();
    assert_relays(&scene, kafka, &relay);
    relay.stop();
}

#[test]
fn a_log_whose_disk_fills_up_stops_no_row_and_goes_on_when_there_is_room() {
    let Some(disk) = Disk::new("64k") else { return };
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let log = disk.path().join("log");
    let relay = scene.walpost("run").env("WALPOST_LOG_LEVEL", "trace").stderr_to(&log).spawn();
    let size = || fs::metadata(&log).map_or(0, |file| file.len());
    wait_for(seconds(60), "a log that fills its disk", || {
        assert_relays(&scene, kafka, &relay);
        size() >= 64 << 10
    });
    assert_relays(&scene, kafka, &relay);
    assert_eq!(size(), 64 << 10);
    disk.grow("10m");
    wait_for(seconds(30), "a log that goes on", || size() > 64 << 10);
    relay.stop();
    let text = fs::read_to_string(&log).expect("the log");
    assert!(text.contains("nothing will repeat"), "its last words are not there");
}

/// A group of processes that may hold so much memory together, in either version of the kernel's control groups.
struct Cage {
    path: PathBuf,
}

impl Cage {
    fn new(bytes: u64) -> Option<Cage> {
        let name = format!("walpost-test-{}-{}", std::process::id(), unique());
        for (root, limit) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let cage = Cage { path: Path::new(root).join(&name) };
            // A file that the kernel has not put there would be a plain new one: so it must exist.
            let limited = fs::create_dir(&cage.path).is_ok() && cage.path.join(limit).exists();
            if limited && fs::write(cage.path.join(limit), bytes.to_string()).is_ok() {
                println!("memory is limited by {}", cage.path.join(limit).display());
                return Some(cage);
            }
        }
        println!("no memory control group can be made here: the peak of resident memory is looked at instead");
        None
    }

    fn take(&self, pid: i32) {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).expect("a process that can be put into the group");
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        // Refused while a process is in it, which is killed by then.
        let _ = fs::remove_dir(&self.path);
    }
}

#[test]
fn a_memory_limit_of_256_mb_is_enough_for_a_backlog_with_rows_of_ten_megabytes() {
    const ROWS: u64 = 200_000;
    const LARGE: u64 = 10;
    let (kafka, postgres) = (Kafka::shared(), Postgres::start_major(MAJOR));
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let topic = format!("caged-{}", scene.name);
    kafka.create_topic(&topic, 4, &[("max.message.bytes", "20000000")]);
    // One in 20,000 is large, and does not compress.
    scene.sql().execute(&format!(
        "insert into outbox_messages (aggregate_type, aggregate_id, event_type, topic, payload)
         select 'a', 'key-' || n % 1000, 'e', '{topic}', jsonb_build_object('n', n, 'noise',
             case when n % {share} = {share} - 1 then
                 (select string_agg(md5(n::text || i), '') from generate_series(1, 330000) i) end)
         from generate_series(0, {ROWS} - 1) n",
        share = ROWS / LARGE,
    ));
    let cage = Cage::new(256 * MIB);
    let relay = scene.walpost("run").spawn();
    if let Some(cage) = &cage {
        cage.take(relay.pid());
    }
    wait_for(seconds(120), "all rows", || {
        assert!(relay.is_running(), "it was killed, or ended\n{}", relay.log_tail());
        relay.published() >= ROWS
    });
    let memory = relay.memory().expect("a running relay");
    println!("peak {} MiB", memory.peak / MIB);
    assert!(memory.peak < 256 * MIB, "peak of resident memory: {} MiB", memory.peak / MIB);
    relay.stop();
    let (mut latest, mut count, mut large) = (std::collections::HashMap::new(), 0, 0);
    kafka.scan(&[&topic], |record| {
        let value = record.value.expect("a value");
        large += u64::from(value.len() > 10_000_000);
        let value: serde_json::Value = serde_json::from_slice(&value).expect("JSON");
        let n = value["n"].as_u64().expect("a number");
        let before = latest.insert(record.key, n);
        assert!(before.is_none_or(|before| before < n), "{n} came after {before:?}, or twice");
        count += 1;
    });
    assert_eq!((count, large), (ROWS, LARGE));
}

/// libfaketime, of the package `faketime`.
fn faketime() -> Option<PathBuf> {
    let places =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    let found =
        places.iter().map(|place| Path::new(place).join("faketime/libfaketimeMT.so.1")).find(|lib| lib.exists());
    if found.is_none() {
        println!("left out: libfaketime is not installed (package faketime), so no clock can be made to jump");
    }
    found
}

#[test]
fn a_clock_that_jumps_an_hour_either_way_stops_nothing_and_changes_no_state() {
    let Some(faketime) = faketime() else { return };
    let (kafka, postgres) = (Kafka::shared(), Postgres::builder(MAJOR).conf("wal_sender_timeout = 4s").start());
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let offset = new_dir("clock").join("offset");
    let jump = |by: &str| {
        // Whole at once: a file that is half written would be read.
        let next = offset.with_extension("next");
        fs::write(&next, by).and_then(|()| fs::rename(&next, &offset)).expect("a file with the clock's offset");
    };
    jump("+0");
    let relay = scene
        .walpost("run")
        .env("LD_PRELOAD", faketime.to_str().expect("a plain path"))
        .env("FAKETIME_TIMESTAMP_FILE", offset.to_str().expect("a plain path"))
        .env("FAKETIME_CACHE_DURATION", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("DONT_FAKE_MONOTONIC", "1")
        .spawn();
    let workload = scene.workload().transactions_per_second(50);
    let load = workload.start();
    relay.wait_published(300, seconds(40));
    relay.wait_streaming();
    let walsender = postgres.walsender(&scene.name);
    for (by, ahead) in [("+1h", -3_600.0), ("-1h", 3_600.0), ("+0", 0.0)] {
        jump(by);
        let mut states = std::collections::BTreeSet::new();
        wait_for(seconds(30), "a relay that sees the difference of the clocks", || {
            states.insert(relay.state());
            relay.metric("walpost_clock_skew_seconds", "").is_some_and(|skew| (skew - ahead).abs() < 60.0)
        });
        let before = relay.published();
        wait_for(seconds(30), "rows that flow", || {
            states.insert(relay.state());
            relay.published() > before + 500
        });
        assert_eq!(Vec::from_iter(&states), ["streaming"], "with a clock at {by}");
        let oldest = relay.metric("walpost_oldest_unconfirmed_age_seconds", "").expect("a number");
        assert!((0.0..10.0).contains(&oldest), "the oldest row is said to be {oldest} s old");
        let latency = relay.metric("walpost_end_to_end_latency_seconds_sum", "").expect("a number");
        assert!(latency.is_finite() && latency >= 0.0, "{latency}");
        assert_eq!(postgres.walsender(&scene.name), walsender, "the clock cut the session");
    }
    let expected = load.stop();
    kafka.wait_arrived(&workload, &expected, seconds(40));
    relay.stop();
    kafka.verify(&workload, &expected).assert_exactly_once();
}

#[test]
fn a_relay_that_is_frozen_beyond_the_servers_patience_comes_back() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::builder(MAJOR).conf("wal_sender_timeout = 4s").start());
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(50);
    let load = workload.start();
    let relay = scene.walpost("run").spawn();
    relay.wait_published(300, seconds(40));
    relay.pause();
    wait_for(seconds(30), "a server that gives the relay up", || postgres.walsender(&scene.name).is_none());
    relay.resume();
    wait_for(seconds(30), "a second session", || postgres.walsender(&scene.name).is_some());
    relay.wait_streaming();
    let expected = load.stop();
    kafka.wait_arrived(&workload, &expected, seconds(40));
    relay.stop();
    let report = kafka.verify(&workload, &expected);
    println!("{report}");
    report.assert_at_least_once();
    // Only requests whose answer did not come in two seconds may repeat, and those can be read back.
    assert!(report.repeated.len() <= 100, "{report}");
}

/// The other one has the slot by then: what was frozen becomes the standby.
#[test]
fn a_relay_that_is_frozen_while_a_standby_takes_over_comes_back_as_the_standby() {
    let (kafka, postgres) = (Kafka::shared(), Postgres::builder(MAJOR).conf("wal_sender_timeout = 4s").start());
    let scene = Scene::new(&postgres, kafka, Table::Walpost);
    let workload = scene.workload().transactions_per_second(50);
    let load = workload.start();
    let command = scene.walpost("run").env("WALPOST_WINDOW_MESSAGES", "1000");
    let first = command.spawn();
    first.wait_published(300, seconds(40));
    let second = command.spawn();
    second.wait_state("standby", seconds(20));
    first.pause();
    second.wait_published(500, seconds(60));
    first.resume();
    first.wait_state("standby", seconds(40));
    let expected = load.stop();
    kafka.wait_arrived(&workload, &expected, seconds(40));
    second.wait_streaming();
    assert!(second.is_leader() && !first.is_leader());
    first.stop();
    second.stop();
    let report = kafka.verify(&workload, &expected);
    println!("{report}");
    assert!(report.lost.is_empty() && report.invented.is_empty(), "{report}");
    // Its window may come late, and what its socket still held: it learns only behind that that the session is gone.
    assert!(report.repeated.len() <= 5_000, "{report}");
}
