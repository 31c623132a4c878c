//! One process: the real session over the real sink, again and again, with a scripted look at the server between. It may
//! die at any await point.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use walpost::config::{Config, OnNullPayload, OnPoison, OnRouteError, Secret};
use walpost::lsn::Lsn;
use walpost::postgres::checkpoint::Replaces;
use walpost::postgres::history::{Seen, Verdict};
use walpost::relay::carried::{Carried, Taken};
use walpost::relay::session::{Drained, End, Failure, Left, Lent, Session, Start};
use walpost::relay::shutdown::Shutdown;
use walpost::router::Router;
use walpost::sink::KafkaSink;
use walpost::source::stream::Stream;
use walpost::telemetry::{State as Said, Telemetry};

use crate::control::{self, statement};
use crate::kafka::client::Scripted;
use crate::log::RowId;
use crate::mortal::Fate;
use crate::postgres::{SLOT, Seeing};
use crate::walsender::{self, Reins};
use crate::world::{Server, Shared};

const NAME: &str = "orders";
/// As in the real one.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(10);
const STANDBY_EVERY: Duration = Duration::from_secs(1);
const BLOCKED_EVERY: Duration = Duration::from_secs(5);
const SERVER_STOPPING: Duration = Duration::from_secs(1);

/// What the world knows of a process.
pub struct Relay {
    pub telemetry: Arc<Telemetry>,
    pub fate: Arc<Fate>,
    pub stop: watch::Sender<bool>,
    pub alive: bool,
    /// Was stopped for a while, and knew nothing of it.
    pub was_frozen: bool,
    /// Of its newest connection.
    pub reins: Option<Arc<Reins>>,
    pub said_goodbye: bool,
    /// Its newest session, counted over all processes.
    pub session: u64,
    pub streams: bool,
    pub window: Window,
    pub delivered_at: Instant,
}

/// Tickets of a session, as far as they can be seen from outside.
#[derive(Default)]
pub struct Window {
    open: BTreeMap<usize, RowId>,
    newest: usize,
}

impl Window {
    pub fn fed(&mut self, ticket: usize, row: RowId) {
        self.open.insert(ticket, row);
        self.newest = self.newest.max(ticket);
    }

    pub fn settled(&mut self, ticket: usize) {
        self.open.remove(&ticket);
    }

    /// It may count as settled without a report: it is parked, or was read in its topic.
    pub fn elsewhere(&mut self, row: RowId) {
        self.open.retain(|_, other| *other != row);
    }

    /// What may be poison may be left out, and is then settled.
    pub fn failed(&mut self, ticket: usize, code: Code) {
        if matches!(code, Code::MessageSizeTooLarge | Code::InvalidRecord) {
            self.open.remove(&ticket);
        }
    }

