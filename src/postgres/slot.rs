//! The replication slot: what state it is in, who holds it, making one and dropping one.
//!
//! The state is read from `pg_replication_slots`, never guessed from an error: 55000 is an invalidated slot, but also a
//! slot of another database.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::catalog::{self, CatalogError};
use crate::lsn::Lsn;
use crate::names::statement_of;

/// The first version that copies marked slots to standbys.
pub const FAILOVER_SLOTS: u32 = 170_000;

/// A row of `pg_replication_slots`, with what belongs to it. Fields that a version does not have are false or None.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SlotFacts {
    #[serde(rename = "slot_name")]
    pub name: String,
    /// None: a physical slot.
    pub plugin: Option<String>,
    pub database: Option<String>,
    #[serde(default)]
    pub temporary: bool,
    pub active: bool,
    pub active_pid: Option<i32>,
    #[serde(default, deserialize_with = "lsn")]
    pub restart_lsn: Option<Lsn>,
    /// From where it sends. None while it is being made, and for a physical one.
    #[serde(default, deserialize_with = "lsn")]
    pub confirmed_flush_lsn: Option<Lsn>,
    pub wal_status: Option<WalStatus>,
    /// Bytes of WAL that may still be written before it is in danger; None: no bound, or it is lost.
    pub safe_wal_size: Option<i64>,
    #[serde(default)]
    pub two_phase: bool,
    /// 16+: it was in the way of a standby's recovery.
    #[serde(default)]
    pub conflicting: Option<bool>,
    /// 17+: `wal_removed`, `rows_removed`, `wal_level_insufficient`, `idle_timeout` (18+).
    #[serde(default)]
    pub invalidation_reason: Option<String>,
    /// 17+: copied to standbys.
    #[serde(default)]
    pub failover: bool,
    /// 17+: it is such a copy.
    #[serde(default)]
    pub synced: bool,
    /// 17+: since when nobody holds it.
    #[serde(default)]
    pub inactive_seconds: Option<f64>,
    /// How many transactions ago its `catalog_xmin` was: vacuum cannot clean the catalogs behind it.
    #[serde(default)]
    pub catalog_xmin_age: Option<i64>,
    /// The end of the server's WAL when this was read.
    #[serde(default, deserialize_with = "lsn")]
    pub current_lsn: Option<Lsn>,
    #[serde(default)]
    pub holder: Option<Holder>,
    /// Bytes that decoding has written to disk because transactions were larger than its memory.
    #[serde(default)]
    pub spill_bytes: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WalStatus {
    /// Within `max_wal_size`.
    Reserved,
    /// Above `max_wal_size`, held for the slot.
    Extended,
    /// Above the cap: the next checkpoint may remove it.
    Unreserved,
    /// Gone: the slot can never be read again.
    Lost,
}

impl WalStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            WalStatus::Reserved => "reserved",
            WalStatus::Extended => "extended",
            WalStatus::Unreserved => "unreserved",
            WalStatus::Lost => "lost",
        }
    }
}

/// The session that reads the slot. What a role may not see of it is None.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Holder {
    pub pid: i32,
    pub user: Option<String>,
    pub application: Option<String>,
    pub address: Option<String>,
    /// When it connected. A moment and not an age: a state that names its holder must hold still.
    pub since: Option<String>,
    pub wait_event: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {}", self.pid)?;
        if let Some(application) = self.application.as_deref().filter(|name| !name.is_empty()) {
            write!(f, " ({application})")?;
        }
        if let Some(address) = &self.address {
            write!(f, " from {address}")?;
        }
        match &self.since {
            Some(since) => write!(f, ", connected since {since}"),
            None => Ok(()),
        }
    }
}

impl SlotFacts {
    /// Bytes of WAL that the server keeps because of it.
    pub fn retained_bytes(&self) -> Option<u64> {
        Some(self.current_lsn?.bytes_since(self.restart_lsn?))
    }

    /// Bytes of WAL that it has not confirmed.
    pub fn lag_bytes(&self) -> Option<u64> {
        Some(self.current_lsn?.bytes_since(self.confirmed_flush_lsn?))
    }

