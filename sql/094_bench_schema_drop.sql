-- Schema walpost, which a measurement made, as long as nobody else has come to use it.
DO $walpost$
BEGIN
    LOCK TABLE walpost.checkpoint, walpost.parked_messages IN ACCESS EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM walpost.checkpoint) AND NOT EXISTS (SELECT FROM walpost.parked_messages) THEN
        DROP SCHEMA walpost CASCADE;
    END IF;
END
$walpost$
