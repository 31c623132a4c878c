-- The outbox table of preset "laravel": as Laravel's polling relays keep it, with marks for what was published.
CREATE TABLE outbox_messages (
    id             bigserial PRIMARY KEY,
    message_id     uuid NOT NULL UNIQUE,
    aggregate_type varchar(255) NOT NULL,
    aggregate_id   varchar(255) NOT NULL,
    event_type     varchar(255) NOT NULL,
    payload        jsonb NOT NULL,
    attempts       smallint NOT NULL DEFAULT 0,
    last_error     text,
    created_at     timestamptz NOT NULL DEFAULT now(),
    published_at   timestamptz
);
CREATE INDEX ON outbox_messages (id) WHERE published_at IS NULL;
