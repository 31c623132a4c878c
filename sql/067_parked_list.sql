-- What is parked, the messages that wait for a person first in each queue. $1 slot, $2 whether those behind are wanted,
-- $3 how many.
SELECT p.id, p.state, p.topic, p.key, p.message_id, p.reason, p.error, p.attempts, p.value_bytes,
       to_char(p.parked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
       extract(epoch FROM clock_timestamp() - p.parked_at)::float8,
       (SELECT count(*) FROM walpost.parked_messages b
        WHERE b.slot_name = p.slot_name AND b.topic = p.topic AND md5(b.key) = md5(p.key) AND b.key = p.key
          AND length(b.key) > 0 AND b.state = 'waiting')
FROM walpost.parked_messages p
WHERE p.slot_name = $1::text AND ($2::bool OR p.state <> 'waiting')
ORDER BY p.id
LIMIT $3::int8
