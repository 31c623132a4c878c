//! Log lines: one event, one line on standard error, for people on a terminal and as JSON elsewhere.
//!
//! Whoever logs only puts a line into a queue that is bounded in bytes; a thread of its own writes. So neither a full
//! disk, nor a closed standard error, nor a reader of it that has stopped can fail or hold up the relay. Lines that find
//! the queue full are dropped, counted, and the count is logged when there is room again.
//!
//! With JSON, the fields of an event stand beside `timestamp`, `level`, `message` and `target`: no field may have one of
//! these names.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{Log, LogFormat};

/// What may wait to be written: some ten thousand lines, or one message that is logged whole and is larger than this.
const QUEUE_BYTES_MAX: usize = 4 << 20;

/// How long the end of the process waits for its last lines to be written.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// Logging could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error(
        "log.level {level:?} has no level for {target:?}: write one of off, error, warn, info, debug, trace, or a target \
         with its level such as info,{target}=debug (--log-level, WALPOST_LOG_LEVEL, RUST_LOG)"
    )]
    NoLevel { level: String, target: String },
    #[error(
        "log.level {level:?} is no log filter: write a level such as info, or targets with levels such as \
         info,walpost=debug (--log-level, WALPOST_LOG_LEVEL, RUST_LOG)"
    )]
    Filter { level: String, source: tracing_subscriber::filter::ParseError },
    #[error("the thread that writes log lines could not be started")]
    Thread(#[source] io::Error),
    #[error("logging was started twice")]
    Twice(#[source] TryInitError),
}

/// Keeps the log alive. Dropped at the end of the process, it waits a moment until the last lines are written.
#[must_use = "dropped at once, it waits for nothing: keep it until the process ends"]
pub struct LogGuard {
    queue: Queue,
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.queue.flush(FLUSH_WITHIN);
    }
}

/// Starts logging for the whole process: what is logged with `tracing`, and by libraries with `log`.
pub fn init(log: &Log) -> Result<LogGuard, LoggingError> {
    let filter = parse_filter(&log.level)?;
    let terminal = io::stderr().is_terminal();
    let format = log.format.unwrap_or(if terminal { LogFormat::Pretty } else { LogFormat::Json });
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let colour = terminal && !set("NO_COLOR");
    let queue = Queue::start(io::stderr()).map_err(LoggingError::Thread)?;
    subscriber(queue.clone(), filter, format, colour).try_init().map_err(LoggingError::Twice)?;
    Ok(LogGuard { queue })
}

/// Reads `log.level`. A word that is no level would be taken for a target, and `verbose` would silence all the others:
/// so a bare word must be a level or one of our own modules.
pub fn parse_filter(level: &str) -> Result<EnvFilter, LoggingError> {
    for directive in level.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        let bare = !directive.contains(['=', '[']);
        if bare && directive.parse::<LevelFilter>().is_err() && !directive.starts_with("walpost") {
            return Err(LoggingError::NoLevel { level: level.to_owned(), target: directive.to_owned() });
        }
    }
    let default = LevelFilter::INFO.into();
    let builder = EnvFilter::builder();
    let builder = if level.trim().is_empty() { builder.with_default_directive(default) } else { builder };
    // The parser takes no spaces after a comma.
    let directives: Vec<&str> = level.split(',').map(str::trim).collect();
    let parsed = builder.parse(directives.join(","));
    parsed.map_err(|source| LoggingError::Filter { level: level.to_owned(), source })
}

fn subscriber(queue: Queue, filter: EnvFilter, format: LogFormat, colour: bool) -> Box<dyn Subscriber + Send + Sync> {
    // Internal errors would be printed to standard error, which panics where that is what failed.
    let builder = tracing_subscriber::fmt()
        .with_writer(queue)
        .with_env_filter(filter)
        .log_internal_errors(false)
        .with_ansi(colour);
    match format {
        LogFormat::Pretty => Box::new(builder.with_target(false).finish()),
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_current_span(false).with_span_list(false);
            Box::new(builder.finish())
        }
    }
}

/// The lines on their way from whoever logs to the thread that writes.
#[derive(Clone)]
struct Queue {
    shared: Arc<Shared>,
}

struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    /// Of the lines here and of those being written.
    bytes: usize,
    dropped: u64,
}

impl Queue {
    /// Starts the thread; it lives as long as the process.
    fn start(mut out: impl Write + Send + 'static) -> io::Result<Queue> {
        let queue = Queue { shared: Arc::new(Shared { waiting: Mutex::default(), changed: Condvar::new() }) };
        let reader = queue.clone();
        std::thread::Builder::new().name("walpost-log".to_owned()).spawn(move || {
            loop {
                reader.write_batch(&mut out);
            }
        })?;
        Ok(queue)
    }

