//! Kills runs repeatedly, and checks what remains of them.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use checkpoint::{Checkpoint, list};
use system::fail_point;

use super::{Workplace, succeeded};

/// A run that is killed repeatedly.
pub(crate) struct Killed<'a> {
    workplace: &'a Workplace,
    run_dir: &'a str,
    /// Grids, which alternate.
    grids: Vec<&'static [&'static str]>,
    /// Step of the newest checkpoint, and number of checkpoints kept.
    newest: u64,
    checkpoints: usize,
    pub(crate) kills: usize,
}

impl<'a> Killed<'a> {
    pub(crate) fn new(workplace: &'a Workplace, run_dir: &'a str, grids: &[&'static [&'static str]]) -> Self {
        Killed { workplace, run_dir, grids: grids.to_vec(), newest: 0, checkpoints: 0, kills: 0 }
    }

    pub(crate) fn line(&self) -> [&'a str; 5] {
        ["train", "run.toml", "--run-dir", self.run_dir, "--resume"]
    }

    /// Returns the next run's command; grids alternate.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.workplace.plimsoll(&self.line());
        for set in self.grids[self.kills % self.grids.len()] {
            command.args(["--set", set]);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts a run and kills it while it is paused at `point` for the `count`-th time. Returns false if it
    /// ended before.
    pub(crate) fn at(&mut self, point: &str, count: u64) -> bool {
        let reached = self.workplace.path(&format!("{}-{}-reached", self.run_dir, self.kills));
        let hold = format!("{point}:{count}:{}", reached.display());
        let mut child = self.command().env(fail_point::VARIABLE, hold).spawn().unwrap();
        while !reached.exists() {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "{point}: it ended by itself, with {status}");
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.kill(child);
        true
    }

    pub(crate) fn kill(&mut self, mut child: Child) -> bool {
        child.kill().unwrap();
        let status = child.wait().unwrap();
        if status.code().is_some() {
            assert!(status.success(), "{}: it ended by itself, with {status}", self.run_dir);
            return false;
        }
        self.kills += 1;
        self.check();
        true
    }

    /// Asserts that no checkpoint was lost and that all are intact.
    pub(crate) fn check(&mut self) {
        let complete = list(&self.workplace.path(self.run_dir)).unwrap();
        for (step, checkpoint) in &complete {
            assert_eq!(Checkpoint::open(checkpoint).unwrap().step(), *step);
        }
        let now = complete.last().map_or(0, |(step, _)| *step);
        assert!(now >= self.newest, "step {} was lost, {now} is there", self.newest);
        assert!(complete.len() >= self.checkpoints, "{complete:?}");
        (self.newest, self.checkpoints) = (now, complete.len().min(2));
    }

    /// Runs to the end, and compares with a run that was never killed.
    pub(crate) fn ends_as(self, whole: &serde_json::Value) {
        succeeded(&self.workplace.run(&self.line()));
        let path = self.workplace.path(self.run_dir);
        let visible = |directory: &Path| {
            // Some directories belong to runs with other settings.
            let entries = std::fs::read_dir(directory).into_iter().flatten();
            let entries = entries.map(|entry| entry.unwrap().file_name());
            let names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
            assert!(!names.iter().any(|name| name.starts_with('.')), "a temporary is left: {names:?}");
            names.len()
        };
        assert_eq!(visible(&path.join("checkpoints")), 2);
        for directory in ["", "logs", "memory", "traces"] {
            visible(&path.join(directory));
        }
        let summary = self.workplace.summary(self.run_dir);
        assert_eq!(summary["weights_sha256"], whole["weights_sha256"]);
        assert_eq!(summary["losses"], whole["losses"]);
        let lines = std::fs::read_to_string(path.join("metrics.jsonl")).unwrap();
        assert_eq!(lines.lines().count(), whole["losses"].as_array().unwrap().len());
    }
}
