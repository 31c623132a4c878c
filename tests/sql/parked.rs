//! `walpost.parked_messages`: queues by topic and key, worked off in order, up to the first message that waits for a person.

use bytes::Bytes;
use walpost::lsn::Lsn;
use walpost::parking::reference::{self, Reference};
use walpost::parking::{Aside, Position, Standing, Unit};
use walpost::postgres::parked::{self, Lot, Outcome, Wish};
use walpost::router::Header;

use super::place::*;

fn aside(commit_lsn: u64, ordinal: u32, key: &'static str, parked: bool) -> Aside {
    Aside {
        position: Position { commit_lsn: Lsn(commit_lsn), ordinal },
        message_id: Some(format!("{key}-{commit_lsn}-{ordinal}")),
        topic: Some("orders".into()),
        key: Some(Bytes::from_static(key.as_bytes())),
        value: Some(Bytes::from_static(b"\x00\xffvalue")),
        headers: vec![Header { name: "h".into(), value: Some("\"ü\"".into()) }],
        row: None,
        standing: match parked {
            true => Standing::Parked { reason: "too_large".into(), error: "a\0b".into() },
            false => Standing::Waiting,
        },
    }
}

fn unit(key: &'static str) -> Unit {
    Unit { topic: "orders".into(), key: Bytes::from_static(key.as_bytes()) }
}

async fn lot(place: &Place) -> Lot {
    place.set_up().await;
    let system_identifier = place.identity().await.system_identifier;
    Lot { slot: place.slot.clone(), system_identifier, epoch: 7, holder: None }
}

#[tokio::test]
async fn what_is_parked_twice_is_there_once_and_queues_have_heads() {
    let place = Place::new("parked").await;
    let lot = lot(&place).await;
    let asides = [aside(100, 1, "a", true), aside(100, 2, "a", false), aside(90, 0, "b", true)];
    let (added, flushed) = lot.park(&place.client, &asides).await.unwrap();
    assert_eq!((added.messages, added.bytes), (3, 21));
    assert!(flushed > Lsn::INVALID);
    let (again, _) = lot.park(&place.client, &asides).await.unwrap();
    assert_eq!(again.messages, 0);
    // The same place in another history is another row.
    let mut other = aside(100, 1, "a", true);
    other.message_id = Some("another".into());
    assert_eq!(lot.park(&place.client, &[other]).await.unwrap().0.messages, 1);

    let queues = lot.load(&place.client).await.unwrap();
    assert_eq!((queues.messages(), queues.bytes(), queues.units()), (4, 28, 2));
    let (topic, key) = ("orders".into(), Bytes::from_static(b"a"));
    let at = |commit_lsn, ordinal| Position { commit_lsn: Lsn(commit_lsn), ordinal };
    assert!(queues.holds(&topic, Some(&key), at(100, 2)) && !queues.holds(&topic, Some(&key), at(100, 0)));
    // After a restore the positions of the old server mean nothing.
    let elsewhere = Lot { system_identifier: "1".into(), ..lot.clone() };
    assert!(elsewhere.load(&place.client).await.unwrap().holds(&topic, Some(&key), at(1, 0)));
    let others = Lot { slot: "other".into(), ..lot };
    assert!(others.load(&place.client).await.unwrap().is_empty());
    place.clean_up().await;
}

#[tokio::test]
async fn a_queue_is_worked_off_up_to_the_first_message_that_waits_for_a_person() {
    let place = Place::new("parked_work").await;
    let lot = lot(&place).await;
    let mut keyless = aside(50, 0, "", true);
    keyless.key = None;
    let asides = [
        aside(100, 0, "a", true),
        aside(110, 0, "a", false),
        aside(120, 0, "a", true),
        aside(130, 0, "a", false),
        aside(100, 1, "b", true),
        keyless,
    ];
    lot.park(&place.client, &asides).await.unwrap();
    let lsns = |work: &[parked::Work]| work.iter().map(|work| work.position.commit_lsn.0).collect::<Vec<_>>();
    assert_eq!(lsns(&lot.work(&place.client).await.unwrap()), [0; 0]);

    let listed = parked::list(&place.client, &lot.slot, false, 100).await.unwrap();
    assert_eq!(listed.iter().map(|message| message.behind).collect::<Vec<_>>(), [2, 2, 0, 0]);
    assert_eq!(listed[0].error, "a\u{fffd}b");
    let id = |key: &str| listed.iter().find(|message| message.message_id == key).unwrap().id;
    let first = id("a-100-0");
    assert_eq!(parked::wish(&place.client, &lot.slot, "retry", &[first], false).await.unwrap(), [first]);
    assert_eq!(parked::wish(&place.client, &lot.slot, "retry", &[first], false).await.unwrap(), [0; 0]);
    let work = lot.work(&place.client).await.unwrap();
    assert_eq!(lsns(&work), [100, 110]);
    assert_eq!((work[0].wish, work[0].epoch, work[0].unit()), (Wish::Publish, 7, Some(unit("a"))));
    assert_eq!(work[0].value.as_deref(), Some(b"\x00\xffvalue".as_slice()));
    assert_eq!(work[0].headers, asides[0].headers);

    // The first was published, the second is refused: it waits for a person now, and the queue is not empty.
    let outcome = Outcome {
        done: vec![work[0].id],
        failed: vec![(work[1].id, "invalid_record".into(), "no".into())],
        units: vec![unit("a")],
    };
    let (gone, empty) = lot.settle(&place.client, &outcome).await.unwrap();
    assert_eq!((gone.messages, gone.bytes, empty), (1, 7, vec![]));
    let shown = parked::show(&place.client, &lot.slot, work[1].id).await.unwrap().unwrap();
    assert_eq!((shown.message.state.as_str(), shown.message.attempts), ("parked", 1));
    assert!(parked::show(&place.client, &lot.slot, first).await.unwrap().is_none());

    let all = parked::wish(&place.client, &lot.slot, "discard", &[], true).await.unwrap();
    assert_eq!(all.len(), 4, "those that wait behind are no decision");
    let work = lot.work(&place.client).await.unwrap();
    assert_eq!(lsns(&work), [50, 100, 110, 120, 130]);
    assert_eq!(work.iter().filter(|work| work.wish == Wish::Publish).count(), 1);
    let done = work.iter().map(|work| work.id).collect();
    let outcome = Outcome { done, failed: vec![], units: vec![unit("a"), unit("b")] };
    let (gone, mut empty) = lot.settle(&place.client, &outcome).await.unwrap();
    empty.sort_by(|one, other| one.key.cmp(&other.key));
    assert_eq!((gone.messages, empty), (5, vec![unit("a"), unit("b")]));
    assert!(lot.load(&place.client).await.unwrap().is_empty());
    place.clean_up().await;
}

