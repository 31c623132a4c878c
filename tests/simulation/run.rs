//! One seed from beginning to end: faults for a while, then calm until everything is delivered and confirmed, then an
//! orderly end after which nothing may repeat.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{LocalSet, spawn_local};
use tokio::time::Instant;
use walpost::config::OnPoison;
use walpost::planted::{Bug, plant};
use walpost::relay::session::Drained;
use walpost::telemetry::State as Said;

use crate::faults;
use crate::kafka;
use crate::mortal::{Fate, Mortal};
use crate::relay;
use crate::shelf;
use crate::world::{Server, Shared, State, Trace, World};

/// What has to be over by then, once there are no faults any more.
const HEALED_WITHIN: Duration = Duration::from_secs(900);
/// Between two looks at the state.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// In a state that promises progress, and none for so long.
const STUCK_AFTER: Duration = Duration::from_secs(25);
/// An idle position is recorded once it is a megabyte past the last one.
const LAG_BYTES_MOST: u64 = (1 << 20) + 20_000;
/// Beyond `shutdown.timeout`.
const STOPS_WITHIN: Duration = Duration::from_secs(60);

/// How a run went.
pub struct Outcome {
    pub broken: Option<String>,
    pub rows: usize,
    pub repeats: u64,
    pub virtual_time: Duration,
    /// Where it was kept.
    pub trace: Vec<String>,
}

/// Runs one seed, of relays that have a bug or none. Equal seeds run equally.
pub fn run(seed: u64, bug: Option<Bug>, trace: Trace) -> Outcome {
    plant(bug);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async move {
        let world = World::new(seed, trace);
        let began = Instant::now();
        {
            let mut state = world.lock();
            let plan = format!("{:?}", state.plan);
            state.note(|| plan);
        }
        // The real session runs on one thread, and need not be able to move to another.
        LocalSet::new().run_until(play(&world)).await;
        let mut state = world.lock();
        Outcome {
            broken: state.broken.take(),
            rows: state.log.rows.len(),
            repeats: state.ledger.repeats,
            virtual_time: began.elapsed(),
            trace: match std::mem::replace(&mut state.trace, Trace::Off) {
                Trace::Keep(lines) => lines,
                Trace::Off | Trace::Print => Vec::new(),
            },
        }
    })
}

async fn play(world: &Shared) {
    let (chaos, standby) = {
        let state = world.lock();
        (state.plan.chaos, state.plan.standby)
    };
    tokio::spawn(kafka::run(world.clone()));
    tokio::spawn(faults::write(world.clone()));
    tokio::spawn(faults::happen(world.clone()));
    tokio::spawn(shelf::look_after(world.clone()));
    for _ in 0..=u32::from(standby) {
        spawn_local(seat(world.clone()));
    }
    let until = Instant::now() + chaos;
    while Instant::now() < until {
        if !look(world).await {
            return;
        }
    }
    calm_down(world).await;
    if !wait(world, State::is_quiet, "everything is delivered, confirmed and said").await || has_to_wait(world) {
        return;
    }
    if world.lock().stands_at_poison() {
        // The remedy: end it, and start it again so that it leaves the message out.
        {
            let mut state = world.lock();
            state.note(|| "whoever starts from now on leaves poison out".to_owned());
            state.ledger.policy = OnPoison::Skip;
        }
        stop_all(world).await;
        if !wait(world, State::is_quiet, "everything behind the poison is delivered and confirmed").await {
            return;
        }
    }
    end(world).await;
}

/// In order: all is said, so nothing repeats.
async fn end(world: &Shared) {
    stop_all(world).await;
    let before = world.lock().ledger.stored_count();
    if !wait(world, State::is_quiet, "a new relay streams").await {
        return;
    }
    let after = world.lock().ledger.stored_count();
    if after != before {
        world.lock().violated(format!("after an orderly end {} rows were repeated", after - before));
    }
}

/// Whether a person has to decide, so that nothing goes on.
fn has_to_wait(world: &Shared) -> bool {
    world.lock().postgres.person.is_some()
}

/// One place for a relay: when it ends, another one starts.
async fn seat(world: Shared) {
    loop {
        let fate = Arc::new(Fate::default());
        let (number, stopped) = relay::new(&world, &fate);
        let life = relay::live(world.clone(), number, stopped.clone());
        let ended: Option<Option<Drained>> = Mortal::new(life, fate).await;
        let pause = {
            let mut state = world.lock();
            state.note(|| format!("relay {number}: is gone: {ended:?}"));
            let relay = &mut state.relays[number as usize];
            (relay.alive, relay.streams) = (false, false);
            if ended.is_none() {
                state.note(|| format!("relay {number}: was killed"));
            }
            let range = if state.calm { 0..=1_000 } else { 0..=6_000 };
            state.dice.delay(range)
        };
        world.pass(pause).await;
    }
}

