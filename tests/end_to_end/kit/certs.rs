//! Certificates made for one test: an authority and what it signed.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::run::new_dir;

pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// The authority's certificate, for `sslrootcert` and `ssl.ca.location`.
    pub path: PathBuf,
}

/// A certificate and its key, as PEM (the key as PKCS#8, which Kafka demands).
#[derive(Clone)]
pub struct Certificate {
    pub chain_pem: String,
    pub key_pem: String,
    /// The same two as files.
    pub chain_path: PathBuf,
    pub key_path: PathBuf,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters without names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let path = new_dir("authority").join("ca.pem");
        fs::write(&path, issuer.pem()).expect("writing the authority's certificate");
        Authority { issuer, path }
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// For a server that is reached by these names or addresses, or a client whose common name is the first.
    pub fn issue(&self, names: &[&str]) -> Certificate {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names.clone()).expect("names for a certificate");
        params.distinguished_name.push(DnType::CommonName, names[0].as_str());
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a signature");
        let (chain_pem, key_pem) = (certificate.pem(), key.serialize_pem());
        let dir = new_dir("certificate");
        let (chain_path, key_path) = (dir.join("cert.pem"), dir.join("key.pem"));
        fs::write(&chain_path, &chain_pem).expect("writing a certificate");
        fs::write(&key_path, &key_pem).expect("writing a key");
        Certificate { chain_pem, key_pem, chain_path, key_path }
    }
}
