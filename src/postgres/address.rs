//! The address of Postgres: a libpq URL or key=value text, what libpq's `PG*` variables add to it, and libpq's
//! defaults. Reads no file and opens no connection, so that all of it can be tested as a table.
//!
//! An error here never repeats a value that could hold a part of a password: a forgotten `%40` or a missing quote
//! moves the password's end to any place of the text.

use crate::config::SecretFileError;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::Secret;
use crate::postgres::dsn::pairs;
use crate::postgres::tls::{CertMode, SslMode, TlsSettings, TlsVersion};

/// libpq waits for ever; a relay that is to report its state must not.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_PORT: u16 = 5432;

/// One of the address' servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub host: Host,
    /// `hostaddr`: connect there, without asking a name server; the host is still what the certificate must name.
    pub hostaddr: Option<IpAddr>,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// Name or IP address.
    Tcp(String),
    /// The folder of the Unix socket.
    Unix(PathBuf),
    /// Nothing was given: the usual socket folders, then localhost.
    Default,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.hostaddr) {
            (Host::Tcp(name), _) if name.contains(':') => write!(f, "[{name}]:{}", self.port),
            (Host::Tcp(name), _) => write!(f, "{name}:{}", self.port),
            (Host::Unix(folder), _) => write!(f, "{}:{}", folder.display(), self.port),
            (Host::Default, Some(ip)) => write!(f, "{ip}:{}", self.port),
            (Host::Default, None) => write!(f, "localhost:{}", self.port),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAttrs {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    Disable,
    Prefer,
    Require,
}

/// How a dead peer is noticed on an idle or a blocked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    pub enabled: bool,
    pub idle: Duration,
    pub interval: Duration,
    pub count: u32,
    /// TCP_USER_TIMEOUT: how long sent data may stay unacknowledged.
    pub user_timeout: Option<Duration>,
}

impl Default for Keepalive {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { enabled: true, idle: seconds(30), interval: seconds(10), count: 3, user_timeout: Some(seconds(30)) }
    }
}

/// Everything that a connection needs to know. `Debug` shows no secret.
#[derive(Clone, Debug)]
pub struct Address {
    pub servers: Vec<Server>,
    pub user: String,
    pub database: String,
    pub password: Option<Secret>,
    /// `passfile`; None: `~/.pgpass`.
    pub passfile: Option<PathBuf>,
    /// `options`: the user's own server settings; ours are put after them and win.
    pub options: Option<String>,
    /// For one IP address of one host, from the first packet to the end of authentication.
    pub connect_timeout: Option<Duration>,
    pub session_attrs: SessionAttrs,
    pub channel_binding: ChannelBinding,
    pub shuffle: bool,
    pub keepalive: Keepalive,
    pub tls: TlsSettings,
    pub home: Option<PathBuf>,
}

