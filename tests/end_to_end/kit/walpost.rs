//! The built binary, driven as a user and a supervisor would: arguments, environment, signals, HTTP, exit codes.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::http;
use super::kafka::Kafka;
use super::postgres::Postgres;
use super::run::{self, Process, free_port, new_dir};
use super::wait::{seconds, wait_for, wait_some};

/// A command line that is not yet running. Nothing of the caller's environment is passed on but what programs need.
#[derive(Clone)]
pub struct WalpostCommand {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    stderr: Option<PathBuf>,
}

/// `walpost ARGUMENTS`, separated by spaces.
pub fn walpost(arguments: &str) -> WalpostCommand {
    let environment = [("WALPOST_LOG_FORMAT", "json"), ("WALPOST_LOG_LEVEL", "info")];
    WalpostCommand {
        arguments: arguments.split_whitespace().map(str::to_owned).collect(),
        environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        stderr: None,
    }
}

/// What a command that has ended said.
#[derive(Debug)]
pub struct Output {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl WalpostCommand {
    /// One argument, which may contain spaces.
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Further arguments, separated by spaces.
    pub fn args(mut self, arguments: &str) -> Self {
        self.arguments.extend(arguments.split_whitespace().map(str::to_owned));
        self
    }

    /// A variable; the last one of a name wins.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Its standard error goes there; what the running relay shows as its log is then empty.
    pub fn stderr_to(mut self, path: impl Into<PathBuf>) -> Self {
        self.stderr = Some(path.into());
        self
    }

    pub fn postgres(self, postgres: &Postgres, database: &str) -> Self {
        self.env("WALPOST_DATABASE_URL", postgres.url(database))
    }

    pub fn kafka(self, kafka: &Kafka) -> Self {
        self.env("WALPOST_BROKERS", kafka.bootstrap())
    }

    pub fn slot(self, slot: &str) -> Self {
        self.env("WALPOST_SLOT", slot)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_walpost"));
        command.args(&self.arguments).env_clear();
        for name in ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "RUST_BACKTRACE"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.envs(self.environment.iter().map(|(name, value)| (OsStr::new(name), OsStr::new(value))));
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command that ends by itself.
    #[track_caller]
    pub fn output(&self, bound: Duration) -> Output {
        let running = self.spawn();
        running.wait_exit(bound);
        running.output()
    }

    /// The same, and insists on exit code 0.
    #[track_caller]
    pub fn succeeds(&self, bound: Duration) -> Output {
        let output = self.output(bound);
        assert_eq!(output.code, 0, "walpost {:?}: {}\n{}", self.arguments, output.stdout, output.stderr);
        output
    }

    /// Starts it, with an admin server on a free port if it is `run`.
    pub fn spawn(&self) -> Walpost {
        let port = free_port();
        let dir = new_dir("walpost");
        let file = |name| fs::File::create(dir.join(name)).expect("a file for walpost's output");
        let mut command = self.command();
        if self.arguments.first().is_some_and(|first| first == "run") {
            command.env("WALPOST_HTTP", format!("127.0.0.1:{port}"));
        }
        let stderr = match &self.stderr {
            Some(path) => fs::OpenOptions::new().create(true).append(true).open(path).expect("a file for its errors"),
            None => file("stderr"),
        };
        command.stdout(file("stdout")).stderr(stderr);
        let name = format!("walpost {}", self.arguments.join(" "));
        let process = Process::spawn(&name, &mut command);
        Walpost { port, dir, name, process }
    }
}

/// A running relay, or one that has ended and whose output is still there.
pub struct Walpost {
    pub port: u16,
    dir: PathBuf,
    name: String,
    process: Process,
}

impl Walpost {
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }

    pub fn signal(&self, signal: i32) {
        self.process.signal(signal);
    }

    pub fn sigterm(&self) {
        self.signal(libc::SIGTERM);
    }

    pub fn kill9(&self) {
        self.signal(libc::SIGKILL);
        self.wait_exit(seconds(10));
    }

    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    #[track_caller]
    pub fn wait_exit(&self, bound: Duration) -> i32 {
        self.process.wait_exit(bound)
    }

    /// None while it runs.
    pub fn exit_code(&self) -> Option<i32> {
        self.process.exit_code()
    }