/// No fault from here on, and all that was wrong is mended.
async fn calm_down(world: &Shared) {
    {
        let mut state = world.lock();
        let now = Instant::now();
        state.note(|| "no more faults".to_owned());
        state.calm = true;
        state.postgres.blocked_until = now;
        for broker in &mut state.kafka.brokers {
            (broker.up, broker.frozen_until) = (true, now);
        }
        for topic in &mut state.kafka.topics {
            topic.authorised = true;
            topic.partitions.iter_mut().for_each(|partition| partition.no_leader_until = None);
        }
        let fates: Vec<_> = state.relays.iter().map(|relay| relay.fate.clone()).collect();
        drop(state);
        for fate in fates {
            fate.freeze_until(now);
            fate.wake();
        }
    }
    world.kafka_work.notify_one();
    world.log_grown.notify_waiters();
    // A fault of the server ends by itself.
    while *world.server.borrow() != Server::Up {
        world.pass(LOOK_EVERY).await;
    }
}

/// False: a promise is broken.
async fn wait(world: &Shared, reached: fn(&mut State) -> bool, what: &str) -> bool {
    let until = Instant::now() + HEALED_WITHIN;
    loop {
        if !look(world).await {
            return false;
        }
        let mut state = world.lock();
        if reached(&mut state) {
            return true;
        }
        if Instant::now() > until {
            let said = state.said();
            let missing = state.missing();
            state.violated(format!(
                "{HEALED_WITHIN:?} after the last fault it is not yet so that {what}: {said}; {missing}"
            ));
            return false;
        }
    }
}

/// Lets a second pass and looks. False: a promise is broken.
async fn look(world: &Shared) -> bool {
    world.pass(LOOK_EVERY).await;
    let mut state = world.lock();
    for number in 0..state.relays.len() {
        state.look_at(number);
    }
    state.broken.is_none()
}

/// Tells all relays to stop, and waits until they have.
async fn stop_all(world: &Shared) {
    let (stops, within) = {
        let mut state = world.lock();
        state.note(|| "all relays are told to stop".to_owned());
        let living = |number: &usize| state.relays[*number].alive;
        let living: Vec<usize> = (0..state.relays.len()).filter(living).collect();
        for number in &living {
            state.relays[*number].stop.send_replace(true);
        }
        (living, state.plan.shutdown_timeout + STOPS_WITHIN)
    };
    let until = Instant::now() + within;
    let mut left = stops;
    while !left.is_empty() {
        if !look(world).await {
            return;
        }
        let mut state = world.lock();
        left.retain(|number| state.relays[*number].alive);
        if Instant::now() > until {
            return state.violated(format!("relays {left:?} did not stop within {within:?}"));
        }
    }
}

impl State {
    /// What one relay says of itself must be true.
    fn look_at(&mut self, number: usize) {
        let relay = &self.relays[number];
        if !relay.alive || relay.fate.frozen_until().is_some() {
            return;
        }
        let status = relay.telemetry.status();
        let in_flight = status.in_flight.messages.unwrap_or(0);
        let alive = relay.telemetry.is_live() || relay.was_frozen || !relay.streams;
        if !alive {
            self.violated(format!("relay {number}: its loop does not turn"));
        }
        let relay = &mut self.relays[number];
        if in_flight == 0 || !relay.streams {
            relay.delivered_at = Instant::now();
        }
        let stuck = relay.delivered_at.elapsed() > STUCK_AFTER;
        let fine = matches!(status.state, Said::Streaming | Said::CatchingUp | Said::Standby);
        if stuck && fine && !relay.was_frozen {
            self.violated(format!("relay {number} says {}, and nothing was delivered for long", status.state));
        }
        if in_flight > self.plan.window_messages as u64 {
            self.violated(format!("relay {number} holds {in_flight} rows"));
        }
    }

    /// Everything is delivered and confirmed, and a relay says so; or it says what it waits for.
    fn is_quiet(&mut self) -> bool {
        if let Some(person) = self.postgres.person {
            return self
                .relays
                .iter()
                .filter(|relay| relay.alive)
                .any(|relay| relay.telemetry.status().state == person);
        }
        let stands = self.stands_at_poison();
        let expected = if stands { Said::Stopped } else { Said::Streaming };
        let Some(relay) = self.relays.iter().find(|relay| relay.alive && relay.streams) else { return false };
        let status = relay.telemetry.status();
        if status.state != expected {
            return false;
        }
        if stands {
            return relay.window.is_empty() || status.in_flight.messages.is_some();
        }
        let lag = self.log.end.bytes_since(self.postgres.confirmed);
        let all = self.log.transactions.last().is_none_or(|last| last.end_lsn <= self.postgres.confirmed);
        let all = all && self.shelf.is_empty();
        all && lag <= LAG_BYTES_MOST && status.in_flight.messages == Some(0) && self.ledger.missing(&self.log).is_none()
    }

    fn stands_at_poison(&mut self) -> bool {
        self.ledger.stands_at_poison(&self.log)
    }

    fn said(&self) -> String {
        let of = |relay: &crate::relay::Relay| {
            let status = relay.telemetry.status();
            format!("{} ({})", status.state, status.reason.unwrap_or_default())
        };
        let relays = self.relays.iter().enumerate().filter(|(_, relay)| relay.alive);
        relays.map(|(number, relay)| format!("relay {number} says {}", of(relay))).collect::<Vec<_>>().join(", ")
    }

    fn missing(&mut self) -> String {
        let (confirmed, end) = (self.postgres.confirmed, self.log.end);
        let row = self.ledger.missing(&self.log);
        format!("confirmed {confirmed} of {end}, the first row that is missing: {row:?}")
    }
}
