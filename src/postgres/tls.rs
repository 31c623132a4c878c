//! TLS as libpq does it: its six modes, its default files, its rules for names. One implementation for the
//! replication connection and for SQL, on OpenSSL, because libpq's behaviour is OpenSSL's and librdkafka links it
//! anyway.
//!
//! The OpenSSL inside is built from source and does not know where this machine keeps its certificate authorities, so
//! that place is looked for.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{Ssl, SslContext, SslContextBuilder, SslFiletype, SslMethod, SslOptions, SslVerifyMode, SslVersion};
use openssl::x509::store::X509Lookup;
use openssl::x509::verify::X509VerifyFlags;
use openssl::x509::{X509, X509Ref, X509VerifyResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_openssl::SslStream;

use crate::config::Secret;

/// libpq's `sslmode`, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl fmt::Display for SslMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SslMode::Disable => "disable",
            SslMode::Allow => "allow",
            SslMode::Prefer => "prefer",
            SslMode::Require => "require",
            SslMode::VerifyCa => "verify-ca",
            SslMode::VerifyFull => "verify-full",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    V1,
    V1_1,
    V1_2,
    V1_3,
}

impl TlsVersion {
    fn openssl(self) -> SslVersion {
        match self {
            TlsVersion::V1 => SslVersion::TLS1,
            TlsVersion::V1_1 => SslVersion::TLS1_1,
            TlsVersion::V1_2 => SslVersion::TLS1_2,
            TlsVersion::V1_3 => SslVersion::TLS1_3,
        }
    }
}

/// libpq's `sslcertmode`: whether our certificate is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertMode {
    Disable,
    Allow,
    Require,
}

/// The `ssl*` settings of an address.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    pub mode: SslMode,
    /// `sslnegotiation=direct`.
    pub direct: bool,
    /// `sslrootcert`; the name `system` stands for the machine's own authorities.
    pub root: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub key_password: Option<Secret>,
    pub certificate_mode: CertMode,
    /// `sslcrl`.
    pub revoked: Option<PathBuf>,
    /// `sslcrldir`.
    pub revoked_folder: Option<PathBuf>,
    pub sni: bool,
    pub version_min: Option<TlsVersion>,
    pub version_max: Option<TlsVersion>,
}

