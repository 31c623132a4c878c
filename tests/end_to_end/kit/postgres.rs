//! A real Postgres of a test's own: data directory, port, settings, and every way to stop it.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use super::certs::Certificate;
use super::programs::postgres_bindir;
use super::proxy::Proxy;
use super::run::{self, Process, free_port, new_dir};
use super::sql::Sql;
use super::wait::{seconds, wait_for};

/// How a Postgres is asked to stop, as `pg_ctl stop -m` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Smart,
    Fast,
    Immediate,
}

/// A Postgres that is described and not yet started.
pub struct PostgresBuilder {
    major: u32,
    conf: Vec<String>,
    hba: Vec<String>,
    certificate: Option<Certificate>,
}

impl PostgresBuilder {
    /// A line for postgresql.conf; later lines win over earlier ones and over the kit's.
    pub fn conf(mut self, line: &str) -> Self {
        self.conf.push(line.to_owned());
        self
    }

    /// A line for pg_hba.conf, before the lines that trust everybody.
    pub fn hba(mut self, line: &str) -> Self {
        self.hba.push(line.to_owned());
        self
    }

    pub fn tls(mut self, certificate: Certificate) -> Self {
        self.certificate = Some(certificate);
        self
    }

    /// Starts it and returns when it answers.
    pub fn start(self) -> Postgres {
        let postgres = self.start_unchecked();
        postgres.wait_ready();
        postgres
    }

    /// Starts it and returns at once: for one that refuses the kit's own connections.
    pub fn start_unchecked(self) -> Postgres {
        let home = new_dir(&format!("postgres-{}", self.major));
        let data = home.join("data");
        copy_template(self.major, &data);
        let port = free_port();
        let mut conf = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{}'\n{COMMON_SETTINGS}",
            home.display()
        );
        if let Some(certificate) = &self.certificate {
            write_owned(&data.join("server.crt"), &certificate.chain_pem);
            write_owned(&data.join("server.key"), &certificate.key_pem);
            conf += "ssl = on\n";
        }
        for line in &self.conf {
            conf += &format!("{line}\n");
        }
        append(&data.join("postgresql.conf"), &conf);
        let hba = fs::read_to_string(data.join("pg_hba.conf")).expect("the template's pg_hba.conf");
        fs::write(data.join("pg_hba.conf"), format!("{}\n{hba}", self.hba.join("\n"))).expect("writing pg_hba.conf");
        give_to_server_user(&home);
        let mut postgres = Postgres { major: self.major, port, home, data, process: None };
        postgres.start_without_waiting();
        postgres
    }
}

/// No fsync: the machine does not lose power during a test, and a killed Postgres loses nothing that it wrote.
pub(super) const COMMON_SETTINGS: &str = "\
wal_level = logical
fsync = off
max_wal_size = 4GB
max_replication_slots = 20
max_wal_senders = 20
shared_buffers = 64MB
log_min_messages = info
log_replication_commands = on
";

pub struct Postgres {
    pub major: u32,
    pub port: u16,
    pub(super) home: PathBuf,
    pub(super) data: PathBuf,
    pub(super) process: Option<Process>,
}

impl Postgres {
    /// One with the kit's settings and nothing else.
    pub fn start_major(major: u32) -> Postgres {
        Postgres::builder(major).start()
    }

    pub fn builder(major: u32) -> PostgresBuilder {
        PostgresBuilder { major, conf: Vec::new(), hba: Vec::new(), certificate: None }
    }

    /// Starts it, or starts it again after a stop, and returns when it answers.
    pub fn start(&mut self) {
        self.start_without_waiting();
        self.wait_ready();
    }

    fn wait_ready(&self) {
        let what = format!("Postgres {} to accept connections", self.major);
        wait_for(seconds(60), &what, || {
            assert!(self.is_running(), "Postgres {} ended while it started", self.major);
            self.answers()
        });
    }

