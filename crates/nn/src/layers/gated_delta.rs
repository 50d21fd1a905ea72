//! Linear attention by the gated delta rule.

use autograd::ops::{CausalConvolution, DeltaGates};
use autograd::{Tape, Var, Weight, each_shard, map, ops};
use tensor::ops::Activation;
use tensor::ops::gated_delta_rule::{DeltaHeads, DeltaSettings};
use tensor::ops::gated_rms_norm::Settings;

use super::{GateFunction, Layer, Linear, within};
use crate::error::{NnError, Result};
use crate::init::{Init, initial_decays};
use crate::parameters::Parameters;

/// Index of the column dimension in `[batch, time, columns]`.
const COLUMNS: usize = 2;

system::names! {
    /// Layout of the projections of linear attention.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DeltaLayout {
        /// A matrix for queries, keys and values of all heads, and one each for gates, rates and decays, as
        /// in Qwen3.5.
        Separate = "separate",
        /// A matrix with queries, keys, values and gates of each key head together, and one with rates and
        /// decays, as in Qwen3-Next.
        Grouped = "grouped",
    }
}

/// Sizes and options of a [`GatedDelta`].
#[derive(Clone, Copy, Debug)]
pub struct GatedDeltaSizes {
    /// Heads, and form of the decays.
    pub settings: DeltaSettings,
    /// Number of tokens that each output of the convolution reads, its own included.
    pub taps: usize,
    /// Layout of the projections.
    pub layout: DeltaLayout,
    /// Rank of the projections of gates and decays: two linear layers with this width between them; 0 for one
    /// layer.
    pub gate_rank: usize,
    /// Activation function of the output gates.
    pub gate: GateFunction,
    /// Whether rates are up to 2, so that eigenvalues of a state's transitions may be negative.
    pub negative_eigenvalues: bool,
    /// Epsilon added to mean squares in the norm of the output.
    pub epsilon: f32,
}

/// Linear attention: projections, a causal convolution with SiLU of queries, keys and values, the gated delta
/// rule, a gated norm of each head, and an output projection. Shards have equal parts of the heads.
#[derive(Debug)]
pub struct GatedDelta {
    /// First of the two linear layers of gates, and of decays. All shards use their results.
    narrow: Option<[Linear; 2]>,
    inputs: Vec<Linear>,
    layout: DeltaLayout,
    /// The convolution of each local shard.
    convolutions: Vec<CausalConvolution>,
    /// The weights of decays and rates of each local shard.
    gates: Vec<DeltaGates>,
    /// Weight of the norm, which all heads share.
    norm: Weight,
    norm_settings: Settings,
    output: Linear,
    /// Heads of a shard.
    settings: DeltaSettings,
}

