//! Questions to the cluster that block until they are answered: which cluster is it, which partitions has a topic, how large
//! a record does it take. Asked by the librarian's thread, and by `doctor`, which has no loop.

use std::collections::BTreeMap;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewTopic, OwnedResourceSpecifier, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::Client;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::{Metadata, MetadataBroker, MetadataTopic};
use rdkafka::producer::{Producer as _, ThreadedProducer};

use crate::config::{Config, TopicsCreate};
use crate::sink::SettingsRefused;
use crate::sink::origin::with_origin;
use crate::sink::producer::{Context, Inbox, Mailbox};
use crate::sink::properties;

/// How long one question may take. Longer than a broker's failover, shorter than a person's patience.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long a topic that the broker is creating may take to get its leaders, before it counts as missing.
const CREATED_WITHIN: Duration = Duration::from_secs(3);
/// A topic's limits are good to know, and not every compatible broker tells them.
const LIMITS_WITHIN: Duration = Duration::from_secs(2);
/// Topics whose limits are asked for with one question: each answers with all its settings.
const LIMITS_AT_ONCE: usize = 250;
const REASON_WITHIN: Duration = Duration::from_secs(3);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// A look at the whole cluster knocks at no more brokers, and waits no longer at each of their addresses.
const BROKERS_MAX: usize = 20;
const REACHED_WITHIN: Duration = Duration::from_secs(2);
/// A probe asks for the limits of no more topics that lack replicas: each takes a moment.
const WEAK_MAX: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterIdentity {
    pub id: String,
    pub brokers: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicFacts {
    pub partitions: u32,
    /// The smallest replication of a partition.
    pub replication: usize,
    /// `max.message.bytes` and `min.insync.replicas`; None where reading them is not allowed.
    pub max_message_bytes: Option<usize>,
    pub min_insync_replicas: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicProblem {
    pub code: RDKafkaErrorCode,
    pub text: String,
}

/// What a topic's settings say; None where they cannot be read.
#[derive(Clone, Copy, Default)]
struct Limits {
    max_message_bytes: Option<usize>,
    in_sync: Option<usize>,
}

impl TopicFacts {
    fn limited(self, limits: Limits) -> TopicFacts {
        TopicFacts { max_message_bytes: limits.max_message_bytes, min_insync_replicas: limits.in_sync, ..self }
    }
}

/// What a fresh client saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// Everything is there that is needed to deliver.
    pub healthy: bool,
    /// A topic that the brokers, who answered, do not have.
    pub missing: Option<Arc<str>>,
    /// A partition that refuses all records.
    pub short: Option<Short>,
}

/// A partition that has fewer replicas in sync than its topic asks for. The broker refuses its records, or lets them wait with
/// all that comes behind them on the connection, and the producer tries again without a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Short {
    pub topic: Arc<str>,
    pub partition: i32,
    pub in_sync: usize,
    pub wanted: usize,
}

/// What metadata shows of the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    pub id: String,
    pub brokers: usize,
    pub topics: Vec<Arc<str>>,
    /// Addresses under which brokers are known to the cluster, and where nobody answers; each with the reason.
    pub unreachable: Vec<String>,
}

/// A client for questions. See the module.
pub struct Desk {
    client: AdminClient<Context>,
    config: Config,
    runtime: tokio::runtime::Runtime,
}

impl Desk {
    /// Fails on settings that librdkafka refuses; contacts no broker.
    pub fn open(config: &Config, mailbox: &Arc<Mailbox>) -> KafkaResult<Desk> {
        let context = Context::new(mailbox.clone(), 0);
        let client = AdminClient::from_config_and_context(&properties::librarian(config), context)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .map_err(|error| KafkaError::ClientCreation(format!("no runtime could be made: {error}")))?;
        Ok(Desk { client, config: config.clone(), runtime })
    }

    /// A desk whose errors nobody else listens to.
    pub fn alone(config: &Config) -> Result<Desk, SettingsRefused> {
        Desk::open(config, &Arc::default()).map_err(|error| SettingsRefused(error.to_string()))
    }

