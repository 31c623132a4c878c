-- $1 slot, $2 epoch, $3 the state, $4 who sets it. A record that another command is healing is left alone.
UPDATE walpost.checkpoint
SET state = $3::text, holder = $4::text, updated_at = clock_timestamp()
WHERE slot_name = $1::text AND epoch = $2::int8 AND state <> 'recovering'