impl GatedDelta {
    /// Registers the parameters below `prefix`, for inputs of `width` columns:
    ///
    /// * `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a`, or `in_proj_qkvz` and `in_proj_ba`. With a
    ///   width between two layers, `g_a_proj` and `g_b_proj` instead of `in_proj_z`, and `f_a_proj` and
    ///   `f_b_proj` instead of `in_proj_a`
    /// * `conv1d.weight` `[packed columns, 1, taps]`, `A_log` `[value heads]` and `dt_bias` `[decays]`
    /// * `norm.weight` `[value width]` and `out_proj`
    ///
    /// # Errors
    /// Memory is exhausted, a name exists, or the shards do not divide the heads.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        width: usize,
        sizes: GatedDeltaSizes,
        [init, projection]: [Init; 2],
    ) -> Result<Self> {
        let heads = sizes.settings.heads;
        let is_sharded = parameters.shards().is_divided();
        // Parameters of all shards come before parameters of each shard.
        let narrow = Self::narrow(parameters, prefix, [width, sizes.gate_rank], init)?;
        let shared = is_sharded.then(|| Self::norm(parameters, prefix, heads)).transpose()?;
        let [queries, keys, values] = heads.groups_of_columns();
        let decays = sizes.settings.decays();
        let (gate, decay, inner) = match sizes.gate_rank {
            0 => ("in_proj_z", "in_proj_a", width),
            inner => ("g_b_proj", "f_b_proj", inner),
        };
        let layers: &[(&str, usize, usize)] = match sizes.layout {
            DeltaLayout::Separate => &[
                ("in_proj_qkv", width, queries + keys + values),
                (gate, inner, values),
                ("in_proj_b", width, heads.value),
                (decay, inner, decays),
            ],
            DeltaLayout::Grouped => &[
                ("in_proj_qkvz", width, queries + keys + 2 * values),
                ("in_proj_ba", width, 2 * heads.value),
            ],
        };
        let mut linear = |name: &str, inputs, outputs| {
            let name = format!("{prefix}.{name}");
            Linear::without_bias(parameters, &name, inputs, outputs, init, Activation::None)
        };
        let inputs = layers.iter().map(|(name, inputs, outputs)| linear(name, *inputs, *outputs));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let name = |part: &str| format!("{prefix}.{part}");
        let shape = [heads.packed_columns(), 1, sizes.taps];
        let convolutions = parameters.create_shards(&name("conv1d.weight"), shape, init)?;
        let [speed, step] = initial_decays();
        let biases = parameters.create_shards(&name("dt_bias"), [decays], step)?;
        let speeds = parameters.create_shards(&name("A_log"), [heads.value], speed)?;
        let norm = match shared {
            Some(norm) => norm,
            None => Self::norm(parameters, prefix, heads)?,
        };
        let out = name("out_proj");
        let output = Linear::without_bias(parameters, &out, values, width, projection, Activation::None)?;
        let factor = if sizes.negative_eigenvalues { 2.0 } else { 1.0 };
        let convolution = |weight| CausalConvolution { weight, bias: None, silu: true };
        let gates = |(log_speed, bias)| DeltaGates { log_speed, bias, factor };
        Ok(GatedDelta {
            narrow,
            inputs,
            layout: sizes.layout,
            convolutions: convolutions.into_iter().map(convolution).collect(),
            gates: speeds.into_iter().zip(biases).map(gates).collect(),
            norm,
            norm_settings: Settings { epsilon: sizes.epsilon, function: sizes.gate },
            settings: DeltaSettings { heads: heads.divided(output.edges().shards()), ..sizes.settings },
            output,
        })
    }

    /// Registers the first of two layers of gates and of decays, if there are two.
    fn narrow(
        parameters: &mut Parameters,
        prefix: &str,
        [width, inner]: [usize; 2],
        init: Init,
    ) -> Result<Option<[Linear; 2]>> {
        if inner == 0 {
            return Ok(None);
        }
        let mut linear = |name: &str| {
            let name = format!("{prefix}.{name}");
            Linear::without_bias(parameters, &name, width, inner, init, Activation::None)
        };
        Ok(Some([linear("g_a_proj")?, linear("f_a_proj")?]))
    }

    fn norm(parameters: &mut Parameters, prefix: &str, heads: DeltaHeads) -> Result<Weight> {
        let name = format!("{prefix}.norm.weight");
        parameters.create_copied(&name, [heads.value_width], Init::Constant(1.0))
    }

    /// Computes the inputs of the layers of gates and of decays, and copies them and `x_bld` for each local
    /// shard, all in one copy. Without such layers, there is a copy of `x_bld` alone.
    fn enter(&self, tape: &Tape, x_bld: Var) -> Result<[Var; 3]> {
        let first = self.inputs.first().ok_or_else(missing)?;
        let Some([gate, decay]) = &self.narrow else {
            let x_bld = first.enter(tape, x_bld)?;
            return Ok([x_bld.clone(), x_bld.clone(), x_bld]);
        };
        let gate_blr = gate.forward(tape, x_bld.clone())?;
        let decay_blr = decay.forward(tape, x_bld.clone())?;
        let parts = vec![x_bld, gate_blr, decay_blr];
        let parts = within(tape, "gates", || first.edges().enter_all(tape, parts))?;
        <[Var; 3]>::try_from(parts).map_err(|_| missing())
    }

    /// Projects the inputs of one shard to (queries, keys and values), gates, rates and decays, before their
    /// activations.
    fn project(&self, tape: &Tape, shard: usize, [x_bld, gate_blr, decay_blr]: [Var; 3]) -> Result<[Var; 4]> {
        let inputs = match self.layout {
            DeltaLayout::Separate => vec![x_bld.clone(), gate_blr, x_bld, decay_blr],
            DeltaLayout::Grouped => vec![x_bld.clone(), x_bld],
        };
        let project = |(layer, input): (&Linear, Var)| layer.forward_shard(tape, shard, input);
        let projected = self.inputs.iter().zip(inputs).map(project).collect::<Result<Vec<_>>>()?;
        let parts = match self.layout {
            DeltaLayout::Separate => projected,
            DeltaLayout::Grouped => within(tape, "groups", || self.ungroup(tape, projected))?,
        };
        <[Var; 4]>::try_from(parts).map_err(|_| missing())
    }

    /// Splits the parts of each key head, and joins the queries, keys and values of all heads.
    fn ungroup(&self, tape: &Tape, projected: Vec<Var>) -> Result<Vec<Var>> {
        let DeltaHeads { key, value, width, value_width } = self.settings.heads;
        let group = value / key;
        let [qkvz, ba] = <[Var; 2]>::try_from(projected).map_err(|_| missing())?;
        let split = |x: Var, widths: &[usize]| -> Result<Vec<Var>> {
            let [batch, time] = [x.tensor().shape().dims()[0], x.tensor().shape().dims()[1]];
            let columns: usize = widths.iter().sum();
            let by_head = ops::reshape(tape, x, [batch, time, key, columns])?;
            let parts = ops::split(tape, by_head, 3, widths)?.into_iter().zip(widths);
            parts.map(|(part, width)| Ok(ops::reshape(tape, part, [batch, time, key * width])?)).collect()
        };
        let mut of_qkvz = split(qkvz, &[width, width, group * value_width, group * value_width])?;
        let gates = of_qkvz.pop().ok_or_else(missing)?;
        let qkv = ops::concatenate(tape, &of_qkvz, COLUMNS)?;
        let of_ba = split(ba, &[group, group])?;
        Ok([qkv, gates].into_iter().chain(of_ba).collect())
    }

    /// Computes the result of one shard from its copies of the inputs. Pieces of sequences meet in the
    /// convolution and in the rule.
    fn forward_shard(&self, tape: &Tape, shard: usize, inputs: [Var; 3]) -> Result<Var> {
        let parts =
            map(tape, inputs, |_, inputs| Ok::<_, NnError>(Vec::from(self.project(tape, shard, inputs)?)))?;
        let [qkv_blc, z_blc, b_blh, a_blh] = <[Var; 4]>::try_from(parts).map_err(|_| missing())?;
        let convolution = self.convolutions.get(shard).ok_or_else(missing)?;
        let gates = self.gates.get(shard).ok_or_else(missing)?;
        let qkv_blc = within(tape, "conv1d", || Ok(ops::causal_convolution(tape, qkv_blc, convolution)?))?;
        let mixed_blc = within(tape, "delta_rule", || {
            let of_block =
                |_, operands| Ok::<_, NnError>(Vec::from(ops::delta_gates(tape, operands, gates)?));
            let parts = map(tape, [a_blh, b_blh], of_block)?;
            let [decay, rate] = <[Var; 2]>::try_from(parts).map_err(|_| missing())?;
            Ok(ops::gated_delta_rule(tape, [qkv_blc, decay, rate], self.settings)?)
        })?;
        map(tape, [mixed_blc, z_blc], |_, [mixed_blc, z_blc]| {
            let norm = || Ok(ops::gated_rms_norm(tape, mixed_blc, z_blc, &self.norm, self.norm_settings)?);
            self.output.forward_shard(tape, shard, within(tape, "norm", norm)?)
        })
    }
}

/// Returns the error for a layer that lacks one of its parts.
fn missing() -> NnError {
    NnError::Sizes("linear attention lacks a part of its projections or shards".to_owned())
}

impl Layer for GatedDelta {
    type Stream = Var;

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// # Errors
    /// The shape or dtype differs, memory is exhausted, or a collective failed.
    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let dtype = x_bld.tensor().dtype();
        let inputs = self.enter(tape, x_bld)?;
        let y_bld = each_shard(tape, inputs, |shard, inputs| self.forward_shard(tape, shard, inputs))?;
        self.output.leave(tape, y_bld, dtype)
    }
}
