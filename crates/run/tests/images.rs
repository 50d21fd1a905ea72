//! Training on images: falling loss and rising accuracy, equal bits on every grid and after a resume, plans
//! that equal runs, and evaluation.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use autograd::{Tape, Var, ops};
use config::RunConfig;
use keys::{RawValues, Row, section};
use nn::models::{GPT, MlpSizes};
use nn::{Conditions, Examples, Families, Family, Input, Model, ModelSpec, Parameters, Recompute, Stage};
use run::{RunOptions, TrainReport};
use tempfile::TempDir;
use tensor::Tensor;
use tensor::ops::Activation;
use vision::RESNET;
use worker::DeviceChoice;

section! {
    /// The sizes of two linear layers over the pixels of an image.
    #[derive(Copy, Eq)]
    pub struct PixelSizes = "model" {
        /// Width of the hidden layer.
        hidden: usize = Row::count(1, 1000).default("24");
        /// Number of classes.
        classes: usize = Row::count(1, 1000).default("10");
    }
}

impl PixelSizes {
    fn layers(&self) -> MlpSizes {
        MlpSizes { sizes: vec![32 * 32 * 3, self.hidden, self.classes], activation: Activation::Relu }
    }
}

impl ModelSpec for PixelSizes {
    fn layers(&self) -> usize {
        2
    }

    fn layers_key(&self) -> &'static str {
        Self::hidden
    }

    fn examples(&self) -> Examples {
        Examples::Images { channels: 3, size: 32, classes: self.classes }
    }

    fn check(&self, _: &RawValues, _: &Conditions) -> keys::Result<()> {
        Ok(())
    }

    fn build(
        &self,
        parameters: Parameters,
        stage: &Stage,
        recompute: Recompute,
    ) -> nn::Result<Box<dyn Model>> {
        Ok(Box::new(Perceptron(self.layers().build(parameters, stage, recompute)?)))
    }

    fn summary(&self) -> String {
        "two layers over pixels".to_owned()
    }
}

struct Perceptron(Box<dyn Model>);

impl Model for Perceptron {
    fn parameters(&self) -> &Parameters {
        self.0.parameters()
    }

    fn forward(&self, tape: &Tape, input: Input) -> nn::Result<Var> {
        let input = match input {
            Input::Batch(images) => {
                let count = images.shape().dims()[0];
                Input::Batch(images.reshape([count, images.elements() / count])?)
            }
            hidden => hidden,
        };
        self.0.forward(tape, input)
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> nn::Result<Var> {
        Ok(ops::cross_entropy(tape, prediction, targets, scale)?)
    }
}

fn families() -> &'static Families {
    static FAMILIES: LazyLock<Families> =
        LazyLock::new(|| Families::new(vec![GPT, RESNET, Family::new::<PixelSizes>("pixels")]));
    &FAMILIES
}

const IMAGES: &str = r#"
[model]
kind = "pixels"
[data]
kind = "images"
paths = ["cifar"]
mean = [0.5]
deviation = [0.25]
crop_padding = 1
[train]
steps = 40
micro_batch_size = 5
global_batch_size = 20
validation_micro_batches = 9
validate_every = 20
[optim]
kind = "sgd"
learning_rate = 0.01
weight_decay = 1e-4
decay_norms = false
warmup_steps = 0
[parallel]
lanes = 4
"#;

/// Writes files in CIFAR's format, in which images of a class share stripes under noise.
fn workplace() -> TempDir {
    let directory = TempDir::new().unwrap();
    let folder = directory.path().join("cifar");
    fs::create_dir(&folder).unwrap();
    let mut random = 1_u32;
    for (name, images) in [("data_batch_1.bin", 200), ("data_batch_2.bin", 200), ("test_batch.bin", 42)] {
        let mut bytes = Vec::new();
        for image in 0..images {
            let class = image % 10;
            bytes.push(class as u8);
            for at in 0..3072_usize {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let x = at % 32;
                let y = at / 32 % 32;
                let channel = at / 1024;
                let stripe = ((x * (class % 5) + y * (class / 5 + 1) + channel * 5) / 6 % 2) as u32;
                bytes.push((60 + 80 * stripe + (random >> 26)) as u8);
            }
        }
        fs::write(folder.join(name), bytes).unwrap();
    }
    directory
}

