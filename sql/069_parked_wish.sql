-- Says what is to become of messages that wait for a person; the relay does it. $1 slot, $2 retry or discard, $3 the ids,
-- $4 whether all are meant. Returns the ids that changed.
UPDATE walpost.parked_messages
SET state = $2::text, updated_at = clock_timestamp()
WHERE slot_name = $1::text AND (id = ANY ($3::int8[]) OR $4::bool AND state = 'parked') AND state <> $2::text
RETURNING id
