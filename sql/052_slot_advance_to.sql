-- Moves a slot that nobody holds to a position that has been written: it then sends the transactions whose commit record
-- begins there or later. $1 slot, $2 position.
SELECT end_lsn::text FROM pg_replication_slot_advance($1::text, $2::text::pg_lsn)
