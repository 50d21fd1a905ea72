//! Training data: corpora, tokenizers, and micro-batches by number.
//!
//! The one idea: a micro-batch is a *pure function of its number*. Number 1,000,000 is computed
//! directly, without having drawn the 999,999 before it, from the seed and the corpus alone. So every
//! rank asks for just the micro-batches that are its own, whatever the grid; a restart needs no loader
//! state; and two runs that disagree cannot blame the data.
//!
//! Three parts make that so:
//!
//! * [`Corpus`] maps files into memory and reads them as one long text, however large;
//! * [`Order`] takes a sequence number to a window of that text: in each epoch a keyed permutation
//!   (a Feistel network) of all windows, with no table and no state;
//! * a [`Source`] fills a [`MicroBatch`] on the host. [`TextSource`] reads a corpus,
//!   [`SyntheticSource`] draws from a counter-based generator, for benchmarks and planning.
//!
//! This crate knows no model, no device and no rank. Arrays are on the host, in plain vectors that are
//! reused from one micro-batch to the next.
//!
//! ```
//! use data::{Corpus, MicroBatch, Source, TextOptions, TextSource, Tokenizer};
//!
//! let text = "the quick brown fox jumps over the lazy dog; ".repeat(20);
//! let source = TextSource::new(
//!     Corpus::in_memory(text.into_bytes())?,
//!     Tokenizer::Bytes,
//!     &TextOptions {
//!         context: 16,
//!         micro_batch: 2,
//!         seed: 1,
//!         validation_fraction: 0.1,
//!         validation_micro_batches: 2,
//!     },
//! )?;
//!
//! let mut batch = MicroBatch::default();
//! source.train(1_000_000, &mut batch)?;
//! assert_eq!(batch.inputs.shape, [2, 16]);
//! // A target is the token after its input.
//! assert_eq!(batch.inputs.tokens()?[1..16], batch.targets.tokens()?[..15]);
//! # Ok::<(), data::Error>(())
//! ```

mod batch;
mod bigram;
mod corpus;
mod error;
mod files;
mod mapping;
mod order;
mod permutation;
mod source;
mod split;
mod synthetic;
mod text;
mod tokenizer;

pub use batch::{HostArray, HostData, MicroBatch};
pub use bigram::Bigrams;
pub use corpus::{Corpus, Pieces};
pub use error::Error;
pub use order::{Order, Position};
pub use permutation::Permutation;
pub use source::Source;
pub use split::Split;
pub use synthetic::{SyntheticKind, SyntheticOptions, SyntheticSource};
pub use text::{TextOptions, TextSource};
pub use tokenizer::Tokenizer;
