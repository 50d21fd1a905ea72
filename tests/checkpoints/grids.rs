//! Tests of runs that resume on grids of other sizes.

use super::*;

#[test]
fn runs_stopped_after_any_step_continue_on_other_grids() {
    let table: [(&str, &[&str]); 23] = [
        (GPT, &TOKENS),
        (GPT, &PACKED),
        (GPT, &MIXTURE),
        (GPT, &SEQUENTIAL_MIXTURE),
        (CHAT, &[]),
        (GPT, &[]),
        (GPT, &["lora.rank=2", "lora.dropout=0.1"]),
        (GPT, &["lora.rank=2", "lora.base=nf4"]),
        (MLP, &[]),
        (GPT, &["train.freeze=['wpe.*', 'h.0.*']"]),
        (GPT, &["optim.kind=sgd", "optim.momentum=0"]),
        (GPT, &["optim.kind=lion", "optim.state=bf16"]),
        (GPT, &["optim.kind=muon", "optim.state=8bit"]),
        (MLP, &["optim.kind=adamw", "parallel.lanes=8"]),
        (GPT, &["precision.compute=bf16", "model.width=64"]),
        (GPT, &["optim.state=bf16"]),
        (GPT, &["optim.state=8bit"]),
        (GPT, &["precision.compute=bf16", "precision.weights=f32", "model.width=64"]),
        (GPT, &["precision.compute=f16", "model.width=64", "precision.scaler.init_scale=3e7"]),
        (RESNET, &[]),
        (GPT, &["precision.matmul=fp8"]),
        (GPT, &["train.ema=0.9", "train.ema_start=2", "train.validate_ema=true"]),
        (GPT, &["precision.compute=bf16", "model.width=64", "train.ema=0.9", "train.ema_every=2"]),
    ];
    for (row, (text, overrides)) in table.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let whole = directory.path().join("whole");
        let parts = directory.path().join("parts");
        let all =
            |more: &[&'static str]| [overrides, &["checkpoint.every=1000", "train.steps=4"], more].concat();
        let reference = full(&whole, text, &all(&[]));
        for (step, grid) in ["parallel.data=1", "parallel.data=2", "parallel.data=4"].into_iter().enumerate()
        {
            // State is saved and read in the same way, wherever it is stored.
            let codes = ["precision.matmul=fp8", "lora.base=nf4"];
            let streams = !codes.iter().any(|set| overrides.contains(set));
            let weights = ["optim.offload=false", "memory.offload_weights=true"][usize::from(streams)];
            let offload = ["optim.offload=false", "optim.offload=true", weights][step];
            let report = one_step(&parts, text, &all(&[grid, offload]));
            assert!(report.interrupted);
            assert_eq!(report.summary.steps, step as u64 + 1);
            assert_eq!(steps(&parts).last(), Some(&(step as u64 + 1)), "{overrides:?}");
        }
        let report = resume(&parts, text, &all(&["parallel.data=2"])).unwrap();
        assert!(!report.interrupted);
        assert!(report.unplanned.as_ref().is_some_and(Vec::is_empty), "the plan is the rest of the run too");
        assert_eq!(bits(&report), bits(&reference), "{overrides:?}");
        assert_eq!(report.summary.more["resumed_after_step"], 3);
        assert_eq!(metrics(&parts), metrics(&whole));
        // Momentum and moments are bit-identical too.
        assert!(arrays(&parts) == arrays(&whole), "{overrides:?}");
        // Resuming a finished run changes nothing, with any configuration.
        if row % 5 > 0 && !sizes::are_wanted() {
            continue;
        }
        let before = contents(&parts);
        assert_eq!(bits(&resume(&parts, text, &all(&[])).unwrap()), bits(&reference));
        assert!(contents(&parts) == before, "{overrides:?}");
    }
}

/// Checks that each number of ranks continues another's run: in a chain, or with `PLIMSOLL_LONG_TESTS` for
/// every pair.
#[test]
fn any_number_of_ranks_resumes_the_run_of_another() {
    const SHARDED: &str = "parallel.zero_stage=1";
    const ZERO_2: &str = "parallel.zero_stage=2";
    const ZERO_3: &str = "parallel.zero_stage=3";
    const PIPELINE: &str = "parallel.pipeline=2";
    let is_long = sizes::are_wanted();
    let table: [(&[&str], &[&[&str]]); 3] = [
        (
            &["parallel.lanes=8", "train.global_batch_size=16", "model.dropout=0.1"],
            &[
                &["parallel.data=3", SHARDED],
                &["parallel.data=6", ZERO_3, "parallel.shard=3"],
                &["parallel.data=7"],
                &["parallel.data=7", ZERO_2],
                &["parallel.data=5", SHARDED],
                &["parallel.data=4", ZERO_3, PIPELINE],
                &[PIPELINE],
            ],
        ),
        (
            &["parallel.lanes=12", "train.global_batch_size=24", "model.dropout=0.1"],
            &[
                &["parallel.data=6"],
                &["parallel.data=5", ZERO_3],
                &["parallel.data=4", SHARDED],
                &["parallel.data=6", ZERO_2, "parallel.shard=2"],
                &["parallel.data=3", PIPELINE],
            ],
        ),
        (
            &["parallel.lanes=35", "train.global_batch_size=70", "precision.compute=bf16"],
            &[
                &["parallel.data=5", SHARDED],
                &["parallel.data=3", ZERO_3],
                &["parallel.data=1"],
                &["parallel.data=7", SHARDED],
            ],
        ),
    ];
    for (common, grids) in table {
        let directory = tempfile::tempdir().unwrap();
        let steps = format!("train.steps={}", grids.len() + 1);
        let kept = ["checkpoint.every=1000", "model.width=64", &steps];
        let all = |more: &[&'static str]| [common, &kept, more].concat();
        let reference = bits(&full(&directory.path().join("whole"), GPT, &all(&[])));
        let chain = directory.path().join("chain");
        for grid in grids {
            assert!(one_step(&chain, GPT, &all(grid)).interrupted);
        }
        assert_eq!(bits(&resume(&chain, GPT, &all(grids[0])).unwrap()), reference, "{common:?}");
        for (number, first) in grids.iter().enumerate().filter(|_| is_long) {
            let begun = directory.path().join(format!("begun-{number}"));
            assert!(one_step(&begun, GPT, &all(first)).interrupted);
            for (other, then) in grids.iter().enumerate() {
                let resumed = directory.path().join(format!("resumed-{number}-{other}"));
                copy(&begun, &resumed);
                assert_eq!(
                    bits(&resume(&resumed, GPT, &all(then)).unwrap()),
                    reference,
                    "{first:?} {then:?}"
                );
            }
        }
    }
}
