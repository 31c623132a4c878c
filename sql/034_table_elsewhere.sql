-- Schemas that hold a table of that name, for a hint when the search path does not reach it. $1 name.
SELECT n.nspname, has_schema_privilege(n.oid, 'USAGE'), current_setting('search_path')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = $1::text AND c.relkind IN ('r', 'p')
ORDER BY n.nspname
