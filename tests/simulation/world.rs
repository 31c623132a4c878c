//! Everything there is in a run beside the relays themselves, behind one lock that is never held across an await; and the
//! finding of a broken promise.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::dice::Dice;
use crate::kafka::Kafka;
use crate::ledger::Ledger;
use crate::log::Log;
use crate::plan::Plan;
use crate::postgres::Postgres;
use crate::relay::Relay;
use crate::shelf::Shelf;

/// See the module.
pub struct World {
    state: Mutex<State>,
    /// The log has grown, or a walsender has something else to do.
    pub log_grown: Notify,
    /// Something was added to Kafka's agenda.
    pub kafka_work: Notify,
    /// A relay is to die, to freeze, or to thaw.
    pub server: watch::Sender<Server>,
}

pub type Shared = Arc<World>;

/// What Postgres does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Up,
    /// It says so before it goes.
    Stopping,
    Down,
}

/// What is told of a run.
pub enum Trace {
    Off,
    Print,
    Keep(Vec<String>),
}

pub struct State {
    pub plan: Plan,
    pub dice: Dice,
    pub log: Log,
    pub ledger: Ledger,
    pub postgres: Postgres,
    pub shelf: Shelf,
    pub kafka: Kafka,
    pub relays: Vec<Relay>,
    /// No fault happens any more.
    pub calm: bool,
    pub broken: Option<String>,
    pub trace: Trace,
    began: Instant,
}

impl World {
    pub fn new(seed: u64, trace: Trace) -> Shared {
        let mut dice = Dice::of(seed);
        let plan = Plan::of(&mut dice);
        let now = Instant::now();
        let state = State {
            log: Log::new(&plan),
            ledger: Ledger::new(plan.on_poison),
            postgres: Postgres::new(now),
            shelf: Shelf::default(),
            kafka: Kafka::new(&plan, now),
            relays: Vec::new(),
            calm: false,
            broken: None,
            trace,
            began: now,
            plan,
            dice,
        };
        let (server, _) = watch::channel(Server::Up);
        Arc::new(World { state: Mutex::new(state), log_grown: Notify::new(), kafka_work: Notify::new(), server })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets virtual time pass.
    pub async fn pass(&self, time: Duration) {
        sleep_until(Instant::now() + time).await;
    }
}

impl State {
    /// One step of the trace; its text is only made where somebody reads it.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        let seconds = self.began.elapsed().as_secs_f64();
        match &mut self.trace {
            Trace::Off => {}
            Trace::Print => println!("{seconds:9.3}  {}", text()),
            Trace::Keep(lines) => lines.push(format!("{seconds:9.3}  {}", text())),
        }
    }

    /// A promise is broken. The first one counts.
    pub fn violated(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.note(|| format!("BROKEN: {text}"));
        self.broken.get_or_insert(text);
    }

    /// Of a thousand, while there are faults at all.
    pub fn happens(&mut self, permille: u32) -> bool {
        !self.calm && self.dice.permille(permille)
    }
}
