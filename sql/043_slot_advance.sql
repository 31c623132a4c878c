-- Moves a slot that nobody holds to the present: what lies between is never sent. $1 slot.
SELECT end_lsn::text FROM pg_replication_slot_advance($1::text, pg_current_wal_lsn())
