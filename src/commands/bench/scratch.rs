//! What the measurement makes: a table, a publication and a slot, a record, a topic; and how they go away again.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::BenchError;
use crate::commands::setup::{self, SetupOptions};
use crate::commands::teardown::{self, TeardownOptions};
use crate::config::{Config, OnPoison, Preset, TopicsCreate};
use crate::names::{quote_ident, statement_of};
use crate::postgres::catalog::CatalogError;
use crate::postgres::{Client, Connector};
use crate::sink::desk::Desk;

/// Of the scratch topic, where there are so many brokers.
const REPLICATION: usize = 3;
/// A relay that was told to stop may need its `shutdown.timeout`, and its walsender so much longer to notice.
const FREE_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// See the module. One name serves for all of it.
pub struct Scratch {
    config: Config,
    /// There was a schema `walpost` before.
    schema_was_there: bool,
}

impl Scratch {
    /// Chooses a name, and looks what is there already; makes nothing. The second value: slots of earlier measurements
    /// that were killed.
    pub async fn prepare(
        config: &Config,
        connector: &Connector,
        partitions: u16,
    ) -> Result<(Scratch, Vec<String>), BenchError> {
        let asked = config.clone();
        let brokers = tokio::task::spawn_blocking(move || {
            let desk = Desk::alone(&asked)?;
            desk.cluster().map_err(BenchError::NoBroker)
        });
        let brokers = brokers.await.expect("the look at the cluster does not panic")?.brokers;

        let session = connector.sql("walpost bench").await.map_err(Box::new)?;
        let client = &session.client;
        let read = |what| move |source| CatalogError::Read { what, source };
        let left = statement_of(include_str!("../../../sql/092_bench_left.sql"));
        let left = client.query(left.as_str(), &[]).await.map_err(read("the slots"))?;
        let there = statement_of(include_str!("../../../sql/093_bench_schema.sql"));
        let there = client.query_one(there.as_str(), &[]).await.map_err(read("the schemas"))?;

        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("walpost_bench_{:08x}", clock.subsec_nanos() ^ std::process::id().rotate_left(16));
        let mut config = config.clone();
        config.name.clone_from(&name);
        config.postgres.table.clone_from(&name);
        config.postgres.slot.clone_from(&name);
        config.postgres.publication.clone_from(&name);
        config.route.topic = name;
        config.preset = Some(Preset::Walpost);
        config.columns = Config::default().columns;
        // Of the user's own table.
        config.headers.columns.clear();
        config.http.listen = None;
        config.on_poison = OnPoison::Stop;
        if !matches!(config.topics.create, TopicsCreate::Create { .. }) {
            let replication = u16::try_from(brokers.clamp(1, REPLICATION)).unwrap_or(1);
            config.topics.create = TopicsCreate::Create { partitions: partitions.max(1), replication };
        }
        let schema_was_there = there.try_get(0).map_err(read("the schemas"))?;
        let left = left.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(read("the slots"))?;
        Ok((Scratch { config, schema_was_there }, left))
    }

    pub fn name(&self) -> &str {
        &self.config.postgres.slot
    }

    /// The settings of the relay.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Makes the table, the publication and the slot, and says so on standard error: a slot may have to wait for a
    /// transaction of somebody else.
    pub async fn make(&self, connector: &Connector) -> Result<(), BenchError> {
        let session = connector.sql("walpost bench").await.map_err(Box::new)?;
        let watcher = connector.sql("walpost bench").await.ok();
        let options = SetupOptions { create_table: true, ..SetupOptions::default() };
        setup::apply(&session.client, watcher.as_deref(), &self.config, &options, &mut std::io::stderr()).await?;
        Ok(())
    }

    /// Takes away what was made, or as much of it as there is: the slot first, because it holds the log.
    pub async fn clean(&self, connector: &Connector) -> Result<(), BenchError> {
        let name = || self.name().to_owned();
        let unreachable = |error| BenchError::Unreachable { name: name(), source: Box::new(error) };
        let session = connector.sql("walpost bench").await.map_err(unreachable)?;
        let client = &session.client;
        let torn = self.tear_down(client).await;
        let dropped = client.batch_execute(&format!("DROP TABLE IF EXISTS {}", quote_ident(self.name()))).await;
        if !self.schema_was_there {
            // Where it is not there, or not ours to drop, nothing was made in it.
            let statement = statement_of(include_str!("../../../sql/094_bench_schema_drop.sql"));
            if let Err(error) = client.batch_execute(&statement).await {
                tracing::debug!(%error, "schema walpost stays");
            }
        }
        let (config, topic) = (self.config.clone(), self.name().to_owned());
        let deleted = tokio::task::spawn_blocking(move || Desk::alone(&config).map(|desk| desk.delete(&topic))).await;
        if let Ok(Ok(Err(error))) = deleted {
            tracing::error!("the scratch topic {} could not be deleted: {error}; delete it by hand", self.name());
        }
        torn?;
        dropped.map_err(|source| BenchError::DropTable { name: name(), source })
    }

    async fn tear_down(&self, client: &Client) -> Result<(), BenchError> {
        let until = Instant::now() + self.config.shutdown.timeout + FREE_WITHIN;
        loop {
            let options = TeardownOptions { yes: true };
            match teardown::apply(client, &self.config, options, None, &mut std::io::sink()).await {
                Err(teardown::TeardownError::Active { .. }) if Instant::now() < until => {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                torn => return torn.map_err(|source| BenchError::Teardown { name: self.name().to_owned(), source }),
            }
        }
    }
}
