//! `doctor` on a database in order and on one that is not.

use walpost::commands::doctor::{self, Check, DoctorOptions, Findings, Outcome};
use walpost::commands::setup::SetupOptions;
use walpost::config::{Secret, SecretSource};

use super::place::*;

#[tokio::test]
async fn doctor_finds_nothing_to_mend_after_setup_and_names_what_broke_since() {
    let place = Place::new("doctor").await;
    let settings = place.settings();
    let names = |checks: &[Check]| checks.iter().map(|check| (check.name, check.outcome)).collect::<Vec<_>>();
    let before = place.doctor(&settings).await;
    assert_eq!(
        names(&before),
        [
            ("rights.checkpoint", Outcome::Warn),
            ("table.exists", Outcome::Fail),
            ("publication.exists", Outcome::Fail),
            ("slot.position", Outcome::Fail)
        ],
        "{before:#?}"
    );
    place.setup(create_table()).await;
    assert_eq!(place.doctor(&settings).await, []);
    let mut out = Vec::new();
    let kafka = async { vec![Check::ok("kafka.brokers", "three")].into() };
    assert!(doctor::run(&settings, DoctorOptions { json: true }, kafka, &mut out).await.unwrap());
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(
        (&json["ok"], json["checks"].as_array().unwrap().last().unwrap()["name"].as_str()),
        (&true.into(), Some("kafka.brokers"))
    );

    place.sql("ALTER PUBLICATION walpost DROP TABLE outbox_messages").await;
    let checks = place.doctor(&settings).await;
    assert_eq!(names(&checks), [("publication.table", Outcome::Fail), ("slot.position", Outcome::Fail)]);
    // What the remedy says mends it.
    let script = checks[0].remedy.split_once("\n").unwrap().1;
    place.sql(script).await;
    assert_eq!(names(&place.doctor(&settings).await), [("slot.position", Outcome::Fail)]);
    place.setup(accept_gap()).await;
    assert_eq!(place.doctor(&settings).await, []);

    let mut wrong = settings.clone();
    wrong.columns.payload = vec!["body".into()];
    assert_eq!(
        names(&place.doctor(&wrong).await),
        [("table.mapping", Outcome::Fail), ("publication.columns", Outcome::Skip)]
    );
    wrong.postgres.url = Some(SecretSource::Value(Secret::new("postgres://postgres@127.0.0.1:1/nowhere")));
    let mut out = Vec::new();
    assert!(!doctor::run(&wrong, DoctorOptions::default(), async { Findings::default() }, &mut out).await.unwrap());
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("fail  connection.sql") && text.contains("skip  postgres"), "{text}");
    place.clean_up().await;
}

#[tokio::test]
async fn doctor_tells_a_role_without_rights_what_to_grant() {
    let place = Place::new("doctor_rights").await;
    place.setup(create_table()).await;
    place.sql("DROP ROLE IF EXISTS walpost_sql_patient; CREATE ROLE walpost_sql_patient LOGIN PASSWORD 'x'").await;
    let mut settings = place.settings();
    let Some(SecretSource::Value(url)) = &settings.postgres.url else { panic!("no address") };
    let (_, server) = url.expose().split_once('@').expect("a user in the address");
    settings.postgres.url =
        Some(SecretSource::Value(Secret::new(format!("postgres://walpost_sql_patient:x@{server}"))));
    let checks = place.doctor(&settings).await;
    let of =
        |name: &str| checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("{name}: {checks:#?}"));
    assert_eq!(of("connection.replication").outcome, Outcome::Fail);
    assert!(of("rights.replication").remedy.contains("ALTER ROLE walpost_sql_patient REPLICATION"));
    assert_eq!(of("rights.table").outcome, Outcome::Warn);
    assert_eq!(of("rights.checkpoint").outcome, Outcome::Warn);
    place.sql("ALTER ROLE walpost_sql_patient REPLICATION").await;
    place.setup(SetupOptions { grants: Some("walpost_sql_patient".into()), ..SetupOptions::default() }).await;
    assert_eq!(place.doctor(&settings).await, []);
    place.sql("DROP OWNED BY walpost_sql_patient").await;
    place.clean_up().await;
}
