//! Which librdkafka properties are passed on. Everything that librdkafka knows is, but what would break a promise of
//! walpost or what walpost sets itself: that is refused with the reason, unless it says the same. Pure.

use std::collections::BTreeMap;

use super::problem::{nearest, quoted};
use super::{Secret, Window};

mod names;

/// Of two names that librdkafka has for one property, ours comes second; properties are kept under it alone, so that a
/// default of ours never meets the user's value under another name.
const ALIASES: &[(&str, &str)] = &[
    ("metadata.broker.list", "bootstrap.servers"),
    ("max.in.flight", "max.in.flight.requests.per.connection"),
    ("sasl.mechanisms", "sasl.mechanism"),
    ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id"),
    ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("message.send.max.retries", "retries"),
    ("compression.codec", "compression.type"),
    ("request.required.acks", "acks"),
    ("delivery.timeout.ms", "message.timeout.ms"),
];

/// Never shown, and settable as a file.
const SECRETS: &[&str] = &[
    "sasl.password",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
];

/// Properties with values that keep the promises, and why others do not.
const FIXED: &[(&str, &[&str], &str)] = &[
    (
        "acks",
        &["all", "-1"],
        "a position is confirmed to Postgres only when every in-sync replica has the record, else a failing broker loses \
         rows",
    ),
    ("enable.idempotence", TRUE, "without it a retry inside the client repeats and reorders records"),
    ("enable.gapless.guarantee", TRUE, "without it later records of a key may overtake one that failed"),
    (
        "max.in.flight.requests.per.connection",
        &["1", "2", "3", "4", "5"],
        "the broker keeps the order of at most 5 requests in flight",
    ),
    (
        "message.timeout.ms",
        &["0"],
        "a record that times out in the client may still be written, behind later ones; the relay watches for stalls \
         itself",
    ),
    ("retries", &["2147483647"], "a record is tried until the broker answers; giving up would stop the stream"),
    (
        "allow.auto.create.topics",
        FALSE,
        "the producer would re-create a deleted topic with the broker's defaults; set topics.create instead",
    ),
    ("delivery.report.only.error", FALSE, "the position moves on the reports of successful deliveries"),
    ("queuing.strategy", &["fifo"], "any other order breaks the order of keys"),
];
const TRUE: &[&str] = &["true", "t", "1"];
const FALSE: &[&str] = &["false", "f", "0"];

/// Properties that are walpost's own, and what to set instead.
const OWNED: &[(&str, &str)] = &[
    ("bootstrap.servers", "set kafka.brokers (WALPOST_BROKERS, --brokers) instead"),
    ("partitioner", "walpost chooses the partition itself: set route.partitioner instead"),
    ("transactional.id", "walpost does not use Kafka's transactions: reading back after a crash takes their place"),
    ("transaction.timeout.ms", "walpost does not use Kafka's transactions"),
    ("enabled_events", "walpost subscribes to the events that it handles"),
    ("builtin.features", "it only tells what librdkafka was built with"),
];

/// Names that the Java client has, and what librdkafka has for them.
const JAVA: &[(&str, &str)] = &[
    ("max.request.size", "the property is called message.max.bytes here"),
    ("buffer.memory", "set window.bytes instead"),
    ("max.block.ms", "the relay waits as long as it takes; leave it out"),
    ("key.serializer", "keys are sent as the bytes of their column; leave it out"),
    ("value.serializer", "values are sent as the bytes of their column; leave it out"),
    ("partitioner.class", "set route.partitioner instead"),
    ("sasl.jaas.config", "set sasl.username and sasl.password instead"),
    ("sasl.client.callback.handler.class", "set sasl.oauthbearer.method and its companions instead"),
    ("ssl.truststore.location", "set ssl.ca.location to a PEM file instead"),
    ("ssl.truststore.password", "a PEM file has none: set ssl.ca.location"),
    ("ssl.truststore.type", "set ssl.ca.location to a PEM file instead"),
    ("ssl.keystore.type", "the keystore is PKCS#12; leave it out"),
    ("ssl.keystore.key", "the property is called ssl.key.pem here"),
    ("ssl.keystore.certificate.chain", "the property is called ssl.certificate.pem here"),
];

