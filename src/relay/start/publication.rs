//! Whether the publication carries what a relay is to read.

use crate::names::quote_ident;
use crate::postgres::catalog::{PublicationFacts, TableFacts};

/// What of the publication would lose rows, and the statement that mends it.
pub(super) fn problem(
    publication: Option<&PublicationFacts>,
    name: &str,
    table: &TableFacts,
) -> Option<(String, String)> {
    let (publication_sql, table_sql) = (quote_ident(name), table.sql());
    let Some(publication) = publication else {
        return Some((format!("there is no publication {name}"), "run `walpost setup`".to_owned()));
    };
    if !publication.covers() {
        return Some((
            format!("the publication {name} does not carry the table {table_sql}: its rows are not in the stream"),
            format!(
                "run `walpost setup`, or as its owner: begin; set local lock_timeout = '10s'; lock table {table_sql} in \
                 share mode; alter publication {publication_sql} add table {table_sql}; commit"
            ),
        ));
    }
    if !publication.inserts {
        return Some((
            format!("the publication {name} does not publish inserts"),
            format!("alter publication {publication_sql} set (publish = 'insert')"),
        ));
    }
    publication.shared()
}
