//! May the role do what a relay does? Replication was tried for real; attributes only explain a failure.

use super::{Check, Replication};
use crate::error_text::ErrorText as _;
use crate::names::quote_ident;
use crate::postgres::ErrorKind;
use crate::postgres::checkpoint::{Checkpoint, CheckpointError};
use crate::postgres::server::RoleFacts;

pub fn checks(
    role: &RoleFacts,
    replication: &Replication,
    record: &Result<Option<Checkpoint>, CheckpointError>,
) -> Vec<Check> {
    let mut checks = vec![replicate(role, replication)];
    checks.extend(read_table(role));
    checks.push(keep_record(role, record));
    // Without walpost's schema that is said already.
    if record.is_ok() {
        checks.push(park(role));
    }
    checks
}

fn replicate(role: &RoleFacts, replication: &Replication) -> Check {
    let name = "rights.replication";
    let sql = quote_ident(&role.name);
    let attributes = if role.superuser {
        "a superuser"
    } else if role.replication {
        "has REPLICATION"
    } else if role.replication_member {
        "member of the host's replication role"
    } else {
        "has no REPLICATION"
    };
    let error = match replication {
        Ok(_) => return Check::ok(name, format!("role {} may replicate ({attributes}; tried)", role.name)),
        Err(error) => error,
    };
    if !matches!(error.kind(), ErrorKind::NotPermitted | ErrorKind::Auth) {
        return Check::skip(name, "the replication connection failed for another reason; see connection.replication");
    }
    Check::fail(
        name,
        format!("role {} ({attributes}): {}", role.name, error.text()),
        "rows come over a replication connection, and over nothing else",
        if role.replication || role.superuser || role.replication_member {
            "the role has the right, so pg_hba.conf must refuse it: it needs a line for this database, role and address"
                .to_owned()
        } else {
            format!(
                "ALTER ROLE {sql} REPLICATION (Amazon RDS, Aurora: GRANT rds_replication TO {sql}; Cloud SQL, Azure: \
                the same ALTER ROLE, as the admin user)"
            )
        },
    )
}

/// Streaming does not read the table; what heals does.
fn read_table(role: &RoleFacts) -> Option<Check> {
    let name = "rights.table";
    let (usage, select) = (role.table_schema_usage?, role.table_select?);
    if usage && select {
        return Some(Check::ok(name, "USAGE on the table's schema, SELECT on the table"));
    }
    let missing = match (usage, select) {
        (false, false) => "USAGE on the table's schema and SELECT on the table",
        (false, true) => "USAGE on the table's schema",
        _ => "SELECT on the table",
    };
    Some(Check::warn(
        name,
        format!("no {missing}"),
        "streaming works without; only commands that read the table need it",
        format!("walpost setup --grants {}, as the owner of the table", quote_ident(&role.name)),
    ))
}

fn keep_record(role: &RoleFacts, record: &Result<Option<Checkpoint>, CheckpointError>) -> Check {
    let name = "rights.checkpoint";
    let off = "without the record, gap detection is off";
    let grants = format!("walpost setup --grants {}, as the owner of schema walpost", quote_ident(&role.name));
    match record {
        Ok(_) => match role.checkpoint_missing.as_deref() {
            None | Some([]) => Check::ok(name, "walpost.checkpoint can be read and written"),
            Some(missing) => Check::warn(name, format!("no {} on walpost.checkpoint", missing.join(", ")), off, grants),
        },
        Err(error @ (CheckpointError::NotSetUp { .. } | CheckpointError::Unversioned)) => {
            Check::warn(name, error.text(), off, "walpost setup")
        }
        Err(error @ CheckpointError::NotPermitted { .. }) => Check::warn(name, error.text(), off, grants),
        Err(error) => Check::fail(name, error.text(), off, "see the error"),
    }
}

fn park(role: &RoleFacts) -> Check {
    let name = "rights.parked";
    let off = "a message that cannot be sent stops the relay, because it cannot be parked";
    let grants = format!("walpost setup --grants {}, as the owner of schema walpost", quote_ident(&role.name));
    match role.parked_missing.as_deref() {
        Some([]) => Check::ok(name, "walpost.parked_messages can be read and written"),
        Some(missing) => {
            Check::warn(name, format!("no {} on walpost.parked_messages", missing.join(", ")), off, grants)
        }
        None => Check::warn(name, "there is no table walpost.parked_messages", off, "walpost setup"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Outcome, Walsender};
    use super::*;
    use crate::lsn::Lsn;
    use crate::source::connection::SystemIdentity;

    fn role() -> RoleFacts {
        RoleFacts {
            name: "Relay".into(),
            superuser: false,
            replication: true,
            bypass_row_security: false,
            replication_member: false,
            create_in_database: false,
            table_schema_usage: Some(true),
            table_select: Some(true),
            table_owner: Some(false),
            walpost_usage: Some(true),
            checkpoint_missing: Some(Vec::new()),
            parked_missing: Some(Vec::new()),
        }
    }

    fn tried() -> Replication {
        let identity =
            SystemIdentity { system_identifier: "1".into(), timeline: 1, xlogpos: Lsn(1), dbname: "app".into() };
        Ok(Walsender { identity, target: "db".into(), tls: true })
    }

    fn outcome(role: &RoleFacts, name: &str) -> (Outcome, String) {
        let checks = checks(role, &tried(), &Ok(None));
        let check = checks.into_iter().find(|check| check.name == name).unwrap();
        (check.outcome, format!("{} {}", check.saw, check.remedy))
    }

    #[test]
    fn an_attribute_that_is_missing_is_no_failure_when_it_works() {
        let managed = RoleFacts { replication: false, replication_member: true, ..role() };
        assert_eq!(outcome(&managed, "rights.replication").0, Outcome::Ok);
        let odd = RoleFacts { replication: false, ..role() };
        assert_eq!(outcome(&odd, "rights.replication").0, Outcome::Ok);
    }

    #[test]
    fn rights_that_only_healing_needs_are_a_warning_with_the_grant() {
        let (outcome_, text) = outcome(&RoleFacts { table_select: Some(false), ..role() }, "rights.table");
        assert_eq!(outcome_, Outcome::Warn);
        assert!(text.contains("--grants \"Relay\""), "{text}");
        let missing = RoleFacts { checkpoint_missing: Some(vec!["UPDATE".into()]), ..role() };
        let (outcome_, text) = outcome(&missing, "rights.checkpoint");
        assert_eq!(outcome_, Outcome::Warn);
        assert!(text.contains("no UPDATE"), "{text}");
        assert_eq!(outcome(&role(), "rights.checkpoint").0, Outcome::Ok);
        assert_eq!(outcome(&role(), "rights.parked").0, Outcome::Ok);
        for (missing, word) in [(Some(vec!["INSERT".into()]), "no INSERT"), (None, "there is no table")] {
            let (outcome_, text) = outcome(&RoleFacts { parked_missing: missing, ..role() }, "rights.parked");
            assert!(outcome_ == Outcome::Warn && text.contains(word), "{text}");
        }
    }

    #[test]
    fn without_a_table_its_rights_are_not_judged() {
        let none = RoleFacts { table_schema_usage: None, table_select: None, ..role() };
        assert!(checks(&none, &tried(), &Ok(None)).iter().all(|check| check.name != "rights.table"));
    }
}
