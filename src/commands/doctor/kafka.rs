//! Kafka: do the brokers answer, and will the topics take what comes and keep it?

use std::sync::Arc;

use crate::commands::doctor::{Check, Findings};
use crate::config::{Config, TopicsCreate};
use crate::sink::desk::{ClusterFacts, Desk, TopicFacts};

/// More topics than this are not looked at one by one.
const TOPICS_MAX: usize = 20;

/// Asks the brokers, on a thread of its own, because each answer blocks.
pub async fn look(config: &Config) -> Findings {
    let config = config.clone();
    let looked = tokio::task::spawn_blocking(move || ask(&config)).await;
    looked.unwrap_or_else(|error| {
        vec![Check::skip("kafka.reach", format!("the look at Kafka broke off: {error}"))].into()
    })
}

fn ask(config: &Config) -> Findings {
    let brokers = config.kafka.brokers.as_deref().unwrap_or_default();
    let desk = match Desk::alone(config) {
        Ok(desk) => desk,
        Err(refused) => {
            let why = "no record can be published";
            return vec![Check::fail("kafka.settings", refused.to_string(), why, "mend kafka.properties")].into();
        }
    };
    let cluster = match desk.all() {
        Ok(cluster) => cluster,
        Err(error) => {
            return vec![
                Check::fail(
                    "kafka.reach",
                    format!("no broker of {brokers} answers: {error}"),
                    "rows wait in Postgres, and hold its write-ahead log, until a broker answers",
                    "start the brokers, or mend kafka.brokers (--brokers); security.protocol, sasl.* and ssl.* are set with \
                     --kafka name=value or in [kafka.properties]",
                ),
                Check::skip("kafka.topics", "no broker answers"),
            ]
            .into();
        }
    };
    let mut checks = vec![Check::ok("kafka.reach", format!("{} brokers, cluster {}", cluster.brokers, cluster.id))];
    if !cluster.unreachable.is_empty() {
        checks.push(Check::fail(
            "kafka.advertised",
            format!(
                "{brokers} answers and leads to addresses where nobody answers from here: {}",
                cluster.unreachable.join("; ")
            ),
            "records go to the address that the leader of their partition advertises; rows for these brokers wait",
            "mend advertised.listeners of these brokers, or open the way to them from here",
        ));
    }
    checks.extend(topics(config, &cluster, |topic| desk.facts(topic)));
    // Some compatible brokers have no id.
    Findings { checks, kafka_cluster_id: Some(cluster.id).filter(|id| !id.is_empty()) }
}

/// Whether the brokers are those that the slot's record names. None where one of the two is not known.
pub fn same_cluster(slot: &str, postgres: &Findings, kafka: &Findings) -> Option<Check> {
    let (recorded, answering) = (postgres.kafka_cluster_id.as_ref()?, kafka.kafka_cluster_id.as_ref()?);
    let name = "kafka.cluster";
    if recorded == answering {
        return Some(Check::ok(name, format!("the slot {slot} publishes to this cluster")));
    }
    Some(Check::fail(
        name,
        format!(
            "the slot {slot} publishes to Kafka cluster {recorded}, and these brokers belong to cluster {answering}"
        ),
        "what was published so far is not there; `walpost run` refuses to go on",
        "mend kafka.brokers (--brokers); or, if the old cluster is retired: walpost setup --adopt",
    ))
}

fn topics(config: &Config, cluster: &ClusterFacts, facts: impl Fn(&str) -> Result<TopicFacts, String>) -> Vec<Check> {
    let template = config.route.topic.as_str();
    let prefix = template.split_once('{').map_or(template, |(before, _)| before);
    let whole = prefix.len() == template.len();
    let fits =
        |topic: &&Arc<str>| if whole { &***topic == prefix } else { topic.starts_with(prefix) && !prefix.is_empty() };
    let ours: Vec<&Arc<str>> = cluster.topics.iter().filter(fits).collect();
    if ours.is_empty() {
        let saw = format!("no topic fits {template} yet");
        return vec![match config.topics.create {
            TopicsCreate::Create { partitions, replication } => Check::ok(
                "kafka.topics",
                format!("{saw}; walpost creates each with {partitions} partitions and replication {replication}"),
            ),
            TopicsCreate::Broker => Check::warn(
                "kafka.topics",
                saw,
                "a missing topic is created by the broker with its defaults, if it allows that (auto.create.topics.enable); \
                 else its rows wait",
                "create the topics, or let walpost do it: topics.create = { partitions = 6, replication = 3 }",
            ),
            TopicsCreate::Never => Check::warn(
                "kafka.topics",
                saw,
                "rows for a missing topic wait, and every row behind them",
                "create the topics before the first row",
            ),
        }];
    }
    let mut checks = Vec::new();
    for topic in ours.iter().take(TOPICS_MAX) {
        match facts(topic) {
            Ok(facts) => checks.push(topic_check(topic, &facts)),
            Err(problem) => checks.push(Check::fail(
                "kafka.topic",
                format!("{topic}: {problem}"),
                "its rows wait, and every row behind them",
                format!("make the topic {topic} writable for walpost's principal: DESCRIBE and WRITE, and leaders for all partitions"),
            )),
        }
    }
    if ours.len() > TOPICS_MAX {
        let rest = ours.len() - TOPICS_MAX;
        checks.push(Check::skip("kafka.topics", format!("{rest} more topics fit {template}")));
    }
    checks
}

