-- $1 slot, $2 epoch, $3 who streams now. A record that another command is healing is left alone.
UPDATE walpost.checkpoint
SET state = 'streaming', holder = $3::text, updated_at = clock_timestamp()
WHERE slot_name = $1::text AND epoch = $2::int8 AND state <> 'recovering'
