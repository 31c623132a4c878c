//! `walpost demo`: a real Postgres, a real Kafka and this relay on the loopback, orders with their events in one
//! transaction each, and the messages as they arrive; the relay is killed in the middle. Everything is stopped and deleted
//! at the end, also after a failure and after a signal.
//!
//! ```text
//!  programs  what there is to start           screen  what is printed
//!  servers   Postgres, and Kafka or not       orders  the application: who writes to the outbox
//!  relay     `walpost run`, as a child        judge   whether what arrived is what was promised (pure)
//!  child     a process that ends with us
//! ```

use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::cli::exit;
use crate::config::{self, SecretSource};
use crate::postgres::{AddressError, ConnectError, Connector, Session};
use crate::sink::reader::{Arrival, ReadError, Reader};

mod child;
mod judge;
mod orders;
mod programs;
mod relay;
mod screen;
mod servers;

use judge::{Ledger, Pace, Seen, Verdict, Wrong};
use orders::{Ending, Shop, TOPIC, WriteError};
use programs::{KafkaPrograms, PostgresPrograms};
use relay::{Launch, Relay, RelayError};
use screen::{Screen, milliseconds};
use servers::{Broker, Folder, Postgres, ServerError};

const OUTBOX_TABLE: &str = include_str!("../../sql/001_outbox_table.sql");

/// At ten a second.
const TRANSACTIONS: usize = 100;
/// The relay is killed when so many were committed.
const KILL_AFTER: usize = 32;
/// The first message waits for its topic to be made.
const FIRST_WITHIN: Duration = Duration::from_secs(30);
/// What was committed must be there so long after the last commit.
const ARRIVED_WITHIN: Duration = Duration::from_secs(40);
/// What should not come is waited for so long, when everything else is there.
const SETTLE: Duration = Duration::from_millis(500);
/// Of the messages that come all at once when the relay is back, so many of each sort are shown one by one.
const BURST_SHOWN: usize = 4;
const MEANWHILE_EVERY: Duration = Duration::from_secs(2);
const TURN: Duration = Duration::from_millis(50);

