-- $1 slot.
SELECT relay_name, system_identifier, timeline, database_oid, table_oid, kafka_cluster_id, fingerprint, epoch,
       confirmed_lsn::text, horizon::text, pending_horizon::text, pending_lsn::text, state,
       extract(epoch FROM clock_timestamp() - updated_at)::float8, holder
FROM walpost.checkpoint
WHERE slot_name = $1::text
