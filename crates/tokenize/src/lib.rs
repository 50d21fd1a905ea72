//! Tokenizing: converts text in common formats to shards of tokens.
//!
//! The one idea: a corpus is a sequence of *units*, pieces of documents whose borders depend on the input
//! alone. Units are encoded on all cores and written in order, so the shards have the same bytes with any
//! number of threads, and a killed job continues after the last unit that it had written.
//!
//! Inputs are text, JSON lines and, with the feature `parquet`, Parquet; plain, `.gz` or, with it, `.zst`; a
//! file is read as a stream, so a corpus may be larger than memory. Outputs are the formats of nanoGPT and
//! llm.c, which `data::Corpus` reads.
//!
//! ```
//! use tokenize::{Job, tokenize};
//!
//! let directory = tempfile::tempdir()?;
//! let text = directory.path().join("a.txt");
//! std::fs::write(&text, "hello world")?;
//! let job = Job::new(vec![text], data::Tokenizer::Gpt2, directory.path().join("tokens"))?;
//! assert_eq!(tokenize(&job)?.training_tokens, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod encode;
mod error;
mod input;
mod job;
mod kind;
mod output;
#[cfg(feature = "parquet")]
mod parquet_file;
mod progress;
mod run;
mod shards;
mod text;
mod train;
mod unit;

pub use error::{Error, Result};
pub use job::{Format, HeldOut, Job};
pub use output::{Counts, open_verified};
pub use run::tokenize;
pub use train::{check_vocabulary, train_tokenizer, trained_tokenizer};
