//! How a fault runs its course: hurt, wait, heal, wait until it is whole again. Each part of the arena has a lane of its
//! own, in which one fault follows another; faults of different parts overlap as they come.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::kit::{Proxy, Stop, seconds};
use crate::plan::{Fault, Line, OfBroker, OfLine, OfPostgres, OfRelay};

/// One step of a course.
enum Step {
    Do(Box<dyn FnOnce(&mut Arena)>),
    For(Duration),
    /// What is waited for, for how long at most, and how it is seen.
    Until(&'static str, Duration, Box<dyn Fn(&mut Arena) -> bool>),
}

const WAITING_MAX: usize = 3;

/// Between two looks at what is waited for: some of them ask a server.
const LOOK_EVERY: Duration = Duration::from_millis(250);

fn act(action: impl FnOnce(&mut Arena) + 'static) -> Step {
    Step::Do(Box::new(action))
}

fn until(what: &'static str, bound: Duration, look: impl Fn(&mut Arena) -> bool + 'static) -> Step {
    Step::Until(what, bound, Box::new(look))
}

/// A part of the arena that one fault at a time may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Relay(usize),
    PostgresLine(usize),
    Brokers,
    KafkaLines,
    Postgres,
    Limits,
    Load,
}

const PARTS: [Part; 9] = [
    Part::Relay(0),
    Part::Relay(1),
    Part::PostgresLine(0),
    Part::PostgresLine(1),
    Part::Brokers,
    Part::KafkaLines,
    Part::Postgres,
    Part::Limits,
    Part::Load,
];

struct Lane {
    part: Part,
    steps: VecDeque<Step>,
    /// Since when the first step is waited for.
    since: Option<Instant>,
    look_at: Instant,
}

impl Lane {
    fn advance(&mut self, arena: &mut Arena) {
        while let Some(step) = self.steps.pop_front() {
            let now = Instant::now();
            let since = *self.since.get_or_insert(now);
            match step {
                Step::Do(action) => action(arena),
                Step::For(duration) if now >= since + duration => {}
                Step::Until(what, bound, look) => {
                    if now < self.look_at || !look(arena) {
                        assert!(now < since + bound, "waited {bound:?} in vain for {what}");
                        if now >= self.look_at {
                            self.look_at = now + LOOK_EVERY;
                        }
                        self.steps.push_front(Step::Until(what, bound, look));
                        return;
                    }
                }
                waiting @ Step::For(_) => {
                    self.steps.push_front(waiting);
                    return;
                }
            }
            self.since = None;
        }
    }
}

/// Faults that wait for their part, and those that run their course.
pub struct Lanes {
    lanes: Vec<Lane>,
    /// In the order chosen.
    waiting: VecDeque<Fault>,
    /// What has struck, in this order.
    pub struck: Vec<Fault>,
}

impl Lanes {
    pub fn new() -> Lanes {
        let lane = |part| Lane { part, steps: VecDeque::new(), since: None, look_at: Instant::now() };
        Lanes { lanes: PARTS.into_iter().map(lane).collect(), waiting: VecDeque::new(), struck: Vec::new() }
    }

    /// Whether another fault may be chosen: else the next ones would come in a heap once the first has healed.
    pub fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    pub fn choose(&mut self, fault: Fault) {
        self.waiting.push_back(fault);
    }

