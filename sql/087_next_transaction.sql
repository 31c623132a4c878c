-- The id that the next transaction gets, or a later one.
SELECT pg_snapshot_xmax(pg_current_snapshot())::text
