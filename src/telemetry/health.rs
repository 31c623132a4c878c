//! What the relay says of itself: its state, whether that counts as ready, and the status that the probe, the page and
//! `walpost status` all show. The field names are a promise to scripts: fields may be added, never renamed or removed.
//! A field that is not known is `null`, never left out.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lsn::Lsn;

/// A relay that has not turned its loop for this long no longer works. Twice the longest wait inside a turn.
pub const TURN_WITHIN: Duration = Duration::from_secs(30);

/// How long a start may take before its first turn. A restart by the orchestrator would only start it over.
pub const FIRST_TURN_WITHIN: Duration = Duration::from_secs(60);

/// What the relay is doing. Only these words appear in the status, in the metrics and in the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Before the first session.
    Starting,
    /// Another relay holds the slot; this one takes over when it ends. Ready, or no rolling update would ever finish.
    Standby,
    /// Streaming, more than 10 s behind.
    CatchingUp,
    Streaming,
    /// The oldest row has waited for Kafka for 10 s, or nothing comes from Postgres, although it should.
    Stalled,
    /// A topic refuses: unknown, not authorised, or refused by policy.
    WaitingForTopic,
    /// A poison message under `on_poison = "stop"`.
    Stopped,
    /// Told to stop; delivering what was read.
    Draining,
    /// The slot is gone or invalidated.
    Lost,
    /// The slot was moved or re-created: rows may be missing.
    Gap,
    /// The publication is not the one that the slot was read with.
    PublicationChanged,
    /// A recovery is at work; `run` refuses meanwhile.
    Recovering,
    /// No relay answers. Said only by `walpost status`.
    NotRunning,
}

impl State {
    /// All states, in the order of the documentation.
    pub const ALL: [State; 13] = [
        State::Starting,
        State::Standby,
        State::CatchingUp,
        State::Streaming,
        State::Stalled,
        State::WaitingForTopic,
        State::Stopped,
        State::Draining,
        State::Lost,
        State::Gap,
        State::PublicationChanged,
        State::Recovering,
        State::NotRunning,
    ];

    /// The word for it, the same in JSON, in labels and in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Standby => "standby",
            State::CatchingUp => "catching_up",
            State::Streaming => "streaming",
            State::Stalled => "stalled",
            State::WaitingForTopic => "waiting_for_topic",
            State::Stopped => "stopped",
            State::Draining => "draining",
            State::Lost => "lost",
            State::Gap => "gap",
            State::PublicationChanged => "publication_changed",
            State::Recovering => "recovering",
            State::NotRunning => "not_running",
        }
    }

    /// Whether `/readyz` answers 200.
    pub fn is_ready(self) -> bool {
        match self {
            State::Standby | State::CatchingUp | State::Streaming => true,
            State::Starting
            | State::Stalled
            | State::WaitingForTopic
            | State::Stopped
            | State::Draining
            | State::Lost
            | State::Gap
            | State::PublicationChanged
            | State::Recovering
            | State::NotRunning => false,
        }
    }

    /// Whether waiting does not help: a person has to decide.
    pub fn needs_a_person(self) -> bool {
        matches!(self, State::Stopped | State::Lost | State::Gap | State::PublicationChanged)
    }

    /// What is true of the state in general, for when no reason was given.
    pub fn meaning(self) -> &'static str {
        match self {
            State::Starting => "the relay is starting",
            State::Standby => "another relay holds the slot; this one takes over when that one ends",
            State::CatchingUp => "rows are being published, more than 10 s behind",
            State::Streaming => "rows are published as they are committed",
            State::Stalled => "rows wait and none was delivered, or nothing comes from Postgres",
            State::WaitingForTopic => "a topic refuses rows",
            State::Stopped => "a message can never be sent as it is, and on_poison = \"stop\" holds the position",
            State::Draining => "the relay was told to stop and delivers what it has read",
            State::Lost => "the replication slot is lost",
            State::Gap => "the replication slot was moved or re-created, so rows may be missing",
            State::PublicationChanged => "the publication was changed, so rows may be missing",
            State::Recovering => "a recovery is at work, and the relay waits for its end",
            State::NotRunning => "no relay answers",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The JSON of `/status` and of `walpost status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub state: State,
    /// One sentence: why it is in this state.
    pub reason: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    #[serde(default)]
    pub slot: SlotStatus,
    /// From the slot's `confirmed_flush_lsn` to the end of the write-ahead log.
    pub lag_bytes: Option<u64>,
    /// The age of the oldest row that was read and is not yet confirmed by the broker; 0 when there is none.
    pub oldest_unconfirmed_seconds: Option<f64>,
    #[serde(default)]
    pub in_flight: InFlightStatus,
    #[serde(default)]
    pub parked: ParkedStatus,
    /// Records that the broker has confirmed since the relay started.
    pub published: Option<u64>,
    #[serde(default)]
    pub kafka: EndStatus,
    #[serde(default)]
    pub postgres: EndStatus,
    /// The version of the relay that answers.
    pub version: Option<String>,
}

impl Status {
    /// A status of which nothing is known but the state.
    pub fn of(state: State) -> Status {
        Status {
            state,
            reason: None,
            remedy: None,
            slot: SlotStatus::default(),
            lag_bytes: None,
            oldest_unconfirmed_seconds: None,
            in_flight: InFlightStatus::default(),
            parked: ParkedStatus::default(),
            published: None,
            kafka: EndStatus::default(),
            postgres: EndStatus::default(),
            version: None,
        }
    }

    /// The reason, or what the state means in general.
    pub fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or_else(|| self.state.meaning())
    }
}

/// The slot as `pg_replication_slots` shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlotStatus {
    pub name: Option<String>,
    /// Whether a connection streams from it now.
    pub active: Option<bool>,
    pub wal_status: Option<WalStatus>,
    #[serde(with = "lsn_text")]
    pub restart_lsn: Option<Lsn>,
    #[serde(with = "lsn_text")]
    pub confirmed_flush_lsn: Option<Lsn>,
    /// From `restart_lsn` to the end of the write-ahead log: what the server keeps for this slot.
    pub retained_wal_bytes: Option<u64>,
    /// `safe_wal_size`: what may still be written before the slot is in danger. Negative once it is. Null also where
    /// no cap is set (`max_slot_wal_keep_size = -1`): then nothing bounds what the slot holds but the disk.
    pub safe_wal_bytes: Option<i64>,
}

/// `pg_replication_slots.wal_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WalStatus {
    Reserved,
    Extended,
    Unreserved,
    Lost,
}

impl WalStatus {
    pub const ALL: [WalStatus; 4] = [WalStatus::Reserved, WalStatus::Extended, WalStatus::Unreserved, WalStatus::Lost];

    /// As Postgres prints it; None for a word that this version does not know.
    pub fn from_postgres(text: &str) -> Option<WalStatus> {
        WalStatus::ALL.into_iter().find(|status| status.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            WalStatus::Reserved => "reserved",
            WalStatus::Extended => "extended",
            WalStatus::Unreserved => "unreserved",
            WalStatus::Lost => "lost",
        }
    }
}

/// Read, and not yet confirmed by the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InFlightStatus {
    pub messages: Option<u64>,
    pub bytes: Option<u64>,
}

