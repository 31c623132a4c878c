-- The same on 17+, as a slot that is copied to standbys, so that a failover keeps it (where the servers synchronise
-- slots; elsewhere the mark changes nothing).
SELECT lsn FROM pg_create_logical_replication_slot('walpost', 'pgoutput', false, false, true);
