//! Tests of converting other trainers' files.

use std::path::Path;

use recipes::{Conversion, Directories, Outcome, Program, convert};
use tempfile::TempDir;

use crate::{assert_settings, directory, root};

/// Returns a directory with the files that the examples refer to.
fn scene() -> TempDir {
    let directory = directory();
    std::fs::write(directory.path().join("data/more.jsonl"), "").unwrap();
    let list = r#"{"identity": {"file_name": "identity.json"},
        "alpaca_demo": {"hf_hub_url": "llamafactory/alpaca_en"},
        "pairs": {"file_name": "pairs.jsonl", "ranking": true}}"#;
    std::fs::write(directory.path().join("data/dataset_info.json"), list).unwrap();
    directory
}

fn converted(directory: &Path, text: &str, name: &str) -> Conversion {
    convert(text, name, None, &Directories::new(directory, Some(Path::new("runs/new.toml")))).unwrap()
}

#[test]
fn realistic_files_are_converted_and_the_rest_is_named() {
    let directory = scene();
    let cases: [(&str, Program, &[&str], &[&str]); 5] = [
        (
            "axolotl-lora.yaml",
            Program::Axolotl,
            &[
                "model.from = \"../models/llama\"",
                "model.context = 256",
                "lora.rank = 32",
                "lora.alpha = 16.0",
                "lora.dropout = 0.05",
                "lora.targets = \"all-linear\"",
                "data.kind = \"chat\"",
                "data.paths = [\"../data/chat.jsonl\", \"../data/more.jsonl\"]",
                "data.validation_fraction = 0.1",
                "data.pack_documents = true",
                "data.document_mask = true",
                "train.micro_batch_size = 2",
                "train.global_batch_size = 8",
                "train.epochs = 4.0",
                "train.neftune_alpha = 5.0",
                "optim.kind = \"adamw\"",
                "optim.state = \"8bit\"",
                "optim.schedule = \"cosine\"",
                "optim.min_learning_rate = 0.0",
                "optim.learning_rate = 2e-4",
                "optim.weight_decay = 0.0",
                "optim.beta2 = 0.999",
                "precision.compute = \"bf16\"",
                "memory.recompute = \"block\"",
                "telemetry.every = 1",
            ],
            &["wandb_project", "evals_per_epoch", "saves_per_epoch", "lora_mlp_kernel"],
        ),
        (
            "trl-dpo.yaml",
            Program::Trl,
            &[
                "data.kind = \"preference\"",
                "data.paths = [\"../data/pairs.jsonl\"]",
                "preference.loss = \"dpo\"",
                "preference.beta = 0.2",
                "lora.rank = 8",
                "lora.alpha = 32.0",
                "lora.targets = [\"q_proj\", \"v_proj\"]",
                "lora.base = \"nf4\"",
                "train.steps = 200",
                "train.global_batch_size = 16",
                "train.validate_every = 50",
                "train.seed = 7",
                "optim.warmup_ratio = 0.1",
                "optim.clip_norm = 0.5",
                "optim.beta2 = 0.98",
                "parallel.zero_stage = 2",
                "checkpoint.every = 50",
                "telemetry.every = 5",
                "telemetry.tensorboard = true",
            ],
            &["padding_value", "use_logits_to_keep"],
        ),
        (
            "llama-factory-qlora.yaml",
            Program::LlamaFactory,
            &[
                "lora.rank = 8",
                "lora.alpha = 16.0",
                "lora.targets = \"all-linear\"",
                "lora.base = \"nf4\"",
                "data.kind = \"chat\"",
                "data.paths = [\"../data/identity.json\", \"../alpaca_en/**/*.parquet\"]",
                "model.context = 300",
                "train.epochs = 2.0",
                "optim.warmup_ratio = 0.1",
                "parallel.timeout_seconds = 180000000",
                "checkpoint.every = 500",
            ],
            &["template", "max_samples", "plot_loss", "eval_strategy"],
        ),
        (
            "llama-factory-dpo.yaml",
            Program::LlamaFactory,
            &[
                "lora.rank = ",
                "data.kind = \"preference\"",
                "data.paths = [\"../data/pairs.jsonl\"]",
                "preference.loss = \"ipo\"",
                "preference.beta = 0.3",
                "optim.schedule = \"linear\"",
                "optim.warmup_steps = 12",
                "parallel.zero_stage = 3",
                "memory.recompute = ",
            ],
            &["template", "pref_ftx"],
        ),
        (
            "trainer.json",
            Program::Trl,
            &[
                "train.global_batch_size = 8",
                "train.epochs = 1.0",
                "optim.kind = ",
                "parallel.zero_stage = 3",
            ],
            &["optim"],
        ),
    ];
    for (name, program, settings, named) in cases {
        let text = std::fs::read_to_string(root().join("crates/recipes/tests/files").join(name)).unwrap();
        let conversion = converted(directory.path(), &text, name);
        assert_eq!(conversion.program, program, "{name}");
        assert!(!conversion.recognised_by.is_empty());
        assert_settings(&conversion.document, name, settings);
        let without: Vec<_> = conversion.without_equivalent().map(|finding| finding.key.as_str()).collect();
        assert_eq!(without, named, "{name}");
        // A trainer's arguments alone name neither model nor data.
        let error = conversion.error.map(|error| error.to_string());
        assert_eq!(error.is_some(), name == "trainer.json", "{name}: {error:?}");
    }
}

