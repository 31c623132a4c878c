//! Renders the results: tables between the markers of docs/performance.md, the text around which is written by hand, and plots
//! beside it. It measures nothing.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::process::{Command, ExitCode};

use super::kit::{MAJOR, postgres_bindir, repository};
use super::plot;
use super::results::Results;
use super::spec::{Peer, Spec, USUAL_PAYLOAD, Workload};

const BEGIN: &str = "<!-- generated: begin -->\n";
const END: &str = "<!-- generated: end -->";

/// A column: heading, figure, digits after the point.
type Column = (&'static str, &'static str, usize);

const DRAIN: &[Column] = &[
    ("rows/s", "rate", 0),
    ("second half", "rate_second_half", 0),
    ("with start", "rate_with_start", 0),
    ("MB/s", "mb_per_s", 1),
    ("start, s", "start_s", 2),
    ("memory, MB", "peak_rss_mb", 0),
    ("relay CPU, us", "relay_cpu_us", 1),
    ("walsender CPU, us", "walsender_cpu_us", 1),
    ("Postgres CPU, us", "postgres_cpu_us", 1),
    ("Kafka CPU, us", "kafka_cpu_us", 1),
];

const STEADY: &[Column] = &[
    ("reached, rows/s", "rate_reached", 0),
    ("p50, ms", "p50_ms", 1),
    ("p99, ms", "p99_ms", 1),
    ("p99.9, ms", "p999_ms", 1),
    ("max, ms", "max_ms", 0),
    ("memory, MB", "peak_rss_mb", 0),
    ("relay CPU, s", "relay_cpu_s", 1),
    ("walsender CPU, s", "walsender_cpu_s", 1),
    ("Postgres CPU, s", "postgres_cpu_s", 1),
    ("Kafka CPU, s", "kafka_cpu_s", 1),
    ("WAL, bytes a row", "wal_bytes", 0),
    ("dead rows", "dead_rows", 0),
    ("table, MB", "table_mb", 0),
    ("scans of the table", "scans", 0),
    ("statements on it", "statements", 0),
];

const IDLE: &[Column] = &[
    ("memory, MB", "peak_rss_mb", 0),
    ("relay CPU, s", "relay_cpu_s", 2),
    ("Postgres CPU, s", "postgres_cpu_s", 2),
    ("Kafka CPU, s", "kafka_cpu_s", 2),
    ("commits", "commits", 0),
    ("WAL, bytes", "wal_bytes", 0),
];

const EVENTS: &[Column] = &[
    ("start, s", "start_s", 2),
    ("takeover, s", "takeover_s", 2),
    ("restart, s", "restart_s", 2),
    ("of it until the end of the old one, s", "stop_s", 2),
    ("backlog, rows", "backlog_rows", 0),
    ("caught up after, s", "caught_up_s", 1),
    ("memory, MB", "peak_rss_mb", 0),
    ("rows repeated", "repeated", 0),
];

pub fn write(results: &Results) -> ExitCode {
    let path = repository().join("docs/performance.md");
    let page = match fs::read_to_string(&path) {
        Ok(page) => page,
        Err(error) => return failed(&format!("{} cannot be read: {error}", path.display())),
    };
    let Some((before, rest)) = page.split_once(BEGIN) else {
        return failed(&format!("{} has no line {BEGIN:?}: put it where the tables belong", path.display()));
    };
    let Some((_, after)) = rest.split_once(END) else {
        return failed(&format!("{} has no line {END:?}: put it where the tables end", path.display()));
    };
    let generated = match generate(results) {
        Ok(generated) => generated,
        Err(error) => return failed(&format!("a plot cannot be drawn: {error}")),
    };
    if let Err(error) = fs::write(&path, format!("{before}{BEGIN}\n{generated}\n{END}{after}")) {
        return failed(&format!("{} cannot be written: {error}", path.display()));
    }
    eprintln!("bench: {} is rendered from {} results", path.display(), results.all.len());
    ExitCode::SUCCESS
}

