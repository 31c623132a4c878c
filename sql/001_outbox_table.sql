-- The outbox table. Its name is a setting (postgres.table); setup puts the configured one in place of this one.
-- A row is written in the transaction that changes the business data, and never again: walpost does not touch it.
CREATE TABLE IF NOT EXISTS outbox_messages (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- for paging and pruning; not an order
    message_id     uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),  -- header "id": consumers drop repeats by it
    aggregate_type text NOT NULL,                                   -- names the topic
    aggregate_id   text NOT NULL,                                   -- the record's key: order is kept per key
    event_type     text NOT NULL,                                   -- header "eventType"
    topic          text,                                            -- overrides the topic for this row
    payload        jsonb,                                           -- the record's value; json, text or bytea also do
    headers        jsonb NOT NULL DEFAULT '{}',                     -- each top-level member is a record header
    created_at     timestamptz NOT NULL DEFAULT now()
);
