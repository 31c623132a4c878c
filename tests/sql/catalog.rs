//! What the catalog says, as it is and to whom it is said; and the plan that follows from it.

use walpost::config::Preset;
use walpost::lsn::Lsn;
use walpost::names::TableName;
use walpost::postgres::catalog::{self, TableLookup};
use walpost::postgres::checkpoint::{self, Recorded, Recorder};
use walpost::postgres::schema::{self, Present, StepKind, Wanted};
use walpost::postgres::{server, slot};

use super::place::*;

#[tokio::test]
async fn the_plan_is_done_once_it_was_run_whatever_the_names() {
    let place = Place::new("plan").await;
    place
        .sql(
            "DROP ROLE IF EXISTS \"Relay o'neil\"; CREATE ROLE \"Relay o'neil\" LOGIN REPLICATION PASSWORD 'x'; \
        CREATE SCHEMA \"My \"\"App\"\"\"",
        )
        .await;
    let name = TableName { schema: Some("My \"App\"".into()), name: "Order Out; box".into() };
    let publication = "Odd, Pub \" '";
    for round in 0..2 {
        let found = catalog::table(&place.client, &name).await.unwrap();
        let table = match &found {
            TableLookup::Found(table) => Some(&**table),
            _ => None,
        };
        let published = catalog::publication(&place.client, place.version, publication, table).await.unwrap();
        let facts = slot::facts(&place.client, &place.slot).await.unwrap();
        let wanted = Wanted {
            table: &name,
            publication,
            slot: &place.slot,
            columns: Some(vec!["aggregate_id".into(), "payload".into()]),
            create_table: Some(Preset::Walpost),
            grants: Some("Relay o'neil"),
        };
        let plan = schema::plan(
            &wanted,
            &Present {
                version: place.version,
                table,
                publication: published.as_ref(),
                slot: facts.as_ref(),
                schema_version: checkpoint::schema_version(&place.client).await.unwrap(),
                current_schema: "public",
            },
        );
        for step in &plan.steps {
            assert_eq!(step.done, round == 1 && step.kind != StepKind::Grants, "round {round}: {step:?}");
            place.sql(&step.script()).await;
        }
        assert_eq!(plan.notes.len(), 1, "{:?}", plan.notes);
        assert!(plan.notes[0].contains("ALTER ROLE \"Relay o'neil\" LOGIN REPLICATION"), "{:?}", plan.notes);
    }
    let relay = place.as_role("Relay o'neil").await;
    assert_eq!(checkpoint::read(&relay, &place.slot).await.unwrap(), None);
    let found = catalog::table(&relay, &name).await.unwrap();
    let TableLookup::Found(table) = found else { panic!("{found:?}") };
    let role = server::role(&relay, Some(&table)).await.unwrap();
    assert!(role.replication && !role.superuser);
    assert_eq!((role.table_select, role.table_schema_usage, role.walpost_usage), (Some(true), Some(true), Some(true)));
    assert_eq!((role.table_owner, role.checkpoint_missing), (Some(false), Some(vec![])));
    // A relay's role can begin and keep its record with these rights.
    let identity = catalog::identity(&relay).await.unwrap();
    let fingerprint =
        catalog::fingerprint(&relay, place.version, publication, &table.schema, &table.name).await.unwrap();
    let begun = checkpoint::begin(&relay, place.beginning(&identity, &fingerprint)).await.unwrap();
    let recorder =
        Recorder::new(place.version, publication, (&table.schema, &table.name), &place.slot, begun.epoch, "relay-1");
    assert_eq!(recorder.record(&relay, place.end_of_wal().await).await.unwrap(), Recorded::Done);
    place.sql("DROP OWNED BY \"Relay o'neil\"").await;
    place.clean_up().await;
}

