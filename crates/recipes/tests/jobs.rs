//! Tests of configurations for each job, from small folders and files.

use std::path::Path;

use config::RunConfig;
use plan::{PlanOptions, PlanTarget};
use recipes::{Directories, Draft, JobOptions, RecipeError, Result, classify, finetune, fit, pretrain};

use crate::{assert_settings, directory};

/// Returns the options of a job whose configuration is written to `file` in `directory`.
fn options(directory: &Path, file: &str, data: &[&str], on_gpu: bool) -> JobOptions {
    JobOptions {
        data: data.iter().map(|path| (*path).to_owned()).collect(),
        tokenizer: None,
        chat_template: None,
        half: on_gpu.then_some("bf16"),
        directories: Directories::new(directory, Some(Path::new(file))),
    }
}

fn plan_options(device: &str, capacity: Option<u64>) -> PlanOptions {
    PlanOptions { target: PlanTarget::from_argument(device).unwrap(), capacity }
}

/// A function that creates a draft.
type Make = fn(&JobOptions) -> Result<Draft>;

#[test]
fn each_job_has_a_configuration() {
    let directory = directory();
    let path = directory.path();
    std::fs::write(path.join("data/a.txt"), "a text of some words\n".repeat(1000)).unwrap();
    std::fs::write(path.join("data/b.bin"), [1_u8, 0].repeat(100_000)).unwrap();
    let with_template =
        |options: &JobOptions| JobOptions { chat_template: Some("template.jinja".into()), ..options.clone() };
    let chat = move |options: &JobOptions| finetune("models/llama", false, &with_template(options));
    let full = move |options: &JobOptions| finetune("models/gpt2", true, &with_template(options));
    let plain: Make = |options| finetune("models/qwen2", false, options);
    type AnyMake<'a> = &'a dyn Fn(&JobOptions) -> Result<Draft>;
    let cases: [(&str, AnyMake<'_>, &[&str]); 6] = [
        (
            "data/chat.jsonl",
            &chat,
            &[
                "model.from = \"../models/llama\"",
                "model.context = ",
                "lora.rank = 16",
                "data.kind = \"chat\"",
                "data.paths = [\"../data/chat.jsonl\"]",
                "data.pack_documents = ",
                "data.chat_template = \"../template.jinja\"",
                "train.global_batch_size = 8",
                "train.micro_batch_size = 2",
                "train.epochs = 3.0",
                "optim.learning_rate = 2e-4",
                "optim.warmup_ratio = 0.03",
                "precision.compute = ",
            ],
        ),
        (
            "data/chat.jsonl",
            &full,
            &["lora.rank = ", "optim.learning_rate = 2e-5", "optim.warmup_ratio = 0.03", "model.context = "],
        ),
        (
            "data/pairs.jsonl",
            &chat,
            &[
                "data.kind = \"preference\"",
                "data.pack_documents = ",
                "preference.loss = \"dpo\"",
                "optim.learning_rate = 5e-6",
            ],
        ),
        ("data/a.txt", &plain, &["data.kind = \"text\"", "lora.rank = 16", "model.context = 128"]),
        (
            "data/a.txt",
            &pretrain,
            &[
                "data.kind = \"text\"",
                "data.tokenizer = \"bytes\"",
                "model.width = 128",
                "model.context = 128",
            ],
        ),
        (
            "data/*.bin",
            &pretrain,
            &["data.kind = \"tokens\"", "data.tokenizer = \"gpt2\"", "data.paths = [\"../data/*.bin\"]"],
        ),
    ];
    for (data, make, settings) in cases {
        let options = options(path, "runs/new.toml", &[data], false);
        let draft = make(&options).unwrap();
        assert_settings(&draft.document, data, settings);
        let directory = options.directories.of_configuration();
        let text = draft.document.to_toml();
        RunConfig::parse(&text, "new.toml", directory, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert!(text.lines().filter(|line| line.contains(" = ")).count() > 8, "{text}");
    }
}

#[test]
fn a_gpu_computes_in_half_precision() {
    let directory = directory();
    std::fs::write(directory.path().join("a.txt"), "a text of some words\n".repeat(1000)).unwrap();
    let draft = pretrain(&options(directory.path(), "new.toml", &["a.txt"], true)).unwrap();
    assert_settings(
        &draft.document,
        "pretrain",
        &["precision.compute = \"bf16\"", "data.paths = [\"a.txt\"]"],
    );
}

#[test]
fn images_have_the_model_of_their_size() {
    let directory = directory();
    let path = directory.path();
    for class in ["cat", "dog"] {
        std::fs::create_dir_all(path.join("photos/train").join(class)).unwrap();
        // The header of a PNG file of 640 × 480 pixels.
        let sizes = [640_u32.to_be_bytes(), 480_u32.to_be_bytes()].concat();
        let header = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", sizes.as_slice()].concat();
        std::fs::write(path.join("photos/train").join(class).join("1.png"), header).unwrap();
    }
    std::fs::create_dir(path.join("cifar")).unwrap();
    std::fs::write(path.join("cifar/data_batch_1.bin"), vec![0; 3073]).unwrap();
    let cases: [(&str, &[&str]); 2] = [
        (
            "photos",
            &["model.depth = 50", "model.classes = 2", "model.image_size = 224", "model.stem = \"imagenet\""],
        ),
        (
            "cifar",
            &["model.depth = 18", "model.classes = 10", "model.image_size = 32", "model.stem = \"small\""],
        ),
    ];
    for (data, settings) in cases {
        let draft = classify(&options(path, "new.toml", &[data], false)).unwrap();
        assert_settings(&draft.document, data, settings);
    }
}

#[test]
fn less_memory_changes_settings_in_order() {
    let directory = directory();
    let data = ["data/chat.jsonl"];
    let options = options(directory.path(), "new.toml", &data, true);
    let options = JobOptions { chat_template: Some("template.jinja".into()), ..options };
    let mut draft = finetune("models/llama", false, &options).unwrap();
    for (key, size) in
        [("model.context", 512_usize), ("train.micro_batch_size", 8), ("train.global_batch_size", 8)]
    {
        draft.document.set(key, size, "large");
    }
    let fit_in = |capacity| {
        let device = plan_options("h200", capacity);
        let mut tried = Vec::new();
        let fitted = fit(&draft, options.directories.of_configuration(), &device, &mut |change| {
            tried.push(change.to_owned());
        });
        (fitted, tried)
    };
    let (whole, tried) = fit_in(None);
    let whole = whole.unwrap();
    assert_eq!((whole.changes.as_slice(), tried.len()), ([].as_slice(), 0));
    assert!(whole.report.epochs.is_some() && whole.report.time.is_some());
    let taken: u64 = whole.report.fit.overhead.iter().map(|part| part.bytes).sum();

    // One byte less than it needs.
    let (smaller, tried) = fit_in(Some(taken + whole.report.fit.needs - 1));
    let smaller = smaller.unwrap();
    assert_eq!(tried[0], "train.micro_batch_size = 4");
    assert_eq!(smaller.changes.len(), 1, "{:?}", smaller.changes);
    assert!(smaller.document.to_toml().contains("as many as fit in one pass"));

    let (refused, tried) = fit_in(Some(taken + (1 << 20)));
    assert_eq!(
        tried,
        [
            "train.micro_batch_size = 4",
            "train.micro_batch_size = 2",
            "train.micro_batch_size = 1",
            "memory.recompute = \"block\"",
            "model.loss_pieces = 8",
            "lora.base = \"nf4\"",
        ]
    );
    let refused = refused.unwrap_err();
    assert_eq!(refused.exit_status(), 1);
    assert!(matches!(refused, RecipeError::TooLarge { .. }));
    let sentence = refused.to_string();
    assert!(sentence.contains("lora.base = \"nf4\"") && sentence.contains("lacks"), "{sentence}");
}

#[test]
fn wrong_models_and_data_are_refused_in_a_sentence() {
    let directory = directory();
    let path = directory.path();
    std::fs::write(path.join("data/a.txt"), "some words\n").unwrap();
    std::fs::write(path.join("texts.jsonl"), "{\"text\": \"some words\"}\n").unwrap();
    std::fs::write(path.join("other.jsonl"), "{\"keel\": 1}\n").unwrap();
    let llama = "models/llama";
    let cases: [(&str, &[&str], &str); 8] = [
        ("meta-llama/Llama-3.2-1B", &["data/a.txt"], "`hf download meta-llama/Llama-3.2-1B --local-dir"),
        ("./nowhere", &["data/a.txt"], "there is no such folder"),
        ("data/a.txt", &["data/a.txt"], "it is a file"),
        ("data", &["data/a.txt"], "config.json"),
        (llama, &["data/chat.jsonl"], "--chat-template FILE names one"),
        (llama, &["data/a.txt", "data/chat.jsonl"], "name data of one kind"),
        (llama, &["texts.jsonl"], "plimsoll tokenize --text-key"),
        (llama, &["other.jsonl"], "neither a conversation nor a pair"),
    ];
    for (model, data, part) in cases {
        let refused = finetune(model, false, &options(path, "new.toml", data, false)).unwrap_err();
        assert!(refused.to_string().contains(part), "{model} {data:?}: {refused}");
        assert_eq!(refused.exit_status(), 2, "{refused}");
    }
    let refused = pretrain(&options(path, "new.toml", &["data/chat.jsonl"], false)).unwrap_err();
    assert!(refused.to_string().contains("plimsoll new finetune"), "{refused}");
}
