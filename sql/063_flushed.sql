-- Up to where the log is on disk: what was committed before this statement lies before it.
SELECT pg_current_wal_flush_lsn()::text
