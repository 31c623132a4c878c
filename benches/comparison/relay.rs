//! A peer as a process: how each is started and stopped. All publish with `acks=all`, keyed by the aggregate's id, the payload
//! as the value, with the headers `id` and `eventType`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::kit::{Process, Walpost, log_tail, new_dir, repository, seconds, wait_for, walpost};
use super::meter::now_s;
use super::servers::{FULL_PUBLICATION, Servers};
use super::spec::Peer;

pub struct Relay {
    pub peer: Peer,
    pub slot: String,
    /// Seconds since 1970.
    pub started_s: f64,
    program: Program,
}

enum Program {
    Walpost(Walpost),
    Other { process: Process, log: PathBuf },
}

impl Relay {
    /// Starts it on a slot; `end` is where pg_recvlogical ends by itself.
    pub fn start(servers: &Servers, peer: Peer, slot: &str, end: Option<&str>) -> Relay {
        let started_s = now_s();
        let program = match peer {
            Peer::Walpost => {
                let run = walpost("run").postgres(&servers.postgres, "bench").kafka(&servers.kafka).slot(slot);
                Program::Walpost(run.spawn())
            }
            Peer::PgRecvlogical => {
                let mut command = Command::new("pg_recvlogical");
                command.args(["-d", &servers.url, "--slot", slot, "--start", "-f", "/dev/null"]);
                command.args(["-o", "proto_version=1", "-o", &format!("publication_names={FULL_PUBLICATION}")]);
                if let Some(end) = end {
                    command.args(["--endpos", end]);
                }
                other(peer, command)
            }
            Peer::Polling => {
                let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
                command.arg("polling").env("DATABASE_URL", &servers.url).env("TABLE", peer.table());
                command.env("KAFKA_BOOTSTRAP_SERVERS", servers.kafka.bootstrap());
                other(peer, command)
            }
            Peer::DebeziumDefault | Peer::DebeziumTuned | Peer::DebeziumBest => {
                other(peer, debezium(servers, peer, slot))
            }
            Peer::None => panic!("nobody is no relay: whoever asks must not start it"),
        };
        Relay { peer, slot: slot.to_owned(), started_s, program }
    }

    pub fn pid(&self) -> i32 {
        match &self.program {
            Program::Walpost(walpost) => walpost.pid(),
            Program::Other { process, .. } => process.pid(),
        }
    }

    pub fn exit_code(&self) -> Option<i32> {
        match &self.program {
            Program::Walpost(walpost) => walpost.exit_code(),
            Program::Other { process, .. } => process.exit_code(),
        }
    }

    /// Panics with the end of its log where it has ended.
    pub fn check(&self) {
        if let Some(code) = self.exit_code() {
            panic!("{} ended with {code}\n{}", self.peer.name(), self.log_tail());
        }
    }

    pub fn log_tail(&self) -> String {
        match &self.program {
            Program::Walpost(walpost) => walpost.log_tail(),
            Program::Other { log, .. } => log_tail(&self.peer.name(), log, 40),
        }
    }

    /// Waits until it reads: a slot reader holds its slot, walpost streams.
    pub fn wait_reading(&self, servers: &Servers) {
        match &self.program {
            Program::Walpost(walpost) => walpost.wait_streaming(),
            Program::Other { .. } if self.peer.reads_slot() => {
                wait_for(seconds(90), "the relay to hold its slot", || {
                    self.check();
                    servers.walsender(&self.slot).is_some()
                });
            }
            Program::Other { .. } => {}
        }
    }

    /// Waits until it stands by beside the relay that holds the slot. walpost alone.
    pub fn wait_standby(&self) {
        if let Program::Walpost(walpost) = &self.program {
            walpost.wait_state("standby", seconds(40));
        }
    }

    pub fn signal(&self, signal: i32) {
        match &self.program {
            Program::Walpost(walpost) => walpost.signal(signal),
            Program::Other { process, .. } => process.signal(signal),
        }
    }

