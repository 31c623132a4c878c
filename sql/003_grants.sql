-- The least that a relay's role needs, and nothing more. Setup puts the names of the role, the schema and the table in
-- place of relay, public and outbox_messages. The role must exist, be able to log in, and be allowed to replicate:
--   CREATE ROLE relay LOGIN REPLICATION PASSWORD '...';
--   (Amazon RDS: GRANT rds_replication TO relay;  Cloud SQL, Azure: ALTER ROLE relay REPLICATION as the admin user)
GRANT USAGE ON SCHEMA public TO relay;
GRANT SELECT ON TABLE outbox_messages TO relay; -- streaming does not read the table; counting and healing what is at risk does
GRANT USAGE ON SCHEMA walpost TO relay;
GRANT SELECT ON TABLE walpost.schema_version TO relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE walpost.checkpoint TO relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE walpost.parked_messages TO relay;