/// The one name under which a property is kept; None: librdkafka has no such property.
pub fn canonical(name: &str) -> Option<&'static str> {
    let known = all_names().find(|known| *known == name)?;
    Some(ALIASES.iter().find(|(alias, _)| *alias == known).map_or(known, |(_, canonical)| canonical))
}

/// By its canonical name.
pub fn is_secret(canonical: &str) -> bool {
    SECRETS.contains(&canonical)
}

/// The property of `LINGER_MS`: what follows `WALPOST_KAFKA_` in a variable's name.
pub fn from_variable(suffix: &str) -> Option<&'static str> {
    all_names().find(|name| variable_suffix(name) == suffix).and_then(canonical)
}

/// The variable of a property.
pub fn variable(name: &str) -> String {
    format!("WALPOST_KAFKA_{}", variable_suffix(name))
}

fn variable_suffix(name: &str) -> String {
    name.to_ascii_uppercase().replace('.', "_")
}

/// Why this property is not passed on with this value; None: it is. The value of a secret is not part of the answer.
pub fn refusal(canonical: &str, value: &str) -> Option<String> {
    if let Some((_, reason)) = OWNED.iter().find(|(name, _)| *name == canonical) {
        return Some(format!("{canonical} is not passed on: {reason}"));
    }
    if let Some((_, kept, reason)) = FIXED.iter().find(|(name, _, _)| *name == canonical) {
        let value = value.trim();
        if kept.iter().any(|kept| kept.eq_ignore_ascii_case(value)) {
            return None;
        }
        let best = kept.first().copied().unwrap_or_default();
        let best = if canonical.starts_with("max.in.flight") { "1 to 5".to_owned() } else { quoted(best) };
        return Some(format!(
            "{canonical} = {} is refused: {reason}; leave it out, or set it to {best}",
            quoted(value)
        ));
    }
    if words(names::CONSUMER).any(|name| name == canonical) {
        return Some(format!("{canonical} is a property of consumers, and walpost is a producer: leave it out"));
    }
    if words(names::PROGRAM).any(|name| name == canonical) {
        return Some(format!("{canonical} can only be set by a program: leave it out"));
    }
    None
}

/// librdkafka's queue has to hold a full window, or the relay would wait for room that never comes.
pub fn queue_below_window(properties: &BTreeMap<String, Secret>, window: &Window) -> Vec<(&'static str, String)> {
    let number = |name: &str| properties.get(name).and_then(|value| value.expose().trim().parse::<u64>().ok());
    let mut problems = Vec::new();
    // 0 means no limit of messages.
    if let Some(messages @ 1..) = number("queue.buffering.max.messages")
        && messages < window.messages as u64
    {
        let reason = format!("{messages} is below window.messages = {}: the queue has to hold it", window.messages);
        problems.push(("queue.buffering.max.messages", reason));
    }
    if let Some(kbytes) = number("queue.buffering.max.kbytes")
        && kbytes.saturating_mul(1024) < window.bytes as u64
    {
        let needed = (window.bytes as u64).div_ceil(1024);
        let reason = format!("{kbytes} is below window.bytes, {needed} kbytes: the queue has to hold it");
        problems.push(("queue.buffering.max.kbytes", reason));
    }
    problems
}

/// What to say of a name that librdkafka does not have. Only the name is repeated, so that a value cannot leak.
pub fn unknown(name: &str) -> String {
    let wrong = format!("{} is not a property of librdkafka", quoted_name(name));
    if let Some((_, instead)) = JAVA.iter().find(|(java, _)| *java == name) {
        return format!("{wrong}: {instead}");
    }
    match nearest(name, passed_on()) {
        Some(name) => format!("{wrong}; did you mean {name}?"),
        None => format!("{wrong}; its CONFIGURATION.md lists them"),
    }
}

fn quoted_name(name: &str) -> String {
    // `quoted` hides what holds the word password, which is harmless in a name.
    let short: String = name.chars().take(60).collect();
    format!("{short:?}")
}

/// What may be set, for suggestions.
pub fn passed_on() -> impl Iterator<Item = &'static str> {
    words(names::PRODUCER).filter(|name| !OWNED.iter().any(|(owned, _)| owned == name))
}

/// The secrets, for the template's text.
pub fn secrets_text() -> String {
    SECRETS.join(", ")
}

fn all_names() -> impl Iterator<Item = &'static str> {
    words(names::PRODUCER).chain(words(names::CONSUMER)).chain(words(names::PROGRAM))
}

