//! A value that is too large to be kept twice stays where it is, in the outbox, and is parked by *reference*: which column
//! of which row. It is read from there when the message is published again. Pure; `postgres::parked` reads.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::outbox::{Field, Mapping};
use crate::source::{Relation, Row};

/// A value larger than this is parked by reference, where its row has an id: a second copy of it in the database would
/// cost more than it is worth, and memory several times its size to write.
pub const KEPT_BYTES_MAX: usize = 32 << 20;

/// Where a value is found again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    pub schema: String,
    pub table: String,
    pub column: String,
    /// The type of the column, by its oid.
    pub type_oid: u32,
    pub id_column: String,
    pub id_type_oid: u32,
    /// The row's id, as text.
    pub id: String,
    /// How large it is.
    pub bytes: usize,
}

/// `uuid`, in every Postgres.
const UUID_OID: u32 = 2950;
const UUID_CHARACTERS: usize = 36;

/// The columns of a relation that references name.
#[derive(Clone, Debug)]
pub struct Lookup {
    relation: Arc<Relation>,
    id: usize,
    /// Where the `message_id` is NULL the row's id is that of another column.
    or_another: bool,
    payload: Option<usize>,
}

impl Lookup {
    /// None where the rows have no id that could be referred to.
    pub fn of(relation: &Arc<Relation>, mapping: &Mapping) -> Option<Lookup> {
        let [message_id, id] = [Field::MessageId, Field::Id].map(|field| mapping.column(field));
        let or_another = message_id.is_some() && id.is_some();
        let payload = mapping.column(Field::Payload);
        Some(Lookup { relation: relation.clone(), id: message_id.or(id)?, or_another, payload })
    }

    /// Of the payload of the row with this id.
    pub fn payload(&self, id: &str, bytes: usize) -> Option<Reference> {
        self.column(self.payload?, id, bytes)
    }

    fn column(&self, index: usize, id: &str, bytes: usize) -> Option<Reference> {
        let (column, of_id) = (self.relation.columns.get(index)?, self.relation.columns.get(self.id)?);
        if self.or_another && (of_id.type_oid != UUID_OID || id.len() != UUID_CHARACTERS) {
            // Taken for the other column's it could be the id of another row.
            return None;
        }
        Some(Reference {
            schema: self.relation.schema.clone(),
            table: self.relation.name.clone(),
            column: column.name.clone(),
            type_oid: column.type_oid,
            id_column: of_id.name.clone(),
            id_type_oid: of_id.type_oid,
            id: id.to_owned(),
            bytes,
        })
    }
}

/// A row as it is parked: its columns, the large ones by reference where `lookup` and `id` tell one.
pub fn row_to_json(row: &Row, lookup: Option<&Lookup>, id: Option<&str>) -> String {
    row.to_json_but(|index, text| {
        let reference = lookup.filter(|_| text.len() > KEPT_BYTES_MAX)?.column(index, id?, text.len())?;
        Some(to_json(&reference))
    })
}

/// `{"in_table": {...}}`.
pub fn to_json(reference: &Reference) -> serde_json::Value {
    serde_json::json!({ "in_table": reference })
}

/// The reverse of [`to_json`]; None for anything else.
pub fn from_json(json: &serde_json::Value) -> Option<Reference> {
    serde_json::from_value(json.get("in_table")?.clone()).ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::config::{Columns, Preset};
    use crate::source::{Column, Value};

    fn row(payload: usize) -> (Row, Lookup) {
        let column = |name: &str, type_oid| Column { name: name.into(), type_oid, key: false };
        let columns = vec![column("message_id", 2950), column("aggregate_id", 25), column("payload", 17)];
        let relation = Arc::new(Relation { oid: 1, schema: "public".into(), name: "outbox".into(), columns });
        let mapping = Mapping::resolve(&relation, &Columns::default(), Some(Preset::Walpost)).unwrap();
        let lookup = Lookup::of(&relation, &mapping).unwrap();
        let frame = Bytes::from(format!("7k{}", "x".repeat(payload)));
        let values = vec![Value::Text(0..1), Value::Text(1..2), Value::Text(2..2 + payload)];
        (Row { relation, frame, values }, lookup)
    }

    #[test]
    fn a_large_column_stays_in_the_table_and_the_small_ones_are_kept() {
        let (row, lookup) = row(KEPT_BYTES_MAX + 1);
        let json = row_to_json(&row, Some(&lookup), Some("7"));
        assert!(json.len() < 1_000, "{} bytes", json.len());
        let columns: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((columns[0][2].as_str(), columns[1][2].as_str()), (Some("7"), Some("k")));
        let reference = from_json(&columns[2][2]).unwrap();
        assert_eq!((reference.column.as_str(), reference.type_oid), ("payload", 17));
        assert_eq!(
            (reference.id_column.as_str(), reference.id_type_oid, reference.id.as_str()),
            ("message_id", 2950, "7")
        );
        assert_eq!(reference.bytes, KEPT_BYTES_MAX + 1);
        assert_eq!(Some(reference), lookup.payload("7", KEPT_BYTES_MAX + 1));
        assert!(Row::from_json(&json).is_none(), "it cannot be made again before the value is read");
    }

    #[test]
    fn an_id_that_may_be_of_another_column_is_referred_to_only_where_it_cannot_be() {
        let (row, _) = row(1);
        let both = |type_oid| {
            let mut relation = Relation::clone(&row.relation);
            relation.columns[0].type_oid = type_oid;
            relation.columns.push(Column { name: "id".into(), type_oid: 20, key: true });
            let relation = Arc::new(relation);
            let mapping = Mapping::resolve(&relation, &Columns::default(), Some(Preset::Walpost)).unwrap();
            Lookup::of(&relation, &mapping).unwrap()
        };
        let uuid = "53f6dcd7-3ace-44c9-a1af-81c605b524c6";
        assert_eq!(both(UUID_OID).payload(uuid, 1).map(|reference| reference.id_column), Some("message_id".into()));
        assert_eq!(both(UUID_OID).payload("7", 1), None, "the message_id is NULL");
        assert_eq!(both(25).payload("7", 1), None, "it may be the text of another row's");
    }

    #[test]
    fn what_is_small_or_cannot_be_referred_to_is_kept_whole() {
        let (small, lookup) = row(KEPT_BYTES_MAX);
        assert_eq!(row_to_json(&small, Some(&lookup), Some("7")), small.to_json());
        let (large, lookup) = row(KEPT_BYTES_MAX + 1);
        assert_eq!(row_to_json(&large, None, Some("7")).len(), large.to_json().len());
        assert_eq!(row_to_json(&large, Some(&lookup), None).len(), large.to_json().len());
        for odd in ["{}", "[]", "null", r#"{"in_table": {}}"#, r#"{"in_table": 1}"#] {
            assert_eq!(from_json(&serde_json::from_str(odd).unwrap()), None, "{odd}");
        }
    }
}
