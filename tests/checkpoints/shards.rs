//! Tests of checkpoints that several ranks write, each its own elements.

use super::*;

const SHARDED: &str = "parallel.zero_stage=1";
const ZERO_2: &str = "parallel.zero_stage=2";
const ZERO_3: &str = "parallel.zero_stage=3";
const PAIRS: &str = "parallel.shard=2";

/// Returns the files of arrays in a checkpoint.
fn files(checkpoint: &Checkpoint) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(checkpoint.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().unwrap() == "safetensors").collect();
    files.sort();
    files
}

/// Returns the total bytes of all arrays in files.
fn stored_bytes(files: &[PathBuf]) -> usize {
    let bytes = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        file.tensors().iter().map(|(_, array)| array.data().len()).sum::<usize>()
    };
    files.iter().map(bytes).sum()
}

#[test]
fn each_element_is_written_once_by_a_rank_that_holds_it() {
    // Model, settings, and grids with their number of files.
    type Grids = &'static [(&'static [&'static str], usize)];
    let table: [(&str, &[&str], Grids); 5] = [
        (
            GPT,
            &["model.width=64"],
            &[
                (&["parallel.data=1"], 1),
                (&["parallel.data=4"], 1),
                (&["parallel.data=1", SHARDED], 1),
                (&["parallel.data=2", SHARDED], 2),
                (&["parallel.data=3", SHARDED], 3),
                (&["parallel.pipeline=2"], 2),
                (&["parallel.pipeline=2", "parallel.data=2"], 2),
                (&["parallel.pipeline=2", "parallel.data=2", SHARDED], 4),
                (&["parallel.data=3", ZERO_2], 3),
                (&["parallel.data=3", ZERO_3], 3),
                (&["parallel.data=4", ZERO_3, PAIRS], 2),
                (&["parallel.pipeline=2", "parallel.data=2", ZERO_3], 4),
            ],
        ),
        (
            GPT,
            &["model.width=64", "precision.compute=bf16", "optim.state=8bit"],
            &[
                (&["parallel.data=2", SHARDED], 2),
                (&["parallel.pipeline=2", "parallel.data=2", SHARDED], 4),
                (&["parallel.data=3", ZERO_3], 3),
            ],
        ),
        (
            GPT,
            &["lora.rank=2"],
            &[
                (&["parallel.pipeline=2"], 2),
                (&["parallel.data=2", SHARDED], 2),
                (&["parallel.data=2", ZERO_3], 2),
            ],
        ),
        (
            GPT,
            &["lora.rank=2", "lora.base=int4"],
            &[(&["parallel.pipeline=2"], 2), (&["parallel.data=2", ZERO_3], 2)],
        ),
        (
            RESNET,
            &["train.steps=1"],
            &[
                (&["parallel.pipeline=2"], 2),
                (&["parallel.data=2", SHARDED], 2),
                (&["parallel.data=4", ZERO_3, PAIRS], 2),
            ],
        ),
    ];
    for (text, overrides, grids) in table {
        let directory = tempfile::tempdir().unwrap();
        let all =
            |more: &[&'static str]| [overrides, &["train.steps=1", "checkpoint.every=1"], more].concat();
        let whole = directory.path().join("whole");
        let reference = full(&whole, text, &all(&["parallel.data=1"]));
        let expected = (arrays(&whole), stored_bytes(&files(&newest(&whole).unwrap().unwrap())));
        for (number, (grid, count)) in grids.iter().enumerate() {
            let run_dir = directory.path().join(number.to_string());
            let report = full(&run_dir, text, &all(grid));
            assert_eq!(bits(&report), bits(&reference), "{overrides:?} {grid:?}");
            let checkpoint = newest(&run_dir).unwrap().unwrap();
            let files = files(&checkpoint);
            let names: Vec<_> =
                files.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
            let name = |index: usize| format!("state-{:05}-of-{count:05}.safetensors", index + 1);
            match count {
                1 => assert_eq!(names, ["state.safetensors"]),
                _ => assert_eq!(names, (0..*count).map(name).collect::<Vec<_>>()),
            }
            let others = if *count == 1 { 1 } else { 2 };
            assert_eq!(contents(checkpoint.path()).len(), count + others, "{grid:?}");
            assert!((arrays(&run_dir), stored_bytes(&files)) == expected, "{overrides:?} {grid:?}");
            if *count == 1 {
                let state =
                    |run_dir: &Path| newest(run_dir).unwrap().unwrap().path().join("state.safetensors");
                assert!(std::fs::read(state(&run_dir)).unwrap() == std::fs::read(state(&whole)).unwrap());
            }
        }
    }
}

#[test]
fn damage_to_any_of_several_files_is_refused_by_name() {
    const SECOND: &str = "state-00002-of-00002.safetensors";
    const INDEX: &str = "state.safetensors.index.json";
    let table: [(&str, &str, Damage); 8] = [
        (SECOND, "it is truncated: it has", |c| rewrite(&c.join(SECOND), |b| b.truncate(b.len() - 1))),
        (SECOND, "it is longer than it was", |c| rewrite(&c.join(SECOND), |b| b.push(0))),
        (SECOND, "it is corrupted", |c| flip(&c.join(SECOND), |len| len / 2)),
        (SECOND, "cannot open it", |c| std::fs::remove_file(c.join(SECOND)).unwrap()),
        (SECOND, "it is ", |c| {
            std::fs::copy(c.join("state-00001-of-00002.safetensors"), c.join(SECOND)).unwrap();
        }),
        (INDEX, "it is corrupted", |c| flip(&c.join(INDEX), |len| len / 2)),
        (INDEX, "it is truncated: it has 0 bytes", |c| rewrite(&c.join(INDEX), Vec::clear)),
        (INDEX, "cannot open it", |c| std::fs::remove_file(c.join(INDEX)).unwrap()),
    ];
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    full(&run_dir, GPT, &["checkpoint.every=3", "parallel.data=2", SHARDED, WAIT]);
    for (number, (file, expected, damage)) in table.into_iter().enumerate() {
        let copied = directory.path().join(format!("copy-{number}"));
        copy(&run_dir, &copied);
        let checkpoint = copied.join("checkpoints/step-000006");
        damage(&checkpoint);
        let before = contents(&copied);
        let refused = resume(&copied, GPT, &["checkpoint.every=3"]).unwrap_err();
        let text = refused.to_string();
        let named = format!("{}: {expected}", checkpoint.join(file).display());
        assert!(refused.exit_status() == 2 && text.starts_with(&named), "{text}\n{named}");
        assert!(text.contains(&format!("step-000003 is intact: delete {}", checkpoint.display())), "{text}");
        assert!(contents(&copied) == before, "{text}");
    }
}

/// Checks that each process of a job verifies its own share of the files.
#[test]
fn every_file_is_in_the_share_of_one_process() {
    let directory = tempfile::tempdir().unwrap();
    full(directory.path(), GPT, &["checkpoint.every=6", "parallel.data=2", SHARDED]);
    let checkpoint = newest(directory.path()).unwrap().unwrap();
    for file in files(&checkpoint) {
        flip(&file, |len| len - 1);
        for of in [1, 2, 3, 5] {
            let refuses = |index: &usize| {
                Checkpoint::open_share(checkpoint.path(), Share { index: *index, of }).is_err()
            };
            assert_eq!((0..of).filter(refuses).count(), 1, "{of} processes");
        }
        flip(&file, |len| len - 1);
        // Every process compares file sizes.
        rewrite(&file, |bytes| bytes.push(0));
        for index in 0..2 {
            assert!(Checkpoint::open_share(checkpoint.path(), Share { index, of: 2 }).is_err());
        }
        rewrite(&file, |bytes| bytes.truncate(bytes.len() - 1));
    }
}
