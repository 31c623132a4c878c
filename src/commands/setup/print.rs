//! `setup --print`: the plan as SQL for a migration. Nothing is touched.

use std::io::Write;

use super::{Found, OLDEST_VERSION, SetupError, SetupOptions};
use crate::config::{Config, Preset};
use crate::names::TableName;
use crate::postgres::schema::{self, Plan, Present, StepKind, Wanted};

/// Writes the plan as SQL.
pub(super) fn print(
    found: &Found,
    config: &Config,
    options: &SetupOptions,
    name: &TableName,
    out: &mut (dyn Write + Send),
) -> Result<(), SetupError> {
    writeln!(out, "-- walpost setup, for PostgreSQL {}", found.server.version_text)?;
    write_plan(&found.plan(config, options, name)?, out)
}

/// Writes the plan for a database that nothing is known of: every step, in a form that PostgreSQL 14 to 18 take.
pub fn print_unseen(config: &Config, options: &SetupOptions, out: &mut (dyn Write + Send)) -> Result<(), SetupError> {
    let name = TableName::parse(&config.postgres.table)?;
    let wanted = Wanted {
        table: &name,
        publication: &config.postgres.publication,
        slot: &config.postgres.slot,
        columns: None,
        create_table: options.create_table.then(|| config.preset.unwrap_or(Preset::Walpost)),
        grants: options.grants.as_deref(),
    };
    let present = Present {
        version: OLDEST_VERSION,
        table: None,
        publication: None,
        slot: None,
        schema_version: None,
        current_schema: "public",
    };
    writeln!(out, "-- walpost setup, for an empty database of PostgreSQL 14 or later: no server was looked at")?;
    write_plan(&schema::plan(&wanted, &present), out)
}

fn write_plan(plan: &Plan, out: &mut (dyn Write + Send)) -> Result<(), SetupError> {
    for step in &plan.steps {
        if step.done {
            writeln!(out, "\n-- {}: is there", one_line(&step.title))?;
            continue;
        }
        writeln!(out, "\n-- {}", one_line(&step.title))?;
        if step.kind == StepKind::Slot {
            writeln!(
                out,
                "-- Run this on its own, after the above has committed: a transaction that has written cannot make a \
                slot."
            )?;
            writeln!(out, "-- The first `walpost run` takes the slot over and writes its record.")?;
        }
        writeln!(out, "{}", step.script())?;
    }
    for note in &plan.notes {
        writeln!(out, "\n-- note: {}", one_line(note))?;
    }
    Ok(())
}

/// A name with a line break must not end a comment.
pub(super) fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::schema::Step;

    #[test]
    fn a_line_break_in_a_name_does_not_leave_its_comment() {
        let title = "table \"a\n; DROP TABLE b\"".to_owned();
        let step = Step { kind: StepKind::Table, title, sql: "SELECT 1;".into(), transaction: false, done: false };
        let mut out = Vec::new();
        write_plan(&Plan { steps: vec![step], notes: vec!["x\ny".into()] }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let code: Vec<&str> = text.lines().filter(|line| !line.starts_with("--") && !line.is_empty()).collect();
        assert_eq!(code, ["SELECT 1;"]);
    }
}
