-- What walpost keeps in the database: where it has got to, so that a lost, moved or re-created slot is noticed and its
-- gap can be healed exactly; and the messages that could not be sent.
CREATE SCHEMA IF NOT EXISTS walpost;

CREATE TABLE IF NOT EXISTS walpost.schema_version (
    version      integer PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT now()
);

-- How far each slot has got: one small row.
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

-- Messages that cannot be sent as they are, and what waits behind them: a queue for each topic and key.
CREATE TABLE IF NOT EXISTS walpost.parked_messages (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot_name         text NOT NULL,
    system_identifier text NOT NULL,    -- whose LSNs these are
    epoch             bigint NOT NULL,
    commit_lsn        pg_lsn NOT NULL,
    ordinal           bigint NOT NULL,  -- of the row within its transaction
    message_id        text NOT NULL,    -- with the position: which row it is, should it come again
    topic             text,             -- null: none could be told
    key               bytea,            -- null or empty: nothing waits behind it
    value             bytea,
    headers           json NOT NULL,    -- [[name, value], ...]
    row               json,             -- [[column, type oid, text], ...], where no record could be made of them
    value_bytes       bigint NOT NULL,
    state             text NOT NULL CHECK (state IN ('parked', 'waiting', 'retry', 'discard')),
    reason            text NOT NULL,
    error             text NOT NULL,
    attempts          integer NOT NULL DEFAULT 0,
    parked_at         timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    UNIQUE (slot_name, commit_lsn, ordinal, message_id)
);
CREATE INDEX IF NOT EXISTS parked_messages_unit ON walpost.parked_messages (slot_name, topic, md5(key));

COMMENT ON SCHEMA walpost IS 'walpost: how far its relays have brought the outbox to Kafka';
INSERT INTO walpost.schema_version (version) VALUES (2) ON CONFLICT (version) DO NOTHING;
