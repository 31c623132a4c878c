//! The four outbox tables that work as they are, and how an application writes to each.

use std::fs;

use super::programs::repository;
use super::sql::Sql;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// walpost's own.
    Walpost,
    /// Laravel A: with an event type, no topic column.
    Laravel,
    /// Laravel B: with a topic column, no event type.
    LaravelTopic,
    /// Debezium's.
    Debezium,
}

pub const TABLES: [Table; 4] = [Table::Walpost, Table::Laravel, Table::LaravelTopic, Table::Debezium];

/// What an application puts into a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// A UUID.
    pub id: String,
    pub aggregate_type: String,
    pub key: String,
    pub event_type: String,
    /// The topic column, where there is one.
    pub topic: String,
    /// JSON as the application wrote it.
    pub payload: String,
    /// JSON, where the table has a column for it.
    pub headers: String,
}

impl Table {
    /// The name that walpost gives the layout.
    pub fn preset(self) -> &'static str {
        match self {
            Table::Walpost => "walpost",
            Table::Laravel => "laravel",
            Table::LaravelTopic => "laravel-topic",
            Table::Debezium => "debezium",
        }
    }

    /// Creates the table from the statement that users are given.
    pub fn create(self, sql: &Sql, name: &str) {
        let file = match self {
            Table::Walpost => "001_outbox_table.sql",
            Table::Laravel => "001_outbox_table_laravel.sql",
            Table::LaravelTopic => "001_outbox_table_laravel_topic.sql",
            Table::Debezium => "001_outbox_table_debezium.sql",
        };
        let statement = fs::read_to_string(repository().join("sql").join(file)).expect("the statement in sql/");
        sql.execute(&statement.replace("outbox_messages", name));
    }

    /// Inserts rows in their order with one statement, whose parameters are arrays: see [`parameters`].
    pub fn insert(self, name: &str) -> String {
        let (columns, values) = match self {
            Table::Walpost => (
                "message_id, aggregate_type, aggregate_id, event_type, topic, payload, headers",
                "i::uuid, t, k, e, nullif(o, ''), p::jsonb, h::jsonb",
            ),
            Table::Laravel => {
                ("message_id, aggregate_type, aggregate_id, event_type, payload", "i::uuid, t, k, e, p::jsonb")
            }
            Table::LaravelTopic => {
                ("message_id, topic, aggregate_type, aggregate_id, payload", "i::uuid, o, t, k, p::json")
            }
            Table::Debezium => ("id, aggregatetype, aggregateid, type, payload", "i::uuid, t, k, e, p::jsonb"),
        };
        format!(
            "insert into {name} ({columns}) select {values} from unnest($1::text[], $2::text[], $3::text[], $4::text[], \
             $5::text[], $6::text[], $7::text[]) with ordinality as rows(i, t, k, e, o, p, h, place) order by place"
        )
    }

    /// The column of [`Message::id`].
    pub fn id_column(self) -> &'static str {
        if self == Table::Debezium { "id" } else { "message_id" }
    }

    pub fn has_event_type(self) -> bool {
        self != Table::LaravelTopic
    }

    pub fn has_headers(self) -> bool {
        self == Table::Walpost
    }

    /// Only `json` keeps the application's own spelling.
    pub fn keeps_payload_text(self) -> bool {
        self == Table::LaravelTopic
    }
}

/// The arrays for [`Table::insert`].
pub fn parameters(messages: &[Message]) -> [Vec<&str>; 7] {
    let column = |field: fn(&Message) -> &str| messages.iter().map(field).collect();
    [
        column(|m| &m.id),
        column(|m| &m.aggregate_type),
        column(|m| &m.key),
        column(|m| &m.event_type),
        column(|m| &m.topic),
        column(|m| &m.payload),
        column(|m| &m.headers),
    ]
}

/// Inserts rows in one transaction of their own.
#[track_caller]
pub fn insert(sql: &Sql, table: Table, name: &str, messages: &[Message]) {
    let arrays = parameters(messages);
    let [a, b, c, d, e, f, g] = &arrays;
    sql.try_execute_with(&table.insert(name), &[a, b, c, d, e, f, g])
        .unwrap_or_else(|error| panic!("inserting into {name}: {}", super::sql::explain(&error)));
}
