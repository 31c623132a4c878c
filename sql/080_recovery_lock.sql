-- Excludes a second recovery of a slot, for the life of this session. $1 slot.
SELECT pg_try_advisory_lock(hashtextextended('walpost recover ' || $1::text, 0))
