-- The publication, and whether and how it carries the table. $1 publication, $2 schema, $3 name and $4 oid of the table
-- (0: there is none). The view's columns attnames and rowfilter exist on 15+, pubgencols on 18.
WITH family AS MATERIALIZED (
    -- The table, the partitions below it, the partitioned tables above it, and what inherits from it.
    SELECT n.nspname, c.relname
    FROM (SELECT $4::oid AS relid
          UNION SELECT relid FROM pg_partition_tree($4::oid)
          UNION SELECT relid FROM pg_partition_ancestors($4::oid) AS a (relid)
          UNION SELECT inhrelid FROM pg_inherits WHERE inhparent = $4::oid) relatives
    JOIN pg_class c ON c.oid = relatives.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    UNION SELECT $2::text, $3::text
)
SELECT jsonb_build_object(
    'oid', p.oid::int8,
    'name', p.pubname,
    'owner', pg_get_userbyid(p.pubowner),
    'owned', pg_has_role(p.pubowner, 'USAGE'),
    'all_tables', p.puballtables,
    'inserts', p.pubinsert,
    'updates', p.pubupdate,
    'deletes', p.pubdelete,
    'truncates', p.pubtruncate,
    'via_root', p.pubviaroot,
    'in_itself', EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = $4::oid),
    'in_ancestor', EXISTS (
        SELECT FROM pg_publication_rel r JOIN pg_partition_ancestors($4::oid) AS a (relid) ON r.prrelid = a.relid
        WHERE r.prpubid = p.oid AND r.prrelid <> $4::oid),
    'in_schema', {in_schema},
    'tables', (
        SELECT coalesce(jsonb_agg(jsonb_build_object('schema', n.nspname, 'name', c.relname)), '[]')
        FROM (SELECT r.prrelid FROM pg_publication_rel r WHERE r.prpubid = p.oid ORDER BY r.oid LIMIT 50) r
        JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace),
    'published', (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'schema', t.schemaname, 'name', t.tablename,
                   'columns', to_jsonb(t) -> 'attnames', 'row_filter', to_jsonb(t) ->> 'rowfilter')
                   ORDER BY t.schemaname <> $2::text OR t.tablename <> $3::text), '[]')
        FROM pg_publication_tables t
        WHERE t.pubname = p.pubname AND (t.schemaname, t.tablename) IN (SELECT nspname, relname FROM family)),
    'strangers', (
        SELECT coalesce(jsonb_agg(jsonb_build_object('schema', t.schemaname, 'name', t.tablename)), '[]')
        FROM (SELECT schemaname, tablename FROM pg_publication_tables
              WHERE pubname = p.pubname AND (schemaname, tablename) NOT IN (SELECT nspname, relname FROM family)
              ORDER BY schemaname = 'walpost', schemaname, tablename LIMIT 5) t)
)::text
FROM pg_publication p
WHERE p.pubname = $1::text
