//! One run of this test binary: its folder, its ports, and the janitor that ends every server and removes every file
//! when the run is over, however it ends.
//!
//! The janitor is a shell in a session of its own that reads from a pipe of ours. The kernel closes the pipe when this
//! process is gone, also by SIGKILL; then the janitor kills what was named to it and removes the folder. A parent-death
//! signal would not do: it fires when the *thread* that started the process ends, and each test is a thread.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::wait::wait_some;

/// The folder of this run. Everybody may enter it, because root's Postgres runs as somebody else.
pub fn dir() -> &'static Path {
    &RUN.dir
}

/// A folder inside the run's folder that nobody had before.
pub fn new_dir(name: &str) -> PathBuf {
    let dir = dir().join(format!("{name}-{}", unique()));
    fs::create_dir(&dir).expect("a new folder in the run's folder");
    dir
}

/// A number that this run gave to nobody else.
pub fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A free port on loopback, below the range from which the kernel takes source ports, so that it stays free while a
/// server is down and up again.
pub fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(std::process::id().wrapping_mul(97)));
    (0..1000)
        .map(|_| 20_000 + (NEXT.fetch_add(1, Ordering::Relaxed) % 10_000) as u16)
        .find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        .expect("a free port on loopback")
}

struct Run {
    dir: PathBuf,
    janitor: Mutex<ChildStdin>,
    /// Never waited for: it outlives this process.
    _janitor_process: Child,
}

static RUN: LazyLock<Run> = LazyLock::new(|| {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_millis();
    let dir = std::env::temp_dir().join(format!("walpost-test-{}-{now}", std::process::id()));
    fs::create_dir_all(&dir).expect("a folder for the run");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("a folder that everybody may enter");
    let script = r#"
        groups=" "
        while read -r word; do
            case $word in
                /*) dir=$word;;
                -*) groups="${groups%% ${word#-} *} ${groups#* ${word#-} }";;
                *) groups="$groups$word ";;
            esac
        done
        for group in $groups; do kill -CONT "-$group"; kill -KILL "-$group"; done 2>/dev/null
        for i in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$dir" 2>/dev/null && break; sleep 0.5; done
    "#;
    let mut janitor = own_session(Command::new("sh").arg("-c").arg(script).arg("walpost-test-janitor"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell for the janitor");
    let mut pipe = janitor.stdin.take().expect("the janitor's pipe");
    writeln!(pipe, "{}", dir.display()).expect("a living janitor");
    Run { dir, janitor: Mutex::new(pipe), _janitor_process: janitor }
});

/// A process group to end at the end, or one with a minus before it that has ended: its number may be used again.
fn tell_janitor(word: &str) {
    let mut janitor = RUN.janitor.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    writeln!(janitor, "{word}").expect("a living janitor");
}

/// In a session of its own: a signal to the tests' process group (Ctrl-C) does not reach it.
fn own_session(command: &mut Command) -> &mut Command {
    // SAFETY: setsid is async-signal-safe and touches nothing of ours.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        })
    }
}

/// A process with a process group of its own, known to the janitor, killed when dropped.
pub struct Process {
    child: Mutex<Child>,
    pid: i32,
    name: String,
}

impl Process {
    pub fn spawn(name: &str, command: &mut Command) -> Process {
        let _ = &RUN.dir;
        command.process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("{name} could not be started: {error}"));
        let pid = child.id() as i32;
        tell_janitor(&pid.to_string());
        Process { child: Mutex::new(child), pid, name: name.to_owned() }
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its exit code once it has ended; a signal counts as 128 and the signal's number, as in a shell.
    pub fn exit_code(&self) -> Option<i32> {
        let mut child = self.child.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let status = child.try_wait().expect("a child that can be waited for")?;
        Some(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
    }

    pub fn is_running(&self) -> bool {
        self.exit_code().is_none()
    }

    /// To the process alone.
    pub fn signal(&self, signal: i32) {
        self.kill(self.pid, signal);
    }

    /// To the process and whatever it started in its group.
    pub fn signal_group(&self, signal: i32) {
        self.kill(-self.pid, signal);
    }

    fn kill(&self, target: i32, signal: i32) {
        if self.is_running() {
            // SAFETY: a plain system call; the child was not reaped, so its number belongs to nobody else.
            unsafe { libc::kill(target, signal) };
        }
    }

    pub fn wait_exit(&self, bound: Duration) -> i32 {
        let what = format!("the end of {}", self.name);
        wait_some(bound, &what, || self.exit_code())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            self.signal_group(libc::SIGKILL);
            self.wait_exit(Duration::from_secs(10));
        }
        tell_janitor(&format!("-{}", self.pid));
    }
}

/// The last lines of a log, for the output of a failed test.
pub fn log_tail(title: &str, path: &Path, lines: usize) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    format!("--- {title} ({} of {} lines)\n{}\n", all.len() - from, all.len(), all[from..].join("\n"))
}

/// Prints the log's end if the test that is ending has failed. For `Drop`.
pub fn print_log_after_failure(title: &str, path: &Path, lines: usize) {
    if std::thread::panicking() {
        eprintln!("{}", log_tail(title, path, lines));
    }
}
