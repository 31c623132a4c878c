//! The relay: the only place that sees both ends.
//!
//! ```text
//!  run ──▶ Kafka answers ──▶ start: look, judge, take the slot ──▶ session: rows in, records out, LSNs back ─┐
//!             ▲                        │ not now                          │ over                              │
//!             └────── back off, or wait for a person ◀───────────────────┴───────────────────────────────────┘
//! ```
//!
//! A relay stays up whatever happens to the two ends, and says in its state what it waits for. Only one that was told to
//! end when caught up gives up, with a [`GaveUp`] that says why.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::config::Config;
use crate::error_text::ErrorText;
use crate::lsn::Lsn;
use crate::postgres::Connector;
use crate::postgres::error::{ErrorKind, StreamError};
use crate::relay::repeated::{Repeated, Unreadable};
use crate::relay::session::{Drained, End, Failure, Lent, Session};
use crate::relay::shutdown::Shutdown;
use crate::relay::start::{NotNow, Prepare, Starter};
use crate::router::Router;
use crate::sink::KafkaSink;
use crate::telemetry::{EndStatus, State, Target, Telemetry, TopicMetrics};

pub mod carried;
pub mod condition;
pub mod dead_letter;
pub mod repeated;
pub mod republish;
pub mod session;
pub mod shutdown;
pub mod start;

/// How often a standby looks whether the slot is free, and a blocked relay whether somebody has helped.
const STANDBY_EVERY: Duration = Duration::from_secs(1);
const BLOCKED_EVERY: Duration = Duration::from_secs(5);
/// Between attempts on Postgres. The first is short, for a session that was merely cut; a server that is shutting down
/// is left alone for longer.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
const SERVER_STOPPING: Duration = Duration::from_secs(1);
/// What the server could not send time after time it will hardly send the next time.
const UNREADABLE_EVERY: Duration = Duration::from_secs(60);
const KAFKA_RETRY: Duration = Duration::from_secs(1);
/// A relay that is to end when caught up gives up on Kafka, or on a slot that is in use, after this.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a run is asked for beyond the configuration.
#[derive(Default)]
pub struct RunOptions {
    /// Makes what is missing in Postgres first.
    pub prepare: Option<Box<dyn Prepare>>,
    /// End once everything that was committed before the start is confirmed.
    pub until_caught_up: bool,
}

/// Why a relay that was to end when caught up did not get there.
#[derive(Debug, thiserror::Error)]
pub enum GaveUp {
    #[error("{text}\n{remedy}")]
    Unreachable { text: String, remedy: String },
    #[error("{text}\n{remedy}")]
    NotPermitted { text: String, remedy: String },
    #[error("{text}\n{remedy}")]
    Temporary { text: String, remedy: String },
    /// Something is not as it must be: a table, a publication, a slot is missing.
    #[error("{text}\n{remedy}")]
    Blocked { text: String, remedy: String },
    /// A person must decide.
    #[error("{text}\n{remedy}")]
    Decision { text: String, remedy: String },
}

/// See the module.
pub struct Relay {
    config: Arc<Config>,
    until_caught_up: bool,
    telemetry: Arc<Telemetry>,
    sink: KafkaSink,
    router: Router,
    starter: Starter,
    topics: Vec<TopicMetrics>,
    shutdown: Shutdown,
    backoff: ExponentialBackoff,
    repeated: Repeated,
    unreadable: Option<Unreadable>,
}

fn backoff() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(RETRY.0)
        .with_max_delay(RETRY.1)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
        .build()
}

impl Relay {
    pub fn new(
        config: Arc<Config>,
        options: RunOptions,
        connector: Connector,
        sink: KafkaSink,
        router: Router,
        telemetry: Arc<Telemetry>,
        shutdown: Shutdown,
    ) -> Relay {
        let until_caught_up = options.until_caught_up;
        let starter = Starter::new(config.clone(), connector, options);
        Relay {
            config,
            until_caught_up,
            telemetry,
            sink,
            router,
            starter,
            topics: Vec::new(),
            shutdown,
            backoff: backoff(),
            repeated: Repeated::default(),
            unreadable: None,
        }
    }