    /// The whole cluster. The error is the last one of a connection, where there was one.
    pub fn all(&self) -> Result<ClusterFacts, String> {
        let metadata = match self.inner().fetch_metadata(None, ANSWER_WITHIN) {
            Ok(metadata) => metadata,
            Err(error) => self.insist(&error)?,
        };
        Ok(ClusterFacts {
            id: self.inner().fetch_cluster_id(ANSWER_WITHIN).unwrap_or_default(),
            brokers: metadata.brokers().len(),
            topics: metadata.topics().iter().map(|topic| topic.name().into()).collect(),
            unreachable: metadata.brokers().iter().take(BROKERS_MAX).filter_map(why_unreachable).collect(),
        })
    }

    /// The first answer tells where the brokers are, and librdkafka may then let go of the address it began with, and of the
    /// question. Asked again it goes where it was led to: that succeeds, or gives the reason. Only a client that is polled hears
    /// the errors of its connections, and among those the producer is.
    fn insist(&self, error: &KafkaError) -> Result<Metadata, String> {
        let (mailbox, mut inbox) = (Arc::<Mailbox>::default(), Inbox::default());
        let context = Context::new(mailbox.clone(), 0);
        let asking: ThreadedProducer<Context> =
            ThreadedProducer::from_config_and_context(&properties::librarian(&self.config), context)
                .map_err(|error| error.to_string())?;
        let until = Instant::now() + REASON_WITHIN;
        while inbox.error.is_none() && Instant::now() < until {
            if let Ok(metadata) = asking.client().fetch_metadata(None, REASON_WITHIN) {
                return Ok(metadata);
            }
            thread::sleep(BETWEEN_LOOKS);
            mailbox.take(&mut inbox);
        }
        let brokers = self.config.kafka.brokers.as_deref().unwrap_or_default();
        Err(inbox.error.map_or_else(|| error.to_string(), |reason| with_origin(reason, brokers)))
    }

    /// A topic's facts, without creating it.
    pub fn facts(&self, topic: &str) -> Result<TopicFacts, String> {
        self.look(topic).map_err(|problem| problem.text)
    }

    fn inner(&self) -> &Client<Context> {
        self.client.inner()
    }

    /// Who answers at the brokers' addresses. The error is librdkafka's; its reason comes through the mailbox.
    pub fn cluster(&self) -> Result<ClusterIdentity, String> {
        let metadata = self.inner().fetch_metadata(None, ANSWER_WITHIN).map_err(|error| error.to_string())?;
        // Kafka sends the id with its metadata, so it is there by now; some compatible brokers have none.
        let id = self.inner().fetch_cluster_id(ANSWER_WITHIN).unwrap_or_default();
        Ok(ClusterIdentity { id, brokers: metadata.brokers().len() })
    }

