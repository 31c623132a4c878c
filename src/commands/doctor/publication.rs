//! Does the publication carry every row and every mapped column of the outbox, and nothing that hurts others?

use super::Check;
use crate::names::quote_ident;
use crate::postgres::catalog::{PublicationFacts, RelationKind, TableFacts};
use crate::postgres::schema::altered_by_hand;
use crate::postgres::schema::{Plan, StepKind};

/// What the checks look at.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub name: &'a str,
    pub publication: Option<&'a PublicationFacts>,
    pub table: Option<&'a TableFacts>,
    /// The mapped columns; None: not known.
    pub columns: Option<&'a [String]>,
    /// Has the statements that mend what is missing.
    pub plan: Option<&'a Plan>,
}

pub fn checks(seen: &Seen<'_>) -> Vec<Check> {
    let name = quote_ident(seen.name);
    let Some(publication) = seen.publication else {
        return vec![Check::fail(
            "publication.exists",
            format!("there is no publication {name}"),
            "Postgres sends only what is published; up to 17 the stream breaks off, on 18 it stays silent",
            remedy(seen, "walpost setup"),
        )];
    };
    let mut checks = vec![Check::ok("publication.exists", format!("{name}, owner {}", publication.owner))];
    let Some(table) = seen.table else {
        checks.push(Check::skip("publication.table", "there is no table to look for in it"));
        return checks;
    };
    checks.push(covers(seen, publication, table, &name));
    if publication.covers() {
        checks.push(columns(seen, publication, &name));
        checks.push(row_filter(publication, table, &name));
        checks.push(via_root(publication, table, &name));
        checks.extend(children(publication, table, &name));
    }
    checks.push(inserts(seen, publication, &name));
    checks.push(others(publication, table, &name));
    checks
}

/// The statements of the plan for the publication, if it has some.
fn remedy(seen: &Seen<'_>, otherwise: &str) -> String {
    let steps = seen.plan.iter().flat_map(|plan| &plan.steps);
    let missing = steps.filter(|step| step.kind == StepKind::Publication && !step.done);
    let scripts: Vec<String> = missing.map(|step| step.script()).collect();
    if scripts.is_empty() { otherwise.to_owned() } else { format!("walpost setup, or:\n{}", scripts.join("\n")) }
}

fn covers(seen: &Seen<'_>, publication: &PublicationFacts, table: &TableFacts, name: &str) -> Check {
    let check = "publication.table";
    if publication.covers() {
        return Check::ok(check, format!("carries {}", table.sql()));
    }
    let carried: Vec<String> = publication.tables.iter().map(|table| table.sql()).collect();
    let saw = if carried.is_empty() { "no table".to_owned() } else { carried.join(", ") };
    Check::fail(
        check,
        format!("{name} does not carry {}; it carries {saw}", table.sql()),
        "no row of the outbox is sent, and no error says so; a table that was renamed or replaced stays published \
        under its new name",
        remedy(seen, "walpost setup"),
    )
}

fn columns(seen: &Seen<'_>, publication: &PublicationFacts, name: &str) -> Check {
    let check = "publication.columns";
    let Some(mapped) = seen.columns else { return Check::skip(check, "the mapping is not known") };
    let missing = publication.without(mapped);
    if missing.is_empty() {
        return Check::ok(check, "every mapped column");
    }
    Check::fail(
        check,
        format!("{name} leaves out {}", missing.join(", ")),
        "the rows come without them",
        remedy(seen, "add them to the column list of the publication"),
    )
}

fn row_filter(publication: &PublicationFacts, table: &TableFacts, name: &str) -> Check {
    let check = "publication.row_filter";
    match publication.row_filter() {
        None => Check::ok(check, "none: every row"),
        Some(filter) => Check::warn(
            check,
            format!("only rows for which {filter}"),
            "all others never reach Kafka; right for a shard, a loss otherwise",
            format!(
                "BEGIN; SET LOCAL lock_timeout = '5s'; LOCK TABLE {table} IN SHARE MODE; ALTER PUBLICATION {name} \
                DROP TABLE {table}; ALTER PUBLICATION {name} ADD TABLE {table}; COMMIT",
                table = table.sql()
            ),
        ),
    }
}

fn via_root(publication: &PublicationFacts, table: &TableFacts, name: &str) -> Check {
    let check = "publication.via_root";
    match (table.kind, publication.via_root) {
        (RelationKind::Partitioned, false) => Check::warn(
            check,
            "publish_via_partition_root = false",
            "each partition is sent under its own name: it works, as long as the publication carries the outbox alone",
            altered_by_hand(&format!("ALTER PUBLICATION {name} SET (publish_via_partition_root = true)")),
        ),
        (RelationKind::Partitioned, true) => Check::ok(check, "partitions are sent as the table itself"),
        _ => Check::ok(check, "the table is not partitioned"),
    }
}

/// Tables that inherit by hand, as chunks of time-series extensions: each must be published by itself.
fn children(publication: &PublicationFacts, table: &TableFacts, name: &str) -> Option<Check> {
    if table.children.is_empty() {
        return None;
    }
    let check = "publication.children";
    let missing: Vec<String> = (table.children.iter())
        .filter(|child| !publication.published.iter().any(|p| p.schema == child.schema && p.name == child.name))
        .map(|child| child.sql())
        .collect();
    Some(if missing.is_empty() || publication.all_tables {
        Check::ok(check, format!("all {} tables that inherit from it", table.children.len()))
    } else {
        Check::fail(
            check,
            format!("not in {name}: {}", missing.join(", ")),
            "rows that land in them are not sent",
            format!(
                "BEGIN; SET LOCAL lock_timeout = '5s'; LOCK TABLE {list} IN SHARE MODE; ALTER PUBLICATION {name} ADD \
                TABLE {list}; COMMIT",
                list = missing.join(", ")
            ),
        )
    })
}

fn inserts(seen: &Seen<'_>, publication: &PublicationFacts, name: &str) -> Check {
    let check = "publication.inserts";
    if publication.inserts {
        return Check::ok(check, "publishes inserts");
    }
    Check::fail(
        check,
        format!("{name} publishes no inserts"),
        "new rows are not sent, and no error says so",
        remedy(seen, "walpost setup"),
    )
}

/// What it publishes beyond the outbox's inserts.
fn others(publication: &PublicationFacts, table: &TableFacts, name: &str) -> Check {
    let check = "publication.only_inserts";
    let surplus = publication.surplus_operations();
    if let Some((saw, remedy)) = publication.shared() {
        return Check::fail(
            check,
            saw,
            "walpost does not stream from a publication that it shares with other tables",
            remedy,
        );
    }
    if surplus.is_empty() {
        return Check::ok(check, "inserts alone");
    }
    let no_identity = match table.replica_identity.as_str() {
        "n" => true,
        "d" => !table.has_primary_key,
        _ => false,
    };
    let identity = no_identity && (publication.updates || publication.deletes);
    let why = if identity {
        format!("{} has no replica identity, so UPDATE and DELETE on it fail for the application", table.sql())
    } else {
        "walpost relays inserts only; the rest is sent to be thrown away".to_owned()
    };
    let saw = format!("{name} also publishes {}", surplus.join(", "));
    let statement = altered_by_hand(&format!("ALTER PUBLICATION {name} SET (publish = 'insert')"));
    let remedy = format!("if nobody else reads it: {statement}");
    if identity { Check::fail(check, saw, why, remedy) } else { Check::warn(check, saw, why, remedy) }
}

#[cfg(test)]
#[path = "publication_tests.rs"]
mod tests;
