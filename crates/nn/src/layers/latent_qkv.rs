//! The layers that expand latents to queries, keys and values.

use autograd::ops::{LatentLayer, Rotary};
use autograd::{Tape, Var, Weight, ops};
use tensor::ops::Activation;
use tensor::ops::attention::Settings;
use tensor::ops::latent_qkv::LatentHeads;

use super::latents::LatentSizes;
use super::{Linear, LinearCut, within};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::parameters::Parameters;

/// The dimension of columns in `[batch, time, columns]`.
const COLUMNS: usize = 2;

/// The input of the layers that compute queries, keys and values.
#[derive(Clone, Debug)]
pub(super) enum QkvInput {
    /// The input of a linear layer, or the parts of latents side by side.
    One(Var),
    /// The latents of keys and values, the rotated columns of keys, and the input of queries.
    Parts([Var; 3]),
}

/// Queries, keys and values of latents, or those of a lane.
#[derive(Debug)]
pub struct LatentQkv {
    queries: Linear,
    keys_values: Linear,
    heads: LatentHeads,
    /// Columns of the latents of keys and values, of the rotated columns and of the queries' input.
    inputs: [usize; 3],
}

impl LatentQkv {
    /// Registers, below `prefix`, `q_b_proj`, or `q_proj` if queries have no latents, and `kv_b_proj`; rows
    /// of lanes are those of their heads. `width` is that of the layer's input.
    ///
    /// # Errors
    /// Out of memory, a name that exists, heads that lanes do not divide.
    pub(super) fn new(
        parameters: &mut Parameters,
        prefix: &str,
        (width, sizes): (usize, LatentSizes),
        settings: Settings,
        init: Init,
    ) -> Result<Self> {
        let (all, lanes) = (settings.heads, parameters.lanes().all);
        let LatentSizes { rotated, interleaved, .. } = sizes;
        let heads = LatentHeads {
            query: all.query / lanes,
            key_value: all.key_value / lanes,
            rotated,
            plain: all.width - rotated,
            value_width: all.value_width,
            interleaved,
        };
        let mut lane = |name: &str, [inputs, outputs]: [usize; 2]| {
            let cut = ([inputs, outputs], LinearCut::Outputs(&[outputs]));
            Linear::lane(parameters, &format!("{prefix}.{name}"), cut, init, false, Activation::None)
        };
        let (name, input) = match sizes.queries {
            0 => ("q_proj", width),
            latents => ("q_b_proj", latents),
        };
        let queries = lane(name, [input, all.query_columns()])?;
        let columns = all.key_value * (heads.plain + all.value_width);
        let keys_values = lane("kv_b_proj", [sizes.keys_values, columns])?;
        Ok(LatentQkv { queries, keys_values, heads, inputs: [sizes.keys_values, rotated, input] })
    }

    /// Returns the latents of keys and values, the rotated columns of keys, and the queries.
    fn parts(&self, tape: &Tape, input: QkvInput) -> Result<[Var; 3]> {
        let [latents, rotated, input] = match input {
            QkvInput::Parts(parts) => parts,
            QkvInput::One(joined) => {
                let split = || Ok(ops::split(tape, joined, COLUMNS, &self.inputs)?);
                <[Var; 3]>::try_from(within(tape, "latents", split)?)
                    .map_err(|parts| NnError::Sizes(format!("{} parts of latents", parts.len())))?
            }
        };
        Ok([latents, rotated, self.queries.forward(tape, input)?])
    }

    /// Arranges queries, keys and values, without their positions, as attention takes them.
    fn pack(&self, tape: &Tape, [latents, rotated, queries]: [Var; 3]) -> Result<Var> {
        let keys_values = self.keys_values.forward(tape, latents)?;
        within(tape, "latents", || Ok(ops::latent_qkv(tape, [queries, keys_values, rotated], self.heads)?))
    }

    /// Maps the latents `[batch, time, columns]` to queries, keys and values without their positions.
    ///
    /// # Errors
    /// Another shape or type, out of memory.
    pub(super) fn forward(&self, tape: &Tape, input: QkvInput) -> Result<Var> {
        let parts = self.parts(tape, input)?;
        self.pack(tape, parts)
    }

    /// Maps latents to the result of attention in a pass with caches, which keep latents.
    ///
    /// # Errors
    /// As [`LatentQkv::forward`]; no cache.
    pub(super) fn attend_cached(
        &self,
        tape: &Tape,
        input: QkvInput,
        settings: Settings,
        (rotary, sinks): (Option<&Rotary>, Option<&Weight>),
    ) -> Result<Var> {
        let parts = self.parts(tape, input)?;
        let Linear { weight, adapter, .. } = &self.keys_values;
        let adapter = adapter.as_ref();
        let layer = LatentLayer { heads: self.heads, settings, rotary, sinks, weight, adapter };
        if !tape.pass().fills_cache() {
            let [latents, rotated, queries] = parts;
            return within(tape, "attention", || Ok(layer.extend(tape, [queries, latents, rotated])?));
        }
        let latents = parts[0].clone();
        let mut qkv = self.pack(tape, parts)?;
        if let Some(rotary) = rotary {
            qkv = ops::rotary(tape, qkv, self.heads.query + self.heads.key_value, rotary)?;
        }
        within(tape, "attention", || Ok(layer.fill(tape, &qkv, &latents)?))
    }
}