/// Set aside in `walpost.parked_messages`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ParkedStatus {
    pub messages: Option<u64>,
    /// Keys whose later messages are held behind a parked one.
    pub keys: Option<u64>,
}

/// One of the two ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndStatus {
    pub connected: Option<bool>,
    /// The last error while not connected.
    pub error: Option<String>,
}

impl EndStatus {
    pub fn connected() -> EndStatus {
        EndStatus { connected: Some(true), error: None }
    }

    pub fn failed(error: impl Into<String>) -> EndStatus {
        EndStatus { connected: Some(false), error: Some(error.into()) }
    }
}

/// Whether the process should be left alone: its loop turns, or it is young enough not to have begun. Depends on
/// neither end: a restart mends neither a broker nor a database.
pub fn is_live(since_start: Duration, since_turn: Option<Duration>) -> bool {
    match since_turn {
        Some(since_turn) => since_turn <= TURN_WITHIN,
        None => since_start <= FIRST_TURN_WITHIN,
    }
}

/// An optional LSN as Postgres prints it.
mod lsn_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use crate::lsn::Lsn;

    pub fn serialize<S: Serializer>(lsn: &Option<Lsn>, serializer: S) -> Result<S::Ok, S::Error> {
        lsn.map(|lsn| lsn.to_string()).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Lsn>, D::Error> {
        Option::<String>::deserialize(deserializer)?.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_promised_states_are_ready() {
        let ready: Vec<_> = State::ALL.into_iter().filter(|state| state.is_ready()).map(State::as_str).collect();
        assert_eq!(ready, ["standby", "catching_up", "streaming"]);
    }

    #[test]
    fn a_state_has_the_same_word_in_json_as_elsewhere() {
        for state in State::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        for status in WalStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
            assert_eq!(WalStatus::from_postgres(status.as_str()), Some(status));
        }
        assert_eq!(WalStatus::from_postgres("something new"), None);
    }

    #[test]
    fn every_promised_field_is_there_and_null_while_unknown() {
        let json = serde_json::to_value(Status::of(State::NotRunning)).unwrap();
        let expected = serde_json::json!({
            "state": "not_running", "reason": null, "remedy": null,
            "slot": {
                "name": null, "active": null, "wal_status": null, "restart_lsn": null, "confirmed_flush_lsn": null,
                "retained_wal_bytes": null, "safe_wal_bytes": null,
            },
            "lag_bytes": null, "oldest_unconfirmed_seconds": null,
            "in_flight": { "messages": null, "bytes": null },
            "parked": { "messages": null, "keys": null },
            "published": null,
            "kafka": { "connected": null, "error": null },
            "postgres": { "connected": null, "error": null },
            "version": null,
        });
        assert_eq!(serde_json::to_string_pretty(&json).unwrap(), serde_json::to_string_pretty(&expected).unwrap());
    }

    #[test]
    fn a_status_reads_back_as_it_was_written() {
        let mut status = Status::of(State::Stalled);
        status.slot.restart_lsn = Some(Lsn(0x16_B374_D848));
        status.slot.wal_status = Some(WalStatus::Unreserved);
        status.slot.safe_wal_bytes = Some(-5);
        status.kafka = EndStatus::failed("refused");
        let text = serde_json::to_string(&status).unwrap();
        assert!(text.contains("\"restart_lsn\":\"16/B374D848\""), "{text}");
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    }

    #[test]
    fn fields_that_an_older_relay_lacks_or_a_newer_one_adds_do_not_matter() {
        let status: Status = serde_json::from_str(r#"{"state":"streaming","slot":{"name":"a"},"new":1}"#).unwrap();
        assert_eq!((status.state, status.slot.name.as_deref()), (State::Streaming, Some("a")));
    }

    #[test]
    fn alive_is_who_turns_or_has_just_started() {
        let seconds = Duration::from_secs;
        assert!(is_live(seconds(59), None));
        assert!(!is_live(seconds(61), None));
        assert!(is_live(seconds(100_000), Some(seconds(30))));
        assert!(!is_live(seconds(31), Some(seconds(31))));
    }
}
