//! Latents of attention (DeepSeek-AI, *DeepSeek-V2*, 2024): narrow vectors that are expanded to queries, and
//! to keys and values.

use autograd::{Tape, Var, ops};

use super::{Activation, Linear, NormOptions, RmsNorm, within};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::parameters::Parameters;

/// Widths of a layer's latents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentSizes {
    /// Number of columns of the keys' and values' latents.
    pub keys_values: usize,
    /// Number of columns of the queries' latents; 0 if queries are computed from the layer's input.
    pub queries: usize,
    /// Number of rotated columns of a query or key; the keys of all heads share them.
    pub rotated: usize,
    /// Whether adjacent columns rotate together.
    pub interleaved: bool,
    /// Whether the layers that compute latents have biases.
    pub has_bias: bool,
    /// Epsilon added to mean squares in norms of latents.
    pub epsilon: f32,
}

/// The layers that compute latents; all heads share their results.
#[derive(Debug)]
pub struct Latents {
    sizes: LatentSizes,
    /// Layer and norm of the queries' latents, if any.
    queries: Option<(Linear, RmsNorm)>,
    /// Layer and norm of the keys' and values' latents; the layer also outputs the rotated columns of keys.
    keys_values: (Linear, RmsNorm),
}

impl Latents {
    /// Registers `q_a_proj` and `q_a_layernorm` (if queries have latents), then `kv_a_proj_with_mqa` and
    /// `kv_a_layernorm`, below `prefix`.
    ///
    /// # Errors
    /// Memory is exhausted, or a name exists.
    pub(super) fn new(
        parameters: &mut Parameters,
        prefix: &str,
        (width, sizes): (usize, LatentSizes),
        norms: NormOptions,
        init: Init,
    ) -> Result<Self> {
        let norms = NormOptions { epsilon: sizes.epsilon, ..norms };
        let mut pair = |layer: &str, norm: &str, [latents, others]: [usize; 2]| {
            let name = format!("{prefix}.{layer}");
            let outputs = latents + others;
            let options = (sizes.has_bias, Activation::None);
            let layer = Linear::optional_bias(parameters, &name, [width, outputs], init, options)?;
            let norm = norms.rms(parameters, &format!("{prefix}.{norm}"), latents)?;
            Ok::<_, NnError>((layer, norm))
        };
        let queries = match sizes.queries {
            0 => None,
            latents => Some(pair("q_a_proj", "q_a_layernorm", [latents, 0])?),
        };
        let widths = [sizes.keys_values, sizes.rotated];
        let keys_values = pair("kv_a_proj_with_mqa", "kv_a_layernorm", widths)?;
        Ok(Latents { sizes, queries, keys_values })
    }

    /// Maps `x_bld [.., width]` to the keys' and values' latents, the rotated columns of keys, and the
    /// queries' latents, or `x_bld` if there are none.
    ///
    /// # Errors
    /// The shape or dtype differs, or memory is exhausted.
    pub(super) fn parts(&self, tape: &Tape, x_bld: Var) -> Result<[Var; 3]> {
        let (layer, norm) = &self.keys_values;
        let axis = x_bld.tensor().shape().dims().len() - 1;
        let both_blr = layer.forward(tape, x_bld.clone())?;
        let widths = [self.sizes.keys_values, self.sizes.rotated];
        let parts = within(tape, "latents", || Ok(ops::split(tape, both_blr, axis, &widths)?))?;
        let [latents_blr, rotated_blk] = <[Var; 2]>::try_from(parts)
            .map_err(|parts| NnError::Sizes(format!("{} parts of latents", parts.len())))?;
        let queries_blr = match &self.queries {
            None => x_bld,
            Some((layer, norm)) => norm.forward(tape, layer.forward(tape, x_bld)?)?,
        };
        Ok([norm.forward(tape, latents_blr)?, rotated_blk, queries_blr])
    }
}
