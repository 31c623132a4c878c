-- The table of that name, whatever kind of relation it is. $1 schema (null: the search path decides), $2 name.
SELECT jsonb_build_object(
    'oid', c.oid::int8,
    'schema', n.nspname,
    'name', c.relname,
    'owner', pg_get_userbyid(c.relowner),
    'kind', c.relkind,
    'persistence', c.relpersistence,
    'replica_identity', c.relreplident,
    'row_security', c.relrowsecurity,
    'estimated_rows', c.reltuples::int8,
    'has_primary_key', EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
    'ancestors', (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'oid', a.relid::oid::int8, 'schema', an.nspname, 'name', ac.relname)), '[]')
        FROM pg_partition_ancestors(c.oid) AS a (relid)
        JOIN pg_class ac ON ac.oid = a.relid JOIN pg_namespace an ON an.oid = ac.relnamespace
        WHERE c.relispartition AND a.relid <> c.oid),
    'unlogged_partitions', (
        SELECT coalesce(jsonb_agg(t.relid::text), '[]')
        FROM pg_partition_tree(c.oid) t JOIN pg_class pc ON pc.oid = t.relid
        WHERE c.relkind = 'p' AND t.isleaf AND pc.relpersistence <> 'p'),
    'children', (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'oid', i.inhrelid::int8, 'schema', cn.nspname, 'name', cc.relname)), '[]')
        FROM pg_inherits i
        JOIN pg_class cc ON cc.oid = i.inhrelid JOIN pg_namespace cn ON cn.oid = cc.relnamespace
        WHERE c.relkind = 'r' AND i.inhparent = c.oid),
    'columns', (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'name', a.attname,
                   'type_oid', a.atttypid::int8,
                   'type', format_type(a.atttypid, a.atttypmod),
                   'not_null', a.attnotnull,
                   'identity', a.attidentity <> '',
                   'generated', a.attgenerated,
                   'key', EXISTS (SELECT FROM pg_index i
                                  WHERE i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY (i.indkey)))
                   ORDER BY a.attnum), '[]')
        FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
)::text
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = $2::text
  AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND CASE WHEN $1::text IS NULL THEN pg_table_is_visible(c.oid) ELSE n.nspname = $1::text END
