-- Rows first_row to last_row of a measurement's load into its scratch table, rows_per_commit in each transaction. Not
-- durable at once: the log is the same, and it is there sooner.
DO $walpost$
DECLARE
    n bigint := first_row;
BEGIN
    SET LOCAL synchronous_commit = off;
    WHILE n <= last_row LOOP
        INSERT INTO outbox_messages (aggregate_type, aggregate_id, event_type, payload)
        SELECT 'bench', 'key-' || (i * 7919 % key_count), 'BenchRow',
            jsonb_build_object('row', i, 'text', substr(repeat(md5(i::text), text_bytes / 32 + 1), 1, text_bytes))
        FROM generate_series(n, least(n + rows_per_commit - 1, last_row)) AS i;
        COMMIT;
        SET LOCAL synchronous_commit = off;
        n := n + rows_per_commit;
    END LOOP;
END
$walpost$