    /// Streams until told to stop, or until caught up.
    pub async fn run(mut self) -> Result<(), GaveUp> {
        if !self.meet_kafka().await? {
            return Ok(());
        }
        let mut in_use_since = None;
        loop {
            let cluster =
                self.sink.cluster().and_then(|cluster| cluster.as_ref().ok()).map(|cluster| cluster.id.clone());
            let telemetry = self.telemetry.clone();
            let started = tokio::select! {
                biased;
                () = self.shutdown.asked() => return Ok(()),
                started = alive(&telemetry, self.starter.start(cluster.as_deref())) => started,
            };
            if let Some(slot) = self.starter.take_seen_slot() {
                session::show_slot(&self.telemetry, slot.as_ref());
            }
            let pause = match started {
                Ok(start) => {
                    in_use_since = None;
                    self.telemetry.metrics.leader.set(1);
                    self.telemetry.connected(Target::Postgres, EndStatus::connected());
                    let lent = Lent {
                        config: &self.config,
                        telemetry: &self.telemetry,
                        sink: &mut self.sink,
                        router: &mut self.router,
                        topics: &mut self.topics,
                        shutdown: &mut self.shutdown,
                        unreadable: self.unreadable.as_ref(),
                    };
                    let (end, left) = Session::new(lent, start).run().await;
                    self.telemetry.metrics.leader.set(0);
                    if left.progressed {
                        self.backoff = backoff();
                    }
                    self.judge_failure(&end, left.progressed, left.confirmed);
                    self.starter.keep(left);
                    match self.after(end)? {
                        Some(pause) => pause,
                        None => return Ok(()),
                    }
                }
                Err(NotNow::Standby { holder }) => {
                    let since = *in_use_since.get_or_insert_with(tokio::time::Instant::now);
                    let reason = format!("the slot {:?} is held by {holder}", self.config.postgres.slot);
                    if self.until_caught_up && since.elapsed() > PATIENCE {
                        let remedy = "another relay streams already; stop it first".to_owned();
                        return Err(GaveUp::Temporary { text: reason, remedy });
                    }
                    self.telemetry.connected(Target::Postgres, EndStatus::connected());
                    self.telemetry.set_state(State::Standby, reason, "");
                    STANDBY_EVERY
                }
                Err(NotNow::Person { state, reason, remedy }) => {
                    self.telemetry.connected(Target::Postgres, EndStatus::connected());
                    self.telemetry.set_state(state, reason.clone(), remedy.clone());
                    if self.until_caught_up {
                        return Err(GaveUp::Decision { text: reason, remedy });
                    }
                    BLOCKED_EVERY
                }
                Err(NotNow::Blocked { reason, remedy }) => {
                    self.telemetry.connected(Target::Postgres, EndStatus::connected());
                    self.telemetry.set_state(State::Starting, reason.clone(), remedy.clone());
                    if self.until_caught_up {
                        return Err(GaveUp::Blocked { text: reason, remedy });
                    }
                    BLOCKED_EVERY
                }
                Err(NotNow::Trouble { kind, text, remedy }) => {
                    self.trouble(kind, &text, &remedy);
                    if self.until_caught_up {
                        return Err(gave_up(kind, text, remedy));
                    }
                    self.next_pause()
                }
            };
            if !self.rest(pause).await {
                return Ok(());
            }
        }
    }

    /// Waits until a broker answers: before that nothing is created in Postgres that would hold the log. False: told to
    /// stop meanwhile.
    async fn meet_kafka(&mut self) -> Result<bool, GaveUp> {
        let began = tokio::time::Instant::now();
        let remedy =
            "start the brokers, or mend kafka.brokers (--brokers) or what the error names; walpost goes on by itself";
        loop {
            self.sink.turn(tokio::time::Instant::now(), &mut Vec::new());
            let (connected, error) = self.sink.connection();
            let error = error.map(str::to_owned);
            let end = EndStatus { connected: Some(connected), error: error.clone() };
            self.telemetry.connected(Target::Kafka, end);
            match self.sink.cluster() {
                Some(Ok(cluster)) => {
                    tracing::info!(cluster_id = cluster.id, brokers = cluster.brokers, "Kafka answers");
                    return Ok(true);
                }
                Some(Err(answer)) => {
                    let text = format!("no broker answers: {}", error.as_deref().unwrap_or(answer));
                    self.telemetry.set_state(State::Starting, text.clone(), remedy);
                    if self.until_caught_up && began.elapsed() > PATIENCE {
                        return Err(GaveUp::Unreachable { text, remedy: remedy.to_owned() });
                    }
                    self.sink.ask_cluster();
                    if !self.rest(KAFKA_RETRY).await {
                        return Ok(false);
                    }
                }
                None => {
                    if let Some(error) = error {
                        self.telemetry.set_state(State::Starting, format!("no broker answers: {error}"), remedy);
                    }
                    self.telemetry.turned();
                    tokio::select! {
                        () = self.shutdown.asked() => return Ok(false),
                        _ = timeout(KAFKA_RETRY, self.sink.woken()) => {}
                    }
                }
            }
        }
    }

