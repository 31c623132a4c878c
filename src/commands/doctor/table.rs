//! Is the outbox there, are its rows in the WAL, and do the settings find their columns?

use super::Check;
use crate::error_text::ErrorText as _;
use crate::names::{TableName, quote_ident};
use crate::postgres::catalog::{Generated, TableFacts, TableLookup};
use crate::postgres::schema::{self, ColumnsError};
use crate::postgres::server::RoleFacts;

/// The first version whose publications can carry stored generated columns.
const GENERATED_COLUMNS: u32 = 180_000;

pub fn checks(
    name: &Result<TableName, String>,
    lookup: Option<&TableLookup>,
    mapped: Option<&Result<Vec<String>, ColumnsError>>,
    role: &RoleFacts,
    version: u32,
) -> Vec<Check> {
    let (name, lookup) = match (name, lookup) {
        (Ok(name), Some(lookup)) => (name, lookup),
        (Err(error), _) => {
            return vec![Check::fail("table.name", error.clone(), "no such table can exist", "mend postgres.table")];
        }
        (Ok(_), None) => return vec![Check::skip("table.exists", "the catalog was not read")],
    };
    let table = match schema::usable(name, lookup) {
        Ok(table) => table,
        Err(problem) => {
            let (saw, remedy) = problem.parts();
            return vec![Check::fail("table.exists", saw, "its rows do not reach the write-ahead log", remedy)];
        }
    };
    let rows = match table.estimated_rows {
        rows if rows >= 0 => format!("about {rows} rows"),
        _ => "never counted".to_owned(),
    };
    let mut checks = vec![Check::ok("table.exists", format!("{}, owner {}, {rows}", table.sql(), table.owner))];
    match mapped {
        Some(Ok(columns)) => {
            checks.push(Check::ok("table.mapping", format!("mapped columns: {}", columns.join(", "))));
            checks.extend(generated(table, columns, version));
        }
        Some(Err(error)) => checks.push(Check::fail(
            "table.mapping",
            error.text(),
            "walpost would not know what to publish",
            "name the columns under [columns], or set preset",
        )),
        None => {}
    }
    checks.extend(row_security(table, role));
    checks
}

fn generated(table: &TableFacts, mapped: &[String], version: u32) -> Option<Check> {
    let name = "table.generated";
    let of = |wanted| {
        (table.columns.iter())
            .filter(|column| column.generated == wanted && mapped.contains(&column.name))
            .map(|column| quote_ident(&column.name))
            .collect::<Vec<_>>()
    };
    let (stored, computed) = (of(Generated::Stored), of(Generated::Virtual));
    let unpublished = if version >= GENERATED_COLUMNS { computed } else { stored };
    (!unpublished.is_empty()).then(|| {
        Check::fail(
            name,
            format!("mapped, and generated: {}", unpublished.join(", ")),
            "Postgres does not send such columns (stored ones from 18 on), so the rows come without them",
            "map a plain column, or fill a plain one in the INSERT",
        )
    })
}

/// Streaming is not subject to row security; a SELECT that silently leaves rows out is.
fn row_security(table: &TableFacts, role: &RoleFacts) -> Option<Check> {
    let hidden = table.row_security && !role.bypass_row_security && role.table_owner != Some(true);
    hidden.then(|| {
        Check::warn(
            "table.row_security",
            format!("row security is on for {}", table.sql()),
            "streaming is not affected, but whoever reads the table to publish rows again sees only a part of it",
            format!("ALTER ROLE {} BYPASSRLS, or run those as the owner of the table", quote_ident(&role.name)),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;
    use crate::config::Preset;
    use crate::postgres::catalog::Persistence;

    fn role() -> RoleFacts {
        serde_json::from_str(
            r#"{"name":"relay","superuser":false,"replication":true,"bypass_row_security":false,
                "replication_member":false,"create_in_database":false,"table_schema_usage":true,"table_select":true,
                "table_owner":false,"walpost_usage":true,"checkpoint_missing":[],"parked_missing":[]}"#,
        )
        .unwrap()
    }

    fn judged(change: impl FnOnce(&mut TableFacts), version: u32) -> Vec<Check> {
        let mut table = schema::preset_table(Preset::Walpost);
        change(&mut table);
        let mapped = Ok(table.columns.iter().map(|column| column.name.clone()).collect());
        let name = TableName { schema: None, name: "outbox_messages".into() };
        checks(&Ok(name), Some(&TableLookup::Found(Box::new(table))), Some(&mapped), &role(), version)
    }

    fn failing(checks: &[Check]) -> Vec<&'static str> {
        checks.iter().filter(|check| check.outcome != Outcome::Ok).map(|check| check.name).collect()
    }

    #[test]
    fn a_plain_table_is_in_order() {
        assert_eq!(failing(&judged(|_| (), 170_000)), Vec::<&str>::new());
    }

    #[test]
    fn a_table_outside_the_wal_fails_with_the_statement_that_mends_it() {
        let checks = judged(|table| table.persistence = Persistence::Unlogged, 170_000);
        assert_eq!(failing(&checks), ["table.exists"]);
        assert!(checks[0].remedy.contains("SET LOGGED"), "{checks:?}");
    }

    #[test]
    fn generated_columns_fail_where_the_version_does_not_send_them() {
        let stored = |table: &mut TableFacts| table.columns[2].generated = Generated::Stored;
        assert_eq!(failing(&judged(stored, 170_000)), ["table.generated"]);
        assert_eq!(failing(&judged(stored, 180_000)), Vec::<&str>::new());
        let computed = |table: &mut TableFacts| table.columns[2].generated = Generated::Virtual;
        assert_eq!(failing(&judged(computed, 180_000)), ["table.generated"]);
    }

    #[test]
    fn row_security_is_a_warning_for_those_it_hides_rows_from() {
        assert_eq!(failing(&judged(|table| table.row_security = true, 170_000)), ["table.row_security"]);
    }

    #[test]
    fn a_name_that_is_none_is_said_first() {
        let checks = checks(&Err("bad".into()), None, None, &role(), 170_000);
        assert_eq!(failing(&checks), ["table.name"]);
    }
}
