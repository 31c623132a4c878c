-- How far the log has been written, also where it is not flushed yet.
SELECT pg_current_wal_insert_lsn()::text
