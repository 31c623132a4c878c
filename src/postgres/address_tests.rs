use super::*;

fn parse(text: &str, variables: &[(&str, &str)]) -> Result<Address, AddressError> {
    let environment = |name: &str| {
        variables
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| (*value).to_owned())
            .or((name == "PGUSER").then(|| "me".to_owned()))
    };
    Address::parse(text, &environment)
}

/// What the tables compare: servers, database, user, password.
fn summary(address: &Address) -> String {
    let password = address.password.as_ref().map_or("-", Secret::expose);
    format!("{} {password}", address.describe())
}

#[test]
fn addresses_are_read_as_libpq_reads_them() {
    let table = [
        ("", "localhost:5432/me as me -"),
        ("postgres://", "localhost:5432/me as me -"),
        ("postgresql://host", "host:5432/me as me -"),
        ("postgres://u:p@h:6000/d", "h:6000/d as u p"),
        ("  postgres://u@h/d\n", "h:5432/d as u -"),
        ("postgres://u:@h/d", "h:5432/d as u -"),
        ("postgres://u:p%40%2F%3A%25@h/d%20b", "h:5432/d b as u p@/:%"),
        ("postgres://u:a:b?c#d@h/d", "h:5432/d as u a:b?c#d"),
        ("postgres://[::1]:7/d", "[::1]:7/d as me -"),
        ("postgres://[fe80::1]/d", "[fe80::1]:5432/d as me -"),
        ("postgres://a:1,b,[::1]:3/d", "a:1,b:5432,[::1]:3/d as me -"),
        ("postgres://a,b:2/d", "a:5432,b:2/d as me -"),
        ("postgres://%2Frun%2Fpg/d", "/run/pg:5432/d as me -"),
        ("postgres:///d?host=/run/pg&port=6", "/run/pg:6/d as me -"),
        ("postgres://u@/d?host=h&password=p%26q", "h:5432/d as u p&q"),
        ("postgres://h?dbname=d&user=u", "h:5432/d as u -"),
        ("postgres://h/d?sslmode=disable&", "h:5432/d as me -"),
        ("postgres://ü%C3%BC:pä@h/d", "h:5432/d as üü pä"),
        ("host=h dbname=d user=u password=p", "h:5432/d as u p"),
        ("host = h  dbname= d user ='u'", "h:5432/d as u -"),
        ("host=h user='o''", "!keyvalue"),
        ("host=h user='o", "!quote"),
        (r"host=h user='o\'b \\x' dbname=d password=a\ b\'", r"h:5432/d as o'b \x a b'"),
        ("host=a,b port=1,2", "a:1,b:2/me as me -"),
        ("host=a,b port=7", "a:7,b:7/me as me -"),
        ("host=a,b port=1,2,3", "!count"),
        ("hostaddr=10.0.0.1", "10.0.0.1:5432/me as me -"),
        ("host=h hostaddr=10.0.0.1,10.0.0.2", "!count"),
        ("host=h password='' dbname=''", "h:5432/me as me -"),
        ("host=h port=0", "!value"),
        ("host=h port=65536", "!value"),
        ("host=h sslmode=verify_full", "!value"),
        ("host=h hostaddr=h", "!value"),
        ("h", "!form"),
        ("mysql://h/d", "!scheme"),
        ("jdbc:postgresql://h/d", "!scheme"),
        ("host=h password=two words", "!keyvalue"),
        ("host=h =x", "!keyvalue"),
        ("postgres://u:p%4@h", "!percent"),
        ("postgres://u:p%ff@h", "!text"),
        ("postgres://u%00@h", "!text"),
        ("postgres://u:p@ss@h/d", "!authority"),
        ("postgres://u:p/ss@h/d", "!authority"),
        ("postgres://u:p@[::1/d", "!authority"),
        ("postgres://h/d?sslmode", "!keyvalue"),
        ("postgres://h/d?pool=5", "!unknown"),
        ("host=h service=x", "!unsupported"),
        ("host=h gssencmode=require", "!unsupported"),
        ("host=h gssencmode=prefer application_name=x replication=database", "h:5432/me as me -"),
        ("host=h sslrootcert=system sslmode=require", "!unsupported"),
        ("host=h sslnegotiation=direct", "!unsupported"),
    ];
    for (text, expected) in table {
        let seen = match parse(text, &[]) {
            Ok(address) => summary(&address),
            Err(AddressError::Form) => "!form".into(),
            Err(AddressError::Scheme(_)) => "!scheme".into(),
            Err(AddressError::KeyValue) => "!keyvalue".into(),
            Err(AddressError::Quote) => "!quote".into(),
            Err(AddressError::Percent) => "!percent".into(),
            Err(AddressError::Text(_)) => "!text".into(),
            Err(AddressError::Authority) => "!authority".into(),
            Err(AddressError::UnknownKey { .. }) => "!unknown".into(),
            Err(AddressError::Unsupported { .. }) => "!unsupported".into(),
            Err(AddressError::Value { .. }) => "!value".into(),
            Err(AddressError::Count { .. }) => "!count".into(),
            Err(error) => error.to_string(),
        };
        assert_eq!(seen, expected, "{text}");
    }
}

