-- Which of these queues are empty. $1 slot, $2 topics, $3 keys.
SELECT u.topic, u.key
FROM unnest($2::text[], $3::bytea[]) AS u (topic, key)
WHERE NOT EXISTS (
    SELECT FROM walpost.parked_messages p
    WHERE p.slot_name = $1::text AND p.topic = u.topic AND md5(p.key) = md5(u.key) AND p.key = u.key)
