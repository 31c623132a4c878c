//! Shards: several publications of one outbox, each of which passes only the rows whose key hashes to its own number, so
//! that as many slots share the printing and sending of the rows. Pure: names and row filters.
//!
//! ```text
//!  key ─▶ hash of its type ─▶ & 2147483647 ─▶ % shards ─▶ the one shard that passes the row
//!  NULL ─────────────────────────────────────────────▶ shard 0
//! ```
//!
//! It must never leave a row to no shard, nor to two. A row filter that is NULL drops its row, so none is ever NULL.

use crate::names::quote_ident;

/// So many shards an outbox may have. Each is a slot and a walsender that decodes the whole log.
pub const MOST_SHARDS: u32 = 64;

/// What Postgres keeps of a name, in bytes.
const NAME_BYTES: usize = 63;

/// Why an outbox cannot be divided as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    #[error("{count} shards are not possible: an outbox has 1 to {MOST_SHARDS}; each one decodes the whole log")]
    Count { count: u32 },
    #[error("there is no shard {index} of {count}: shards are counted from 0; the last one is {}", count.saturating_sub(1))]
    Index { index: u32, count: u32 },
    #[error(
        "the name {name:?} of a shard's {what} has {} bytes, and Postgres keeps {NAME_BYTES}; choose a shorter postgres.{what}",
        name.len()
    )]
    Name { what: &'static str, name: String },
    #[error(
        "rows cannot be divided by column \"{column}\": a row filter cannot hash its type {type_name}; make it text, varchar, \
         char, name, smallint, integer, bigint, oid, numeric, uuid or bytea, or stay with one slot"
    )]
    KeyType { column: String, type_name: String },
}

/// One shard of an outbox: its number, of how many, in which division. There is none that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
    generation: u32,
}

impl Shard {
    /// Shard `index`, from 0, of `count`, 1 to [`MOST_SHARDS`]. Each division of an outbox has a `generation` of its own, so
    /// that the slots of two of them can exist at once.
    ///
    /// # Errors
    ///
    /// There cannot be so many, or there is none of this number.
    pub fn new(generation: u32, index: u32, count: u32) -> Result<Shard, ShardError> {
        if !(1..=MOST_SHARDS).contains(&count) {
            return Err(ShardError::Count { count });
        }
        if index >= count {
            return Err(ShardError::Index { index, count });
        }
        Ok(Shard { index, count, generation })
    }

    /// All shards of a division, in the order of their numbers.
    ///
    /// # Errors
    ///
    /// There cannot be so many.
    pub fn all(generation: u32, count: u32) -> Result<Vec<Shard>, ShardError> {
        let first = Shard::new(generation, 0, count)?;
        Ok((0..count).map(|index| Shard { index, ..first }).collect())
    }

    /// Its number, from 0.
    pub fn index(self) -> u32 {
        self.index
    }

    /// The name of its slot, where the outbox's is `slot`.
    ///
    /// # Errors
    ///
    /// The name is longer than Postgres keeps: two shards could get the same one.
    pub fn slot(self, slot: &str) -> Result<String, ShardError> {
        self.name("slot", slot)
    }

    /// The name of its publication, where the outbox's is `publication`, bare.
    ///
    /// # Errors
    ///
    /// The name is longer than Postgres keeps.
    pub fn publication(self, publication: &str) -> Result<String, ShardError> {
        self.name("publication", publication)
    }

    fn name(self, what: &'static str, base: &str) -> Result<String, ShardError> {
        let name = format!("{base}_{}_{}", self.generation, self.index);
        if name.len() > NAME_BYTES { Err(ShardError::Name { what, name }) } else { Ok(name) }
    }

    /// The condition, for a row filter or a WHERE, under which a row is this shard's. `column` is the key's, bare; its type is
    /// `type_oid`, in words `type_name`. It is true for one shard of a division and false, never NULL, for all others.
    ///
    /// # Errors
    ///
    /// A row filter takes built-in immutable functions only, and none of them hashes this type.
    pub fn row_filter(self, column: &str, type_oid: u32, type_name: &str) -> Result<String, ShardError> {
        let Some(hash) = hash(&quote_ident(column), type_oid) else {
            return Err(ShardError::KeyType { column: column.to_owned(), type_name: type_name.to_owned() });
        };
        let Shard { index, count, .. } = self;
        // The sign goes by a mask: abs() of the smallest integer is an error, and the remainder of a negative one is negative.
        Ok(format!("((COALESCE({hash}, 0) & 2147483647) % {count}) = {index}"))
    }
}

/// The hash of a key, an `integer`. Equal keys must have equal hashes; keys that are printed alike are equal in each of these
/// types. An enum, a domain or `citext` is a type of a user's, which no row filter may name.
fn hash(column: &str, type_oid: u32) -> Option<String> {
    let function = match type_oid {
        18 => "hashchar",
        19 => "hashname",
        20 => "hashint8",
        21 => "hashint2",
        23 => "hashint4",
        25 | 1043 => "hashtext",
        26 => "hashoid",
        1042 => "hashbpchar",
        1700 => "hash_numeric",
        2950 => "uuid_hash",
        // Before 18 no function of SQL hashes bytes.
        17 => return Some(format!("pg_catalog.hashtext(pg_catalog.encode({column}, 'hex'))")),
        _ => return None,
    };
    Some(format!("pg_catalog.{function}({column})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_the_division_and_the_number_and_are_never_cut() {
        let shard = Shard::new(3, 1, 2).unwrap();
        assert_eq!(shard.slot("walpost").unwrap(), "walpost_3_1");
        assert_eq!(shard.publication("Odd Name").unwrap(), "Odd Name_3_1");
        assert_eq!(shard.slot(&"a".repeat(59)).unwrap().len(), 63);
        let error = shard.slot(&"a".repeat(60)).unwrap_err().to_string();
        assert!(error.contains("64 bytes") && error.contains("shorter postgres.slot"), "{error}");
        // Bytes count, not letters.
        assert!(shard.publication(&"é".repeat(30)).is_err());
    }

    #[test]
    fn there_is_no_shard_outside_its_division() {
        for count in [0, MOST_SHARDS + 1, u32::MAX] {
            assert_eq!(Shard::new(1, 0, count), Err(ShardError::Count { count }));
            assert_eq!(Shard::all(1, count), Err(ShardError::Count { count }));
        }
        let error = Shard::new(1, 2, 2).unwrap_err().to_string();
        assert_eq!(error, "there is no shard 2 of 2: shards are counted from 0; the last one is 1");
        let indexes: Vec<u32> = Shard::all(1, 3).unwrap().into_iter().map(Shard::index).collect();
        assert_eq!(indexes, [0, 1, 2]);
    }

    #[test]
    fn a_key_that_a_filter_cannot_hash_is_refused_with_its_type() {
        let shard = Shard::new(1, 0, 2).unwrap();
        let error = shard.row_filter("owner", 70_000, "order_kind").unwrap_err().to_string();
        assert!(error.contains("\"owner\"") && error.contains("order_kind") && error.contains("bigint"), "{error}");
        let filter = shard.row_filter("Odd \" Key", 25, "text").unwrap();
        assert_eq!(filter, "((COALESCE(pg_catalog.hashtext(\"Odd \"\" Key\"), 0) & 2147483647) % 2) = 0");
    }
}
