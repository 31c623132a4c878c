-- From here on nothing may stream from the slot. The horizon stays: a recovery that breaks off starts over with it. $1 slot,
-- $2 epoch and $3 confirmed LSN of the record as it was looked at, $4 who recovers.
UPDATE walpost.checkpoint
SET state = 'recovering', holder = $4::text, updated_at = clock_timestamp()
WHERE slot_name = $1::text AND epoch = $2::int8 AND confirmed_lsn = $3::text::pg_lsn
