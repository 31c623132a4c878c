//! What the outside sees of the relay: logs, metrics, probes and the status page. Whoever knows a fact tells it here
//! once; where it shows up is decided here alone. Telling never waits for a reader and never fails.
//!
//! ```text
//!  loop ── set_state, update, in_flight, turned ──▶ Telemetry ──▶ server: /livez /readyz /status /metrics /
//!  loop ── counters and histograms ─────────────▶ Metrics  ──┘
//!  all  ── tracing ─────────────────────────────▶ logging  ──▶ stderr
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

mod describe;
mod fine;
pub mod health;
pub mod logging;
pub mod metrics;
mod page;
pub mod server;

pub use describe::{facts, human_bytes, human_count, human_seconds, utc};
pub use fine::FineLatencies;
pub use health::{EndStatus, InFlightStatus, ParkedStatus, SlotStatus, State, Status, WalStatus};
pub use metrics::{Doing, Metrics, Target, TopicMetrics};

/// A state that is not ready is logged again after so long.
const SAY_AGAIN_EVERY: Duration = Duration::from_secs(60);

/// The relay's status and metrics, shared by the loop that writes them and the server that shows them.
pub struct Telemetry {
    pub metrics: Metrics,
    started: Instant,
    /// Milliseconds from `started` to the loop's last turn, plus one; 0 before the first.
    turned: AtomicU64,
    inner: Mutex<Inner>,
}

struct Inner {
    status: Status,
    /// When the state was last logged.
    state_said_at: Option<Instant>,
    /// The outer None: nobody has said yet.
    oldest_unconfirmed: Option<Option<Instant>>,
    confirmed_at: Option<Instant>,
}

impl Telemetry {
    /// `version` is the relay's, `details` are further labels of `walpost_build_info`.
    pub fn new(version: &str, details: &[(&str, &str)]) -> Arc<Telemetry> {
        let status = Status { version: Some(version.to_owned()), ..Status::of(State::Starting) };
        Arc::new(Telemetry {
            metrics: Metrics::new(version, details),
            started: Instant::now(),
            turned: AtomicU64::new(0),
            inner: Mutex::new(Inner { status, state_said_at: None, oldest_unconfirmed: None, confirmed_at: None }),
        })
    }

    /// Enters a state, with one sentence why and what to do about it (empty: nothing). May be called at every turn: a
    /// line is logged for each change of state or reason, and again each minute while it is not ready. So a reason must hold still: no age, no running count.
    pub fn set_state(&self, state: State, reason: impl Into<String>, remedy: impl Into<String>) {
        let some = |text: String| (!text.is_empty()).then_some(text);
        let (reason, remedy) = (some(reason.into()), some(remedy.into()));
        let previous = {
            let mut inner = self.lock();
            let now = Instant::now();
            // Who looks at the log only later must still find why nothing goes on.
            let silent = inner.state_said_at.is_some_and(|at| now.saturating_duration_since(at) >= SAY_AGAIN_EVERY);
            let status = &mut inner.status;
            let changed = status.state != state || status.reason != reason;
            let previous = (changed || silent && !state.is_ready()).then_some(status.state);
            status.state = state;
            if changed {
                status.reason.clone_from(&reason);
            }
            if status.remedy != remedy {
                status.remedy.clone_from(&remedy);
            }
            if previous.is_some() {
                inner.state_said_at = Some(now);
            }
            previous
        };
        // Outside the lock: a probe must not wait for a log line.
        if let Some(previous) = previous {
            log_state(previous, state, reason.as_deref().unwrap_or_else(|| state.meaning()), remedy.as_deref());
        }
    }

    /// Sets any part of the status but the state, which has [`Telemetry::set_state`]. The gauges follow.
    pub fn update(&self, f: impl FnOnce(&mut Status)) {
        f(&mut self.lock().status);
    }

