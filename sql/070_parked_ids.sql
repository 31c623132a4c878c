-- Which messages are parked. $1 slot.
SELECT message_id FROM walpost.parked_messages WHERE slot_name = $1::text
