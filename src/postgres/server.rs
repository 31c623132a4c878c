//! What the server is, what it allows, and what the connected role may do: the facts behind `doctor` and the start of a
//! relay. It only reads.

use std::collections::BTreeMap;

use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::catalog::{self, CatalogError, TableFacts};
use crate::names::statement_of;

/// The server as its settings and views describe it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ServerFacts {
    /// 170011 for 17.11.
    pub version: u32,
    pub version_text: String,
    pub in_recovery: bool,
    pub database: String,
    pub database_oid: u32,
    /// Of the database.
    pub encoding: String,
    /// Seconds since 1970 by the server's clock.
    pub clock: f64,
    /// Those of the settings that matter here and that this version has.
    pub settings: BTreeMap<String, Setting>,
    /// Walsenders in use.
    pub senders_used: u32,
    pub slots: Vec<SlotUse>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Setting {
    pub setting: String,
    pub unit: Option<String>,
    /// The configuration files hold another value, which a restart would bring into force.
    pub pending_restart: bool,
}

/// One of the server's replication slots, ours or another's.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SlotUse {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub database: Option<String>,
    pub active: bool,
    pub retained_bytes: Option<i64>,
}

impl ServerFacts {
    /// A setting's text, without its unit.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(|setting| setting.setting.as_str())
    }

    /// A setting that is a number, in its own unit.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.setting(name)?.parse().ok()
    }

    /// The bytes of WAL that a slot may hold back; None: there is no bound.
    pub fn slot_wal_limit_bytes(&self) -> Option<u64> {
        self.number("max_slot_wal_keep_size").and_then(|megabytes| u64::try_from(megabytes).ok()).map(|mb| mb << 20)
    }

    /// After how many seconds of disuse the server gives a slot up (18+); None: never.
    pub fn idle_slot_timeout_seconds(&self) -> Option<u64> {
        let unit = self.settings.get("idle_replication_slot_timeout")?.unit.as_deref();
        let seconds = match unit {
            Some("min") => 60,
            Some("h") => 3600,
            _ => 1,
        };
        self.number("idle_replication_slot_timeout")
            .and_then(|value| u64::try_from(value).ok())
            .filter(|value| *value > 0)
            .map(|value| value.saturating_mul(seconds))
    }
}

/// Reads the server's facts.
pub async fn server(client: &Client) -> Result<ServerFacts, CatalogError> {
    let what = "the server's settings";
    catalog::json(client, include_str!("../../sql/030_server.sql"), &[], what)
        .await?
        .ok_or(CatalogError::Missing { what })
}

/// The value that the configuration files hold for a setting that waits for a restart; None where the role may not see
/// it, which is no error: few may.
pub async fn pending_setting(client: &Client, name: &str) -> Option<String> {
    let statement = statement_of(include_str!("../../sql/031_server_pending_setting.sql"));
    let rows = client.query_typed(&statement, &[(&name, Type::TEXT)]).await.ok()?;
    rows.first()?.try_get(0).ok()
}

/// What the connected role may do. None: the object is not there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RoleFacts {
    pub name: String,
    pub superuser: bool,
    /// The role's own REPLICATION attribute.
    pub replication: bool,
    pub bypass_row_security: bool,
    /// Member of a role by which a managed host gives the right to replicate.
    pub replication_member: bool,
    /// CREATE on the database, which a new publication or schema needs.
    pub create_in_database: bool,
    pub table_schema_usage: Option<bool>,
    pub table_select: Option<bool>,
    pub table_owner: Option<bool>,
    pub walpost_usage: Option<bool>,
    /// Privileges on `walpost.checkpoint` that are missing; None: there is no such table.
    pub checkpoint_missing: Option<Vec<String>>,
    /// Privileges on `walpost.parked_messages` that are missing; None: there is no such table.
    pub parked_missing: Option<Vec<String>>,
}

/// Reads the role's rights.
pub async fn role(client: &Client, table: Option<&TableFacts>) -> Result<RoleFacts, CatalogError> {
    let what = "the role's rights";
    let (schema, oid) = table.map_or(("", 0), |table| (table.schema.as_str(), table.oid));
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&schema, Type::TEXT), (&oid, Type::OID)];
    catalog::json(client, include_str!("../../sql/032_role.sql"), &params, what)
        .await?
        .ok_or(CatalogError::Missing { what })
}

/// Whether there is a role of that name.
pub async fn role_exists(client: &Client, name: &str) -> Result<bool, CatalogError> {
    let read = |source| CatalogError::Read { what: "the roles", source };
    let statement = "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1::text)";
    let rows = client.query_typed(statement, &[(&name, Type::TEXT)]).await.map_err(read)?;
    rows.first().map_or(Ok(false), |row| row.try_get(0)).map_err(read)
}

/// How a session runs, as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The TLS version; None: in the clear.
    pub tls: Option<String>,
    /// A Unix socket or the loopback interface.
    pub local: bool,
}

/// Reads how this session runs.
pub async fn link(client: &Client) -> Result<Link, CatalogError> {
    let what = "how this session is encrypted";
    let read = |source| CatalogError::Read { what, source };
    let statement = statement_of(include_str!("../../sql/048_link.sql"));
    let rows = client.query_typed(&statement, &[]).await.map_err(read)?;
    let row = rows.first().ok_or(CatalogError::Missing { what })?;
    Ok(Link { tls: row.try_get(0).map_err(read)?, local: row.try_get(1).map_err(read)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(settings: &[(&str, &str, Option<&str>)]) -> ServerFacts {
        let settings = settings
            .iter()
            .map(|(name, setting, unit)| {
                let setting =
                    Setting { setting: (*setting).into(), unit: unit.map(str::to_owned), pending_restart: false };
                ((*name).to_owned(), setting)
            })
            .collect();
        ServerFacts {
            version: 180_000,
            version_text: "18.0".into(),
            in_recovery: false,
            database: "app".into(),
            database_oid: 5,
            encoding: "UTF8".into(),
            clock: 0.0,
            settings,
            senders_used: 0,
            slots: Vec::new(),
        }
    }

    #[test]
    fn minus_one_is_no_bound_on_wal() {
        assert_eq!(facts(&[("max_slot_wal_keep_size", "-1", Some("MB"))]).slot_wal_limit_bytes(), None);
        assert_eq!(facts(&[("max_slot_wal_keep_size", "64", Some("MB"))]).slot_wal_limit_bytes(), Some(64 << 20));
    }

    #[test]
    fn the_idle_slot_timeout_is_read_in_its_unit_and_zero_is_never() {
        let timeout =
            |value, unit| facts(&[("idle_replication_slot_timeout", value, unit)]).idle_slot_timeout_seconds();
        assert_eq!(timeout("0", Some("s")), None);
        assert_eq!(timeout("90", Some("s")), Some(90));
        assert_eq!(timeout("2", Some("min")), Some(120));
        assert_eq!(facts(&[]).idle_slot_timeout_seconds(), None);
    }
}
