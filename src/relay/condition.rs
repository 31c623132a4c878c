//! Which state a streaming relay is in, with the reason and the one remedy. Pure: facts in, words out. Reasons hold no
//! running number, so that a state that lasts is logged once.

use std::time::{Duration, SystemTime};

use crate::sink::desk::Short;
use crate::sink::{Oldest, Waiting};
use crate::telemetry::{State, utc};

/// Rows wait and nothing was delivered for so long: not ready.
pub const STALLED_AFTER: Duration = Duration::from_secs(10);
/// A topic may be created while its first record waits; only later it is worth a word.
pub const TOPIC_PATIENCE: Duration = Duration::from_secs(2);
/// Further behind than this is not streaming.
pub const BEHIND: Duration = Duration::from_secs(10);

/// What the state depends on.
pub struct Facts<'a> {
    /// Reason and remedy of a standstill that only a person ends.
    pub stopped: Option<(&'a str, &'a str)>,
    pub draining: bool,
    pub waiting: Option<Waiting>,
    /// Rows are read and not confirmed.
    pub rows_wait: bool,
    pub since_delivery: Duration,
    /// The record that has waited longest for the broker.
    pub oldest: Option<Waits>,
    /// A partition that refuses all records.
    pub short: Option<Short>,
    pub kafka_error: Option<String>,
    /// The age of the newest commit that was read, while rows wait.
    pub behind: Option<Duration>,
    /// Waiting for requests of an earlier holder of the slot to pass.
    pub quiet: bool,
    /// Nothing comes from the server, although it should.
    pub server: Option<Quiet>,
    /// Reason and remedy of what the server could not send, time after time.
    pub unreadable: Option<(&'a str, &'a str)>,
}

/// For how long a record has been the one that waits longest, and since when.
pub struct Waits {
    pub record: Oldest,
    pub lasts: Duration,
    pub since: SystemTime,
}

/// Why nothing comes from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiet {
    /// It is asked for a sign of life and gives none.
    NoAnswer,
    /// It holds the log back until a standby has it (`synchronized_standby_slots`).
    ForStandby,
}

/// State, reason and remedy.
pub fn of(facts: &Facts<'_>) -> (State, String, String) {
    if let Some((reason, remedy)) = facts.stopped {
        return (State::Stopped, reason.to_owned(), remedy.to_owned());
    }
    if facts.draining {
        return (State::Draining, "what is in flight is delivered before the end".to_owned(), String::new());
    }
    if let Some(Waiting::Topic { topic, problem, remedy, since, .. }) = &facts.waiting
        && facts.rows_wait
        && since.elapsed() >= TOPIC_PATIENCE
    {
        return (State::WaitingForTopic, format!("the topic {topic:?} takes no records: {problem}"), remedy.clone());
    }
    // One partition may be stuck while others are not: then little comes of it at first, and everything once the window is full.
    let stuck = facts.oldest.as_ref().is_some_and(|oldest| oldest.lasts >= STALLED_AFTER);
    if facts.rows_wait && (stuck || facts.since_delivery >= STALLED_AFTER) {
        return stalled(facts);
    }
    if let Some((reason, remedy)) = facts.unreadable {
        return (State::Stalled, reason.to_owned(), remedy.to_owned());
    }
    if let Some(quiet) = facts.server {
        let (reason, remedy) = match quiet {
            Quiet::NoAnswer => (
                "Postgres has sent nothing for over 40 s, though walpost asks it for a sign of life: its walsender hangs, or \
                 decodes a very large transaction",
                "look at the walsender in pg_stat_activity; if it hangs, end it with pg_terminate_backend and walpost connects \
                 again by itself",
            ),
            Quiet::ForStandby => (
                "Postgres has log that it does not send: it waits for a standby of synchronized_standby_slots to confirm it",
                "bring the standby back, or take its slot out of synchronized_standby_slots and SELECT pg_reload_conf(); \
                 walpost goes on by itself",
            ),
        };
        return (State::Stalled, reason.to_owned(), remedy.to_owned());
    }
    if facts.quiet {
        let reason = "took the slot over; waiting a few seconds for requests of its last holder to pass";
        return (State::CatchingUp, reason.to_owned(), String::new());
    }
    match facts.behind {
        Some(behind) if behind > BEHIND => {
            (State::CatchingUp, format!("reading a backlog of more than {} s", BEHIND.as_secs()), String::new())
        }
        _ => (State::Streaming, String::new(), String::new()),
    }
}

