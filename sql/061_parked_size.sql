-- How much is parked. $1 slot.
SELECT count(*), coalesce(sum(value_bytes), 0)::int8 FROM walpost.parked_messages WHERE slot_name = $1::text
