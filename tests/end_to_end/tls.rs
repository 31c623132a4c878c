//! TLS and SCRAM on both sides, with certificates of the test's own, and what must be refused is refused.

use crate::kit::*;

const PASSWORD: &str = "p@ss wörd/#%";

/// As it stands in a URL.
const PASSWORD_IN_URL: &str = "p%40ss%20w%C3%B6rd%2F%23%25";

struct Secured {
    postgres: Postgres,
    authority: Authority,
    scene: Scene,
}

impl Secured {
    /// A Postgres whose role `relay` must use TLS and SCRAM. Its certificate names `localhost` alone.
    fn new(kafka: &Kafka, authority: Authority) -> Secured {
        let postgres = Postgres::builder(MAJOR)
            .tls(authority.issue(&["localhost"]))
            .hba("hostssl all relay 127.0.0.1/32 scram-sha-256")
            .hba("host all relay all reject")
            .start();
        let scene = Scene::without_setup(&postgres, kafka, Table::Walpost);
        scene.sql().execute(&format!("create role relay login superuser password '{PASSWORD}'"));
        scene.walpost("setup").succeeds(seconds(30));
        Secured { postgres, authority, scene }
    }

    fn url(&self, host: &str, parameters: &str) -> String {
        let (port, database) = (self.postgres.port, &self.scene.name);
        format!("postgres://relay:{PASSWORD_IN_URL}@{host}:{port}/{database}?{parameters}")
    }

    fn root(&self) -> String {
        format!("sslrootcert={}", self.authority.path.display())
    }
}

#[test]
fn rows_pass_from_verify_full_and_scram_to_sasl_ssl_and_scram() {
    let authority = Authority::new("walpost tests");
    let kafka = Kafka::builder().secure(authority.issue(&["localhost"]), &authority).start();
    let secured = Secured::new(&kafka, authority);
    let workload = secured.scene.workload().rows(1_000);
    let expected = workload.run();
    let password_file = new_dir("secret").join("password");
    std::fs::write(&password_file, format!("{SCRAM_PASSWORD}\n")).expect("a file for the password");
    let run = secured
        .scene
        .walpost("run --until-caught-up")
        .env("WALPOST_DATABASE_URL", secured.url("localhost", &format!("sslmode=verify-full&{}", secured.root())))
        .env("WALPOST_BROKERS", kafka.secure_bootstrap())
        .env("WALPOST_KAFKA_SECURITY_PROTOCOL", "SASL_SSL")
        .env("WALPOST_KAFKA_SASL_MECHANISM", "SCRAM-SHA-256")
        .env("WALPOST_KAFKA_SASL_USERNAME", SCRAM_USER)
        .env("WALPOST_KAFKA_SSL_CA_LOCATION", secured.authority.path.to_str().expect("a plain path"));
    let output = run
        .clone()
        .env("WALPOST_KAFKA_SASL_PASSWORD_FILE", password_file.to_str().expect("a plain path"))
        .succeeds(seconds(60));
    kafka.verify(&workload, &expected).assert_exactly_once();
    for secret in [PASSWORD, PASSWORD_IN_URL, SCRAM_PASSWORD] {
        assert!(!output.stderr.contains(secret) && !output.stdout.contains(secret), "a secret was shown");
    }

    workload.run();
    let refused = run.env("WALPOST_KAFKA_SASL_PASSWORD", "wrong").spawn();
    refused.wait_log("SASL", seconds(30));
    assert!(!refused.log().contains("\"published\":1"), "something was published with a wrong password");
    refused.sigterm();
    refused.sigterm();
}

#[test]
fn each_sslmode_does_what_libpq_does() {
    let secured = Secured::new(Kafka::shared(), Authority::new("walpost tests"));
    let (right, wrong) = (secured.root(), format!("sslrootcert={}", Authority::new("another").path.display()));
    let cases = [
        // The server refuses what is not TLS.
        ("localhost", "sslmode=disable".to_owned(), false),
        ("localhost", "sslmode=allow".to_owned(), true),
        ("localhost", "sslmode=prefer".to_owned(), true),
        ("localhost", "sslmode=require".to_owned(), true),
        // As in libpq, a root certificate makes `require` verify.
        ("localhost", format!("sslmode=require&{wrong}"), false),
        ("localhost", format!("sslmode=verify-ca&{right}"), true),
        ("localhost", format!("sslmode=verify-ca&{wrong}"), false),
        ("127.0.0.1", format!("sslmode=verify-ca&{right}"), true),
        ("localhost", format!("sslmode=verify-full&{right}"), true),
        ("localhost", format!("sslmode=verify-full&{wrong}"), false),
        // The certificate does not name the address.
        ("127.0.0.1", format!("sslmode=verify-full&{right}"), false),
    ];
    for (host, parameters, accepted) in cases {
        let setup = secured.scene.walpost("setup").env("WALPOST_DATABASE_URL", secured.url(host, &parameters));
        let output = setup.output(seconds(30));
        assert_eq!(output.code == 0, accepted, "{host} {parameters}: {output:?}");
        assert!(
            !output.stderr.contains(PASSWORD) && !output.stderr.contains(PASSWORD_IN_URL),
            "the password was shown"
        );
    }
}

/// SCRAM over TLS binds to the certificate: who relays the handshake through another certificate is found out.
#[test]
fn channel_binding_can_be_demanded() {
    let secured = Secured::new(Kafka::shared(), Authority::new("walpost tests"));
    let parameters = format!("sslmode=verify-full&{}&channel_binding=require", secured.root());
    let url = secured.url("localhost", &parameters);
    secured.scene.walpost("run --until-caught-up").env("WALPOST_DATABASE_URL", url).succeeds(seconds(40));
}