fn config(index: &Path, overrides: &[&str]) -> RunConfig {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    RunConfig::parse_with(families(), IMAGES, "test.toml", index, &overrides).unwrap()
}

fn train_in(run_dir: PathBuf, config: RunConfig, resume: bool) -> TrainReport {
    let device = DeviceChoice::Cpu;
    let run_dir = Some(run_dir);
    let options = RunOptions { device, run_dir, resume, quiet: true, ..RunOptions::default() };
    let report = run::train(config, options).unwrap();
    assert!(report.divergences.is_empty() && report.outlived.is_empty(), "{report}");
    assert_eq!(report.unplanned, Some(vec![]));
    report
}

fn bits(report: &TrainReport) -> (String, Vec<u32>, u64, [u64; 2]) {
    let losses = report.summary.losses.iter().map(|loss| loss.to_bits()).collect();
    let accuracy = report.validation_accuracy.unwrap().map(f64::to_bits);
    (report.summary.weights_sha256.clone(), losses, report.validation_loss.unwrap().to_bits(), accuracy)
}

#[test]
fn loss_falls_and_accuracy_rises_with_one_hash_on_every_grid_and_after_a_resume() {
    let index = workplace();
    // The last losses' share of the first, top-1 and top-5 that are reached.
    let table: [(&str, [f64; 3], &[&str]); 2] = [
        ("plain", [0.8, 0.5, 0.9], &[]),
        (
            "smooth",
            [0.97, 0.15, 0.6],
            &[
                "train.label_smoothing=0.1",
                "data.mixup=0.2",
                "data.crop=resized",
                "optim.schedule=step",
                "optim.milestones=[30]",
            ],
        ),
    ];
    for (name, [share, least_1, least_5], sets) in table {
        let run_dir = |more: &str| index.path().join(format!("runs/{name}{more}"));
        let with = |more: &[&str]| config(index.path(), &[sets, more].concat());
        let one = train_in(run_dir("1"), with(&["checkpoint.every=20"]), false);
        let losses = &one.summary.losses;
        let [top_1, top_5] = one.validation_accuracy.unwrap();
        let mean = |losses: &[f32]| losses.iter().sum::<f32>() as f64 / losses.len() as f64;
        assert!(mean(&losses[30..]) < share * mean(&losses[..5]), "{name}: {losses:?}");
        assert!(top_1 > least_1 && top_5 > least_5, "{name}: {top_1} {top_5}");
        for grid in [["parallel.data=2"], ["parallel.data=4"], ["parallel.pipeline=2"]] {
            let other = train_in(run_dir(grid[0]), with(&grid), false);
            assert_eq!(bits(&other), bits(&one), "{name} {grid:?}");
        }
        let metrics = fs::read_to_string(run_dir("1/metrics.jsonl")).unwrap();
        let values = |key: &str| -> Vec<f64> {
            let json = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
            metrics.lines().filter_map(|line| json(line)[key].as_f64()).collect()
        };
        let accuracies = values("validation_top_1");
        assert_eq!((accuracies.len(), accuracies[1]), (2, top_1), "{name}");
        assert_eq!(values("validation_top_5")[1], top_5);
        // All 42 images count, though they are no whole number of micro-batches.
        assert!((top_1 * 42.0 - (top_1 * 42.0).round()).abs() < 1e-9, "{top_1}");
        assert!(one.to_string().contains(&format!("top-1 {:.2} %", 100.0 * top_1)), "{one}");

        // The directory now looks as if the run had been killed after step 20.
        fs::remove_dir_all(run_dir("1/checkpoints/step-000040")).unwrap();
        let resumed = train_in(run_dir("1"), with(&["parallel.data=2"]), true);
        assert_eq!(bits(&resumed), bits(&one), "{name}");
    }
}

