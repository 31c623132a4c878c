//! A server of a test's own, with certificates and one role for each way of being let in.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use walpost::config::{self, Secret, SecretSource};
use walpost::postgres::{ConnectError, Connector, Session};
use walpost::source::connection::Connection;

use super::WITHIN;

/// One role for each way of being let in.
const HBA: &str = "
local   all super                  trust
local   all relay                  trust
local   all passfile               scram-sha-256
host    all super     127.0.0.1/32 trust
host    all relay     127.0.0.1/32 trust
host    all norepl    127.0.0.1/32 trust
host    all clear     127.0.0.1/32 password
host    all hashed    127.0.0.1/32 md5
host    all scram     127.0.0.1/32 scram-sha-256
host    all passfile  127.0.0.1/32 scram-sha-256
hostssl all tls_only  127.0.0.1/32 scram-sha-256
hostnossl all plain_only 127.0.0.1/32 scram-sha-256
hostssl all certified 127.0.0.1/32 cert
";

const ROLES: &str = "
CREATE ROLE relay LOGIN REPLICATION;
CREATE ROLE norepl LOGIN;
SET password_encryption = 'md5';
CREATE ROLE hashed LOGIN REPLICATION PASSWORD 'md5 secret';
SET password_encryption = 'scram-sha-256';
CREATE ROLE clear LOGIN REPLICATION PASSWORD 'clear secret';
CREATE ROLE scram LOGIN REPLICATION PASSWORD 'pä ß \u{2168}';
CREATE ROLE passfile LOGIN REPLICATION PASSWORD 'a:b\\c';
CREATE ROLE tls_only LOGIN REPLICATION PASSWORD 'x';
CREATE ROLE plain_only LOGIN REPLICATION PASSWORD 'x';
CREATE ROLE certified LOGIN REPLICATION;
ALTER ROLE relay SET statement_timeout = '1s';
ALTER ROLE relay SET datestyle = 'German';
CREATE DATABASE shop;
";

pub struct Server {
    pub process: Child,
    pub port: u16,
    pub folder: TempDir,
}

impl Server {
    pub async fn start(settings: &[&str]) -> Server {
        let bin = PathBuf::from(std::env::var_os("WALPOST_TEST_POSTGRES_BIN").expect(
            "set WALPOST_TEST_POSTGRES_BIN to the folder of initdb and postgres (14 to 18); this test needs a real server",
        ));
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
        let sockets = folder.path().join("sockets");
        fs::create_dir(&sockets).unwrap();
        Certificates::write(folder.path());
        give(&data);
        give(&sockets);
        let made = as_postgres(&bin.join("initdb"))
            .args(["-U", "super", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        fs::write(data.join("pg_hba.conf"), HBA).unwrap();
        // Free now; a test that loses the race to another program says so in the server's log.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = as_postgres(&bin.join("postgres"));
        command.arg("-D").arg(&data).args(["-p", &port.to_string(), "-k"]).arg(&sockets);
        let common = [
            "listen_addresses=127.0.0.1",
            "wal_level=logical",
            "fsync=off",
            "ssl_cert_file=../server.crt",
            "ssl_key_file=../server.key",
            "ssl_ca_file=../ca.crt",
        ];
        for setting in common.iter().chain(settings) {
            command.args(["-c", setting]);
        }
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let process = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut server = Server { process, port, folder };
        let deadline = Instant::now() + WITHIN;
        let session = loop {
            match server.session("user=super dbname=postgres").await {
                Ok(session) => break session,
                Err(error) if Instant::now() > deadline || server.process.try_wait().unwrap().is_some() => {
                    let log = fs::read_to_string(server.folder.path().join("log")).unwrap();
                    panic!("Postgres did not get ready: {error}\n{log}")
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await, // between two looks
            }
        };
        for statement in ROLES.split(';').filter(|statement| !statement.trim().is_empty()) {
            session.batch_execute(statement).await.unwrap();
        }
        server
    }

    pub fn path(&self, file: &str) -> String {
        self.folder.path().join(file).to_str().unwrap().to_owned()
    }

    /// An address at this server; what `settings` says wins.
    pub fn connector(&self, settings: &str) -> Connector {
        let port = self.port;
        let defaults = [("host=", "host=127.0.0.1"), ("user=", "user=relay"), ("dbname=", "dbname=shop")];
        let missing = defaults.iter().filter(|(key, _)| !settings.contains(key)).map(|(_, value)| *value);
        let missing: Vec<&str> = missing.collect();
        let port = if settings.contains("port=") { String::new() } else { format!("port={port}") };
        connector(&format!("{} {port} {settings}", missing.join(" ")))
    }

    pub async fn session(&self, settings: &str) -> Result<Session, ConnectError> {
        self.connector(settings).sql("wire-test").await
    }

    pub async fn connection(&self, settings: &str) -> Result<Connection, ConnectError> {
        Connection::connect(&self.connector(settings), "wire-test").await
    }

    /// Both kinds of connection, which must agree: encrypted or not, or the error.
    pub async fn both(&self, settings: &str) -> Result<bool, ConnectError> {
        const ENCRYPTED: &str = "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        let sql = match self.session(settings).await {
            Ok(session) => Ok(session.query_one(ENCRYPTED, &[]).await.unwrap().get::<_, String>(0) == "true"),
            Err(error) => Err(error),
        };
        let replication = match self.connection(settings).await {
            Ok(mut connection) => {
                let rows = connection.simple_query(ENCRYPTED).await.unwrap();
                assert_eq!(rows, [[Some(connection.is_tls().to_string())]]);
                assert!(connection.identify_system().await.unwrap().dbname == "shop");
                Ok(connection.is_tls())
            }
            Err(error) => Err(error),
        };
        match (&sql, &replication) {
            (Ok(sql), Ok(replication)) => assert_eq!(sql, replication, "{settings}"),
            (Err(sql), Err(replication)) => {
                assert_eq!((sql.kind(), sql.sqlstate()), (replication.kind(), replication.sqlstate()), "{settings}");
            }
            _ => panic!("{settings}: SQL {sql:?}, replication {replication:?}"),
        }
        replication
    }

    pub fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args(["-s", signal, &self.process.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            let _ = Command::new("kill").args(["-s", "QUIT", &self.process.id().to_string()]).status();
            let _ = self.process.wait();
        }
    }
}

pub fn connector(url: &str) -> Connector {
    let postgres = config::Postgres {
        url: Some(SecretSource::Value(Secret::new(url))),
        password: None,
        table: "outbox_messages".into(),
        slot: "walpost".into(),
        publication: "walpost".into(),
    };
    Connector::new(&postgres).unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn user_id() -> Option<(u32, &'static str)> {
    let id = |user: &str| {
        let out = Command::new("id").args(["-u", user]).output().ok()?;
        String::from_utf8(out.stdout).ok()?.trim().parse().ok()
    };
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    root.then(|| ["postgres", "nobody"].into_iter().find_map(|user| Some((id(user)?, user))).unwrap())
}

/// Postgres refuses to run as root.
fn as_postgres(program: &Path) -> Command {
    let Some((uid, _)) = user_id() else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), "--clear-groups".into()]).arg(program).current_dir("/");
    command
}