    /// Nothing waits, and everything is healed.
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.lanes.iter().all(|lane| lane.steps.is_empty())
    }

    /// Faults that have not struck yet never will.
    pub fn give_up_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Moves every lane on as far as it goes, and lets waiting faults strike.
    pub fn advance(&mut self, arena: &mut Arena) {
        for lane in &mut self.lanes {
            lane.advance(arena);
        }
        self.supervise(arena);
        // A later fault does not pass an earlier one of its kind.
        let mut passed = Vec::new();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|fault| {
            let passes = passed.iter().any(|earlier| same_kind(earlier, fault));
            let Some(part) = self.part_for(*fault, arena).filter(|_| !passes) else {
                passed.push(*fault);
                return true;
            };
            arena.diary.note(&format!("{fault:?} at {part:?}"));
            self.struck.push(*fault);
            let course = course(*fault, part);
            if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.part == part) {
                lane.steps.extend(course);
                lane.advance(arena);
            }
            false
        });
        self.waiting = waiting;
    }

    /// A relay that ends although nobody asked it to is started again, and spoken of.
    fn supervise(&mut self, arena: &mut Arena) {
        for index in 0..2 {
            if self.is_free(Part::Relay(index)) && arena.relay_has_ended(index) {
                arena.bury(index, false);
                arena.start_relay(index);
            }
        }
    }

    fn is_free(&self, part: Part) -> bool {
        self.lanes.iter().any(|lane| lane.part == part && lane.steps.is_empty())
    }

    /// Where the fault may strike now.
    fn part_for(&self, fault: Fault, arena: &Arena) -> Option<Part> {
        let free = |part: Part| Some(part).filter(|part| self.is_free(*part));
        match fault {
            Fault::Relay(fault) => {
                let free = |index: &usize| self.is_free(Part::Relay(*index));
                let leader = arena.leader().filter(free);
                let standby = (0..2).filter(free).find(|index| Some(*index) != leader);
                let likely = (0..2).filter(free).find(|index| !arena.is_standby(*index));
                let chosen = match fault {
                    OfRelay::KillStandby { .. } => standby.or(leader),
                    _ => leader.or(likely).or(standby),
                };
                chosen.map(Part::Relay)
            }
            Fault::Line(Line::Postgres, _) => {
                let free = |index: &usize| self.is_free(Part::PostgresLine(*index));
                let chosen = arena.leader().filter(free).or_else(|| (0..2).find(free));
                chosen.map(Part::PostgresLine)
            }
            Fault::Line(Line::Kafka | Line::Broker(_), _) => free(Part::KafkaLines),
            Fault::Broker(..) => free(Part::Brokers),
            Fault::Postgres(_) => free(Part::Postgres),
            Fault::LowerLimit { .. } => free(Part::Limits),
            Fault::NewTopics => free(Part::Load),
        }
    }
}

/// Whether one must not pass the other.
fn same_kind(one: &Fault, other: &Fault) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

fn course(fault: Fault, part: Part) -> Vec<Step> {
    let index = match part {
        Part::Relay(index) | Part::PostgresLine(index) => index,
        Part::Brokers | Part::KafkaLines | Part::Postgres | Part::Limits | Part::Load => 0,
    };
    match fault {
        Fault::Relay(fault) => of_relay(fault, index),
        Fault::Broker(broker, fault) => of_broker(fault, broker),
        Fault::Postgres(fault) => of_postgres(fault),
        Fault::Line(line, fault) => of_line(fault, line, index),
        Fault::LowerLimit { bytes, lasting } => {
            let altered = || until("the topics' settings", seconds(100), Arena::topics_are_altered);
            vec![
                act(move |arena| arena.alter_topics(Some(bytes))),
                altered(),
                Step::For(lasting),
                act(|arena| arena.alter_topics(None)),
                altered(),
            ]
        }
        Fault::NewTopics => vec![act(Arena::write_to_new_topics)],
    }
}

fn of_relay(fault: OfRelay, index: usize) -> Vec<Step> {
    match fault {
        OfRelay::Kill { away } | OfRelay::KillStandby { away } => ends(index, libc::SIGKILL, away),
        OfRelay::Stop { away } => ends(index, libc::SIGTERM, away),
        OfRelay::Freeze { lasting } => vec![
            act(move |arena| arena.signal_relay(index, libc::SIGSTOP)),
            Step::For(lasting),
            act(move |arena| arena.signal_relay(index, libc::SIGCONT)),
        ],
        OfRelay::FreezeAndCut { lasting } => vec![
            act(move |arena| {
                arena.signal_relay(index, libc::SIGSTOP);
                arena.terminate_walsender();
            }),
            Step::For(lasting),
            act(move |arena| arena.signal_relay(index, libc::SIGCONT)),
        ],
    }
}

/// The relay ends, and its supervisor starts it again.
fn ends(index: usize, signal: i32, away: Duration) -> Vec<Step> {
    let asked = Instant::now();
    vec![
        act(move |arena| arena.signal_relay(index, signal)),
        until("a relay's end", seconds(90), move |arena| arena.relay_has_ended(index)),
        act(move |arena| match signal {
            libc::SIGTERM => arena.relay_has_stopped(index, asked.elapsed()),
            _ => arena.bury(index, false),
        }),
        Step::For(away),
        act(move |arena| arena.start_relay(index)),
    ]
}

