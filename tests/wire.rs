//! The Postgres side of the wire against real servers: who is let in and how, every sslmode, several hosts, Unix
//! sockets, and the replication stream itself.
//!
//! `WALPOST_TEST_POSTGRES_BIN` names the folder with `initdb` and `postgres` of the version to test against. Each test
//! starts a server of its own in a temporary folder (under root as `postgres`, or `nobody`).

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use walpost::config::{self, Secret, SecretSource};
use walpost::lsn::Lsn;
use walpost::postgres::{ConnectError, Connector, ErrorKind, Session, StreamError};
use walpost::source::connection::Connection;
use walpost::source::protocol::{Frame, StandbyStatusUpdate};
use walpost::source::stream::Stream;

const WITHIN: Duration = Duration::from_secs(60);

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

struct Server {
    process: Child,
    port: u16,
    folder: TempDir,
}

impl Server {
    async fn start(settings: &[&str]) -> Server {
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

    fn path(&self, file: &str) -> String {
        self.folder.path().join(file).to_str().unwrap().to_owned()
    }

    /// An address at this server; what `settings` says wins.
    fn connector(&self, settings: &str) -> Connector {
        let port = self.port;
        let defaults = [("host=", "host=127.0.0.1"), ("user=", "user=relay"), ("dbname=", "dbname=shop")];
        let missing = defaults.iter().filter(|(key, _)| !settings.contains(key)).map(|(_, value)| *value);
        let missing: Vec<&str> = missing.collect();
        let port = if settings.contains("port=") { String::new() } else { format!("port={port}") };
        connector(&format!("{} {port} {settings}", missing.join(" ")))
    }

    async fn session(&self, settings: &str) -> Result<Session, ConnectError> {
        self.connector(settings).sql("wire-test").await
    }

    async fn connection(&self, settings: &str) -> Result<Connection, ConnectError> {
        Connection::connect(&self.connector(settings), "wire-test").await
    }

    /// Both kinds of connection, which must agree: encrypted or not, or the error.
    async fn both(&self, settings: &str) -> Result<bool, ConnectError> {
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

    fn signal(&self, signal: &str) {
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

fn connector(url: &str) -> Connector {
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

fn text(outcome: Result<bool, ConnectError>) -> String {
    match outcome {
        Ok(true) => "TLS".into(),
        Ok(false) => "plain".into(),
        Err(error) => format!("{:?}: {error} ({})", error.kind(), error.remedy()),
    }
}

/// Runs a table of (settings, what the outcome's text must contain) and reports every miss at once.
async fn check(server: &Server, table: &[(&str, &str)]) {
    let mut misses = Vec::new();
    for (settings, expected) in table {
        let seen = text(server.both(settings).await);
        println!("{settings}\n    {seen}");
        if !seen.contains(expected) {
            misses.push(format!("{settings}: expected {expected}, got {seen}"));
        }
    }
    assert!(misses.is_empty(), "{misses:#?}");
}

#[tokio::test]
async fn who_is_let_in_and_who_is_told_why_not() {
    let server = Server::start(&["ssl=on"]).await;
    let passfile = server.path("pgpass");
    fs::write(&passfile, format!("# ours\n127.0.0.1:{}:shop:passfile:a\\:b\\\\c\n", server.port)).unwrap();
    fs::set_permissions(&passfile, fs::Permissions::from_mode(0o600)).unwrap();
    let table = [
        ("user=relay sslmode=disable", "plain"),
        ("user=clear password='clear secret' sslmode=disable", "plain"),
        ("user=clear password=wrong sslmode=disable", "the password of \"clear\" is wrong"),
        ("user=clear sslmode=disable", "none is given"),
        ("user=hashed password='md5 secret' sslmode=disable", "plain"),
        ("user=hashed password='md5 wrong' sslmode=disable", "SQLSTATE 28P01"),
        ("user=scram password='pä ß \u{2168}' sslmode=disable", "plain"),
        // SASLprep turns the Roman numeral into its letters.
        ("user=scram password='pä ß IX' sslmode=disable", "plain"),
        ("user=scram password='pä ß' sslmode=prefer", "SQLSTATE 28P01"),
        ("user=scram password='pä ß IX' sslmode=require channel_binding=require", "TLS"),
        ("user=scram password='pä ß IX' sslmode=require channel_binding=disable", "TLS"),
        ("user=scram password='pä ß IX' sslmode=disable channel_binding=require", "Auth: "),
        ("user=relay sslmode=require channel_binding=require", "Auth: "),
        ("user=hashed password='md5 secret' sslmode=require channel_binding=require", "Auth: "),
        ("user=nobody", "Auth: "),
        ("dbname=nothing", "create database \"nothing\""),
    ];
    check(&server, &table).await;
    let passfile = format!("user=passfile passfile={passfile} sslmode=disable");
    check(&server, &[(&passfile, "plain"), (&format!("{passfile} host=localhost"), "none is given")]).await;

    let error = server.connection("user=norepl").await.unwrap_err();
    assert_eq!((error.kind(), error.sqlstate()), (ErrorKind::NotPermitted, Some("42501")), "{error}");
    assert!(error.remedy().contains("ALTER ROLE \"norepl\" REPLICATION"), "{}", error.remedy());
}

#[tokio::test]
async fn every_sslmode_does_what_libpq_does() {
    let server = Server::start(&["ssl=on"]).await;
    let [ca, other, crt, key] = ["ca.crt", "other.crt", "client.crt", "client.key"].map(|file| server.path(file));
    let [none, revoked] = ["none.crl", "revoked.crl"].map(|file| server.path(file));
    let named = "host=localhost hostaddr=127.0.0.1";
    let rows = [
        ("sslmode=disable".to_owned(), "plain"),
        ("sslmode=allow".to_owned(), "plain"),
        ("sslmode=allow user=tls_only password=x".to_owned(), "TLS"),
        ("sslmode=prefer".to_owned(), "TLS"),
        ("sslmode=prefer user=plain_only password=x".to_owned(), "plain"),
        (format!("sslmode=prefer sslrootcert={other}"), "plain"),
        ("sslmode=require".to_owned(), "TLS"),
        ("sslmode=require user=plain_only password=x".to_owned(), "Auth: "),
        ("sslmode=disable user=tls_only password=x".to_owned(), "Auth: "),
        (format!("sslmode=require sslrootcert={ca}"), "TLS"),
        (format!("sslmode=require sslrootcert={other}"), "is not trusted"),
        (format!("sslmode=verify-ca sslrootcert={ca}"), "TLS"),
        (format!("sslmode=verify-ca sslrootcert={other}"), "is not trusted"),
        ("sslmode=verify-ca sslrootcert=/nonexistent".to_owned(), "does not exist"),
        (format!("sslmode=verify-full sslrootcert={ca} {named}"), "TLS"),
        (format!("sslmode=verify-full sslrootcert={ca} {named} sslsni=0"), "TLS"),
        (format!("sslmode=verify-full sslrootcert={ca}"), "is for \"localhost\", not for \"127.0.0.1\""),
        (format!("sslmode=verify-full sslrootcert=system {named}"), "Tls: "),
        (format!("sslmode=verify-ca sslrootcert={ca} sslcrl={none}"), "TLS"),
        (format!("sslmode=verify-ca sslrootcert={ca} sslcrl={revoked}"), "revoked"),
        (format!("sslmode=require user=certified sslcert={crt} sslkey={key}"), "TLS"),
        ("sslmode=require user=certified".to_owned(), "as sslcert and its key as sslkey"),
        ("sslmode=require ssl_min_protocol_version=TLSv1.3".to_owned(), "TLS"),
    ];
    let rows: Vec<(&str, &str)> = rows.iter().map(|(settings, expected)| (settings.as_str(), *expected)).collect();
    check(&server, &rows).await;

    let version = server.connection("").await.unwrap().server_version();
    let direct = if version >= 170_000 { "TLS" } else { "Tls: " };
    let seen = text(server.both("sslmode=require sslnegotiation=direct").await);
    println!("direct: {seen}");
    assert!(seen.contains(direct) || (version < 170_000 && seen.contains("Unreachable")), "{seen}");
}

#[tokio::test]
async fn a_server_without_tls_is_refused_or_taken_as_the_mode_says() {
    let server = Server::start(&["ssl=off"]).await;
    let table = [
        ("sslmode=allow", "plain"),
        ("sslmode=prefer", "plain"),
        ("sslmode=require", "the server does not offer TLS, and sslmode=require"),
    ];
    check(&server, &table).await;
}

#[tokio::test]
async fn hosts_are_tried_in_order_and_all_named() {
    let server = Server::start(&["ssl=off"]).await;
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // Takes connections and never says a word.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, silent) = (server.port, mute.local_addr().unwrap().port());
    let sockets = server.path("sockets");
    let rows = [
        (format!("host={sockets}"), "plain"),
        (format!("host={sockets} sslmode=verify-full sslrootcert={}", server.path("ca.crt")), "plain"),
        (format!("host=127.0.0.1,127.0.0.1 port={dead},{port}"), "plain"),
        (format!("host=127.0.0.1,{sockets} port={dead},{port}"), "plain"),
        (format!("host=127.0.0.1,127.0.0.1 port={silent},{port} connect_timeout=1"), "plain"),
        (format!("host=nowhere.invalid,127.0.0.1 port={port}"), "plain"),
        (format!("port={port} target_session_attrs=read-write"), "plain"),
        (format!("port={port} target_session_attrs=prefer-standby"), "plain"),
        (format!("port={port} target_session_attrs=standby"), "ReadOnly: "),
        (format!("port={dead}"), "nothing listens there"),
        (format!("port={silent} connect_timeout=1"), "no answer within 1 s"),
        ("host=/nonexistent".to_owned(), "no socket file there"),
    ];
    let rows: Vec<(&str, &str)> = rows.iter().map(|(settings, expected)| (settings.as_str(), *expected)).collect();
    check(&server, &rows).await;

    let error = server.session(&format!("host=127.0.0.1,nowhere.invalid port={dead},1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    for part in [&format!("127.0.0.1:{dead} (IPv4)"), "nowhere.invalid:1", "refused", "cannot be resolved"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }

    let url = format!("postgres://relay@{}:{port}/shop", sockets.replace('/', "%2F"));
    connector(&url).sql("wire-test").await.unwrap();
}

#[tokio::test]
async fn sessions_are_set_up_the_same_whatever_the_role_says() {
    let server = Server::start(&["ssl=off"]).await;
    let session = server.session("options='-c work_mem=7MB -c datestyle=SQL'").await.unwrap();
    let mut connection = server.connection("options='-c work_mem=7MB -c datestyle=SQL'").await.unwrap();
    assert_eq!(session.server_version(), connection.server_version());
    let mut expected = vec![
        ("work_mem", "7MB"),
        ("datestyle", "ISO, MDY"),
        ("bytea_output", "hex"),
        ("intervalstyle", "postgres"),
        ("extra_float_digits", "3"),
        ("timezone", "UTC"),
        ("client_encoding", "UTF8"),
        ("statement_timeout", "0"),
        ("lock_timeout", "0"),
        ("idle_session_timeout", "0"),
        ("idle_in_transaction_session_timeout", "0"),
        ("application_name", "wire-test"),
    ];
    if session.server_version() >= 170_000 {
        expected.push(("transaction_timeout", "0"));
    }
    for (name, value) in expected {
        let sql = format!("SELECT current_setting('{name}')");
        let seen: String = session.query_one(&sql, &[]).await.unwrap().get(0);
        // German dates set the order of day and month too; only ISO's is unambiguous, and no one reads it back.
        let same = |seen: &str| seen == value || (name == "datestyle" && seen.starts_with("ISO"));
        assert!(same(&seen), "SQL {name}: {seen}");
        let rows = connection.simple_query(&sql).await.unwrap();
        assert!(rows[0][0].as_deref().is_some_and(same), "replication {name}: {rows:?}");
    }
    let error = connection.simple_query("SELECT 1/0").await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("22012"), "{error}");
    assert_eq!(connection.simple_query("SELECT 1; SELECT NULL").await.unwrap(), [[Some("1".to_owned())], [None]]);
}

async fn prepare(server: &Server, publication: &str) -> Session {
    let session = server.session("user=super").await.unwrap();
    let sql = format!(
        "CREATE TABLE outbox (id bigint PRIMARY KEY, payload text);
         ALTER TABLE outbox OWNER TO relay;
         CREATE PUBLICATION {publication} FOR TABLE outbox WITH (publish = 'insert')"
    );
    session.batch_execute(&sql).await.unwrap();
    session.batch_execute("SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')").await.unwrap();
    session
}

/// Reads up to the `count`th Commit; returns the pgoutput messages and the last end position.
async fn read_commits(stream: &mut Stream, count: usize) -> (Vec<bytes::Bytes>, Lsn) {
    let (mut messages, mut commits, mut end) = (Vec::new(), 0, Lsn::INVALID);
    let work = async {
        while commits < count {
            match stream.next().unwrap() {
                Some(Frame::XLogData { data, .. }) => {
                    if data[0] == b'C' {
                        commits += 1;
                        end = Lsn(u64::from_be_bytes(data[10..18].try_into().unwrap()));
                    }
                    messages.push(data);
                }
                Some(_) => {}
                None => stream.readable().await.unwrap(),
            }
        }
    };
    tokio::time::timeout(WITHIN, work).await.expect("the rows come in time");
    (messages, end)
}

#[tokio::test]
async fn rows_stream_and_what_is_confirmed_does_not_come_again() {
    for tls in ["off", "on"] {
        let server = Server::start(&[&format!("ssl={tls}")]).await;
        let session = prepare(&server, r#""Odd, ""name"" of o'b""#).await;
        let publication = "Odd, \"name\" of o'b";
        session.batch_execute("INSERT INTO outbox VALUES (1, 'one')").await.unwrap();
        // Larger than any chunk of memory and any socket's buffer.
        session.batch_execute("INSERT INTO outbox VALUES (2, repeat('x', 20000000))").await.unwrap();

        let connection = server.connection("").await.unwrap();
        assert_eq!(connection.is_tls(), tls == "on");
        let mut stream = connection.start_replication("walpost", publication, Lsn::INVALID).await.unwrap();
        let (messages, end) = read_commits(&mut stream, 2).await;
        let tags: Vec<char> = messages.iter().map(|message| message[0].into()).collect();
        assert_eq!(tags, ['B', 'R', 'I', 'C', 'B', 'I', 'C']);
        assert!(messages[5].len() > 20_000_000 && messages[5].ends_with(b"xxx"));
        assert!(stream.received() > Lsn::INVALID && stream.received() <= end);

        let error = server.connection("").await.unwrap().start_replication("walpost", publication, Lsn::INVALID).await;
        let error = error.unwrap_err();
        assert_eq!((error.kind(), error.sqlstate()), (ErrorKind::SlotInUse, Some("55006")), "{error}");

        stream.send_status(&StandbyStatusUpdate::new(stream.received(), end)).await.unwrap();
        stream.finish().await.unwrap();
        let confirmed: String = session
            .query_one("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'walpost'", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(confirmed, end.to_string(), "a finished stream has delivered its last status");

        // Many small rows: what a gulp takes, and nothing of the first two.
        session
            .batch_execute("INSERT INTO outbox SELECT n, repeat('y', 300) FROM generate_series(10, 20009) n")
            .await
            .unwrap();
        let connection = server.connection("").await.unwrap();
        let mut stream = connection.start_replication("walpost", publication, end).await.unwrap();
        let (messages, _) = read_commits(&mut stream, 1).await;
        assert_eq!(messages.len(), 20_003);
        drop(stream);
    }
}

/// As a pooler does that is told to ignore the startup parameter `replication`: everything else passes.
async fn pooler(port: u16) -> u16 {
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

#[tokio::test]
async fn a_pooler_that_swallows_replication_is_named() {
    let server = Server::start(&["ssl=off"]).await;
    let port = pooler(server.port).await;
    let connector = connector(&format!("postgres://relay@127.0.0.1:{port}/shop?sslmode=disable"));
    let connect = || async { Connection::connect(&connector, "walpost test").await.unwrap() };
    let errors = [
        connect().await.identify_system().await.unwrap_err(),
        connect().await.start_replication("walpost", "walpost", Lsn::INVALID).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Pooler, "{error}");
        assert!(error.remedy().contains("direct connection"), "{}", error.remedy());
    }
}

#[tokio::test]
async fn what_is_missing_or_unfit_is_told_apart() {
    let server = Server::start(&["ssl=off", "wal_level=replica"]).await;
    let start = |slot: &'static str| {
        let connection = server.connection("");
        async move { connection.await.unwrap().start_replication(slot, "walpost", Lsn::INVALID).await.unwrap_err() }
    };
    let error = start("walpost").await;
    assert!(matches!(error.kind(), ErrorKind::UndefinedObject | ErrorKind::ObjectNotInState), "{error}");
    let mut connection = server.connection("").await.unwrap();
    let error = connection.simple_query("CREATE_REPLICATION_SLOT walpost LOGICAL pgoutput").await.unwrap_err();
    assert_eq!((error.kind(), error.sqlstate()), (ErrorKind::ObjectNotInState, Some("55000")), "{error}");
    assert!(error.remedy().contains("wal_level"), "{}", error.remedy());
}

#[tokio::test]
async fn the_end_of_a_server_is_told_by_both_connections() {
    let mut server = Server::start(&["ssl=off"]).await;
    let session = prepare(&server, "walpost").await;
    let connection = server.connection("").await.unwrap();
    let mut stream = connection.start_replication("walpost", "walpost", Lsn::INVALID).await.unwrap();

    let active = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 'walpost'";
    session.query_one(active, &[]).await.unwrap();
    let error = ending(&mut stream).await;
    assert_eq!((error.kind(), error.sqlstate()), (ErrorKind::ShuttingDown, Some("57P01")), "{error}");
    drop(stream);

    let connection = server.connection("").await.unwrap();
    let mut stream = connection.start_replication("walpost", "walpost", Lsn::INVALID).await.unwrap();
    let mut session = session;
    server.signal("INT");
    let closed = tokio::time::timeout(WITHIN, session.closed()).await.unwrap();
    assert_eq!((closed.kind(), closed.sqlstate()), (ErrorKind::ShuttingDown, Some("57P01")), "{closed}");
    assert_eq!(session.closed().await, closed, "it may be asked again");
    let error = ending(&mut stream).await;
    assert!(matches!(error.kind(), ErrorKind::ShuttingDown | ErrorKind::Unreachable), "{error}");
    drop(stream);
    let deadline = Instant::now() + WITHIN;
    while server.process.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the server's shutdown waits for us");
        tokio::time::sleep(Duration::from_millis(20)).await; // between two looks
    }
    let error = server.session("").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

/// Confirms whatever comes, until the stream ends.
async fn ending(stream: &mut Stream) -> StreamError {
    let work = async {
        loop {
            match stream.next() {
                Ok(Some(frame)) => {
                    let status = StandbyStatusUpdate::new(frame.received(), frame.received());
                    if let Err(error) = stream.send_status(&status).await {
                        return error;
                    }
                }
                Ok(None) => {
                    if let Err(error) = stream.readable().await {
                        return error;
                    }
                }
                Err(error) => return error,
            }
        }
    };
    tokio::time::timeout(WITHIN, work).await.expect("the stream ends in time")
}
