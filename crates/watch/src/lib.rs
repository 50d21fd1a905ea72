//! A live view of a run: a row for every rank, the loss over time, and warnings.
//!
//! The one idea: **watching only reads files that a run writes anyway**, so it slows nothing, works from
//! another terminal, and also shows a run that has ended.
//!
//! ```
//! # use run::RunOptions;
//! # let directory = tempfile::tempdir()?;
//! # let run_dir = directory.path().join("first");
//! # let sets = ["train.steps=2", "train.global_batch_size=8", "train.validation_micro_batches=1"];
//! # let sets = [&sets[..], &["model.width=32", "parallel.data=1"]].concat();
//! # let sets: Vec<_> = sets.into_iter().map(String::from).collect();
//! # let options = RunOptions { run_dir: Some(run_dir.clone()), quiet: true, ..RunOptions::default() };
//! # run::train(config::RunConfig::quickstart(&sets)?, options)?;
//! let mut run = watch::RunView::open(&run_dir)?;
//! run.refresh()?;
//! print!("{}", watch::frame(&run, 120));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod draw;
mod interactive;
mod ranks;
mod run_view;
mod tail;
mod warnings;

pub use draw::frame;
pub use interactive::{WatchError, watch};
pub use run_view::RunView;
