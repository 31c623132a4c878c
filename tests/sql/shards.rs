//! Shards on a real server: each row passes the filter of one of them and of no other, and a slot that is moved to a position
//! sends exactly the transactions that one which stopped there did not.

use std::collections::BTreeSet;

use walpost::lsn::Lsn;
use walpost::names::quote_ident;
use walpost::postgres::catalog::{COLUMN_LISTS, ColumnFacts};
use walpost::postgres::shards::{Shard, ShardError};
use walpost::postgres::slot;

use super::place::*;

const SHARDS: u32 = 3;

/// Types of a key, and expressions that make one of a number `n`.
const KEYS: &[(&str, &str)] = &[
    (
        "text",
        "CASE n % 4 WHEN 0 THEN n::text WHEN 1 THEN 'schlüssel-' || n WHEN 2 THEN repeat('長', n) ELSE '鍵🔑 ' || n END",
    ),
    ("varchar(255)", "'k' || n"),
    ("char(20)", "'k' || n"),
    ("name", "('k' || n)::name"),
    ("smallint", "n - 100"),
    ("integer", "n * 10000019 - 1000000000"),
    ("bigint", "(n - 100) * 10000000000000019"),
    ("oid", "n::oid"),
    ("numeric", "n / 7.0 - 10"),
    ("uuid", "md5(n::text)::uuid"),
    ("bytea", "decode(md5(n::text), 'hex')"),
];

impl Place {
    async fn key_column(&self) -> ColumnFacts {
        self.table().await.columns.into_iter().find(|column| column.name == "Key").expect("a column of this name")
    }

    /// The ids of the rows that a publication passes: the text of the only column of each insert.
    async fn passed(&self, publication: &str) -> Vec<i64> {
        let sql = "SELECT convert_from(substr(data, 14), 'UTF8')::bigint \
                   FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', $2) \
                   WHERE get_byte(data, 0) = ascii('I')";
        let rows = self.client.query(sql, &[&self.slot, &quote_ident(publication)]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// The commit LSN of each transaction that a slot would send: what its Begin carries.
    async fn begins(&self, slot: &str) -> BTreeSet<Lsn> {
        let sql = "SELECT ('x' || encode(substr(data, 2, 8), 'hex'))::bit(64)::bigint \
                   FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', 'walpost') \
                   WHERE get_byte(data, 0) = ascii('B')";
        let rows = self.client.query(sql, &[&slot]).await.unwrap();
        rows.iter().map(|row| Lsn(row.get::<_, i64>(0).unsigned_abs())).collect()
    }
}

#[tokio::test]
async fn every_row_passes_exactly_one_shard_whatever_its_key() {
    let place = Place::new("shards").await;
    if place.version < COLUMN_LISTS {
        place.sql("CREATE TABLE outbox_messages (id bigint PRIMARY KEY, \"Key\" text)").await;
        let filter = Shard::new(1, 0, SHARDS).unwrap().row_filter("Key", 25, "text").unwrap();
        let sql = format!("CREATE PUBLICATION p FOR TABLE outbox_messages WHERE ({filter})");
        let error = place.client.batch_execute(&sql).await.unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some("42601"), "PostgreSQL 14 has no row filters");
        return;
    }
    for (key_type, key) in KEYS {
        place.sql(&format!("CREATE TABLE outbox_messages (id bigint PRIMARY KEY, \"Key\" {key_type})")).await;
        let column = place.key_column().await;
        let shards = Shard::all(1, SHARDS).unwrap();
        for shard in &shards {
            let name = quote_ident(&shard.publication("walpost").unwrap());
            let filter = shard.row_filter(&column.name, column.type_oid, &column.type_name).unwrap();
            let options = "publish = 'insert', publish_via_partition_root = true";
            place
                .sql(&format!(
                    "CREATE PUBLICATION {name} FOR TABLE outbox_messages (id) WHERE ({filter}) WITH ({options})"
                ))
                .await;
        }
        slot::create(&place.client, place.version, &place.slot, WITHIN).await.unwrap();
        place.sql(&format!("INSERT INTO outbox_messages SELECT n, {key} FROM generate_series(1, 200) n")).await;
        place.sql("INSERT INTO outbox_messages VALUES (201, NULL)").await;
        let rows = if column.type_oid == 25 {
            place.sql("INSERT INTO outbox_messages VALUES (202, '')").await;
            202
        } else {
            201
        };
        let mut all = Vec::new();
        for shard in &shards {
            let passed = place.passed(&shard.publication("walpost").unwrap()).await;
            assert!(passed.len() > 20, "{key_type}: shard {} passes {} rows of {rows}", shard.index(), passed.len());
            assert_eq!(passed.contains(&201), shard.index() == 0, "{key_type}: a row without a key is shard 0's");
            all.extend(passed);
        }
        all.sort_unstable();
        assert_eq!(all, (1..=rows).collect::<Vec<i64>>(), "{key_type}");
        slot::drop(&place.client, &place.slot).await.unwrap();
        for shard in &shards {
            place.sql(&format!("DROP PUBLICATION {}", shard.publication("walpost").unwrap())).await;
        }
        place.sql("DROP TABLE outbox_messages").await;
    }
}

#[tokio::test]
async fn negative_hashes_belong_to_a_shard_too() {
    let place = Place::new("shards_negative").await;
    let shards = Shard::all(1, SHARDS).unwrap();
    let filters: Vec<String> = shards.iter().map(|shard| shard.row_filter("n", 23, "integer").unwrap()).collect();
    let times: Vec<String> = filters.iter().map(|filter| format!("({filter})::int")).collect();
    let sql = format!(
        "SELECT count(*) FILTER (WHERE hashint4(n) < 0)::text || ' ' || count(*) FILTER (WHERE {} <> 1)::text \
         FROM generate_series(-2000, 2000) n",
        times.join(" + ")
    );
    let counted = place.one(&sql).await;
    let (negative, wrong) = counted.split_once(' ').unwrap();
    assert!(negative.parse::<u32>().unwrap() > 1000, "{counted}");
    assert_eq!(wrong, "0");
}

#[tokio::test]
async fn a_type_of_a_users_own_cannot_be_hashed_and_the_server_agrees() {
    let place = Place::new("shards_type").await;
    place
        .sql("CREATE DOMAIN key_name AS text; CREATE TABLE outbox_messages (id bigint PRIMARY KEY, \"Key\" key_name)")
        .await;
    let column = place.key_column().await;
    let shard = Shard::new(1, 0, 2).unwrap();
    let refused = shard.row_filter(&column.name, column.type_oid, &column.type_name).unwrap_err();
    assert!(matches!(&refused, ShardError::KeyType { type_name, .. } if type_name.contains("key_name")), "{refused:?}");
    if place.version >= COLUMN_LISTS {
        let sql = "CREATE PUBLICATION p FOR TABLE outbox_messages WHERE (hashtext(\"Key\") % 2 = 0)";
        let error = place.client.batch_execute(sql).await.unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some("0A000"), "{error:?}");
    }
}

