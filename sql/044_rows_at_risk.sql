-- Rows that may not have been published: those whose xmin is at or after the horizon, compared by age because 32-bit
-- ids wrap. {table} is the table. $1 horizon.
SELECT count(*)::int8 FROM {table} WHERE age(xmin) <= age($1::text::xid8::xid)
