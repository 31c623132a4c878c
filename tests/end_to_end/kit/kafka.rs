//! A real Apache Kafka: one broker that is its own controller, or several of them. Tests that do no harm to it share one
//! per run and keep apart by topic names; a fault test starts its own.

use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::metadata::MetadataPartition;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::broker::Broker;
use super::certs::{Authority, Certificate};
use super::programs::{Jvm, java};
use super::sql::block_on;
use super::wait::{seconds, wait_for};

/// A user of the TLS listener.
pub const SCRAM_USER: &str = "relay";
pub const SCRAM_PASSWORD: &str = "correct horse; battery staple";

/// Properties with which a user of the TLS listener may do only what was granted, and the plain one everything.
pub const AUTHORIZER: &str = "\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS";

/// A Kafka that is described and not yet started.
pub struct KafkaBuilder {
    brokers: usize,
    heap: &'static str,
    jvm: Jvm,
    proxied: bool,
    properties: Vec<String>,
    secure: Option<(Certificate, String)>,
}

impl KafkaBuilder {
    /// So many brokers, each of them a controller too; topics get a replica on each of up to three.
    pub fn brokers(mut self, count: usize) -> Self {
        self.brokers = count;
        self
    }

    /// The most that each broker's heap may grow to, as Java writes it.
    pub fn heap(mut self, heap: &'static str) -> Self {
        self.heap = heap;
        self
    }

    /// How each broker's Java is set: without it, to start quickly.
    pub fn jvm(mut self, jvm: Jvm) -> Self {
        self.jvm = jvm;
        self
    }

    /// Puts a [`super::Proxy`] before each broker; see [`Kafka::proxied_bootstrap`].
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// A line for server.properties; later lines win.
    pub fn property(mut self, line: &str) -> Self {
        self.properties.push(line.to_owned());
        self
    }

    /// Adds a listener with TLS and SASL/SCRAM-SHA-256 for [`SCRAM_USER`]; see [`Kafka::secure_bootstrap`].
    pub fn secure(mut self, certificate: Certificate, authority: &Authority) -> Self {
        self.secure = Some((certificate, authority.pem()));
        self
    }

    pub fn start(self) -> Kafka {
        let brokers = (1..=self.brokers).map(|id| Broker::new(id, self.heap, self.jvm, self.proxied));
        let mut kafka = Kafka { brokers: brokers.collect() };
        for broker in &kafka.brokers {
            broker.write("server.properties", &self.server_properties(broker, &kafka.brokers));
        }
        kafka.format(self.secure.is_some());
        kafka.start();
        kafka
    }

    fn server_properties(&self, broker: &Broker, all: &[Broker]) -> String {
        let mut listeners = format!("PLAINTEXT://127.0.0.1:{}", broker.port);
        let mut tls = String::new();
        if let Some((certificate, authority_pem)) = &self.secure {
            // One file with the key first, then the chain, is what Kafka calls a PEM key store.
            let keystore = broker.write("keystore.pem", &format!("{}{}", certificate.key_pem, certificate.chain_pem));
            let truststore = broker.write("truststore.pem", authority_pem);
            listeners += &format!(",SECURE://localhost:{}", broker.secure_port);
            tls = format!(
                "ssl.keystore.type=PEM\nssl.keystore.location={}\nssl.truststore.type=PEM\nssl.truststore.location={}\n\
                 sasl.enabled.mechanisms=SCRAM-SHA-256\n\
                 listener.name.secure.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;\n",
                keystore.display(),
                truststore.display()
            );
        }
        let mut advertised = listeners.clone();
        if let Some(proxy) = &broker.proxy {
            listeners += &format!(",PROXIED://127.0.0.1:{}", proxy.upstream);
            advertised += &format!(",PROXIED://127.0.0.1:{}", proxy.port);
        }
        let (id, controller_port, replicas) = (broker.id, broker.controller_port, all.len().min(REPLICAS_MAX));
        let voters: Vec<String> =
            all.iter().map(|voter| format!("{}@127.0.0.1:{}", voter.id, voter.controller_port)).collect();
        format!(
            "process.roles=broker,controller\nnode.id={id}\ncontroller.quorum.voters={}\n\
             listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}\nadvertised.listeners={advertised}\n\
             controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n\
             listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,SECURE:SASL_SSL\n\
             log.dirs={}\ndefault.replication.factor={replicas}\n{COMMON_PROPERTIES}{tls}{}\n",
            voters.join(","),
            broker.data_path().display(),
            self.properties.join("\n")
        )
    }
}

const REPLICAS_MAX: usize = 3;

/// Small brokers, quick to start and to stop. Four partitions, so that partitions matter.
const COMMON_PROPERTIES: &str = "\
num.partitions=4
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.enable=false
";

