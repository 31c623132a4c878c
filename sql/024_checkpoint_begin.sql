-- A new epoch that begins where the slot stands now. $1 slot, $2 relay, $3 system identifier, $4 timeline, $5 database
-- oid, $6 table oid, $7 Kafka cluster id (null: keep what is known), $8 fingerprint, $9 state, $10 the epoch of the record that
-- it may replace (null: any, -1: none).
--
-- The horizon comes from the slot itself: every transaction that it can still send has an id at or after its
-- catalog_xmin (32 bits, completed here by the server's current id). So it holds also for a slot that was made long
-- ago, and after a failover, where the ids of lost transactions are given out again.
--
-- A record that is being recovered is left alone: rows that nobody has published yet hang on its horizon.
INSERT INTO walpost.checkpoint AS c (
    slot_name, relay_name, system_identifier, timeline, database_oid, table_oid, kafka_cluster_id, fingerprint, epoch,
    confirmed_lsn, horizon, pending_horizon, pending_lsn, state, updated_at)
SELECT s.slot_name, $2::text, $3::text, $4::int8, $5::oid, $6::oid, $7::text, $8::text,
       extract(epoch FROM clock_timestamp())::int8, s.confirmed_flush_lsn,
       (CASE WHEN whole.id > latest.id THEN whole.id - 4294967296 ELSE whole.id END)::text::xid8,
       NULL, NULL, $9::text, clock_timestamp()
FROM pg_replication_slots s
CROSS JOIN LATERAL (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 AS id) latest
CROSS JOIN LATERAL (SELECT latest.id / 4294967296 * 4294967296 + s.catalog_xmin::text::int8 AS id) whole
WHERE s.slot_name = $1::text AND s.confirmed_flush_lsn IS NOT NULL
ON CONFLICT (slot_name) DO UPDATE SET
    relay_name = excluded.relay_name,
    system_identifier = excluded.system_identifier,
    timeline = excluded.timeline,
    database_oid = excluded.database_oid,
    table_oid = excluded.table_oid,
    kafka_cluster_id = coalesce(excluded.kafka_cluster_id, c.kafka_cluster_id),
    fingerprint = excluded.fingerprint,
    epoch = greatest(excluded.epoch, c.epoch + 1),
    confirmed_lsn = excluded.confirmed_lsn,
    horizon = coalesce(excluded.horizon, c.horizon),
    pending_horizon = NULL,
    pending_lsn = NULL,
    state = excluded.state,
    updated_at = excluded.updated_at
WHERE c.state <> 'recovering' AND ($10::int8 IS NULL OR c.epoch = $10::int8)
RETURNING epoch, confirmed_lsn::text, horizon::text