    /// SIGTERM, and SIGKILL where that does not end it within a minute.
    pub fn stop(self) {
        self.signal(libc::SIGTERM);
        let deadline = now_s() + 60.0;
        wait_for(seconds(90), "the end of the relay", || {
            if now_s() > deadline {
                self.signal(libc::SIGKILL);
            }
            self.exit_code().is_some()
        });
    }
}

fn other(peer: Peer, mut command: Command) -> Program {
    let log = new_dir("relay").join("log");
    let file = fs::File::create(&log).expect("a file for the relay's output");
    command.stdin(Stdio::null()).stdout(file.try_clone().expect("a file")).stderr(file);
    Program::Other { process: Process::spawn(&peer.name(), &mut command), log }
}

/// Larger batches and queue, a short poll, a large producer batch: throughput and latency at the same safety.
const TUNED: &str = "\
max.batch.size=16384
max.queue.size=65536
poll.interval.ms=5
extended.headers.enabled=false
producer.override.acks=all
producer.override.linger.ms=5
producer.override.batch.size=524288
producer.override.buffer.memory=134217728
producer.override.compression.type=lz4
";

/// Kafka Connect standalone with one connector, in which only what has no working default is set.
fn debezium(servers: &Servers, peer: Peer, slot: &str) -> Command {
    let work = new_dir("debezium");
    let tuned = peer != Peer::DebeziumDefault;
    let mut worker = format!(
        "bootstrap.servers={}\nlisteners=http://127.0.0.1:0\noffset.storage.file.filename={}\n\
         key.converter=org.apache.kafka.connect.storage.StringConverter\n\
         value.converter=org.apache.kafka.connect.storage.StringConverter\n",
        servers.kafka.bootstrap(),
        work.join("offsets").display()
    );
    let mut connector = format!(
        "name=outbox\nconnector.class=io.debezium.connector.postgresql.PostgresConnector\ntasks.max=1\n\
         topic.prefix=walpost\ndatabase.hostname=127.0.0.1\ndatabase.port={}\ndatabase.user=postgres\n\
         database.password=unused\ndatabase.dbname=bench\nplugin.name=pgoutput\nslot.name={slot}\n\
         publication.name={FULL_PUBLICATION}\npublication.autocreate.mode=disabled\n\
         table.include.list=public.outbox_messages\nsnapshot.mode=no_data\ntransforms=outbox\n\
         transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n\
         transforms.outbox.table.field.event.id=message_id\ntransforms.outbox.table.field.event.key=aggregate_id\n\
         transforms.outbox.table.field.event.payload=payload\n\
         transforms.outbox.table.fields.additional.placement=event_type:header:eventType\n\
         transforms.outbox.route.by.field=aggregate_type\n",
        servers.postgres.port
    );
    if tuned {
        worker += "connector.client.config.override.policy=All\n";
        connector += TUNED;
    }
    fs::write(work.join("worker.properties"), worker).expect("the worker's properties");
    fs::write(work.join("connector.properties"), connector).expect("the connector's properties");
    let mut command = Command::new("java");
    match peer {
        Peer::DebeziumBest => command.args(["-Xms2g", "-Xmx2g", "-XX:+UseParallelGC"]),
        _ => command.args(["-Xms256m", "-Xmx2g"]),
    };
    command
        .arg(format!("-Dlog4j2.configurationFile={}", repository().join("scripts/kafka/log4j2.properties").display()));
    command.args(["-cp", &debezium_classpath(), "org.apache.kafka.connect.cli.ConnectStandalone"]);
    command.arg(work.join("worker.properties")).arg(work.join("connector.properties"));
    command
}

fn debezium_classpath() -> String {
    let fetch = repository().join("benches/debezium/fetch");
    let output = Command::new(&fetch).stderr(Stdio::inherit()).output().expect("bash, for benches/debezium/fetch");
    assert!(output.status.success(), "{} failed; it says why above", fetch.display());
    String::from_utf8(output.stdout).expect("a class path").trim().to_owned()
}