    fn push(&self, line: &[u8]) {
        let mut waiting = self.lock();
        if waiting.bytes > 0 && waiting.bytes + line.len() > QUEUE_BYTES_MAX {
            waiting.dropped += 1;
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line.to_owned());
        self.shared.changed.notify_all();
    }

    /// Waits for lines and writes them without holding the lock. An error loses the line and nothing else: there is
    /// nobody left to tell.
    fn write_batch(&self, out: &mut impl Write) {
        let lines = {
            let empty = |waiting: &mut Waiting| waiting.lines.is_empty();
            let waiting = self.shared.changed.wait_while(self.lock(), empty);
            std::mem::take(&mut waiting.unwrap_or_else(PoisonError::into_inner).lines)
        };
        for line in &lines {
            let _ = out.write_all(line);
        }
        let _ = out.flush();
        let dropped = {
            let mut waiting = self.lock();
            waiting.bytes -= lines.iter().map(Vec::len).sum::<usize>();
            self.shared.changed.notify_all();
            std::mem::take(&mut waiting.dropped)
        };
        if dropped > 0 {
            tracing::warn!(dropped, "log lines were dropped because standard error did not take them fast enough");
        }
    }

    fn flush(&self, within: Duration) {
        let deadline = Instant::now() + within;
        let mut waiting = self.lock();
        while waiting.bytes > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.shared.changed.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = &'a Queue;

    fn make_writer(&'a self) -> &'a Queue {
        self
    }
}

/// One call is one whole line: the formatter hands over its buffer at once.
impl Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// Hands on what is written, once the test lets it.
    struct Gate {
        open: mpsc::Receiver<()>,
        written: mpsc::Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            // An error: the test has let go, and the gate stays open.
            let _ = self.open.recv();
            let _ = self.written.send(line.to_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    fn gated() -> (Queue, mpsc::Sender<()>, mpsc::Receiver<Vec<u8>>) {
        let (opener, open) = mpsc::channel();
        let (written, lines) = mpsc::channel();
        (Queue::start(Gate { open, written }).unwrap(), opener, lines)
    }

    /// What `log` logs, line by line.
    fn logged(format: LogFormat, log: impl FnOnce()) -> String {
        let (queue, opener, lines) = gated();
        drop(opener);
        let filter = parse_filter("info").unwrap();
        tracing::subscriber::with_default(subscriber(queue.clone(), filter, format, false), log);
        queue.flush(SOON);
        String::from_utf8(lines.try_iter().flatten().collect()).unwrap()
    }

    #[test]
    fn a_json_line_has_its_fields_beside_the_message() {
        let text = logged(LogFormat::Json, || tracing::warn!(slot = "walpost", lag_bytes = 5, "the slot \"lags\""));
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert_eq!(
            (&line["level"], &line["message"], &line["slot"], &line["lag_bytes"]),
            (&"WARN".into(), &"the slot \"lags\"".into(), &"walpost".into(), &5.into())
        );
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z') && line["target"].is_string(), "{text}");
    }

    #[test]
    fn a_line_for_people_has_no_colour_codes_where_they_are_not_wanted() {
        let text = logged(LogFormat::Pretty, || tracing::info!(slot = "walpost", "streaming"));
        assert!(text.contains(" INFO streaming slot=\"walpost\"\n") && !text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn a_reader_that_has_stopped_costs_lines_and_no_time() {
        let (queue, opener, lines) = gated();
        let line = vec![b'x'; 1 << 20];
        for _ in 0..50 {
            queue.push(&line);
        }
        assert!(queue.lock().dropped >= 40);
        assert!(queue.lock().bytes <= QUEUE_BYTES_MAX);
        queue.flush(Duration::from_millis(1));
        drop(opener);
        queue.flush(SOON);
        assert!((1..=4).contains(&lines.try_iter().count()));
        assert_eq!(queue.lock().bytes, 0);
    }

    #[test]
    fn a_message_larger_than_the_queue_is_still_logged() {
        let (queue, opener, lines) = gated();
        drop(opener);
        queue.push(&vec![b'x'; 2 * QUEUE_BYTES_MAX]);
        assert_eq!(lines.recv_timeout(SOON).unwrap().len(), 2 * QUEUE_BYTES_MAX);
    }

    #[test]
    fn a_full_disk_stops_neither_the_relay_nor_later_lines() {
        let queue = Queue::start(Full).unwrap();
        for _ in 0..3 {
            queue.push(b"line\n");
            queue.flush(SOON);
            assert_eq!(queue.lock().bytes, 0);
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_instead_of_silencing_the_log() {
        for right in ["info", "WARN", "off", "walpost=debug,info", "walpost::relay", "info, rdkafka=debug", ""] {
            assert!(parse_filter(right).is_ok(), "{right:?}");
        }
        for wrong in ["verbose", "info,hyper", "walpost=loud", "info,=="] {
            let error = parse_filter(wrong).expect_err(wrong).to_string();
            assert!(error.contains("log.level") && error.contains("--log-level"), "{error}");
        }
    }
}