/// Named after nothing that exists, or not readable, a reference says so and the rest goes on.
#[tokio::test]
async fn a_value_by_reference_is_read_from_the_outbox_or_said_to_be_gone() {
    let place = Place::new("parked_reference").await;
    let (lot, table) = (lot(&place).await, "outbox_messages");
    let insert = format!(
        "INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload) VALUES ('a', 'k', 'e', '{{\"n\": \"ü\"}}') \
         RETURNING message_id::text"
    );
    let id: String = place.client.query_one(&insert, &[]).await.unwrap().get(0);
    let reference = |table: &str, column: &str, id: &str| Reference {
        schema: "public".into(),
        table: table.into(),
        column: column.into(),
        type_oid: 3802,
        id_column: "message_id".into(),
        id_type_oid: 2950,
        id: id.into(),
        bytes: 10,
    };
    let other = "00000000-0000-4000-8000-000000000000";
    let references = [
        reference(table, "payload", &id),
        reference(table, "payload", other),
        reference(table, "no_such", &id),
        reference("no_such_table", "payload", &id),
        Reference { id_type_oid: 1, ..reference(table, "payload", &id) },
    ];
    let mut found = Vec::new();
    for (number, reference) in references.into_iter().enumerate() {
        let mut by_reference = aside(100 + number as u64, 0, "a", true);
        by_reference.value = None;
        by_reference.row = Some(reference::to_json(&reference).to_string());
        lot.park(&place.client, &[by_reference]).await.unwrap();
        parked::wish(&place.client, &place.slot, "retry", &[], true).await.unwrap();
        let work = lot.work(&place.client).await.unwrap();
        assert_eq!(work.len(), 1, "one value of the table at a time");
        let done = Outcome { done: vec![work[0].id], ..Outcome::default() };
        lot.settle(&place.client, &done).await.unwrap();
        found.push((work[0].value.clone(), work[0].missing.clone().unwrap_or_default()));
    }
    assert_eq!(found[0], (Some("{\"n\": \"ü\"}".into()), String::new()));
    assert!(found[1..].iter().all(|(value, _)| value.is_none()));
    for (index, word) in [(1, "no row"), (2, "no_such"), (3, "no_such_table"), (4, "type")] {
        assert!(found[index].1.contains(word), "{}", found[index].1);
    }
    place.clean_up().await;
}

/// The statement of a connection that was given up may be carried out late: what is confirmed by then is not parked again. Nor
/// does a relay park anything whose successor has read what is parked.
#[tokio::test]
async fn what_is_confirmed_or_of_another_epoch_or_holder_is_not_parked_any_more() {
    let place = Place::new("parked_late").await;
    let lot = lot(&place).await;
    place.begin().await;
    let record = place.record().await;
    let lot = Lot { epoch: record.epoch, holder: Some("host 1".into()), ..lot };
    assert!(place.recorder(record.epoch, "host 1").sign_on(&place.client).await.unwrap());
    let at = |lsn: u64| [aside(lsn, 0, "a", true)];
    let confirmed = record.confirmed_lsn.0;
    assert_eq!(lot.park(&place.client, &at(confirmed)).await.unwrap().0.messages, 1);
    assert_eq!(lot.park(&place.client, &at(confirmed - 1)).await.unwrap().0.messages, 0);
    let others = Lot { epoch: record.epoch + 1, ..lot.clone() };
    let late = others.park(&place.client, &at(confirmed + 8)).await;
    assert!(matches!(late, Err(parked::ParkedError::Superseded(1))), "{late:?}");
    assert!(place.recorder(record.epoch, "host 2").sign_on(&place.client).await.unwrap());
    let late = lot.park(&place.client, &at(confirmed + 16)).await;
    assert!(matches!(late, Err(parked::ParkedError::Superseded(1))), "{late:?}");
    assert_eq!(lot.load(&place.client).await.unwrap().messages(), 1);
    place.clean_up().await;
}