/// TLS was refused, or the other side is not who it must be, or our own files are wrong.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the server does not offer TLS, and sslmode={0}")]
    Refused(SslMode),
    #[error("TLS handshake failed ({0})")]
    Handshake(String),
    #[error("the server's certificate is not trusted ({reason}; authorities from {authorities})")]
    Untrusted { reason: String, authorities: String },
    #[error("the server's certificate is for {}, not for {host:?}", names(.found))]
    Name { host: String, found: Vec<String> },
    #[error("sslmode={mode} needs a file of certificate authorities, and {} does not exist", path.display())]
    NoRoot { mode: SslMode, path: PathBuf },
    #[error("sslmode={0} needs a host name, and the address has none")]
    NoHost(SslMode),
    #[error("no certificate authorities of this machine were found")]
    NoSystemRoots,
    #[error("{what} {} cannot be used ({cause})", path.display())]
    File { what: &'static str, path: PathBuf, cause: String },
    #[error("the server does not speak direct TLS for PostgreSQL (17 and later do)")]
    NotDirect,
    #[error("TLS cannot be set up ({0})")]
    Setup(#[from] ErrorStack),
}

fn names(found: &[String]) -> String {
    match found {
        [] => "no name at all".to_owned(),
        found => found.join(", "),
    }
}

impl TlsError {
    pub(crate) fn remedy(&self) -> String {
        match self {
            TlsError::Refused(_) => {
                "switch ssl on in postgresql.conf, or use sslmode=prefer where the network is trusted".into()
            }
            TlsError::Handshake(_) => {
                "see the server's log: it may want a client certificate (sslcert, sslkey), or other TLS versions".into()
            }
            TlsError::Untrusted { .. } => {
                "give the certificate of the authority that signed the server's as sslrootcert (`system` for a public \
                 one), and check that neither has expired"
                    .into()
            }
            TlsError::Name { .. } => {
                "use one of the names in the certificate as host, or have it made anew; sslmode=verify-ca does not \
                 look at the name"
                    .into()
            }
            TlsError::NoRoot { .. } | TlsError::NoSystemRoots => {
                "set sslrootcert to the authority's certificate file, or to `system` with sslmode=verify-full (package \
                 ca-certificates, or SSL_CERT_FILE)"
                    .into()
            }
            TlsError::NoHost(_) => "add host=... to hostaddr=...".into(),
            TlsError::File { .. } => {
                "check the path, its permissions, and that it is PEM; sslpassword opens a key".into()
            }
            TlsError::NotDirect => "leave sslnegotiation out".into(),
            TlsError::Setup(_) => "check the ssl settings of the address".into(),
        }
    }
}

/// Everything that a handshake needs, files read.
pub(crate) struct Tls {
    context: SslContext,
    verifies: bool,
    verifies_name: bool,
    mode: SslMode,
    sni: bool,
    direct: bool,
    authorities: String,
}

impl Tls {
    /// Reads the files. Blocks for as long as that takes.
    pub(crate) fn new(settings: &TlsSettings, home: Option<&Path>) -> Result<Tls, TlsError> {
        let mut context = SslContext::builder(SslMethod::tls_client())?;
        context.set_options(SslOptions::NO_COMPRESSION | SslOptions::NO_RENEGOTIATION);
        context.set_min_proto_version(settings.version_min.map(TlsVersion::openssl))?;
        context.set_max_proto_version(settings.version_max.map(TlsVersion::openssl))?;
        // Needed for direct negotiation; older servers pass over it.
        context.set_alpn_protos(b"\x0apostgresql")?;
        let authorities = authorities(&mut context, settings, home)?;
        revocation(&mut context, settings, home, authorities.is_some())?;
        identity(&mut context, settings, home)?;
        // Whatever the mode: authorities that are given are used (so `require` with a root file is `verify-ca`).
        let verifies = authorities.is_some();
        context.set_verify(if verifies { SslVerifyMode::PEER } else { SslVerifyMode::NONE });
        Ok(Tls {
            context: context.build(),
            verifies,
            verifies_name: settings.mode == SslMode::VerifyFull,
            mode: settings.mode,
            sni: settings.sni,
            direct: settings.direct,
            authorities: authorities.unwrap_or_default(),
        })
    }

    /// Shakes hands and checks who is there. `host` is the name of the address, None for a Unix socket.
    pub(crate) async fn handshake<S>(&self, host: Option<&str>, socket: S) -> Result<SslStream<S>, TlsError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut ssl = Ssl::new(&self.context)?;
        let name = host.filter(|host| host.parse::<IpAddr>().is_err() && !host.is_empty());
        if let Some(name) = name.filter(|_| self.sni) {
            ssl.set_hostname(name.trim_end_matches('.'))?;
        }
        let mut stream = SslStream::new(ssl, socket)?;
        if let Err(error) = Pin::new(&mut stream).connect().await {
            let verdict = stream.ssl().verify_result();
            return Err(if self.verifies && verdict != X509VerifyResult::OK {
                let reason = verdict.error_string().to_owned();
                TlsError::Untrusted { reason, authorities: self.authorities.clone() }
            } else {
                TlsError::Handshake(error.to_string())
            });
        }
        if self.direct && stream.ssl().selected_alpn_protocol() != Some(b"postgresql") {
            return Err(TlsError::NotDirect);
        }
        if self.verifies_name {
            let host = host.filter(|host| !host.is_empty()).ok_or(TlsError::NoHost(self.mode))?;
            let certificate = stream.ssl().peer_certificate();
            let found = certificate.map(|certificate| Names::of(&certificate)).unwrap_or_default();
            if !found.allow(host) {
                return Err(TlsError::Name { host: host.to_owned(), found: found.list() });
            }
        }
        Ok(stream)
    }
}

/// The hash that SCRAM-SHA-256-PLUS binds to; None where the signature has no hash of its own (Ed25519).
pub(crate) fn server_end_point(certificate: &X509Ref) -> Option<Vec<u8>> {
    let algorithm = certificate.signature_algorithm().object().nid().signature_algorithms()?;
    let digest = match algorithm.digest {
        Nid::MD5 | Nid::SHA1 => MessageDigest::sha256(),
        Nid::UNDEF => return None,
        digest => MessageDigest::from_nid(digest)?,
    };
    certificate.digest(digest).ok().map(|digest| digest.to_vec())
}

