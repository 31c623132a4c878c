-- Other slots whose relays read the same publication. $1 slot, $2 oid of the publication.
SELECT slot_name FROM walpost.checkpoint
WHERE slot_name <> $1::text AND starts_with(fingerprint, 'publication=' || $2::oid::text || '/')
ORDER BY slot_name
