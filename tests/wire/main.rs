//! The Postgres side of the wire against real servers: who is let in and how, every sslmode, several hosts, Unix
//! sockets, and the replication stream itself.
//!
//! `WALPOST_TEST_POSTGRES_BIN` names the folder with `initdb` and `postgres` of the version to test against. Each test
//! starts a server of its own in a temporary folder (under root as `postgres`, or `nobody`).

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use walpost::lsn::Lsn;
use walpost::postgres::{ConnectError, ErrorKind, Session, StreamError};
use walpost::source::connection::Connection;
use walpost::source::protocol::{Frame, StandbyStatusUpdate};
use walpost::source::stream::Stream;

mod server;

use server::{Server, connector, pooler};

const WITHIN: Duration = Duration::from_secs(60);

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
                None => {
                    stream.readable().await.unwrap();
                }
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
