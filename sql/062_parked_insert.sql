-- Parks messages, in this order; one that is there already is left as it is. $1 slot, $2 system identifier, $3 epoch, then
-- one array for each column; $16 who streams, NULL where they come from elsewhere than the log. A row of the log that is
-- confirmed is left out: it is in Kafka, or was parked by another holder of the slot; and the statement of a connection that
-- was given up may be carried out late, when its message was parked by another one, published and is gone. Nothing is parked
-- for a relay that is not the record's holder any more: its successor has read what is parked. The lock makes the two take
-- turns. Returns what was added, and how many are of another epoch or holder than the record, which are not parked either.
WITH record AS MATERIALIZED (
    SELECT c.confirmed_lsn FROM walpost.checkpoint c
    WHERE c.slot_name = $1::text AND c.epoch = $3::int8 AND c.holder = $16::text
    FOR SHARE
), asked AS (
    SELECT m.*, $16::text IS NULL OR m.commit_lsn::pg_lsn >= (SELECT confirmed_lsn FROM record) AS is_open
    FROM unnest($4::text[], $5::int8[], $6::text[], $7::text[], $8::bytea[], $9::bytea[], $10::text[], $11::text[],
                $12::int8[], $13::text[], $14::text[], $15::text[])
         WITH ORDINALITY AS m (commit_lsn, ordinal, message_id, topic, key, value, headers, row, value_bytes, state, reason,
                               error, place)
), added AS (
    INSERT INTO walpost.parked_messages (
        slot_name, system_identifier, epoch, commit_lsn, ordinal, message_id, topic, key, value, headers, row, value_bytes,
        state, reason, error)
    SELECT $1::text, $2::text, $3::int8, m.commit_lsn::pg_lsn, m.ordinal,
           coalesce(m.message_id, md5(concat_ws('|', m.row, m.key::text, m.value::text, m.headers))), m.topic, m.key, m.value, m.headers::json, m.row::json,
           m.value_bytes, m.state, m.reason, m.error
    FROM asked m
    WHERE m.is_open
    ORDER BY m.place
    ON CONFLICT DO NOTHING
    RETURNING value_bytes
)
SELECT count(*), coalesce(sum(value_bytes), 0)::int8, (SELECT count(*) FROM asked WHERE is_open IS NULL) FROM added
