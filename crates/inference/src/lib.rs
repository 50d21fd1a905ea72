//! Uses a trained model: generates text, computes its loss, answers questions, and exports folders.
//!
//! The one idea: **a model is found the same way, whatever it is**. A run, a checkpoint, a Hugging Face
//! folder and a folder of adapters all become a configuration and weights, which every function here takes.
//!
//! ```
//! use std::sync::Arc;
//!
//! use inference::SampleOptions;
//! use run::Startup;
//! # use run::RunOptions;
//! # let directory = tempfile::tempdir()?;
//! # let run_dir = directory.path().join("first");
//! # let sets = ["train.steps=2", "train.global_batch_size=8", "train.validation_micro_batches=1"];
//! # let sets = [&sets[..], &["model.width=32", "parallel.data=1"]].concat();
//! # let sets: Vec<_> = sets.into_iter().map(String::from).collect();
//! # let options = RunOptions { run_dir: Some(run_dir.clone()), quiet: true, ..RunOptions::default() };
//! # run::train(config::RunConfig::quickstart(&sets)?, options)?;
//! let prompts = vec!["pub fn ".to_owned()];
//! let options = SampleOptions { model: run_dir, prompts, tokens: 8, ..SampleOptions::default() };
//! let sampled = inference::sample(Startup::alone(), &options, Arc::new(|_| Ok(())))?;
//! assert_eq!(sampled.unwrap().texts.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod beside;
mod evaluate;
mod export;
mod location;
mod merge;
mod ranks;
mod sample;
mod trained;

pub use evaluate::{Choices, EvaluateOptions, Evaluation, evaluate};
pub use export::{ExportOptions, export};
pub use sample::{
    End, Messages, RankMemory, SampleOptions, Sampled, SampledText, Show, TextEvent, sample, sampler,
};
