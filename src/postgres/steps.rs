//! Runs the steps of a plan, each in a transaction of its own. Where setup changes the publication itself, the record
//! goes along in the same transaction: no row is lost by that, so it must not look like a change that somebody else
//! made.

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::catalog::{self, TableFacts};
use super::schema::{Step, StepKind};
use crate::names::{quote_ident, statement_of};

/// A step failed, and nothing of it was done.
#[derive(Debug, thiserror::Error)]
#[error("could not make {title}{remedy}")]
pub struct StepError {
    pub title: String,
    /// Begins with a colon, or is empty.
    pub remedy: &'static str,
    pub source: tokio_postgres::Error,
}

impl StepError {
    /// Postgres' code for the failure, where it answered.
    pub fn sqlstate(&self) -> Option<&str> {
        self.source.code().map(|code| code.code())
    }
}

/// The record whose fingerprint follows a change that setup makes itself.
#[derive(Clone, Copy, Debug)]
pub struct Follow<'a> {
    pub slot: &'a str,
    /// The record's fingerprint as it was; a record that has another one by now is left alone.
    pub fingerprint: &'a str,
    pub publication: &'a str,
    pub table: &'a TableFacts,
    /// The server's.
    pub version: u32,
}

/// Runs the statements of a step. The client must not be in a transaction.
pub async fn run(client: &Client, step: &Step, follow: Option<Follow<'_>>) -> Result<(), StepError> {
    let run = async {
        client.batch_execute("BEGIN").await?;
        client.batch_execute(&step.sql).await?;
        if let Some(follow) = follow {
            follow.run(client).await?;
        }
        client.batch_execute("COMMIT").await
    };
    let Err(source) = run.await else { return Ok(()) };
    // The session may be gone with the error; what matters is the error.
    let _ = client.batch_execute("ROLLBACK").await;
    let remedy = remedy(step.kind, source.code().map(|code| code.code()));
    Err(StepError { title: step.title.clone(), remedy, source })
}

/// Drops a publication.
pub async fn drop_publication(client: &Client, name: &str) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(&format!("DROP PUBLICATION {}", quote_ident(name))).await
}

impl Follow<'_> {
    async fn run(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let statement = statement_of(include_str!("../../sql/045_checkpoint_follow.sql"))
            .replace("{fingerprint}", &catalog::fingerprint_expression(self.version));
        let params: [(&(dyn ToSql + Sync), Type); 5] = [
            (&self.publication, Type::TEXT),
            (&self.table.schema, Type::TEXT),
            (&self.table.name, Type::TEXT),
            (&self.slot, Type::TEXT),
            (&self.fingerprint, Type::TEXT),
        ];
        client.execute_typed(&statement, &params).await.map(|_| ())
    }
}

fn remedy(kind: StepKind, sqlstate: Option<&str>) -> &'static str {
    match (kind, sqlstate) {
        (StepKind::Publication, Some("42501")) => {
            ": the role must own the table and the publication, and have CREATE on the database; run setup as the \
            owner, or `walpost setup --print` and hand the SQL over"
        }
        (StepKind::Table | StepKind::Schema, Some("42501")) => {
            ": the role must have CREATE on the database or schema; run setup as the owner, or `walpost setup \
            --print` and hand the SQL over"
        }
        (StepKind::Grants, Some("42501")) => {
            ": only the owners of the table and of schema walpost can grant rights on them"
        }
        (StepKind::Publication, Some("55P03")) => {
            ": the table was in use for longer than setup waits, because writers queue behind it meanwhile; end long \
            transactions on it, or try again"
        }
        _ => "",
    }
}
