-- What was published, as one text: changes when the publication, what it carries, or the table is changed or replaced.
-- An expression, part of other statements. One partition outside the log counts as the table: its rows are in no stream.
-- pg_partition_tree() would wait for the locks of DDL. $1 publication, $2 schema and $3 name of the table. A long list is hashed.
concat_ws(' ',
    'publication=' || coalesce(
        (SELECT p.oid::text || '/' || p.xmin::text FROM pg_publication p WHERE p.pubname = $1::text), 'none'),
    'tables=' || coalesce(
        (SELECT CASE WHEN length(listed.rows) > 200 THEN md5(listed.rows) ELSE listed.rows END
         FROM (SELECT string_agg(r.oid::text || '/' || r.xmin::text, ',' ORDER BY r.oid) AS rows
               FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
               WHERE p.pubname = $1::text) listed), 'none'),
    'schemas=' || {schemas},
    'table=' || coalesce(
        (SELECT c.oid::text || '/' || CASE WHEN EXISTS (
             WITH RECURSIVE part AS (
                 SELECT c.oid AS id UNION ALL
                 SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.id)
             SELECT FROM part JOIN pg_class leaf ON leaf.oid = part.id WHERE leaf.relpersistence <> 'p'
         ) THEN 'u' ELSE 'p' END
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = $2::text AND c.relname = $3::text), 'none'))
