-- Rows to be published from the table. The words columns, outbox_messages, conditions and ordering are put in; among the
-- conditions the one of 044, which compares with the horizon.
SELECT columns FROM outbox_messages WHERE conditions ORDER BY ordering
