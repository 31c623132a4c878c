//! What one measurement is: a workload with its sizes, and the peer that is measured. Results are kept under it, so that an
//! interrupted plan goes on where it was.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Who relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    Walpost,
    /// Postgres' own client, to the null device.
    #[serde(rename = "pg_recvlogical")]
    #[value(name = "pg_recvlogical")]
    PgRecvlogical,
    Polling,
    DebeziumDefault,
    DebeziumTuned,
    /// As tuned, with Java's parallel collector and a heap of 2 GiB from the start.
    DebeziumBest,
    /// Nobody: what the writers alone cost.
    None,
}

impl Peer {
    pub fn name(self) -> String {
        self.to_possible_value().expect("no peer is hidden").get_name().to_owned()
    }

    pub fn reads_slot(self) -> bool {
        !matches!(self, Peer::Polling | Peer::None)
    }

    pub fn writes_kafka(self) -> bool {
        !matches!(self, Peer::PgRecvlogical | Peer::None)
    }

    /// A table that is polled has a column and an index more.
    pub fn table(self) -> &'static str {
        if self == Peer::Polling { "outbox_polled" } else { "outbox_messages" }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// A backlog, read as fast as it goes.
    Drain,
    /// One-row commits at a rate.
    Steady,
    /// An empty outbox.
    Idle,
    /// Load while Kafka is stopped.
    Outage,
    /// From the start of the process to the append of a row that waits.
    Start,
    /// From `kill -9` of the leader to the next append, with a standby beside it.
    Takeover,
    /// From SIGTERM to the next append, by a relay that is started when the old one has ended.
    Restart,
}

/// The size of a payload that is like an application's, in bytes; others are padded.
pub const USUAL_PAYLOAD: u64 = 250;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spec {
    pub workload: Workload,
    pub peer: Peer,
    pub rows: u64,
    pub per_commit: u64,
    /// Bytes of a payload, about.
    pub payload: u64,
    pub topics: u64,
    pub keys: u64,
    /// Rows a second that are asked for.
    pub rate: u64,
    pub seconds: u64,
    pub warm_up: u64,
    /// A reader keeps its snapshot open all the while.
    pub old_snapshot: bool,
}

impl Spec {
    pub fn new(workload: Workload, peer: Peer) -> Spec {
        Spec {
            workload,
            peer,
            rows: 0,
            per_commit: 0,
            payload: USUAL_PAYLOAD,
            topics: 1,
            keys: 10_000,
            rate: 0,
            seconds: 0,
            warm_up: 0,
            old_snapshot: false,
        }
    }

    pub fn drain(peer: Peer, rows: u64, per_commit: u64) -> Spec {
        Spec { rows, per_commit: per_commit.min(rows), ..Spec::new(Workload::Drain, peer) }
    }

    pub fn steady(peer: Peer, rate: u64, seconds: u64, warm_up: u64, old_snapshot: bool) -> Spec {
        Spec { rate, seconds, warm_up, old_snapshot, ..Spec::new(Workload::Steady, peer) }
    }

    /// Whether both can read the same backlog.
    pub fn same_backlog(&self, other: &Spec) -> bool {
        let size = |spec: &Spec| (spec.rows, spec.per_commit, spec.payload, spec.topics, spec.keys);
        self.peer.reads_slot() == other.peer.reads_slot() && size(self) == size(other)
    }

    /// Whether both are rows of one table.
    pub fn same_but_peer(&self, other: &Spec) -> bool {
        Spec { peer: other.peer, ..self.clone() } == *other
    }

    pub fn topic_names(&self) -> Vec<String> {
        match self.topics {
            1 => vec!["outbox.event.order".to_owned()],
            many => (0..many).map(|topic| format!("outbox.event.order{topic}")).collect(),
        }
    }

    /// Of each topic.
    pub fn partitions(&self) -> i32 {
        if self.topics == 1 { 8 } else { 1 }
    }

    pub fn title(&self) -> String {
        let mut title = format!("{:?}", self.workload).to_lowercase();
        for (value, unit) in [(self.rows, "rows"), (self.per_commit, "a commit"), (self.rate, "rows/s")] {
            if value > 0 {
                title += &format!(" {value} {unit}");
            }
        }
        for (value, usual, unit) in
            [(self.payload, USUAL_PAYLOAD, "B payload"), (self.topics, 1, "topics"), (self.keys, 10_000, "keys")]
        {
            if value != usual {
                title += &format!(" {value} {unit}");
            }
        }
        if self.old_snapshot {
            title += " with an old snapshot";
        }
        title
    }
}