/// Kafka confirms nothing, or nothing of one partition.
fn stalled(facts: &Facts<'_>) -> (State, String, String) {
    let place = match (&facts.oldest, &facts.waiting) {
        (_, Some(Waiting::Rebuild { reason, .. })) => format!(" (a failed delivery is being healed: {reason})"),
        (Some(Waits { record: Oldest { topic, partition, .. }, since, .. }), _) => {
            format!(" (it is for partition {partition} of the topic {:?}, and waits since {})", &**topic, utc(*since))
        }
        _ => String::new(),
    };
    let error = facts.kafka_error.as_deref().map(|error| format!("last error of a connection: {error}"));
    let (cause, remedy) = match (&facts.short, error) {
        (Some(Short { topic, partition, in_sync, wanted }), error) => (
            format!(
                "partition {partition} of the topic {:?} takes no records: {in_sync} of its replicas are in sync, and \
                 min.insync.replicas asks for {wanted}{}",
                &**topic,
                error.map_or_else(String::new, |error| format!("; {error}"))
            ),
            "bring the brokers of its other replicas back, or mend min.insync.replicas of the topic",
        ),
        (None, error) => (
            error.unwrap_or_else(|| "the broker does not answer; no connection error is known".to_owned()),
            "bring the brokers back, or mend what the error names",
        ),
    };
    (
        State::Stalled,
        format!(
            "rows wait, and Kafka has not confirmed the oldest one for over {} s{place}; {cause}",
            STALLED_AFTER.as_secs()
        ),
        format!("{remedy}; walpost goes on by itself, and Postgres keeps the log until then"),
    )
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::ack::Ticket;

    fn calm() -> Facts<'static> {
        Facts {
            stopped: None,
            draining: false,
            waiting: None,
            rows_wait: false,
            since_delivery: Duration::from_secs(3600),
            oldest: None,
            short: None,
            kafka_error: None,
            behind: None,
            quiet: false,
            server: None,
            unreadable: None,
        }
    }

    #[test]
    fn an_idle_relay_streams_however_long_ago_the_last_row_was() {
        assert_eq!(of(&calm()).0, State::Streaming);
    }

    #[test]
    fn rows_that_wait_for_ten_seconds_are_a_stall_that_names_the_error() {
        let error = Some("127.0.0.1:9092: Connection refused".to_owned());
        let facts = Facts { rows_wait: true, kafka_error: error, ..calm() };
        let (state, reason, remedy) = of(&facts);
        assert_eq!(state, State::Stalled);
        assert!(reason.contains("Connection refused"), "{reason}");
        assert!(!remedy.is_empty());
        assert_eq!(
            of(&Facts { since_delivery: Duration::from_secs(9), rows_wait: true, ..calm() }).0,
            State::Streaming
        );
    }

    #[test]
    fn a_partition_with_too_few_replicas_is_named_with_the_moment_and_the_remedy() {
        let oldest = Oldest { ticket: Ticket(7), topic: "orders".into(), partition: 3 };
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let short = || Some(Short { topic: "orders".into(), partition: 3, in_sync: 1, wanted: 2 });
        // Others are delivered meanwhile.
        let waits = |lasts| Facts {
            rows_wait: true,
            since_delivery: Duration::ZERO,
            oldest: Some(Waits { record: oldest.clone(), lasts: Duration::from_secs(lasts), since }),
            short: short(),
            ..calm()
        };
        assert_eq!(of(&waits(9)).0, State::Streaming);
        let (state, reason, remedy) = of(&waits(10));
        assert_eq!(state, State::Stalled);
        for word in ["partition 3", "\"orders\"", "since 2001-09-09T01:46:40Z", "min.insync.replicas asks for 2"] {
            assert!(reason.contains(word), "{word}: {reason}");
        }
        assert!(remedy.contains("replicas"), "{remedy}");
    }

    #[test]
    fn a_missing_topic_is_named_once_it_had_time_to_appear() {
        let waiting = |age: Duration| {
            Instant::now().checked_sub(age).map(|since| Waiting::Topic {
                topic: "orders".to_owned(),
                problem: "unknown topic".to_owned(),
                remedy: "create it".to_owned(),
                since,
                refused_since: Some(since),
            })
        };
        let facts = |age| Facts { rows_wait: true, since_delivery: Duration::ZERO, waiting: waiting(age), ..calm() };
        assert_eq!(of(&facts(Duration::from_secs(5))).0, State::WaitingForTopic);
        assert!(of(&facts(Duration::from_secs(5))).1.contains("orders"));
        assert_eq!(of(&facts(Duration::ZERO)).0, State::Streaming);
    }

    #[test]
    fn a_standstill_for_a_person_comes_before_everything() {
        let facts = Facts { stopped: Some(("why", "what to do")), draining: true, rows_wait: true, ..calm() };
        assert_eq!(of(&facts), (State::Stopped, "why".to_owned(), "what to do".to_owned()));
    }

    #[test]
    fn a_server_from_which_nothing_comes_is_a_stall_with_a_remedy() {
        for (quiet, word) in
            [(Quiet::NoAnswer, "pg_terminate_backend"), (Quiet::ForStandby, "synchronized_standby_slots")]
        {
            let (state, reason, remedy) = of(&Facts { server: Some(quiet), ..calm() });
            assert_eq!(state, State::Stalled);
            assert!(!reason.is_empty() && remedy.contains(word), "{remedy}");
        }
    }

    #[test]
    fn what_the_server_cannot_send_is_a_stall_and_not_a_stream() {
        let (state, reason, remedy) = of(&Facts { unreadable: Some(("why", "what to do")), ..calm() });
        assert_eq!((state, reason.as_str(), remedy.as_str()), (State::Stalled, "why", "what to do"));
    }

    #[test]
    fn a_backlog_is_catching_up() {
        let facts = Facts { behind: Some(Duration::from_secs(11)), ..calm() };
        assert_eq!(of(&facts).0, State::CatchingUp);
    }
}
