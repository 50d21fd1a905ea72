//! Files beside the checkpoints that affect the continued run: damage to them is found before the run
//! resumes.

use super::*;

const SCORES: &str = "reference_scores.safetensors";
const SPIKES: &str = "spikes.json";

/// Expected words of the refusal, and a function that damages a file of a copied run.
type Case = (&'static str, fn(&Path));

/// Asserts that a damaged run is refused and left unchanged in each case, and that an undamaged copy resumes.
fn refused(run_dir: &Path, text: &str, sets: &[&str], file: &str, cases: &[Case]) {
    for (number, (expected, damage)) in cases.iter().enumerate() {
        let copied = run_dir.with_file_name(format!("copy-{number}"));
        copy(run_dir, &copied);
        damage(&copied.join(file));
        let before = contents(&copied);
        let refused = resume(&copied, text, sets).unwrap_err();
        let message = refused.to_string();
        assert_eq!(refused.exit_status(), 2, "{message}");
        assert!(message.starts_with(&format!("{}: ", copied.join(file).display())), "{message}");
        assert!(message.contains(expected), "{expected}: {message}");
        assert!(contents(&copied) == before, "{message}");
    }
    let copied = run_dir.with_file_name("intact");
    copy(run_dir, &copied);
    resume(&copied, text, sets).unwrap();
}

/// Replaces text in a file, possibly changing its length.
fn replace(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// Uses scores of another run on the same answers, which have the same size and identity.
#[test]
fn damaged_and_foreign_scores_of_the_reference_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let sets = ["checkpoint.every=1", WAIT];
    one_step(&run_dir, PREFERENCE, &sets);
    let other = directory.path().join("other");
    one_step(&other, PREFERENCE, &[&sets[..], &["train.seed=7"]].concat());
    assert_ne!(std::fs::read(other.join(SCORES)).unwrap(), std::fs::read(run_dir.join(SCORES)).unwrap());
    let cases: [Case; 8] = [
        ("it is damaged: the SHA-256", |path| flip(path, |length| length - 1)),
        ("it is damaged: the SHA-256", |path| flip(path, |length| length - 4 * 2)),
        ("it is damaged: the SHA-256", |path| {
            std::fs::copy(path.with_file_name("../other").join(SCORES), path).unwrap();
        }),
        ("it has no scores of answers", |path| rewrite(path, |bytes| bytes.truncate(bytes.len() - 4))),
        ("it has no scores of answers", |path| flip(path, |_| 0)),
        ("its scores are of other answers", |path| {
            // The hash of the answers, in the header.
            rewrite(path, |bytes| {
                let name = b"answers_sha256\":\"";
                let at = bytes.windows(name.len()).position(|part| part == name).unwrap() + name.len();
                bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            })
        }),
        ("No such file", |path| std::fs::remove_file(path).unwrap()),
        ("which is the limit", |path| rewrite(path, |bytes| bytes.resize(2 << 20, 0))),
    ];
    refused(&run_dir, PREFERENCE, &sets, SCORES, &cases);
}

/// Checks that scores from an earlier version, whose checkpoint lacks their hash, are used with a warning and
/// then get one.
#[test]
fn scores_without_a_hash_are_taken_with_a_warning_and_then_have_one() {
    let directory = tempfile::tempdir().unwrap();
    let sets = ["checkpoint.every=1", WAIT];
    one_step(directory.path(), PREFERENCE, &sets);
    let manifest = |step: u64| directory.path().join(format!("checkpoints/step-{step:06}/manifest.json"));
    let has_hash = |step: u64| std::fs::read_to_string(manifest(step)).unwrap().contains("reference_sha256");
    assert!(has_hash(1));
    resuming::rewrite_manifest(&manifest(1), |text| {
        let lines = text.lines().filter(|line| !line.contains("reference_sha256"));
        lines.map(|line| format!("{line}\n")).collect()
    });
    resume(directory.path(), PREFERENCE, &sets).unwrap();
    assert!(has_hash(2) && has_hash(3));
}

/// Returns a run that went back at spikes and skipped their samples.
fn rewound(directory: &Path) -> (PathBuf, Vec<&'static str>) {
    let sets = vec![
        "train.steps=60",
        "train.on_spike=rewind",
        "train.spike_deviations=1.5",
        "train.spike_window=16",
        "checkpoint.every=7",
        "checkpoint.keep=9",
        WAIT,
    ];
    static FILES: OnceLock<Files> = OnceLock::new();
    let run_dir = once(&FILES, directory, |run_dir| {
        full(run_dir, GPT, &sets);
    });
    (run_dir, [&sets[1..], &["train.steps=62"]].concat())
}

#[test]
fn damaged_spikes_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (run_dir, sets) = rewound(directory.path());
    let spikes: serde_json::Value =
        serde_json::from_slice(&std::fs::read(run_dir.join(SPIKES)).unwrap()).unwrap();
    assert!(spikes.as_array().unwrap().len() > 1, "{spikes}");
    let cases: [Case; 8] = [
        ("entry 1 is not", |path| replace(path, "\"samples\": ", "\"samples\": 1")),
        ("entry 1 is not", |path| replace(path, "\"rewind\"", "\"skip\"")),
        ("entry 1 is not", |path| replace(path, "\"sha256\"", "\"sha257\"")),
        ("entry 2 is not", |path| {
            // Without the first entry, the second's hash would be wrong too; here it is recomputed.
            rewrite(path, |bytes| {
                let mut all: Vec<serde_json::Value> = serde_json::from_slice(bytes).unwrap();
                all[1]["mean"] = 0.5.into();
                *bytes = serde_json::to_vec(&all).unwrap();
            })
        }),
        ("entry 1 is not", |path| {
            rewrite(path, |bytes| {
                let all: Vec<serde_json::Value> = serde_json::from_slice(bytes).unwrap();
                *bytes = serde_json::to_vec(&all[1..]).unwrap();
            })
        }),
        ("it is damaged: ", |path| rewrite(path, |bytes| bytes.truncate(bytes.len() / 2))),
        ("it lacks the spike of the samples of step ", |path| std::fs::write(path, "[]").unwrap()),
        ("it lacks the spike of the samples of step ", |path| std::fs::remove_file(path).unwrap()),
    ];
    refused(&run_dir, GPT, &sets, SPIKES, &cases);
}

