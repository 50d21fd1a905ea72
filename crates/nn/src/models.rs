//! Whole models, one file each.

mod checks;
mod gpt;
mod llama;
mod mlp;

pub use gpt::{GPT, Gpt, GptFamily, GptSizes, PositionKind};
pub use llama::{LLAMA, Llama, LlamaFamily, LlamaSizes, RopeScaling};
pub use mlp::{MLP, Mlp, MlpFamily, MlpSizes};
