-- The outbox table of preset "debezium": the default columns of Debezium's outbox event router.
CREATE TABLE IF NOT EXISTS outbox_messages (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregatetype varchar(255) NOT NULL,
    aggregateid   varchar(255) NOT NULL,
    type          varchar(255) NOT NULL,
    payload       jsonb
);
