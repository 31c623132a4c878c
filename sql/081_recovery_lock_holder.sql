-- Who holds that lock. $1 slot.
SELECT jsonb_build_object(
    'pid', l.pid, 'user', a.usename, 'application', a.application_name,
    'address', coalesce(host(a.client_addr), CASE WHEN a.client_port = -1 THEN 'local socket' END),
    'since', to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'),
    'wait_event', a.wait_event)::text
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (l.classid::int8 << 32) | l.objid::int8 = hashtextextended('walpost recover ' || $1::text, 0)