fn failed(why: &str) -> ExitCode {
    eprintln!("bench: {why}");
    ExitCode::FAILURE
}

fn generate(results: &Results) -> Result<String, String> {
    let mut text = machine(results);
    for (file, title) in plot::all(results, &repository().join("docs/performance"))? {
        write!(text, "\n![{title}](performance/{file})\n").expect("a string");
    }
    let mut specs: Vec<Spec> = Vec::new();
    for outcome in &results.all {
        if !specs.contains(&outcome.spec) {
            specs.push(outcome.spec.clone());
        }
    }
    let ours = |spec: &Spec| spec.peer == Peer::Walpost;
    let mut usual: Vec<Spec> = of(&specs, |spec| spec.workload == Workload::Drain && is_usual(spec));
    usual.sort_by_key(|spec| (spec.per_commit, spec.rows, spec.peer));
    let mut sizes: Vec<Spec> =
        of(&usual, |spec| ours(spec) && (spec.per_commit == 1000 || spec.per_commit == spec.rows));
    sizes.sort_by_key(|spec| (spec.rows, spec.per_commit));
    let compared = of(&usual, |spec| usual.iter().any(|other| spec.same_but_peer(other) && spec.peer != other.peer));
    section(&mut text, "Drain of a backlog", &tables(results, &compared, DRAIN, "rate"));
    let mut payloads = of(&specs, |spec| spec.payload != USUAL_PAYLOAD);
    payloads.sort_by_key(|spec| (spec.payload, spec.rows, spec.peer));
    section(&mut text, "Sizes of payloads", &tables(results, &payloads, DRAIN, "rate"));
    section(&mut text, "Sizes of backlogs and transactions, walpost", &one_table(results, &sizes, DRAIN));
    let mut topics = of(&specs, |spec| ours(spec) && (spec.topics != 1 || spec.keys != 10_000));
    topics.sort_by_key(|spec| (spec.topics, spec.keys, spec.rows));
    section(&mut text, "Topics and keys, walpost", &one_table(results, &topics, DRAIN));
    let mut steady = of(&specs, |spec| spec.workload == Workload::Steady);
    steady.sort_by_key(|spec| (spec.old_snapshot, spec.rate, spec.seconds, spec.peer));
    section(&mut text, "Steady rate, one-row commits", &tables(results, &steady, STEADY, "p50_ms"));
    let mut idle = of(&specs, |spec| spec.workload == Workload::Idle);
    idle.sort_by_key(|spec| (spec.seconds, spec.peer));
    section(&mut text, "Idle", &tables(results, &idle, IDLE, ""));
    let once = [Workload::Start, Workload::Takeover, Workload::Restart, Workload::Outage];
    let mut events = of(&specs, |spec| once.contains(&spec.workload));
    events.sort_by_key(|spec| (once.iter().position(|one| *one == spec.workload), spec.peer));
    section(&mut text, "Start, takeover, restart, outage", &tables(results, &events, EVENTS, "start_s"));
    Ok(text)
}

/// A drain of usual payloads to one topic.
fn is_usual(spec: &Spec) -> bool {
    spec.payload == USUAL_PAYLOAD && spec.topics == 1 && spec.keys == 10_000
}

fn of(specs: &[Spec], wanted: impl Fn(&Spec) -> bool) -> Vec<Spec> {
    specs.iter().filter(|spec| wanted(spec)).cloned().collect()
}

fn section(text: &mut String, title: &str, tables: &str) {
    if !tables.is_empty() {
        write!(text, "\n### {title}\n{tables}").expect("a string");
    }
}

/// A table for each group that differs in the peer alone, with a column of ratios to walpost.
fn tables(results: &Results, specs: &[Spec], columns: &[Column], ratio: &str) -> String {
    let mut text = String::new();
    let mut rest = specs.to_vec();
    while let Some(first) = rest.first().cloned() {
        let (group, others): (Vec<Spec>, Vec<Spec>) = rest.into_iter().partition(|spec| spec.same_but_peer(&first));
        rest = others;
        let ours = group.iter().find(|spec| spec.peer == Peer::Walpost);
        let base = ours.and_then(|spec| results.spread(spec, ratio)).filter(|_| group.len() > 1);
        write!(text, "\n**{}**\n\n", first.title()).expect("a string");
        let name = |spec: &Spec| spec.peer.name();
        text += &table(results, &group, columns, "peer", &name, base.map(|base| (ratio, base.median)));
    }
    text
}

