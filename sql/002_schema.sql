-- What walpost keeps in the database: where it has got to, so that a lost, moved or re-created slot is noticed and its
-- gap can be healed exactly. One small row for each slot.
CREATE SCHEMA IF NOT EXISTS walpost;

CREATE TABLE IF NOT EXISTS walpost.schema_version (
    version      integer PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS walpost.checkpoint (
    slot_name         text PRIMARY KEY,
    relay_name        text NOT NULL,
    system_identifier text NOT NULL,
    timeline          bigint NOT NULL,
    database_oid      oid NOT NULL,
    table_oid         oid NOT NULL,
    kafka_cluster_id  text,             -- null until the first run has met the cluster
    fingerprint       text NOT NULL,    -- of the publication and the table, when the epoch began
    epoch             bigint NOT NULL,  -- one unbroken history of LSNs
    confirmed_lsn     pg_lsn NOT NULL,  -- every row that committed up to here is in Kafka
    horizon           xid8,             -- every row whose xmin is older is in Kafka; null: unknown
    pending_horizon   xid8,             -- becomes the horizon once confirmed_lsn has reached pending_lsn
    pending_lsn       pg_lsn,
    state             text NOT NULL CHECK (state IN ('streaming', 'signed_off', 'recovering')),
    holder            text,             -- the process that set the state
    updated_at        timestamptz NOT NULL DEFAULT now(),
    CHECK ((pending_horizon IS NULL) = (pending_lsn IS NULL))
) WITH (fillfactor = 20); -- the row is rewritten every second; room on its page keeps that a heap-only update

COMMENT ON SCHEMA walpost IS 'walpost: how far its relays have brought the outbox to Kafka';
INSERT INTO walpost.schema_version (version) VALUES (1) ON CONFLICT (version) DO NOTHING;
