//! The control connection: an SQL session that stays open beside the stream, on a task of its own.
//!
//! It commits confirmed positions to `walpost.checkpoint`, watches the slot, and is the first to hear that the server
//! shuts down. Its death never disturbs the stream: it connects again by itself. Orders go in and events come out
//! through channels, so the relay's loop never waits for SQL.

use std::collections::VecDeque;
use std::error::Error;
use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::error_text::ErrorText as _;
use crate::lsn::Lsn;
use crate::parking::{Aside, Unit};
use crate::postgres::catalog::Identity;
use crate::postgres::checkpoint::{self, Recorded, Recorder};
use crate::postgres::error::{ErrorKind, kind_of};
use crate::postgres::fingerprint::difference;
use crate::postgres::parked::{Change, Lot, Outcome, ParkedError, Work};
use crate::postgres::{Connector, Session, catalog, history, slot};

/// Shows up in `pg_stat_activity`.
pub const APPLICATION_NAME: &str = "walpost control";
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// A statement that takes longer is given up, with its connection.
const STATEMENT_WITHIN: Duration = Duration::from_secs(10);
/// A connection that lasted for so long was a good one.
const STEADY_AFTER: Duration = Duration::from_secs(5);
const RECONNECT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// The last words at a shutdown.
const SIGN_OFF_WITHIN: Duration = Duration::from_secs(3);

/// What the loop wants of the control connection.
pub enum Order {
    /// Commit the position; a later one overtakes one that waits.
    Record(Lsn),
    /// The stream has led so far: a server that has less is not the one that is streamed from.
    Told(Lsn),
    /// Set these messages aside, in this order. Only where parking was agreed on at the start.
    Park(Vec<Aside>),
    /// Look for parked messages that may be worked on.
    FindWork,
    /// Write down what has become of parked messages.
    Settle(Outcome),
    /// Nothing is under way any more; then the task ends.
    SignOff,
}

/// What the control connection has to say.
#[derive(Debug)]
pub enum Event {
    /// This position is committed and may be confirmed.
    Recorded(Lsn),
    /// Nothing may be confirmed any more: rows may be missing from the stream.
    PublicationChanged {
        reason: String,
        remedy: String,
    },
    /// The record is gone, or belongs to somebody else now.
    RecordGone(String),
    /// The server is shutting down: it must not be made to wait.
    ServerStopping(String),
    /// The messages of the oldest [`Order::Park`] are committed, below `flushed`. What the table grew by: less where some
    /// were there already.
    Parked {
        added: Change,
        flushed: Lsn,
    },
    /// How much is parked, where an answer was lost: a statement that is carried out twice tells of less than it did.
    ParkedSize(Change),
    /// The answer to [`Order::FindWork`].
    Work(Vec<Work>),
    /// The oldest [`Order::Settle`] is committed: what is gone, and which of its queues are empty.
    Settled {
        gone: Change,
        empty: Vec<Unit>,
    },
    /// The slot as it is now; None: it is gone.
    Slot(Option<Box<slot::SlotFacts>>),
    /// The planner's estimate of the table's rows; None: never analysed.
    Rows(Option<f64>),
    Connected,
    Disconnected(String),
}

/// How positions are kept.
pub enum Keeping {
    /// In `walpost.checkpoint`.
    Record(Recorder),
    /// Nowhere, because there is no such table: only the publication is looked at.
    Nowhere { publication: String, schema: String, table: String, fingerprint: String, version: u32 },
}

/// The loop's end of the task. The task ends when this is dropped.
pub struct Control {
    orders: mpsc::UnboundedSender<Order>,
    events: mpsc::UnboundedReceiver<Event>,
    task: JoinHandle<()>,
}

impl Control {
    /// Goes on with a session that is open already.
    pub fn start(
        connector: Connector,
        session: Session,
        slot: String,
        server: Identity,
        table_oid: u32,
        keeping: Keeping,
        lot: Option<Lot>,
    ) -> Control {
        let (orders, inbox) = mpsc::unbounded_channel();
        let (outbox, events) = mpsc::unbounded_channel();
        let worker = Worker {
            connector,
            slot,
            server,
            told: Lsn::INVALID,
            recorded: Lsn::INVALID,
            table_oid,
            keeping,
            lot,
            inbox,
            outbox,
            wanted: None,
            todo: VecDeque::new(),
            uncertain: false,
        };
        Control { orders, events, task: tokio::spawn(worker.run(session)) }
    }

