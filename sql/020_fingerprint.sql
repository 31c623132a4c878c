-- What was published, as one text: changes when the publication, what it carries, or the table is changed or replaced.
-- An expression, part of other statements. $1 publication, $2 schema and $3 name of the table. A long list is hashed.
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
        (SELECT c.oid::text || '/' || c.relpersistence::text
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = $2::text AND c.relname = $3::text), 'none'))
