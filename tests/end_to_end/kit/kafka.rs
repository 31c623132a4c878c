//! A real Apache Kafka: one broker that is its own controller. Tests that do no harm to it share one per run and keep
//! apart by topic names; a fault test starts its own.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;

use super::certs::{Authority, Certificate};
use super::programs::java;
use super::run::{self, Process, free_port, new_dir};
use super::sql::block_on;
use super::wait::{seconds, wait_for};

/// A user of the TLS listener.
pub const SCRAM_USER: &str = "relay";
pub const SCRAM_PASSWORD: &str = "correct horse; battery staple";

/// A broker that is described and not yet started.
#[derive(Default)]
pub struct KafkaBuilder {
    properties: Vec<String>,
    secure: Option<(Certificate, String)>,
}

impl KafkaBuilder {
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
        let home = new_dir("kafka");
        let (port, controller_port, secure_port) = (free_port(), free_port(), free_port());
        let mut listeners = format!("PLAINTEXT://127.0.0.1:{port}");
        let mut tls = String::new();
        if let Some((certificate, authority_pem)) = &self.secure {
            // One file with the key first, then the chain, is what Kafka calls a PEM key store.
            let keystore = home.join("keystore.pem");
            fs::write(&keystore, format!("{}{}", certificate.key_pem, certificate.chain_pem)).expect("a key store");
            let truststore = home.join("truststore.pem");
            fs::write(&truststore, authority_pem).expect("a trust store");
            listeners += &format!(",SECURE://localhost:{secure_port}");
            tls = format!(
                "ssl.keystore.type=PEM\nssl.keystore.location={}\nssl.truststore.type=PEM\nssl.truststore.location={}\n\
                 sasl.enabled.mechanisms=SCRAM-SHA-256\n\
                 listener.name.secure.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;\n",
                keystore.display(),
                truststore.display()
            );
        }
        let log_dir = home.join("log");
        let properties = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller_port}\n\
             listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}\nadvertised.listeners={listeners}\n\
             controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n\
             listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL\n\
             log.dirs={}\n{COMMON_PROPERTIES}{tls}{}\n",
            log_dir.display(),
            self.properties.join("\n")
        );
        fs::write(home.join("server.properties"), properties).expect("server.properties");
        let mut kafka = Kafka { port, secure_port, home, starts: 0, process: None };
        kafka.format(self.secure.is_some());
        kafka.start();
        kafka
    }
}

/// A small broker, quick to start and to stop. Four partitions, so that partitions matter.
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
    pub port: u16,
    secure_port: u16,
    home: PathBuf,
    starts: usize,
    process: Option<Process>,
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
        KafkaBuilder::default()
    }

    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The TLS listener; its certificate must name `localhost`.
    pub fn secure_bootstrap(&self) -> String {
        format!("localhost:{}", self.secure_port)
    }

    fn format(&self, secure: bool) {
        let mut command = java("128m");
        command.args(["kafka.tools.StorageTool", "format", "-t", "d2FscG9zdC10ZXN0LTAwMQ", "-c"]);
        command.arg(self.home.join("server.properties"));
        if secure {
            command.arg("--add-scram");
            command.arg(format!("SCRAM-SHA-256=[name={SCRAM_USER},password=\"{SCRAM_PASSWORD}\"]"));
        }
        let output = command.output().expect("java");
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "formatting Kafka's storage failed: {said}");
    }

    /// Starts it, or starts it again after a stop, and returns when it serves.
    pub fn start(&mut self) {
        self.start_without_waiting();
        self.wait_ready();
    }

    pub fn start_without_waiting(&mut self) {
        assert!(self.process.is_none(), "it is running");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path()).expect("a server log");
        let mut command = java("512m");
        command.arg("kafka.Kafka").arg(self.home.join("server.properties"));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        self.process = Some(Process::spawn("Kafka", &mut command));
        self.starts += 1;
    }

    pub fn wait_ready(&self) {
        let process = self.process.as_ref().expect("a started Kafka");
        wait_for(seconds(90), "Kafka to be ready", || {
            assert!(
                process.is_running(),
                "Kafka ended while it started\n{}",
                run::log_tail("Kafka", &self.log_path(), 30)
            );
            let log = fs::read_to_string(self.log_path()).unwrap_or_default();
            log.matches("Kafka Server started").count() >= self.starts
        });
    }

    pub fn log_path(&self) -> PathBuf {
        self.home.join("server.log")
    }

    /// A clean stop, as an operator does it.
    pub fn stop(&mut self) {
        let process = self.process.take().expect("a running Kafka");
        process.signal(libc::SIGTERM);
        process.wait_exit(seconds(60));
    }

    pub fn kill9(&mut self) {
        self.process = None;
    }

    /// SIGSTOP: its sockets stay open and nothing answers.
    pub fn pause(&self) {
        self.process.as_ref().expect("a running Kafka").signal(libc::SIGSTOP);
    }

    pub fn resume(&self) {
        self.process.as_ref().expect("a running Kafka").signal(libc::SIGCONT);
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
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
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
        let mut change = AlterConfig::new(ResourceSpecifier::Topic(name));
        for (key, value) in configs {
            change = change.set(key, value);
        }
        let altered = block_on(self.admin().alter_configs([&change], &options())).expect("an answer from Kafka");
        assert!(altered.iter().all(Result::is_ok), "changing the topic {name}: {altered:?}");
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

impl Drop for Kafka {
    fn drop(&mut self) {
        run::print_log_after_failure("Kafka", &self.log_path(), 25);
        self.process = None;
        let _ = fs::remove_dir_all(&self.home);
    }
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(Duration::from_secs(20))).request_timeout(Some(Duration::from_secs(20)))
}
