//! What a seed makes of the world: how much is written, how wide things are, which faults there are and how often. Each
//! seed has a few faults of many, often, rather than all of them seldom: bugs are found where few things meet.

use std::ops::RangeInclusive;
use std::time::Duration;

use walpost::config::OnPoison;

use crate::dice::Dice;

/// What goes wrong at a moment of its own. What goes wrong with a single request is in [`Odds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The replication connection is cut, after any byte.
    CutStream,
    /// Nothing passes on it any more, and nobody is told.
    HangStream,
    /// Postgres is restarted in good order: up to version 16 its slot may go back.
    RestartPostgres,
    /// Postgres dies: the slot goes back to what was last written to disk.
    KillPostgres,
    /// A standby takes over that had not received all.
    FailOver,
    /// The same server comes back with less log than it had.
    LoseLog,
    /// Somebody moves the slot while nobody holds it.
    MoveSlot,
    /// The publication is changed.
    ChangePublication,
    /// No statement ends for a while.
    BlockRecord,
    /// SIGKILL, at any await point.
    KillRelay,
    /// SIGTERM.
    StopRelay,
    /// SIGSTOP, and SIGCONT later.
    FreezeRelay,
    /// A broker takes no request for a while, and then all of them.
    FreezeBroker,
    /// A broker is away for a while.
    StopBroker,
    /// The connections to a broker break.
    BreakLinks,
    /// A partition has no leader for a while.
    NoLeader,
    /// librdkafka sends nothing any more, and says nothing.
    SilenceProducer,
    /// Requests that are under way get no answer before the producer ends.
    MuteProducer,
    /// A topic gets more partitions.
    AddPartitions,
    /// A topic may not be written to for a while.
    Unauthorise,
    /// A topic takes smaller batches from now on.
    LowerLimit,
}

/// How often, of a thousand, something goes wrong with one thing of its kind.
#[derive(Clone, Debug, Default)]
pub struct Odds {
    /// A row that can never be sent as it is.
    pub poison: u32,
    /// A row that is not to be published.
    pub unwanted: u32,
    /// A produce request is refused with an error that librdkafka tries again by itself.
    pub retried: u32,
    /// A produce request is stored, and answered with such an error.
    pub stored_and_retried: u32,
    /// A produce request is refused for good although the cause is passing.
    pub refused: u32,
    /// The topic refuses a request.
    pub route: u32,
    /// The connection breaks before the answer comes.
    pub lost_answers: u32,
    /// A request that comes a second time is answered without an offset.
    pub no_offset: u32,
    /// The queue of librdkafka is full.
    pub queue_full: u32,
    /// A report never comes, not even at the end of its producer.
    pub lost_reports: u32,
    /// The session that writes the record is lost before, and after it has written.
    pub record_lost: u32,
    /// A partition's end is read only in part, or not at all.
    pub tail_cut: u32,
    pub tail_fails: u32,
    /// A person decides on a parked message, each second.
    pub person: u32,
    /// An SQL statement at the start of a session fails.
    pub start_fails: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long there are faults.
    pub chaos: Duration,
    pub transactions: u64,
    pub rows_most: u64,
    /// Partitions of each topic.
    pub topics: Vec<u32>,
    /// Topics that are not there at first.
    pub late_topics: bool,
    pub keys: u64,
    pub brokers: u32,
    pub window_messages: usize,
    pub window_bytes: usize,
    pub batch_bytes: usize,
    /// `max.message.bytes` of the topics.
    pub limit_bytes: usize,
    /// Milliseconds of a request to a broker and of its answer.
    pub kafka_delay: RangeInclusive<u64>,
    /// Milliseconds of an SQL statement.
    pub sql_delay: RangeInclusive<u64>,
    /// Of the pipe between walsender and relay.
    pub pipe_bytes: usize,
    /// A second relay waits for the slot.
    pub standby: bool,
    pub on_poison: OnPoison,
    /// What a topic refuses for its own sake is parked.
    pub parks_routes: bool,
    pub parked_most: u64,
    pub read_back: bool,
    /// The broker's answer names the record that it refuses.
    pub broker_names_culprit: bool,
    /// A version in which a restart moves the slot back, and empty transactions are sent.
    pub old_postgres: bool,
    pub shutdown_timeout: Duration,
    pub faults: Vec<Fault>,
    /// Milliseconds between two of them.
    pub between_faults: RangeInclusive<u64>,
    pub odds: Odds,
}

