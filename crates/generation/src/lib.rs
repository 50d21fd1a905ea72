//! One rank that generates text: its stages, their key-value caches, and the choice of tokens.
//!
//! The one idea: **a text does not depend on the texts generated in the same batch.** A step computes the
//! next token of every sequence. Array sizes depend neither on the number of sequences nor on their lengths,
//! and each row's matmul is the same for any number of rows, so sequences are independent. Everything that
//! differs between steps is data on the device, so that a GPU can capture and replay the step
//! (`train.graphs`).
//!
//! ```
//! use collective::Communicator;
//! use config::RunConfig;
//! use generation::{Generator, GeneratorOptions, Line};
//! use nn::Stage;
//! use tensor::ops::choose::Choice;
//! use worker::dataset::DataScope;
//! use worker::{Placement, Setup, WorkerError};
//! let config = RunConfig::quickstart(&["parallel.data=1".into(), "model.width=32".into()])?;
//! let whole = |config: &RunConfig, _: &_, _: &_| Ok::<_, WorkerError>(vec![Stage::whole(config.layers())]);
//! let setup = Setup::new(config, Placement::Cpu, DataScope::All, whole)?;
//! let choice = Choice { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };
//! let options = GeneratorOptions { slots: 1, capacity: 16, longest: 8, choice };
//! let mut generator = Generator::new(&setup, Communicator::solo(), options, None)?; // random weights
//! let tokens = b"pub fn".map(u32::from);
//! let line = Line { tokens: &tokens, is_new: true, seen: Some(&tokens), number: 0, key: [1, 2] };
//! let next = generator.step(&[vec![Some(line)]])?[0][0];
//! assert!(next < 256);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod generator;
mod lines;
mod options;
mod passes;
mod replay;
mod stage;

pub use generator::{Generator, GeneratorBytes};
pub use lines::Line;
pub use options::GeneratorOptions;