fn topic_check(topic: &str, facts: &TopicFacts) -> Check {
    let known = |number: Option<usize>| number.map_or_else(|| "unknown".to_owned(), |number| number.to_string());
    let saw = format!(
        "{topic}: {} partitions, replication {}, min.insync.replicas {}, max.message.bytes {}",
        facts.partitions,
        facts.replication,
        known(facts.min_insync_replicas),
        known(facts.max_message_bytes)
    );
    if facts.replication < 2 {
        return Check::warn(
            "kafka.topic",
            saw,
            "with a single replica, what its broker has confirmed is lost with that broker's disk",
            format!(
                "give {topic} replication 3 and min.insync.replicas 2 (kafka-reassign-partitions.sh, kafka-configs.sh)"
            ),
        );
    }
    if facts.min_insync_replicas.is_some_and(|least| least < 2) {
        return Check::warn(
            "kafka.topic",
            saw,
            "with min.insync.replicas 1 a record counts as confirmed while a single broker has it",
            format!(
                "kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config min.insync.replicas=2"
            ),
        );
    }
    if facts.min_insync_replicas.is_some_and(|least| least >= facts.replication) {
        return Check::warn(
            "kafka.topic",
            saw,
            "min.insync.replicas equals the replication: one broker down, and nothing can be published",
            format!("raise the replication of {topic} above its min.insync.replicas"),
        );
    }
    Check::ok("kafka.topic", saw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Outcome;

    fn facts(replication: usize, least: Option<usize>) -> TopicFacts {
        TopicFacts { partitions: 6, replication, max_message_bytes: Some(1_048_588), min_insync_replicas: least }
    }

    fn cluster(topics: &[&str]) -> ClusterFacts {
        ClusterFacts {
            id: "c".into(),
            brokers: 3,
            topics: topics.iter().map(|topic| (*topic).into()).collect(),
            unreachable: Vec::new(),
        }
    }

    #[test]
    fn a_topic_that_would_lose_what_it_confirmed_is_a_warning_with_its_remedy() {
        for weak in [facts(1, Some(1)), facts(3, Some(1)), facts(2, Some(2))] {
            let check = topic_check("orders", &weak);
            assert_eq!(check.outcome, Outcome::Warn, "{weak:?}");
            assert!(check.remedy.contains("orders"), "{check:?}");
        }
        assert_eq!(topic_check("orders", &facts(3, Some(2))).outcome, Outcome::Ok);
    }

    #[test]
    fn only_topics_that_the_template_can_name_are_looked_at() {
        let config = Config::default();
        let there = cluster(&["outbox.event.order", "payments", "__consumer_offsets"]);
        let checks = topics(&config, &there, |_| Ok(facts(3, Some(2))));
        assert_eq!(checks.len(), 1);
        assert!(checks.iter().all(|check| check.saw.starts_with("outbox.event.order")), "{checks:?}");
    }

    #[test]
    fn another_cluster_than_the_recorded_one_fails() {
        let findings = |id: Option<&str>| Findings { kafka_cluster_id: id.map(str::to_owned), ..Findings::default() };
        let outcome = |recorded, answering| {
            same_cluster("s", &findings(recorded), &findings(answering)).map(|check| check.outcome)
        };
        assert_eq!(outcome(Some("a"), Some("a")), Some(Outcome::Ok));
        assert_eq!(outcome(Some("a"), Some("b")), Some(Outcome::Fail));
        assert_eq!(outcome(None, Some("b")), None);
        assert_eq!(outcome(Some("a"), None), None);
    }

    #[test]
    fn a_missing_topic_says_who_would_create_it() {
        let mut config = Config::default();
        let outcome = |config: &Config| topics(config, &cluster(&[]), |_| Err(String::new())).remove(0).outcome;
        assert_eq!(outcome(&config), Outcome::Warn);
        config.topics.create = TopicsCreate::Create { partitions: 6, replication: 3 };
        assert_eq!(outcome(&config), Outcome::Ok);
    }
}