pub struct Kafka {
    brokers: Vec<Broker>,
}

impl Kafka {
    /// The broker that tests share. It lives until the janitor ends it.
    pub fn shared() -> &'static Kafka {
        static SHARED: LazyLock<Kafka> = LazyLock::new(Kafka::start_own);
        &SHARED
    }

    /// A broker of the test's own, with the kit's properties and nothing else.
    pub fn start_own() -> Kafka {
        Kafka::builder().start()
    }

    pub fn builder() -> KafkaBuilder {
        KafkaBuilder { brokers: 1, heap: "512m", jvm: Jvm::Quick, proxied: false, properties: Vec::new(), secure: None }
    }

    pub fn brokers(&self) -> &[Broker] {
        &self.brokers
    }

    /// One of several, counted from 0.
    pub fn broker(&mut self, index: usize) -> &mut Broker {
        &mut self.brokers[index]
    }

    pub fn bootstrap(&self) -> String {
        self.addresses("127.0.0.1", |broker| broker.port)
    }

    /// The TLS listener; its certificate must name `localhost`.
    pub fn secure_bootstrap(&self) -> String {
        self.addresses("localhost", |broker| broker.secure_port)
    }

    /// By the proxies: who begins there is led by them to each broker.
    pub fn proxied_bootstrap(&self) -> String {
        self.addresses("127.0.0.1", |broker| broker.proxy.as_ref().expect("a Kafka built with proxies").port)
    }

    fn addresses(&self, host: &str, port: impl Fn(&Broker) -> u16) -> String {
        let addresses: Vec<String> = self.brokers.iter().map(|broker| format!("{host}:{}", port(broker))).collect();
        addresses.join(",")
    }

    fn format(&self, secure: bool) {
        let format = |broker: &Broker| {
            let mut command = java("128m");
            command.args(["kafka.tools.StorageTool", "format", "-t", "d2FscG9zdC10ZXN0LTAwMQ", "-c"]);
            command.arg(broker.properties_path());
            if secure {
                command.arg("--add-scram");
                command.arg(format!("SCRAM-SHA-256=[name={SCRAM_USER},password=\"{SCRAM_PASSWORD}\"]"));
            }
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("java")
        };
        let formatting: Vec<_> = self.brokers.iter().map(format).collect();
        for child in formatting {
            let output = child.wait_with_output().expect("java");
            let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "formatting Kafka's storage failed: {said}");
        }
    }

    /// Starts it, or starts it again after a stop, and returns when it serves.
    pub fn start(&mut self) {
        self.start_without_waiting();
        self.wait_ready();
    }

    pub fn start_without_waiting(&mut self) {
        self.brokers.iter_mut().for_each(Broker::start_without_waiting);
    }

    pub fn wait_ready(&self) {
        self.brokers.iter().for_each(Broker::wait_ready);
    }

    /// A clean stop, as an operator does it.
    pub fn stop(&mut self) {
        self.brokers.iter_mut().for_each(Broker::stop);
    }

    pub fn kill9(&mut self) {
        self.brokers.iter_mut().for_each(Broker::kill9);
    }

    /// SIGSTOP: its sockets stay open and nothing answers.
    pub fn pause(&self) {
        self.brokers.iter().for_each(Broker::pause);
    }

    pub fn resume(&self) {
        self.brokers.iter().for_each(Broker::resume);
    }

    /// A client configuration that reaches the plain listener.
    pub fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.bootstrap()).set("log_level", "3");
        config
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client_config().create().expect("an admin client")
    }

    /// Returns when every partition has a leader.
    #[track_caller]
    pub fn create_topic(&self, name: &str, partitions: i32, configs: &[(&str, &str)]) {
        let replicas = self.brokers.len().min(REPLICAS_MAX) as i32;
        self.create(name, partitions, TopicReplication::Fixed(replicas), configs);
    }

    /// With a replica of each partition on each of these brokers, of which some may be away.
    #[track_caller]
    pub fn create_topic_on(&self, name: &str, partitions: usize, brokers: &[i32]) {
        self.create(name, partitions as i32, TopicReplication::Variable(&vec![brokers; partitions]), &[]);
    }

    #[track_caller]
    fn create(&self, name: &str, partitions: i32, replicas: TopicReplication<'_>, configs: &[(&str, &str)]) {
        let mut topic = NewTopic::new(name, partitions, replicas);
        topic.config = configs.to_vec();
        let admin = self.admin();
        let created = block_on(admin.create_topics([&topic], &options())).expect("an answer from Kafka");
        assert!(created.iter().all(Result::is_ok), "creating the topic {name}: {created:?}");
        wait_for(seconds(30), "leaders of the new topic", || {
            let metadata = admin.inner().fetch_metadata(Some(name), seconds(5));
            metadata.is_ok_and(|metadata| {
                metadata.topics().iter().any(|topic| {
                    topic.partitions().len() == partitions as usize
                        && topic.partitions().iter().all(|partition| partition.leader() >= 0)
                })
            })
        });
    }

    /// Returns when the broker no longer knows the topic.
    #[track_caller]
    pub fn delete_topic(&self, name: &str) {
        let deleted = block_on(self.admin().delete_topics(&[name], &options())).expect("an answer from Kafka");
        assert!(deleted.iter().all(Result::is_ok), "deleting the topic {name}: {deleted:?}");
        wait_for(seconds(30), "the topic to be gone", || !self.topics().contains(&name.to_owned()));
    }

    /// Grows the topic to `partitions`.
    #[track_caller]
    pub fn add_partitions(&self, name: &str, partitions: usize) {
        let more = NewPartitions::new(name, partitions);
        let added = block_on(self.admin().create_partitions([&more], &options())).expect("an answer from Kafka");
        assert!(added.iter().all(Result::is_ok), "adding partitions to {name}: {added:?}");
    }

    /// Replaces the topic's own settings.
    #[track_caller]
    pub fn alter_topic(&self, name: &str, configs: &[(&str, &str)]) {
        alter_topic(&self.client_config(), name, configs)
            .unwrap_or_else(|error| panic!("changing the topic {name}: {error}"));
    }

    /// Whether all replicas of the topics that are not Kafka's own are in sync; false too where no broker says so within two
    /// seconds.
    pub fn is_in_sync(&self) -> bool {
        let Ok(metadata) = self.admin().inner().fetch_metadata(None, seconds(2)) else { return false };
        let whole = |partition: &MetadataPartition| partition.isr().len() == partition.replicas().len();
        let topics = metadata.topics().iter().filter(|topic| !topic.name().starts_with("__"));
        topics.flat_map(|topic| topic.partitions()).all(whole)
    }

    /// Cuts a partition's log: what is before `offset` is gone.
    #[track_caller]
    pub fn delete_records(&self, topic: &str, partition: i32, offset: i64) {
        let mut before = TopicPartitionList::new();
        before.add_partition_offset(topic, partition, Offset::Offset(offset)).expect("an offset");
        let cut = block_on(self.admin().delete_records(&before, &options())).expect("an answer from Kafka");
        assert!(cut.elements().iter().all(|part| part.error().is_ok()), "cutting {topic}: {cut:?}");
    }

    /// Grants [`SCRAM_USER`] an operation on a topic. The broker needs an authorizer: see [`AUTHORIZER`].
    #[track_caller]
    pub fn allow(&self, operation: &str, topic: &str) {
        let mut command = java("128m");
        command.arg("org.apache.kafka.tools.AclCommand").args(["--bootstrap-server", &self.bootstrap(), "--add"]);
        command.args(["--allow-principal", &format!("User:{SCRAM_USER}")]);
        command.args(["--operation", operation, "--topic", topic]);
        let output = command.output().expect("java");
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "granting {operation} on {topic} failed: {said}");
    }

    /// `kafka-acls.sh ARGUMENTS`, separated by spaces, for a broker with an authorizer.
    #[track_caller]
    pub fn acl(&self, arguments: &str) {
        let mut command = java("128m");
        command.arg("org.apache.kafka.tools.AclCommand").args(["--bootstrap-server", &self.bootstrap()]);
        let output = command.args(arguments.split_whitespace()).output().expect("java");
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("Error"), "kafka-acls {arguments}: {said}");
    }

    /// Every topic whose name does not begin with two underscores.
    pub fn topics(&self) -> Vec<String> {
        let metadata = self.admin().inner().fetch_metadata(None, seconds(20)).expect("metadata from Kafka");
        let names = metadata.topics().iter().map(|topic| topic.name().to_owned());
        names.filter(|name| !name.starts_with("__")).collect()
    }
}

/// Replaces a topic's own settings, by any client that reaches the brokers.
pub fn alter_topic(client: &ClientConfig, name: &str, configs: &[(&str, &str)]) -> KafkaResult<()> {
    let admin: AdminClient<DefaultClientContext> = client.create()?;
    let mut change = AlterConfig::new(ResourceSpecifier::Topic(name));
    for (key, value) in configs {
        change = change.set(key, value);
    }
    let altered = block_on(admin.alter_configs([&change], &options()))?;
    altered.into_iter().try_for_each(|of_topic| of_topic.map(drop).map_err(|(_, code)| KafkaError::AdminOp(code)))
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(Duration::from_secs(20))).request_timeout(Some(Duration::from_secs(20)))
}