    /// The status of this moment, with what changes by itself filled in.
    pub fn status(&self) -> Status {
        let (mut status, oldest) = {
            let inner = self.lock();
            (inner.status.clone(), inner.oldest_unconfirmed)
        };
        let counted = |value: i64| u64::try_from(value).unwrap_or(0);
        status.oldest_unconfirmed_seconds = oldest.map(age_seconds);
        status.in_flight.messages = Some(counted(self.metrics.in_flight_messages.get()));
        status.in_flight.bytes = Some(counted(self.metrics.in_flight_bytes.get()));
        status.published = Some(self.metrics.messages_published.get());
        status
    }

    /// What is read and not yet confirmed by the broker. Cheap: two stores.
    pub fn in_flight(&self, messages: u64, bytes: u64) {
        self.metrics.in_flight_messages.set(messages as i64);
        self.metrics.in_flight_bytes.set(bytes as i64);
    }

    /// When the oldest row that is not yet confirmed was read. Its age is worked out whenever somebody asks, so that it
    /// grows also while the loop stands still.
    pub fn oldest_unconfirmed(&self, read_at: Option<Instant>) {
        self.lock().oldest_unconfirmed = Some(read_at);
    }

    /// What is set aside now.
    pub fn parked(&self, messages: u64, keys: u64) {
        self.update(|status| status.parked = ParkedStatus { messages: Some(messages), keys: Some(keys) });
    }

    /// A position was confirmed to the server.
    pub fn confirmed_at(&self, at: Instant) {
        self.lock().confirmed_at = Some(at);
    }

    /// Whether an end is connected, and if not, with which error.
    pub fn connected(&self, target: Target, end: EndStatus) {
        self.update(|status| match target {
            Target::Postgres => status.postgres = end,
            Target::Kafka => status.kafka = end,
        });
    }

    /// The loop turned. Call it at every turn, at least every few seconds.
    pub fn turned(&self) {
        let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.turned.store(millis + 1, Ordering::Relaxed);
    }

    /// Whether `/livez` answers 200.
    pub fn is_live(&self) -> bool {
        health::is_live(self.started.elapsed(), self.since_turn())
    }

    /// The sentence that `/livez` answers with when it is not 200.
    fn why_not_live(&self) -> String {
        match self.since_turn() {
            Some(since) => format!("the relay's loop has not turned for {}\n", human_seconds(since.as_secs_f64())),
            None => {
                format!("the relay's loop has not begun to turn within {} s\n", health::FIRST_TURN_WITHIN.as_secs())
            }
        }
    }

    fn since_turn(&self) -> Option<Duration> {
        let turned = self.turned.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.started.elapsed().saturating_sub(Duration::from_millis(turned)))
    }

    /// The text of `/metrics`.
    pub fn metrics_text(&self) -> Result<String, prometheus::Error> {
        let status = self.status();
        self.metrics.mirror(&status);
        self.metrics.oldest_unconfirmed_age.set(status.oldest_unconfirmed_seconds.unwrap_or(0.0));
        let confirmed_at = self.lock().confirmed_at;
        self.metrics.confirmed_flush_age.set(confirmed_at.map_or(f64::NAN, |at| age_seconds(Some(at))));
        self.metrics.text()
    }

    /// No code that holds the lock can leave the status half-written, so a panic elsewhere does not matter here.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In milliseconds: more digits would only be noise in JSON.
fn age_seconds(since: Option<Instant>) -> f64 {
    since.map_or(0.0, |since| since.elapsed().as_millis() as f64 / 1000.0)
}

/// One line for a change: an error where a person must act, a warning where rows wait, else information.
fn log_state(previous: State, state: State, reason: &str, remedy: Option<&str>) {
    let (now, was) = (state.as_str(), previous.as_str());
    if state.needs_a_person() {
        tracing::error!(state = now, previous = was, remedy, "{now}: {reason}");
    } else if state.is_ready() || remedy.is_none() || state == State::Draining {
        tracing::info!(state = now, previous = was, remedy, "{now}: {reason}");
    } else {
        tracing::warn!(state = now, previous = was, remedy, "{now}: {reason}");
    }
}

#[cfg(test)]
mod tests;