    pub fn start_without_waiting(&mut self) {
        assert!(!self.is_running(), "it is running");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path()).expect("a server log");
        let mut command = as_server_user(&postgres_bindir(self.major).join("postgres"));
        command.arg("-D").arg(&self.data).stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        self.process = Some(Process::spawn(&format!("Postgres {}", self.major), &mut command));
    }

    pub fn url(&self, database: &str) -> String {
        self.url_as("postgres", database)
    }

    pub fn url_as(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// The folder of the Unix socket, which also holds the data directory and the log.
    pub fn socket_dir(&self) -> &Path {
        &self.home
    }

    pub fn log_path(&self) -> PathBuf {
        self.home.join("server.log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// A new SQL connection to a database.
    pub fn sql(&self, database: &str) -> Sql {
        Sql::connect(&self.url(database))
    }

    pub fn create_database(&self, name: &str) -> Sql {
        self.sql("postgres").execute(&format!("create database {name}"));
        self.sql(name)
    }

    /// Asks for a stop as `pg_ctl stop -m` does, and returns how long it took.
    #[track_caller]
    pub fn stop(&mut self, how: Stop, bound: Duration) -> Duration {
        let asked = Instant::now();
        self.ask_to_stop(how);
        self.process.take().expect("a running Postgres").wait_exit(bound);
        asked.elapsed()
    }

    /// Asks for a stop and returns at once.
    pub fn ask_to_stop(&self, how: Stop) {
        self.process.as_ref().expect("a running Postgres").signal(match how {
            Stop::Smart => libc::SIGTERM,
            Stop::Fast => libc::SIGINT,
            Stop::Immediate => libc::SIGQUIT,
        });
    }

    pub fn is_running(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_running)
    }

    /// The postmaster's.
    pub fn pid(&self) -> i32 {
        self.process.as_ref().expect("a running Postgres").pid()
    }

    /// Whether it accepts connections.
    pub fn answers(&self) -> bool {
        Sql::try_connect(&self.url("postgres")).is_ok()
    }

    /// SIGKILL to every process of the server: nothing is flushed, nobody says good-bye. (An earlier backend that lived
    /// on would hold the shared memory, and the next start would refuse.)
    pub fn kill9(&mut self) {
        let process = self.process.take().expect("a running Postgres");
        // Stopped first, or it would start new children meanwhile.
        process.signal(libc::SIGSTOP);
        let children = children_of(process.pid());
        process.signal(libc::SIGKILL);
        for &child in &children {
            // SAFETY: a plain system call; each was a child of the postmaster a moment ago.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        drop(process);
        wait_for(seconds(10), "the end of all its processes", || !children.iter().any(|&child| is_alive(child)));
        let _ = fs::remove_file(self.data.join("postmaster.pid"));
    }

    /// SIGSTOP to every process: the connections stay open and nothing answers.
    pub fn pause(&self) {
        self.signal_all(libc::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal_all(libc::SIGCONT);
    }

    fn signal_all(&self, signal: i32) {
        let process = self.process.as_ref().expect("a running Postgres");
        process.signal(signal);
        for child in children_of(process.pid()) {
            // SAFETY: a plain system call on a child of a living postmaster.
            unsafe { libc::kill(child, signal) };
        }
    }

    /// The pid of the walsender that serves a slot.
    pub fn walsender(&self, slot: &str) -> Option<i32> {
        self.sql("postgres").optional(&active_pid(slot))?.parse().ok()
    }

    /// The same; None too where the server does not answer.
    pub fn try_walsender(&self, slot: &str) -> Option<i32> {
        let rows = Sql::try_connect(&self.url("postgres")).ok()?.try_rows(&active_pid(slot)).ok()?;
        rows.first()?.first()?.as_ref()?.parse().ok()
    }

    /// To the walsender that serves a slot.
    #[track_caller]
    pub fn signal_walsender(&self, slot: &str, signal: i32) {
        let pid = self.walsender(slot).expect("a walsender");
        // SAFETY: a plain system call on a process that served the slot a moment ago.
        unsafe { libc::kill(pid, signal) };
    }

    /// By a proxy that stands before it.
    pub fn url_by(&self, proxy: &Proxy, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", proxy.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        run::print_log_after_failure(&format!("Postgres {}", self.major), &self.log_path(), 25);
        // Immediate, so that the server takes its children and its shared memory with it.
        if let Some(process) = &self.process {
            process.signal_group(libc::SIGCONT);
            process.signal(libc::SIGQUIT);
            let deadline = Instant::now() + seconds(5);
            while process.is_running() && Instant::now() < deadline {
                super::wait::pace(Instant::now() + Duration::from_millis(10));
            }
        }
        self.process = None;
        let _ = fs::remove_dir_all(&self.home);
    }
}

fn active_pid(slot: &str) -> String {
    format!("select active_pid from pg_replication_slots where slot_name = '{slot}'")
}

pub fn children_of(parent: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// A zombie is dead: it only waits for somebody to notice.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

/// initdb takes a second or two, a copy of its result next to nothing: one template per major version and run.
fn copy_template(major: u32, to: &Path) {
    static TEMPLATES: LazyLock<Mutex<HashMap<u32, PathBuf>>> = LazyLock::new(Mutex::default);
    let template = {
        let mut templates = TEMPLATES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        templates.entry(major).or_insert_with(|| initdb(major)).clone()
    };
    checked(Command::new("cp").arg("-a").arg(template).arg(to));
}

fn initdb(major: u32) -> PathBuf {
    let home = new_dir(&format!("template-{major}"));
    give_to_server_user(&home);
    let data = home.join("data");
    checked(as_server_user(&postgres_bindir(major).join("initdb")).arg("-D").arg(&data).args([
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-instructions",
        "--no-sync",
    ]));
    data
}

/// Postgres refuses to run as root: root's servers run as `postgres`, or as `nobody`.
static SERVER_USER: LazyLock<Option<(u32, u32)>> = LazyLock::new(|| {
    // SAFETY: geteuid cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    ["postgres", "nobody"].iter().find_map(|user| {
        let line = passwd.lines().find(|line| line.starts_with(&format!("{user}:")))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
});

pub(super) fn as_server_user(program: &Path) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(program);
    if let Some((uid, gid)) = *SERVER_USER {
        command.uid(uid).gid(gid);
    }
    // Messages of the server are looked at by tests, and the folder of the tests may be closed to its user.
    command.env_clear().env("LC_ALL", "C").env("PATH", std::env::var_os("PATH").unwrap_or_default()).current_dir("/");
    command
}

pub(super) fn give_to_server_user(path: &Path) {
    if let Some((uid, gid)) = *SERVER_USER {
        checked(Command::new("chown").arg("-R").arg(format!("{uid}:{gid}")).arg(path));
    }
}

/// A file that only the server's user may read, as Postgres demands of a key.
fn write_owned(path: &Path, text: &str) {
    fs::write(path, text).expect("a file in the data directory");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("permissions");
    if let Some((uid, gid)) = *SERVER_USER {
        chown(path, Some(uid), Some(gid)).expect("root may give files away");
    }
}

pub(super) fn append(path: &Path, text: &str) {
    let mut file = fs::OpenOptions::new().append(true).open(path).expect("the template's postgresql.conf");
    file.write_all(text.as_bytes()).expect("writing postgresql.conf");
}

#[track_caller]
pub(super) fn checked(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
}

/// Whether anything listens on a loopback port.
pub fn listening(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}
