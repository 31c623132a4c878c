//! Plans as a person would read them, for databases that lack this or that.

use super::*;
use crate::postgres::catalog::{PublishedTable, RelationName, SchemaHint};

fn table() -> TableFacts {
    let columns = ["id", "message_id", "aggregate_type", "aggregate_id", "event_type", "payload", "attempts"];
    TableFacts {
        oid: 16400,
        schema: "public".into(),
        name: "outbox_messages".into(),
        owner: "app".into(),
        kind: RelationKind::Table,
        persistence: Persistence::Permanent,
        replica_identity: "d".into(),
        row_security: false,
        estimated_rows: -1,
        has_primary_key: true,
        ancestors: Vec::new(),
        unlogged_partitions: Vec::new(),
        children: Vec::new(),
        columns: columns.map(|name| column(name, "text")).into(),
    }
}

fn column(name: &str, type_name: &str) -> ColumnFacts {
    ColumnFacts {
        name: name.into(),
        type_oid: 25,
        type_name: type_name.into(),
        not_null: false,
        identity: false,
        generated: Generated::No,
        key: name == "id",
    }
}

fn publication(columns: &[&str]) -> PublicationFacts {
    PublicationFacts {
        strangers: Vec::new(),
        oid: 16500,
        name: "walpost".into(),
        owner: "app".into(),
        owned: true,
        all_tables: false,
        inserts: true,
        updates: false,
        deletes: false,
        truncates: false,
        via_root: true,
        in_itself: true,
        in_ancestor: false,
        in_schema: false,
        tables: vec![RelationName { oid: 16400, schema: "public".into(), name: "outbox_messages".into() }],
        published: vec![PublishedTable {
            schema: "public".into(),
            name: "outbox_messages".into(),
            columns: Some(columns.iter().map(|&name| name.to_owned()).collect()),
            row_filter: None,
        }],
    }
}

fn slot() -> SlotFacts {
    serde_json::from_str(
        r#"{"slot_name":"walpost","plugin":"pgoutput","database":"app","active":false,"active_pid":null,
            "wal_status":"reserved","safe_wal_size":null}"#,
    )
    .unwrap()
}

