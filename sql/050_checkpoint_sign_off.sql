-- $1 slot, $2 epoch, $3 who has streamed. One who comes late must not sign off the relay that has taken over since.
UPDATE walpost.checkpoint
SET state = 'signed_off', holder = NULL, updated_at = clock_timestamp()
WHERE slot_name = $1::text AND epoch = $2::int8 AND state <> 'recovering' AND holder = $3::text