fn default_file(home: Option<&Path>, name: &str) -> Option<PathBuf> {
    home.map(|home| home.join(".postgresql").join(name))
}

fn unusable(what: &'static str, path: &Path) -> impl FnOnce(ErrorStack) -> TlsError {
    move |error| TlsError::File { what, path: path.to_owned(), cause: first_reason(&error) }
}

/// OpenSSL stacks a reason for every layer; the first is the cause.
fn first_reason(error: &ErrorStack) -> String {
    let reason = error.errors().first().and_then(|error| error.reason().map(str::to_owned));
    reason.unwrap_or_else(|| error.to_string())
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| TlsError::File { what, path: path.to_owned(), cause: error.to_string() })
}

/// Loads the trusted authorities; says from where, or None where there are none and none are needed.
fn authorities(
    context: &mut SslContextBuilder,
    settings: &TlsSettings,
    home: Option<&Path>,
) -> Result<Option<String>, TlsError> {
    if settings.root.as_deref() == Some(Path::new("system")) {
        return system_authorities(context).map(Some);
    }
    let path = settings.root.clone().or_else(|| default_file(home, "root.crt"));
    match path.filter(|path| path.exists()) {
        Some(path) => {
            let what = "the file of certificate authorities";
            let certificates = X509::stack_from_pem(&read(what, &path)?).map_err(unusable(what, &path))?;
            if certificates.is_empty() {
                return Err(TlsError::File { what, path, cause: "it holds no PEM certificate".into() });
            }
            for certificate in certificates {
                context.cert_store_mut().add_cert(certificate)?;
            }
            Ok(Some(path.display().to_string()))
        }
        None if settings.mode >= SslMode::VerifyCa => {
            let path = settings.root.clone().or_else(|| default_file(home, "root.crt"));
            let path = path.unwrap_or_else(|| "~/.postgresql/root.crt".into());
            Err(TlsError::NoRoot { mode: settings.mode, path })
        }
        None => Ok(None),
    }
}

const SYSTEM_FILES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
];

fn system_authorities(context: &mut SslContextBuilder) -> Result<String, TlsError> {
    let given = |variable| std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    let (file, folder) = (given("SSL_CERT_FILE"), given("SSL_CERT_DIR"));
    let usual = || SYSTEM_FILES.iter().map(PathBuf::from).find(|path| path.exists());
    let file = if folder.is_none() { file.or_else(usual) } else { file };
    let path = file.as_ref().or(folder.as_ref()).ok_or(TlsError::NoSystemRoots)?;
    context
        .load_verify_locations(file.as_deref(), folder.as_deref())
        .map_err(unusable("the system's certificate authorities", path))?;
    Ok(path.display().to_string())
}

fn revocation(
    context: &mut SslContextBuilder,
    settings: &TlsSettings,
    home: Option<&Path>,
    verifies: bool,
) -> Result<(), TlsError> {
    let explicit = settings.revoked.is_some() || settings.revoked_folder.is_some();
    let file = if explicit { settings.revoked.clone() } else { default_file(home, "root.crl") };
    let file = file.filter(|file| explicit || file.exists());
    if !verifies || (file.is_none() && settings.revoked_folder.is_none()) {
        return Ok(());
    }
    let what = "the list of revoked certificates";
    let store = context.cert_store_mut();
    if let Some(file) = file {
        read(what, &file)?;
        let lookup = store.add_lookup(X509Lookup::file())?;
        lookup.load_crl_file(&file, SslFiletype::PEM).map_err(unusable(what, &file))?;
    }
    if let Some(folder) = &settings.revoked_folder {
        let lookup = store.add_lookup(X509Lookup::hash_dir())?;
        lookup.add_dir(&folder.to_string_lossy(), SslFiletype::PEM).map_err(unusable(what, folder))?;
    }
    store.set_flags(X509VerifyFlags::CRL_CHECK | X509VerifyFlags::CRL_CHECK_ALL)?;
    Ok(())
}

