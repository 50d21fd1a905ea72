//! The layer of Mamba-2: a convolution, a scan of selective state spaces, and a gate.

use autograd::ops::{CausalConvolution, NormSettings, StateHeads, StateSpaceScan};
use autograd::{Tape, Var, Weight, map, ops};
use device::{Category, DType, Device, Request};
use tensor::Tensor;
use tensor::ops::{Activation, fill};

use super::{Layer, Linear, Multiplier, within};
use crate::error::{NnError, Result};
use crate::init::{Init, initial_decays};
use crate::parameters::Parameters;

/// Sizes and options of a [`StateSpace`].
#[derive(Clone, Copy, Debug)]
pub struct StateSpaceSizes {
    /// Sizes of the heads.
    pub heads: StateHeads,
    /// Number of tokens that each output of the convolution reads.
    pub taps: usize,
    /// Whether the convolution has a bias.
    pub convolution_bias: bool,
    /// Whether the linear layers have biases.
    pub bias: bool,
    /// Groups of columns that the norm of the results treats separately; 0 without a norm.
    pub norm_groups: usize,
    /// Whether the norm precedes the gate.
    pub norm_first: bool,
    /// Epsilon added to mean squares in the norm.
    pub epsilon: f32,
    /// Least and largest time step.
    pub limits: [f32; 2],
    /// Factors of the gate, x, B, C and the time steps.
    pub factors: [f64; 5],
}

/// A layer of Mamba-2: `out(norm(scan(silu(convolution(x, B, C)), dt) · silu(gate)))`, where the gate, x, B,
/// C and dt are the outputs of one linear layer. Shards have equal parts of the heads and of the groups.
#[derive(Debug)]
pub struct StateSpace {
    input: Linear,
    /// The other layers of each local shard.
    shards: Vec<StateShard>,
    output: Linear,
    sizes: StateSpaceSizes,
}

/// The layers of one shard between the input and output projections.
#[derive(Debug)]
struct StateShard {
    convolution: CausalConvolution,
    scan: StateSpaceScan,
    norm: Option<Weight>,
}

impl StateSpace {
    /// Registers `{prefix}.in_proj.weight` with the rows of the gate, x, B, C and dt,
    /// `{prefix}.conv1d.weight` `[columns of x, B and C, 1, taps]`, `{prefix}.A_log`, `{prefix}.D` and
    /// `{prefix}.dt_bias` `[heads]`, `{prefix}.norm.weight` and `{prefix}.out_proj.weight`, and biases.
    ///
    /// # Errors
    /// Memory is exhausted, a name exists, or the shards do not divide heads or groups.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        width: usize,
        sizes: StateSpaceSizes,
        [init, projection]: [Init; 2],
    ) -> Result<Self> {
        let StateSpaceSizes { heads, taps, .. } = sizes;
        let columns = heads.columns();
        let packed = heads.packed_columns();
        let options = (sizes.bias, Activation::None);
        let outputs = columns + packed + heads.heads;
        let input =
            Linear::optional_bias(parameters, &format!("{prefix}.in_proj"), [width, outputs], init, options)?;
        let zero = Init::Constant(0.0);
        let one = Init::Constant(1.0);
        let weights =
            parameters.create_shards(&format!("{prefix}.conv1d.weight"), [packed, 1, taps], init)?;
        let biases = match sizes.convolution_bias {
            true => parameters.create_shards(&format!("{prefix}.conv1d.bias"), [packed], zero)?,
            false => Vec::new(),
        };
        let mut vector =
            |name: &str, init| parameters.create_shards(&format!("{prefix}.{name}"), [heads.heads], init);
        let [speed, step] = initial_decays();
        let scans = [vector("A_log", speed)?, vector("D", one)?, vector("dt_bias", step)?];
        let norms = match sizes.norm_groups {
            0 => Vec::new(),
            _ => parameters.create_shards(&format!("{prefix}.norm.weight"), [columns], one)?,
        };
        let name = format!("{prefix}.out_proj");
        let output = Linear::optional_bias(parameters, &name, [columns, width], projection, options)?;
        let own = heads.divided(input.edges().shards());
        let [a_log, d, bias] = scans;
        let mut biases = biases.into_iter();
        let mut norms = norms.into_iter();
        let scans = a_log.into_iter().zip(d).zip(bias);
        let shards = weights.into_iter().zip(scans).map(|(weight, ((a_log, d), bias))| StateShard {
            convolution: CausalConvolution { weight, bias: biases.next(), silu: true },
            scan: StateSpaceScan { a_log, d, bias, heads: own, limits: sizes.limits },
            norm: norms.next(),
        });
        Ok(StateSpace { input, shards: shards.collect(), output, sizes })
    }

    /// Computes the result of one shard from its copy of the input. Pieces of sequences meet in the
    /// convolution and in the scan.
    fn forward_shard(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let shard = |number: usize| self.shards.get(number).ok_or_else(|| missing("such shard"));
        let mut own = 0;
        let parts = map(tape, [x_bld], |block, [x_bld]| {
            own = block.shard;
            let packed_blc = self.input.forward_shard(tape, block.shard, x_bld)?;
            within(tape, "mamba", || shard(own)?.split(tape, packed_blc, &self.sizes))
        })?;
        let no_parts = |_| missing("gate, inputs and time steps");
        let [gate_blc, xbc_blc, dt_blh] = <[Var; 3]>::try_from(parts).map_err(no_parts)?;
        let layers = shard(own)?;
        let y_blc = within(tape, "mamba", || {
            let xbc_blc = ops::causal_convolution(tape, xbc_blc, &layers.convolution)?;
            Ok(ops::state_space_scan(tape, [xbc_blc, dt_blh], &layers.scan)?)
        })?;
        map(tape, [y_blc, gate_blc], |block, [y_blc, gate_blc]| {
            let mixed_blc = within(tape, "mamba", || layers.gate(tape, [y_blc, gate_blc], &self.sizes))?;
            self.output.forward_shard(tape, block.shard, mixed_blc)
        })
    }
}

