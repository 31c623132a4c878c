use super::*;

fn names(dns: &[&str], ip: &[&str], common: &str) -> Names {
    Names {
        dns: dns.iter().map(|name| (*name).to_owned()).collect(),
        ip: ip.iter().map(|ip| ip.parse().unwrap()).collect(),
        common: (!common.is_empty()).then(|| common.to_owned()),
    }
}

#[test]
fn a_host_fits_a_certificate_as_libpq_has_it() {
    let table = [
        (names(&["db.example.org"], &[], ""), "db.example.org", true),
        (names(&["db.example.org"], &[], ""), "DB.Example.ORG.", true),
        (names(&["db.example.org"], &[], ""), "db2.example.org", false),
        (names(&["*.example.org"], &[], ""), "db.example.org", true),
        (names(&["*.example.org"], &[], ""), "a.db.example.org", false),
        (names(&["*.example.org"], &[], ""), "example.org", false),
        (names(&["*.example.org"], &[], ""), ".example.org", false),
        (names(&["d*.example.org"], &[], ""), "db.example.org", false),
        (names(&["*"], &[], ""), "db", false),
        (names(&[], &[], "db"), "db", true),
        (names(&["other"], &[], "db"), "db", false),
        (names(&[], &["10.0.0.1"], "db"), "db", true),
        (names(&["db"], &["10.0.0.1"], ""), "10.0.0.1", true),
        (names(&["db"], &["10.0.0.2"], "10.0.0.1"), "10.0.0.1", false),
        (names(&["10.0.0.1"], &[], ""), "10.0.0.1", true),
        (names(&["db"], &[], "10.0.0.1"), "10.0.0.1", true),
        (names(&["*.0.0.1"], &[], ""), "10.0.0.1", false),
        (names(&[], &["::1"], ""), "0:0:0:0:0:0:0:1", true),
        (names(&[], &[], ""), "db", false),
    ];
    for (names, host, allowed) in table {
        assert_eq!(names.allow(host), allowed, "{names:?} {host}");
    }
}

#[test]
fn a_certificate_without_the_host_is_shown_with_what_it_has() {
    let error = TlsError::Name { host: "db".into(), found: names(&["a", "b"], &["::1"], "c").list() };
    assert_eq!(error.to_string(), "the server's certificate is for \"a\", \"b\", ::1, not for \"db\"");
}

fn certificate(algorithm: &'static rcgen::SignatureAlgorithm) -> (X509, String) {
    let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["db.example.org".to_owned(), "10.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "common");
    let certificate = params.self_signed(&key).unwrap();
    (X509::from_pem(certificate.pem().as_bytes()).unwrap(), key.serialize_pem())
}

#[test]
fn channel_binding_hashes_with_the_signature_s_own_hash() {
    for (algorithm, bytes) in [
        (&rcgen::PKCS_ECDSA_P256_SHA256, Some(32)),
        (&rcgen::PKCS_ECDSA_P384_SHA384, Some(48)),
        (&rcgen::PKCS_ED25519, None),
    ] {
        let (certificate, _) = certificate(algorithm);
        assert_eq!(server_end_point(&certificate).map(|hash| hash.len()), bytes, "{algorithm:?}");
        assert_eq!(
            Names::of(&certificate),
            names(&["db.example.org"], &["10.0.0.1"], "common"),
            "the names are read from the certificate"
        );
    }
}

fn settings(text: &str, home: &Path) -> TlsSettings {
    let home = home.to_str().unwrap().to_owned();
    let environment = move |name: &str| (name == "HOME").then(|| home.clone());
    crate::postgres::address::Address::parse(&format!("host=h user=u {text}"), &environment).unwrap().tls
}

#[test]
fn authorities_are_found_or_missed_as_the_mode_says() {
    let home = tempfile::tempdir().unwrap();
    let build = |text: &str| Tls::new(&settings(text, home.path()), Some(home.path()));
    assert!(!build("sslmode=require").unwrap().verifies);
    for mode in ["verify-ca", "verify-full"] {
        let error = build(&format!("sslmode={mode}")).err().unwrap();
        assert!(matches!(error, TlsError::NoRoot { .. }), "{error}");
    }
    let (root, _) = certificate(&rcgen::PKCS_ECDSA_P256_SHA256);
    let folder = home.path().join(".postgresql");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("root.crt"), root.to_pem().unwrap()).unwrap();
    for mode in ["allow", "prefer", "require", "verify-ca", "verify-full"] {
        let tls = build(&format!("sslmode={mode}")).unwrap();
        assert!(tls.verifies, "libpq verifies as soon as there is a root file: {mode}");
        assert_eq!(tls.verifies_name, mode == "verify-full");
    }
    std::fs::write(folder.join("root.crt"), "no certificate").unwrap();
    let error = build("sslmode=require").err().unwrap();
    assert!(error.to_string().contains("holds no PEM certificate"), "{error}");
}

#[test]
fn a_client_certificate_needs_a_key_that_opens_and_fits() {
    let home = tempfile::tempdir().unwrap();
    let (mine, key) = certificate(&rcgen::PKCS_ECDSA_P256_SHA256);
    let (_, other) = certificate(&rcgen::PKCS_ECDSA_P256_SHA256);
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("crt"), mine.to_pem().unwrap()).unwrap();
    std::fs::write(path("key"), &key).unwrap();
    std::fs::write(path("other"), other).unwrap();
    let private = PKey::private_key_from_pem(key.as_bytes()).unwrap();
    let locked = private.private_key_to_pem_pkcs8_passphrase(openssl::symm::Cipher::aes_256_cbc(), b"open").unwrap();
    std::fs::write(path("locked"), locked).unwrap();
    std::fs::write(path("der"), private.private_key_to_der().unwrap()).unwrap();
    let table = [
        ("key", "", true),
        ("der", "", true),
        ("locked", "open", true),
        ("locked", "wrong", false),
        ("locked", "", false),
        ("other", "", false),
        ("none", "", false),
        ("crt", "", false),
    ];
    for (file, password, works) in table {
        let text = format!("sslcert={} sslkey={} sslpassword='{password}'", path("crt"), path(file));
        let outcome = Tls::new(&settings(&text, home.path()), Some(home.path()));
        assert_eq!(outcome.is_ok(), works, "{file} {password:?}: {:?}", outcome.err());
    }
    let text = format!("sslcert={} sslcertmode=disable", path("none"));
    assert!(Tls::new(&settings(&text, home.path()), Some(home.path())).is_ok());
}
