//! Making, moving and dropping a slot.

use super::place::*;
use std::time::{Duration, Instant};

use walpost::postgres::slot;

#[tokio::test]
async fn making_a_slot_gives_up_in_time_names_who_is_in_the_way_and_leaves_nothing() {
    let place = Place::new("blocked").await;
    let mut config = place.config.clone();
    config.application_name("the-culprit");
    let other = connect(&config).await;
    other.batch_execute("CREATE TABLE t (n int); BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
    let began = Instant::now();
    let error = slot::create(&place.client, place.version, &place.slot, Duration::from_millis(400)).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(matches!(error, slot::SlotError::Blocked { .. }), "{error:?}");
    assert!(error.to_string().contains("the-culprit"), "{error}");
    assert_eq!(slot::facts(&place.client, &place.slot).await.unwrap(), None);
    // The session is as it was.
    other.batch_execute("COMMIT").await.unwrap();
    let lsn = slot::create(&place.client, place.version, &place.slot, WITHIN).await.unwrap();
    let facts = slot::facts(&place.client, &place.slot).await.unwrap().unwrap();
    assert_eq!(facts.confirmed_flush_lsn, Some(lsn));
    assert_eq!((facts.plugin.as_deref(), facts.two_phase, facts.lost()), (Some("pgoutput"), false, None));
    assert_eq!(facts.failover, place.version >= slot::FAILOVER_SLOTS);
    assert!(facts.retained_bytes().is_some() && facts.lag_bytes().is_some());
    assert_eq!(facts.held_by(), None);
    let again = slot::create(&place.client, place.version, &place.slot, WITHIN).await.unwrap_err();
    assert_eq!(again.sqlstate(), Some("42710"));

    place.sql("INSERT INTO t VALUES (2)").await;
    let end = slot::advance(&place.client, &place.slot).await.unwrap();
    assert!(end > lsn);
    slot::drop(&place.client, &place.slot).await.unwrap();
    assert_eq!(slot::drop(&place.client, &place.slot).await.unwrap_err().sqlstate(), Some("42704"));
    assert_eq!(slot::facts(&place.client, &place.slot).await.unwrap(), None);
}
