//! `teardown`: what it refuses, asks, drops and keeps.

use super::place::*;
use std::time::Instant;

use walpost::commands::setup::SetupOptions;
use walpost::commands::teardown::TeardownError;
use walpost::lsn::Lsn;
use walpost::postgres::checkpoint;
use walpost::postgres::{Connector, slot};
use walpost::source::connection::Connection;

#[tokio::test]
async fn teardown_refuses_a_slot_in_use_and_asks_before_it_drops() {
    let place = Place::new("teardown").await;
    place.setup(create_table()).await;
    let connector = Connector::new(&place.settings().postgres).unwrap();
    let connection = Connection::connect(&connector, "the-relay").await.unwrap();
    let stream = connection.start_replication(&place.slot, "walpost", Lsn::INVALID).await.unwrap();
    let (result, _) = place.teardown(true, None).await;
    let error = result.unwrap_err();
    assert!(matches!(&error, TeardownError::Active { holder, .. } if holder.contains("the-relay")), "{error:?}");
    stream.finish().await.unwrap();
    let began = Instant::now();
    while slot::facts(&place.client, &place.slot).await.unwrap().unwrap().active {
        assert!(began.elapsed() < WITHIN);
    }
    assert!(matches!(place.teardown(false, None).await.0, Err(TeardownError::NotConfirmed)));
    assert!(matches!(place.teardown(false, Some("yes\n")).await.0, Err(TeardownError::Declined)));
    assert!(place.slot_at().await.is_some());
    let (result, said) = place.teardown(false, Some(&format!("{}\n", place.slot))).await;
    result.unwrap();
    assert!(said.contains("publication walpost: dropped"), "{said}");
    assert_eq!(place.slot_at().await, None);
    assert_eq!(checkpoint::read(&place.client, &place.slot).await.unwrap(), None);
    assert!(place.teardown(true, None).await.1.contains("nothing to tear down"));
    // The end is a new beginning: nothing is lost that anybody still waits for.
    place.setup(SetupOptions::default()).await;
    place.clean_up().await;
}

#[tokio::test]
async fn teardown_keeps_a_publication_that_serves_others() {
    let place = Place::new("shared").await;
    place.setup(create_table()).await;
    place
        .sql(
            "CREATE TEMP TABLE shard AS SELECT * FROM walpost.checkpoint;
             UPDATE shard SET slot_name = 'shard_2';
             INSERT INTO walpost.checkpoint SELECT * FROM shard",
        )
        .await;
    let (result, said) = place.teardown(true, None).await;
    result.unwrap();
    assert!(said.contains("kept, because it serves slot shard_2 too"), "{said}");
    place
        .sql("DELETE FROM walpost.checkpoint; CREATE TABLE other (id int); ALTER PUBLICATION walpost ADD TABLE other")
        .await;
    let (result, said) = place.teardown(true, None).await;
    result.unwrap();
    assert!(said.contains("nothing to tear down"), "{said}");
    assert_eq!(place.one("SELECT count(*)::text FROM pg_publication").await, "1");
}
