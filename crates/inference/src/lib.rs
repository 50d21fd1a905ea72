//! A trained model in use: text from it, its loss and its answers, and folders for other programs.
//!
//! The one idea: **a model is found once, whatever it is**. A run, a checkpoint, a folder of Hugging Face and
//! one of adapters become the same configuration and weights, which all that uses a model takes.
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
    End, Messages, Piece, RankMemory, SampleOptions, Sampled, SampledText, Show, sample, sampler,
};
