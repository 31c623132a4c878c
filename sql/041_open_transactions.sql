-- Who keeps a slot from being made, or its restart_lsn from moving: transactions with an id, oldest first. Their text
-- is hidden from roles that are neither theirs nor members of pg_read_all_stats. $1 the most to list.
SELECT pid, usename, application_name, datname, state, seconds, prepared
FROM (SELECT a.pid, a.usename::text, a.application_name, a.datname::text, a.state,
             extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds, NULL AS prepared,
             age(a.backend_xid) AS age
      FROM pg_stat_activity a
      WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
      UNION ALL
      SELECT NULL, x.owner::text, NULL, x.database::text, 'prepared',
             extract(epoch FROM clock_timestamp() - x.prepared)::float8, x.gid, age(x.transaction)
      FROM pg_prepared_xacts x) open
ORDER BY age DESC
LIMIT $1::int8