    /// A topic's facts, after creating it where `topics.create` says so and it is missing.
    pub fn topic(&self, name: &str) -> Result<TopicFacts, TopicProblem> {
        // Counted from the first answer: until then the broker knew of no topic to create.
        let mut until = None;
        let mut creating = None;
        loop {
            match self.look(name) {
                Ok(facts) => return Ok(facts),
                Err(problem) if !may_appear(problem.code) => return Err(problem),
                Err(problem) => {
                    if let (TopicsCreate::Create { partitions, replication }, None) =
                        (self.config.topics.create, &creating)
                    {
                        let created = self.create(name, partitions, replication);
                        if let Err(problem) = &created {
                            return Err(problem.clone());
                        }
                        creating = Some(());
                    }
                    let waits = self.config.topics.create != TopicsCreate::Never
                        || problem.code == RDKafkaErrorCode::LeaderNotAvailable;
                    if !waits || Instant::now() >= *until.get_or_insert_with(|| Instant::now() + CREATED_WITHIN) {
                        return Err(problem);
                    }
                }
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// The facts of those of many topics that are there with all their leaders, for two questions in all.
    pub fn topics_there(&self, names: &[Arc<str>]) -> Result<Vec<Option<TopicFacts>>, TopicProblem> {
        let metadata = self.inner().fetch_metadata(None, ANSWER_WITHIN).map_err(|error| unanswered(&error))?;
        let there: BTreeMap<&str, &MetadataTopic> =
            metadata.topics().iter().map(|topic| (topic.name(), topic)).collect();
        let found = |name: &Arc<str>| there.get(&**name).and_then(|topic| facts(topic).ok());
        let all: Vec<Option<TopicFacts>> = names.iter().map(found).collect();
        let known: Vec<&str> =
            names.iter().zip(&all).filter(|(_, facts)| facts.is_some()).map(|(name, _)| &**name).collect();
        let limits: BTreeMap<String, Limits> =
            known.chunks(LIMITS_AT_ONCE).flat_map(|some| self.limits(some)).collect();
        let limited =
            |(name, facts): (&Arc<str>, TopicFacts)| facts.limited(limits.get(&**name).copied().unwrap_or_default());
        Ok(names.iter().zip(all).map(|(name, facts)| Some(limited((name, facts?)))).collect())
    }

    /// The partition counts of the whole cluster.
    pub fn partition_counts(&self) -> Result<BTreeMap<Arc<str>, u32>, TopicProblem> {
        let metadata = self.inner().fetch_metadata(None, ANSWER_WITHIN).map_err(|error| unanswered(&error))?;
        let counted = |topic: &MetadataTopic| Some((topic.name().into(), facts(topic).ok()?.partitions));
        Ok(metadata.topics().iter().filter_map(counted).collect())
    }

    /// What metadata and configs say of a topic.
    fn look(&self, name: &str) -> Result<TopicFacts, TopicProblem> {
        let metadata = self.inner().fetch_metadata(Some(name), ANSWER_WITHIN).map_err(|error| unanswered(&error))?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == name);
        let missing = || TopicProblem { code: RDKafkaErrorCode::UnknownTopic, text: "not in the metadata".to_owned() };
        let facts = facts(topic.ok_or_else(missing)?)?;
        Ok(facts.limited(self.limits_of(name)))
    }

    fn options(within: Duration) -> AdminOptions {
        AdminOptions::new().request_timeout(Some(within)).operation_timeout(Some(within))
    }

    fn limits_of(&self, topic: &str) -> Limits {
        self.limits(&[topic]).remove(topic).unwrap_or_default()
    }

    /// Of those topics that tell them.
    fn limits(&self, topics: &[&str]) -> BTreeMap<String, Limits> {
        let asked: Vec<ResourceSpecifier<'_>> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        let described = self.client.describe_configs(&asked, &Self::options(LIMITS_WITHIN));
        let described = self.runtime.block_on(described).unwrap_or_default();
        let limits = |resource: ConfigResource| {
            let number = |name: &str| resource.get(name).and_then(|entry| entry.value.as_ref()?.parse().ok());
            let limits =
                Limits { max_message_bytes: number("max.message.bytes"), in_sync: number("min.insync.replicas") };
            match resource.specifier {
                OwnedResourceSpecifier::Topic(name) => Some((name, limits)),
                _ => None,
            }
        };
        described.into_iter().filter_map(|resource| limits(resource.ok()?)).collect()
    }

    fn create(&self, name: &str, partitions: u16, replication: u16) -> Result<(), TopicProblem> {
        let topic = NewTopic::new(name, i32::from(partitions), TopicReplication::Fixed(i32::from(replication)));
        let outcome = self.runtime.block_on(self.client.create_topics([&topic], &Self::options(ANSWER_WITHIN)));
        let code = match outcome {
            Ok(results) => match results.into_iter().next() {
                Some(Err((_, code))) if code != RDKafkaErrorCode::TopicAlreadyExists => code,
                _ => {
                    tracing::info!(topic = name, partitions, replication, "created the topic {name:?}");
                    return Ok(());
                }
            },
            Err(error) => error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown),
        };
        let text = format!("it is missing and could not be created as topics.create asks: {code}");
        Err(TopicProblem { code, text })
    }

    /// Deletes a topic; one that is not there is deleted.
    pub fn delete(&self, name: &str) -> Result<(), String> {
        let outcome = self.runtime.block_on(self.client.delete_topics(&[name], &Self::options(ANSWER_WITHIN)));
        let missing = [
            RDKafkaErrorCode::UnknownTopicOrPartition,
            RDKafkaErrorCode::UnknownTopic,
            RDKafkaErrorCode::UnknownPartition,
        ];
        match outcome.map(|results| results.into_iter().next()) {
            Ok(Some(Err((_, code)))) if !missing.contains(&code) => Err(code.to_string()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What a fresh client sees of these topics: one that has been there all along may hang together with the producer.
    pub fn probe(&self, topics: &[Arc<str>]) -> Probed {
        let nothing = Probed { healthy: false, missing: None, short: None };
        let Ok(fresh) = Desk::open(&self.config, &Arc::default()) else { return nothing };
        let Ok(metadata) = fresh.inner().fetch_metadata(None, ANSWER_WITHIN) else { return nothing };
        let find = |name: &Arc<str>| metadata.topics().iter().find(|topic| topic.name() == &**name);
        let answered = !metadata.brokers().is_empty();
        let weak =
            topics.iter().filter_map(|name| Some((name, find(name)?))).filter(|(_, topic)| lacks_replicas(topic));
        let short = weak.take(WEAK_MAX).find_map(|(name, topic)| short(name, topic, fresh.limits_of(name).in_sync?));
        Probed {
            healthy: answered && topics.iter().all(|name| find(name).is_some_and(has_leaders)),
            missing: topics.iter().find(|name| answered && find(name).is_none()).cloned(),
            short,
        }
    }
}

/// Clients are led to the addresses that the brokers advertise, whichever they began with.
fn why_unreachable(broker: &MetadataBroker) -> Option<String> {
    let (host, Ok(port)) = (broker.host(), u16::try_from(broker.port())) else { return None };
    let why = match (host, port).to_socket_addrs() {
        Err(error) => error.to_string(),
        Ok(addresses) => {
            let mut why = "the name has no address".to_owned();
            for address in addresses {
                match TcpStream::connect_timeout(&address, REACHED_WITHIN) {
                    Ok(_) => return None,
                    Err(error) => why = error.to_string(),
                }
            }
            why
        }
    };
    Some(format!("broker {} at {host}:{port}: {why}", broker.id()))
}

fn unanswered(error: &KafkaError) -> TopicProblem {
    TopicProblem { code: error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown), text: error.to_string() }
}

/// Without its limits, which metadata do not tell.
fn facts(topic: &MetadataTopic) -> Result<TopicFacts, TopicProblem> {
    if let Some(error) = topic.error() {
        let code = RDKafkaErrorCode::from(error);
        return Err(TopicProblem { code, text: code.to_string() });
    }
    if !has_leaders(topic) {
        let text = "a partition has no leader".to_owned();
        return Err(TopicProblem { code: RDKafkaErrorCode::LeaderNotAvailable, text });
    }
    Ok(TopicFacts {
        partitions: u32::try_from(topic.partitions().len()).unwrap_or(u32::MAX),
        replication: topic.partitions().iter().map(|partition| partition.replicas().len()).min().unwrap_or(0),
        max_message_bytes: None,
        min_insync_replicas: None,
    })
}

fn lacks_replicas(topic: &MetadataTopic) -> bool {
    topic.partitions().iter().any(|partition| partition.isr().len() < partition.replicas().len())
}

/// The first partition with fewer replicas in sync than `least`. The broker asks for no more than there are.
fn short(name: &Arc<str>, topic: &MetadataTopic, least: usize) -> Option<Short> {
    topic.partitions().iter().find_map(|partition| {
        let (in_sync, wanted) = (partition.isr().len(), least.min(partition.replicas().len()));
        (in_sync < wanted).then(|| Short { topic: name.clone(), partition: partition.id(), in_sync, wanted })
    })
}

fn has_leaders(topic: &MetadataTopic) -> bool {
    let led = |partition: &rdkafka::metadata::MetadataPartition| partition.leader() >= 0;
    topic.error().is_none() && !topic.partitions().is_empty() && topic.partitions().iter().all(led)
}

/// A topic that is being created says one of these for a moment.
fn may_appear(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::LeaderNotAvailable
    )
}
