use super::super::Outcome::{self, Fail, Ok, Skip, Warn};
use super::*;
use crate::config::Preset;
use crate::names::TableName;
use crate::postgres::catalog::{PublishedTable, RelationName};
use crate::postgres::schema::{self, Present, Wanted};

fn table() -> TableFacts {
    TableFacts { oid: 16400, schema: "public".into(), ..schema::preset_table(Preset::Walpost) }
}

fn publication() -> PublicationFacts {
    let (schema, name) = ("public".to_owned(), "outbox_messages".to_owned());
    PublicationFacts {
        strangers: Vec::new(),
        oid: 1,
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
        tables: vec![RelationName { oid: 16400, schema: schema.clone(), name: name.clone() }],
        published: vec![PublishedTable { schema, name, columns: None, row_filter: None }],
    }
}

/// The checks that are not in order.
fn odd(publication: Option<&PublicationFacts>, table: Option<&TableFacts>) -> Vec<(&'static str, Outcome, String)> {
    let name = TableName { schema: None, name: "outbox_messages".into() };
    let columns = vec!["aggregate_id".to_owned(), "payload".to_owned()];
    let wanted = Wanted {
        table: &name,
        publication: "walpost",
        slot: "walpost",
        columns: Some(columns.clone()),
        create_table: None,
        grants: None,
    };
    let present =
        Present { version: 170_000, table, publication, slot: None, schema_version: None, current_schema: "public" };
    let plan = schema::plan(&wanted, &present);
    let seen = Seen { name: "walpost", publication, table, columns: Some(&columns), plan: Some(&plan) };
    let odd = checks(&seen).into_iter().filter(|check| check.outcome != Ok);
    odd.map(|check| {
        assert!(check.outcome == Skip || (!check.why.is_empty() && !check.remedy.is_empty()), "{check:?}");
        (check.name, check.outcome, check.remedy)
    })
    .collect()
}

fn changed(change: impl FnOnce(&mut PublicationFacts, &mut TableFacts)) -> Vec<(&'static str, Outcome, String)> {
    let (mut publication, mut table) = (publication(), table());
    change(&mut publication, &mut table);
    odd(Some(&publication), Some(&table))
}

fn names(odd: &[(&'static str, Outcome, String)]) -> Vec<(&'static str, Outcome)> {
    odd.iter().map(|(name, outcome, _)| (*name, *outcome)).collect()
}

#[test]
fn a_publication_as_setup_makes_it_is_in_order() {
    assert_eq!(changed(|_, _| ()), []);
}

#[test]
fn a_missing_publication_fails_with_the_statement_that_makes_it() {
    let odd = odd(None, Some(&table()));
    assert_eq!(names(&odd), [("publication.exists", Fail)]);
    assert!(odd[0].2.contains("CREATE PUBLICATION walpost FOR TABLE public.outbox_messages (aggregate_id, payload)"));
}

#[test]
fn a_table_that_is_not_in_it_fails_with_one_locked_transaction() {
    let odd = changed(|publication, _| {
        publication.in_itself = false;
        publication.tables[0].name = "old".into();
    });
    assert_eq!(names(&odd), [("publication.table", Fail)]);
    for part in ["BEGIN;", "lock_timeout", "LOCK TABLE public.outbox_messages IN SHARE MODE", "ADD TABLE", "COMMIT;"] {
        assert!(odd[0].2.contains(part), "{}", odd[0].2);
    }
}

#[test]
fn missing_columns_and_missing_inserts_fail() {
    let columns = changed(|p, _| p.published[0].columns = Some(vec!["payload".into()]));
    assert_eq!(names(&columns), [("publication.columns", Fail)]);
    assert!(columns[0].2.contains("aggregate_id"), "{}", columns[0].2);
    let inserts = changed(|p, _| p.inserts = false);
    assert_eq!(names(&inserts), [("publication.inserts", Fail)]);
    assert!(inserts[0].2.contains("publish = 'insert'"), "{}", inserts[0].2);
}

#[test]
fn what_works_but_is_odd_warns() {
    assert_eq!(
        names(&changed(|p, _| p.published[0].row_filter = Some("(id > 5)".into()))),
        [("publication.row_filter", Warn)]
    );
    assert_eq!(names(&changed(|p, _| p.updates = true)), [("publication.only_inserts", Warn)]);
    let all = changed(|p, _| {
        p.all_tables = true;
        p.in_itself = false;
        p.strangers = vec![RelationName { oid: 0, schema: "public".into(), name: "orders".into() }];
    });
    assert_eq!(names(&all), [("publication.only_inserts", Fail)]);
    let leaves = changed(|p, t| {
        t.kind = RelationKind::Partitioned;
        p.via_root = false;
    });
    assert_eq!(names(&leaves), [("publication.via_root", Warn)]);
}

#[test]
fn updates_on_a_table_without_identity_fail_because_the_application_does() {
    let odd = changed(|p, t| {
        p.updates = true;
        t.has_primary_key = false;
    });
    assert_eq!(names(&odd), [("publication.only_inserts", Fail)]);
    let full = changed(|p, t| {
        p.updates = true;
        t.has_primary_key = false;
        t.replica_identity = "f".into();
    });
    assert_eq!(names(&full), [("publication.only_inserts", Warn)]);
}

#[test]
fn a_chunk_that_nobody_published_fails() {
    let odd = changed(|_, t| t.children = vec![RelationName { oid: 2, schema: "chunks".into(), name: "c1".into() }]);
    assert_eq!(names(&odd), [("publication.children", Fail)]);
    assert!(odd[0].2.contains("LOCK TABLE chunks.c1"), "{}", odd[0].2);
}

#[test]
fn without_a_table_only_the_publication_itself_is_judged() {
    assert_eq!(names(&odd(Some(&publication()), None)), [("publication.table", Skip)]);
}
