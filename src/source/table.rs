//! Rows of the outbox, read from the table in one snapshot. They are printed in the text forms of the stream and become the
//! same [`Row`]s, because they come over a connection of the same kind: a walsender, which can also make a slot in the
//! transaction that then reads. So the snapshot *is* the slot's consistent point, and no second session has to be kept open
//! for it.
//!
//! A cursor gives a thousand rows at a time, and they are read from the socket one by one: memory is bounded by the largest
//! row.

use std::sync::Arc;

use bytes::Bytes;

use crate::lsn::Lsn;
use crate::postgres::Connector;
use crate::postgres::error::{ConnectError, Failure};
use crate::source::connection::Connection;
use crate::source::protocol::{self, ProtocolError};
use crate::source::{Relation, Row, Value};

const ROWS_A_FETCH: usize = 1_000;
const CURSOR: &str = "walpost_rows";

/// Reads one table in one transaction at a time. An error leaves it good for nothing but being dropped.
pub struct TableReader {
    connection: Connection,
    /// Of the server process, for whoever has to end it.
    pid: Option<i32>,
    cursor: Option<Cursor>,
}

struct Cursor {
    relation: Arc<Relation>,
    state: State,
    /// Rows of the fetch that is under way.
    taken: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Fetching,
    Ended,
}

/// A row, and what was asked for beside it.
#[derive(Clone, Debug)]
pub struct TableRow {
    pub row: Row,
    /// The value of the column behind those of the relation, a boolean; false where none was asked for.
    pub marked: bool,
}

impl TableReader {
    /// Connects. The server process ends within seconds when this side is gone, also while it waits for others to end their
    /// transactions (where the server's platform can look for that).
    pub async fn connect(connector: &Connector, application_name: &str) -> Result<TableReader, ConnectError> {
        let mut connection = Connection::connect(connector, application_name).await?;
        let _ = connection.simple_query("SET client_connection_check_interval = '2s'").await;
        // A replication command does not start the server's clock for that check, a query does, and it runs on.
        let rows = connection.simple_query("SELECT pg_backend_pid()").await?;
        let pid = rows.into_iter().flatten().next().flatten();
        Ok(TableReader { connection, pid: pid.and_then(|pid| pid.parse().ok()), cursor: None })
    }

    /// Of the server process.
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// `170011` for 17.11.
    pub fn server_version(&self) -> u32 {
        self.connection.server_version()
    }

