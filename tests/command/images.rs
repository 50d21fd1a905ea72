//! Tests of training and evaluating an image model, and of invalid images.

use std::path::Path;
use std::process::Output;

use super::{plimsoll, text};

const CONFIG: &str = r#"
[model]
kind = "resnet"
depth = 18
width = 0.0625
stem = "small"
classes = 10
image_size = 32
[data]
kind = "images"
paths = ["cifar"]
[train]
steps = 2
micro_batch_size = 4
global_batch_size = 4
validation_micro_batches = 3
validate_every = 2
[optim]
kind = "sgd"
learning_rate = 0.05
warmup_steps = 0
[checkpoint]
every = 2
"#;

/// Writes images in CIFAR-10's format. Images with indices in `invalid` get a class that does not exist.
fn write(path: &Path, images: usize, invalid: &[usize]) {
    let record = |image: usize| {
        let class = if invalid.contains(&image) { 77 } else { image % 10 };
        let pixel = move |at: usize| (class * 20 + at * (image + 3) % 50) as u8;
        [class as u8].into_iter().chain((0..3072).map(pixel))
    };
    std::fs::write(path, (0..images).flat_map(record).collect::<Vec<u8>>()).unwrap();
}

fn ran(directory: &Path, arguments: &[&str]) -> Output {
    plimsoll(directory).args(arguments).output().unwrap()
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn images_are_trained_on_and_evaluated_and_invalid_ones_refused_or_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let folder = base.join("cifar");
    std::fs::create_dir(&folder).unwrap();
    // Two steps of four samples see all eight training images.
    write(&folder.join("data_batch_1.bin"), 8, &[2]);
    write(&folder.join("test_batch.bin"), 10, &[]);
    std::fs::write(base.join("run.toml"), CONFIG).unwrap();
    let train = ["train", "run.toml", "--device", "cpu", "--run-dir", "run"];

    let refused = ran(base, &train);
    let message = text(&refused.stderr);
    assert!(!refused.status.success() && message.contains("data_batch_1.bin, record 2"), "{message}");
    std::fs::remove_dir_all(base.join("run")).unwrap();

    let skipping = ran(base, &[&train[..], &["--skip-invalid"]].concat());
    succeeded(&skipping);
    let log = std::fs::read_to_string(base.join("run/config.toml")).unwrap();
    assert!(log.contains("skip_invalid = true"), "{log}");
    let message = text(&skipping.stderr);
    assert!(message.contains("record 2") && message.contains("skipped, 1 so far"), "{message}");
    let summary: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(base.join("run/summary.json")).unwrap()).unwrap();

    // All ten held-out images, on any grid.
    for grid in ["parallel.data=1", "parallel.pipeline=2"] {
        let eval = ["eval", "run", "--device", "cpu", "--json", "--set", grid];
        let evaluation: serde_json::Value = serde_json::from_str(&succeeded(&ran(base, &eval))).unwrap();
        assert_eq!(evaluation["tokens"], 10);
        let loss = evaluation["loss"].as_f64().unwrap();
        assert!((loss - summary["validation_loss"].as_f64().unwrap()).abs() < 1e-9, "{evaluation} {summary}");
        assert_eq!(evaluation["top_1"], summary["validation_top_1"]);
    }
    let shown = succeeded(&ran(base, &["eval", "run", "--device", "cpu"]));
    assert!(shown.starts_with("10 images, loss ") && shown.contains("top-5"), "{shown}");

    // Other images, in a separate folder.
    std::fs::create_dir(base.join("others")).unwrap();
    write(&base.join("others/data_batch_1.bin"), 6, &[1]);
    let eval = ["eval", "run", "--device", "cpu", "--data", "others/data_batch_1.bin"];
    let strict = ran(base, &[&eval[..], &["--set", "data.skip_invalid=false"]].concat());
    assert!(!strict.status.success(), "{}", text(&strict.stdout));
    assert!(text(&strict.stderr).contains("others/data_batch_1.bin, record 1"), "{}", text(&strict.stderr));
    let shown = succeeded(&ran(base, &[&eval[..], &["--skip-invalid"]].concat()));
    assert!(shown.starts_with("6 images"), "{shown}");

    // A model folder has no data.
    succeeded(&ran(base, &["export", "run", "-o", "folder"]));
    let refused = ran(base, &["eval", "folder", "--device", "cpu"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stdout));
    assert!(text(&refused.stderr).contains("folder: it has no data of its own: --data FILE"));
    let eval = [&["eval", "folder"][..], &eval[2..]].concat();
    let strict = ran(base, &eval);
    assert!(text(&strict.stderr).contains("others/data_batch_1.bin, record 1"), "{}", text(&strict.stderr));
    assert_eq!(succeeded(&ran(base, &[&eval[..], &["--skip-invalid"]].concat())), shown);

    // The flag does not apply to text.
    let tokens = ran(base, &["train", "--device", "cpu", "--skip-invalid"]);
    assert_eq!(tokens.status.code(), Some(2));
    assert!(
        text(&tokens.stderr).contains("data.skip_invalid belongs to data.kind"),
        "{}",
        text(&tokens.stderr)
    );
}
