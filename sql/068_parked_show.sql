-- One parked message, whole. $1 slot, $2 id.
SELECT p.id, p.state, p.topic, p.key, p.message_id, p.reason, p.error, p.attempts, p.value_bytes,
       to_char(p.parked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
       extract(epoch FROM clock_timestamp() - p.parked_at)::float8,
       p.value, p.headers::text, p.row::text, p.epoch, p.commit_lsn::text, p.ordinal
FROM walpost.parked_messages p
WHERE p.slot_name = $1::text AND p.id = $2::int8
