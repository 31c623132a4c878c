-- One row of a measurement's steady load into its scratch table. $1 the row's number, $2 how many keys there are, $3 the
-- bytes of its text.
INSERT INTO outbox_messages (aggregate_type, aggregate_id, event_type, payload)
VALUES ('bench', 'key-' || ($1::bigint * 7919 % $2::bigint), 'BenchRow',
    jsonb_build_object('row', $1::bigint, 'text', substr(repeat(md5($1::text), $3::int / 32 + 1), 1, $3::int)))
