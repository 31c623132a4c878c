-- A value that stayed in the outbox when its message was parked, as bytes. The relay puts names in place of value,
-- outbox_messages, message_id and id_type; value is the column where that is a bytea, else the expression of 071. $1 the id as
-- text.
SELECT value FROM outbox_messages WHERE message_id = $1::text::id_type
