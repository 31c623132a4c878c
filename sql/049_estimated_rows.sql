-- The planner's estimate of the rows of a table and its partitions; null where nothing was ever analysed. $1 the table's
-- oid.
SELECT sum(c.reltuples) FILTER (WHERE c.reltuples >= 0)::float8
FROM pg_class c
WHERE c.relkind = 'r' AND c.oid IN (SELECT $1::oid UNION ALL SELECT relid FROM pg_partition_tree($1::oid))