    /// With another worker at the other end, for trying the loop without a server.
    pub fn over<F>(worker: impl FnOnce(mpsc::UnboundedReceiver<Order>, mpsc::UnboundedSender<Event>) -> F) -> Control
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (orders, inbox) = mpsc::unbounded_channel();
        let (outbox, events) = mpsc::unbounded_channel();
        Control { orders, events, task: tokio::spawn(worker(inbox, outbox)) }
    }

    /// Gives an order; an [`Event`] answers.
    pub fn order(&self, order: Order) {
        // Without a task there is no session either.
        let _ = self.orders.send(order);
    }

    /// The next event. Cancel-safe. Waits for ever once the task is gone.
    pub async fn event(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    /// Says in the record that this relay has nothing under way any more, and ends.
    pub async fn sign_off(&mut self) {
        self.order(Order::SignOff);
        if timeout(SIGN_OFF_WITHIN, &mut self.task).await.is_err() {
            tracing::info!(
                "the record was not signed off in time; the next relay waits a few seconds before it produces"
            );
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Worker {
    connector: Connector,
    slot: String,
    /// Whose log is streamed.
    server: Identity,
    /// The furthest position that the stream has led to, and the last that was recorded.
    told: Lsn,
    recorded: Lsn,
    table_oid: u32,
    keeping: Keeping,
    /// None: nothing is parked.
    lot: Option<Lot>,
    inbox: mpsc::UnboundedReceiver<Order>,
    outbox: mpsc::UnboundedSender<Event>,
    /// Ordered and not committed.
    wanted: Option<Lsn>,
    /// The other orders, until they are carried out: they survive the connection.
    todo: VecDeque<Order>,
    /// A change of the table was ordered, and its answer may have been lost.
    uncertain: bool,
}

/// Why a session is over.
enum Over {
    /// Nobody listens any more, or all is said.
    Finished,
    Lost {
        kind: ErrorKind,
        text: String,
    },
}

impl Worker {
    async fn run(mut self, session: Session) {
        let mut session = Some(session);
        let mut pause = RECONNECT.0;
        // How the last connection ended, until the next one stands.
        let mut ended: Option<ErrorKind> = None;
        loop {
            let open = match session.take() {
                Some(session) => session,
                None => match self.connector.sql(APPLICATION_NAME).await {
                    Ok(session) => {
                        self.tell(Event::Connected);
                        session
                    }
                    Err(error) => {
                        let stopping = error.kind() == ErrorKind::ShuttingDown
                            || ended == Some(ErrorKind::ShuttingDown) && error.kind() == ErrorKind::Unreachable;
                        if stopping {
                            self.tell(Event::ServerStopping(error.text()));
                        } else {
                            self.tell(Event::Disconnected(error.text()));
                        }
                        if self.outbox.is_closed() {
                            return;
                        }
                        sleep(pause).await;
                        pause = (pause * 2).min(RECONNECT.1);
                        continue;
                    }
                },
            };
            let began = Instant::now();
            match self.serve(open).await {
                Over::Finished => return,
                // Connecting again at once tells a server that shuts down from one that only lost this session.
                Over::Lost { kind, text } => {
                    ended = Some(kind);
                    if kind != ErrorKind::ShuttingDown {
                        self.tell(Event::Disconnected(text));
                    }
                    if began.elapsed() > STEADY_AFTER {
                        pause = RECONNECT.0;
                    } else if kind == ErrorKind::Other {
                        // A statement that fails will fail again.
                        sleep(pause).await;
                        pause = (pause * 2).min(RECONNECT.1);
                    }
                }
            }
        }
    }

    fn tell(&self, event: Event) {
        let _ = self.outbox.send(event);
    }

    async fn serve(&mut self, mut session: Session) -> Over {
        let mut watch = interval(WATCH_EVERY);
        watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
        if let Keeping::Record(_) = &self.keeping
            && let Err(trouble) = within(checkpoint::make_durable(&session)).await
        {
            return lost(trouble);
        }
        while let Ok(order) = self.inbox.try_recv() {
            self.take(order);
        }
        if let Err(over) = self.is_at_home(&session).await {
            return over;
        }
        if let Err(over) = self.work_off(&session).await {
            return over;
        }
        loop {
            let outcome = tokio::select! {
                biased;
                closed = session.closed() => Err(Over::Lost { kind: closed.kind(), text: closed.to_string() }),
                order = self.inbox.recv() => self.obey(&session, order).await,
                _ = watch.tick() => self.look(&session).await,
            };
            if let Err(over) = outcome {
                // A statement may fail because the connection did; then its own end says why.
                return match (over, timeout(Duration::from_millis(100), session.closed()).await) {
                    (Over::Lost { kind, .. }, Ok(closed)) if kind != ErrorKind::ShuttingDown => {
                        Over::Lost { kind: closed.kind(), text: closed.to_string() }
                    }
                    (over, _) => over,
                };
            }
        }
    }

    /// See [`history::is_streamed_log`].
    async fn is_at_home(&self, session: &Session) -> Result<(), Over> {
        let now = within(catalog::identity(session)).await.map_err(lost)?;
        let record = match self.keeping {
            Keeping::Record(_) => within(checkpoint::read(session, &self.slot)).await.map_err(lost)?,
            Keeping::Nowhere { .. } => None,
        };
        let found = record.map(|record| record.confirmed_lsn);
        if history::is_streamed_log(&self.server, &now, self.told, self.recorded, found) {
            return Ok(());
        }
        self.tell(Event::RecordGone(
            "the address leads to another server than the one that is streamed from, or to one that has lost some of its log"
                .to_owned(),
        ));
        Err(Over::Finished)
    }

    async fn obey(&mut self, session: &Session, order: Option<Order>) -> Result<(), Over> {
        let Some(order) = order else { return Err(Over::Finished) };
        self.take(order);
        while let Ok(order) = self.inbox.try_recv() {
            self.take(order);
        }
        self.work_off(session).await
    }

    fn take(&mut self, order: Order) {
        match order {
            // The newest position stands for all before it.
            Order::Record(lsn) => self.wanted = Some(lsn),
            Order::Told(lsn) => self.told = self.told.max(lsn),
            order => self.todo.push_back(order),
        }
    }

    async fn work_off(&mut self, session: &Session) -> Result<(), Over> {
        if let Some(lsn) = self.wanted {
            self.record(session, lsn).await?;
        }
        while let Some(order) = self.todo.front() {
            let event = match (order, &self.lot) {
                (Order::SignOff, _) => {
                    if let Keeping::Record(recorder) = &self.keeping
                        && let Err(error) = within(recorder.sign_off(session)).await
                    {
                        tracing::info!(error = error.text(), "the record could not be signed off");
                    }
                    return Err(Over::Finished);
                }
                (Order::Park(asides), Some(lot)) => {
                    let before = std::mem::replace(&mut self.uncertain, true);
                    let (added, flushed) = match within(lot.park(session, asides)).await {
                        Err(Trouble::Failed(error @ ParkedError::Superseded(_))) => {
                            self.tell(Event::RecordGone(error.text()));
                            return Err(Over::Finished);
                        }
                        parked => parked.map_err(lost)?,
                    };
                    self.uncertain = before;
                    Event::Parked { added, flushed }
                }
                (Order::FindWork, Some(lot)) => Event::Work(within(lot.work(session)).await.map_err(lost)?),
                (Order::Settle(outcome), Some(lot)) => {
                    let before = std::mem::replace(&mut self.uncertain, true);
                    let (gone, empty) = within(lot.settle(session, outcome)).await.map_err(lost)?;
                    self.uncertain = before;
                    Event::Settled { gone, empty }
                }
                (Order::Record(_) | Order::Told(_) | Order::Park(_) | Order::FindWork | Order::Settle(_), _) => {
                    self.todo.pop_front();
                    continue;
                }
            };
            self.todo.pop_front();
            self.tell(event);
        }
        // Also where the orders are all carried out, and the connection was lost before this.
        if let (true, Some(lot)) = (self.uncertain, &self.lot) {
            let size = within(lot.size(session)).await.map_err(lost)?;
            self.uncertain = false;
            self.tell(Event::ParkedSize(size));
        }
        Ok(())
    }

    async fn record(&mut self, session: &Session, lsn: Lsn) -> Result<(), Over> {
        self.wanted = Some(lsn);
        let event = match &self.keeping {
            Keeping::Record(recorder) => match within(recorder.record(session, lsn)).await.map_err(lost)? {
                Recorded::Done => {
                    self.recorded = lsn;
                    Event::Recorded(lsn)
                }
                Recorded::FingerprintChanged { recorded, now } => {
                    if let Err(error) = within(checkpoint::mark_changed(session, &self.slot, &recorded)).await {
                        tracing::warn!(error = error.text(), "that the publication was changed could not be noted");
                    }
                    publication_changed(&recorded, &now)
                }
                Recorded::Behind { recorded } => {
                    Event::RecordGone(format!("another relay has recorded {recorded}, which is past {lsn}"))
                }
                Recorded::Superseded { epoch, state } => {
                    Event::RecordGone(format!("it is of epoch {epoch} and {state:?} now"))
                }
                Recorded::Gone => Event::RecordGone("there is no record of this slot".to_owned()),
            },
            Keeping::Nowhere { publication, schema, table, fingerprint, version } => {
                let now =
                    within(catalog::fingerprint(session, *version, publication, schema, table)).await.map_err(lost)?;
                if now == *fingerprint { Event::Recorded(lsn) } else { publication_changed(fingerprint, &now) }
            }
        };
        self.wanted = None;
        self.tell(event);
        Ok(())
    }

    async fn look(&self, session: &Session) -> Result<(), Over> {
        let facts = within(slot::facts(session, &self.slot)).await.map_err(lost)?;
        self.tell(Event::Slot(facts.map(Box::new)));
        let rows = within(catalog::estimated_rows(session, self.table_oid)).await.map_err(lost)?;
        self.tell(Event::Rows(rows));
        if self.outbox.is_closed() { Err(Over::Finished) } else { Ok(()) }
    }
}

fn publication_changed(recorded: &str, now: &str) -> Event {
    Event::PublicationChanged {
        reason: format!("what is published was changed while rows were read: {}", difference(recorded, now)),
        remedy: PUBLICATION_CHANGED_REMEDY.to_owned(),
    }
}

/// What to do in the state `publication_changed`.
pub const PUBLICATION_CHANGED_REMEDY: &str = "see with `walpost doctor` whether the publication carries the table as it should; rows committed while it did not \
     are not in the stream; then `walpost recover` publishes them again from the table, or `walpost setup --accept-gap` \
     prints what may be missing and goes on without them";

/// A statement that failed, or hung.
#[derive(Debug, thiserror::Error)]
enum Trouble<E: Error + 'static> {
    #[error("a statement failed")]
    Failed(#[source] E),
    #[error("a statement took longer than {} s", STATEMENT_WITHIN.as_secs())]
    Slow,
}

async fn within<T, E: Error + 'static>(statement: impl Future<Output = Result<T, E>>) -> Result<T, Trouble<E>> {
    match timeout(STATEMENT_WITHIN, statement).await {
        Ok(result) => result.map_err(Trouble::Failed),
        Err(_) => Err(Trouble::Slow),
    }
}

fn lost<E: Error + 'static>(trouble: Trouble<E>) -> Over {
    // Where the connection ended under a statement, the server's word went to the statement.
    let kind = match &trouble {
        Trouble::Failed(error) => kind_in(error),
        Trouble::Slow => None,
    };
    Over::Lost { kind: kind.unwrap_or(ErrorKind::Other), text: trouble.text() }
}

/// The kind of the SQL client's error in a chain of causes.
fn kind_in(error: &(dyn Error + 'static)) -> Option<ErrorKind> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
            return Some(kind_of(error));
        }
        cause = error.source();
    }
    None
}
