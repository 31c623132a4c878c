//! Copies of a server's data directory: standbys, backups, and disks that are put back as they were.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::postgres::{Postgres, Stop, append, checked, give_to_server_user};
use super::run::{free_port, new_dir};
use super::wait::seconds;

/// What belongs to a running server and not to its data.
const NOT_COPIED: [&str; 2] = ["postmaster.pid", "postmaster.opts"];

impl Postgres {
    /// A copy of the server on a port of its own, without slots, as backups are; this one is restarted for it. As a standby it
    /// follows this one until it is promoted; else it is a server that believes to be this one.
    pub fn copy(&mut self, standby: bool, conf: &[&str]) -> Postgres {
        let kept = self.keep_disk();
        self.start();
        let mut copy = self.of_disk(&kept);
        copy.drop_slots();
        if standby {
            copy.conf(&format!("primary_conninfo = 'host=127.0.0.1 port={} user=postgres dbname=postgres'", self.port));
            fs::write(copy.data.join("standby.signal"), "").expect("a file in the data directory");
        }
        conf.iter().for_each(|line| copy.conf(line));
        give_to_server_user(&copy.home);
        copy.start();
        copy
    }

    /// Stops the server, in good order, and keeps its disk as it is.
    pub fn keep_disk(&mut self) -> PathBuf {
        if self.is_running() {
            self.stop(Stop::Fast, seconds(30));
        }
        let kept = self.home.join(format!("kept-{}", super::run::unique()));
        copy_tree(&self.data, &kept);
        kept
    }

    /// The disk of a stopped server becomes what it was.
    pub fn put_back(&mut self, kept: &Path) {
        assert!(!self.is_running(), "it is running");
        fs::remove_dir_all(&self.data).expect("a data directory");
        copy_tree(kept, &self.data);
    }

    /// Another server, on a port of its own, on a copy of a disk of this one. Not started.
    pub fn of_disk(&self, kept: &Path) -> Postgres {
        let home = new_dir(&format!("postgres-{}", self.major));
        let (data, port) = (home.join("data"), free_port());
        copy_tree(kept, &data);
        let copy = Postgres { major: self.major, port, home, data, process: None };
        copy.conf(&format!("port = {port}\nunix_socket_directories = '{}'", copy.home.display()));
        give_to_server_user(&copy.home);
        copy
    }

    /// Another line for postgresql.conf, for the next start.
    pub fn conf(&self, line: &str) {
        append(&self.data.join("postgresql.conf"), &format!("{line}\n"));
    }

    pub fn drop_slots(&self) {
        for slot in fs::read_dir(self.data.join("pg_replslot")).expect("slots").flatten() {
            fs::remove_dir_all(slot.path()).expect("a slot that can be removed");
        }
    }

    /// The folder to which a server with [`ARCHIVING`] copies its log.
    pub fn archive(&self) -> PathBuf {
        self.home.join("archive")
    }

    /// A backup while the server runs, by its own backup functions.
    pub fn base_backup(&self) -> PathBuf {
        let sql = self.sql("postgres");
        let (start, stop) = match self.major {
            14 => ("select pg_start_backup('test', true, false)", "select labelfile from pg_stop_backup(false)"),
            _ => ("select pg_backup_start('test', true)", "select labelfile from pg_backup_stop()"),
        };
        sql.value(start);
        let backup = self.home.join(format!("backup-{}", super::run::unique()));
        // Files may vanish meanwhile; what the log holds of them mends that.
        Command::new("cp").arg("-a").arg(&self.data).arg(&backup).output().expect("cp");
        let label = sql.value(stop);
        for name in NOT_COPIED {
            let _ = fs::remove_file(backup.join(name));
        }
        fs::write(backup.join("backup_label"), label).expect("a file in the backup");
        backup
    }

    /// Another server that is recovered from a backup and this one's archive, up to a restore point, and then goes on by itself.
    pub fn restore(&self, backup: &Path, restore_point: &str, slots_too: bool) -> Postgres {
        let mut restored = self.of_disk(backup);
        if !slots_too {
            restored.drop_slots();
        }
        restored.conf(&format!("restore_command = 'cp {}/%f %p'", self.archive().display()));
        restored.conf(&format!("recovery_target_name = '{restore_point}'\nrecovery_target_action = 'promote'"));
        restored.conf("archive_mode = off");
        fs::write(restored.data.join("recovery.signal"), "").expect("a file in the data directory");
        give_to_server_user(&restored.home);
        restored.start();
        super::wait::wait_for(seconds(30), "the end of the recovery", || {
            restored.sql("postgres").is_true("select not pg_is_in_recovery()")
        });
        restored
    }
}

/// Lines for a server that archives its log where [`Postgres::archive`] says.
pub const ARCHIVING: [&str; 2] =
    ["archive_mode = on", "archive_command = 'mkdir -p ../archive && cp %p ../archive/%f'"];

fn copy_tree(from: &Path, to: &Path) {
    checked(Command::new("cp").arg("-a").arg(from).arg(to));
}
