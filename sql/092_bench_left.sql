-- Slots of measurements that were killed and could not clean up.
SELECT slot_name::text FROM pg_replication_slots
WHERE slot_name LIKE 'walpost\_bench\_%' AND NOT active AND database = current_database()
