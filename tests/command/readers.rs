//! Tests of reading other programs' files: what is recognised, refused by name, or counted in the log.

use std::fs;
use std::path::Path;

use super::{plimsoll, text};
use crate::common::root;

/// A git-lfs pointer left instead of a file.
const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";

/// Runs a command. Returns its exit status, standard output and standard error.
fn run(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = plimsoll(directory).args(arguments).output().unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Creates a directory with a configuration of a small chat model, whose data is `c.jsonl`.
fn workplace() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let template = root().join("launch/recipes/chat/template.jinja");
    fs::copy(template, directory.path().join("template.jinja")).unwrap();
    let config = "[model]\nkind = \"gpt\"\nlayers = 1\nheads = 1\nwidth = 16\ncontext = 48\n\
                  [data]\nkind = \"chat\"\npaths = [\"c.jsonl\"]\nvalidation_paths = [\"c.jsonl\"]\n\
                  chat_template = \"template.jinja\"\n\
                  [train]\nsteps = 1\nmicro_batch_size = 1\nglobal_batch_size = 1\nvalidation_micro_batches = 1\n\
                  [optim]\nlearning_rate = 1e-3\nwarmup_steps = 0\n";
    fs::write(directory.path().join("run.toml"), config).unwrap();
    directory
}

/// Returns the JSON line of a conversation with one question, whose answer is `answer` with further keys.
fn line(answer: &str, keys: &str) -> String {
    format!(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"q\"}}, {{\"role\": \"assistant\", \"content\": \
         \"{answer}\"{keys}}}]}}\n"
    )
}

const SHARE_GPT: &str = "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"AAAA\"}]}\n";

#[test]
fn the_log_counts_formats_masks_keys_and_what_is_cut() {
    let workplace = workplace();
    let long = "a".repeat(40);
    let scored = line("b", "").replacen('{', "{\"score\": NaN, ", 1);
    let masked = line("c", "}, {\"role\": \"assistant\", \"content\": \"d\", \"weight\": 0");
    let beyond = line("e", "").replace("\"q\"", &format!("\"{}\"", "q".repeat(60)));
    let all = [scored.as_str(), &masked, &line("f", ", \"weight\": 0"), &line(&long, ""), &beyond, SHARE_GPT]
        .concat();
    fs::write(workplace.path().join("c.jsonl"), all).unwrap();
    let (status, _, log) = run(workplace.path(), &["train", "run.toml", "--device", "cpu", "--run-dir", "r"]);
    assert_eq!(status, 0, "{log}");
    for expected in [
        "data.format: conversations of \"messages\" (5) and \"sharegpt\" (1)",
        "conversations: 1 answers are masked and not learnt; 1 conversations of which all answers are masked are \
         left out; keys that are not read: score (1)",
        // The first tokens of the long answer are within the 48 tokens after the first.
        "of 5 conversations in sequences of 48 tokens, 1 end beyond it, and 15 tokens of their answers are cut; 1 \
         have no answer within it and are left out",
    ] {
        let found = log.lines().filter(|line| line.contains(expected)).count();
        assert!(found > 0, "{expected}\n{log}");
    }
    let set = ["train", "run.toml", "--device", "cpu", "--run-dir", "s", "--set", "data.format=alpaca"];
    let (status, _, log) = run(workplace.path(), &set);
    assert_eq!(status, 2, "{log}");
    assert!(log.contains("data.paths") && log.contains("c.jsonl:1: it has no answer"), "{log}");
}

#[test]
fn an_evaluation_finds_the_kind_of_its_data() {
    let workplace = workplace();
    let at = |name: &str| workplace.path().join(name);
    fs::write(at("c.jsonl"), line("AAAA", "").repeat(2)).unwrap();
    let train = ["train", "run.toml", "--device", "cpu", "--run-dir", "r"];
    assert_eq!(run(workplace.path(), &train).0, 0);
    assert_eq!(run(workplace.path(), &["export", "r", "-o", "m"]).0, 0);
    let answer = "AAAA</>".len();
    let pairs = "{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"}\n";
    let choices = "{\"ctx\": \"q\", \"endings\": [\"a\"], \"label\": 0}\n";
    let records = "{\"body\": \"the sky is blue\"}\n";
    for (name, contents, expected) in [
        ("d.jsonl", format!("\u{feff}{}", line("AAAA", "")), Ok((answer, ""))),
        ("d.txt", SHARE_GPT.to_owned(), Ok((answer, ""))),
        ("d.json", format!("[{SHARE_GPT}]"), Ok((answer, ""))),
        (
            "d.jsonl",
            "{\"prompt\": \"q\", \"completion\": \"AAAA\"}".to_owned(),
            Err("d.jsonl:1: no file of the tokenizer"),
        ),
        ("d.jsonl", line("AAAA", "").replacen('{', "{\"score\": NaN, ", 1), Ok((answer, ""))),
        ("d.jsonl", records.to_owned(), Ok((records.len() - 1, "d.jsonl: it is JSON, of which"))),
        ("d.txt", "the sky is blue".to_owned(), Ok((14, ""))),
        ("d.jsonl", pairs.to_owned(), Err("the losses of data.kind = \"preference\" are those of a run's")),
        ("d.jsonl", choices.to_owned(), Err("d.jsonl: it has questions of multiple choice: --choices")),
        (
            "d.jsonl",
            line("AAAA", ", \"mask\": 1"),
            Err("d.jsonl:1: message 2: \"mask\" = 1 is not supported"),
        ),
        ("d.txt", "PK\u{3}\u{4}".to_owned(), Err("d.txt: it is a zip archive")),
        ("d.txt", POINTER.to_owned(), Err("d.txt cannot be read: it is a pointer of git-lfs")),
    ] {
        fs::write(at(name), &contents).unwrap();
        let (status, output, log) =
            run(workplace.path(), &["eval", "m", "--data", name, "--device", "cpu", "--json"]);
        match expected {
            Ok((tokens, warning)) => {
                assert_eq!(status, 0, "{contents}: {log}");
                assert!(output.contains(&format!("\"tokens\":{tokens},")), "{contents}: {output}");
                assert!(log.contains(warning), "{contents}: {log}");
                assert_eq!(warning.contains("JSON"), log.contains("it is JSON"), "{contents}: {log}");
            }
            Err(reason) => {
                assert_eq!(status, 2, "{contents}: {log}");
                assert!(log.contains(reason), "{contents}: {log}");
            }
        }
        fs::remove_file(at(name)).unwrap();
    }
    a_pointer_is_refused_whatever_the_file_is(workplace.path());
}

