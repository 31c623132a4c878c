//! `walpost run`: streams until told to stop. Wires the pieces together and starts them in the order in which they are
//! needed.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::runtime::{Builder, Runtime};

use crate::cli::exit;
use crate::commands::setup::{self, SetupError, SetupOptions};
use crate::config::Config;
use crate::error_text::ErrorText as _;
use crate::postgres::slot;
use crate::postgres::{AddressError, Connector, Session};
use crate::relay::session::slot_status;
use crate::relay::shutdown::Shutdown;
use crate::relay::start::{NotNow, Prepare, split_remedy};
use crate::relay::{GaveUp, Relay, RunOptions};
use crate::router::{Router, TemplateError};
use crate::sink::{KafkaSink, SettingsRefused};
use crate::telemetry::server::{self, ServeError, Server};
use crate::telemetry::{SlotStatus, Target, Telemetry};

/// What keeps a run from starting, or ended it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("the address of Postgres cannot be used")]
    Address(#[from] AddressError),
    #[error("route.topic cannot be used")]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Kafka(#[from] SettingsRefused),
    #[error(transparent)]
    Http(#[from] ServeError),
    #[error("signals cannot be listened for")]
    Signals(#[source] std::io::Error),
    #[error("no thread could be started for the admin server")]
    Thread(#[source] std::io::Error),
    #[error(transparent)]
    GaveUp(#[from] GaveUp),
}

impl RunError {
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Address(_) | RunError::Template(_) | RunError::Kafka(_) | RunError::Http(_) => {
                exit::CONFIGURATION
            }
            RunError::Signals(_) | RunError::Thread(_) => exit::BUG,
            RunError::GaveUp(GaveUp::Unreachable { .. }) => exit::UNREACHABLE,
            RunError::GaveUp(GaveUp::NotPermitted { .. }) => exit::NOT_PERMITTED,
            RunError::GaveUp(GaveUp::Temporary { .. }) => exit::TEMPORARY,
            RunError::GaveUp(GaveUp::Blocked { .. }) => exit::CONFIGURATION,
            RunError::GaveUp(GaveUp::Decision { .. }) => exit::DECISION,
        }
    }
}

/// Runs the relay.
pub async fn run(config: Config, options: RunOptions) -> Result<(), RunError> {
    let shutdown = Shutdown::on_signals().map_err(RunError::Signals)?;
    let telemetry = Telemetry::new(env!("CARGO_PKG_VERSION"), &[("librdkafka", &crate::sink::librdkafka_version())]);
    telemetry.metrics.expect_retries(Target::Postgres, ["session"]);
    telemetry.metrics.expect_retries(Target::Kafka, crate::sink::REBUILD_REASONS);
    telemetry.update(|status| status.slot.name = Some(config.postgres.slot.clone()));
    let connector = Connector::new(&config.postgres)?;
    let router = Router::new(&config)?;
    let config = Arc::new(config);
    let sink = KafkaSink::start(config.clone())?;
    let admin = match config.http.listen {
        Some(listen) => Some(Admin::start(listen, telemetry.clone()).await?),
        None => None,
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        postgres = connector.describe(),
        brokers = config.kafka.brokers.as_deref().unwrap_or_default(),
        table = config.postgres.table,
        slot = config.postgres.slot,
        publication = config.postgres.publication,
        topic = config.route.topic,
        partitioner = ?config.route.partitioner,
        "walpost starts: acks=all, idempotent, gapless, at most 5 requests in flight"
    );
    let relay = Relay::new(config, options, connector, sink, router, telemetry, shutdown);
    let outcome = relay.run().await;
    if let Some(admin) = admin {
        admin.stop().await;
    }
    if let Err(error) = &outcome {
        tracing::error!(error = error.text(), "walpost ends before it has caught up");
    }
    Ok(outcome?)
}

/// The admin server, on a thread of its own: it answers while the loop is busy, and whoever asks it holds up no row.
struct Admin {
    /// None once it is stopped.
    runtime: Option<Runtime>,
    server: Option<Server>,
}

impl Admin {
    async fn start(listen: SocketAddr, telemetry: Arc<Telemetry>) -> Result<Admin, RunError> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("admin").enable_all().build();
        let mut admin = Admin { runtime: Some(runtime.map_err(RunError::Thread)?), server: None };
        if let Some(runtime) = &admin.runtime {
            // A panic ends the process, so the task ends by itself.
            if let Ok(served) = runtime.spawn(server::serve(listen, telemetry)).await {
                admin.server = Some(served?);
            }
        }
        Ok(admin)
    }

    async fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // A runtime may not be waited for inside another one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What `run --setup` does before the first look: the same as `walpost setup`.
pub fn setup(config: &Config) -> Box<dyn Prepare> {
    Box::new(Setup { config: config.clone() })
}

struct Setup {
    config: Config,
}

impl Prepare for Setup {
    fn prepare<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), NotNow>> {
        Box::pin(async move {
            // Making a slot may wait for minutes. It says for whom, if another session can look.
            let watcher = match Connector::new(&self.config.postgres) {
                Ok(connector) => connector.sql("walpost setup").await.ok(),
                Err(_) => None,
            };
            let watcher = watcher.as_deref();
            let mut said = LogLines::default();
            let made = setup::apply(&session.client, watcher, &self.config, &SetupOptions::default(), &mut said).await;
            match made {
                Ok(()) => Ok(()),
                // What a person must decide on, the look that follows says in full.
                Err(SetupError::Decide { .. } | SetupError::SlotHeld { .. }) => Ok(()),
                Err(error) => Err(split_remedy(&error.text())),
            }
        })
    }
}

/// Logs each line as soon as it is whole: what waits says so while it waits.
#[derive(Default)]
struct LogLines {
    begun: Vec<u8>,
}

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begun.extend_from_slice(bytes);
        while let Some(end) = self.begun.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.begun.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if !line.trim().is_empty() {
                tracing::info!("setup: {}", line.trim_end());
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What Postgres says of the slot, for a status without a relay. None: it cannot be asked, or there is none.
pub async fn look_at_slot(config: &Config) -> Option<(SlotStatus, Option<u64>)> {
    let session = Connector::new(&config.postgres).ok()?.sql("walpost status").await.ok()?;
    let facts = slot::facts(&session, &config.postgres.slot).await.ok()??;
    Some((slot_status(&facts), facts.lag_bytes()))
}
