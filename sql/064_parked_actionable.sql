-- What the relay may work on: all that stands before the first message of its queue that waits for a person. Oldest first.
-- $1 slot, $2 system identifier, $3 how many, $4 bytes of values (the first one always).
SELECT id, epoch, commit_lsn::text, ordinal, message_id, topic, key, value, headers::text, row::text, state, value_bytes
FROM (
    SELECT p.*, sum(p.value_bytes) OVER (ORDER BY (p.system_identifier = $2::text), p.commit_lsn, p.ordinal, p.id) AS total
    FROM (
        SELECT q.*,
               q.topic IS NOT NULL AND length(q.key) > 0
               AND bool_or(q.state = 'parked') OVER (
                   PARTITION BY q.topic, q.key
                   ORDER BY (q.system_identifier = $2::text), q.commit_lsn, q.ordinal, q.id) AS blocked
        FROM walpost.parked_messages q
        WHERE q.slot_name = $1::text
    ) p
    WHERE p.state <> 'parked' AND NOT p.blocked
    ORDER BY (p.system_identifier = $2::text), p.commit_lsn, p.ordinal, p.id
    LIMIT $3::int8
) found
WHERE total - value_bytes < $4::int8
ORDER BY (system_identifier = $2::text), commit_lsn, ordinal, id