    /// Whether it can never be read again, and why in the server's word.
    pub fn lost(&self) -> Option<&str> {
        match (&self.invalidation_reason, self.wal_status, self.conflicting) {
            (Some(reason), _, _) => Some(reason),
            (None, Some(WalStatus::Lost), _) => Some("wal_removed"),
            (None, _, Some(true)) => Some("rows_removed"),
            _ => None,
        }
    }

    /// Who holds it, in words; None while nobody does.
    pub fn held_by(&self) -> Option<String> {
        match (&self.holder, self.active_pid) {
            (Some(holder), _) => Some(holder.to_string()),
            (None, Some(pid)) => Some(format!("pid {pid}")),
            (None, None) => self.active.then(|| "an unknown session".to_owned()),
        }
    }
}

/// The setting or deed that matches the server's reason for giving a slot up.
pub fn invalidation_advice(reason: &str) -> &'static str {
    match reason {
        "wal_removed" => {
            "it fell further behind than max_slot_wal_keep_size allows; raise the cap, or alarm on \
            walpost_slot_safe_wal_bytes"
        }
        "idle_timeout" => {
            "nobody read it for longer than idle_replication_slot_timeout; raise that above your longest maintenance \
            window"
        }
        "rows_removed" => {
            "a standby's recovery removed catalog rows that it needed; set hot_standby_feedback = on there"
        }
        "wal_level_insufficient" => "wal_level was below logical on the primary; set wal_level = logical and restart",
        _ => "see the server's log for the moment at which it was invalidated",
    }
}

/// Something about the slot could not be done.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(
        "slot {slot} could not be made within {} s, because it waits for transactions that are open{}; end them, or \
        try again",
        within.as_secs(), Blockers(blockers)
    )]
    Blocked { slot: String, within: Duration, blockers: Vec<OpenTransaction>, source: tokio_postgres::Error },
    #[error("could not {operation} slot {slot}")]
    Failed { operation: &'static str, slot: String, source: tokio_postgres::Error },
}

impl SlotError {
    /// Postgres' code for the failure, where it answered.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            SlotError::Catalog(error) => error.sqlstate(),
            SlotError::Blocked { source, .. } | SlotError::Failed { source, .. } => {
                source.code().map(|code| code.code())
            }
        }
    }
}

/// A transaction with an id that is still open, or prepared.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenTransaction {
    /// None: it is prepared, and no session holds it.
    pub pid: Option<i32>,
    pub user: Option<String>,
    pub application: Option<String>,
    pub database: Option<String>,
    pub state: Option<String>,
    pub seconds: Option<f64>,
    /// The name of a prepared one.
    pub prepared: Option<String>,
}

impl fmt::Display for OpenTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.prepared, self.pid) {
            (Some(name), _) => write!(f, "prepared transaction {name:?}")?,
            (None, Some(pid)) => write!(f, "pid {pid}")?,
            (None, None) => f.write_str("a session")?,
        }
        if let Some(application) = self.application.as_deref().filter(|name| !name.is_empty()) {
            write!(f, " ({application})")?;
        }
        if let Some(user) = &self.user {
            write!(f, " of {user}")?;
        }
        if let Some(database) = &self.database {
            write!(f, " in database {database}")?;
        }
        match self.seconds {
            Some(seconds) => write!(f, ", open for {}", age(seconds)),
            None => Ok(()),
        }
    }
}

struct Blockers<'a>(&'a [OpenTransaction]);

impl fmt::Display for Blockers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, blocker) in self.0.iter().enumerate() {
            write!(f, "{}{blocker}", if index == 0 { ": " } else { "; " })?;
        }
        Ok(())
    }
}

