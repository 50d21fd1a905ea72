//! Training data: corpora, tokenizers, and micro-batches by number.
//!
//! The one idea: a micro-batch is a *pure function of its number*. Number 1,000,000 is computed directly from
//! the seed and the corpus, without the 999,999 before it. So every rank requests only its own micro-batches,
//! on any grid; a restart needs no loader state; and a difference between two runs is never due to the data.
//!
//! Three parts implement this:
//!
//! * [`Corpus`] reads texts or token shards of any size by position, as one long sequence of tokens;
//! * an order maps a sequence number to a window of those tokens: [`Shuffled`], in each epoch a keyed
//!   permutation (a Feistel network) of all windows without table or state, or [`Sequential`];
//! * a [`Source`] fills a [`MicroBatch`] on the host. [`TokenSource`] reads a corpus, [`ImageSource`] decodes
//!   images, [`SyntheticSource`] draws from a counter-based generator, for benchmarks and planning. A
//!   [`Prefetcher`] reads on a thread of its own what comes next.
//!
//! This crate is independent of models, devices and ranks. Arrays are on the host, in plain vectors that are
//! reused from one micro-batch to the next.
//!
//! ```
//! use data::{Component, Corpus, MicroBatch, OrderKind, Source, Split};
//! use data::{TokenOptions, TokenSource, Tokenizer};
//!
//! let text = "the quick brown fox jumps over the lazy dog; ".repeat(20);
//! let source = TokenSource::new(
//!     vec![Component {
//!         split: Split::at_end(Corpus::in_memory(text.into_bytes())?.into(), 0.1)?,
//!         weight: 1.0,
//!     }],
//!     Tokenizer::Bytes,
//!     &TokenOptions {
//!         context: 16,
//!         micro_batch: 2,
//!         seed: 1,
//!         order: OrderKind::Shuffled,
//!         validation_micro_batches: 2,
//!         vocabulary: 256,
//!         documents: None,
//!         ignored: None,
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
mod chat;
mod choices;
mod contents;
mod corpus;
mod cycle;
mod data_file;
mod encoding;
mod error;
mod files;
mod identity;
mod images;
mod mixture;
mod order;
mod packing;
mod permutation;
mod prefetch;
mod progress;
mod readers;
mod records;
mod sequences;
mod shapes;
mod slice;
mod source;
mod step_lengths;
mod stream;
mod synthetic;
mod token_options;
mod token_source;
mod tokenizer;

pub use batch::{ArrayShape, BatchShape, HostArray, HostData, HostType, MicroBatch, PairArrays};
pub use bigram::Bigrams;
pub use chat::{
    Answered, CHAT_TASK, ChatFormat, ChatOptions, ChatReading, ChatSource, ChatTemplate, Conversation,
    CutFigures, Dialogue, HoldOut, Pair, PairOptions, PairReading, PairSource, Role, TemplateInput, TrainOn,
    ValidationSplit, read_messages,
};
pub use choices::{ChoiceSource, Ending, Question, Questions, TextLengths};
pub use contents::FileContents;
pub use corpus::Corpus;
pub use cycle::CycledSource;
pub use encoding::{Encoding, HEADER_BYTES, Header};
pub use error::Error;
pub use files::{absolute, files};
pub use identity::CorpusIdentity;
pub use images::{Crop, ImageOptions, ImageSource, ImageSplit, Normalisation, SHARES};
pub use mixture::Mixture;
pub use order::{OrderKind, Position, Sequential, Shuffled};
pub use packing::PackingFigures;
pub use permutation::Permutation;
pub use prefetch::Prefetcher;
pub use readers::READERS;
pub use records::{LEFT_OUT, TextError, each_object, first_object, packing, python_text};
pub use sequences::Sequences;
pub use shapes::{Shapes, TokenShapes};
pub use slice::{Slice, Split};
pub use source::{MicroBatchId, Source};
pub use step_lengths::StepLengths;
pub use synthetic::{SyntheticKind, SyntheticOptions, SyntheticSource};
pub use token_options::{Documents, IGNORED, TokenOptions};
pub use token_source::{Component, TokenSource};
pub use tokenizer::{FileTokenizer, SpecialTokens, TextStream, Tokenizer};