    /// From the oldest row that is not delivered to the newest.
    pub fn width(&self) -> usize {
        self.open.first_key_value().map_or(0, |(oldest, _)| self.newest - oldest + 1)
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

/// A new process, before its first step. Returns its number.
pub fn new(world: &Shared, fate: &Arc<Fate>) -> (u32, watch::Receiver<bool>) {
    let (stop, stopped) = watch::channel(false);
    let telemetry = Telemetry::new("simulated", &[]);
    let mut state = world.lock();
    state.relays.push(Relay {
        telemetry,
        fate: fate.clone(),
        stop,
        alive: true,
        was_frozen: false,
        reins: None,
        said_goodbye: false,
        session: 0,
        streams: false,
        window: Window::default(),
        delivered_at: Instant::now(),
    });
    (state.relays.len() as u32 - 1, stopped)
}

/// Lives until it is told to stop. The error is a promise that it broke.
pub async fn live(world: Shared, number: u32, stopped: watch::Receiver<bool>) -> Option<Drained> {
    let (config, telemetry) = {
        let state = world.lock();
        (Arc::new(settings(&state.plan, state.ledger.policy)), state.relays[number as usize].telemetry.clone())
    };
    let mailbox = Arc::default();
    let sink = KafkaSink::over(Box::new(Scripted::new(&world, number, &mailbox)), &config, mailbox);
    let process = Process {
        sink: sink.expect("a sink over a script"),
        router: Router::new(&config).expect("the template is valid"),
        carried: Carried::new(format!("process {number}")),
        shutdown: Shutdown::when(stopped),
        pause: PAUSE.0,
        world,
        number,
        config,
        telemetry,
    };
    process.run().await
}

const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

fn settings(plan: &crate::plan::Plan, on_poison: OnPoison) -> Config {
    let mut config = Config { name: NAME.to_owned(), ..Config::default() };
    config.window.messages = plan.window_messages;
    config.window.bytes = plan.window_bytes;
    config.shutdown.timeout = plan.shutdown_timeout;
    config.on_poison = on_poison;
    config.on_route_error = if plan.parks_routes { OnRouteError::Park } else { OnRouteError::Wait };
    config.parked.max_rows = plan.parked_most;
    config.read_back = plan.read_back;
    config.on_null_payload = OnNullPayload::Skip;
    config.kafka.properties.insert("batch.size".to_owned(), Secret::new(plan.batch_bytes.to_string()));
    config
}

struct Process {
    world: Shared,
    number: u32,
    config: Arc<Config>,
    telemetry: Arc<Telemetry>,
    sink: KafkaSink,
    router: Router,
    carried: Carried,
    shutdown: Shutdown,
    pause: Duration,
}

/// Why no session can begin now.
enum NotNow {
    Standby,
    /// A person must decide.
    Person(Said),
    Trouble,
}

impl Process {
    async fn run(mut self) -> Option<Drained> {
        if !self.meet_kafka().await {
            return None;
        }
        let mut topics = Vec::new();
        loop {
            let mut shutdown = self.shutdown.clone();
            let started = tokio::select! {
                biased;
                () = shutdown.asked() => return None,
                started = self.start() => started,
            };
            let pause = match started {
                Ok(start) => {
                    let epoch = start.epoch;
                    self.telemetry.metrics.leader.set(1);
                    let lent = Lent {
                        config: &self.config,
                        telemetry: &self.telemetry,
                        sink: &mut self.sink,
                        router: &mut self.router,
                        topics: &mut topics,
                        shutdown: &mut self.shutdown,
                        unreadable: None,
                    };
                    let (end, left) = Session::new(lent, start).run().await;
                    match self.after(end, left, epoch) {
                        Ok(pause) => pause,
                        Err(drained) => return Some(drained),
                    }
                }
                Err(NotNow::Standby) => STANDBY_EVERY,
                Err(NotNow::Person(state)) => {
                    self.telemetry.set_state(state, "a person must decide", "decide");
                    BLOCKED_EVERY
                }
                Err(NotNow::Trouble) => self.next_pause(),
            };
            if !self.rest(pause).await {
                return None;
            }
        }
    }

    fn after(&mut self, end: End, left: Left, epoch: u64) -> Result<Duration, Drained> {
        let most = self.config.window.messages * 2;
        {
            let number = self.number;
            let mut state = self.world.lock();
            state.note(|| format!("relay {number}: its session is over: {end:?}"));
            state.relays[number as usize].streams = false;
            // What is forgotten may be repeated: all that a fault of the sink has made uncertain, and what is too much.
            let mut all = self.carried.remembered().clone();
            let forgets = match &left.remembered {
                Some(remembered) => {
                    all.merge(remembered.clone());
                    all.forget_below(left.confirmed);
                    let mut short = all.clone();
                    short.shorten(most);
                    short != all
                }
                None => true,
            };
            if forgets {
                state.ledger.forget(number);
            }
            let state = &mut *state;
            match &end {
                End::Drained(Drained { confirmed: true, .. }) => {
                    if left.remembered.as_ref().is_some_and(|remembered| remembered.awaits(left.confirmed)) {
                        state.violated(format!("relay {number} ended in order, and what it has delivered comes again"));
                    }
                    state.ledger.close(&state.log, left.confirmed, epoch);
                }
                End::Failed(Failure::Decode(error)) => state.violated(format!("relay {number} cannot read: {error}")),
                End::PublicationChanged { .. } => state.postgres.person = Some(Said::PublicationChanged),
                _ => {}
            }
        }
        if left.progressed {
            self.pause = PAUSE.0;
        }
        self.carried.keep(left, most);
        match end {
            End::Drained(drained) => Err(drained),
            End::Failed(_) | End::Stopped => Ok(self.next_pause()),
            End::RoomAgain => Ok(PAUSE.0),
            End::ServerStopping(_) => Ok(self.next_pause().max(SERVER_STOPPING)),
            End::PublicationChanged { .. } => Ok(BLOCKED_EVERY),
        }
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE.1);
        pause + self.world.lock().dice.millis(0..=pause.as_millis() as u64)
    }

    /// False: told to stop meanwhile.
    async fn rest(&mut self, pause: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.shutdown.asked() => false,
            () = self.world.pass(pause) => true,
        }
    }

    async fn meet_kafka(&mut self) -> bool {
        loop {
            self.sink.turn(Instant::now(), &mut Vec::new());
            match self.sink.cluster() {
                Some(Ok(_)) => return true,
                Some(Err(_)) => {
                    self.sink.ask_cluster();
                    if !self.rest(Duration::from_secs(1)).await {
                        return false;
                    }
                }
                None => tokio::select! {
                    biased;
                    () = self.shutdown.asked() => return false,
                    _ = timeout(Duration::from_secs(1), self.sink.woken()) => {}
                },
            }
        }
    }

    /// Looks, judges, takes the slot, looks again, and only then changes the record: the steps of the real start, whose
    /// judgement and memory these are.
    async fn start(&mut self) -> Result<Start<DuplexStream>, NotNow> {
        self.stumble()?;
        let seeing = self.look().await?;
        let verdict = self.judge(&seeing);
        let from = self.accept(&verdict, &seeing)?;
        if seeing.slot.active {
            return Err(NotNow::Standby);
        }
        let pause = self.world.lock().dice.delay(0..=30);
        self.world.pass(pause).await;
        if *self.world.server.borrow() != Server::Up {
            return Err(NotNow::Trouble);
        }
        if self.world.lock().postgres.holder.is_some() {
            return Err(NotNow::Standby);
        }
        let socket = walsender::start(&self.world, self.number, from);
        timeout(TAKE_OVER_WITHIN, self.take_over(socket, from)).await.unwrap_or(Err(NotNow::Trouble))
    }