/// Seconds as a person says them.
pub(crate) fn age(seconds: f64) -> String {
    match seconds.max(0.0) as u64 {
        s if s < 120 => format!("{s} s"),
        s if s < 7_200 => format!("{} min", s / 60),
        s if s < 172_800 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}

/// Reads the slot; None: there is none of that name in the whole cluster.
pub async fn facts(client: &Client, name: &str) -> Result<Option<SlotFacts>, CatalogError> {
    catalog::json(client, include_str!("../../sql/040_slot.sql"), &[(&name, Type::TEXT)], "the replication slot").await
}

/// Transactions that are open anywhere in the cluster, oldest first, at most `limit`.
pub async fn open_transactions(client: &Client, limit: i64) -> Result<Vec<OpenTransaction>, CatalogError> {
    let read = |source| CatalogError::Read { what: "the open transactions", source };
    let statement = statement_of(include_str!("../../sql/041_open_transactions.sql"));
    let rows = client.query_typed(&statement, &[(&limit, Type::INT8)]).await.map_err(read)?;
    rows.iter()
        .map(|row| {
            Ok(OpenTransaction {
                pid: row.try_get(0)?,
                user: row.try_get(1)?,
                application: row.try_get(2)?,
                database: row.try_get(3)?,
                state: row.try_get(4)?,
                seconds: row.try_get(5)?,
                prepared: row.try_get(6)?,
            })
        })
        .collect::<Result<_, tokio_postgres::Error>>()
        .map_err(read)
}

/// The statement that makes a slot of this name; the name is one that Postgres allows (`a-z`, `0-9`, `_`).
pub fn creation(version: u32, name: &str) -> String {
    let file = if version >= FAILOVER_SLOTS {
        include_str!("../../sql/012_slot_failover.sql")
    } else {
        include_str!("../../sql/011_slot.sql")
    };
    crate::names::fill(file, &[("walpost", name)])
}

/// Makes the slot and says from where it streams. The server waits for every transaction that is open at that moment:
/// at most `within`, then [`SlotError::Blocked`] names them, and no half-made slot is left behind.
///
/// It runs in a transaction of its own, to bound the wait in the server: the client must not be in one, and must not be
/// used any more if this is dropped before it ends.
pub async fn create(client: &Client, version: u32, name: &str, within: Duration) -> Result<Lsn, SlotError> {
    let failed = |source| SlotError::Failed { operation: "make", slot: name.to_owned(), source };
    let bounds = format!(
        "BEGIN; SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = {}",
        within.as_millis().clamp(1, i32::MAX as u128)
    );
    // Whoever gives up waiting must not leave a server process behind that makes the slot all the same, unrecorded. Not
    // every platform of a server can look for that.
    let _ = client.batch_execute("SET client_connection_check_interval = '2s'").await;
    client.batch_execute(&bounds).await.map_err(failed)?;
    let statement = creation(version, name).replace("SELECT lsn", "SELECT lsn::text");
    let made = client.query_typed(statement.trim_end_matches(';'), &[]).await;
    let ended = client.batch_execute(if made.is_ok() { "COMMIT" } else { "ROLLBACK" }).await;
    let rows = match made {
        Ok(rows) => rows,
        Err(source) if source.code() == Some(&tokio_postgres::error::SqlState::QUERY_CANCELED) => {
            ended.map_err(failed)?;
            let blockers = open_transactions(client, 5).await?;
            return Err(SlotError::Blocked { slot: name.to_owned(), within, blockers, source });
        }
        Err(source) => return Err(failed(source)),
    };
    ended.map_err(failed)?;
    let text: String = rows.first().map_or(Ok(String::new()), |row| row.try_get(0)).map_err(failed)?;
    text.parse().map_err(|source| CatalogError::Lsn { what: "the new slot", source }.into())
}

/// Drops the slot. One that a session holds is refused by the server (55006).
pub async fn drop(client: &Client, name: &str) -> Result<(), SlotError> {
    let statement = statement_of(include_str!("../../sql/042_slot_drop.sql"));
    let params: [(&(dyn ToSql + Sync), Type); 1] = [(&name, Type::TEXT)];
    let dropped = client.query_typed(&statement, &params).await;
    dropped.map(|_| ()).map_err(|source| SlotError::Failed { operation: "drop", slot: name.to_owned(), source })
}

/// Moves a slot that nobody holds to the end of the WAL: what lies between is never sent. Only for a gap that a person
/// has accepted.
pub async fn advance(client: &Client, name: &str) -> Result<Lsn, SlotError> {
    let failed = |source| SlotError::Failed { operation: "advance", slot: name.to_owned(), source };
    let statement = statement_of(include_str!("../../sql/043_slot_advance.sql"));
    let rows = client.query_typed(&statement, &[(&name, Type::TEXT)]).await.map_err(failed)?;
    let text: String = rows.first().map_or(Ok(String::new()), |row| row.try_get(0)).map_err(failed)?;
    text.parse().map_err(|source| CatalogError::Lsn { what: "the slot", source }.into())
}

/// Moves a slot that nobody holds to `to`, so that it sends the transactions whose commit record begins there or later (the
/// position that their `Begin` carries), and no earlier one. Returns where the slot stands: before `to` where the log is not
/// flushed so far, so compare.
///
/// # Errors
///
/// The slot is held, is lost, or stands behind `to` already.
pub async fn advance_to(client: &Client, name: &str, to: Lsn) -> Result<Lsn, SlotError> {
    let failed = |source| SlotError::Failed { operation: "advance", slot: name.to_owned(), source };
    let statement = statement_of(include_str!("../../sql/052_slot_advance_to.sql"));
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&name, Type::TEXT), (&to.to_string(), Type::TEXT)];
    let rows = client.query_typed(&statement, &parameters).await.map_err(failed)?;
    let text: String = rows.first().map_or(Ok(String::new()), |row| row.try_get(0)).map_err(failed)?;
    text.parse().map_err(|source| CatalogError::Lsn { what: "the slot", source }.into())
}