#[test]
fn values_are_translated() {
    const AXOLOTL: &str =
        "base_model: models/llama\ndatasets: [{path: data/chat.jsonl, type: chat_template}]\n";
    const TRL: &str = "model_name_or_path: models/llama\ndataset_name: data/chat.jsonl\n";
    let cases: [(&str, &str, &str); 25] = [
        (AXOLOTL, "adapter: qlora\nlora_r: 4", "lora.base = \"nf4\""),
        (AXOLOTL, "lora_r: 4", "lora.rank = "),
        (AXOLOTL, "learning_rate: '1e-4'", "optim.learning_rate = 1e-4"),
        (AXOLOTL, "max_steps: 70\nwarmup_ratio: 0.1\nnum_epochs: 3", "optim.warmup_ratio = 0.1"),
        (AXOLOTL, "max_steps: 70\nnum_epochs: 3", "train.epochs = "),
        (AXOLOTL, "lr_scheduler: constant_with_warmup", "optim.schedule = \"constant\""),
        (AXOLOTL, "learning_rate: 1e-3\ncosine_min_lr_ratio: 0.1", "optim.min_learning_rate = 1e-4"),
        (AXOLOTL, "optimizer: lion_8bit", "optim.state = \"8bit\""),
        (AXOLOTL, "fp16: true", "precision.compute = \"f16\""),
        (AXOLOTL, "tf32: true", "precision.tf32 = true"),
        (AXOLOTL, "deepspeed: configs/zero3_bf16_cpuoffload.json", "optim.offload = true"),
        (AXOLOTL, "fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}", "parallel.zero_stage = 2"),
        (AXOLOTL, "val_set_size: 500", "data.validation_fraction = "),
        (AXOLOTL, "base: &b {x: 1}\nother: *b\nseed: 3", "train.seed = 3"),
        (AXOLOTL, "train_on_inputs: true", "data.train_on = \"all\""),
        (AXOLOTL, "peft_use_rslora: true\nadapter: lora\nlora_r: 4", "lora.scaling = \"rslora\""),
        (AXOLOTL, "seed: 3", "data.pack_documents = false"),
        (TRL, "packing: true", "data.document_mask = true"),
        (TRL, "seed: 3", "data.train_on = \"all\""),
        (TRL, "assistant_only_loss: true", "data.train_on = "),
        (TRL, "use_peft: true\nlora_modules_to_save: [embed_tokens]", "lora.train_also = [\"embed_tokens\"]"),
        (TRL, "packing: true\nseed: 3", "data.pack_documents = true"),
        (TRL, "use_peft: true", "lora.rank = 16"),
        (TRL, "deepspeed: {zero_optimization: {stage: 1}}", "parallel.zero_stage = 1"),
        (TRL, "warmup_steps: 5\nlr_scheduler_type: polynomial", "optim.warmup_steps = 5"),
    ];
    let directory = scene();
    for (base, more, setting) in cases {
        let conversion = converted(directory.path(), &format!("{base}{more}\n"), "file.yaml");
        assert_settings(&conversion.document, more, &[setting]);
        assert!(conversion.error.is_none(), "{more}: {:?}", conversion.error);
    }
}

#[test]
fn every_key_that_is_on_has_a_finding() {
    let text = "base_model: keel/Keel-1B\nsequence_len: 128\nkeel: 1\nhull: false\nmast: null\nsail: []\n";
    let directory = scene();
    let conversion = converted(directory.path(), text, "file.yaml");
    let keys: Vec<_> = conversion.findings.iter().map(|finding| finding.key.as_str()).collect();
    assert_eq!(keys, ["base_model", "sequence_len", "keel"]);
    let unknown = Outcome::NoEquivalent("it is not known here".to_owned());
    assert_eq!(conversion.findings[2].outcome, unknown);
    // A model that does not exist here gets the name that downloading it creates.
    assert_settings(&conversion.document, "model", &["model.from = \"../Keel-1B\""]);
    assert!(conversion.notes[0].contains("hf download keel/Keel-1B"), "{:?}", conversion.notes);
}

#[test]
fn files_of_no_program_are_refused_in_a_sentence() {
    let cases = [
        ("keel: 1", "its keys are those of no program"),
        ("- keel", "it has no arguments"),
        ("", "it has no arguments"),
        ("{\"lr\": ", "it is neither YAML nor JSON"),
        ("a: [", "it is neither YAML nor JSON"),
        ("stage: sft\nstage: dpo", "the key stage is there twice"),
        ("a: 1\n---\nb: 1", "several documents"),
    ];
    let directories = Directories::new(Path::new("/"), None);
    for (text, part) in cases {
        let refused = convert(text, "file.yaml", None, &directories).unwrap_err();
        assert!(refused.to_string().contains(part), "{text}: {refused}");
        assert_eq!(refused.exit_status(), 2);
    }
    // Aliases that double repeatedly, and nested lists.
    let lines =
        (1..40).map(|at| format!("k{at}: [*a{0}, *a{0}]\n", at - 1).replace(": ", &format!(": &a{at} ")));
    let bomb = format!("k0: &a0 [1, 1]\n{}", lines.collect::<String>());
    for (text, part) in [(bomb, "more than 100000 values"), ("[".repeat(200), "more than 64 levels")] {
        let refused = convert(&text, "file.yaml", None, &directories).unwrap_err();
        assert!(refused.to_string().contains(part), "{refused}");
    }
}
