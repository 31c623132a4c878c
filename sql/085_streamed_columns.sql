-- A table's columns as the stream tells them: a domain by what it is made of. $1 the table's oid.
SELECT coalesce(jsonb_agg(jsonb_build_object(
           'name', a.attname,
           'type_oid', made_of.oid::int8,
           'generated', a.attgenerated,
           'sequence', made_of.oid IN (20, 21, 23) AND (
               a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid) LIKE '%nextval(%', false)))
           ORDER BY a.attnum), '[]')::text
FROM pg_attribute a
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
CROSS JOIN LATERAL (
    WITH RECURSIVE chain AS (
        SELECT t.oid, t.typtype, t.typbasetype FROM pg_type t WHERE t.oid = a.atttypid
        UNION ALL
        SELECT t.oid, t.typtype, t.typbasetype FROM chain c JOIN pg_type t ON t.oid = c.typbasetype
        WHERE c.typtype = 'd')
    SELECT oid FROM chain WHERE typtype <> 'd') made_of
WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped
