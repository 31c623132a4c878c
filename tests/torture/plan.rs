//! Which faults, in which order: chosen from a seed alone, so that the same seed chooses the same ones again. When each
//! of them strikes depends on the servers too: a broker is left alone until the last one is in sync again.

use std::time::Duration;

use crate::kit::{Random, Stop};

pub const BROKERS: usize = 3;

/// A topic's `max.message.bytes` falls to this at least: below a batch, above every single row of the load.
pub const LIMIT_BYTES_MIN: u64 = 1_500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Relay(OfRelay),
    /// Of the brokers the one with this number, from 0.
    Broker(usize, OfBroker),
    Postgres(OfPostgres),
    Line(Line, OfLine),
    /// `max.message.bytes` of the topics, below a batch and above a row.
    LowerLimit {
        bytes: u64,
        lasting: Duration,
    },
    /// Rows for topics that do not exist: the brokers make them when they are asked for, where enough brokers are there.
    NewTopics,
}

/// Of the active relay, if not said otherwise. `away`: until it is started again; `lasting`: until it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfRelay {
    Kill {
        away: Duration,
    },
    KillStandby {
        away: Duration,
    },
    /// SIGTERM, as in a rolling update.
    Stop {
        away: Duration,
    },
    Freeze {
        lasting: Duration,
    },
    /// And its walsender ends, so that the standby takes over and the frozen one wakes to find it there.
    FreezeAndCut {
        lasting: Duration,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfBroker {
    Kill { away: Duration },
    Stop { away: Duration },
    Freeze { lasting: Duration },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfPostgres {
    /// SIGKILL of the walsender: Postgres ends all sessions and recovers.
    Crash,
    /// SIGKILL of every process of the server.
    Kill {
        away: Duration,
    },
    Restart {
        how: Stop,
        away: Duration,
    },
    TerminateWalsender,
    FreezeWalsender {
        lasting: Duration,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Between the active relay and Postgres.
    Postgres,
    /// Between both relays and all brokers, or one of them.
    Kafka,
    Broker(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfLine {
    Cut,
    Freeze { lasting: Duration },
    Slow { delay: Duration, lasting: Duration },
}

impl Fault {
    /// For counting: which fault of which part.
    pub fn name(&self) -> &'static str {
        match self {
            Fault::Relay(OfRelay::Kill { .. }) => "kill -9 of the active relay",
            Fault::Relay(OfRelay::KillStandby { .. }) => "kill -9 of the standby",
            Fault::Relay(OfRelay::Stop { .. }) => "SIGTERM of the active relay",
            Fault::Relay(OfRelay::Freeze { .. }) => "SIGSTOP of the active relay",
            Fault::Relay(OfRelay::FreezeAndCut { .. }) => "SIGSTOP of the active relay, its walsender terminated",
            Fault::Broker(_, OfBroker::Kill { .. }) => "kill -9 of a broker",
            Fault::Broker(_, OfBroker::Stop { .. }) => "restart of a broker",
            Fault::Broker(_, OfBroker::Freeze { .. }) => "SIGSTOP of a broker",
            Fault::Postgres(OfPostgres::Crash) => "kill -9 of the walsender (crash restart)",
            Fault::Postgres(OfPostgres::Kill { .. }) => "kill -9 of Postgres",
            Fault::Postgres(OfPostgres::Restart { how: Stop::Immediate, .. }) => "restart of Postgres, immediate",
            Fault::Postgres(OfPostgres::Restart { .. }) => "restart of Postgres, fast",
            Fault::Postgres(OfPostgres::TerminateWalsender) => "pg_terminate_backend of the walsender",
            Fault::Postgres(OfPostgres::FreezeWalsender { .. }) => "SIGSTOP of the walsender",
            Fault::Line(Line::Postgres, OfLine::Cut) => "connections to Postgres cut",
            Fault::Line(Line::Postgres, OfLine::Freeze { .. }) => "connections to Postgres frozen",
            Fault::Line(Line::Postgres, OfLine::Slow { .. }) => "connections to Postgres slowed down",
            Fault::Line(_, OfLine::Cut) => "connections to Kafka cut",
            Fault::Line(_, OfLine::Freeze { .. }) => "connections to Kafka frozen",
            Fault::Line(_, OfLine::Slow { .. }) => "connections to Kafka slowed down",
            Fault::LowerLimit { .. } => "topics' limit below a batch",
            Fault::NewTopics => "rows for topics that come into being",
        }
    }

    /// Whether a process dies without a word.
    pub fn is_kill(&self) -> bool {
        match self {
            Fault::Relay(fault) => matches!(fault, OfRelay::Kill { .. } | OfRelay::KillStandby { .. }),
            Fault::Broker(_, fault) => matches!(fault, OfBroker::Kill { .. }),
            Fault::Postgres(fault) => matches!(fault, OfPostgres::Crash | OfPostgres::Kill { .. }),
            Fault::Line(..) | Fault::LowerLimit { .. } | Fault::NewTopics => false,
        }
    }

    pub fn is_kill_of_the_active_relay(&self) -> bool {
        matches!(self, Fault::Relay(OfRelay::Kill { .. }))
    }
}

/// A fault, and how long to wait before it is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    pub gap: Duration,
    pub fault: Fault,
}

/// What is chosen from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    All,
    /// Processes die, one or several at once, as soon as rows flow again after those before; and nothing else happens.
    Kills,
    /// The topics' limit falls below what is under way, and then another relay takes over: one that was refused a batch
    /// makes small ones from then on.
    Limits,
}

pub struct Plan {
    random: Random,
    mix: Mix,
    chosen: u64,
}

impl Plan {
    pub fn new(seed: u64, mix: Mix) -> Plan {
        Plan { random: Random::new(seed), mix, chosen: 0 }
    }

    /// Every few seconds; one in four right behind the one before; now and then a pause in which all may heal.
    fn gap(&mut self) -> Duration {
        self.chosen += 1;
        match self.random.below(4) {
            0..2 if self.mix == Mix::Kills => self.between(0, 300),
            _ if self.mix == Mix::Kills => self.between(500, 2_500),
            _ if self.mix == Mix::Limits => self.between(2_000, 3_000),
            _ if self.chosen.is_multiple_of(12) => self.between(12_000, 18_000),
            0 => self.between(0, 300),
            _ => self.between(1_000, 6_000),
        }
    }

    /// Mostly short, sometimes longer than the five seconds that a relay waits when it takes over, sometimes longer than
    /// any time-out of the servers.
    fn lasting(&mut self) -> Duration {
        match self.random.below(20) {
            0..10 => self.between(200, 4_000),
            10..16 => self.between(4_000, 9_000),
            16..19 => self.between(9_000, 20_000),
            _ => self.between(20_000, 45_000),
        }
    }

    fn away(&mut self) -> Duration {
        self.between(0, 4_000)
    }

    fn between(&mut self, least_ms: u64, most_ms: u64) -> Duration {
        Duration::from_millis(least_ms + self.random.below(most_ms - least_ms))
    }

    fn broker(&mut self) -> usize {
        self.random.below(BROKERS as u64) as usize
    }

    fn line(&mut self) -> Line {
        match self.random.below(4) {
            0..2 => Line::Postgres,
            2 => Line::Kafka,
            _ => Line::Broker(self.broker()),
        }
    }

    fn fault(&mut self) -> Fault {
        match self.random.below(100) {
            of if self.mix == Mix::Kills => self.kill(of),
            _ if self.mix == Mix::Limits && self.chosen.is_multiple_of(2) => {
                Fault::Relay(OfRelay::Stop { away: Duration::ZERO })
            }
            _ if self.mix == Mix::Limits => {
                let bytes = LIMIT_BYTES_MIN + self.random.below(3_000);
                Fault::LowerLimit { bytes, lasting: self.between(1_000, 2_000) }
            }
            0..35 => Fault::Relay(self.of_relay()),
            35..48 => Fault::Broker(self.broker(), self.of_broker()),
            48..71 => Fault::Postgres(self.of_postgres()),
            71..88 => Fault::Line(self.line(), self.of_line()),
            88..96 => {
                let bytes = LIMIT_BYTES_MIN + self.random.below(5_000);
                Fault::LowerLimit { bytes, lasting: self.between(5_000, 25_000) }
            }
            _ => Fault::NewTopics,
        }
    }

    /// A broker takes the longest to come back, so it is chosen the least.
    fn kill(&mut self, of: u64) -> Fault {
        let away = self.between(0, 1_500);
        match of {
            0..50 => Fault::Relay(OfRelay::Kill { away }),
            50..62 => Fault::Relay(OfRelay::KillStandby { away }),
            62..82 => Fault::Postgres(OfPostgres::Crash),
            82..93 => Fault::Postgres(OfPostgres::Kill { away }),
            _ => Fault::Broker(self.broker(), OfBroker::Kill { away }),
        }
    }

    fn of_relay(&mut self) -> OfRelay {
        match self.random.below(37) {
            0..13 => OfRelay::Kill { away: self.away() },
            13..16 => OfRelay::KillStandby { away: self.away() },
            16..24 => OfRelay::Stop { away: self.away() },
            24..31 => OfRelay::Freeze { lasting: self.lasting() },
            _ => OfRelay::FreezeAndCut { lasting: self.lasting() },
        }
    }

    fn of_broker(&mut self) -> OfBroker {
        match self.random.below(3) {
            0 => OfBroker::Kill { away: self.away() },
            1 => OfBroker::Stop { away: self.away() },
            _ => OfBroker::Freeze { lasting: self.lasting() },
        }
    }

    fn of_postgres(&mut self) -> OfPostgres {
        match self.random.below(24) {
            0..5 => OfPostgres::Crash,
            5..7 => OfPostgres::Kill { away: self.away() },
            7..10 => OfPostgres::Restart { how: Stop::Fast, away: self.away() },
            10..13 => OfPostgres::Restart { how: Stop::Immediate, away: self.away() },
            13..19 => OfPostgres::TerminateWalsender,
            _ => OfPostgres::FreezeWalsender { lasting: self.lasting() },
        }
    }

    fn of_line(&mut self) -> OfLine {
        match self.random.below(6) {
            0..2 => OfLine::Cut,
            2..5 => OfLine::Freeze { lasting: self.lasting() },
            _ => OfLine::Slow { delay: self.between(10, 300), lasting: self.lasting() },
        }
    }
}

impl Iterator for Plan {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        Some(Planned { gap: self.gap(), fault: self.fault() })
    }
}

#[test]
fn the_same_seed_chooses_the_same_faults() {
    let plan = |seed| Plan::new(seed, Mix::All).take(1_000).collect::<Vec<_>>();
    assert_eq!(plan(7), plan(7));
    assert_ne!(plan(7), plan(8));
    assert!(Plan::new(7, Mix::Kills).take(1_000).all(|planned| planned.fault.is_kill()));
    let names: std::collections::BTreeSet<_> = plan(7).iter().map(|planned| planned.fault.name()).collect();
    assert_eq!(names.len(), 22, "{names:?}");
}
