-- Gives the record to another relay; the Kafka cluster is the one that its next run meets. $1 slot, $2 relay.
UPDATE walpost.checkpoint
SET relay_name = $2::text, kafka_cluster_id = NULL, updated_at = clock_timestamp()
WHERE slot_name = $1::text
