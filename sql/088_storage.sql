-- Which file holds each of the tables that a read of this one reads. A table that is rewritten or truncated gets another
-- file, in which a snapshot from before sees nothing. $1 the table's oid.
WITH RECURSIVE family AS (
    SELECT $1::oid AS oid
    UNION
    SELECT i.inhrelid FROM pg_inherits i JOIN family f ON f.oid = i.inhparent
)
SELECT oid, pg_relation_filenode(oid) FROM family