#[tokio::test]
async fn a_publication_is_seen_as_it_is() {
    let place = Place::new("publication").await;
    let see = async |name: &str| {
        let table = place.table().await;
        catalog::publication(&place.client, place.version, name, Some(&table)).await.unwrap()
    };
    place.sql(include_str!("../../sql/001_outbox_table.sql")).await;
    place.sql("CREATE TABLE other (id int PRIMARY KEY)").await;
    assert_eq!(see("walpost").await, None);
    place.sql(include_str!("../../sql/010_publication.sql")).await;
    let facts = see("walpost").await.unwrap();
    assert!(facts.covers() && facts.inserts && facts.via_root && facts.owned && facts.in_itself);
    assert_eq!((facts.surplus_operations(), facts.row_filter()), (vec![], None));

    place.sql("CREATE PUBLICATION others FOR TABLE other").await;
    let facts = see("others").await.unwrap();
    assert!(!facts.covers());
    assert_eq!(facts.tables[0].sql(), "public.other");
    assert_eq!(facts.surplus_operations(), ["update", "delete", "truncate"]);

    place.sql("CREATE PUBLICATION everything FOR ALL TABLES").await;
    let facts = see("everything").await.unwrap();
    assert!(facts.all_tables && facts.covers());
    assert!(facts.shared().is_some_and(|(reason, _)| reason.contains("public.other")), "{:?}", facts.strangers);

    if place.version >= catalog::COLUMN_LISTS {
        place.sql("CREATE PUBLICATION inschema FOR TABLES IN SCHEMA public").await;
        let facts = see("inschema").await.unwrap();
        assert!(facts.in_schema && facts.covers() && !facts.in_itself);
        place
            .sql(
                "CREATE PUBLICATION part FOR TABLE outbox_messages (id, payload) WHERE (id > 5) WITH (publish = \
            'insert')",
            )
            .await;
        let facts = see("part").await.unwrap();
        let columns = ["payload".to_owned(), "aggregate_id".to_owned()];
        assert_eq!(facts.without(&columns), ["aggregate_id"]);
        assert_eq!(facts.row_filter(), Some("(id > 5)"));
    }
    place
        .sql(
            "CREATE VIEW v AS SELECT 1 AS id; CREATE UNLOGGED TABLE u (id int); CREATE SCHEMA s; CREATE TABLE \
        s.hidden (id int)",
        )
        .await;
    for (text, problem) in [("v", "a view"), ("u", "unlogged"), ("hidden", "s.hidden"), ("nowhere", "no table nowhere")]
    {
        let name = TableName::parse(text).unwrap();
        let found = catalog::table(&place.client, &name).await.unwrap();
        let error = schema::usable(&name, &found).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[tokio::test]
async fn a_partitioned_table_is_covered_by_its_root_and_odd_leaves_are_seen() {
    let place = Place::new("partitions").await;
    place
        .sql(
            "CREATE TABLE outbox_messages (id int, aggregate_id text, payload text, PRIMARY KEY (id)) PARTITION BY \
        RANGE (id);
        CREATE TABLE leaf1 PARTITION OF outbox_messages FOR VALUES FROM (0) TO (10);
        CREATE UNLOGGED TABLE leaf2 PARTITION OF outbox_messages FOR VALUES FROM (10) TO (20);
        CREATE PUBLICATION viaroot FOR TABLE outbox_messages
            WITH (publish = 'insert', publish_via_partition_root = true);
        CREATE PUBLICATION leaves FOR TABLE outbox_messages WITH (publish = 'insert');
        CREATE PUBLICATION one FOR TABLE leaf1",
        )
        .await;
    let table = place.table().await;
    assert_eq!(
        (table.kind, table.unlogged_partitions.as_slice()),
        (catalog::RelationKind::Partitioned, &["leaf2".to_owned()][..])
    );
    for (name, covers, via_root) in [("viaroot", true, true), ("leaves", true, false), ("one", false, false)] {
        let facts = catalog::publication(&place.client, place.version, name, Some(&table)).await.unwrap().unwrap();
        assert_eq!((facts.covers(), facts.via_root), (covers, via_root), "{name}: {facts:?}");
    }
    let leaf = TableName::parse("leaf1").unwrap();
    let TableLookup::Found(leaf) = catalog::table(&place.client, &leaf).await.unwrap() else { panic!("no leaf") };
    assert_eq!(leaf.ancestors[0].name, "outbox_messages");
    let facts = catalog::publication(&place.client, place.version, "viaroot", Some(&leaf)).await.unwrap().unwrap();
    assert!(facts.in_ancestor && facts.covers());
}

#[tokio::test]
async fn the_server_and_its_limits_are_read_also_by_a_plain_role() {
    let place = Place::new("server").await;
    place.sql("DROP ROLE IF EXISTS walpost_sql_plain; CREATE ROLE walpost_sql_plain LOGIN PASSWORD 'x'").await;
    place.sql(include_str!("../../sql/001_outbox_table.sql")).await;
    place.sql(include_str!("../../sql/002_schema.sql")).await;
    slot::create(&place.client, place.version, &place.slot, WITHIN).await.unwrap();
    for client in [&place.client, &place.as_role("walpost_sql_plain").await] {
        let facts = server::server(client).await.unwrap();
        assert_eq!(facts.version, place.version);
        assert_eq!((facts.setting("wal_level"), facts.encoding.as_str()), (Some("logical"), "UTF8"));
        assert!(facts.number("max_replication_slots").unwrap() > 0);
        assert!(facts.slots.iter().any(|slot| slot.name == place.slot && slot.retained_bytes.is_some()));
        assert_eq!(facts.settings.contains_key("idle_replication_slot_timeout"), place.version >= 180_000);
        let identity = catalog::identity(client).await.unwrap();
        assert!(identity.system_identifier.len() > 10 && identity.flush_lsn > Lsn::INVALID);
        assert_eq!((identity.timeline, identity.database_oid), (Some(1), facts.database_oid));
        assert!(slot::facts(client, &place.slot).await.unwrap().is_some());
        slot::open_transactions(client, 5).await.unwrap();
    }
    let plain = place.as_role("walpost_sql_plain").await;
    let role = server::role(&plain, Some(&place.table().await)).await.unwrap();
    assert!(!role.replication && !role.superuser && !role.replication_member && !role.create_in_database);
    assert_eq!((role.table_select, role.walpost_usage), (Some(false), Some(false)));
    assert_eq!(role.checkpoint_missing.unwrap().len(), 4);
    assert_eq!(server::pending_setting(&plain, "wal_level").await, None);
    assert_eq!(server::pending_setting(&place.client, "wal_level").await.as_deref(), Some("logical"));
    place.clean_up().await;
}