/// Where `PG*` variables and `HOME` come from: the process, or a test's table.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The address cannot be used as it is written.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("the Postgres address is neither a postgres:// URL nor a list of key=value pairs")]
    Form,
    #[error("the Postgres address has the scheme {0:?}")]
    Scheme(String),
    #[error("the Postgres address has an unquoted space or a key without `=`")]
    KeyValue,
    #[error("the Postgres address has a quote that does not end")]
    Quote,
    #[error("the Postgres URL has a `%` that is not followed by two hexadecimal digits")]
    Percent,
    #[error("{0} in the Postgres address is not UTF-8, or holds a zero byte")]
    Text(String),
    #[error("the part of the Postgres URL before the first `/` is no user:password@host:port")]
    Authority,
    #[error("{origin} has no setting {key:?}{}", nearest(.key))]
    UnknownKey { origin: &'static str, key: String },
    #[error("the setting {key} is not supported: {why}")]
    Unsupported { key: &'static str, why: &'static str },
    #[error("{key}={value:?} is none of {allowed}")]
    Value { key: &'static str, value: String, allowed: &'static str },
    #[error("{key} names {found} values for {hosts} hosts")]
    Count { key: &'static str, found: usize, hosts: usize },
    #[error("no user is named, and the operating system does not tell ours")]
    User,
    #[error("{what} cannot be had")]
    File { what: &'static str, source: SecretFileError },
}

impl AddressError {
    /// What to do about it, in one sentence.
    pub fn remedy(&self) -> String {
        match self {
            AddressError::Form | AddressError::Scheme(_) => {
                "write postgres://user@host:5432/database, or host=... user=... dbname=...".into()
            }
            AddressError::KeyValue | AddressError::Quote => {
                "put a value with spaces in single quotes, and write \\' and \\\\ inside them".into()
            }
            AddressError::Percent | AddressError::Authority | AddressError::Text(_) => {
                "in a URL write the characters @ : / ? # % of user and password as %40 %3A %2F %3F %23 %25, or give \
                 the password as WALPOST_POSTGRES_PASSWORD_FILE"
                    .into()
            }
            AddressError::UnknownKey { .. } => "correct or remove it".into(),
            AddressError::Unsupported { .. } | AddressError::Value { .. } => "change or remove it".into(),
            AddressError::Count { .. } => "give one value, or one for each host".into(),
            AddressError::User => "add user=... to the address, or set PGUSER".into(),
            AddressError::File { .. } => "check the path and that walpost's user may read the file".into(),
        }
    }
}

fn nearest(key: &str) -> String {
    let near = KEYS
        .iter()
        .map(|known| (strsim::damerau_levenshtein(&key.to_ascii_lowercase(), known.name), known.name))
        .min()
        .filter(|(distance, name)| *distance <= 1.max(name.len() / 3));
    near.map(|(_, name)| format!("; did you mean {name}?")).unwrap_or_default()
}

struct Key {
    name: &'static str,
    variable: &'static str,
    treatment: Treatment,
}

enum Treatment {
    Used,
    /// Says nothing that matters here, or is set by walpost itself.
    Ignored,
    Unsupported(&'static str),
}

const fn used(name: &'static str, variable: &'static str) -> Key {
    Key { name, variable, treatment: Treatment::Used }
}
const fn ignored(name: &'static str) -> Key {
    Key { name, variable: "", treatment: Treatment::Ignored }
}
const fn unsupported(name: &'static str, variable: &'static str, why: &'static str) -> Key {
    Key { name, variable, treatment: Treatment::Unsupported(why) }
}

/// Every setting that libpq knows, with its variable.
const KEYS: &[Key] = &[
    used("host", "PGHOST"),
    used("hostaddr", "PGHOSTADDR"),
    used("port", "PGPORT"),
    used("dbname", "PGDATABASE"),
    used("user", "PGUSER"),
    used("password", "PGPASSWORD"),
    used("passfile", "PGPASSFILE"),
    used("options", "PGOPTIONS"),
    used("connect_timeout", "PGCONNECT_TIMEOUT"),
    used("target_session_attrs", "PGTARGETSESSIONATTRS"),
    used("load_balance_hosts", "PGLOADBALANCEHOSTS"),
    used("channel_binding", "PGCHANNELBINDING"),
    used("keepalives", ""),
    used("keepalives_idle", ""),
    used("keepalives_interval", ""),
    used("keepalives_count", ""),
    used("tcp_user_timeout", ""),
    used("sslmode", "PGSSLMODE"),
    used("sslnegotiation", "PGSSLNEGOTIATION"),
    used("sslrootcert", "PGSSLROOTCERT"),
    used("sslcert", "PGSSLCERT"),
    used("sslkey", "PGSSLKEY"),
    used("sslpassword", ""),
    used("sslcertmode", "PGSSLCERTMODE"),
    used("sslcrl", "PGSSLCRL"),
    used("sslcrldir", "PGSSLCRLDIR"),
    used("sslsni", "PGSSLSNI"),
    used("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"),
    used("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION"),
    used("gssencmode", "PGGSSENCMODE"),
    // The names and settings of the session are walpost's own; compression is gone from TLS.
    ignored("application_name"),
    ignored("fallback_application_name"),
    ignored("client_encoding"),
    ignored("replication"),
    ignored("sslcompression"),
    ignored("gssdelegation"),
    ignored("gsslib"),
    ignored("krbsrvname"),
    ignored("min_protocol_version"),
    ignored("max_protocol_version"),
    unsupported("service", "PGSERVICE", "write the service's settings into the address itself"),
    unsupported("servicefile", "", "write the service's settings into the address itself"),
    unsupported("requirepeer", "PGREQUIREPEER", "walpost does not ask who owns a Unix socket"),
    unsupported("require_auth", "PGREQUIREAUTH", "use channel_binding=require or sslmode=verify-full"),
    unsupported("scram_client_key", "", "give the password"),
    unsupported("scram_server_key", "", "give the password"),
    unsupported("sslkeylogfile", "", "walpost does not write TLS keys to a file"),
    unsupported("oauth_issuer", "", "walpost does not speak OAuth"),
    unsupported("oauth_client_id", "", "walpost does not speak OAuth"),
    unsupported("oauth_client_secret", "", "walpost does not speak OAuth"),
    unsupported("oauth_scope", "", "walpost does not speak OAuth"),
];

impl Address {
    /// Reads `text`; what it leaves out comes from `environment`, then from libpq's defaults.
    pub fn parse(text: &str, environment: Environment) -> Result<Address, AddressError> {
        let mut settings = Settings::default();
        for (key, value) in pairs(text)? {
            settings.set(key, value)?;
        }
        settings.fill(environment)?;
        settings.address(environment)
    }

    /// `host:port/database as user`, without a secret.
    pub fn describe(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(Server::to_string).collect();
        format!("{}/{} as {}", servers.join(","), self.database, self.user)
    }
}

#[derive(Default)]
struct Settings(BTreeMap<&'static str, String>);

impl Settings {
    fn set(&mut self, key: String, value: String) -> Result<(), AddressError> {
        // JDBC's spelling, which libpq takes too.
        let (key, value) =
            if key == "ssl" && value == "true" { ("sslmode".to_owned(), "require".to_owned()) } else { (key, value) };
        let Some(known) = KEYS.iter().find(|known| known.name == key) else {
            return Err(AddressError::UnknownKey { origin: "the Postgres address", key });
        };
        match known.treatment {
            _ if value.contains('\0') => Err(AddressError::Text(key)),
            Treatment::Unsupported(why) => Err(AddressError::Unsupported { key: known.name, why }),
            Treatment::Ignored => Ok(()),
            Treatment::Used => {
                self.0.insert(known.name, value);
                Ok(())
            }
        }
    }

    fn fill(&mut self, environment: Environment) -> Result<(), AddressError> {
        for known in KEYS.iter().filter(|known| !known.variable.is_empty()) {
            if self.0.contains_key(known.name) {
                continue;
            }
            match (&known.treatment, environment(known.variable).filter(|value| !value.is_empty())) {
                (Treatment::Used, Some(value)) => _ = self.0.insert(known.name, value),
                // A variable for other programs; it matters only if the servers were to come from it.
                (Treatment::Unsupported(why), Some(_)) if self.get("host").is_none() => {
                    return Err(AddressError::Unsupported { key: known.variable, why });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// An empty value means "not set", as in libpq.
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        self.get(key).map(PathBuf::from)
    }

    fn choice<T: Copy>(
        &self,
        key: &'static str,
        allowed: &'static str,
        choices: &[(&str, T)],
        default: T,
    ) -> Result<T, AddressError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        choices.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice).ok_or_else(|| AddressError::Value {
            key,
            value: value.to_owned(),
            allowed,
        })
    }

    fn number(&self, key: &'static str) -> Result<Option<u64>, AddressError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        // libpq takes negative time-outs for "none".
        let number: i64 = value.trim().parse().map_err(|_| AddressError::Value {
            key,
            value: value.to_owned(),
            allowed: "the whole numbers",
        })?;
        Ok(Some(number.max(0) as u64))
    }

    fn address(self, environment: Environment) -> Result<Address, AddressError> {
        let home = environment("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let user = match self.get("user") {
            Some(user) => user.to_owned(),
            None => os_user(environment).ok_or(AddressError::User)?,
        };
        let connect_timeout = match self.number("connect_timeout")? {
            None => Some(CONNECT_TIMEOUT),
            Some(0) => None,
            Some(seconds) => Some(Duration::from_secs(seconds)),
        };
        use SessionAttrs::*;
        let session_attrs = self.choice(
            "target_session_attrs",
            "any, read-write, read-only, primary, standby, prefer-standby",
            &[
                ("any", Any),
                ("read-write", ReadWrite),
                ("read-only", ReadOnly),
                ("primary", Primary),
                ("standby", Standby),
                ("prefer-standby", PreferStandby),
            ],
            Any,
        )?;
        let channel_binding = self.choice(
            "channel_binding",
            "disable, prefer, require",
            &[
                ("disable", ChannelBinding::Disable),
                ("prefer", ChannelBinding::Prefer),
                ("require", ChannelBinding::Require),
            ],
            ChannelBinding::Prefer,
        )?;
        let shuffle =
            self.choice("load_balance_hosts", "disable, random", &[("disable", false), ("random", true)], false)?;
        if self.get("gssencmode") == Some("require") {
            return Err(AddressError::Unsupported { key: "gssencmode", why: "walpost encrypts with TLS: use sslmode" });
        }
        Ok(Address {
            servers: self.servers()?,
            database: self.get("dbname").unwrap_or(&user).to_owned(),
            password: self.get("password").map(Secret::new),
            passfile: self.path("passfile"),
            options: self.get("options").map(str::to_owned),
            connect_timeout,
            session_attrs,
            channel_binding,
            shuffle,
            keepalive: self.keepalive()?,
            tls: self.tls()?,
            user,
            home,
        })
    }

    fn servers(&self) -> Result<Vec<Server>, AddressError> {
        let list = |key| self.get(key).map(|value| value.split(',').map(str::trim).collect::<Vec<_>>());
        let (hosts, ips, ports) = (list("host"), list("hostaddr"), list("port").unwrap_or_default());
        let count = hosts.as_ref().or(ips.as_ref()).map_or(1, Vec::len);
        if let Some(ips) = ips.as_ref().filter(|ips| ips.len() != count) {
            return Err(AddressError::Count { key: "hostaddr", found: ips.len(), hosts: count });
        }
        if ports.len() > 1 && ports.len() != count {
            return Err(AddressError::Count { key: "port", found: ports.len(), hosts: count });
        }
        let server = |index: usize| {
            let host = match hosts.as_ref().and_then(|hosts| hosts.get(index)).copied().unwrap_or_default() {
                "" => Host::Default,
                folder if folder.starts_with('/') => Host::Unix(folder.into()),
                // The error does not show it: it is the end of a password.
                name if name.contains('@') => return Err(AddressError::Authority),
                name => Host::Tcp(name.to_owned()),
            };
            let hostaddr = match ips.as_ref().and_then(|ips| ips.get(index)).copied().unwrap_or_default() {
                "" => None,
                ip => Some(ip.parse().map_err(|_| AddressError::Value {
                    key: "hostaddr",
                    value: ip.to_owned(),
                    allowed: "the IP addresses",
                })?),
            };
            let port = match ports.get(index).or(ports.first()).copied().unwrap_or_default() {
                "" => DEFAULT_PORT,
                port => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| AddressError::Value {
                    key: "port",
                    value: port.to_owned(),
                    allowed: "1 to 65535",
                })?,
            };
            Ok(Server { host, hostaddr, port })
        };
        (0..count).map(server).collect()
    }

    fn keepalive(&self) -> Result<Keepalive, AddressError> {
        let mut keepalive = Keepalive { enabled: self.number("keepalives")? != Some(0), ..Keepalive::default() };
        let seconds = |value: Option<u64>, default| value.filter(|n| *n > 0).map_or(default, Duration::from_secs);
        keepalive.idle = seconds(self.number("keepalives_idle")?, keepalive.idle);
        keepalive.interval = seconds(self.number("keepalives_interval")?, keepalive.interval);
        if let Some(count) = self.number("keepalives_count")?.filter(|count| *count > 0) {
            keepalive.count = u32::try_from(count).unwrap_or(u32::MAX);
        }
        if let Some(millis) = self.number("tcp_user_timeout")? {
            keepalive.user_timeout = (millis > 0).then(|| Duration::from_millis(millis));
        }
        Ok(keepalive)
    }

    fn tls(&self) -> Result<TlsSettings, AddressError> {
        let system = self.get("sslrootcert") == Some("system");
        let mode = self.choice(
            "sslmode",
            "disable, allow, prefer, require, verify-ca, verify-full",
            &[
                ("disable", SslMode::Disable),
                ("allow", SslMode::Allow),
                ("prefer", SslMode::Prefer),
                ("require", SslMode::Require),
                ("verify-ca", SslMode::VerifyCa),
                ("verify-full", SslMode::VerifyFull),
            ],
            if system { SslMode::VerifyFull } else { SslMode::Prefer },
        )?;
        if system && mode != SslMode::VerifyFull {
            let why =
                "with it sslmode must be verify-full, because anybody can get a certificate of a public authority";
            return Err(AddressError::Unsupported { key: "sslrootcert=system", why });
        }
        let direct =
            self.choice("sslnegotiation", "postgres, direct", &[("postgres", false), ("direct", true)], false)?;
        if direct && mode < SslMode::Require {
            let why = "it needs sslmode=require or stronger, because it cannot fall back to no TLS";
            return Err(AddressError::Unsupported { key: "sslnegotiation=direct", why });
        }
        let versions = [
            ("TLSv1", TlsVersion::V1),
            ("TLSv1.1", TlsVersion::V1_1),
            ("TLSv1.2", TlsVersion::V1_2),
            ("TLSv1.3", TlsVersion::V1_3),
        ];
        let version = |key, default: Option<TlsVersion>| {
            let choices = versions.map(|(name, version)| (name, Some(version)));
            self.choice(key, "TLSv1, TLSv1.1, TLSv1.2, TLSv1.3", &choices, default)
        };
        Ok(TlsSettings {
            mode,
            direct,
            root: self.path("sslrootcert"),
            certificate: self.path("sslcert"),
            key: self.path("sslkey"),
            key_password: self.get("sslpassword").map(Secret::new),
            certificate_mode: self.choice(
                "sslcertmode",
                "disable, allow, require",
                &[("disable", CertMode::Disable), ("allow", CertMode::Allow), ("require", CertMode::Require)],
                CertMode::Allow,
            )?,
            revoked: self.path("sslcrl"),
            revoked_folder: self.path("sslcrldir"),
            sni: self.choice("sslsni", "0, 1", &[("0", false), ("1", true)], true)?,
            version_min: version("ssl_min_protocol_version", Some(TlsVersion::V1_2))?,
            version_max: version("ssl_max_protocol_version", None)?,
        })
    }
}

/// The name of the operating system's user, as Postgres' own programs take it.
fn os_user(environment: Environment) -> Option<String> {
    #[cfg(unix)]
    if let (Ok(ours), Ok(users)) = (std::fs::metadata("/proc/self"), std::fs::read_to_string("/etc/passwd")) {
        let uid = std::os::unix::fs::MetadataExt::uid(&ours).to_string();
        let line = users.lines().find(|line| line.split(':').nth(2) == Some(uid.as_str()));
        if let Some(name) = line.and_then(|line| line.split(':').next()) {
            return Some(name.to_owned());
        }
    }
    ["USER", "LOGNAME"].iter().find_map(|name| environment(name)).filter(|name| !name.is_empty())
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