fn of_broker(fault: OfBroker, broker: usize) -> Vec<Step> {
    let starts = |away| {
        [
            Step::For(away),
            act(move |arena| arena.kafka.broker(broker).start_without_waiting()),
            until("a broker to serve", seconds(120), move |arena| {
                let broker = arena.kafka.broker(broker);
                assert!(broker.is_running(), "broker {} ended while it started", broker.id);
                broker.is_ready()
            }),
        ]
    };
    let mut steps = Vec::new();
    match fault {
        OfBroker::Kill { away } => {
            steps.push(act(move |arena| arena.kafka.broker(broker).kill9()));
            steps.extend(starts(away));
        }
        OfBroker::Stop { away } => {
            steps.push(act(move |arena| arena.kafka.broker(broker).ask_to_stop()));
            steps.push(until("a broker's end", seconds(90), move |arena| !arena.kafka.broker(broker).is_running()));
            steps.extend(starts(away));
        }
        OfBroker::Freeze { lasting } => {
            steps.push(act(move |arena| arena.kafka.broker(broker).pause()));
            steps.push(Step::For(lasting));
            steps.push(act(move |arena| arena.kafka.broker(broker).resume()));
            // What it knows of the replicas is as old as its sleep, until it has heard the others.
            steps.push(Step::For(seconds(3)));
        }
    }
    // Or the next fault of a broker would leave one in-sync replica, and no promise.
    steps.push(until("all replicas in sync", seconds(180), |arena| arena.kafka.is_in_sync()));
    steps
}

fn of_postgres(fault: OfPostgres) -> Vec<Step> {
    let answers = || until("Postgres to answer", seconds(90), |arena| arena.postgres.answers());
    let starts = |away| [Step::For(away), act(|arena| arena.postgres.start_without_waiting()), answers()];
    let mut steps = Vec::new();
    match fault {
        OfPostgres::Crash => {
            // It answers until it has noticed.
            steps = vec![act(Arena::kill_backend), Step::For(Duration::from_millis(500)), answers()];
        }
        OfPostgres::Kill { away } => {
            steps.push(act(|arena| arena.postgres.kill9()));
            steps.extend(starts(away));
        }
        OfPostgres::Restart { how, away } => {
            let asked = Instant::now();
            steps.push(act(move |arena| arena.postgres.ask_to_stop(how)));
            steps.push(until("Postgres' end", seconds(60), |arena| !arena.postgres.is_running()));
            steps.push(act(move |arena| {
                if how == Stop::Fast {
                    arena.postgres_has_stopped(asked.elapsed());
                }
            }));
            steps.extend(starts(away));
        }
        OfPostgres::TerminateWalsender => steps.push(act(Arena::terminate_walsender)),
        OfPostgres::FreezeWalsender { lasting } => {
            steps = vec![act(Arena::freeze_walsender), Step::For(lasting), act(Arena::thaw_walsender)];
        }
    }
    steps
}

fn of_line(fault: OfLine, line: Line, relay: usize) -> Vec<Step> {
    let resumes = |lasting| [Step::For(lasting), act(move |arena| on(arena, line, relay, Proxy::resume))];
    let mut steps = Vec::new();
    match fault {
        OfLine::Cut => steps.push(act(move |arena| on(arena, line, relay, Proxy::cut))),
        OfLine::Freeze { lasting } => {
            steps.push(act(move |arena| on(arena, line, relay, Proxy::freeze)));
            steps.extend(resumes(lasting));
        }
        OfLine::Slow { delay, lasting } => {
            steps.push(act(move |arena| on(arena, line, relay, |proxy| proxy.delay(delay))));
            steps.extend(resumes(lasting));
        }
    }
    steps
}

fn on(arena: &mut Arena, line: Line, relay: usize, change: impl Fn(&Proxy)) {
    match line {
        Line::Postgres => change(&arena.relays[relay].line),
        Line::Kafka => arena.kafka_lines(None).for_each(change),
        Line::Broker(broker) => arena.kafka_lines(Some(broker)).for_each(change),
    }
}