    /// SIGTERM, and insists on a clean end.
    #[track_caller]
    pub fn stop(&self) {
        self.sigterm();
        assert_eq!(self.wait_exit(seconds(40)), 0, "exit code after SIGTERM\n{}", self.log_tail());
    }

    fn output(&self) -> Output {
        let text = |name| fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        let code = self.process.exit_code().expect("it has ended");
        Output { code, stdout: text("stdout"), stderr: text("stderr") }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("stderr")).unwrap_or_default()
    }

    pub fn log_tail(&self) -> String {
        run::log_tail(&self.name, &self.dir.join("stderr"), 30)
    }

    #[track_caller]
    pub fn wait_log(&self, contains: &str, bound: Duration) {
        wait_for(bound, &format!("{contains:?} in the log of {}", self.name), || self.log().contains(contains));
    }

    pub fn get(&self, path: &str) -> std::io::Result<(u16, String)> {
        http::get(self.port, path)
    }

    /// The JSON of `/status`; None while nobody answers.
    pub fn try_status(&self) -> Option<Value> {
        let (_, body) = self.get("/status").ok()?;
        serde_json::from_str(&body).ok()
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        self.try_status().unwrap_or_else(|| panic!("{} does not tell its status\n{}", self.name, self.log_tail()))
    }

    /// Empty while nobody answers.
    pub fn state(&self) -> String {
        let status = self.try_status();
        status.and_then(|status| Some(status.get("state")?.as_str()?.to_owned())).unwrap_or_default()
    }

    /// Whether the readiness probe is content, and what it says.
    #[track_caller]
    pub fn readyz(&self) -> (bool, String) {
        let (code, body) = self.get("/readyz").expect("an answer of /readyz");
        assert!(code == 200 || code == 503, "/readyz answered {code}");
        (code == 200, body)
    }

    #[track_caller]
    pub fn wait_state(&self, state: &str, bound: Duration) {
        let what = format!("the state {state} of {}", self.name);
        wait_for(bound, &what, || {
            let now = self.state();
            assert!(self.is_running(), "{} ended while it was to become {state}\n{}", self.name, self.log_tail());
            now == state
        });
    }

    #[track_caller]
    pub fn wait_streaming(&self) {
        self.wait_state("streaming", seconds(40));
    }

    /// The sum of a metric over the labels that contain `label` (all when it is empty); None when it is not there.
    #[track_caller]
    pub fn metric(&self, name: &str, label: &str) -> Option<f64> {
        let (code, body) = self.get("/metrics").expect("an answer of /metrics");
        assert_eq!(code, 200, "/metrics");
        sum(&body, name, label)
    }

    /// Whether it holds the slot; false too where it does not answer.
    pub fn is_leader(&self) -> bool {
        self.get("/metrics").is_ok_and(|(_, body)| sum(&body, "walpost_leader", "") == Some(1.0))
    }

    /// Waits until the relay has published (and had confirmed) at least this many messages since its start.
    #[track_caller]
    pub fn wait_published(&self, messages: u64, bound: Duration) {
        wait_for(bound, &format!("{messages} published messages"), || self.published() >= messages);
    }

    pub fn published(&self) -> u64 {
        self.try_status().and_then(|status| status.get("published")?.as_u64()).unwrap_or(0)
    }

    /// Resident memory now and at its highest, in bytes.
    pub fn memory(&self) -> Option<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let kib = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        Some(Memory { now: kib("VmRSS:")? * 1024, peak: kib("VmHWM:")? * 1024 })
    }

    /// Waits until a look at the status sees something.
    #[track_caller]
    pub fn wait_status<T>(&self, bound: Duration, what: &str, look: impl Fn(&Value) -> Option<T>) -> T {
        wait_some(bound, what, || look(&self.try_status()?))
    }
}

/// Of a page of metrics.
fn sum(page: &str, name: &str, label: &str) -> Option<f64> {
    let value = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (metric, labels) = series.split_once('{').unwrap_or((series, ""));
        (metric == name && labels.contains(label)).then(|| value.parse::<f64>().ok())?
    };
    let values: Vec<f64> = page.lines().filter_map(value).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub now: u64,
    pub peak: u64,
}

impl Drop for Walpost {
    fn drop(&mut self) {
        run::print_log_after_failure(&self.name, &self.dir.join("stderr"), 40);
    }
}
