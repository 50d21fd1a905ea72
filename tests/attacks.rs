//! Hostile files and environments: outputs over other files, links, FIFOs, full disks, limits of the process,
//! text that controls a terminal. Every command ends with a sentence and a status.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::jobs::{clean, text, workplace};
use common::{golden, program};

fn plimsoll(directory: &Path, arguments: &[&str]) -> Output {
    clean(program(), directory).args(arguments).output().unwrap()
}

/// Runs a shell command line with the program as `$P`.
fn shell(directory: &Path, line: &str) -> Output {
    clean("bash", directory).args(["-c", line]).env("P", program()).output().unwrap()
}

/// Asserts a status and one sentence with these words.
#[track_caller]
fn refused(output: &Output, status: i32, words: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{message}");
    for word in words {
        assert!(message.contains(word), "{word}: {message}");
    }
    assert!(!message.contains("panicked") && !message.contains("stack backtrace"), "{message}");
}

/// A directory with a finished run of one step, `out`.
fn with_run() -> tempfile::TempDir {
    let workplace = workplace();
    let arguments = ["train", "run.toml", "--run-dir", "out", "--set", "train.steps=1"];
    let output = plimsoll(workplace.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    workplace
}

/// Commands that write a user-named file.
const OUTPUTS: [&[&str]; 5] = [
    &["report", "out", "--output", "FILE"],
    &["plan", "run.toml", "--html", "FILE"],
    &["plan", "run.toml", "--schedule", "--set", "parallel.pipeline=2", "--svg", "FILE"],
    &["plan", "--device", "cpu", "--describe", "FILE"],
    &["plan", "run.toml", "--device", "cpu", "--profile", "FILE"],
];

#[test]
fn outputs_replace_only_what_plimsoll_wrote() {
    let workplace = with_run();
    let path = |name: &str| workplace.path().join(name);
    for command in OUTPUTS {
        let write = |file: &str, more: &[&str]| {
            let arguments: Vec<&str> =
                command.iter().map(|word| if *word == "FILE" { file } else { word }).collect();
            plimsoll(workplace.path(), &[&arguments, more].concat())
        };
        fs::write(path("thesis"), "mine").unwrap();
        symlink("thesis", path("link")).unwrap();
        refused(&write("thesis", &[]), 2, &["thesis: it exists", "--force"]);
        refused(&write("link", &[]), 2, &["link: it is a symbolic link"]);
        assert_eq!(fs::read_to_string(path("thesis")).unwrap(), "mine", "{command:?}");
        for bad in ["missing/file", ".", "out", "/dev/null", "thesis/file"] {
            refused(&write(bad, &[]), 2, &[bad]);
            refused(&write(bad, &["--force"]), 2, &[bad]);
        }
        let mut written = vec![write("new", &[]), write("thesis", &["--force"]), write("link", &["--force"])];
        // Plimsoll's pages and pictures are replaced, but results that took long to measure are kept.
        let measured = command.iter().any(|word| ["--describe", "--profile"].contains(word));
        match measured {
            true => refused(&write("new", &[]), 2, &["new: it exists"]),
            false => written.push(write("new", &[])),
        }
        for output in written {
            assert_eq!(output.status.code(), Some(0), "{command:?}: {}", text(&output.stderr));
        }
        assert!(!fs::symlink_metadata(path("link")).unwrap().is_symlink());
        assert!(!fs::read_to_string(path("thesis")).unwrap().contains("mine"));
        let left = fs::read_dir(workplace.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let hidden: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with('.')).collect();
        assert!(hidden.is_empty(), "{hidden:?}");
        for name in ["new", "thesis", "link"] {
            fs::remove_file(path(name)).unwrap();
        }
    }
}

#[test]
fn files_of_a_run_are_not_written_through_links() {
    for name in ["metrics.jsonl", "summary.json", "config.toml", "logs/rank-0.log", "logs/rank-0.status"] {
        let workplace = workplace();
        let path = |name: &str| workplace.path().join(name);
        fs::write(path("theirs"), "mine").unwrap();
        fs::create_dir_all(path("out/logs")).unwrap();
        symlink(path("theirs"), path("out").join(name)).unwrap();
        let arguments = ["train", "run.toml", "--run-dir", "out", "--set", "train.steps=1"];
        let output = plimsoll(workplace.path(), &arguments);
        assert_eq!(fs::read_to_string(path("theirs")).unwrap(), "mine", "{name}: {}", text(&output.stderr));
        assert!(output.status.code().is_some());
    }
}

#[test]
fn a_failed_write_to_standard_output_is_status_one() {
    let workplace = with_run();
    let recording = golden("streams.json.gz");
    let lines = [
        "$P plan run.toml --json",
        "$P plan run.toml",
        "$P report out",
        "$P replay $RECORDING",
        "$P --help",
        "$P plan --help",
        "$P --version",
        "$P bench allocator --rounds 1 $RECORDING",
        "$P bench collective --milliseconds 1 --sizes 8 --only barrier",
        "$P train run.toml --run-dir other --set train.steps=1",
    ];
    for line in lines {
        let full = format!("{} > /dev/full", line.replace("$RECORDING", recording.to_str().unwrap()));
        refused(&shell(workplace.path(), &full), 1, &["standard output", "No space left"]);
        // A reader that closes its end early is no failure.
        let read = format!("{} | true; exit ${{PIPESTATUS[0]}}", line.replace("other", "another"));
        let read = read.replace("$RECORDING", recording.to_str().unwrap());
        assert_eq!(shell(workplace.path(), &read).status.code(), Some(0), "{line}");
    }
}

#[test]
fn reading_never_waits_on_irregular_files() {
    let workplace = with_run();
    let fifo = |path: &str| {
        let path = workplace.path().join(path);
        let _ = fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    };
    fifo("fifo");
    fifo("fifo.toml");
    let fifo_words = ["fifo", "a FIFO"];
    for arguments in [
        &["train", "fifo"][..],
        &["plan", "fifo"],
        &["replay", "fifo"],
        &["plan", "run.toml", "--device", "fifo.toml"],
        &["plan", "run.toml", "--set", "parallel.profile=fifo", "--set", "parallel.pipeline=2"],
        &["bench", "allocator", "fifo"],
        &["bench", "scaling", "--report", "fifo"],
    ] {
        refused(&plimsoll(workplace.path(), arguments), 2, &fifo_words);
    }
    let arguments = ["train", "run.toml", "--set", "data.paths=['fifo']"];
    refused(&plimsoll(workplace.path(), &arguments), 2, &["fifo"]);
    refused(&plimsoll(workplace.path(), &["train", "/dev/zero"]), 2, &["/dev/zero", "a device"]);
    for file in ["metrics.jsonl", "summary.json", "config.toml"] {
        let kept = fs::read(workplace.path().join("out").join(file)).unwrap();
        fifo(&format!("out/{file}"));
        let output = plimsoll(workplace.path(), &["report", "out"]);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{file}: {}", text(&output.stderr));
        fs::remove_file(workplace.path().join("out").join(file)).unwrap();
        fs::write(workplace.path().join("out").join(file), kept).unwrap();
    }
}

#[test]
fn limits_of_the_process_are_reported_in_a_sentence() {
    let workplace = workplace();
    let train = "$P train run.toml --run-dir out --set train.steps=1";
    let output = shell(workplace.path(), &format!("RAYON_NUM_THREADS=99999 {train}"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("RAYON_NUM_THREADS=99999: this process has"));
    for (line, words) in [
        ("RUST_MIN_STACK=1000 $P train run.toml --run-dir two --set parallel.data=2", ""),
        ("ulimit -s 256; $P train run.toml --run-dir three --set parallel.data=2", ""),
    ] {
        let output = shell(workplace.path(), line);
        assert_eq!(output.status.code(), Some(0), "{line}: {words}: {}", text(&output.stderr));
    }
    // Arguments and the environment lie on the stack too, so in less than this the kernel may start no
    // program.
    let line = format!("ulimit -s 64; {}", train.replace("out", "small"));
    let words = "a stack of 65,536 bytes (ulimit -s) is too small: 262,144 are needed";
    refused(&shell(workplace.path(), &line), 2, &[words]);
    assert!(!workplace.path().join("small").exists());
    // A file that exceeds the limit is an error with its name.
    let output = shell(workplace.path(), &format!("ulimit -f 0; {}", train.replace("out", "four")));
    assert!(matches!(output.status.code(), Some(1 | 2)), "{:?}", output.status);
    assert!(text(&output.stderr).contains("File too large"), "{}", text(&output.stderr));
    for arguments in [
        &["bench", "collective", "--ranks", "1000000"][..],
        &[
            "train",
            "run.toml",
            "--set",
            "parallel.data=1024",
            "--set",
            "train.global_batch_size=2048",
            "--set",
            "parallel.lanes=1024",
        ],
    ] {
        refused(&plimsoll(workplace.path(), arguments), 2, &["ranks as threads: one process has at most"]);
    }
}

/// `ulimit -u` counts the processes of a user, but not root's.
#[test]
fn too_few_threads_are_reported_in_a_sentence() {
    let workplace = workplace();
    // Cgroups with a limit on threads, and other users, are not available everywhere.
    let line = "ulimit -u 1; exec setpriv --reuid 65534 --clear-groups $P plan run.toml";
    let output = shell(workplace.path(), line);
    if text(&output.stderr).contains("setpriv") {
        let _ = writeln!(std::io::stderr(), "skipped: setpriv cannot change the user here");
        return;
    }
    assert!(
        output.status.code().is_some_and(|code| code <= 2),
        "{:?} {}",
        output.status,
        text(&output.stderr)
    );
    assert!(!text(&output.stderr).contains("panicked"), "{}", text(&output.stderr));
}

#[test]
fn input_that_unpacks_to_too_much_is_refused_by_name() {
    let workplace = workplace();
    let bomb =
        "python3 -c 'import gzip,sys; sys.stdout.buffer.write(gzip.compress(b\"[\" + b\"0,\"*60000000))'";
    let made = shell(workplace.path(), &format!("{bomb} > bomb.json.gz"));
    if made.status.code() != Some(0) {
        let _ = writeln!(std::io::stderr(), "skipped: python3 is not installed");
        return;
    }
    let small = fs::metadata(workplace.path().join("bomb.json.gz")).unwrap().len();
    assert!(small < 200_000, "{small}");
    // Far below the 2.6 GB that it once took: the text and a little more.
    let output = shell(workplace.path(), "ulimit -v 1000000; $P replay bomb.json.gz");
    refused(&output, 2, &["bomb.json.gz", "values, which is the limit"]);
}

#[test]
fn text_cannot_control_a_terminal() {
    let workplace = workplace();
    fs::write(workplace.path().join("bad.toml"), "\"\u{1b}]0;owned\u{7}\" = 1\n").unwrap();
    let output = plimsoll(workplace.path(), &["plan", "bad.toml", "--set", "x.\u{1b}[31m=1"]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(!message.contains(['\u{1b}', '\u{7}']), "{message:?}");
    // On a terminal a sample's control characters are made visible; in a file they are unchanged.
    let corpus = "\u{1b}[2J\u{7}\u{1b}]0;x\u{7}".repeat(2000);
    fs::write(workplace.path().join("corpus.txt"), corpus).unwrap();
    let train = "$P train run.toml --run-dir out --set train.steps=2 --set checkpoint.every=2 2>/dev/null";
    let sample = "$P sample out --tokens 20 --prompt $'\\e[31mx'";
    let file = shell(workplace.path(), &format!("{train} > file; {sample}"));
    assert_eq!(file.status.code(), Some(0), "{}", text(&file.stderr));
    assert!(text(&file.stdout).starts_with("\u{1b}[31mx"));
    fs::write(workplace.path().join("sample.sh"), sample).unwrap();
    let terminal = shell(workplace.path(), "script -qec 'bash sample.sh' /dev/null");
    if terminal.status.code() == Some(127) {
        let _ = writeln!(std::io::stderr(), "skipped: script is not installed");
        return;
    }
    let shown = text(&terminal.stdout);
    assert!(shown.contains("\n␛[31mx") && !shown.contains('\u{1b}'), "{shown:?}");
}

/// Closed or full standard error ends no command.
#[test]
fn a_closed_standard_error_ends_no_command() {
    let workplace = workplace();
    for line in ["$P plan run.toml 2> /dev/full", "$P plan run.toml 2>&-", "$P plan run.toml <&-"] {
        assert_eq!(shell(workplace.path(), line).status.code(), Some(0), "{line}");
    }
    let mut command = clean(program(), workplace.path());
    command.args(["train", "run.toml", "--run-dir", "out", "--set", "train.steps=1"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
}