/// The CIFAR-10 recipe, narrower and shorter, lowers its loss and raises its accuracy, with one weight hash
/// on 1, 2 and 4 ranks.
#[test]
fn a_resnet_of_the_recipe_learns_alike_on_every_grid() {
    let index = workplace();
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../launch/recipes/cifar10-resnet18.toml");
    let text = fs::read_to_string(recipe).unwrap();
    let base = format!("data.base={}", index.path().display());
    let run = |more: &str| {
        let sets = [
            "data.paths=['cifar']",
            &base,
            "data.crop_padding=1",
            "model.width=0.0625",
            "train.steps=32",
            "train.micro_batch_size=10",
            "train.global_batch_size=40",
            "train.validate_every=16",
            "train.validation_micro_batches=5",
            "optim.warmup_steps=5",
            "parallel.lanes=4",
            more,
        ];
        let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
        let config = RunConfig::parse_with(families(), &text, "recipe.toml", index.path(), &sets).unwrap();
        train_in(index.path().join("runs").join(more), config, false)
    };
    let one = run("parallel.data=1");
    let losses = &one.summary.losses;
    let [top_1, _] = one.validation_accuracy.unwrap();
    assert!(losses[27..].iter().sum::<f32>() < 0.7 * losses[..5].iter().sum::<f32>(), "{losses:?}");
    assert!(top_1 > 0.4, "{top_1}");
    for grid in ["parallel.data=2", "parallel.data=4", "parallel.pipeline=2"] {
        assert_eq!(bits(&run(grid)), bits(&one), "{grid}");
    }
}

#[test]
fn another_set_of_images_is_refused_after_a_resume() {
    let index = workplace();
    let run_dir = index.path().join("run");
    train_in(run_dir.clone(), config(index.path(), &["train.steps=4"]), false);
    fs::remove_file(index.path().join("cifar/data_batch_2.bin")).unwrap();
    let options = RunOptions {
        device: DeviceChoice::Cpu,
        run_dir: Some(run_dir),
        resume: true,
        quiet: true,
        ..RunOptions::default()
    };
    let refused = run::train(config(index.path(), &["train.steps=8"]), options).unwrap_err();
    assert!(refused.to_string().contains("data"), "{refused}");
}

#[test]
fn wrong_keys_of_images_are_refused() {
    let index = workplace();
    let refusal = |overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let parsed = RunConfig::parse_with(families(), IMAGES, "test.toml", index.path(), &overrides);
        parsed.unwrap_err().to_string()
    };
    for (overrides, expected) in [
        (&["data.mean=[0.5, 0.5]"][..], "data.mean has 2 numbers, and the model's images have 3 channels"),
        (&["data.deviation=[0.0]"], "data.deviation = [0.0] is not a list, each of a positive number"),
        (
            &["optim.schedule=step", "optim.milestones=[5, 5]"],
            "optim.milestones = [5, 5] are not in increasing order",
        ),
        (&["optim.step_size=3"], "optim.step_size belongs to optim.schedule = \"step\""),
        (&["data.kind=text"], "data.kind = \"text\" gives tokens and model.kind = \"pixels\" takes images"),
        (&["data.crop=other"], "data.crop = \"other\" is not \"auto\""),
        (&["train.label_smoothing=1.0"], "train.label_smoothing = 1.0 is not a number from 0 to below 1"),
        (
            &["model.kind=gpt", "data.kind=synthetic", "train.label_smoothing=0.1"],
            "train.label_smoothing is for models of images, and model.kind = \"gpt\" is none",
        ),
    ] {
        let refused = refusal(overrides);
        assert!(refused.contains(expected), "{overrides:?}: {refused}");
    }
}