    /// Begins a read-only transaction. Its snapshot is taken by what comes first: a slot, or rows. Rather an error than
    /// fewer rows, where row security would leave some out.
    pub async fn begin(&mut self) -> Result<(), ConnectError> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL row_security = off";
        self.connection.simple_query(begin).await.map(|_| ())
    }

    /// Ends it.
    pub async fn end(&mut self) -> Result<(), ConnectError> {
        self.cursor = None;
        self.connection.simple_query("ROLLBACK").await.map(|_| ())
    }

    /// Makes a slot, first of all in a transaction, which then sees what commits before the slot's consistent point: that is
    /// returned. What commits after it is what the slot will send. The slot outlives the transaction, however that ends.
    ///
    /// Waits for every transaction that is open at that moment, as long as it takes.
    pub async fn create_slot(&mut self, slot: &str) -> Result<Lsn, ConnectError> {
        let command = protocol::create_slot_with_snapshot(slot, self.connection.server_version());
        let rows = self.connection.simple_query(&command).await?;
        let text = rows.into_iter().next().and_then(|row| row.into_iter().nth(1)).flatten().unwrap_or_default();
        text.parse().map_err(|_| {
            let odd = ProtocolError::Other(format!("the new slot has no consistent point but {text:?}"));
            self.connection.failed(&command, Failure::from(odd))
        })
    }

    /// Opens the rows of `select`, whose columns are those of `relation`, and then at most one boolean. Fails where the role
    /// may not read the table.
    pub async fn open(&mut self, select: &str, relation: Arc<Relation>) -> Result<(), ConnectError> {
        let declare = format!("DECLARE {CURSOR} NO SCROLL CURSOR FOR {select}");
        self.connection.simple_query(&declare).await?;
        self.cursor = Some(Cursor { relation, state: State::Idle, taken: 0 });
        Ok(())
    }

    /// All rows were taken.
    pub fn is_at_end(&self) -> bool {
        self.cursor.as_ref().is_none_or(|cursor| cursor.state == State::Ended)
    }

    /// [`TableReader::row`] has to be preceded by [`TableReader::fetch`].
    pub fn wants_fetch(&self) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.state == State::Idle)
    }

    /// Asks for the next rows. Does not wait for them, and must not be cancelled.
    pub async fn fetch(&mut self) -> Result<(), ConnectError> {
        let Some(cursor) = self.cursor.as_mut().filter(|cursor| cursor.state == State::Idle) else { return Ok(()) };
        (cursor.state, cursor.taken) = (State::Fetching, 0);
        let sent = self.connection.send_query(&format!("FETCH FORWARD {ROWS_A_FETCH} FROM {CURSOR}")).await;
        sent.map_err(|failure| self.reading(failure))
    }

    /// The next row of what was asked for; None when there is no more of it. Cancel-safe.
    pub async fn row(&mut self) -> Result<Option<TableRow>, ConnectError> {
        let Some(cursor) = self.cursor.as_mut().filter(|cursor| cursor.state == State::Fetching) else {
            return Ok(None);
        };
        let row = match self.connection.data_row().await {
            Ok(Some(body)) => table_row(body, &cursor.relation),
            Ok(None) => {
                cursor.state = if cursor.taken < ROWS_A_FETCH { State::Ended } else { State::Idle };
                return Ok(None);
            }
            Err(failure) => Err(failure),
        };
        cursor.taken += 1;
        row.map(Some).map_err(|failure| self.reading(failure))
    }

    fn reading(&self, failure: Failure) -> ConnectError {
        let table = self.cursor.as_ref().map(|cursor| &cursor.relation);
        let name = table.map_or(String::new(), |relation| format!(" of {}.{}", relation.schema, relation.name));
        self.connection.failed(&format!("reading the rows{name}"), failure)
    }
}

fn table_row(body: Bytes, relation: &Arc<Relation>) -> Result<TableRow, Failure> {
    let mut values = protocol::data_row_values(&body)?;
    let columns = relation.columns.len();
    if values.len() < columns {
        let text = format!("a row has {} values for {columns} columns", values.len());
        return Err(ProtocolError::Other(text).into());
    }
    let mark = values.drain(columns..).next();
    let marked = match mark {
        Some(Value::Text(range)) => body.get(range) == Some(b"t"),
        Some(Value::Null) | None => false,
    };
    Ok(TableRow { row: Row { relation: Arc::clone(relation), frame: body, values }, marked })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Column;

    fn body(values: &[Option<&str>]) -> Bytes {
        let mut body = u16::try_from(values.len()).unwrap().to_be_bytes().to_vec();
        for value in values {
            body.extend(value.map_or(-1, |value| i32::try_from(value.len()).unwrap()).to_be_bytes());
            body.extend(value.unwrap_or_default().as_bytes());
        }
        body.into()
    }

    fn relation(columns: &[&str]) -> Arc<Relation> {
        let column = |name: &&str| Column { name: (*name).to_owned(), type_oid: 25, key: false };
        let columns = columns.iter().map(column).collect();
        Arc::new(Relation { oid: 1, schema: "public".into(), name: "outbox".into(), columns })
    }

    #[test]
    fn a_row_has_the_values_of_its_columns_and_its_mark() {
        let relation = relation(&["a", "b"]);
        let read = table_row(body(&[Some("x"), None, Some("t")]), &relation).unwrap();
        assert_eq!((read.row.text(0).as_deref(), read.row.text(1)), (Some(&b"x"[..]), None));
        assert_eq!((read.row.values.len(), read.marked), (2, true));
        assert!(!table_row(body(&[None, None, Some("f")]), &relation).unwrap().marked);
        assert!(!table_row(body(&[None, None]), &relation).unwrap().marked);
        assert!(table_row(body(&[None]), &relation).is_err());
    }
}