/// Checks a template that uses `eos_token` although no file defines it: it is empty, before and after the
/// export.
#[test]
fn an_exported_template_writes_what_it_wrote_in_training() {
    let workplace = workplace();
    let at = |name: &str| workplace.path().join(name);
    let train = |run_dir: &str, sets: &[&str]| {
        let arguments = ["train", "run.toml", "--device", "cpu", "--run-dir", run_dir];
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let (status, _, log) = run(workplace.path(), &arguments.into_iter().chain(sets).collect::<Vec<_>>());
        assert_eq!(status, 0, "{log}");
    };
    fs::write(at("c.jsonl"), line("AAAA", "")).unwrap();
    train("bytes", &[]);
    assert_eq!(run(workplace.path(), &["export", "bytes", "-o", "exported"]).0, 0);
    let bytes = fs::read(at("exported/tokenizer.json")).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    tokenizer["added_tokens"] = serde_json::json!([{
        "id": 256, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    }]);
    for folder in ["t", "u"] {
        fs::create_dir(at(folder)).unwrap();
        fs::write(at(folder).join("tokenizer.json"), tokenizer.to_string()).unwrap();
    }
    let template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
    fs::write(at("t.jinja"), template).unwrap();
    fs::write(at("u/chat_template.jinja"), template).unwrap();
    let elsewhere = ["data.tokenizer=t", "data.chat_template=t.jinja"];
    let beside = ["data.tokenizer=u", "data.chat_template=''"];
    for (run_dir, sets) in [("r", elsewhere), ("s", beside)] {
        train(run_dir, &sets);
        let folder = format!("{run_dir}-exported");
        assert_eq!(run(workplace.path(), &["export", run_dir, "-o", &folder]).0, 0);
        for model in [run_dir, &folder] {
            let (_, output, log) =
                run(workplace.path(), &["eval", model, "--data", "c.jsonl", "--device", "cpu", "--json"]);
            assert!(output.contains("\"tokens\":4,"), "{model}: {output}{log}");
        }
    }
}

/// Checks that a git-lfs pointer instead of any file of a model or its data is refused.
fn a_pointer_is_refused_whatever_the_file_is(directory: &Path) {
    let at = |name: &str| directory.join(name);
    fs::write(at("d.txt"), "the sky is blue").unwrap();
    fs::write(at("d.jsonl"), POINTER).unwrap();
    fs::write(at("d.bin"), POINTER).unwrap();
    for arguments in [
        &["eval", "m", "--data", "d.jsonl"][..],
        &["eval", "m", "--data", "d.jsonl", "--set", "data.kind=chat"],
        &["eval", "m", "--data", "d.bin"],
        &["eval", "m", "--choices", "d.jsonl"],
        &["eval", "m", "--choices", "d.bin"],
        &["sample", "m", "--chat", "--conversations", "d.jsonl"],
        &["tokenize", "--tokenizer", "bytes", "-o", "shards", "d.jsonl"],
        &["tokenize", "--tokenizer", "bytes", "-o", "shards", "d.bin"],
        &["train", "d.jsonl"],
        &["train", "run.toml", "--run-dir", "x", "--set", "data.paths=[\"d.jsonl\"]"],
        &["train", "run.toml", "--run-dir", "x", "--set", "data.chat_template=d.jsonl"],
        &[
            "train",
            "run.toml",
            "--run-dir",
            "x",
            "--set",
            "data.kind=preference",
            "--set",
            "data.paths=[\"d.jsonl\"]",
        ],
        &["train", "run.toml", "--run-dir", "x", "--set", "data.tokenizer=d.jsonl"],
    ] {
        let (status, _, log) = run(directory, arguments);
        assert_eq!(status, 2, "{arguments:?}: {log}");
        assert!(log.contains("it is a pointer of git-lfs"), "{arguments:?}: {log}");
    }
    for file in ["config.json", "model.safetensors"] {
        let path = at("m").join(file);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, POINTER).unwrap();
        for command in [
            &["eval", "m", "--data", "d.txt"][..],
            &["sample", "m", "--prompt", "a"],
            &["train", "run.toml", "--run-dir", "x", "--set", "model.from=m"],
            &["export", "m", "-o", "n"],
        ] {
            let (status, _, log) = run(directory, command);
            assert_eq!(status, 2, "{file}: {command:?}: {log}");
            assert!(log.contains("it is a pointer of git-lfs"), "{file}: {command:?}: {log}");
        }
        fs::write(&path, whole).unwrap();
    }
}
