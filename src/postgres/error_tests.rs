use super::*;

#[test]
fn every_sqlstate_that_matters_has_its_kind() {
    use ErrorKind::*;
    let table = [
        ("57P01", ShuttingDown, true),
        ("57P02", ShuttingDown, true),
        ("57P03", ShuttingDown, true),
        ("53300", TooManyConnections, true),
        ("55006", SlotInUse, true),
        ("08006", Unreachable, true),
        ("28000", Auth, false),
        ("28P01", Auth, false),
        ("3D000", NoDatabase, false),
        ("42501", NotPermitted, false),
        ("25006", ReadOnly, false),
        ("42704", UndefinedObject, false),
        ("42P01", UndefinedObject, false),
        ("55000", ObjectNotInState, false),
        ("08P01", Protocol, false),
        ("58P01", Other, false),
        ("", Other, false),
    ];
    for (sqlstate, kind, temporary) in table {
        assert_eq!(ErrorKind::of_sqlstate(sqlstate), kind, "{sqlstate}");
        assert_eq!(kind.is_temporary(), temporary, "{sqlstate}");
    }
}

#[test]
fn a_pooler_is_known_by_its_words() {
    for message in ["unsupported startup parameter: replication", "Unsupported startup parameter in options: datestyle"]
    {
        let error = ServerError { sqlstate: "08P01".into(), message: message.into(), ..ServerError::default() };
        assert_eq!(error.kind(), ErrorKind::Pooler);
        assert!(server_remedy(&error, "u", "d").contains("PgBouncer"));
    }
}

#[test]
fn an_error_response_is_read_field_by_field() {
    let body = b"SFEHLER\0VERROR\0C42704\0Mslot \"x\" does not exist\0Ddetail\0Hhint\0Fslot.c\0\0";
    let error = ServerError::parse(body);
    assert_eq!(error.severity, "ERROR");
    assert_eq!(error.to_string(), "ERROR: slot \"x\" does not exist (SQLSTATE 42704); detail: detail; hint: hint");
    for cut in 0..body.len() {
        let _ = ServerError::parse(&body[..cut]);
    }
}

#[test]
fn the_answer_of_a_server_counts_more_than_a_silence() {
    let refused = || Failure::Connect(io::ErrorKind::ConnectionRefused.into());
    let server = |sqlstate: &str| {
        Failure::server(ServerError { sqlstate: sqlstate.into(), message: "no".into(), ..ServerError::default() })
    };
    let error = |failures: Vec<Failure>| ConnectError::Connect {
        user: "relay".into(),
        database: "shop".into(),
        attempts: failures
            .into_iter()
            .enumerate()
            .map(|(n, failure)| Attempt { target: format!("h{n}:5432 (IPv4 10.0.0.{n})"), failure })
            .collect(),
    };
    let mixed = error(vec![refused(), server("57P03"), refused()]);
    assert_eq!((mixed.kind(), mixed.sqlstate()), (ErrorKind::ShuttingDown, Some("57P03")));
    assert_eq!(
        mixed.to_string(),
        "cannot connect to Postgres as \"relay\" to database \"shop\": h0:5432 (IPv4 10.0.0.0): connection refused; \
         h1:5432 (IPv4 10.0.0.1): ERROR: no (SQLSTATE 57P03); h2:5432 (IPv4 10.0.0.2): connection refused"
    );
    assert_eq!(error(vec![refused()]).kind(), ErrorKind::Unreachable);
    assert!(error(vec![refused()]).remedy().contains("listen_addresses"));
    assert!(error(vec![server("28P01")]).remedy().contains("password of \"relay\""));
    assert!(error(vec![server("28000")]).remedy().contains("pg_hba.conf"));
    assert!(error(vec![server("42501")]).remedy().contains("ALTER ROLE \"relay\" REPLICATION"));
    assert!(error(vec![server("3D000")]).remedy().contains("\"shop\""));
    assert!(error(vec![server("53300")]).remedy().contains("max_connections"));
}