/// One slot stops at a position, another is moved to it: whatever commits meanwhile, each transaction is sent by one of them.
#[tokio::test]
async fn a_slot_moved_to_a_position_sends_what_commits_from_it_on_and_nothing_earlier() {
    let place = Place::new("shards_barrier").await;
    place.set_up().await;
    let after = format!("{}_after", place.slot);
    let stale =
        format!("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{after}'");
    place.sql(&stale).await;
    slot::create(&place.client, place.version, &after, WITHIN).await.unwrap();
    let insert = "INSERT INTO outbox_messages (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c')";
    // Open before the position, committed behind it.
    let open = connect(&place.config).await;
    open.batch_execute(&format!("BEGIN; {insert}")).await.unwrap();

    let mut writers = Vec::new();
    for _ in 0..4 {
        let client = connect(&place.config).await;
        writers.push(tokio::spawn(async move {
            for _ in 0..100 {
                client.batch_execute(insert).await.unwrap();
            }
        }));
    }
    let taken = connect(&place.config).await;
    let mut positions: Vec<Lsn> = Vec::new();
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        let row = taken.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await.unwrap();
        positions.push(row.get::<_, String>(0).parse().unwrap());
    }
    for writer in writers {
        writer.await.unwrap();
    }
    open.batch_execute("COMMIT").await.unwrap();

    let all = place.begins(&place.slot).await;
    assert_eq!(all.len(), 401);
    // Among them positions that are exactly where a commit record begins.
    let commits: Vec<Lsn> = all.iter().copied().collect();
    positions.extend([commits[100], commits[200], commits[400]]);
    positions.sort_unstable();
    positions.dedup();
    let chosen: BTreeSet<Lsn> = positions
        .iter()
        .step_by(positions.len() / 10 + 1)
        .chain(&[commits[100], commits[200], commits[400]])
        .copied()
        .collect();
    for position in chosen {
        if slot::facts(&place.client, &after).await.unwrap().unwrap().confirmed_flush_lsn > Some(position) {
            continue; // taken before the slot was made
        }
        assert_eq!(slot::advance_to(&place.client, &after, position).await.unwrap(), position);
        let later: BTreeSet<Lsn> = all.range(position..).copied().collect();
        assert_eq!(place.begins(&after).await, later, "moved to {position}");
    }
    slot::drop(&place.client, &after).await.unwrap();
    place.clean_up().await;
}

#[tokio::test]
async fn a_slot_is_moved_no_further_than_the_log_is_flushed_and_says_where_it_stands() {
    let place = Place::new("shards_flushed").await;
    place.set_up().await;
    let beyond = Lsn(place.end_of_wal().await.0 + (1 << 30));
    let reached = slot::advance_to(&place.client, &place.slot, beyond).await.unwrap();
    assert!(reached < beyond, "moved to {reached}");
    assert_eq!(place.slot_at().await, Some(reached));
    let back = slot::advance_to(&place.client, &place.slot, Lsn(1)).await.unwrap_err();
    assert_eq!(back.sqlstate(), Some("55000"), "{back:?}");
    place.clean_up().await;
}
