//! `walpost bench`: how fast this Postgres, this machine and this Kafka are together. Makes a load in a scratch table, which
//! it relays through a slot and a topic of its own with the settings that `run` would use, and says which of the three was
//! the limit. Everything that it made is gone at the end, also after a failure and after a signal.
//!
//! ```text
//!  scratch  what it makes, and takes away again      load    the writers
//!  report   what was measured, and what it means (pure)
//! ```

use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::cli::exit;
use crate::commands::setup::SetupError;
use crate::commands::teardown::TeardownError;
use crate::config::Config;
use crate::error_text::ErrorText as _;
use crate::postgres::catalog::CatalogError;
use crate::postgres::{AddressError, ConnectError, Connector, SqlError};
use crate::relay::shutdown::Shutdown;
use crate::relay::{GaveUp, Relay, RunOptions};
use crate::router::{Router, TemplateError};
use crate::sink::{KafkaSink, SettingsRefused};
use crate::telemetry::{State, Telemetry};

mod load;
mod report;
mod scratch;

use load::{Load, Row};
use report::{Backlog, Report, Shares, Steady};
use scratch::Scratch;

/// A number of the relay is looked at so often.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// No row arrives for so long: it will not get better.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// Before the steady load counts: topics are opened, caches are warm.
const WARM_UP: Duration = Duration::from_secs(3);

