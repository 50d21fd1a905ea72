//! One rank that generates text: its stages, their caches of keys and values, and the choice of tokens.
//!
//! The one idea: **a text does not depend on what is generated beside it.**
//! A step computes the next token of every sequence. All arrays have sizes that do not depend on how many
//! sequences there are, nor how long they are: a row's matmuls are those of any other number of rows, so that
//! all sequences are independent. Whatever differs from step to step is in the step's
//! state on the device, so that a GPU's calls for all rows can be captured and replayed (`train.graphs`).

mod generator;
mod lines;
mod options;
mod passes;
mod replay;
mod stage;

pub use generator::{Generator, GeneratorBytes};
pub use lines::Line;
pub use options::GeneratorOptions;
