//! Whole models, one file each.

mod checks;
mod decoder;
mod gpt;
mod llama;
mod mlp;
mod resnet;

pub use decoder::Decoder;
pub use gpt::{GPT, Gpt, GptFamily, GptSizes, PositionKind};
pub use llama::{LLAMA, Llama, LlamaFamily, LlamaSizes, RopeScaling};
pub use mlp::{MLP, Mlp, MlpFamily, MlpSizes};
pub use resnet::{RESNET, ResNet, ResNetFamily, ResNetSizes, StemKind};
