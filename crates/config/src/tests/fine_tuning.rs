//! Tests of defaults that depend on the kind of run, its device and its data.

use super::*;
use crate::SampleLengths;
use device::{DType, Description, Kind};

/// Returns a model folder with a byte tokenizer.
fn folder() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/llama")
}

/// Builds a configuration that fine-tunes on data of `kind`.
fn tuned(kind: &str, keys: &str) -> RunConfig {
    let text =
        format!("[model]\nfrom = {:?}\n[data]\nkind = \"{kind}\"\npaths = [\"a.jsonl\"]\n{keys}", folder());
    parse(&text, &[]).unwrap()
}

fn gpu(compute_capability: (u32, u32)) -> Description {
    Description { kind: Kind::Cuda, compute_capability, ..Description::host() }
}

#[test]
fn fine_tuning_has_the_defaults_of_recipes() {
    const LORA: &str = "[lora]\nrank = 4\n";
    for (kind, keys, rate, epochs) in [
        ("chat", "", 2e-5, 3.0),
        ("chat", LORA, 2e-4, 3.0),
        ("preference", "", 1e-6, 1.0),
        ("preference", LORA, 5e-6, 1.0),
        ("text", LORA, 2e-4, 0.0),
        ("chat", "[train]\nsteps = 7\n", 2e-5, 0.0),
        ("chat", "[train]\nepochs = 5\n[optim]\nlearning_rate = 1e-4\n", 1e-4, 5.0),
    ] {
        let config = tuned(kind, keys);
        assert_eq!((config.optim.learning_rate, config.train.epochs), (rate, epochs), "{kind} {keys}");
        assert_eq!((config.optim.warmup_ratio, config.optim.min_learning_rate), (0.03, 0.0), "{kind}");
        assert_eq!((config.optim.weight_decay, config.optim.beta2), (0.0, 0.999), "{kind}");
        assert_eq!((config.train.micro_batch_size, config.train.global_batch_size), (2, 8), "{kind}");
        let note = config.default_notes().join("\n");
        let is_default = !keys.contains("learning_rate");
        assert_eq!(note.contains("optim.learning_rate = "), is_default, "{note}");
        assert_eq!(parse(&config.to_toml(), &[]).unwrap(), config, "{kind} {keys}");
    }
    for (keys, sizes) in [
        ("[train]\nglobal_batch_size = 6\n", (2, 6)),
        ("[train]\nglobal_batch_size = 5\n", (1, 5)),
        ("[train]\nmicro_batch_size = 3\n", (3, 9)),
        ("[train]\nmicro_batch_size = 16\n", (16, 16)),
    ] {
        let train = tuned("chat", keys).train;
        assert_eq!((train.micro_batch_size, train.global_batch_size), sizes, "{keys}");
    }
    // Sizes alone, or nothing of a folder.
    let sizes = format!("[model]\nfrom = {:?}\nfrom_config = true\n{LEAST}", folder());
    for text in [sizes.as_str(), LEAST] {
        let config = parse(text, &[]).unwrap();
        assert_eq!((config.optim.learning_rate, config.optim.weight_decay), (1e-3, 0.1));
        assert_eq!((config.train.micro_batch_size, config.train.global_batch_size), (8, 32));
        assert!(!config.default_notes().iter().any(|note| note.contains("fine-tuning")));
    }
}

#[test]
fn a_ratio_of_the_steps_decides_those_of_warm_up() {
    let text = |optim: &str, train: &str| format!("{LEAST}[train]\n{train}\n[optim]\n{optim}\n");
    for (optim, sets, steps) in [
        ("", &[][..], 20),
        ("warmup_ratio = 0.1", &[], 5),
        ("warmup_ratio = 0.01", &[], 1),
        ("warmup_steps = 7", &["optim.warmup_ratio=0.1"], 5),
        ("warmup_ratio = 0.1", &["optim.warmup_steps=7"], 7),
        ("warmup_ratio = 0\nwarmup_steps = 7", &[], 7),
    ] {
        let config = parse(&text(optim, "steps = 50"), sets).unwrap();
        assert_eq!(config.optim.warmup_steps, steps, "{optim} {sets:?}");
        assert_eq!(parse(&config.to_toml(), &[]).unwrap().optim.warmup_steps, steps, "{optim} {sets:?}");
    }
    let of_epochs = parse(&text("warmup_ratio = 0.1", "epochs = 1"), &[]).unwrap().with_epoch_of(32 * 70);
    assert_eq!((of_epochs.train.steps, of_epochs.optim.warmup_steps), (70, 7));
    let both = refusal(&text("warmup_ratio = 0.1\nwarmup_steps = 7", ""), &[]);
    assert!(both.contains("write one"), "{both}");
}

