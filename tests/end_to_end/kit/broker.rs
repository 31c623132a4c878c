//! One process of Apache Kafka, broker and controller at once: started, stopped, killed, frozen. What is in it is
//! [`super::Kafka`]'s.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use super::programs::{Jvm, java_as};
use super::proxy::Proxy;
use super::run::{self, Process, free_port, new_dir};
use super::wait::{seconds, wait_for};

pub struct Broker {
    /// Its `node.id`, from 1 on.
    pub id: usize,
    /// For the tests' own clients and the other brokers.
    pub port: u16,
    pub secure_port: u16,
    pub controller_port: u16,
    /// Stands before a listener of its own and is advertised in its place: what comes by it is led by it, always.
    pub proxy: Option<Proxy>,
    home: PathBuf,
    heap: String,
    jvm: Jvm,
    /// Starts that the log told of before the newest one.
    starts: usize,
    process: Option<Process>,
}

impl Broker {
    /// With a folder and ports of its own, not yet configured.
    pub fn new(id: usize, heap: &str, jvm: Jvm, proxied: bool) -> Broker {
        Broker {
            id,
            port: free_port(),
            secure_port: free_port(),
            controller_port: free_port(),
            proxy: proxied.then(|| Proxy::before(free_port())),
            home: new_dir("kafka"),
            heap: heap.to_owned(),
            jvm,
            starts: 0,
            process: None,
        }
    }

    pub fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.home.join(file);
        fs::write(&path, text).expect("a file in the broker's folder");
        path
    }

    pub fn properties_path(&self) -> PathBuf {
        self.home.join("server.properties")
    }

    pub fn data_path(&self) -> PathBuf {
        self.home.join("log")
    }

    pub fn log_path(&self) -> PathBuf {
        self.home.join("server.log")
    }

    /// Starts it, or starts it again after a stop, and returns when it serves.
    pub fn start(&mut self) {
        self.start_without_waiting();
        self.wait_ready();
    }

    pub fn start_without_waiting(&mut self) {
        assert!(!self.is_running(), "it is running");
        self.starts = self.starts_in_log();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path()).expect("a server log");
        let mut command = java_as(self.jvm, &self.heap);
        command.arg("kafka.Kafka").arg(self.properties_path());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        self.process = Some(Process::spawn("Kafka", &mut command));
    }

    pub fn wait_ready(&self) {
        wait_for(seconds(90), "Kafka to be ready", || {
            let tail = || run::log_tail("Kafka", &self.log_path(), 30);
            assert!(self.is_running(), "Kafka ended while it started\n{}", tail());
            self.is_ready()
        });
    }

    /// It serves since its newest start. (Stays true of one that was killed since.)
    pub fn is_ready(&self) -> bool {
        self.starts_in_log() > self.starts
    }

    fn starts_in_log(&self) -> usize {
        fs::read_to_string(self.log_path()).unwrap_or_default().matches("Kafka Server started").count()
    }

    pub fn is_running(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_running)
    }

    pub fn pid(&self) -> i32 {
        self.process.as_ref().expect("a running Kafka").pid()
    }

    /// Asks for a clean stop, as an operator does it, and returns at once.
    pub fn ask_to_stop(&self) {
        self.signal(libc::SIGTERM);
    }

    pub fn stop(&mut self) {
        self.ask_to_stop();
        self.process.take().expect("a running Kafka").wait_exit(seconds(60));
    }

    pub fn kill9(&mut self) {
        self.process = None;
    }

    /// SIGSTOP: its sockets stay open and nothing answers.
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        self.process.as_ref().expect("a running Kafka").signal(signal);
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        run::print_log_after_failure(&format!("Kafka {}", self.id), &self.log_path(), 25);
        self.process = None;
        let _ = fs::remove_dir_all(&self.home);
    }
}
