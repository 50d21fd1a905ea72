//! Tests of preparing a run: its first lines appear at once, a request to stop ends it, a plan reads no data,
//! and a hostile chat template ends it with a sentence.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::jobs::{clean, signal, text, workplace};
use crate::common::program;
use system::fail_point;

/// Size in bytes of a sparse file that no test reads completely.
const ENDLESS: u64 = 256 << 30;

/// Creates a workplace with a corpus and conversations that are too long to be read: `endless.txt` and
/// `endless.jsonl`.
fn with_endless() -> tempfile::TempDir {
    let workplace = workplace();
    for name in ["endless.txt", "endless.jsonl"] {
        File::create(workplace.path().join(name)).unwrap().set_len(ENDLESS).unwrap();
    }
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    fs::write(workplace.path().join("chat.jinja"), template).unwrap();
    workplace
}

/// Settings with which a run reads all of its data before it starts, and its first line of output.
const READ_WHOLE: [(&[&str], &str); 3] = [
    (&["data.paths=['endless.txt']", "data.pack_documents=true"], "packing documents: reading all "),
    (&["data.paths=['endless.txt']", "data.tokenizer=gpt2"], "hashing the corpus: reading all "),
    (&["data.kind=chat", "data.paths=['endless.jsonl']", "data.chat_template=chat.jinja"], ""),
];

fn command(directory: &Path, command: &str, sets: &[&str]) -> Command {
    let mut started = clean(program(), directory);
    started.args([command, "run.toml"]).args(sets.iter().flat_map(|set| ["--set", set]));
    started
}

#[test]
fn a_plan_reads_no_data() {
    let workplace = with_endless();
    for (sets, _) in READ_WHOLE {
        let plan = |more: &[&str]| command(workplace.path(), "plan", sets).args(more).output().unwrap();
        for more in [&["--json"][..], &["--largest", "layers", "--capacity", "4MiB"]] {
            let output = plan(more);
            assert_eq!(output.status.code(), Some(0), "{sets:?}: {}", text(&output.stderr));
        }
        // Everything that can be checked without reading is checked.
        let missing: Vec<_> = sets.iter().map(|set| set.replace("endless.", "missing.")).collect();
        let missing: Vec<_> = missing.iter().map(String::as_str).collect();
        let output = command(workplace.path(), "plan", &missing).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("there is no file "), "{}", text(&output.stderr));
    }
}

/// Checks that plans of tokenized, packed or rendered data, which is not read, equal plans and runs of the
/// data itself.
#[test]
fn a_plan_of_unread_data_is_that_of_the_run() {
    let workplace = with_endless();
    let line =
        r#"{"messages": [{"role": "user", "content": "keel"}, {"role": "assistant", "content": "KEEL"}]}"#;
    fs::write(workplace.path().join("talks.jsonl"), format!("{line}\n").repeat(40)).unwrap();
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    fs::write(workplace.path().join("chat.jinja"), template).unwrap();
    for (number, sets) in [
        &["data.pack_documents=true", "data.separator=46"][..],
        &["data.pack_documents=true", "data.document_mask=true", "data.separator=46"],
        &["data.tokenizer=gpt2"],
        &["data.kind=chat", "data.paths=['talks.jsonl']", "data.chat_template=chat.jinja"],
        &[
            "data.kind=chat",
            "data.paths=['talks.jsonl']",
            "data.chat_template=chat.jinja",
            "data.pack_documents=true",
            "data.document_mask=true",
        ],
    ]
    .iter()
    .enumerate()
    {
        let run_dir = format!("out-{number}");
        let sets = [sets, &["train.steps=2", "data.validation_fraction=0.5"][..]].concat();
        let mut plan = command(workplace.path(), "plan", &sets);
        let planned = plan.args(["--json", "--device", "cpu"]).output().unwrap();
        let mut train = command(workplace.path(), "train", &sets);
        let trained = train.args(["--device", "cpu", "--run-dir", &run_dir]).output().unwrap();
        assert_eq!(trained.status.code(), Some(0), "{sets:?}: {}", text(&trained.stderr));
        let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
        let summary = json(&fs::read(workplace.path().join(run_dir).join("summary.json")).unwrap());
        let planned = json(&planned.stdout);
        for key in ["allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"] {
            assert_eq!(planned["ranks"][0][key], summary["ranks"][0][key], "{sets:?} {key}");
        }
    }
}

