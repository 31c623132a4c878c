-- The server, its limits and who uses them. Settings that a version does not have are absent.
SELECT jsonb_build_object(
    'version', current_setting('server_version_num')::int,
    'version_text', current_setting('server_version'),
    'in_recovery', pg_is_in_recovery(),
    'database', current_database(),
    'database_oid', (SELECT oid::int8 FROM pg_database WHERE datname = current_database()),
    'encoding', (SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()),
    'clock', extract(epoch FROM clock_timestamp()),
    'settings', (SELECT jsonb_object_agg(name, jsonb_build_object(
                     'setting', setting, 'unit', unit, 'pending_restart', pending_restart))
                 FROM pg_settings
                 WHERE name IN ('wal_level', 'max_replication_slots', 'max_wal_senders', 'wal_sender_timeout',
                                'max_slot_wal_keep_size', 'idle_replication_slot_timeout', 'synchronous_commit',
                                'synchronized_standby_slots')),
    'senders_used', (SELECT count(*) FROM pg_stat_replication),
    'slots', (SELECT coalesce(jsonb_agg(jsonb_build_object(
                  'name', s.slot_name, 'type', s.slot_type, 'database', s.database, 'active', s.active,
                  'retained_bytes', CASE WHEN pg_is_in_recovery() THEN NULL
                                         ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn) END)
                  ORDER BY s.slot_name), '[]')
              FROM pg_replication_slots s)
)::text
