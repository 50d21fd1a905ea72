//! Whole models, one file each.

mod gpt;
mod mlp;

pub use gpt::{GPT, Gpt, GptFamily, GptSizes};
pub use mlp::{MLP, Mlp, MlpFamily, MlpSizes};
