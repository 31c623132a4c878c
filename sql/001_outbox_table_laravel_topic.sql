-- The outbox table of preset "laravel-topic": the topic column routes, and there is no event type.
CREATE TABLE outbox_messages (
    id             bigserial PRIMARY KEY,
    message_id     uuid NOT NULL UNIQUE,
    topic          varchar(255) NOT NULL,
    aggregate_type varchar(255) NOT NULL,
    aggregate_id   varchar(255) NOT NULL,
    payload        json NOT NULL,
    attempts       smallint NOT NULL DEFAULT 0,
    available_at   timestamp(0) NOT NULL DEFAULT now(),
    published_at   timestamp(0),
    created_at     timestamp(0) NOT NULL DEFAULT now()
);
CREATE INDEX ON outbox_messages (published_at, available_at, id);
