-- The slot with whatever columns this version has, who holds it, and what it has spilled to disk. $1 slot.
SELECT (to_jsonb(s) || jsonb_build_object(
    'current_lsn', CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
    'inactive_seconds', extract(epoch FROM clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz),
    'catalog_xmin_age', age(s.catalog_xmin),
    'holder', (
        SELECT jsonb_build_object(
            'pid', a.pid, 'user', a.usename, 'application', a.application_name,
            'address', coalesce(host(a.client_addr), CASE WHEN a.client_port = -1 THEN 'local socket' END),
            'since', to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'),
            'wait_event', a.wait_event)
        FROM pg_stat_activity a WHERE a.pid = s.active_pid),
    'spill_bytes', (SELECT t.spill_bytes FROM pg_stat_replication_slots t WHERE t.slot_name = s.slot_name)
))::text
FROM pg_replication_slots s
WHERE s.slot_name = $1::text
