//! The writers of the measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at};

use super::BenchError;
use crate::lsn::Lsn;
use crate::names::{fill, quote_ident, statement_of};
use crate::postgres::catalog::CatalogError;
use crate::postgres::{Client, Connector, SqlError};

/// Rows of one statement of the backlog, so that progress is seen and a signal is heard.
const ROWS_AT_ONCE: u32 = 20_000;
/// What a row has around its text.
const FRAME_BYTES: u32 = 40;

/// What is written.
#[derive(Clone, Copy)]
pub struct Row {
    /// Of the payload, about.
    pub bytes: u32,
    pub keys: u32,
}

impl Row {
    fn text_bytes(self) -> i32 {
        i32::try_from(self.bytes.saturating_sub(FRAME_BYTES).max(1)).unwrap_or(i32::MAX)
    }
}

/// The scratch table, and what goes into it.
pub struct Load<'a> {
    pub connector: &'a Connector,
    pub table: &'a str,
    pub row: Row,
}

/// What was written at a steady rate.
pub struct Written {
    pub rows: u64,
    pub took: Duration,
}

/// What was written at once.
pub struct WrittenAtOnce {
    pub wal_bytes: u64,
}

impl Load<'_> {
    /// Writes rows as fast as they go, and tells how many there are.
    pub async fn backlog(
        &self,
        rows: u32,
        rows_per_commit: u32,
        mut told: impl FnMut(u64),
    ) -> Result<WrittenAtOnce, BenchError> {
        let session = self.connector.sql("walpost bench").await.map_err(Box::new)?;
        let before = end_of_log(&session.client).await?;
        let per_commit = rows_per_commit.max(1);
        // A statement ends with a transaction.
        let at_once = ROWS_AT_ONCE.div_ceil(per_commit).saturating_mul(per_commit);
        let mut first = 1;
        while first <= rows {
            let last = rows.min(first.saturating_add(at_once - 1));
            let table = quote_ident(self.table);
            let numbers = [first, last, per_commit, self.row.keys.max(1)].map(|number| number.to_string());
            let words = [
                ("outbox_messages", table.as_str()),
                ("first_row", &numbers[0]),
                ("last_row", &numbers[1]),
                ("rows_per_commit", &numbers[2]),
                ("key_count", &numbers[3]),
                ("text_bytes", &self.row.text_bytes().to_string()),
            ];
            let statement = fill(include_str!("../../../sql/090_bench_backlog.sql"), &words);
            session.client.batch_execute(&statement).await.map_err(BenchError::Write)?;
            told(last.into());
            first = last + 1;
        }
        Ok(WrittenAtOnce { wal_bytes: end_of_log(&session.client).await?.bytes_since(before) })
    }

    /// Commits one row after the other, `rate` a second over all `writers`, for so long. A writer that falls behind
    /// catches up as fast as it can.
    pub async fn steady(&self, rate: u32, writers: u32, time: Duration) -> Result<Written, BenchError> {
        let writers = writers.clamp(1, rate.max(1));
        let statement =
            fill(include_str!("../../../sql/091_bench_row.sql"), &[("outbox_messages", &quote_ident(self.table))]);
        let (statement, rows) = (Arc::<str>::from(statement), Arc::new(AtomicU64::new(0)));
        let mut sessions = Vec::new();
        for _ in 0..writers {
            sessions.push(self.connector.sql("walpost bench").await.map_err(Box::new)?);
        }
        let started = Instant::now();
        let mut tasks: JoinSet<Result<(), SqlError>> = JoinSet::new();
        let every = Duration::from_secs(1) * writers / rate.max(1);
        for (index, session) in (0..).zip(sessions) {
            let (statement, rows, row) = (statement.clone(), rows.clone(), self.row);
            // One after the other: all at once would be a burst.
            let first = tokio::time::Instant::now() + every * index / writers;
            tasks.spawn(async move {
                let insert = session.client.prepare(&statement).await?;
                let mut pace = interval_at(first, every);
                pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
                while started.elapsed() < time {
                    pace.tick().await;
                    let number = rows.fetch_add(1, Ordering::Relaxed).cast_signed();
                    session.client.execute(&insert, &[&number, &i64::from(row.keys.max(1)), &row.text_bytes()]).await?;
                }
                Ok(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            // A task that panicked has ended the process.
            ended.unwrap_or(Ok(())).map_err(BenchError::Write)?;
        }
        Ok(Written { rows: rows.load(Ordering::Relaxed), took: started.elapsed() })
    }
}

/// Written, flushed or not: the backlog is not flushed by its commits.
async fn end_of_log(client: &Client) -> Result<Lsn, CatalogError> {
    let what = "the end of the log";
    let read = |source| CatalogError::Read { what, source };
    let statement = statement_of(include_str!("../../../sql/095_bench_log.sql"));
    let row = client.query_one(statement.as_str(), &[]).await.map_err(read)?;
    let text: String = row.try_get(0).map_err(read)?;
    text.parse().map_err(|source| CatalogError::Lsn { what, source })
}