impl StateShard {
    /// Separates the gate; x, B and C; and the time steps.
    fn split(&self, tape: &Tape, packed_blc: Var, sizes: &StateSpaceSizes) -> Result<Vec<Var>> {
        let heads = self.scan.heads;
        let packed_blc = self.scaled(tape, packed_blc, sizes)?;
        let parts = [heads.columns(), heads.packed_columns(), heads.heads];
        Ok(ops::split(tape, packed_blc, 2, &parts)?)
    }

    /// Gates and normalises the results of the scan.
    fn gate(&self, tape: &Tape, [y, gate]: [Var; 2], sizes: &StateSpaceSizes) -> Result<Var> {
        let gate = ops::activation(tape, gate, Activation::Silu)?;
        match sizes.norm_first {
            true => Ok(ops::multiply(tape, self.normalise(tape, y, sizes)?, gate)?),
            false => self.normalise(tape, ops::multiply(tape, y, gate)?, sizes),
        }
    }

    /// Multiplies the gate, x, B, C and the time steps by their factors.
    fn scaled(&self, tape: &Tape, packed_blc: Var, sizes: &StateSpaceSizes) -> Result<Var> {
        if sizes.factors == [1.0; 5] {
            return Ok(packed_blc);
        }
        let heads = self.scan.heads;
        let states = heads.groups * heads.states;
        let columns = [heads.columns(), heads.columns(), states, states, heads.heads];
        let parts = ops::split(tape, packed_blc, 2, &columns)?.into_iter().zip(sizes.factors);
        let scaled = parts.map(|(part, factor)| Multiplier::new(factor).forward(tape, part));
        Ok(ops::concatenate(tape, &scaled.collect::<Result<Vec<_>>>()?, 2)?)
    }

    /// Normalises each group of columns, if the layer has a norm.
    fn normalise(&self, tape: &Tape, y: Var, sizes: &StateSpaceSizes) -> Result<Var> {
        let Some(weight) = &self.norm else { return Ok(y) };
        let settings = NormSettings::from(sizes.epsilon);
        let columns = sizes.heads.columns() / sizes.norm_groups;
        let own = self.scan.heads.columns();
        if own == columns {
            return Ok(ops::rms_norm(tape, y, weight, settings)?);
        }
        let whole = y.tensor().shape();
        let dims = whole.dims();
        let one = Weight::frozen(ones(tape.device(), columns, y.tensor().dtype())?);
        let groups = ops::reshape(tape, y, [dims[0], dims[1] * (own / columns), columns])?;
        let groups = ops::rms_norm(tape, groups, &one, settings)?;
        let y = ops::reshape(tape, groups, whole)?;
        let weight = ops::reshape(tape, ops::parameter(tape, weight)?, [1, 1, own])?;
        Ok(ops::multiply(tape, y, weight)?)
    }
}

/// Returns the weight of a norm that only normalises.
fn ones(device: &Device, columns: usize, dtype: DType) -> Result<Tensor> {
    let request = Request::new(Category::Activation, "state_space.norm");
    let weight = Tensor::empty(device, [columns], dtype, request)?;
    fill::constant(&weight, 1.0)?;
    Ok(weight)
}

fn missing(what: &str) -> NnError {
    NnError::Sizes(format!("a state-space layer has no {what}"))
}

impl Layer for StateSpace {
    type Stream = Var;

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// # Errors
    /// The shape or dtype differs, memory is exhausted, or a collective failed.
    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let dtype = x_bld.tensor().dtype();
        let x_bld = self.input.enter(tape, x_bld)?;
        let y_bld = x_bld.each_shard(tape, |x_bld| self.forward_shard(tape, x_bld))?;
        self.output.leave(tape, y_bld, dtype)
    }
}
