//! The control session beside the stream, scripted: commits positions late, loses its connection before or after, and
//! hears first that the server goes.

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};
use walpost::lsn::Lsn;
use walpost::parking::Aside;
use walpost::postgres::catalog::Identity;
use walpost::postgres::checkpoint::Recorded;
use walpost::postgres::control::{Control, Event, Order};
use walpost::postgres::history;
use walpost::postgres::parked::Outcome;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::world::{Server, Shared, State};

/// As in the real one.
const STATEMENT_WITHIN: Duration = Duration::from_secs(10);
const RECONNECT_AFTER: Duration = Duration::from_millis(500);

/// Starts one for a session in `epoch` that streams the log of `streamed`.
pub fn start(world: &Shared, holder: String, streamed: Identity, epoch: i64) -> Control {
    let server = world.server.subscribe();
    let world = world.clone();
    Control::over(move |orders, events| {
        let worker = Worker {
            world,
            holder,
            streamed,
            told: Lsn::INVALID,
            recorded: Lsn::INVALID,
            epoch,
            server,
            orders,
            events,
            wanted: None,
            todo: VecDeque::new(),
            uncertain: false,
        };
        worker.run()
    })
}

struct Worker {
    world: Shared,
    holder: String,
    streamed: Identity,
    told: Lsn,
    recorded: Lsn,
    epoch: i64,
    server: watch::Receiver<Server>,
    orders: UnboundedReceiver<Order>,
    events: UnboundedSender<Event>,
    /// Ordered and not committed.
    wanted: Option<Lsn>,
    /// The other orders, until they are carried out: they survive the connection.
    todo: VecDeque<Task>,
    /// The answer to a change of the table may have been lost.
    uncertain: bool,
}

/// An order that a statement can own.
#[derive(Clone)]
enum Task {
    Park(Vec<Arc<Aside>>),
    FindWork,
    Settle(Arc<Outcome>),
    SignOff,
}

enum Over {
    Finished,
    Lost,
}

impl Worker {
    async fn run(mut self) {
        while let Over::Lost = self.serve().await {
            if self.events.is_closed() {
                return;
            }
            if *self.server.borrow() == Server::Stopping {
                self.tell(Event::ServerStopping("terminating connection".to_owned()));
            }
            self.tell(Event::Disconnected("the connection was lost".to_owned()));
            self.world.pass(RECONNECT_AFTER).await;
            // Who is refused hears why.
            loop {
                let server = *self.server.borrow_and_update();
                match server {
                    Server::Up => break,
                    Server::Stopping => {
                        self.tell(Event::ServerStopping("the database system is shutting down".to_owned()));
                    }
                    Server::Down => self.tell(Event::Disconnected("connection refused".to_owned())),
                }
                if self.server.changed().await.is_err() {
                    return;
                }
            }
            self.tell(Event::Connected);
        }
    }

    fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    async fn serve(&mut self) -> Over {
        while let Ok(order) = self.orders.try_recv() {
            self.take(order);
        }
        match self.is_at_home().await {
            Ok(true) => {}
            Ok(false) => {
                self.tell(Event::RecordGone("another server".to_owned()));
                return Over::Finished;
            }
            Err(over) => return over,
        }
        if let Err(over) = self.work_off().await {
            return over;
        }
        loop {
            let order = tokio::select! {
                biased;
                _ = self.server.wait_for(|server| *server != Server::Up) => return Over::Lost,
                order = self.orders.recv() => order,
            };
            let Some(order) = order else { return Over::Finished };
            self.take(order);
            while let Ok(order) = self.orders.try_recv() {
                self.take(order);
            }
            if let Err(over) = self.work_off().await {
                return over;
            }
        }
    }

    async fn is_at_home(&self) -> Result<bool, Over> {
        let look =
            |state: &mut State| (state.identity(), state.postgres.record.as_ref().map(|record| record.confirmed_lsn));
        let (now, found) = self.commit(look).await?;
        Ok(history::is_streamed_log(&self.streamed, &now, self.told, self.recorded, found))
    }

    fn take(&mut self, order: Order) {
        self.todo.push_back(match order {
            Order::Record(lsn) => {
                self.world.lock().postgres.asked_at.get_or_insert_with(Instant::now);
                self.wanted = Some(lsn);
                return;
            }
            Order::Told(lsn) => {
                self.told = self.told.max(lsn);
                return;
            }
            Order::Park(asides) => Task::Park(asides.into_iter().map(Arc::new).collect()),
            Order::FindWork => Task::FindWork,
            Order::Settle(outcome) => Task::Settle(Arc::new(outcome)),
            Order::SignOff => Task::SignOff,
        });
    }