fn one_table(results: &Results, specs: &[Spec], columns: &[Column]) -> String {
    if specs.is_empty() {
        return String::new();
    }
    format!("\n{}", table(results, specs, columns, "measurement", &Spec::title, None))
}

fn table(
    results: &Results,
    specs: &[Spec],
    columns: &[Column],
    head: &str,
    name: &dyn Fn(&Spec) -> String,
    ratio: Option<(&str, f64)>,
) -> String {
    let filled = |column: &&Column| specs.iter().any(|spec| results.spread(spec, column.1).is_some());
    let columns: Vec<&Column> = columns.iter().filter(filled).collect();
    let mut text = format!("| {head} | runs |");
    let mut line = "|---|---:|".to_owned();
    for column in &columns {
        write!(text, " {} |", column.0).expect("a string");
        line += "---:|";
    }
    if ratio.is_some() {
        text += " to walpost's |";
        line += "---:|";
    }
    write!(text, "\n{line}\n").expect("a string");
    for spec in specs {
        write!(text, "| {} | {} |", name(spec), results.count(spec)).expect("a string");
        for &&(_, figure, digits) in &columns {
            text += &results.spread(spec, figure).map_or(" – |".to_owned(), |spread| match spread.runs {
                1 => format!(" {} |", number(spread.median, digits)),
                _ => {
                    let [median, low, high] = [spread.median, spread.low, spread.high].map(|v| number(v, digits));
                    format!(" {median} [{low}–{high}] |")
                }
            });
        }
        if let Some((figure, base)) = ratio {
            let ratio = results.spread(spec, figure).map(|spread| spread.median / base);
            text += &ratio.map_or(" – |".to_owned(), |ratio| format!(" {ratio:.2} |"));
        }
        text += "\n";
    }
    text
}

/// With a comma between thousands.
fn number(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, part) = text.split_once('.').map_or((text.as_str(), String::new()), |(w, p)| (w, format!(".{p}")));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let is_zero = !text.contains(|digit: char| ('1'..='9').contains(&digit));
    format!("{}{grouped}{part}", if value < 0.0 && !is_zero { "-" } else { "" })
}

fn machine(results: &Results) -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_kib = meminfo.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let version = |program: &std::path::Path| {
        let output = Command::new(program).arg("--version").output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        text.unwrap_or_else(|_| "not found".to_owned())
    };
    let pom = |name: &str, file: &str| {
        let text = fs::read_to_string(repository().join(file)).unwrap_or_default();
        let version = text.split_once(&format!("<{name}.version>")).and_then(|(_, rest)| rest.split_once('<'));
        version.map_or("unknown".to_owned(), |(version, _)| version.to_owned())
    };
    let revisions: BTreeSet<&str> = results.all.iter().map(|outcome| outcome.revision.as_str()).collect();
    let revisions = revisions.into_iter().collect::<Vec<_>>().join(", ");
    format!(
        "| part | what |\n|---|---|\n| machine | {cores} cores ({model}), {:.0} GiB, Linux {} |\n\
         | walpost | {} at {revisions}, `run` with its defaults |\n| Postgres | {} |\n| Kafka | {}, one broker, heap 1 GiB |\n\
         | Debezium | {} in Kafka Connect standalone |\n| pg_recvlogical | {} |\n",
        memory_kib / 1024.0 / 1024.0,
        kernel.trim(),
        env!("CARGO_PKG_VERSION"),
        version(&postgres_bindir(MAJOR).join("postgres")),
        pom("kafka", "scripts/kafka/pom.xml"),
        pom("debezium", "benches/debezium/pom.xml"),
        version(std::path::Path::new("pg_recvlogical")),
    )
}
