//! A program that runs beside the demo and must never outlive it: stopped when its guard is dropped, also on a failure or
//! a signal, and by the kernel where the demo itself is killed.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program that was asked to end is waited for before it is killed.
const END_WITHIN: Duration = Duration::from_secs(10);
/// How much of a log is shown when its program fails.
const TAIL_BYTES: u64 = 16_384;
const TAIL_LINES: usize = 15;

/// A signal that ends a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Postgres: at once, but with its own children.
    Quit,
    Term,
    Kill,
}

impl Signal {
    fn number(self) -> libc::c_int {
        match self {
            Signal::Quit => libc::SIGQUIT,
            Signal::Term => libc::SIGTERM,
            Signal::Kill => libc::SIGKILL,
        }
    }
}

/// A running program. Dropped, it is stopped and waited for.
pub struct Child {
    process: process::Child,
    log: PathBuf,
    stop: Signal,
}

impl Child {
    /// Starts `command` with all its output in the file `log`; `stop` is the signal that ends it.
    ///
    /// The kernel's own care (below) goes by the *thread* that starts a program: call this on one that lasts as long as
    /// the demo, not on one of a pool.
    pub fn spawn(mut command: Command, log: PathBuf, stop: Signal) -> io::Result<Child> {
        let output = File::options().create(true).append(true).open(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // Ctrl-C on a terminal goes to a whole group of processes; this one is to be stopped by us, in order.
        command.process_group(0);
        #[cfg(target_os = "linux")]
        // SAFETY: between fork and exec only async-signal-safe calls are allowed; prctl is a bare system call.
        unsafe {
            command.pre_exec(move || match libc::prctl(libc::PR_SET_PDEATHSIG, stop.number()) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        Ok(Child { process: command.spawn()?, log, stop })
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// The end of its log.
    pub fn tail(&self) -> String {
        tail(&self.log)
    }

    pub fn signal(&mut self, signal: Signal) {
        // A process that has been waited for is gone, and its number may be somebody else's.
        if self.ended().is_none()
            && let Ok(pid) = libc::pid_t::try_from(self.process.id())
        {
            // SAFETY: no memory is involved.
            unsafe { libc::kill(pid, signal.number()) };
        }
    }

    /// Kills it without asking, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(self.stop);
        let deadline = Instant::now() + END_WITHIN;
        while self.ended().is_none() {
            if Instant::now() >= deadline {
                return self.kill();
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The last lines of the file, each indented.
pub fn tail(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default();
    match last {
        [] => "  (it is empty)".to_owned(),
        last => last.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_child_is_gone_and_its_output_was_kept() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo started; exec sleep 600"]);
        let child = Child::spawn(command, log.clone(), Signal::Term).unwrap();
        let pid = child.id();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !tail(&log).contains("started") {
            assert!(Instant::now() < deadline, "the child said nothing");
            thread::sleep(Duration::from_millis(5)); // between two looks
        }
        drop(child);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn the_tail_of_a_long_log_is_its_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        std::fs::write(&log, (0..10_000).map(|n| format!("line {n}\n")).collect::<String>()).unwrap();
        let tail = tail(&log);
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(tail.ends_with("line 9999"));
        assert_eq!(super::tail(&folder.path().join("none")), "  (it is empty)");
    }
}
