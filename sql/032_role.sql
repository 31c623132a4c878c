-- What the connected role may do. $1 schema of the table, $2 oid of the table (0: there is none).
SELECT jsonb_build_object(
    'name', r.rolname,
    'superuser', r.rolsuper,
    'replication', r.rolreplication,
    'bypass_row_security', r.rolsuper OR r.rolbypassrls,
    'replication_member', EXISTS (
        SELECT FROM pg_roles m
        WHERE m.rolname IN ('rds_replication', 'rds_superuser')
          AND pg_has_role(r.oid, m.oid, 'MEMBER')),
    'create_in_database', has_database_privilege(r.oid, current_database(), 'CREATE'),
    'table_schema_usage', (
        SELECT has_schema_privilege(r.oid, n.oid, 'USAGE') FROM pg_namespace n WHERE n.nspname = $1::text),
    'table_select', (SELECT has_table_privilege(r.oid, c.oid, 'SELECT') FROM pg_class c WHERE c.oid = $2::oid),
    'table_owner', (SELECT pg_has_role(r.oid, c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = $2::oid),
    'walpost_usage', (
        SELECT has_schema_privilege(r.oid, n.oid, 'USAGE') FROM pg_namespace n WHERE n.nspname = 'walpost'),
    'checkpoint_missing', (
        SELECT (SELECT coalesce(jsonb_agg(wanted.privilege), '[]')
                FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted (privilege)
                WHERE NOT has_table_privilege(r.oid, c.oid, wanted.privilege))
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'walpost' AND c.relname = 'checkpoint'),
    'parked_missing', (
        SELECT (SELECT coalesce(jsonb_agg(wanted.privilege), '[]')
                FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted (privilege)
                WHERE NOT has_table_privilege(r.oid, c.oid, wanted.privilege))
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'walpost' AND c.relname = 'parked_messages')
)::text
FROM pg_roles r
WHERE r.rolname = current_user
