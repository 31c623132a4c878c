-- A person goes on without the recovery that broke off. $1 slot.
UPDATE walpost.checkpoint
SET state = 'signed_off', holder = NULL, updated_at = clock_timestamp()
WHERE slot_name = $1::text AND state = 'recovering'
