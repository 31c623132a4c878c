-- The end of a recovery: everything that committed before the new slot's consistent point is in Kafka. Changes nothing
-- where the slot is not the one that the recovery made, or is lost again. $1 slot, $2 epoch of the record, $3 the consistent
-- point, $4 system identifier, $5 timeline, $6 database oid, $7 table oid, $8 Kafka cluster id, $9 fingerprint.
--
-- The horizon is the slot's catalog_xmin, as where a record is begun: every transaction with an older id had ended before
-- the slot was made, so the rows that it left were seen.
UPDATE walpost.checkpoint c
SET system_identifier = $4::text,
    timeline = $5::int8,
    database_oid = $6::oid,
    table_oid = $7::oid,
    kafka_cluster_id = coalesce(c.kafka_cluster_id, $8::text),
    fingerprint = $9::text,
    epoch = greatest(extract(epoch FROM clock_timestamp())::int8, c.epoch + 1),
    confirmed_lsn = s.confirmed_flush_lsn,
    horizon = (CASE WHEN whole.id > latest.id THEN whole.id - 4294967296 ELSE whole.id END)::text::xid8,
    pending_horizon = NULL,
    pending_lsn = NULL,
    state = 'signed_off',
    holder = NULL,
    updated_at = clock_timestamp()
FROM pg_replication_slots s
CROSS JOIN LATERAL (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 AS id) latest
CROSS JOIN LATERAL (SELECT latest.id / 4294967296 * 4294967296 + s.catalog_xmin::text::int8 AS id) whole
WHERE c.slot_name = $1::text AND c.state = 'recovering' AND c.epoch = $2::int8
  AND s.slot_name = c.slot_name AND s.confirmed_flush_lsn = $3::text::pg_lsn AND s.wal_status IS DISTINCT FROM 'lost'
RETURNING c.epoch, c.confirmed_lsn::text, c.horizon::text
