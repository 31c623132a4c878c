-- $1 slot.
DELETE FROM walpost.checkpoint WHERE slot_name = $1::text