/// Checks that a file of spikes from an earlier version, without hashes, is accepted.
#[test]
fn spikes_without_hashes_are_taken() {
    let directory = tempfile::tempdir().unwrap();
    let (run_dir, sets) = rewound(directory.path());
    let intact = directory.path().join("intact");
    copy(&run_dir, &intact);
    rewrite(&run_dir.join(SPIKES), |bytes| {
        let mut all: Vec<serde_json::Value> = serde_json::from_slice(bytes).unwrap();
        all.iter_mut().for_each(|spike| drop(spike.as_object_mut().unwrap().remove("sha256")));
        *bytes = serde_json::to_vec(&all).unwrap();
    });
    let [taken, intact] = [run_dir, intact].map(|run_dir| resume(&run_dir, GPT, &sets).unwrap());
    assert_eq!(bits(&taken), bits(&intact));
}

/// Checks that a file of lines larger than memory is refused before anything is allocated or changed.
#[test]
fn endless_lines_and_states_are_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let sets = ["checkpoint.every=3", "telemetry.hashes=1", WAIT];
    full(&run_dir, GPT, &sets);
    let more = [&sets[..], &["train.steps=8"]].concat();
    for (file, expected) in [
        ("metrics.jsonl", "cannot read it: line 7 has more than"),
        ("hashes.jsonl", "cannot read it: line 7 has more than"),
        ("checkpoints/step-000006/state.safetensors", "it is longer than it was"),
    ] {
        let copied = directory.path().join("copy");
        copy(&run_dir, &copied);
        let path = copied.join(file);
        // The maximum file size: reading it would take forever.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 42).unwrap();
        let refused = resume(&copied, GPT, &more).unwrap_err();
        assert_eq!(refused.exit_status(), 2, "{refused}");
        assert!(refused.to_string().starts_with(&format!("{}: {expected}", path.display())), "{refused}");
        assert_eq!(path.metadata().unwrap().len(), 1 << 42);
        assert_eq!(steps(&copied), [3, 6]);
        assert_eq!(sessions(&copied).len(), 1);
        std::fs::remove_dir_all(&copied).unwrap();
    }
}