fn words(names: &'static str) -> impl Iterator<Item = &'static str> {
    names.split_ascii_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_that_breaks_a_promise_is_refused_with_the_reason() {
        let refused = [
            ("acks", "1", "in-sync"),
            ("request.required.acks", "0", "in-sync"),
            ("enable.idempotence", "false", "reorders"),
            ("enable.gapless.guarantee", "false", "overtake"),
            ("max.in.flight", "6", "at most 5"),
            ("max.in.flight.requests.per.connection", "1000", "at most 5"),
            ("message.timeout.ms", "300000", "times out"),
            ("delivery.timeout.ms", "1", "times out"),
            ("retries", "3", "until the broker answers"),
            ("message.send.max.retries", "0", "until the broker answers"),
            ("allow.auto.create.topics", "true", "topics.create"),
            ("delivery.report.only.error", "true", "successful"),
            ("queuing.strategy", "lifo", "order"),
            ("partitioner", "murmur2_random", "route.partitioner"),
            ("transactional.id", "x", "transactions"),
            ("bootstrap.servers", "h:9092", "kafka.brokers"),
            ("metadata.broker.list", "h:9092", "kafka.brokers"),
            ("group.id", "x", "consumers"),
            ("isolation.level", "read_committed", "consumers"),
            ("enable.auto.commit", "false", "consumers"),
            ("dr_msg_cb", "x", "program"),
            ("opaque", "x", "program"),
        ];
        for (name, value, reason) in refused {
            let canonical = canonical(name).unwrap();
            let refusal = refusal(canonical, value).unwrap_or_else(|| panic!("{name}={value} was passed on"));
            assert!(refusal.contains(reason), "{name}: {refusal}");
        }
    }

    #[test]
    fn a_property_that_says_the_same_as_walpost_is_passed_on() {
        let kept = [
            ("acks", "all"),
            ("acks", "-1"),
            ("request.required.acks", "all"),
            ("enable.idempotence", "TRUE"),
            ("max.in.flight", "1"),
            ("max.in.flight", "5"),
            ("delivery.timeout.ms", "0"),
            ("retries", "2147483647"),
            ("allow.auto.create.topics", "false"),
            ("linger.ms", "5"),
            ("security.protocol", "sasl_ssl"),
            ("message.max.bytes", "2000000"),
        ];
        for (name, value) in kept {
            assert_eq!(refusal(canonical(name).unwrap(), value), None, "{name}={value}");
        }
    }

    #[test]
    fn two_names_of_one_property_become_one() {
        for (alias, name) in ALIASES {
            assert_eq!(canonical(alias), Some(*name));
            assert_eq!(canonical(name), Some(*name));
        }
    }

    #[test]
    fn every_table_here_names_what_librdkafka_has() {
        let tables = FIXED.iter().map(|(name, _, _)| *name).chain(OWNED.iter().map(|(name, _)| *name));
        for name in tables.chain(SECRETS.iter().copied()) {
            assert_eq!(canonical(name), Some(name));
        }
        assert!(JAVA.iter().all(|(name, _)| canonical(name).is_none()));
    }

    #[test]
    fn every_property_has_a_variable_of_its_own() {
        for name in all_names() {
            assert_eq!(from_variable(&variable_suffix(name)), canonical(name), "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_or_with_javas_counterpart() {
        assert!(unknown("linger.msx").contains("did you mean linger.ms?"));
        assert!(unknown("sasl.pasword").contains("did you mean sasl.password?"));
        assert!(unknown("sasl.jaas.config").contains("sasl.username"));
        assert!(unknown("entirely.different.thing").contains("CONFIGURATION.md"));
    }

    #[test]
    fn a_queue_below_the_window_is_a_problem() {
        let window = Window { messages: 1000, bytes: 1 << 20 };
        let below = |name: &str, value: &str| {
            !queue_below_window(&BTreeMap::from([(name.to_owned(), Secret::new(value))]), &window).is_empty()
        };
        assert!(below("queue.buffering.max.messages", "999"));
        assert!(!below("queue.buffering.max.messages", "1000"));
        assert!(!below("queue.buffering.max.messages", "0"));
        assert!(below("queue.buffering.max.kbytes", "1023"));
        assert!(!below("queue.buffering.max.kbytes", "1024"));
    }
}