fn lsn<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Lsn>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(more: &str) -> SlotFacts {
        let text = format!(
            r#"{{"slot_name":"walpost","plugin":"pgoutput","database":"app","active":false,"active_pid":null,
                "restart_lsn":"0/100","confirmed_flush_lsn":"0/180","wal_status":"reserved",
                "safe_wal_size":null{more}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn distances_are_taken_from_the_end_of_the_wal() {
        let slot = slot(r#","current_lsn":"0/200""#);
        assert_eq!((slot.retained_bytes(), slot.lag_bytes()), (Some(0x100), Some(0x80)));
    }

    #[test]
    fn every_version_says_in_its_own_way_that_a_slot_is_lost() {
        assert_eq!(slot("").lost(), None);
        assert_eq!(slot(r#","conflicting":false"#).lost(), None);
        assert_eq!(slot(r#","conflicting":true"#).lost(), Some("rows_removed"));
        assert_eq!(slot(r#","invalidation_reason":"idle_timeout""#).lost(), Some("idle_timeout"));
        let mut lost = slot("");
        lost.wal_status = Some(WalStatus::Lost);
        assert_eq!(lost.lost(), Some("wal_removed"));
        lost.wal_status = Some(WalStatus::Unreserved);
        assert_eq!(lost.lost(), None);
    }

    #[test]
    fn the_holder_is_named_as_far_as_it_may_be_seen() {
        let mut held = slot("");
        assert_eq!(held.held_by(), None);
        held.active = true;
        held.active_pid = Some(7);
        assert_eq!(held.held_by().as_deref(), Some("pid 7"));
        held.holder = Some(Holder {
            pid: 7,
            user: None,
            application: Some("walpost".into()),
            address: Some("10.0.0.1".into()),
            since: Some("2026-01-02 03:04:05 UTC".into()),
            wait_event: None,
        });
        assert_eq!(
            held.held_by().as_deref(),
            Some("pid 7 (walpost) from 10.0.0.1, connected since 2026-01-02 03:04:05 UTC")
        );
    }

    #[test]
    fn a_slot_is_copied_to_standbys_where_the_version_can() {
        assert_eq!(
            creation(160_000, "relay_1"),
            "SELECT lsn FROM pg_create_logical_replication_slot('relay_1', 'pgoutput', false, false);"
        );
        assert!(creation(170_000, "relay_1").contains("false, false, true)"));
    }
}
