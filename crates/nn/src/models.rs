//! Whole models, one file each.

mod checks;
mod decoder;
mod gpt;
pub(crate) mod llama;
mod mlp;

pub use checks::{Group, check_bytes};
pub use decoder::Decoder;
pub use gpt::{GPT, Gpt, GptSizes, PositionKind};
pub use llama::{LLAMA, Llama, LlamaSizes, RopeScaling};
pub use mlp::{MLP, Mlp, MlpSizes};
