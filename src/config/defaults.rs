//! What a setting is where nobody set it.

use super::accept::Raw;
use super::settings::{SETTINGS, Setting};
use super::*;

/// The names that a profile gives to `headers.<field>`, in the order id, event_type, token, created_at, origin.
pub(super) type HeaderNames = [(&'static str, &'static str); 5];
pub(super) const DEBEZIUM_HEADERS: HeaderNames = [
    ("headers.id", "id"),
    ("headers.event_type", "eventType"),
    ("headers.token", "token"),
    ("headers.created_at", ""),
    ("headers.origin", "origin"),
];
pub(super) const PLAIN_HEADERS: HeaderNames = [
    ("headers.id", "message_id"),
    ("headers.event_type", "event_type"),
    ("headers.token", "token"),
    ("headers.created_at", ""),
    ("headers.origin", "origin"),
];

pub(super) fn header_names(config: &mut Config, names: &HeaderNames) {
    let [id, event_type, token, created_at, origin] = names.map(|(_, name)| name.to_owned());
    let columns = std::mem::take(&mut config.headers.columns);
    config.headers = Headers { id, event_type, token, created_at, origin, columns };
}

/// The text of a setting that nobody set, given the profile that was chosen; None where unset has a meaning.
pub(super) fn default_text(setting: &Setting, config: &Config) -> Option<String> {
    let headers = &config.headers;
    match setting.key {
        "headers.id" => Some(headers.id.clone()),
        "headers.event_type" => Some(headers.event_type.clone()),
        "headers.token" => Some(headers.token.clone()),
        "headers.created_at" => Some(headers.created_at.clone()),
        "headers.origin" => Some(headers.origin.clone()),
        _ => setting.default.map(str::to_owned),
    }
}

/// Every setting at its default.
pub(super) fn defaults() -> Config {
    let mut config = blank();
    for setting in SETTINGS {
        if let Some(text) = setting.default {
            // A default that its own kind refuses would be a fault of the table: a test goes through all of them.
            let _ = setting.accept(&mut config, &Raw::Text(text.to_owned()));
        }
    }
    config
}

/// A value of every field for the table to overwrite.
fn blank() -> Config {
    Config {
        name: String::new(),
        postgres: Postgres {
            url: None,
            password: None,
            table: String::new(),
            slot: String::new(),
            publication: String::new(),
        },
        kafka: Kafka { brokers: None, properties: BTreeMap::new() },
        topics: Topics { create: TopicsCreate::Broker },
        route: Route { topic: String::new(), partitioner: Partitioner::Murmur2 },
        columns: Columns::default(),
        headers: Headers {
            id: String::new(),
            event_type: String::new(),
            token: String::new(),
            created_at: String::new(),
            origin: String::new(),
            columns: BTreeMap::new(),
        },
        preset: None,
        read_back: true,
        on_poison: OnPoison::Stop,
        on_route_error: OnRouteError::Wait,
        parked: Parked { max_rows: 0, max_bytes: 0 },
        dead_letter: DeadLetter { topic: String::new() },
        on_null_payload: OnNullPayload::Error,
        on_null_key: OnNullKey::Error,
        window: Window { messages: 0, bytes: 0 },
        feedback: Feedback { interval: Duration::ZERO },
        shutdown: Shutdown { timeout: Duration::ZERO },
        http: Http { listen: None },
        log: Log { level: String::new(), format: None },
    }
}
