-- After setup itself has changed the publication, in the same transaction: the record goes along, if it was of the
-- publication as it was before. $1 publication, $2 schema and $3 name of the table, $4 slot, $5 the fingerprint before.
UPDATE walpost.checkpoint
SET fingerprint = {fingerprint}, updated_at = clock_timestamp()
WHERE slot_name = $4::text AND fingerprint = $5::text
