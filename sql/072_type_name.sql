-- The name of a type as SQL takes it, without a limit of length; null where there is none. $1 its oid.
SELECT CASE WHEN EXISTS (SELECT FROM pg_type WHERE oid = $1::int8::oid) THEN format_type($1::int8::oid, -1) END