fn name() -> TableName {
    TableName { schema: None, name: "outbox_messages".into() }
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn planned(version: u32, publication: Option<&PublicationFacts>, slot: Option<&SlotFacts>) -> Plan {
    let (name, table) = (name(), table());
    let columns = Some(strings(&["aggregate_id", "payload"]));
    let wanted =
        Wanted { table: &name, publication: "walpost", slot: "walpost", columns, create_table: None, grants: None };
    let current_schema = "public";
    plan(
        &wanted,
        &Present {
            version,
            table: Some(&table),
            publication,
            slot,
            schema_version: Some(SCHEMA_VERSION),
            current_schema,
        },
    )
}

fn sql_of(plan: &Plan, kind: StepKind) -> String {
    plan.steps.iter().filter(|step| step.kind == kind).map(Step::script).collect::<Vec<_>>().join("\n")
}

#[test]
fn an_empty_database_gets_everything_and_the_slot_last() {
    let name = name();
    let wanted = Wanted {
        table: &name,
        publication: "walpost",
        slot: "walpost",
        columns: None,
        create_table: Some(Preset::Walpost),
        grants: Some("Relay Role"),
    };
    let present = Present {
        version: 170_000,
        table: None,
        publication: None,
        slot: None,
        schema_version: None,
        current_schema: "App",
    };
    let plan = plan(&wanted, &present);
    let kinds: Vec<StepKind> = plan.steps.iter().map(|step| step.kind).collect();
    assert_eq!(kinds, [StepKind::Table, StepKind::Schema, StepKind::Publication, StepKind::Grants, StepKind::Slot]);
    assert!(plan.steps.iter().all(|step| !step.done && !step.sql.is_empty()));
    assert!(sql_of(&plan, StepKind::Table).starts_with("CREATE TABLE IF NOT EXISTS \"App\".outbox_messages ("));
    assert_eq!(
        sql_of(&plan, StepKind::Publication),
        "CREATE PUBLICATION walpost FOR TABLE \"App\".outbox_messages WITH (publish = 'insert', \
        publish_via_partition_root = true);"
    );
    let grants = sql_of(&plan, StepKind::Grants);
    assert!(grants.contains("GRANT USAGE ON SCHEMA \"App\" TO \"Relay Role\";"), "{grants}");
    assert!(grants.contains("GRANT SELECT ON TABLE \"App\".outbox_messages TO \"Relay Role\";"), "{grants}");
    assert!(!grants.contains("relay;") && !grants.contains("public"), "{grants}");
}

#[test]
fn what_is_there_is_not_made_again() {
    let plan = planned(170_000, Some(&publication(&["aggregate_id", "payload"])), Some(&slot()));
    assert!(plan.steps.iter().all(|step| step.done && step.sql.is_empty()), "{plan:?}");
    assert_eq!(plan.notes, Vec::<String>::new());
}

#[test]
fn only_the_mapped_columns_are_published_where_the_version_can() {
    let of = |version| sql_of(&planned(version, None, None), StepKind::Publication);
    assert!(of(150_000).contains("public.outbox_messages (aggregate_id, payload) WITH"), "{}", of(150_000));
    assert!(of(140_011).contains("public.outbox_messages WITH"), "{}", of(140_011));
}

#[test]
fn a_table_joins_a_publication_only_under_a_lock_that_gives_up() {
    let mut other = publication(&[]);
    other.in_itself = false;
    other.published.clear();
    let locked = "BEGIN;\nSET LOCAL lock_timeout = '5s';\nLOCK TABLE public.outbox_messages IN SHARE MODE;\n";
    let added = sql_of(&planned(170_000, Some(&other), Some(&slot())), StepKind::Publication);
    assert_eq!(
        added,
        format!("{locked}ALTER PUBLICATION walpost ADD TABLE public.outbox_messages (aggregate_id, payload);\nCOMMIT;")
    );
    // The same for a new publication, when a slot reads already.
    assert!(sql_of(&planned(170_000, None, Some(&slot())), StepKind::Publication).starts_with(locked));
}

#[test]
fn a_mapped_column_that_is_not_published_is_added_and_other_tables_stay() {
    let changed = sql_of(&planned(170_000, Some(&publication(&["payload"])), Some(&slot())), StepKind::Publication);
    assert!(changed.contains(
        "ALTER PUBLICATION walpost DROP TABLE public.outbox_messages;\n\
         ALTER PUBLICATION walpost ADD TABLE public.outbox_messages (aggregate_id, payload);"
    ));
    assert!(changed.starts_with("BEGIN;") && changed.contains("LOCK TABLE") && !changed.contains("SET TABLE"));
}

#[test]
fn a_filter_outlives_a_change_of_the_columns() {
    let mut shard = publication(&["payload"]);
    shard.published[0].row_filter = Some("(((COALESCE(hashtext(aggregate_id), 0) & 2147483647) % 2) = 1)".into());
    let changed = sql_of(&planned(170_000, Some(&shard), Some(&slot())), StepKind::Publication);
    let added = "ADD TABLE public.outbox_messages (aggregate_id, payload) WHERE \
                 ((((COALESCE(hashtext(aggregate_id), 0) & 2147483647) % 2) = 1));";
    assert!(changed.contains(added), "{changed}");
}

#[test]
fn what_somebody_else_may_need_is_said_and_not_changed() {
    let mut odd = publication(&["aggregate_id", "payload"]);
    odd.updates = true;
    odd.published[0].row_filter = Some("(aggregate_id <> 'x')".into());
    let plan = planned(170_000, Some(&odd), Some(&slot()));
    assert!(plan.steps.iter().all(|step| step.done), "{plan:?}");
    assert_eq!(plan.notes.len(), 2, "{:?}", plan.notes);
}

#[test]
fn a_publication_that_carries_other_tables_is_refused_with_the_way_out() {
    let mut shared = publication(&["aggregate_id", "payload"]);
    assert_eq!(shared.shared(), None);
    shared.strangers = vec![RelationName { oid: 0, schema: "public".into(), name: "Billing".into() }];
    let (reason, remedy) = shared.shared().unwrap();
    assert!(reason.contains("public.\"Billing\"") && remedy.contains("postgres.publication"), "{reason} {remedy}");
}

#[test]
fn a_publication_without_inserts_keeps_what_it_has_and_gains_them() {
    let mut updates = publication(&["aggregate_id", "payload"]);
    updates.inserts = false;
    updates.updates = true;
    let sql = sql_of(&planned(170_000, Some(&updates), None), StepKind::Publication);
    assert!(sql.contains("SET (publish = 'insert, update');"), "{sql}");
}

#[test]
fn odd_names_are_quoted_everywhere() {
    let name = TableName { schema: Some("My \"App\"".into()), name: "Order Out; box".into() };
    let wanted = Wanted {
        table: &name,
        publication: "Odd, Pub",
        slot: "walpost",
        columns: Some(strings(&["Payload", "order"])),
        create_table: Some(Preset::Debezium),
        grants: Some("o'neil"),
    };
    let present = Present {
        version: 180_000,
        table: None,
        publication: None,
        slot: None,
        schema_version: None,
        current_schema: "public",
    };
    let plan = plan(&wanted, &present);
    let table = "\"My \"\"App\"\"\".\"Order Out; box\"";
    assert!(sql_of(&plan, StepKind::Table).contains(&format!("CREATE TABLE IF NOT EXISTS {table} (")));
    let publication = sql_of(&plan, StepKind::Publication);
    assert!(
        publication
            .starts_with(&format!("CREATE PUBLICATION \"Odd, Pub\" FOR TABLE {table} (\"Payload\", \"order\") ")),
        "{publication}"
    );
    assert!(sql_of(&plan, StepKind::Grants).contains("TO \"o'neil\";"));
}

#[test]
fn a_table_whose_rows_never_reach_the_wal_is_refused_with_the_remedy() {
    let found = |change: fn(&mut TableFacts)| {
        let mut table = table();
        change(&mut table);
        usable(&name(), &TableLookup::Found(Box::new(table))).map(|_| ()).unwrap_err().to_string()
    };
    assert!(found(|t| t.persistence = Persistence::Unlogged).contains("SET LOGGED"));
    assert!(found(|t| t.persistence = Persistence::Temporary).contains("temporary"));
    assert!(found(|t| t.kind = RelationKind::View).contains("a view"));
    assert!(found(|t| t.kind = RelationKind::ForeignTable).contains("foreign"));
    assert!(found(|t| t.unlogged_partitions = vec!["p1".into()]).contains("p1"));
    assert!(usable(&name(), &TableLookup::Found(Box::new(table()))).is_ok());
}

#[test]
fn a_table_that_is_not_found_is_looked_for_elsewhere() {
    let elsewhere = |schema: &str, usable_schema| {
        let schemas = vec![SchemaHint { schema: schema.into(), usable: usable_schema }];
        let lookup = TableLookup::Elsewhere { schemas, search_path: "\"$user\", public".into() };
        usable(&name(), &lookup).map(|_| ()).unwrap_err().to_string()
    };
    assert!(elsewhere("App", true).contains("but there is \"App\".outbox_messages"));
    assert!(elsewhere("app", true).contains("set postgres.table = \"app.outbox_messages\""));
    assert!(elsewhere("app", false).contains("GRANT USAGE ON SCHEMA app"));
    assert!(elsewhere("public", true).contains("GRANT USAGE ON SCHEMA public"));
    let missing = TableLookup::Missing { search_path: "public".into() };
    let said = usable(&name(), &missing).map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("--create-table"), "{said}");
}

#[test]
fn a_preset_table_has_the_columns_of_its_file() {
    let names = |preset| preset_table(preset).columns.into_iter().map(|column| column.name).collect::<Vec<_>>();
    assert_eq!(names(Preset::Debezium), ["id", "aggregatetype", "aggregateid", "type", "payload"]);
    assert_eq!(names(Preset::Walpost).len(), 9);
    assert_eq!(names(Preset::Laravel).len(), 10);
    assert_eq!(names(Preset::LaravelTopic).len(), 10);
}
