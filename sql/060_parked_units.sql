-- The queues of a slot: each topic and key with the position at its head, which is null where that is of another server's
-- log, so before all that comes. $1 slot, $2 system identifier.
SELECT topic, key,
       CASE WHEN bool_and(system_identifier = $2::text) THEN min(commit_lsn)::text END,
       CASE WHEN bool_and(system_identifier = $2::text)
            THEN (array_agg(ordinal ORDER BY commit_lsn, ordinal))[1] END
FROM walpost.parked_messages
WHERE slot_name = $1::text AND topic IS NOT NULL AND length(key) > 0
GROUP BY topic, key