fn give(path: &Path) {
    if let Some((uid, _)) = user_id() {
        chown(path, Some(uid), None).unwrap();
    }
}

/// An authority, the server's certificate for `localhost`, a client's, a list that revokes the server's, and an
/// authority that nobody trusts.
struct Certificates;

impl Certificates {
    fn write(folder: &Path) {
        use rcgen::*;
        let authority = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            params.distinguished_name.push(DnType::CommonName, name);
            let certificate = params.self_signed(&key).unwrap();
            (certificate.pem(), Issuer::new(params, key))
        };
        let write = |name: &str, text: String, secret: bool| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            if secret {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            }
            if name.starts_with("server") {
                give(&path);
            }
        };
        let (ca, issuer) = authority("walpost test authority");
        write("ca.crt", ca, false);
        write("other.crt", authority("somebody else").0, false);
        for (file, names, common) in
            [("server", vec!["localhost".to_owned()], "server"), ("client", vec![], "certified")]
        {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(names).unwrap();
            params.serial_number = Some(SerialNumber::from(if file == "server" { 7_u64 } else { 8 }));
            params.distinguished_name.push(DnType::CommonName, common);
            let certificate = params.signed_by(&key, &issuer).unwrap();
            write(&format!("{file}.crt"), certificate.pem(), false);
            write(&format!("{file}.key"), key.serialize_pem(), true);
        }
        let list = |serials: &[u64]| {
            let revoked = |serial: &u64| RevokedCertParams {
                serial_number: SerialNumber::from(*serial),
                revocation_time: date_time_ymd(2024, 1, 1),
                reason_code: None,
                invalidity_date: None,
            };
            let params = CertificateRevocationListParams {
                this_update: date_time_ymd(2024, 1, 1),
                next_update: date_time_ymd(2200, 1, 1),
                crl_number: SerialNumber::from(1_u64),
                issuing_distribution_point: None,
                revoked_certs: serials.iter().map(revoked).collect(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            params.signed_by(&issuer).unwrap().pem().unwrap()
        };
        write("none.crl", list(&[]), false);
        write("revoked.crl", list(&[7]), false);
    }
}

/// As a pooler does that is told to ignore the startup parameter `replication`: everything else passes.
pub async fn pooler(port: u16) -> u16 {
    const REPLICATION: &[u8] = b"replication\0database\0";
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(async move {
                let length = client.read_u32().await.unwrap();
                let mut startup = vec![0; length as usize - 4];
                client.read_exact(&mut startup).await.unwrap();
                if let Some(at) = startup.windows(REPLICATION.len()).position(|part| part == REPLICATION) {
                    startup.drain(at..at + REPLICATION.len());
                }
                server.write_u32(startup.len() as u32 + 4).await.unwrap();
                server.write_all(&startup).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    own
}
