use super::*;
use crate::postgres::catalog::{PublishedTable, RelationName};
use crate::postgres::schema::preset_table;

fn record(change: impl FnOnce(&mut Checkpoint)) -> Checkpoint {
    let mut record = Checkpoint {
        slot_name: "walpost".into(),
        relay_name: "walpost".into(),
        system_identifier: "7".into(),
        timeline: 1,
        database_oid: 5,
        table_oid: 16_385,
        kafka_cluster_id: None,
        fingerprint: String::new(),
        epoch: 1,
        confirmed_lsn: Lsn(0x1000),
        horizon: Some(757),
        pending: None,
        state: State::Streaming,
        age_seconds: 0.0,
        holder: None,
    };
    change(&mut record);
    record
}

fn judged(change: impl FnOnce(&mut Checkpoint), next: u64, upgraded: bool) -> Result<AtRisk, Untold> {
    let identity = Identity {
        system_identifier: "7".into(),
        timeline: Some(1),
        flush_lsn: Lsn(0x2000),
        database: "app".into(),
        database_oid: 5,
    };
    at_risk(&record(change), &identity, 16_385, next, upgraded)
}

#[test]
fn the_rows_at_risk_are_those_at_or_after_the_horizon() {
    assert_eq!(judged(|_| (), 900, false), Ok(AtRisk::Since(757)));
    // Nothing has been written since.
    assert_eq!(judged(|_| (), 757, false), Ok(AtRisk::Since(757)));
    // A failover changes the timeline, and the record came along.
    assert_eq!(judged(|r| r.timeline = 9, 900, false), Ok(AtRisk::Since(757)));
}

#[test]
fn a_horizon_that_cannot_be_compared_is_not_guessed_at() {
    assert_eq!(judged(|r| r.horizon = None, 900, false), Err(Untold::NoHorizon));
    assert_eq!(judged(|_| (), 756, false), Err(Untold::Ahead { horizon: 757, next: 756 }));
    let next = 757 + 2_000_000_000;
    assert_eq!(judged(|_| (), next, false), Err(Untold::TooOld { horizon: 757, next }));
    assert!(judged(|_| (), next - 1, false).is_ok());
}

#[test]
fn another_cluster_database_or_table_makes_the_horizon_mean_nothing() {
    let cluster = |r: &mut Checkpoint| r.system_identifier = "8".into();
    assert!(matches!(judged(cluster, 900, false), Err(Untold::Cluster { .. })));
    assert!(matches!(judged(|r| r.table_oid = 1, 900, false), Err(Untold::Table { recorded: 1, now: 16_385 })));
    assert!(matches!(judged(|r| r.database_oid = 6, 900, false), Err(Untold::Database { recorded: 6, now: 5 })));
    // pg_upgrade makes a new cluster that goes on with the ids, if somebody says that it was that. It says nothing else.
    assert_eq!(judged(cluster, 900, true), Ok(AtRisk::Since(757)));
    assert!(judged(|r| r.table_oid = 1, 900, true).is_err());
    assert!(judged(|r| r.database_oid = 6, 900, true).is_err());
}

#[test]
fn a_table_is_rewritten_when_a_part_of_it_has_another_file_or_is_gone() {
    let storage = |parts: &[(u32, Option<u32>)]| parts.iter().copied().collect::<Storage>();
    let before = storage(&[(1, None), (2, Some(20)), (3, Some(30))]);
    assert!(!rewritten(&before, &before));
    assert!(!rewritten(&before, &storage(&[(1, None), (2, Some(20)), (3, Some(30)), (4, Some(40))])));
    assert!(rewritten(&before, &storage(&[(1, None), (2, Some(21)), (3, Some(30))])));
    assert!(rewritten(&before, &storage(&[(1, None), (2, Some(20))])));
}

fn column(name: &str) -> Column {
    Column { name: name.to_owned(), type_oid: 25, key: false }
}

#[test]
fn the_statement_reads_the_rows_at_risk_in_the_order_of_the_sequence() {
    let mut table = preset_table(crate::config::Preset::Laravel);
    (table.schema, table.name) = ("App".into(), "outbox".into());
    let columns = [column("id"), column("Odd Name")];
    let selection = Selection {
        table: &table,
        columns: &columns,
        at_risk: AtRisk::Since(757),
        row_filter: None,
        order_by: Some("id"),
        mark: false,
        unmarked_only: false,
    };
    let statement = "SELECT id, \"Odd Name\" FROM \"App\".outbox WHERE age(xmin) <= age('757'::xid8::xid) ORDER BY id";
    assert_eq!(selection.sql(), statement);
    let all = Selection { at_risk: AtRisk::All, order_by: None, ..selection.clone() };
    assert!(all.sql().ends_with("FROM \"App\".outbox WHERE true ORDER BY age(xmin) DESC, ctid"), "{}", all.sql());
    let narrowed = Selection { row_filter: Some("id > 3"), mark: true, unmarked_only: true, ..selection };
    let sql = narrowed.sql();
    assert!(sql.starts_with("SELECT id, \"Odd Name\", published_at IS NOT NULL FROM"), "{sql}");
    assert!(sql.contains("::xid) AND (id > 3) AND published_at IS NULL ORDER"), "{sql}");
}

#[test]
fn what_the_publication_leaves_out_is_not_read() {
    let table = TableFacts { schema: "public".into(), ..preset_table(crate::config::Preset::Walpost) };
    let streamed =
        |name: &str, generated| StreamedColumn { name: name.to_owned(), type_oid: 25, generated, sequence: false };
    let columns = [
        streamed("id", Generated::No),
        streamed("stored", Generated::Stored),
        streamed("computed", Generated::Virtual),
        streamed("topic", Generated::No),
    ];
    let mut publication = PublicationFacts {
        oid: 1,
        name: "walpost".into(),
        owner: String::new(),
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
        tables: Vec::<RelationName>::new(),
        published: vec![PublishedTable {
            schema: "public".into(),
            name: "outbox_messages".into(),
            columns: None,
            row_filter: None,
        }],
        strangers: Vec::new(),
    };
    let names = |publication: &PublicationFacts, version| {
        let relation = streamed_relation(&table, &columns, publication, version);
        relation.columns.into_iter().map(|column| column.name).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&publication, 140_000), "id topic");
    assert_eq!(names(&publication, 180_000), "id stored topic");
    publication.published[0].columns = Some(vec!["id".into(), "stored".into(), "computed".into()]);
    assert_eq!(names(&publication, 170_000), "id");
    assert_eq!(names(&publication, 180_000), "id stored");
}
