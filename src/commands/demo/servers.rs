//! The servers of the demo: a Postgres, and a Kafka or its stand-in, on free ports of the loopback, with their data in a
//! temporary folder. All of it is gone when the values are dropped.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::config::Secret;
use crate::sink::reader;
use crate::sink::stand_in::{StandIn, StandInError};

use super::child::{Child, Signal};
use super::programs::{KafkaPrograms, PostgresPrograms};
use super::screen::Screen;

/// Generous: a cold disk and a busy machine make a start slow, and every line of waiting is shown.
const READY_WITHIN: Duration = Duration::from_secs(90);
const STILL_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Below the range from which the kernel takes source ports, so that no outgoing connection can be there first.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// A cluster's id is 16 bytes in base64. This one lives for half a minute.
const KAFKA_CLUSTER_ID: &str = "walpostDemoClusterAAAA";

/// The servers cannot be had. The texts say what to do.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(
        "no Postgres was found: PG_BINDIR is not set, and `postgres` and `initdb` are neither on the PATH nor in \
         /usr/lib/postgresql/*/bin; run `make demo` in walpost's repository, which finds or fetches a Postgres and a \
         Kafka, or install Postgres 14 or newer (Debian, Ubuntu: apt-get install postgresql)"
    )]
    NoPostgres,
    #[error(
        "PG_BINDIR is {}, where `postgres` and `initdb` are not both; set it to the folder with Postgres' programs, or \
         run `make demo`", folder.display()
    )]
    WrongFolder { folder: PathBuf },
    #[error(
        "the Postgres in {} is {version}, and walpost needs 14 or newer; set PG_BINDIR to the folder of a newer one, or \
         run `make demo`", folder.display()
    )]
    OldPostgres { folder: PathBuf, version: String },
    #[error("{program} cannot be started")]
    Spawn { program: &'static str, source: io::Error },
    #[error(
        "{program} cannot be started as {user}, the user that Postgres runs as when walpost runs as root; its folder \
         must be open to that user: run `make demo`, which sees to that, or run the demo as another user"
    )]
    SpawnAs { program: &'static str, user: String, source: io::Error },
    #[error("{program} {what}; its log ends with:\n{tail}")]
    Failed { program: &'static str, what: String, tail: String },
    #[error("the temporary folder {} cannot be made ready", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("no free port was found between {} and {} on 127.0.0.1", PORTS.start, PORTS.end)]
    NoPort,
    #[error(transparent)]
    StandIn(#[from] StandInError),
    #[error("nothing can be printed")]
    Output(#[from] io::Error),
}

/// A temporary folder. Dropped, it is deleted with all that is in it: drop what writes to it first.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    pub fn create() -> Result<Folder, ServerError> {
        let path = std::env::temp_dir().join(format!("walpost-demo-{}-{:08x}", std::process::id(), random() as u32));
        // Readable, because Postgres may run as another user; its own data are readable to that user only.
        match fs::DirBuilder::new().mode(0o755).create(&path) {
            Ok(()) => Ok(Folder { path }),
            Err(source) => Err(ServerError::Folder { path, source }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A running Postgres.
pub struct Postgres {
    port: u16,
    password: Secret,
    _child: Child,
}

impl Postgres {
    /// Makes a database cluster and starts it; returns when it takes connections.
    pub async fn start(programs: &PostgresPrograms, folder: &Folder, screen: &Screen) -> Result<Postgres, ServerError> {
        let version = &programs.version;
        screen.step(&format!("Postgres {version}: making a database (initdb)"))?;
        let owner = Owner::of_servers();
        let home = folder.path().join("postgres");
        let data = home.join("data");
        let made = fs::create_dir(&home).and_then(|()| match &owner {
            Some(owner) => std::os::unix::fs::chown(&home, Some(owner.uid), Some(owner.gid)),
            None => Ok(()),
        });
        made.map_err(|source| ServerError::Folder { path: home.clone(), source })?;

        // Everybody on this machine reaches the loopback, and a superuser may run programs: so not without a password.
        let password = password().map_err(|source| ServerError::Folder { path: "/dev/urandom".into(), source })?;
        let password_file = home.join("password");
        let written = write_private(&password_file, password.expose(), owner.as_ref());
        written.map_err(|source| ServerError::Folder { path: password_file.clone(), source })?;
        let mut initdb = program(&programs.bindir.join("initdb"), &home, owner.as_ref());
        initdb.arg("-D").arg(&data);
        initdb.arg("--pwfile").arg(&password_file);
        initdb.args(["-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync"]);
        let mut initdb = spawn(initdb, "initdb", folder, Signal::Kill, owner.as_ref())?;
        let status = loop {
            match initdb.ended() {
                Some(status) => break status,
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        };
        if !status.success() {
            return Err(ServerError::Failed {
                program: "initdb",
                what: format!("ended with {status}"),
                tail: initdb.tail(),
            });
        }

        let port = free_port()?;
        let mut postgres = program(&programs.bindir.join("postgres"), &home, owner.as_ref());
        postgres.arg("-D").arg(&data);
        for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories=", "wal_level=logical"] {
            postgres.args(["-c", setting]);
        }
        postgres.args(["-c", &format!("port={port}")]);
        let mut child = spawn(postgres, "postgres", folder, Signal::Quit, owner.as_ref())?;
        // Postgres writes its state into this file, as pg_ctl knows.
        let state = data.join("postmaster.pid");
        let is_up = || {
            fs::read_to_string(&state).is_ok_and(|text| text.lines().nth(7).is_some_and(|line| line.trim() == "ready"))
        };
        wait_until("postgres", "Postgres", &mut child, screen, async || is_up()).await?;
        screen.step(&format!("Postgres {version} is up at 127.0.0.1:{port}, with wal_level = logical"))?;
        Ok(Postgres { port, password, _child: child })
    }

    /// The address, without the password.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// The superuser's password.
    pub fn password(&self) -> &Secret {
        &self.password
    }
}

/// Where records go.
pub enum Broker {
    Kafka {
        port: u16,
        _child: Child,
    },
    /// Not a Kafka.
    StandIn(StandIn),
}

impl Broker {
    /// Starts a Kafka, or where there are no programs for one (the text says why) the stand-in, and says so.
    pub async fn start(
        programs: Result<KafkaPrograms, String>,
        folder: &Folder,
        screen: &Screen,
    ) -> Result<Broker, ServerError> {
        match programs {
            Ok(programs) => Broker::kafka(&programs, folder, screen).await,
            Err(why) => {
                let stand_in = StandIn::start()?;
                screen.warning(&format!(
                    "This is NOT Apache Kafka: {why}.\n\
                     Records go to a stand-in, the broker that the client library carries for its own tests. It shows\n\
                     what walpost does, but no promise is tested on it. It leaves some questions unanswered, so a first\n\
                     message and one after a restart take 10 s longer."
                ))?;
                screen.step(&format!("the stand-in (not a Kafka) is up at {}", stand_in.brokers()))?;
                Ok(Broker::StandIn(stand_in))
            }
        }
    }

    async fn kafka(programs: &KafkaPrograms, folder: &Folder, screen: &Screen) -> Result<Broker, ServerError> {
        let name = match &programs.version {
            Some(version) => format!("Apache Kafka {version}"),
            None => "Apache Kafka".to_owned(),
        };
        screen.step(&format!("{name}: formatting its storage and starting one broker (Java takes some seconds)"))?;
        let (port, controller) = (free_port()?, free_port()?);
        let home = folder.path().join("kafka");
        let file = home.join("server.properties");
        let written = fs::create_dir(&home).and_then(|()| fs::write(&file, server_properties(&home, port, controller)));
        written.map_err(|source| ServerError::Folder { path: home.clone(), source })?;

        let java = || {
            let mut java = program(&programs.java, &home, None);
            // A start is worth more than speed here.
            java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m", "-cp"]);
            java.arg(&programs.classpath);
            java
        };
        let mut format = java();
        format.args(["kafka.tools.StorageTool", "format", "-t", KAFKA_CLUSTER_ID, "-c"]).arg(&file);
        let mut format = spawn(format, "kafka-format", folder, Signal::Kill, None)?;
        let status = loop {
            match format.ended() {
                Some(status) => break status,
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        };
        if !status.success() {
            let what = format!("could not format its storage ({status})");
            return Err(ServerError::Failed { program: "Kafka", what, tail: format.tail() });
        }

        let mut kafka = java();
        kafka.arg("kafka.Kafka").arg(&file);
        // Its data go with it, so it need not be asked to end in order.
        let mut child = spawn(kafka, "kafka", folder, Signal::Kill, None)?;
        let brokers = format!("127.0.0.1:{port}");
        wait_until("Kafka", &name, &mut child, screen, async || {
            // The port is open before the broker answers; asked too early, the client would wait and try again.
            if tokio::net::TcpStream::connect(&brokers).await.is_err() {
                return false;
            }
            let brokers = brokers.clone();
            tokio::task::spawn_blocking(move || reader::answers(&brokers)).await.unwrap_or(false)
        })
        .await?;
        screen.step(&format!("{name} is up at {brokers}, with 3 partitions for a new topic"))?;
        Ok(Broker::Kafka { port, _child: child })
    }

    /// For `--brokers`.
    pub fn brokers(&self) -> String {
        match self {
            Broker::Kafka { port, .. } => format!("127.0.0.1:{port}"),
            Broker::StandIn(stand_in) => stand_in.brokers(),
        }
    }

    pub fn is_kafka(&self) -> bool {
        matches!(self, Broker::Kafka { .. })
    }
}

fn server_properties(home: &Path, port: u16, controller: u16) -> String {
    format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         controller.listener.names=CONTROLLER\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
         listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n\
         log.dirs={}\n\
         num.partitions=3\n\
         offsets.topic.replication.factor=1\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         share.coordinator.state.topic.replication.factor=1\n\
         share.coordinator.state.topic.min.isr=1\n",
        home.join("log").display()
    )
}

/// Who Postgres runs as where we are root, which it refuses to run as.
struct Owner {
    name: String,
    uid: u32,
    gid: u32,
}

impl Owner {
    fn of_servers() -> Option<Owner> {
        // The owner of a process' folder is its effective user.
        let is_root = fs::metadata("/proc/self").is_ok_and(|ours| ours.uid() == 0);
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        is_root.then(|| ["postgres", "nobody"].iter().find_map(|name| Owner::parse(&users, name)))?
    }

    /// Of `name:x:uid:gid:...`.
    fn parse(users: &str, name: &str) -> Option<Owner> {
        let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let fields = fields.into_iter().find(|fields| fields.first() == Some(&name))?;
        let number = |at: usize| fields.get(at)?.parse().ok();
        Some(Owner { name: name.to_owned(), uid: number(2)?, gid: number(3)? })
    }
}

/// `path`, run in `folder` as `owner`, in English and without the settings of other Postgres and Java programs.
fn program(path: &Path, folder: &Path, owner: Option<&Owner>) -> Command {
    let mut command = Command::new(path);
    command.current_dir(folder).env("LC_ALL", "C");
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("PG") || name.starts_with("KAFKA_") || name == "JAVA_TOOL_OPTIONS")
        {
            command.env_remove(name);
        }
    }
    if let Some(owner) = owner {
        command.uid(owner.uid).gid(owner.gid);
    }
    command
}

fn spawn(
    command: Command,
    program: &'static str,
    folder: &Folder,
    stop: Signal,
    owner: Option<&Owner>,
) -> Result<Child, ServerError> {
    let log = folder.path().join(format!("{program}.log"));
    Child::spawn(command, log, stop).map_err(|source| match owner {
        Some(owner) if source.kind() == io::ErrorKind::PermissionDenied => {
            ServerError::SpawnAs { program, user: owner.name.clone(), source }
        }
        _ => ServerError::Spawn { program, source },
    })
}

/// Waits until `is_up`, shows that it waits, and gives up when the program ends.
async fn wait_until(
    program: &'static str,
    name: &str,
    child: &mut Child,
    screen: &Screen,
    is_up: impl AsyncFn() -> bool,
) -> Result<(), ServerError> {
    let started = Instant::now();
    let mut still_at = started + STILL_EVERY;
    loop {
        if let Some(status) = child.ended() {
            return Err(ServerError::Failed {
                program,
                what: format!("ended at its start ({status})"),
                tail: child.tail(),
            });
        }
        if is_up().await {
            return Ok(());
        }
        let now = Instant::now();
        if now >= started + READY_WITHIN {
            let what = format!("did not get ready within {} s", READY_WITHIN.as_secs());
            return Err(ServerError::Failed { program, what, tail: child.tail() });
        }
        if now >= still_at {
            screen.step(&format!("{name}: still starting"))?;
            still_at = now + STILL_EVERY;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A port that nobody listens on. Somebody else may take it before its user does; a range of ten thousand makes that rare.
pub fn free_port() -> Result<u16, ServerError> {
    let size = u64::from(PORTS.end - PORTS.start);
    let candidates = std::iter::repeat_with(|| PORTS.start + (random() % size) as u16).take(100);
    let mut free = candidates.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.next().ok_or(ServerError::NoPort)
}

/// Nobody guesses it.
fn password() -> io::Result<Secret> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(Secret::new(hex::encode(bytes)))
}

fn write_private(path: &Path, text: &str, owner: Option<&Owner>) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    match owner {
        Some(owner) => std::os::unix::fs::fchown(&file, Some(owner.uid), Some(owner.gid)),
        None => Ok(()),
    }
}

/// Differs from call to call and from process to process; no secret.
fn random() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_servers_is_read_from_the_list_of_users() {
        let users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65533:nobody:/:/bin/false\nbroken:x:one\n";
        let nobody = Owner::parse(users, "nobody").unwrap();
        assert_eq!((nobody.uid, nobody.gid), (65534, 65533));
        assert!(Owner::parse(users, "postgres").is_none());
        assert!(Owner::parse(users, "broken").is_none());
    }

    #[test]
    fn a_folder_is_deleted_with_what_is_in_it() {
        let folder = Folder::create().unwrap();
        let path = folder.path().to_owned();
        fs::create_dir(path.join("in")).unwrap();
        fs::write(path.join("in/it"), "x").unwrap();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn a_free_port_is_one_that_can_be_listened_on() {
        let port = free_port().unwrap();
        assert!(PORTS.contains(&port));
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
}
