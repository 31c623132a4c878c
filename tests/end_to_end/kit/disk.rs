//! A small disk of a test's own, which can be full: a tmpfs, for which mounting must be allowed.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::run::new_dir;

pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// None where nothing may be mounted; says so, because the test is left out then.
    pub fn new(size: &str) -> Option<Disk> {
        let path = new_dir("disk");
        if mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], &path) {
            return Some(Disk { path });
        }
        println!("left out: no tmpfs may be mounted here, so no disk can be made full (it takes CAP_SYS_ADMIN)");
        None
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it more room; what is there stays.
    pub fn grow(&self, size: &str) {
        assert!(mount(&["-o", &format!("remount,size={size}")], &self.path), "the disk cannot be made larger");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: whoever still has a file open there is about to end.
        let _ = Command::new("umount").arg("-l").arg(&self.path).output();
    }
}

fn mount(arguments: &[&str], path: &Path) -> bool {
    Command::new("mount").args(arguments).arg(path).output().is_ok_and(|output| output.status.success())
}
