//! A guard process that ends a job if the restarting process is killed.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use system::terminal;

/// Shell script of the guard. It reads the launcher's process group and then a word. If the input ends before
/// the word, the writer has died: the group is terminated, killed after 5 s, and the states in memory are
/// deleted.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
read -r group || exit 0
read -r word && exit 0
kill -s TERM -- "-$group"
tries=0
while kill -s 0 -- "-$group" && [ "$tries" -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
kill -s KILL -- "-$group"
[ -z "$1" ] || rm -rf -- "$1"
"#;

/// The guard of one start of a job.
#[derive(Debug)]
pub(super) struct Guard(Option<(Child, ChildStdin)>);

impl Guard {
    /// Starts the guard. `states`: the directory of states in memory to delete.
    pub(super) fn start(states: Option<&Path>) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "guard"]).arg(states.unwrap_or(Path::new("")));
        // Signals to the group of this process do not reach it.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let started = command.spawn().map(|mut child| child.stdin.take().map(|input| (child, input)));
        Guard(started.unwrap_or_else(|error| {
            terminal::say(&format!("plimsoll: nothing ends the job if this process is killed: {error}"));
            None
        }))
    }

    /// Sends the guard the launcher's process id, which is also its process group.
    pub(super) fn watch(&mut self, launcher: u32) {
        self.write(&format!("{launcher}\n"));
    }

    fn write(&mut self, text: &str) {
        if let Some((_, input)) = &mut self.0 {
            // A guard that was killed guards nothing.
            let _ = input.write_all(text.as_bytes());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.write("done\n");
        if let Some((mut child, input)) = self.0.take() {
            drop(input);
            let _ = child.wait();
        }
    }
}