/// Our own certificate and key, if the server asks.
fn identity(context: &mut SslContextBuilder, settings: &TlsSettings, home: Option<&Path>) -> Result<(), TlsError> {
    if settings.certificate_mode == CertMode::Disable {
        return Ok(());
    }
    let must = settings.certificate.is_some() || settings.certificate_mode == CertMode::Require;
    let certificate = settings.certificate.clone().or_else(|| default_file(home, "postgresql.crt"));
    let Some(certificate) = certificate.filter(|certificate| must || certificate.exists()) else { return Ok(()) };
    let what = "the client certificate";
    read(what, &certificate)?;
    context.set_certificate_chain_file(&certificate).map_err(unusable(what, &certificate))?;
    let key = settings.key.clone().or_else(|| default_file(home, "postgresql.key")).unwrap_or_else(|| {
        // Without a home there is no default; one file may hold both.
        certificate.clone()
    });
    let what = "the key of the client certificate";
    warn_if_shared(&key);
    let private = private_key(&read(what, &key)?, settings.key_password.as_ref()).map_err(unusable(what, &key))?;
    context.set_private_key(&private).map_err(unusable(what, &key))?;
    context.check_private_key().map_err(unusable(what, &key))?;
    Ok(())
}

fn private_key(bytes: &[u8], password: Option<&Secret>) -> Result<PKey<Private>, ErrorStack> {
    let password = password.map(|password| password.expose().as_bytes()).unwrap_or_default();
    if bytes.starts_with(b"-----") || bytes.windows(11).any(|window| window == b"-----BEGIN ") {
        // With a passphrase, even an empty one, OpenSSL never asks on the terminal.
        PKey::private_key_from_pem_passphrase(bytes, password)
    } else {
        PKey::private_key_from_der(bytes).or_else(|_| PKey::private_key_from_pkcs8_passphrase(bytes, password))
    }
}

fn warn_if_shared(key: &Path) {
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(key) {
        use std::os::unix::fs::MetadataExt;
        // As libpq: a file of root's may be readable for a group. It refuses the file; mounted secrets are often wider.
        let allowed = if metadata.uid() == 0 { 0o640 } else { 0o600 };
        if metadata.mode() & 0o777 & !allowed != 0 {
            tracing::warn!(path = %key.display(), "the TLS key can be read by other users; run chmod 600 on it");
        }
    }
}

/// The names that a certificate vouches for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Names {
    dns: Vec<String>,
    ip: Vec<IpAddr>,
    common: Option<String>,
}

impl Names {
    fn of(certificate: &X509Ref) -> Names {
        let mut names = Names::default();
        for name in certificate.subject_alt_names().iter().flatten() {
            names.dns.extend(name.dnsname().map(str::to_owned));
            names.ip.extend(name.ipaddress().and_then(|bytes| match bytes.len() {
                4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
                _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
            }));
        }
        names.common = certificate
            .subject_name()
            .entries_by_nid(Nid::COMMONNAME)
            .next()
            .and_then(|entry| entry.data().to_string().ok());
        names
    }

    /// libpq's rule: an IP address may stand among the IP or the DNS names; the common name counts only where there is
    /// no alternative name of the host's sort.
    fn allow(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        let ip = host.parse::<IpAddr>().ok();
        let matches = |pattern: &String| match ip {
            Some(_) => pattern == host,
            None => fits(pattern, host),
        };
        if ip.is_some_and(|ip| self.ip.contains(&ip)) || self.dns.iter().any(matches) {
            return true;
        }
        let named = if ip.is_some() { !self.ip.is_empty() } else { !self.dns.is_empty() };
        !named && self.common.as_ref().is_some_and(matches)
    }

    fn list(&self) -> Vec<String> {
        let quoted = |name: &String| format!("{name:?}");
        let found: Vec<String> = self.dns.iter().map(quoted).chain(self.ip.iter().map(IpAddr::to_string)).collect();
        if found.is_empty() { self.common.iter().map(quoted).collect() } else { found }
    }
}

/// A `*` stands for exactly the first label.
fn fits(pattern: &str, host: &str) -> bool {
    let pattern = pattern.strip_suffix('.').unwrap_or(pattern);
    match pattern.strip_prefix("*.") {
        Some(domain) => {
            host.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest.eq_ignore_ascii_case(domain))
        }
        None => !pattern.contains('\0') && pattern.eq_ignore_ascii_case(host),
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
