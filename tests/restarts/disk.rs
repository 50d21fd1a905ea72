//! A small file system for the run directory of a job, which a test can fill.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::jobs::clean;

/// A small file system for a run directory, in a namespace that a sleeping process keeps.
pub(super) struct Disk(Child);

impl Disk {
    /// Mounts the file system at `disk` in this directory; `None` where the system does not allow that.
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

    /// The root of the file system, seen from here.
    pub(super) fn root(&self, directory: &Path) -> PathBuf {
        let path = directory.join("disk");
        Path::new(&format!("/proc/{}/root", self.0.id())).join(path.strip_prefix("/").unwrap())
    }

    /// A command that sees the file system; the program follows.
    pub(super) fn command(&self, directory: &Path) -> Command {
        let mut command = clean("nsenter", directory);
        command.args(["--user", "--mount", "--preserve-credentials"]);
        command.arg(format!("--target={}", self.0.id()));
        // The working directory of this process is on the file system outside.
        command.args(["sh", "-c", "cd \"$0\" && exec \"$@\""]).arg(directory);
        command
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A process that has ended needs no signal.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
