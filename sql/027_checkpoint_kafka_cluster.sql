-- Stamps the record with the cluster that its first run met. $1 slot, $2 Kafka cluster id.
UPDATE walpost.checkpoint
SET kafka_cluster_id = $2::text, updated_at = clock_timestamp()
WHERE slot_name = $1::text AND kafka_cluster_id IS NULL
