-- The replication slot, made on its own: not in a transaction that has written anything. It waits for every transaction
-- that is open at that moment. Setup puts the configured name in place of walpost.
SELECT lsn FROM pg_create_logical_replication_slot('walpost', 'pgoutput', false, false);
