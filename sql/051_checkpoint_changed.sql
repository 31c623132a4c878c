-- Notes that what is published was seen to differ from this fingerprint: it will not equal it again, also where the change is
-- undone, since rows that committed meanwhile are in no stream. $1 slot, $2 the fingerprint as recorded.
UPDATE walpost.checkpoint
SET fingerprint = fingerprint || ' changed', updated_at = clock_timestamp()
WHERE slot_name = $1::text AND fingerprint = $2::text AND fingerprint NOT LIKE '% changed' AND state <> 'recovering'
