//! What goes wrong at a moment of its own, and the work that the world does meanwhile.

use std::time::Duration;

use tokio::time::Instant;

use crate::log::BEGINNING;
use crate::plan::Fault;
use crate::world::{Server, Shared, State};

/// Writes to the outbox, and to other tables, until there are no faults any more.
pub async fn write(world: Shared) {
    let (total, mut left) = {
        let mut state = world.lock();
        let total = state.plan.transactions;
        let backlog = if state.dice.percent(30) { state.dice.below(total) } else { 0 };
        for _ in 0..backlog {
            state.write();
        }
        (total, total - backlog)
    };
    loop {
        let pause = {
            let mut state = world.lock();
            let between = state.plan.chaos.as_millis() as u64 / (total + 1);
            if state.dice.percent(40) { Duration::ZERO } else { state.dice.millis(0..=between * 3) }
        };
        if !pause.is_zero() {
            world.pass(pause).await;
        }
        let held = {
            let mut state = world.lock();
            if left == 0 || state.calm {
                return;
            }
            let held = state.is_log_held() || *world.server.borrow() != Server::Up;
            if !held {
                state.write();
                left -= 1;
            }
            held
        };
        if held {
            world.pass(Duration::from_millis(500)).await;
        }
        world.log_grown.notify_waiters();
    }
}

/// Lets faults happen until there are none any more.
pub async fn happen(world: Shared) {
    loop {
        let pause = {
            let mut state = world.lock();
            let between = state.plan.between_faults.clone();
            state.dice.millis(between)
        };
        world.pass(pause).await;
        let fault = {
            let mut state = world.lock();
            if state.calm || state.plan.faults.is_empty() {
                return;
            }
            let State { plan, dice, .. } = &mut *state;
            *dice.pick(&plan.faults)
        };
        match fault {
            Fault::RestartPostgres => restart(&world).await,
            Fault::KillPostgres => kill(&world, Loss::None).await,
            Fault::FailOver => kill(&world, Loss::WithTimeline).await,
            Fault::LoseLog => kill(&world, Loss::Silent).await,
            Fault::FreezeRelay => freeze(&world).await,
            _ => world.lock().go_wrong(fault),
        }
        world.kafka_work.notify_one();
        world.log_grown.notify_waiters();
    }
}

/// What of the log is lost when the server goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    None,
    WithTimeline,
    Silent,
}

async fn restart(world: &Shared) {
    world.lock().note(|| "Postgres: restarts".to_owned());
    world.server.send_replace(Server::Stopping);
    // The server waits for its walsenders, and a relay must not make it wait.
    for _ in 0..50 {
        world.pass(Duration::from_millis(100)).await;
        if world.lock().postgres.holder.is_none() {
            break;
        }
    }
    world.server.send_replace(Server::Down);
    let pause = {
        let mut state = world.lock();
        let unheard = state.plan.has(Fault::HangStream) || state.plan.has(Fault::FreezeRelay);
        if state.postgres.holder.take().is_some() && !unheard {
            state.violated("the server's shutdown had to wait for a relay");
        }
        if state.plan.old_postgres && state.dice.percent(60) {
            state.slot_goes_back();
        } else {
            state.postgres.on_disk = state.postgres.confirmed;
        }
        state.dice.delay(100..=4_000)
    };
    come_back(world, pause).await;
}

async fn kill(world: &Shared, loss: Loss) {
    world.lock().note(|| "Postgres: dies".to_owned());
    world.server.send_replace(Server::Down);
    let pause = {
        let mut state = world.lock();
        state.postgres.holder = None;
        state.slot_goes_back();
        if loss != Loss::None {
            let lost = state.dice.within(0..=3_000);
            let end = walpost::lsn::Lsn(state.log.end.0.saturating_sub(lost).max(BEGINNING.0));
            state.lose_log(end, loss == Loss::WithTimeline);
            if loss == Loss::Silent {
                let alive = (0..state.relays.len()).filter(|number| state.relays[*number].alive);
                state.postgres.unaware = alive.map(|number| number as u32).collect();
            }
        }
        // An epoch is named after the second in which it begins.
        state.dice.delay(1_500..=6_000)
    };
    come_back(world, pause).await;
}

async fn come_back(world: &Shared, pause: Duration) {
    world.pass(pause).await;
    world.lock().note(|| "Postgres: is back".to_owned());
    world.server.send_replace(Server::Up);
}