/// Each with how many of a hundred plans have it.
const FAULTS: [(Fault, u32); 21] = [
    (Fault::CutStream, 35),
    (Fault::HangStream, 3),
    (Fault::RestartPostgres, 12),
    (Fault::KillPostgres, 12),
    (Fault::FailOver, 6),
    (Fault::LoseLog, 4),
    (Fault::MoveSlot, 1),
    (Fault::ChangePublication, 1),
    (Fault::BlockRecord, 6),
    (Fault::KillRelay, 25),
    (Fault::StopRelay, 12),
    (Fault::FreezeRelay, 5),
    (Fault::FreezeBroker, 8),
    (Fault::StopBroker, 8),
    (Fault::BreakLinks, 20),
    (Fault::NoLeader, 20),
    (Fault::SilenceProducer, 6),
    (Fault::MuteProducer, 2),
    (Fault::AddPartitions, 10),
    (Fault::Unauthorise, 6),
    (Fault::LowerLimit, 6),
];

impl Plan {
    pub fn of(dice: &mut Dice) -> Plan {
        let small = dice.percent(70);
        let topics = (0..dice.within(1..=3)).map(|_| dice.within(1..=4) as u32).collect();
        let kafka_delay = match dice.below(10) {
            0 => 1..=3_000,
            1..=4 => 1..=60,
            _ => 0..=8,
        };
        let sql_delay = if dice.percent(15) { 1..=4_000 } else { 0..=20 };
        let batch_bytes = *dice.pick(&[1, 400, 1_000]);
        let window_messages = *dice.pick(&[1, 4, 10, 30, 1_000]);
        let on_poison = match dice.below(20) {
            0..=2 => OnPoison::Stop,
            3..=7 => OnPoison::Skip,
            8..=10 => OnPoison::DeadLetter,
            _ => OnPoison::Park,
        };
        let faults =
            FAULTS.iter().filter(|(_, chance)| dice.percent(*chance)).map(|(fault, _)| *fault).take(6).collect();
        let between_faults = if dice.percent(50) { 200..=3_000 } else { 1_000..=12_000 };
        Plan {
            chaos: dice.millis(4_000..=15_000),
            transactions: if small { dice.within(3..=15) } else { dice.within(10..=40) },
            rows_most: if small { dice.within(1..=4) } else { dice.within(1..=12) },
            topics,
            late_topics: dice.percent(8),
            keys: dice.within(1..=5),
            brokers: dice.within(1..=2) as u32,
            window_messages,
            window_bytes: if dice.percent(20) { 1_500 } else { 1 << 20 },
            batch_bytes,
            limit_bytes: 1_600,
            kafka_delay,
            sql_delay,
            pipe_bytes: *dice.pick(&[64, 300, 4_096, 1 << 16]),
            standby: dice.percent(25),
            on_poison,
            parks_routes: on_poison == OnPoison::Park && dice.percent(40),
            // With less room than the window is wide a relay may stop before anything is parked.
            parked_most: *dice.pick(&[window_messages, window_messages * 3, 100_000]) as u64,
            read_back: dice.percent(75),
            broker_names_culprit: dice.percent(50),
            old_postgres: dice.percent(40),
            shutdown_timeout: if dice.percent(30) { dice.millis(0..=2_000) } else { Duration::from_secs(25) },
            faults,
            between_faults,
            odds: Odds::of(dice),
        }
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

impl Odds {
    fn of(dice: &mut Dice) -> Odds {
        let mut some = |plans: u32, least: u64, most: u64| {
            let chosen = dice.percent(plans);
            let odds = dice.within(least..=most) as u32;
            if chosen { odds } else { 0 }
        };
        Odds {
            poison: some(35, 5, 80),
            unwanted: some(15, 20, 200),
            retried: some(25, 20, 300),
            stored_and_retried: some(12, 20, 200),
            refused: some(20, 10, 150),
            route: some(8, 10, 60),
            lost_answers: some(20, 10, 200),
            no_offset: some(30, 300, 1_000),
            queue_full: some(10, 10, 200),
            lost_reports: some(2, 5, 50),
            record_lost: some(20, 50, 400),
            tail_cut: some(20, 100, 900),
            tail_fails: some(15, 100, 1_000),
            person: some(60, 50, 600),
            start_fails: some(15, 50, 300),
        }
    }
}