    /// What to do after a session. None: nothing, the relay is done.
    fn after(&mut self, end: End) -> Result<Option<Duration>, GaveUp> {
        Ok(Some(match end {
            End::Drained(Drained { stopped: true, .. }) => {
                tracing::warn!(
                    "stopped at a message that cannot be sent: it and what lies behind it stay in the log for the next start"
                );
                return Ok(None);
            }
            End::Drained(Drained { confirmed: true, .. }) => {
                tracing::info!("stopped: everything that was read is confirmed, nothing will repeat");
                return Ok(None);
            }
            End::Drained(Drained { undelivered: 0, .. }) => {
                tracing::warn!(
                    "stopped before all that was delivered could be confirmed to Postgres: what is not stays in the log, and \
                     comes again with the next start"
                );
                return Ok(None);
            }
            End::Drained(Drained { undelivered, .. }) => {
                tracing::warn!(
                    undelivered,
                    "stopped with {undelivered} rows that Kafka did not confirm in time: they stay in the log for the next \
                     start, which may repeat some that it did receive"
                );
                return Ok(None);
            }
            End::RoomAgain => {
                let reason = "somebody has decided on parked messages: there may be room again".to_owned();
                self.telemetry.set_state(State::Starting, reason, "");
                RETRY.0
            }
            End::Stopped => {
                let status = self.telemetry.status();
                let text = status.reason().to_owned();
                return Err(GaveUp::Decision { text, remedy: status.remedy.unwrap_or_default() });
            }
            End::Failed(failure) => {
                let text = failure.text();
                self.telemetry.metrics.retry(Target::Postgres, "session");
                self.telemetry
                    .connected(Target::Postgres, EndStatus { connected: Some(false), error: Some(text.clone()) });
                if let Some(Unreadable { reason, remedy }) = self.unreadable.clone() {
                    self.telemetry.set_state(State::Stalled, reason.clone(), remedy.clone());
                    if self.until_caught_up {
                        return Err(GaveUp::Decision { text: reason, remedy });
                    }
                    return Ok(Some(UNREADABLE_EVERY));
                }
                self.telemetry.set_state(State::Starting, text, "nothing: walpost connects again by itself");
                self.next_pause()
            }
            End::ServerStopping(text) => {
                let reason =
                    format!("Postgres is shutting down ({text}); the stream is closed so that it need not wait");
                self.telemetry.metrics.retry(Target::Postgres, "shutting_down");
                self.telemetry.connected(Target::Postgres, EndStatus { connected: Some(false), error: Some(text) });
                self.telemetry.set_state(State::Starting, reason, "nothing: walpost connects again by itself");
                self.next_pause().max(SERVER_STOPPING)
            }
            End::PublicationChanged { reason, remedy } => {
                self.telemetry.set_state(State::PublicationChanged, reason.clone(), remedy.clone());
                if self.until_caught_up {
                    return Err(GaveUp::Decision { text: reason, remedy });
                }
                BLOCKED_EVERY
            }
        }))
    }

    /// Whether a session ended as those before it did, at a place that the server cannot get past.
    fn judge_failure(&mut self, end: &End, progressed: bool, confirmed: Lsn) {
        let error = match end {
            End::Failed(Failure::Stream(StreamError::Server(error))) => error,
            _ if progressed => {
                self.repeated.forget();
                self.unreadable = None;
                return;
            }
            _ => return,
        };
        let (slot, version) = (&self.config.postgres.slot, self.starter.server_version());
        self.unreadable = self.repeated.failed(error, progressed, confirmed, slot, &version);
    }

    fn trouble(&mut self, kind: ErrorKind, text: &str, remedy: &str) {
        self.telemetry.metrics.retry(Target::Postgres, kind.as_str());
        self.telemetry.connected(Target::Postgres, EndStatus { connected: Some(false), error: Some(text.to_owned()) });
        self.telemetry.set_state(State::Starting, text, remedy);
    }

    fn next_pause(&mut self) -> Duration {
        self.backoff.next().unwrap_or(RETRY.1)
    }

    /// False: told to stop meanwhile.
    async fn rest(&mut self, pause: Duration) -> bool {
        let telemetry = self.telemetry.clone();
        tokio::select! {
            biased;
            () = self.shutdown.asked() => false,
            () = alive(&telemetry, sleep(pause)) => true,
        }
    }
}

/// Turns the liveness clock while something else than the session's loop is waited for.
async fn alive<T>(telemetry: &Telemetry, wait: impl Future<Output = T>) -> T {
    let mut wait = std::pin::pin!(wait);
    let mut turn = interval(Duration::from_secs(1));
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            done = &mut wait => return done,
            _ = turn.tick() => telemetry.turned(),
        }
    }
}

fn gave_up(kind: ErrorKind, text: String, remedy: String) -> GaveUp {
    match kind {
        ErrorKind::Unreachable | ErrorKind::Tls | ErrorKind::Pooler | ErrorKind::Protocol => {
            GaveUp::Unreachable { text, remedy }
        }
        ErrorKind::Auth | ErrorKind::NotPermitted => GaveUp::NotPermitted { text, remedy },
        ErrorKind::ShuttingDown
        | ErrorKind::TooManyConnections
        | ErrorKind::SlotInUse
        | ErrorKind::ReadOnly
        | ErrorKind::Other => GaveUp::Temporary { text, remedy },
        ErrorKind::NoDatabase | ErrorKind::UndefinedObject | ErrorKind::ObjectNotInState => {
            GaveUp::Blocked { text, remedy }
        }
    }
}