#[test]
fn a_run_without_a_grid_sums_in_one_lane() {
    for (sets, lanes, is_noted) in [
        (&[][..], 1, true),
        (&["parallel.lanes=4"], 4, false),
        (&["parallel.lanes=1"], 1, false),
        (&["parallel.data=1"], 4, false),
        (&["parallel.tensor=1"], 4, false),
        (&["parallel.data=2"], 4, false),
        (&["parallel.pipeline=2"], 4, false),
        (&["parallel.data=2", "parallel.lanes=2"], 2, false),
        (&["train.global_batch_size=8"], 1, false),
    ] {
        let config = parse(LEAST, sets).unwrap();
        assert_eq!(config.parallel.lanes, lanes, "{sets:?}");
        let note = config.default_notes().join("\n");
        assert_eq!(note.contains("; 4 has the same bits on up to 4 data-parallel ranks"), is_noted, "{note}");
        assert_eq!(config.with(&[]).unwrap(), config);
    }
}

#[test]
fn a_gpu_computes_in_bf16_unless_a_type_is_written() {
    let compute = |text: &str, sets: &[&str], device: &Description| {
        let config = parse(text, sets).unwrap().on_device(device);
        // The same device again changes nothing.
        assert_eq!(config.clone().on_device(device), config);
        config.precision.compute
    };
    for (sets, device, expected) in [
        (&[][..], gpu((9, 0)), DType::Bf16),
        (&[], gpu((8, 0)), DType::Bf16),
        (&[], gpu((7, 5)), DType::F32),
        (&[], Description::host(), DType::F32),
        (&["precision.compute=f32"], gpu((9, 0)), DType::F32),
        (&["precision.compute=f16"], gpu((9, 0)), DType::F16),
    ] {
        assert_eq!(compute(LEAST, sets, &device), expected, "{sets:?} {:?}", device.compute_capability);
    }
    let f32 = parse(LEAST, &[]).unwrap();
    let settings = f32.clone().on_device(&gpu((9, 0)));
    assert_eq!(settings, f32.with(&["precision.compute=bf16".to_owned()]).unwrap());
}

#[test]
fn the_longest_sample_decides_the_sequences() {
    let long = "context = 4096\n";
    for (kind, keys, longest, context) in [
        ("chat", "", 57, Some(64)),
        ("preference", "", 57, Some(64)),
        ("chat", "", 64, Some(64)),
        // The folder's model is made for 512 positions.
        ("chat", "", 900, Some(512)),
        ("text", "", 57, None),
        ("chat", long, 57, None),
    ] {
        let model = format!("[model]\nfrom = {:?}\n{keys}", folder());
        let text = format!("{model}[data]\nkind = \"{kind}\"\npaths = [\"a.jsonl\"]\n");
        let config = parse(&text, &[]).unwrap();
        assert_eq!(config.is_sized_by_data(), context.is_some(), "{kind} {keys}");
        let Some(context) = context else { continue };
        let lengths = SampleLengths { samples: 1200, longest };
        let (sized, choice) = config.sized_by(lengths);
        assert_eq!((sized.model.examples().units(), sized.longest_text()), (context, 512));
        let noun = if kind == "chat" { "conversations" } else { "answers" };
        let words = format!("model.context = {context}: the longest of 1,200 {noun} has {longest} tokens");
        let choice = choice.unwrap().to_string();
        assert!(choice.starts_with(&words), "{choice}");
        assert_eq!(choice.contains("is cut"), longest > context, "{choice}");
        assert_eq!(sized.clone().sized_by(lengths).0, sized, "once more");
        assert!(!parse(&sized.to_toml(), &[]).unwrap().is_sized_by_data(), "a run keeps its sequences");
    }
    // Without a folder the model takes on the length, up to a limit.
    let text = "[data]\nkind = \"chat\"\npaths = [\"a.jsonl\"]\n";
    for (longest, context) in [(57, 64), (1900, 1920), (5000, 2048)] {
        let (sized, _) = parse(text, &[]).unwrap().sized_by(SampleLengths { samples: 2, longest });
        assert_eq!(sized.model.examples().units(), context);
    }
}

#[test]
fn a_run_that_goes_on_keeps_the_defaults_that_grid_device_and_data_decided() {
    let text = "[data]\nkind = \"chat\"\npaths = [\"a.jsonl\"]\n";
    let first = parse(text, &["parallel.data=2"]).unwrap().on_device(&gpu((9, 0)));
    let (first, _) = first.sized_by(SampleLengths { samples: 9, longest: 200 });
    let facts = |config: &RunConfig| {
        (config.parallel.lanes, config.precision.compute, config.model.examples().units())
    };
    assert_eq!(facts(&first), (4, DType::Bf16, 256));
    let earlier = parse(&first.to_toml(), &[]).unwrap();
    for (sets, expected) in [
        (&["parallel.data=1"][..], (4, DType::Bf16, 256)),
        (&["parallel.data=4"], (4, DType::Bf16, 256)),
        (&["parallel.lanes=2", "parallel.data=2"], (2, DType::Bf16, 256)),
        (&["precision.compute=f32", "model.context=64"], (4, DType::F32, 64)),
    ] {
        let config = parse(text, sets).unwrap().on_device(&Description::host());
        assert_eq!(facts(&config.continuing(&earlier)), expected, "{sets:?}");
    }
}