/// What the command line asks for.
#[derive(Clone, Copy, Debug)]
pub struct BenchOptions {
    /// Rows of the backlog; 0 leaves that part out.
    pub rows: u32,
    pub rows_per_commit: u32,
    pub payload_bytes: u32,
    pub keys: u32,
    /// Commits a second of the steady load; 0 leaves that part out.
    pub rate: u32,
    pub seconds: u32,
    /// Connections that write the steady load.
    pub writers: u32,
    /// Of the scratch topic, where `topics.create` does not say.
    pub partitions: u16,
    pub json: bool,
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("{}; {}", .0, .0.remedy())]
    Address(#[from] AddressError),
    #[error("{}; {}", .0, .0.remedy())]
    Connect(#[from] Box<ConnectError>),
    #[error("the scratch table, slot and publication could not be made")]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error("route.topic cannot be used")]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Kafka(#[from] SettingsRefused),
    #[error("no broker answers: {0}; start the brokers, or mend kafka.brokers (--brokers)")]
    NoBroker(String),
    #[error("the scratch table could not be written")]
    Write(#[source] SqlError),
    #[error("the relay ended by itself")]
    Ended(#[source] GaveUp),
    #[error("no row arrived for {} s: {reason}{}", STUCK_AFTER.as_secs(), remedy_of(.remedy))]
    Stuck { reason: String, remedy: Option<String> },
    #[error("stopped by {0}")]
    Interrupted(&'static str),
    #[error("no thread could be started for the relay")]
    Thread(#[source] std::io::Error),
    #[error("signals cannot be listened for")]
    Signals(#[source] std::io::Error),
    #[error("what was measured could not be printed")]
    Output(#[from] std::io::Error),
    #[error(
        "the scratch slot, publication, table and topic {name} are left, because Postgres cannot be reached; as soon as it can, \
         drop them by hand, the slot first: it holds the log"
    )]
    Unreachable { name: String, source: Box<ConnectError> },
    #[error(
        "the scratch slot and publication {name} could not be dropped; drop them by hand, or the slot holds the log"
    )]
    Teardown { name: String, source: TeardownError },
    #[error("the scratch table {name} could not be dropped; drop it by hand")]
    DropTable { name: String, source: SqlError },
}

fn remedy_of(remedy: &Option<String>) -> String {
    remedy.as_ref().map_or_else(String::new, |remedy| format!("; {remedy}"))
}

impl BenchError {
    /// The exit code of a one-shot command.
    pub fn exit_code(&self) -> u8 {
        match self {
            BenchError::Address(_) | BenchError::Template(_) | BenchError::Kafka(_) => exit::CONFIGURATION,
            BenchError::Connect(error) => crate::commands::setup::by_kind(error.kind()),
            BenchError::Setup(error) => error.exit_code(),
            BenchError::Catalog(error) => crate::commands::setup::by_sqlstate(error.sqlstate()),
            BenchError::Unreachable { source, .. } => crate::commands::setup::by_kind(source.kind()),
            BenchError::NoBroker(_) => exit::UNREACHABLE,
            BenchError::Signals(_) => exit::BUG,
            BenchError::Teardown { source, .. } => source.exit_code(),
            BenchError::Write(_)
            | BenchError::Thread(_)
            | BenchError::Ended(_)
            | BenchError::Stuck { .. }
            | BenchError::Interrupted(_)
            | BenchError::Output(_)
            | BenchError::DropTable { .. } => exit::TEMPORARY,
        }
    }
}

/// Measures, prints, cleans up.
pub async fn run(config: &Config, options: BenchOptions, out: &mut (dyn Write + Send)) -> Result<(), BenchError> {
    let listen = |kind| signal(kind).map_err(BenchError::Signals);
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let connector = Connector::new(&config.postgres)?;
    let (scratch, leftovers) = Scratch::prepare(config, &connector, options.partitions).await?;
    for leftover in leftovers {
        // Not a warning: those are not shown while it is measured.
        tracing::error!(
            "slot {leftover} is of a measurement, nobody reads it, and it holds the log: where no other measurement is being \
             prepared, one was killed. Remove it with SELECT pg_drop_replication_slot('{leftover}'), then the table and the \
             publication of the same name"
        );
    }
    if !options.json {
        writeln!(out, "scratch table, slot and topic: {} (deleted at the end)", scratch.name())?;
    }
    // Whichever ends first, the other is dropped; what was made is taken away in any case.
    let measured = tokio::select! {
        measured = measure(&scratch, &connector, options) => measured,
        _ = interrupt.recv() => Err(BenchError::Interrupted("SIGINT")),
        _ = terminate.recv() => Err(BenchError::Interrupted("SIGTERM")),
    };
    let cleaned = scratch.clean(&connector).await;
    let report = match (measured, &cleaned) {
        (Ok(report), _) => report,
        (Err(error), Ok(())) => return Err(error),
        (Err(error), Err(left)) => {
            tracing::error!("{}", left.text());
            return Err(error);
        }
    };
    if options.json {
        writeln!(out, "{}", report.to_json())?;
    } else {
        write!(out, "{report}")?;
    }
    cleaned
}

async fn measure(scratch: &Scratch, connector: &Connector, options: BenchOptions) -> Result<Report, BenchError> {
    scratch.make(connector).await?;
    let load = Load { connector, table: scratch.name(), row: Row { bytes: options.payload_bytes, keys: options.keys } };
    let mut report = Report { payload_bytes: options.payload_bytes, ..Report::default() };
    if options.rows > 0 {
        report.backlog = Some(backlog(scratch, &load, options).await?);
    }
    if options.rate > 0 {
        report.steady = Some(steady(scratch, &load, options).await?);
    }
    Ok(report)
}

/// How fast rows go through that are there already.
async fn backlog(scratch: &Scratch, load: &Load<'_>, options: BenchOptions) -> Result<Backlog, BenchError> {
    let wanted = u64::from(options.rows);
    let bar = bar("backlog", wanted);
    let written = load.backlog(options.rows, options.rows_per_commit, |rows| bar.set_position(rows)).await?;
    bar.finish_and_clear();

    let bar = self::bar("drain", wanted);
    let started = Instant::now();
    let mut relay = Running::start(scratch)?;
    let mut first = None;
    relay
        .until(|telemetry| {
            let published = telemetry.metrics.messages_published.get();
            bar.set_position(published);
            if published > 0 && first.is_none() {
                first = Some((Instant::now(), published, Shares::of(&telemetry.metrics)));
            }
            published >= wanted
        })
        .await?;
    let ended = Instant::now();
    bar.finish_and_clear();
    let (first_at, before, shares_before) = first.unwrap_or((started, 0, Shares::default()));
    let shares = Shares::of(&relay.telemetry.metrics).since(shares_before);
    let bytes = relay.telemetry.metrics.bytes_published.get();
    relay.stop().await;
    Ok(Backlog {
        rows: wanted,
        rows_per_commit: options.rows_per_commit,
        wal_bytes: written.wal_bytes,
        first_after: first_at.saturating_duration_since(started),
        rows_measured: wanted.saturating_sub(before),
        took: ended.saturating_duration_since(first_at),
        bytes,
        shares,
    })
}

/// How soon a row is acknowledged while rows come at a steady rate.
async fn steady(scratch: &Scratch, load: &Load<'_>, options: BenchOptions) -> Result<Steady, BenchError> {
    let mut relay = Running::start(scratch)?;
    relay.until(|telemetry| telemetry.status().state == State::Streaming).await?;
    let metrics = &relay.telemetry.metrics;
    let seconds = Duration::from_secs(options.seconds.into());
    let bar = bar("steady", u64::from(options.seconds));
    let writing = load.steady(options.rate, options.writers, WARM_UP + seconds);
    let watching = async {
        // A relay that stands still must not let the log grow for as long as the writers write.
        let mut progress = Progress::of(&relay.telemetry);
        tokio::time::sleep(WARM_UP).await;
        drop(metrics.take_fine_latencies());
        let (shares, published) = (Shares::of(metrics), metrics.messages_published.get());
        for second in 0..options.seconds {
            bar.set_position(second.into());
            tokio::time::sleep(Duration::from_secs(1)).await;
            progress.check(&relay.telemetry)?;
        }
        Ok((Shares::of(metrics).since(shares), metrics.messages_published.get() - published))
    };
    // Whichever fails ends the other.
    let (written, (shares, published)) = tokio::try_join!(writing, watching)?;
    bar.finish_and_clear();
    let telemetry = relay.telemetry.clone();
    // All that was written is waited for: what comes late belongs to the percentiles.
    let wanted = written.rows;
    relay.until(move |telemetry| telemetry.metrics.messages_published.get() >= wanted).await?;
    let latencies = telemetry.metrics.take_fine_latencies();
    let skew = telemetry.metrics.clock_skew.get();
    relay.stop().await;
    Ok(Steady {
        asked: options.rate,
        reached: written.rows as f64 / written.took.as_secs_f64(),
        published: published as f64 / f64::from(options.seconds.max(1)),
        seconds: options.seconds,
        latencies,
        clock_skew: skew.is_finite().then_some(skew),
        shares,
    })
}

fn bar(what: &'static str, length: u64) -> ProgressBar {
    // Hidden where standard error is no terminal.
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{prefix:8} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}");
    bar.set_style(style.expect("the template is good"));
    bar.set_prefix(what);
    bar
}

/// The relay, in this process: as `walpost run`, on what was made for the measurement.
struct Running {
    telemetry: Arc<Telemetry>,
    stop: watch::Sender<bool>,
    /// On a thread of its own, as in `walpost run`: what it does while it waits for Kafka's client is not for two threads.
    relay: oneshot::Receiver<Result<(), GaveUp>>,
}

impl Running {
    fn start(scratch: &Scratch) -> Result<Running, BenchError> {
        let config = scratch.config();
        let telemetry = Telemetry::new(env!("CARGO_PKG_VERSION"), &[]);
        let (connector, router) = (Connector::new(&config.postgres)?, Router::new(config)?);
        let config = Arc::new(config.clone());
        let sink = KafkaSink::start(config.clone())?;
        let (stop, asked) = watch::channel(false);
        let shutdown = Shutdown::when(asked);
        let relay = Relay::new(config, RunOptions::default(), connector, sink, router, telemetry.clone(), shutdown);
        telemetry.metrics.take_fine_latencies();
        let (told, ended) = oneshot::channel();
        // As in main.rs.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BenchError::Thread)?;
        let run = move || {
            // Nobody listens any more where the measurement was given up.
            let _ = told.send(runtime.block_on(relay.run()));
            runtime.shutdown_background();
        };
        thread::Builder::new().name("relay".into()).spawn(run).map_err(BenchError::Thread)?;
        Ok(Running { telemetry, stop, relay: ended })
    }

    /// Waits until `done`, as long as rows arrive.
    async fn until(&mut self, mut done: impl FnMut(&Telemetry) -> bool) -> Result<(), BenchError> {
        let mut progress = Progress::of(&self.telemetry);
        loop {
            if done(&self.telemetry) {
                return Ok(());
            }
            progress.check(&self.telemetry)?;
            if let Ok(Err(gave_up)) = self.relay.try_recv() {
                return Err(BenchError::Ended(gave_up));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// An orderly end.
    async fn stop(mut self) {
        let _ = self.stop.send(true);
        // It has its own bound, `shutdown.timeout`.
        let _ = (&mut self.relay).await;
    }
}

/// Whether rows still arrive.
struct Progress {
    published: u64,
    moved_at: Instant,
}

impl Progress {
    fn of(telemetry: &Telemetry) -> Progress {
        Progress { published: telemetry.metrics.messages_published.get(), moved_at: Instant::now() }
    }

    /// An error once nothing has for [`STUCK_AFTER`].
    fn check(&mut self, telemetry: &Telemetry) -> Result<(), BenchError> {
        let published = telemetry.metrics.messages_published.get();
        if published != self.published {
            *self = Progress { published, moved_at: Instant::now() };
        }
        if self.moved_at.elapsed() <= STUCK_AFTER {
            return Ok(());
        }
        let status = telemetry.status();
        Err(BenchError::Stuck { reason: status.reason().to_owned(), remedy: status.remedy })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Whoever cleans up waits until the slot is free.
        let _ = self.stop.send(true);
    }
}