    async fn work_off(&mut self) -> Result<(), Over> {
        if let Some(lsn) = self.wanted {
            self.record(lsn).await?;
        }
        while let Some(task) = self.todo.front().cloned() {
            let epoch = self.epoch;
            let event = match task {
                Task::SignOff => {
                    let holder = self.holder.clone();
                    let _ = statement(&self.world, move |state| state.sign(epoch, &holder, false)).await;
                    return Err(Over::Finished);
                }
                Task::Park(asides) => {
                    let before = std::mem::replace(&mut self.uncertain, true);
                    let holder = self.holder.clone();
                    let parked = self.commit(move |state| state.park(&asides, epoch, &holder)).await?;
                    let Some((added, flushed)) = parked else {
                        self.tell(Event::RecordGone("too late".to_owned()));
                        return Err(Over::Finished);
                    };
                    self.uncertain = before;
                    Event::Parked { added, flushed }
                }
                Task::FindWork => {
                    let found = self.commit(|state| state.shelf.work()).await?;
                    if !found.is_empty() {
                        let what: Vec<_> = found.iter().map(|work| (work.message_id.clone(), work.wish)).collect();
                        self.world.lock().note(|| format!("work is found: {what:?}"));
                    }
                    Event::Work(found)
                }
                Task::Settle(outcome) => {
                    let before = std::mem::replace(&mut self.uncertain, true);
                    let (gone, empty) = self.commit(move |state| state.settle(&outcome)).await?;
                    self.uncertain = before;
                    Event::Settled { gone, empty }
                }
            };
            self.todo.pop_front();
            self.tell(event);
        }
        if self.uncertain {
            let size = self.commit(|state| state.shelf.size()).await?;
            self.uncertain = false;
            self.tell(Event::ParkedSize(size));
        }
        Ok(())
    }

    async fn record(&mut self, lsn: Lsn) -> Result<(), Over> {
        let epoch = self.epoch;
        let recorded = self.commit(move |state| state.record(lsn, epoch)).await?;
        self.wanted = None;
        if matches!(recorded, Recorded::Done) {
            self.recorded = lsn;
        }
        self.tell(match recorded {
            Recorded::Done => Event::Recorded(lsn),
            Recorded::FingerprintChanged { .. } => Event::PublicationChanged {
                reason: "what is published was changed while rows were read".to_owned(),
                remedy: "see what may be missing".to_owned(),
            },
            Recorded::Behind { recorded } => Event::RecordGone(format!("another relay has recorded {recorded}")),
            Recorded::Superseded { epoch, .. } => Event::RecordGone(format!("it is of epoch {epoch}")),
            Recorded::Gone => Event::RecordGone("there is no record of this slot".to_owned()),
        });
        Ok(())
    }

    /// A statement whose connection may be lost before it, or after it with its answer.
    async fn commit<T: Send + 'static>(&self, work: impl FnOnce(&mut State) -> T + Send + 'static) -> Result<T, Over> {
        let (lost, before) = {
            let mut state = self.world.lock();
            let odds = state.plan.odds.record_lost;
            (state.happens(odds), state.dice.percent(50))
        };
        if lost && before {
            return Err(Over::Lost);
        }
        let answer = statement(&self.world, work).await.ok_or(Over::Lost)?;
        if lost { Err(Over::Lost) } else { Ok(answer) }
    }
}

/// Runs a statement on the server, where it goes on although nobody may wait for it any more. None: no answer in time.
pub async fn statement<T: Send + 'static>(
    world: &Shared,
    work: impl FnOnce(&mut State) -> T + Send + 'static,
) -> Option<T> {
    let (done, answer) = oneshot::channel();
    let mut server = world.server.subscribe();
    let there = world.clone();
    let (takes, blocked_until) = {
        let mut state = world.lock();
        let range = if state.calm { 0..=5 } else { state.plan.sql_delay.clone() };
        (state.dice.delay(range), state.postgres.blocked_until)
    };
    tokio::spawn(async move {
        let at = (Instant::now() + takes).max(blocked_until);
        tokio::select! {
            biased;
            // A server that goes takes its statements with it.
            _ = server.wait_for(|server| *server != Server::Up) => {}
            () = tokio::time::sleep_until(at) => {
                let result = work(&mut there.lock());
                there.log_grown.notify_waiters();
                let _ = done.send(result);
            }
        }
    });
    timeout(STATEMENT_WITHIN, answer).await.ok()?.ok()
}
