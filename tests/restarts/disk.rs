//! A small file system for a job's run directory, which tests can fill.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::jobs::clean;

/// A small file system for a run directory, in a namespace held by a sleeping process.
pub(super) struct Disk(Child);

impl Disk {
    /// Mounts the file system at `disk` in this directory; `None` if the system does not allow it.
    pub(super) fn mount(directory: &Path) -> Option<Self> {
        std::fs::create_dir(directory.join("disk")).unwrap();
        let mut command = clean("unshare", directory);
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
        let script = "mount -t tmpfs -o size=24m tmpfs disk && touch disk/mounted && exec sleep 3600";
        let disk = Disk(command.arg(script).stderr(Stdio::null()).spawn().ok()?);
        let began = Instant::now();
        let mounted = disk.root(directory).join("mounted");
        while !mounted.exists() && began.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(5));
        }
        mounted.exists().then_some(disk)
    }

    /// Returns the root of the file system as seen from this process.
    pub(super) fn root(&self, directory: &Path) -> PathBuf {
        let path = directory.join("disk");
        Path::new(&format!("/proc/{}/root", self.0.id())).join(path.strip_prefix("/").unwrap())
    }

    /// Returns a command that sees the file system; the program to run follows as arguments.
    pub(super) fn command(&self, directory: &Path) -> Command {
        let mut command = clean("nsenter", directory);
        command.args(["--user", "--mount", "--preserve-credentials"]);
        command.arg(format!("--target={}", self.0.id()));
        // This process's working directory is on the outer file system.
        command.args(["sh", "-c", "cd \"$0\" && exec \"$@\""]).arg(directory);
        command
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
