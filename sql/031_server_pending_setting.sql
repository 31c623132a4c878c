-- What the configuration files say for a setting that waits for a restart. Needs pg_read_all_settings. $1 setting.
SELECT setting FROM pg_file_settings WHERE name = $1::text AND error IS NULL ORDER BY seqno DESC LIMIT 1
