-- Parks messages, in this order; one that is there already is left as it is. $1 slot, $2 system identifier, $3 epoch, then
-- one array for each column. Returns what was added.
WITH added AS (
    INSERT INTO walpost.parked_messages (
        slot_name, system_identifier, epoch, commit_lsn, ordinal, message_id, topic, key, value, headers, row, value_bytes,
        state, reason, error)
    SELECT $1::text, $2::text, $3::int8, m.commit_lsn::pg_lsn, m.ordinal,
           coalesce(m.message_id, md5(concat_ws('|', m.row, m.key::text, m.value::text, m.headers))), m.topic, m.key, m.value, m.headers::json, m.row::json,
           m.value_bytes, m.state, m.reason, m.error
    FROM unnest($4::text[], $5::int8[], $6::text[], $7::text[], $8::bytea[], $9::bytea[], $10::text[], $11::text[],
                $12::int8[], $13::text[], $14::text[], $15::text[])
         WITH ORDINALITY AS m (commit_lsn, ordinal, message_id, topic, key, value, headers, row, value_bytes, state, reason,
                               error, place)
    ORDER BY m.place
    ON CONFLICT DO NOTHING
    RETURNING value_bytes
)
SELECT count(*), coalesce(sum(value_bytes), 0)::int8 FROM added
