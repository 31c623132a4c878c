-- Which history of LSNs this connection sees: IDENTIFY_SYSTEM's answer, through SQL.
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       CASE WHEN pg_is_in_recovery() THEN NULL ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,
       CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_flush_lsn()::text END,
       current_database()::text,
       (SELECT oid FROM pg_database WHERE datname = current_database())
