//! The classic polling outbox relay, made as fast as the form allows: the baseline that walpost replaces. The harness starts
//! itself again to become it, so that it is a process of its own without a build of its own.
//!
//! One transaction per batch: claim unpublished rows in id order, publish them, wait for every broker
//! acknowledgement, mark them published, commit. A full batch is followed at once by the next one; a short
//! one by a pause.

use std::{env, error::Error, time::Duration};

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio_postgres::NoTls;

fn setting(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// Polls until it fails. Settings are environment variables: DATABASE_URL, KAFKA_BOOTSTRAP_SERVERS, TABLE, BATCH (rows a
/// transaction), IDLE_MS (between looks when the table ran dry).
pub fn run() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(poll())
}

async fn poll() -> Result<(), Box<dyn Error>> {
    let table = setting("TABLE", "outbox_polled");
    let batch: i64 = setting("BATCH", "1000").parse()?;
    let idle = Duration::from_millis(setting("IDLE_MS", "100").parse()?);

    let dsn = env::var("DATABASE_URL")?;
    let (mut client, connection) = tokio_postgres::connect(&dsn, NoTls).await?;
    tokio::spawn(connection);

    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", setting("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092"))
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", setting("LINGER_MS", "1"))
        .set("compression.type", "lz4")
        .set("partitioner", "murmur2_random")
        .create()?;

    let claim = client
        .prepare(&format!(
            "select id, message_id::text, aggregate_id, event_type, payload::text from {table} \
             where published_at is null order by id limit $1 for update skip locked"
        ))
        .await?;
    let mark = client.prepare(&format!("update {table} set published_at = now() where id = any($1)")).await?;

    loop {
        let transaction = client.transaction().await?;
        let rows = transaction.query(&claim, &[&batch]).await?;
        if rows.is_empty() {
            transaction.commit().await?;
            tokio::time::sleep(idle).await;
            continue;
        }

        let mut ids = Vec::with_capacity(rows.len());
        let mut acknowledgements = Vec::with_capacity(rows.len());
        for row in &rows {
            ids.push(row.get::<_, i64>(0));
            let headers = OwnedHeaders::new_with_capacity(2)
                .insert(Header { key: "id", value: Some(row.get::<_, &str>(1)) })
                .insert(Header { key: "eventType", value: Some(row.get::<_, &str>(3)) });
            let record = FutureRecord::to("outbox.event.order")
                .key(row.get::<_, &str>(2))
                .payload(row.get::<_, &str>(4))
                .headers(headers);
            acknowledgements.push(producer.send_result(record).map_err(|(error, _)| error)?);
        }
        for acknowledgement in acknowledgements {
            acknowledgement.await?.map_err(|(error, _)| error)?;
        }

        transaction.execute(&mark, &[&ids]).await?;
        transaction.commit().await?;
        if rows.len() < batch as usize {
            tokio::time::sleep(idle).await;
        }
    }
}