    async fn take_over(&mut self, socket: DuplexStream, from: Lsn) -> Result<Start<DuplexStream>, NotNow> {
        self.stumble()?;
        let again = self.look().await?;
        let verdict = self.judge(&again);
        if self.accept(&verdict, &again)? != from {
            return Err(NotNow::Trouble);
        }
        let same_history = matches!(verdict, Verdict::Resume { .. });
        let (epoch, confirmed) = match (&again.record, same_history) {
            (Some(record), true) => (record.epoch, self.carried.confirmed(record.confirmed_lsn)),
            _ => {
                let replaces = Replaces::seen(again.record.as_ref());
                let begun = statement(&self.world, move |state| state.begin_epoch(NAME, Some("kafka"), replaces)).await;
                let begun = begun.flatten().ok_or(NotNow::Trouble)?;
                self.stumble()?;
                (begun.epoch, begun.confirmed_lsn)
            }
        };
        let (identity, record, now) = (&again.identity, again.record.as_ref(), Instant::now());
        self.carried.begin(&Taken { identity, record, kept: true, same_history, epoch, confirmed, now });
        self.stumble()?;
        let holder = self.carried.holder().to_owned();
        let signing = holder.clone();
        statement(&self.world, move |state| state.sign(epoch, &signing, true)).await.ok_or(NotNow::Trouble)?;
        self.stumble()?;
        let queues = statement(&self.world, |state| state.shelf.queues()).await.ok_or(NotNow::Trouble)?;
        let mut state = self.world.lock();
        let session = 1 + state.relays.iter().map(|relay| relay.session).max().unwrap_or(0);
        let relay = &mut state.relays[self.number as usize];
        (relay.session, relay.streams, relay.window) = (session, true, Window::default());
        relay.delivered_at = Instant::now();
        state.postgres.asked_at = None;
        state.postgres.person = None;
        state.kafka.tails[self.number as usize].begin();
        state.note(|| format!("relay {}: session {session} in epoch {epoch} goes on after {confirmed}", self.number));
        drop(state);
        Ok(Start {
            stream: Stream::new(socket, bytes::BytesMut::new()),
            control: control::start(&self.world, holder, again.identity, epoch),
            epoch: epoch.unsigned_abs(),
            confirmed,
            remembered: self.carried.remembered().clone(),
            quiet_until: self.carried.quiet_until(Instant::now()),
            until: None,
            queues: Some(queues),
            parked_first: self.carried.parked_first(),
        })
    }

    /// Any step may fail, without having had an effect or after it.
    fn stumble(&self) -> Result<(), NotNow> {
        let mut state = self.world.lock();
        let odds = state.plan.odds.start_fails;
        if state.happens(odds) || *self.world.server.borrow() != Server::Up {
            return Err(NotNow::Trouble);
        }
        Ok(())
    }

    async fn look(&self) -> Result<Seeing, NotNow> {
        let number = self.number;
        statement(&self.world, move |state| state.look(number)).await.ok_or(NotNow::Trouble)
    }

    fn judge(&mut self, seeing: &Seeing) -> Verdict {
        self.carried.judge(Seen {
            relay: NAME,
            slot_name: SLOT,
            slot: Some(&seeing.slot),
            record: seeing.record.as_ref(),
            identity: &seeing.identity,
            memory: None,
            fingerprint: Some(&seeing.fingerprint),
            kafka_cluster_id: Some("kafka"),
        })
    }

    fn accept(&self, verdict: &Verdict, seeing: &Seeing) -> Result<Lsn, NotNow> {
        let mut state = self.world.lock();
        match verdict {
            Verdict::Resume { start_lsn } => Ok(*start_lsn),
            Verdict::NewEpoch { .. } | Verdict::FirstUse { .. } => Ok(Lsn::INVALID),
            Verdict::Gap { slot_at, .. } => {
                if !state.postgres.may_be_a_gap(*slot_at) {
                    state.violated(format!("relay {} sees a gap where there is none: {verdict:?}", self.number));
                }
                state.postgres.person = Some(Said::Gap);
                Err(NotNow::Person(Said::Gap))
            }
            Verdict::PublicationChanged { .. } => {
                state.postgres.person = Some(Said::PublicationChanged);
                Err(NotNow::Person(Said::PublicationChanged))
            }
            Verdict::NotSetUp { .. } | Verdict::Lost { .. } | Verdict::Recovering { .. } | Verdict::Refused { .. } => {
                state.violated(format!("{verdict:?} of {:?}", seeing.slot));
                Err(NotNow::Trouble)
            }
        }
    }
}