#[test]
fn variables_fill_what_the_address_leaves_out() {
    let variables = [
        ("PGHOST", "envhost"),
        ("PGPORT", "6000"),
        ("PGUSER", "envuser"),
        ("PGPASSWORD", "envpass"),
        ("PGDATABASE", "envdb"),
        ("PGSSLMODE", "require"),
        ("PGCONNECT_TIMEOUT", "3"),
        ("PGTARGETSESSIONATTRS", "read-write"),
        ("PGCHANNELBINDING", "disable"),
        ("PGOPTIONS", "-c work_mem=1MB"),
        ("PGPASSFILE", "/x/pass"),
        ("PGSSLCERT", ""),
        ("HOME", "/home/me"),
    ];
    let address = parse("", &variables).unwrap();
    assert_eq!(summary(&address), "envhost:6000/envdb as envuser envpass");
    assert_eq!(address.tls.mode, SslMode::Require);
    assert_eq!(address.connect_timeout, Some(Duration::from_secs(3)));
    assert_eq!(address.session_attrs, SessionAttrs::ReadWrite);
    assert_eq!(address.channel_binding, ChannelBinding::Disable);
    assert_eq!(address.options.as_deref(), Some("-c work_mem=1MB"));
    assert_eq!(address.passfile, Some("/x/pass".into()));
    assert_eq!(address.home, Some("/home/me".into()));
    assert_eq!(address.tls.certificate, None);

    let address = parse("postgres://u:p@h:1/d?sslmode=disable&connect_timeout=0", &variables).unwrap();
    assert_eq!(summary(&address), "h:1/d as u p");
    assert_eq!((address.tls.mode, address.connect_timeout), (SslMode::Disable, None));
}

#[test]
fn a_service_in_the_environment_matters_only_without_a_host() {
    assert!(parse("host=h", &[("PGSERVICE", "x")]).is_ok());
    let error = parse("", &[("PGSERVICE", "x")]).unwrap_err();
    assert!(error.to_string().contains("PGSERVICE"), "{error}");
}

#[test]
fn an_unknown_setting_names_its_neighbour() {
    let error = parse("postgres://h/d?sslmod=require", &[]).unwrap_err();
    assert_eq!(error.to_string(), "the Postgres address has no setting \"sslmod\"; did you mean sslmode?");
    let error = parse("postgres://h/d?connection_limit=5", &[]).unwrap_err();
    assert_eq!(error.to_string(), "the Postgres address has no setting \"connection_limit\"");
}

#[test]
fn defaults_notice_a_dead_peer() {
    let address = parse("host=h", &[]).unwrap();
    assert_eq!(address.connect_timeout, Some(Duration::from_secs(10)));
    assert_eq!(address.keepalive, Keepalive::default());
    let address = parse("host=h keepalives=0 keepalives_idle=5 tcp_user_timeout=1500", &[]).unwrap();
    assert!(!address.keepalive.enabled);
    assert_eq!(address.keepalive.idle, Duration::from_secs(5));
    assert_eq!(address.keepalive.user_timeout, Some(Duration::from_millis(1500)), "libpq counts milliseconds");
}

#[test]
fn system_certificates_mean_verify_full() {
    let address = parse("host=h sslrootcert=system", &[]).unwrap();
    assert_eq!(address.tls.mode, SslMode::VerifyFull);
}

#[test]
fn no_secret_is_ever_shown() {
    let texts = [
        "postgres://u:hunter2@h/d?sslpassword=hunter2",
        "postgres://u:x@hunter2@h/d",
        "postgres://u:hunter2/x@h/d",
        "postgres://u:hunter2%4@h/d",
        "host=h password=x hunter2",
        "host=h password='hunter2",
        "host=h password=x hunter2=",
        "hunter2",
    ];
    for text in texts {
        let shown = match parse(text, &[("PGPASSWORD", "hunter2")]) {
            Ok(address) => format!("{address:?} {}", address.describe()),
            Err(error) => format!("{error:?} {error} {}", error.remedy()),
        };
        // A key that nobody knows is shown: that is what the error is about.
        if !text.ends_with("hunter2=") {
            assert!(!shown.contains("hunter2"), "{text}: {shown}");
        }
    }
}
