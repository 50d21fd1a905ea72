//! Uses a trained model: generates text, computes its loss, answers questions, and exports folders.
//!
//! The one idea: **a model is found the same way, whatever it is**. A run, a checkpoint, a Hugging Face
//! folder and a folder of adapters all become a configuration and weights, which every function here takes.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use inference::SampleOptions;
//! use run::Startup;
//! let prompts = vec!["pub fn ".to_owned()];
//! let options = SampleOptions { model: "runs/first".into(), prompts, ..SampleOptions::default() };
//! let sampled = inference::sample(Startup::alone(), &options, Arc::new(|_| Ok(())))?;
//! println!("{}", sampled.unwrap().texts[0].text);
//! # Ok::<(), run::RunError>(())
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