/// A process stands still for a while, and goes on without knowing.
async fn freeze(world: &Shared) {
    let (fate, time) = {
        let mut state = world.lock();
        let Some(number) = state.any_relay() else { return };
        let time = state.dice.delay(100..=70_000);
        state.note(|| format!("relay {number}: is frozen for {time:?}"));
        let relay = &mut state.relays[number];
        relay.was_frozen = true;
        (relay.fate.clone(), time)
    };
    fate.freeze_until(Instant::now() + time);
    let world = world.clone();
    tokio::spawn(async move {
        world.pass(time).await;
        fate.wake();
        world.kafka_work.notify_one();
    });
}

impl State {
    /// A transaction commits.
    fn write(&mut self) {
        let State { plan, dice, log, .. } = self;
        if dice.percent(30) {
            // Others write, now and then more than makes an idle position worth a record.
            log.grow(if dice.percent(10) { 2 << 20 } else { dice.within(1..=5_000) });
        }
        if plan.old_postgres && dice.percent(30) {
            log.commit_empty();
        }
        log.commit(plan, dice);
        if dice.percent(10) {
            // A checkpoint.
            self.postgres.on_disk = self.postgres.confirmed;
        }
    }

    /// A process that lives.
    fn any_relay(&mut self) -> Option<usize> {
        let alive: Vec<usize> = (0..self.relays.len()).filter(|number| self.relays[*number].alive).collect();
        (!alive.is_empty()).then(|| *self.dice.pick(&alive))
    }

    /// A producer that has something under way, if there is one.
    fn any_producer(&mut self) -> Option<usize> {
        let busy = |producer: &crate::kafka::producer::Producer| {
            !producer.ended && producer.parts.values().any(|part| !part.out.is_empty() || !part.queue.is_empty())
        };
        let of: Vec<usize> =
            self.kafka.producers.iter().enumerate().filter(|(_, producer)| busy(producer)).map(|(at, _)| at).collect();
        (!of.is_empty()).then(|| *self.dice.pick(&of))
    }

    fn go_wrong(&mut self, fault: Fault) {
        let now = Instant::now();
        match fault {
            Fault::CutStream | Fault::HangStream => {
                let Some(relay) = self.any_relay() else { return };
                let Some(reins) = self.relays[relay].reins.clone() else { return };
                if fault == Fault::CutStream { reins.cut.notify_one() } else { reins.hang.notify_one() }
            }
            Fault::MoveSlot => {
                // Whoever uses a slot for the first time takes it as it is.
                if self.postgres.holder.is_none() && self.postgres.record.is_some() {
                    let to = self.log.end;
                    self.note(|| format!("somebody moves the slot to {to}"));
                    (self.postgres.confirmed, self.postgres.on_disk, self.postgres.moved) = (to, to, true);
                }
            }
            Fault::ChangePublication => {
                self.note(|| "somebody changes the publication".to_owned());
                self.postgres.fingerprint += 1;
            }
            Fault::BlockRecord => {
                let time = self.dice.delay(1_000..=70_000);
                self.note(|| format!("no statement ends for {time:?}"));
                self.postgres.blocked_until = now + time;
            }
            Fault::KillRelay => {
                let Some(relay) = self.any_relay() else { return };
                let steps = self.dice.delay(0..=200).as_millis() as u64;
                self.note(|| format!("relay {relay}: is killed after {steps} steps"));
                self.relays[relay].fate.kill_after(steps);
            }
            Fault::StopRelay => {
                let Some(relay) = self.any_relay() else { return };
                self.note(|| format!("relay {relay}: is told to stop"));
                self.relays[relay].stop.send_replace(true);
            }
            Fault::FreezeBroker => self.freeze_broker(now),
            Fault::StopBroker => self.stop_broker(now),
            Fault::BreakLinks => {
                let broker = self.dice.below(self.kafka.brokers.len() as u64) as usize;
                for producer in 0..self.kafka.producers.len() {
                    self.break_link(producer, broker, now);
                }
            }
            Fault::NoLeader => self.no_leader(now),
            Fault::SilenceProducer => {
                let Some(producer) = self.any_producer() else { return };
                self.note(|| format!("producer {producer} falls silent"));
                for broker in 0..self.kafka.brokers.len() {
                    self.break_link(producer, broker, now);
                }
                self.kafka.producers[producer].silent = true;
            }
            Fault::MuteProducer => {
                let Some(producer) = self.any_producer() else { return };
                self.note(|| format!("producer {producer} keeps what it hears to itself"));
                let ours = self.kafka.requests.values_mut().filter(|request| request.producer == producer);
                ours.for_each(|request| request.muted = true);
            }
            Fault::AddPartitions => self.add_partitions(),
            Fault::Unauthorise => self.unauthorise(),
            Fault::LowerLimit => self.lower_limit(),
            Fault::RestartPostgres | Fault::KillPostgres | Fault::FailOver | Fault::LoseLog | Fault::FreezeRelay => {}
        }
    }
}
