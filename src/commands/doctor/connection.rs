//! Do the SQL and the replication connection both reach Postgres itself, the same server, and encrypted?

use super::{Check, Replication};
use crate::error_text::ErrorText as _;
use crate::postgres::catalog::Identity;
use crate::postgres::server::Link;
use crate::postgres::{ConnectError, ErrorKind};

/// The checks when there is no SQL session.
pub fn failed(address: &str, error: &ConnectError, replication: &Replication) -> Vec<Check> {
    let mut checks = vec![Check::fail(
        "connection.sql",
        format!("{address}: {}", error.text()),
        "walpost reads the catalog and keeps its record over an SQL session",
        error.remedy(),
    )];
    checks.push(match replication {
        Ok(walsender) => Check::ok("connection.replication", format!("connected to {}", walsender.target)),
        Err(error) => no_replication(error),
    });
    checks
}

/// The checks when there is one.
pub fn checks(address: &str, target: &str, link: &Link, identity: &Identity, replication: &Replication) -> Vec<Check> {
    let mut checks = vec![Check::ok("connection.sql", format!("{address}, reached as {target}"))];
    let walsender = match replication {
        Ok(walsender) => walsender,
        Err(error) => {
            checks.push(no_replication(error));
            checks.push(encryption(link, None));
            return checks;
        }
    };
    let theirs = &walsender.identity;
    checks.push(if theirs.system_identifier != identity.system_identifier || theirs.dbname != identity.database {
        Check::fail(
            "connection.replication",
            format!(
                "replication reaches cluster {} (database {}), SQL reaches cluster {} (database {})",
                theirs.system_identifier, theirs.dbname, identity.system_identifier, identity.database
            ),
            "the record would be kept in another database than the one that is read",
            "give one address that leads to one primary",
        )
    } else {
        Check::ok("connection.replication", format!("connected as a walsender, to {}", walsender.target))
    });
    checks.push(encryption(link, Some(walsender.tls)));
    checks
}

fn no_replication(error: &ConnectError) -> Check {
    let name = "connection.replication";
    match error.kind() {
        ErrorKind::Pooler => Check::fail(
            name,
            error.text(),
            "a pooler stands between: it passes SQL on, and no replication",
            "use the address of Postgres itself (the host's \"direct\" or \"session\" endpoint, port 5432)",
        ),
        // It may pass: what was asked for is allowed, and somebody else has it now.
        ErrorKind::TooManyConnections => {
            Check::warn(name, error.text(), "there was no walsender left for this try", error.remedy())
        }
        _ => Check::fail(
            name,
            error.text(),
            "rows come over a replication connection, and over nothing else",
            error.remedy(),
        ),
    }
}

fn encryption(link: &Link, walsender: Option<bool>) -> Check {
    let name = "connection.tls";
    match (&link.tls, walsender) {
        (Some(version), Some(true) | None) => Check::ok(name, version.clone()),
        (Some(version), Some(false)) => Check::fail(
            name,
            format!("SQL uses {version}, replication is in the clear"),
            "every row of the outbox crosses the network readable",
            "set sslmode=verify-full in the address, and report this: both should have the same settings",
        ),
        (None, _) if link.local => Check::ok(name, "not encrypted, and local to this machine"),
        (None, _) => Check::warn(
            name,
            "not encrypted",
            "the rows of the outbox cross the network readable, and nothing proves that this is your server",
            "set sslmode=verify-full and sslrootcert in the address",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Outcome, Walsender};
    use super::*;
    use crate::lsn::Lsn;
    use crate::source::connection::SystemIdentity;

    fn identity() -> Identity {
        Identity {
            system_identifier: "1".into(),
            timeline: Some(1),
            flush_lsn: Lsn(1),
            database: "app".into(),
            database_oid: 5,
        }
    }

    fn walsender(system_identifier: &str, tls: bool) -> Replication {
        let identity = SystemIdentity {
            system_identifier: system_identifier.into(),
            timeline: 1,
            xlogpos: Lsn(1),
            dbname: "app".into(),
        };
        Ok(Walsender { identity, target: "db:5432".into(), tls })
    }

    fn outcomes(link: &Link, replication: &Replication) -> Vec<Outcome> {
        checks("db", "db:5432", link, &identity(), replication).iter().map(|check| check.outcome).collect()
    }

    #[test]
    fn both_connections_must_reach_the_same_server_with_the_same_encryption() {
        use Outcome::{Fail, Ok, Warn};
        let tls = Link { tls: Some("TLSv1.3".into()), local: false };
        let clear = Link { tls: None, local: false };
        let local = Link { tls: None, local: true };
        assert_eq!(outcomes(&tls, &walsender("1", true)), [Ok, Ok, Ok]);
        assert_eq!(outcomes(&tls, &walsender("2", true)), [Ok, Fail, Ok]);
        assert_eq!(outcomes(&tls, &walsender("1", false)), [Ok, Ok, Fail]);
        assert_eq!(outcomes(&clear, &walsender("1", false)), [Ok, Ok, Warn]);
        assert_eq!(outcomes(&local, &walsender("1", false)), [Ok, Ok, Ok]);
    }
}