/// What keeps the demo from its good end.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Relay(#[from] RelayError),
    #[error("the address of the demo's Postgres cannot be used: is one of the PG* variables set?")]
    Address(#[from] AddressError),
    #[error("the demo's own connection to its Postgres failed")]
    Connect(#[from] Box<ConnectError>),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("a table of the demo cannot be made: {0}")]
    Table(String),
    #[error("the first message did not arrive within {} s; the relay's log ends with:\n{tail}", FIRST_WITHIN.as_secs())]
    First { tail: String },
    #[error("the demo did not show what it should: {}", .0.join("; "))]
    Differs(Vec<String>),
    #[error("stopped by {0}; the servers are stopped and their data deleted")]
    Interrupted(&'static str),
    #[error("signals cannot be listened for")]
    Signals(#[source] std::io::Error),
    #[error("nothing can be printed")]
    Output(#[from] std::io::Error),
}

impl DemoError {
    pub fn exit_code(&self) -> u8 {
        match self {
            DemoError::Server(_) => exit::UNREACHABLE,
            _ => exit::FOUND,
        }
    }
}

/// Runs the demo.
pub async fn run() -> Result<(), DemoError> {
    let listen = |kind| signal(kind).map_err(DemoError::Signals);
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let mut hangup = listen(SignalKind::hangup())?;
    let screen = Screen::new();
    // Whichever ends first, the other is dropped, and with it all that was started.
    tokio::select! {
        told = tell(&screen) => told,
        _ = interrupt.recv() => Err(DemoError::Interrupted("SIGINT")),
        _ = terminate.recv() => Err(DemoError::Interrupted("SIGTERM")),
        _ = hangup.recv() => Err(DemoError::Interrupted("SIGHUP")),
    }
}

async fn tell(screen: &Screen) -> Result<(), DemoError> {
    let version = env!("CARGO_PKG_VERSION");
    screen.say(&format!(
        "walpost {version} demo: an application writes orders with their events to Postgres, one transaction"
    ))?;
    screen.say("each; walpost reads the write-ahead log and publishes the events to Kafka. It takes about 25 s.")?;
    let programs = PostgresPrograms::find()?;

    screen.title("Servers, on 127.0.0.1, in a temporary folder")?;
    let folder = Folder::create()?;
    // Dropped in the opposite order: the relay, the servers, the folder.
    let (postgres, broker) = tokio::try_join!(
        Postgres::start(&programs, &folder, screen),
        Broker::start(KafkaPrograms::find(), &folder, screen)
    )?;

    screen.title("The tables: the application's own, and the outbox beside it")?;
    let session = connect(&postgres).await?;
    for sql in [orders::ORDERS_TABLE, OUTBOX_TABLE] {
        screen.code(sql)?;
        session.batch_execute(sql).await.map_err(|error| DemoError::Table(error.to_string()))?;
    }

    screen.title("The relay")?;
    let launch = Launch {
        database_url: postgres.url(),
        password: postgres.password().clone(),
        brokers: broker.brokers(),
        http_port: servers::free_port()?,
        log: folder.path().join("relay.log"),
    };
    screen.code(&launch.command_line())?;
    let mut relay = launch.start()?;
    relay.ready(screen).await?;
    screen
        .step(&format!("ready: it made a publication, a replication slot and its own schema (pid {})", relay.id()))?;

    let reader = Reader::start(&broker.brokers(), &[TOPIC])?;
    let mut show = Show { screen, reader, launch: &launch, relay, ledger: Ledger::default(), outage: None };
    let mut shop = Shop::new();
    show.first(&mut shop, &session).await?;
    show.trade(&mut shop, &session).await?;
    show.relay.drain().await?;
    screen.aside("SIGTERM to the relay: it has drained and ended with exit code 0")?;
    conclude(screen, &show.ledger.verdict(), broker.is_kafka())
}

async fn connect(postgres: &Postgres) -> Result<Session, DemoError> {
    let connector = Connector::new(&config::Postgres {
        url: Some(SecretSource::Value(config::Secret::new(format!("{}?sslmode=disable", postgres.url())))),
        password: Some(SecretSource::Value(postgres.password().clone())),
        table: "outbox_messages".into(),
        slot: "walpost".into(),
        publication: "walpost".into(),
    })?;
    Ok(connector.sql("walpost demo").await.map_err(Box::new)?)
}

/// The part with messages.
struct Show<'a> {
    screen: &'a Screen,
    reader: Reader,
    launch: &'a Launch,
    relay: Relay,
    ledger: Ledger,
    outage: Option<Outage>,
}

/// The relay was killed.
struct Outage {
    killed: Instant,
    /// The first arrival afterwards.
    resumed: Option<Instant>,
    /// Messages that had waited.
    waited: Burst,
    /// Messages that came again.
    again: Burst,
    meanwhile_at: Instant,
}

/// Messages of one sort that come all at once: some are shown, the others counted.
#[derive(Default)]
struct Burst {
    shown: usize,
    folded: usize,
}

impl Burst {
    /// Whether the next one is to be shown.
    fn shows(&mut self) -> bool {
        let shows = self.shown < BURST_SHOWN;
        *if shows { &mut self.shown } else { &mut self.folded } += 1;
        shows
    }
}

impl Outage {
    fn pace(&self, committed: Instant, arrived: Instant) -> Pace {
        let before = arrived < self.killed;
        let after = self.resumed.is_some_and(|resumed| committed > resumed);
        if before || after { Pace::Calm } else { Pace::HeldUp }
    }
}

impl Show<'_> {
    /// One transaction that is shown as it is written, and its message.
    async fn first(&mut self, shop: &mut Shop, session: &Session) -> Result<(), DemoError> {
        self.screen
            .title("One transaction, and what a consumer of Kafka sees of it (the first message makes its topic)")?;
        let (written, shown) = shop.example(session, self.screen).await?;
        shown?;
        self.screen.say("")?;
        self.ledger.committed(written);
        let first = tokio::time::timeout(FIRST_WITHIN, self.reader.next()).await;
        let arrival = first.map_err(|_| DemoError::First { tail: self.relay.tail() })??;
        self.arrived(&arrival, Some(Pace::First))
    }

    /// Many transactions, and a kill in the middle. Ends when everything has arrived, or nothing comes any more.
    async fn trade(&mut self, shop: &mut Shop, session: &Session) -> Result<(), DemoError> {
        self.screen.title(&format!("{TRANSACTIONS} transactions, ten a second; every seventh is rolled back"))?;
        let (announce, mut endings) = mpsc::channel(16);
        let mut trade = pin!(shop.trade(session, TRANSACTIONS, announce));
        let mut turn = tokio::time::interval(TURN);
        let mut written_at: Option<Instant> = None;
        loop {
            tokio::select! {
                biased;
                // First, so that a message is known before it can arrive.
                Some(ending) = endings.recv() => self.ending(ending)?,
                traded = &mut trade, if written_at.is_none() => {
                    traded?;
                    written_at = Some(Instant::now());
                }
                arrival = self.reader.next() => self.arrived(&arrival?, None)?,
                _ = turn.tick() => self.turn()?,
            }
            let Some(written_at) = written_at else { continue };
            if self.ledger.missing() == 0 && endings.is_empty() {
                break;
            }
            if written_at.elapsed() > ARRIVED_WITHIN {
                self.screen
                    .warning(&format!("{} messages have not arrived; waiting no longer", self.ledger.missing()))?;
                break;
            }
        }
        while let Ok(arrival) = tokio::time::timeout(SETTLE, self.reader.next()).await {
            self.arrived(&arrival?, None)?;
        }
        self.unfold()
    }

    fn ending(&mut self, ending: Ending) -> Result<(), DemoError> {
        match ending {
            Ending::Commit(written) => self.ledger.committed(written),
            Ending::Rollback(written) => {
                let text = format!("-- ROLLBACK of order {}, {}: it must not arrive", written.key, written.event);
                self.ledger.rolled_back(written);
                self.screen.aside(&text)?;
            }
        }
        if self.ledger.written() >= KILL_AFTER && self.outage.is_none() {
            self.kill()?;
        }
        Ok(())
    }

    /// `kill -9`, and a start anew.
    fn kill(&mut self) -> Result<(), DemoError> {
        let killed = self.relay.id();
        self.relay.kill();
        let now = Instant::now();
        self.screen.loud_aside(&format!("-- kill -9 of the relay (pid {killed}); orders go on being written --"))?;
        self.relay = self.launch.start()?;
        let pid = self.relay.id();
        self.screen.loud_aside(&format!(
            "-- started again (pid {pid}); it takes the slot and waits 5 s, because one that did not sign off may still live --"
        ))?;
        self.outage = Some(Outage {
            killed: now,
            resumed: None,
            waited: Burst::default(),
            again: Burst::default(),
            meanwhile_at: now + MEANWHILE_EVERY,
        });
        Ok(())
    }

    /// What time brings.
    fn turn(&mut self) -> Result<(), DemoError> {
        self.relay.check()?;
        let now = Instant::now();
        if let Some(outage) =
            self.outage.as_mut().filter(|outage| outage.resumed.is_none() && now >= outage.meanwhile_at)
        {
            outage.meanwhile_at = now + MEANWHILE_EVERY;
            self.screen.aside(&format!("-- {} messages wait in the write-ahead log", self.ledger.missing()))?;
        }
        Ok(())
    }

    /// A message has arrived. `pace`: None where the outage decides.
    fn arrived(&mut self, arrival: &Arrival, pace: Option<Pace>) -> Result<(), DemoError> {
        if let Some(outage) = self.outage.as_mut().filter(|outage| arrival.at >= outage.killed) {
            outage.resumed.get_or_insert(arrival.at);
        }
        let mut held_up = false;
        let outage = self.outage.as_ref();
        let seen = self.ledger.arrived(arrival.header("id"), arrival.key.as_deref(), arrival.at, |committed| {
            let pace = pace.unwrap_or_else(|| outage.map_or(Pace::Calm, |outage| outage.pace(committed, arrival.at)));
            held_up = pace == Pace::HeldUp;
            pace
        });
        let burst = match (seen, &mut self.outage) {
            (Seen::New { .. }, Some(outage)) if held_up => Some(&mut outage.waited),
            (Seen::Again, Some(outage)) => Some(&mut outage.again),
            _ => None,
        };
        match burst.map(Burst::shows) {
            Some(true) => {}
            Some(false) => return Ok(()),
            None => self.unfold()?,
        }
        let (wait, note) = match seen {
            Seen::New { wait } => (Some(wait), ""),
            Seen::Again => (None, "again"),
            Seen::Wrong(Wrong::OutOfOrder) => (None, "OUT OF ORDER"),
            Seen::Wrong(Wrong::RolledBack) => (None, "WAS ROLLED BACK"),
            Seen::Wrong(Wrong::Unknown) => (None, "WAS NEVER WRITTEN"),
            Seen::Wrong(Wrong::Key) => (None, "HAS ANOTHER KEY"),
        };
        Ok(self.screen.row(arrival, wait, note)?)
    }

    /// Says how many messages were not shown one by one.
    fn unfold(&mut self) -> Result<(), DemoError> {
        let Some(outage) = &mut self.outage else { return Ok(()) };
        for (burst, what) in [(&mut outage.waited, "that had waited"), (&mut outage.again, "that came again")] {
            if burst.folded > 0 {
                self.screen.aside(&format!("   ... and {} more {what}", burst.folded))?;
                burst.folded = 0;
            }
        }
        Ok(())
    }
}

fn conclude(screen: &Screen, verdict: &Verdict, is_kafka: bool) -> Result<(), DemoError> {
    let differences = verdict.differences();
    screen.title("Summary")?;
    let Verdict { committed, arrived, lost, out_of_order, rolled_back, rolled_back_arrived, repeated, .. } = verdict;
    let of_those = if *rolled_back_arrived == 0 { "none" } else { "SOME" };
    screen.say(&format!(
        "  committed    {committed:>4}   arrived {arrived}, lost {lost}, out of order within a key {out_of_order}"
    ))?;
    screen.say(&format!("  rolled back  {rolled_back:>4}   {of_those} of them arrived"))?;
    screen.say(&format!(
        "  repeated     {repeated:>4}   only a crash may cause repeats; consumers drop them by the header \"id\""
    ))?;
    if let Some(latency) = &verdict.latency {
        let (median, p99) = (milliseconds(latency.median), milliseconds(latency.p99));
        let messages = latency.messages;
        screen.say(&format!(
            "  latency             median {median}, p99 {p99}, from COMMIT to a consumer ({messages} messages)"
        ))?;
    }
    if verdict.held_up > 0 {
        let (count, most) = (verdict.held_up, milliseconds(verdict.held_up_max));
        screen
            .say(&format!("                      {count} more waited for the relay that was killed, at most {most}"))?;
    }
    if !is_kafka {
        screen.warning("This was NOT Apache Kafka but a stand-in: it shows what walpost does, and proves nothing.")?;
    }
    if !differences.is_empty() {
        screen.verdict(false, &format!("\nNot as promised: {}", differences.join("; ")))?;
        return Err(DemoError::Differs(differences));
    }
    screen.verdict(true, "\nNothing lost, nothing invented, order kept.")?;
    screen.title("Next")?;
    screen.say("  walpost setup --print    the SQL that your own database needs, for a migration")?;
    screen.say("  README.md and docs/      how to write to the outbox, run walpost, and read its messages")?;
    Ok(())
}
