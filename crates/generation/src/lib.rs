//! One rank that generates text: its stages, their key-value caches, and the choice of tokens.
//!
//! The one idea: **a text does not depend on the texts generated in the same batch.** A step computes the
//! next token of every sequence. Array sizes depend neither on the number of sequences nor on their lengths,
//! and each row's matmul is the same for any number of rows, so sequences are independent. Everything that
//! differs between steps is data on the device, so that a GPU can capture and replay the step
//! (`train.graphs`).

mod generator;
mod lines;
mod options;
mod passes;
mod replay;
mod stage;

pub use generator::{Generator, GeneratorBytes};
pub use lines::Line;
pub use options::GeneratorOptions;
