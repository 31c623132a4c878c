//! A blocking SQL connection for tests. `tokio_postgres` needs a runtime; the kit has one, on threads of its own.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, NoTls, SimpleQueryMessage};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
});

/// Runs a future to its end on the calling thread, its connections on the kit's.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.block_on(future)
}

pub struct Sql {
    pub client: Client,
}

impl Sql {
    #[track_caller]
    pub fn connect(url: &str) -> Sql {
        Sql::try_connect(url).unwrap_or_else(|error| panic!("no connection to {url}: {}", explain(&error)))
    }

    pub fn try_connect(url: &str) -> Result<Sql, Error> {
        let mut config: tokio_postgres::Config = url.parse()?;
        config.connect_timeout(Duration::from_secs(5)).application_name("walpost-tests");
        let (client, connection) = block_on(config.connect(NoTls))?;
        RUNTIME.spawn(connection);
        Ok(Sql { client })
    }

    /// Any number of statements, no results.
    #[track_caller]
    pub fn execute(&self, sql: &str) {
        self.try_execute(sql).unwrap_or_else(|error| panic!("{}\nin: {sql}", explain(&error)));
    }

    pub fn try_execute(&self, sql: &str) -> Result<(), Error> {
        block_on(self.client.batch_execute(sql))
    }

    /// The first column of the first row as text; panics without a row or with NULL.
    #[track_caller]
    pub fn value(&self, sql: &str) -> String {
        self.optional(sql).unwrap_or_else(|| panic!("no value: {sql}"))
    }

    /// The first column of the first row as text, None without a row or with NULL.
    #[track_caller]
    pub fn optional(&self, sql: &str) -> Option<String> {
        self.rows(sql).into_iter().next()?.into_iter().next()?
    }

    #[track_caller]
    pub fn number(&self, sql: &str) -> i64 {
        let value = self.value(sql);
        value.parse().unwrap_or_else(|_| panic!("{value:?} is not a whole number: {sql}"))
    }

    #[track_caller]
    pub fn is_true(&self, sql: &str) -> bool {
        self.optional(sql).as_deref() == Some("t")
    }

    /// All rows, all columns as text.
    #[track_caller]
    pub fn rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.try_rows(sql).unwrap_or_else(|error| panic!("{}\nin: {sql}", explain(&error)))
    }

    pub fn try_rows(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>, Error> {
        let row = |message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
            }
            _ => None,
        };
        Ok(block_on(self.client.simple_query(sql))?.into_iter().filter_map(row).collect())
    }

    pub fn try_execute_with(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        block_on(self.client.execute(sql, parameters))
    }
}

/// The server's own sentence, which the driver keeps in the cause.
pub fn explain(error: &Error) -> String {
    match error.as_db_error() {
        Some(server) => format!("{server} ({})", server.code().code()),
        None => format!("{error:?}"),
    }
}
