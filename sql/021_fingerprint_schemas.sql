-- The part of the fingerprint for schemas in the publication, which exist on 15+.
coalesce(
        (SELECT CASE WHEN length(listed.rows) > 200 THEN md5(listed.rows) ELSE listed.rows END
         FROM (SELECT string_agg(s.oid::text || '/' || s.xmin::text, ',' ORDER BY s.oid) AS rows
               FROM pg_publication_namespace s JOIN pg_publication p ON p.oid = s.pnpubid
               WHERE p.pubname = $1::text) listed), 'none')
