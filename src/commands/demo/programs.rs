//! Which programs the demo has: Postgres' own from `PG_BINDIR`, the PATH or a distribution's folders; Kafka's jars from
//! `KAFKA_CLASSPATH`, with a Java that is new enough. Fetches nothing: `make demo` does, and sets both variables.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::servers::ServerError;

/// The oldest Postgres that walpost relays from.
const POSTGRES_MIN: u32 = 14;
/// The oldest Java that Kafka 4's broker runs on.
const JAVA_MIN: u32 = 17;

/// Postgres' programs.
#[derive(Clone, Debug)]
pub struct PostgresPrograms {
    pub bindir: PathBuf,
    /// `17.11`
    pub version: String,
}

/// A Java and the jars of a broker.
#[derive(Clone, Debug)]
pub struct KafkaPrograms {
    pub java: PathBuf,
    pub classpath: OsString,
    /// `4.3.1`, if the jars tell.
    pub version: Option<String>,
}

impl PostgresPrograms {
    pub fn find() -> Result<PostgresPrograms, ServerError> {
        let bindir = match set("PG_BINDIR") {
            Some(named) => {
                let named = PathBuf::from(named);
                if !has_postgres(&named) {
                    return Err(ServerError::WrongFolder { folder: named });
                }
                named
            }
            None => on_path("postgres")
                // A link in a folder of links says little; the programs lie beside each other where it points to.
                .and_then(|postgres| Some(fs::canonicalize(postgres).ok()?.parent()?.to_owned()))
                .filter(|folder| has_postgres(folder))
                .or_else(packaged)
                .ok_or(ServerError::NoPostgres)?,
        };
        let output = Command::new(bindir.join("postgres")).arg("--version").output();
        let output = output.map_err(|source| ServerError::Spawn { program: "postgres", source })?;
        let version = postgres_version(&String::from_utf8_lossy(&output.stdout)).unwrap_or_else(|| "?".to_owned());
        match leading_number(&version) {
            Some(major) if major < POSTGRES_MIN => Err(ServerError::OldPostgres { folder: bindir, version }),
            _ => Ok(PostgresPrograms { bindir, version }),
        }
    }
}

impl KafkaPrograms {
    /// Finds them, or says why there are none.
    pub fn find() -> Result<KafkaPrograms, String> {
        let classpath = set("KAFKA_CLASSPATH")
            .ok_or("KAFKA_CLASSPATH does not name the jars of a broker (`make demo` fetches them)")?;
        let java = set("JAVA_HOME").map(|home| PathBuf::from(home).join("bin/java")).filter(|java| java.is_file());
        let java = java.or_else(|| on_path("java")).ok_or("there is no Java on the PATH (`make deps` installs it)")?;
        let output = Command::new(&java).arg("-version").output();
        let output = output.map_err(|error| format!("{} does not run: {error}", java.display()))?;
        // Java tells its version on standard error.
        match java_major(&String::from_utf8_lossy(&output.stderr)) {
            Some(major) if major < JAVA_MIN => {
                return Err(format!("Java {major} is here, and Kafka 4 needs {JAVA_MIN} (`make deps` installs it)"));
            }
            _ => {}
        }
        let version = env::split_paths(&classpath).find_map(|entry| kafka_version(&entry));
        Ok(KafkaPrograms { java, classpath, version })
    }
}

fn set(variable: &str) -> Option<OsString> {
    env::var_os(variable).filter(|value| !value.is_empty())
}

fn has_postgres(folder: &Path) -> bool {
    ["postgres", "initdb"].iter().all(|program| folder.join(program).is_file())
}

fn on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The newest Postgres among a distribution's packages.
fn packaged() -> Option<PathBuf> {
    let debian =
        folders("/usr/lib/postgresql").filter_map(|folder| Some((number(folder.file_name()?.to_str()?)?, folder)));
    let red_hat = folders("/usr")
        .filter_map(|folder| Some((number(folder.file_name()?.to_str()?.strip_prefix("pgsql-")?)?, folder)));
    let found = debian.chain(red_hat).map(|(major, folder)| (major, folder.join("bin")));
    found.filter(|(_, bindir)| has_postgres(bindir)).max_by_key(|(major, _)| *major).map(|(_, bindir)| bindir)
}

fn folders(parent: &str) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(parent).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok()
}

fn leading_number(text: &str) -> Option<u32> {
    number(text.split(|c: char| !c.is_ascii_digit()).next()?)
}

/// `17.11` of `postgres (PostgreSQL) 17.11 (Debian 17.11-1)`.
fn postgres_version(text: &str) -> Option<String> {
    let after = text.split_once("(PostgreSQL)")?.1;
    after.split_whitespace().next().map(str::to_owned)
}

/// 17 of `openjdk version "17.0.15" 2025-04-15`, 8 of `java version "1.8.0_392"`.
fn java_major(text: &str) -> Option<u32> {
    let version = text.split_once("version \"")?.1;
    leading_number(version.strip_prefix("1.").unwrap_or(version))
}

/// `4.3.1`, of the client's jar in a folder of jars (`folder/*`) or a jar by itself.
fn kafka_version(entry: &Path) -> Option<String> {
    let version = |path: &Path| {
        let name = path.file_name()?.to_str()?.strip_prefix("kafka-clients-")?.strip_suffix(".jar")?;
        name.starts_with(|c: char| c.is_ascii_digit()).then(|| name.to_owned())
    };
    match entry.file_name()?.to_str()? {
        "*" => fs::read_dir(entry.parent()?).ok()?.find_map(|jar| version(&jar.ok()?.path())),
        _ => version(entry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_programs_say() {
        assert_eq!(postgres_version("postgres (PostgreSQL) 17.11\n").as_deref(), Some("17.11"));
        assert_eq!(
            postgres_version("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)\n").as_deref(),
            Some("15.13")
        );
        assert_eq!(postgres_version("pg_ctl"), None);
        assert_eq!(leading_number("18beta1"), Some(18));
        assert_eq!(java_major("openjdk version \"17.0.15\" 2025-04-15\n"), Some(17));
        assert_eq!(java_major("java version \"1.8.0_392\"\n"), Some(8));
        assert_eq!(java_major("openjdk version \"21\" 2023-09-19\n"), Some(21));
        assert_eq!(java_major("command not found"), None);
    }

    #[test]
    fn kafkas_version_is_that_of_its_clients_jar() {
        let folder = tempfile::tempdir().unwrap();
        for jar in ["kafka-server-4.3.1.jar", "kafka-clients-4.3.1.jar", "jackson-core-2.21.2.jar"] {
            fs::write(folder.path().join(jar), "").unwrap();
        }
        assert_eq!(kafka_version(&folder.path().join("*")).as_deref(), Some("4.3.1"));
        assert_eq!(kafka_version(Path::new("/jars/kafka-clients-3.9.0.jar")).as_deref(), Some("3.9.0"));
        assert_eq!(kafka_version(Path::new("/jars/kafka-clients-test.jar")), None);
        assert_eq!(kafka_version(Path::new("/none/*")), None);
    }
}
