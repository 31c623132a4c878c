//! `pg_upgrade`, where two complete installations of Postgres are at hand: what `scripts/stack` fetches lacks the programs for
//! it.

use std::fs;
use std::path::{Path, PathBuf};

use super::postgres::{COMMON_SETTINGS, Postgres, append, as_server_user, give_to_server_user};
use super::run::{free_port, new_dir};

/// Folders with the programs of complete installations, from `WALPOST_TEST_PG_UPGRADE`, separated by colons.
#[track_caller]
pub fn complete_installation(major: u32) -> PathBuf {
    let folders = std::env::var("WALPOST_TEST_PG_UPGRADE").expect("WALPOST_TEST_PG_UPGRADE: folders with pg_upgrade");
    let version = |folder: &&str| {
        let output =
            as_server_user(&Path::new(folder).join("pg_upgrade")).arg("--version").output().expect("pg_upgrade");
        String::from_utf8_lossy(&output.stdout).contains(&format!(") {major}."))
    };
    folders.split(':').find(version).unwrap_or_else(|| panic!("no Postgres {major} in {folders}")).into()
}

impl Postgres {
    /// A stopped server becomes one of a later version, on a port of its own. Err: what pg_upgrade says.
    pub fn upgrade(&self, major: u32) -> Result<Postgres, String> {
        let (old, new) = (complete_installation(self.major), complete_installation(major));
        let home = new_dir(&format!("postgres-{major}"));
        give_to_server_user(&home);
        let (data, port) = (home.join("data"), free_port());
        let mut initdb = as_server_user(&new.join("initdb"));
        initdb.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        if major >= 18 {
            initdb.arg("--no-data-checksums");
        }
        let made = initdb.output().expect("initdb");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        append(
            &data.join("postgresql.conf"),
            &format!(
                "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{}'\n{COMMON_SETTINGS}",
                home.display()
            ),
        );
        let mut upgrade = as_server_user(&new.join("pg_upgrade"));
        upgrade.current_dir(&home).args(["-U", "postgres", "--no-sync"]);
        upgrade.arg("-b").arg(&old).arg("-B").arg(&new).arg("-d").arg(&self.data).arg("-D").arg(&data);
        upgrade.arg("-p").arg(free_port().to_string()).arg("-P").arg(free_port().to_string());
        let output = upgrade.output().expect("pg_upgrade");
        if !output.status.success() {
            let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
            for entry in fs::read_dir(data.join("pg_upgrade_output.d")).into_iter().flatten().flatten() {
                for file in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
                    said += &fs::read_to_string(file.path()).unwrap_or_default();
                }
            }
            return Err(said);
        }
        Ok(Postgres { major, port, home, data, process: None })
    }
}
