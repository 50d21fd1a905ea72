//! Whole models, one file each.

mod checks;
mod decoder;
mod gpt;
pub(crate) mod llama;
mod mlp;
mod resnet;

pub use decoder::Decoder;
pub use gpt::{GPT, Gpt, GptSizes, PositionKind};
pub use llama::{LLAMA, Llama, LlamaSizes, RopeScaling};
pub use mlp::{MLP, Mlp, MlpSizes};
pub use resnet::{RESNET, ResNet, ResNetSizes, StemKind};
