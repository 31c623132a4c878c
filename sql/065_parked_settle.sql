-- Ends what was published or discarded, and sets aside again what was refused once more. $1 slot, $2 the ids that are done,
-- $3 the ids that failed, with $4 their reasons and $5 errors. Returns the number and bytes that are gone.
WITH failed AS (
    UPDATE walpost.parked_messages p
    SET state = 'parked', reason = f.reason, error = f.error, attempts = p.attempts + 1, updated_at = clock_timestamp()
    FROM unnest($3::int8[], $4::text[], $5::text[]) AS f (id, reason, error)
    WHERE p.slot_name = $1::text AND p.id = f.id
), done AS (
    DELETE FROM walpost.parked_messages WHERE slot_name = $1::text AND id = ANY ($2::int8[])
    RETURNING value_bytes
)
SELECT count(*), coalesce(sum(value_bytes), 0)::int8 FROM done
