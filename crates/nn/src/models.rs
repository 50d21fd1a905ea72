//! Whole models, one file each.

mod gpt;
mod mlp;

pub use gpt::{Gpt, GptSizes};
pub use mlp::{Mlp, MlpSizes};
