//! Operands of attention that is timed alone.

use config::{RunConfig, Value};
use device::{DType, Device};
use nn::Examples;
use tensor::Tensor;
use tensor::ops::attention::{self, Masks, Output, Qkv, Settings};
use tensor::ops::dropout::Mask;

use crate::attention::{AttentionSizes, random};
use crate::error::Result;

/// Attention of a configuration's layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionCase {
    pub(super) sizes: AttentionSizes,
    pub(super) dtype: DType,
    /// Probability of dropout; 0 for none.
    pub(super) dropout: f64,
}

/// Returns the attention of a configuration's layers, with and without a window; none for models without
/// attention and for divided sequences.
pub(super) fn attention_cases(config: &RunConfig) -> Vec<AttentionCase> {
    let grid = &config.parallel;
    let (Some(heads), Examples::Tokens { context: positions, .. }, 1) =
        (config.model.cached_heads(), config.model.examples(), grid.context)
    else {
        return Vec::new();
    };
    let number = |name: &str| match config.model.pairs().find(|(key, _)| key.path == name)?.1 {
        Value::Integer(number) => Some(number as f64),
        Value::Float(number) => Some(number),
        _ => None,
    };
    let window = number("model.window").map(|window| window as usize);
    let window = window.filter(|window| (1..positions).contains(window));
    let heads = heads.divided(grid.tensor);
    let case = |window| AttentionCase {
        sizes: AttentionSizes { batch: config.train.micro_batch_size, positions, heads, window, pieces: 1 },
        dtype: config.precision.compute,
        dropout: number("model.dropout").unwrap_or(0.0),
    };
    [None].into_iter().chain(window.map(Some)).map(case).collect()
}

/// Operands of attention. Their values decide no time, but power.
pub(super) struct AttentionOperands {
    qkv: Qkv<Tensor>,
    dy: Tensor,
}

impl AttentionOperands {
    pub(super) fn new(device: &Device, case: &AttentionCase) -> Result<Self> {
        let AttentionSizes { batch, positions, heads, .. } = case.sizes;
        let random = |name, columns| random(device, name, [batch, positions, columns], case.dtype);
        let qkv = Qkv::Packed(random("qkv", heads.packed_columns())?);
        Ok(AttentionOperands { qkv, dy: random("dy", heads.output_columns())? })
    }

    /// Calls the forward and the backward pass.
    pub(super) fn call(&self, case: &AttentionCase) -> Result<()> {
        let AttentionSizes { heads, window, .. } = case.sizes;
        let settings = Settings { window, ..heads.into() };
        let dropout = (case.dropout > 0.0).then(|| Mask::new(1, "attention", 0, case.dropout));
        let masks = Masks { dropout, ..Masks::default() };
        let Output { output, logsumexp } = attention::forward(&self.qkv, settings, masks, false)?;
        attention::backward(&self.dy, &self.qkv, &output, &logsumexp, settings, masks, false)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tensor::ops::attention::Heads;

    use super::*;

    #[test]
    fn each_window_of_a_configuration_is_a_case() {
        let cases = |sets: &[&str]| {
            let text = "[model]\nkind = \"llama\"\nheads = 4\nkey_value_heads = 2\nwidth = 64\ncontext = 32\n\
                        layers = 2\n[data]\nkind = \"synthetic\"\n[train]\nsteps = 1\nmicro_batch_size = 3\n\
                        global_batch_size = 6\n";
            let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
            attention_cases(&RunConfig::parse(text, "test", Path::new("/"), &sets).unwrap())
        };
        let types = "model.layer_types=[\"full_attention\",\"sliding_attention\"]";
        for (sets, windows, heads, dropout) in [
            (&["precision.compute=bf16"][..], &[None][..], Heads::grouped(4, 2, 16), 0.0),
            (
                &["model.window=8", types, "model.dropout=0.1"],
                &[None, Some(8)],
                Heads::grouped(4, 2, 16),
                0.1,
            ),
            (&["model.window=40", types], &[None], Heads::grouped(4, 2, 16), 0.0),
            (&["parallel.tensor=2"], &[None], Heads::grouped(4, 2, 16).divided(2), 0.0),
            (&["parallel.context=2", "parallel.context_lanes=4"], &[], Heads::grouped(4, 2, 16), 0.0),
        ] {
            let cases = cases(sets);
            let found: Vec<_> = cases.iter().map(|case| case.sizes.window).collect();
            assert_eq!(found, windows, "{sets:?}");
            for AttentionCase { sizes, dropout: own, .. } in cases {
                assert_eq!((sizes.batch, sizes.positions, sizes.heads), (3, 32, heads), "{sets:?}");
                assert!((own - dropout).abs() < 1e-9, "{sets:?}: {own}");
            }
        }
    }
}
