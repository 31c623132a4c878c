-- A text as the stream carries it: in UTF-8, or as it is where the database checks no encoding. The relay puts the column's
-- name in place of payload.
convert_to(payload::text, CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)
