//! What `make bench` measures, in groups whose peers take turns, run by run.

use super::spec::{Peer, Spec, Workload};

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Short,
    Usual,
    /// With backlogs and transactions of 5,000,000 rows.
    Long,
}

pub fn runs(form: Form) -> usize {
    if form == Form::Short { 1 } else { 3 }
}

pub fn groups(form: Form) -> Vec<Vec<Spec>> {
    let short = form == Form::Short;
    let mut groups: Vec<Vec<Spec>> = Vec::new();
    let draining: &[Peer] = match short {
        true => &[Peer::Walpost, Peer::PgRecvlogical, Peer::DebeziumTuned, Peer::Polling],
        false => &[
            Peer::Walpost,
            Peer::PgRecvlogical,
            Peer::DebeziumDefault,
            Peer::DebeziumTuned,
            Peer::DebeziumBest,
            Peer::Polling,
        ],
    };
    for (rows, per_commit) in [(300_000, 1), (500_000, 100), (1_000_000, 1000)] {
        let rows = if short { rows / 5 } else { rows };
        groups.push(draining.iter().map(|&peer| Spec::drain(peer, rows, per_commit)).collect());
    }
    for (payload, rows) in [(100, 1_000_000), (1_000, 300_000), (10_000, 30_000), (100_000, 3_000)] {
        let rows = if short { rows / 10 } else { rows };
        let sized = |&peer: &Peer| Spec { payload, ..Spec::drain(peer, rows, 100) };
        let peers = [Peer::Walpost, Peer::PgRecvlogical, Peer::DebeziumTuned, Peer::Polling];
        groups.push(peers.iter().map(sized).collect());
    }
    let sizes: &[u64] = match form {
        Form::Short => &[10_000, 100_000],
        Form::Usual => &[10_000, 100_000, 1_000_000],
        Form::Long => &[10_000, 100_000, 1_000_000, 5_000_000],
    };
    groups.extend(sizes.iter().map(|&rows| vec![Spec::drain(Peer::Walpost, rows, 1000)]));
    let rows = if short { 100_000 } else { 500_000 };
    for topics in [1, 10, 100, 1000] {
        groups.push(vec![Spec { topics, ..Spec::drain(Peer::Walpost, rows, 1000) }]);
    }
    for keys in [10, 1_000_000] {
        groups.push(vec![Spec { keys, ..Spec::drain(Peer::Walpost, rows, 1000) }]);
    }
    let large = match form {
        Form::Short => 200_000,
        Form::Usual => 500_000,
        Form::Long => 5_000_000,
    };
    groups.push(vec![Spec::drain(Peer::Walpost, large, large)]);

    let (seconds, warm_up) = if short { (15, 5) } else { (30, 15) };
    let steady: &[Peer] = match short {
        true => &[Peer::Walpost, Peer::Polling, Peer::None],
        false => &[Peer::Walpost, Peer::DebeziumTuned, Peer::Polling, Peer::None],
    };
    for rate in [1000, 2000, 5000] {
        groups.push(steady.iter().map(|&peer| Spec::steady(peer, rate, seconds, warm_up, false)).collect());
    }
    groups.push([Peer::Walpost, Peer::Polling].map(|peer| Spec::steady(peer, 1000, seconds, warm_up, true)).into());
    let idle =
        |&peer: &Peer| Spec { seconds: if short { 10 } else { 30 }, warm_up: 5, ..Spec::new(Workload::Idle, peer) };
    groups.push([Peer::Walpost, Peer::DebeziumTuned, Peer::Polling, Peer::None].iter().map(idle).collect());
    groups
        .push([Peer::Walpost, Peer::DebeziumTuned, Peer::Polling].map(|peer| Spec::new(Workload::Start, peer)).into());
    groups.push(vec![Spec::new(Workload::Takeover, Peer::Walpost), Spec::new(Workload::Restart, Peer::Walpost)]);
    let outage = Spec {
        rate: 1000,
        seconds: if short { 15 } else { 60 },
        warm_up: 5,
        ..Spec::new(Workload::Outage, Peer::Walpost)
    };
    groups.push(vec![outage]);
    groups
}