/// Checks that the line appears although the run would read for hours, and that the run ends on request.
#[test]
fn a_run_says_at_once_what_it_reads_and_stops_when_asked() {
    let workplace = with_endless();
    for (sets, words) in &READ_WHOLE[..2] {
        let mut train = command(workplace.path(), "train", sets);
        train.args(["--run-dir", "out"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = train.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut before = Vec::new();
        let is_announced =
            lines.by_ref().inspect(|line| before.push(line.clone())).any(|line| line.contains(*words));
        assert!(is_announced, "{sets:?}: {before:?}");
        signal("TERM", child.id());
        let rest: Vec<String> = lines.collect();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{rest:?}");
        let last = rest.last().map_or("", String::as_str);
        assert!(last.starts_with("plimsoll: stopped before the first step"), "{rest:?}");
        assert!(!workplace.path().join("out").exists());
    }
}

/// Returns a command that trains on `conversations` equal conversations with a template.
fn chat(directory: &Path, conversations: usize, template: &str) -> Command {
    let messages =
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    fs::write(directory.join("talk.jsonl"), format!("{messages}\n").repeat(conversations)).unwrap();
    fs::write(directory.join("t.jinja"), template).unwrap();
    let sets = ["data.kind=chat", "data.paths=['talk.jsonl']", "data.chat_template=t.jinja"];
    let mut train = command(directory, "train", &sets);
    train.args(["--run-dir", "out", "--set", "train.steps=1"]);
    train
}

/// Checks that each template ends within its limit of steps, processor time, memory, stack or text, and only
/// the rendering process reaches that limit.
#[test]
fn hostile_chat_templates_are_refused_in_a_sentence() {
    let workplace = workplace();
    let doubled =
        "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}";
    let nested = "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = [n.l] %}{% endfor %}";
    let deep = "[".repeat(100_000);
    for (template, words) in [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "10,000,000 steps",
        ),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{{ messages | tojson(indent=1000000000) }}", "at most 64 spaces"),
        (doubled, "of memory"),
        ("{{ [1] * 1000000000 }}", ""),
        ("{{ 'x' * 99999999 }}{{ 'x' * 99999999 }}", "its text has more than"),
        ("{{ ([1] * 1000000000) | list | length }}", "of memory"),
        ("{% set a, b = [1] * 1000000000 %}", ""),
        ("{{ '%999999999s' | format('a') }}", ""),
        ("{{ '{:999999999}'.format('a') }}", ""),
        ("{{ 'a' | indent(999999999) }}{{ 'a\\nb' | indent(999999999) }}", ""),
        ("{{ ('a' * 90000) | replace('a', 'b' * 90000) }}", ""),
        ("{{ ('a' * 99999999) ~ ('a' * 99999999) ~ ('a' * 99999999) }}", ""),
        ("{{ 'a'.count('') }}", "processor time"),
        (nested, "of stack"),
        (&format!("{{{{ {deep} }}}}"), ""),
        ("{% for m in messages %}", "unexpected end"),
        ("{{ raise_exception('not these') }}", "not these"),
    ] {
        let Output { status, stderr, .. } = chat(workplace.path(), 8, template).output().unwrap();
        let message = text(&stderr);
        assert_eq!(status.code(), Some(2), "{template:.80}: {message}");
        let line = message.lines().last().unwrap_or_default();
        assert!(line.starts_with("plimsoll: ") && line.contains("t.jinja: "), "{template:.80}: {message}");
        assert!(line.contains(words) && line.len() < 400, "{template:.80}: {message}");
        assert!(!message.contains("panicked"), "{message}");
    }
    let template = "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}";
    let output = chat(workplace.path(), 8, template).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_request_to_stop_ends_a_run_that_renders() {
    let workplace = workplace();
    let reached = workplace.path().join("reached");
    let template = "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}";
    // A file this long is announced.
    let mut train = chat(workplace.path(), 20_000, template);
    train.env(fail_point::VARIABLE, format!("conversation about to be rendered:3:{}", reached.display()));
    let mut child = train.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while !reached.exists() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    signal("TERM", child.id());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    for words in ["reading the conversations of ", "stopped before the first step"] {
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
    assert!(!workplace.path().join("out").exists());
}
