//! The layer of Mamba-2: a convolution, a scan of selective state spaces, and a gate.

use autograd::ops::{CausalConvolution, NormSettings, NormSpan, StateHeads, StateSpaceScan};
use autograd::{BlockIndex, Tape, Var, Weight, each_shard, map, ops};
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
/// C and dt are the outputs of one linear layer. Shards have equal parts of the heads, and of the columns of
/// B and C; shards that share a group gather its columns before the scan.
#[derive(Debug)]
pub struct StateSpace {
    input: Linear,
    /// The other layers of each local shard.
    shards: Vec<StateShard>,
    output: Linear,
    sizes: StateSpaceSizes,
    /// Columns of the gate, x, B, C and the time steps in a shard.
    columns: [usize; 5],
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
    /// Memory is exhausted, a name exists, or the shards do not divide heads or columns.
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
        let count = input.edges().shards();
        let own = heads.divided(count);
        let states = heads.groups * heads.states;
        let all = [columns, columns, states, states, heads.heads];
        let [a_log, d, bias] = scans;
        let mut biases = biases.into_iter();
        let mut norms = norms.into_iter();
        let scans = a_log.into_iter().zip(d).zip(bias);
        let shards = weights.into_iter().zip(scans).map(|(weight, ((a_log, d), bias))| StateShard {
            convolution: CausalConvolution { weight, bias: biases.next(), silu: true },
            scan: StateSpaceScan { a_log, d, bias, heads: own, limits: sizes.limits },
            norm: norms.next(),
        });
        let shards = shards.collect();
        Ok(StateSpace { input, shards, output, sizes, columns: all.map(|columns| columns / count) })
    }

    /// Number of shards over all ranks.
    fn shard_count(&self) -> usize {
        self.input.edges().shards()
    }

    /// Returns the layers of a local shard.
    fn shard(&self, index: usize) -> Result<&StateShard> {
        self.shards.get(index).ok_or_else(|| missing("such shard"))
    }

    /// Returns whether several shards share a group of columns of the norm.
    fn divides_norm(&self) -> bool {
        (1..self.shard_count()).contains(&self.sizes.norm_groups)
    }

    /// Returns whether all local shards are computed together: they exchange columns or sums, or text is
    /// generated, whose states are listed operator by operator.
    fn computes_jointly(&self, tape: &Tape) -> bool {
        let shares_groups = self.sizes.heads.shares_groups(self.shard_count());
        shares_groups || self.divides_norm() || tape.pass().cache.is_some()
    }

    /// Computes the results of one local shard, or of all, from their copies of the input. Pieces of
    /// sequences meet in the convolution and in the scan.
    fn forward_shards(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let parts = map(tape, [x_bld], |block, [x_bld]| {
            let packed_blc = self.input.forward_shard(tape, block.shard, x_bld)?;
            within(tape, "mamba", || self.split(tape, packed_blc))
        })?;
        let no_parts = |_| missing("gate, inputs and time steps");
        let [gate_blc, xbc_blc, dt_blh] = <[Var; 3]>::try_from(parts).map_err(no_parts)?;
        let xbc_blc = each_shard(tape, [xbc_blc], |shard, [xbc_blc]| {
            let layer = &self.shard(shard)?.convolution;
            within(tape, "mamba", || Ok(ops::causal_convolution(tape, xbc_blc, layer)?))
        })?;
        let heads = self.sizes.heads;
        let shards = self.shard_count();
        let xbc_blc = match heads.shares_groups(shards) {
            true => within(tape, "mamba", || Ok(ops::share_groups(tape, xbc_blc, heads, shards)?))?,
            false => xbc_blc,
        };
        let y_blc = each_shard(tape, [xbc_blc, dt_blh], |shard, operands| {
            let layer = &self.shard(shard)?.scan;
            within(tape, "mamba", || Ok(ops::state_space_scan(tape, operands, layer)?))
        })?;
        let project = |block: BlockIndex, y_blc| self.output.forward_shard(tape, block.shard, y_blc);
        if self.divides_norm() {
            let y_blc = self.gate_and_norm(tape, [y_blc, gate_blc])?;
            return map(tape, [y_blc], |block, [y_blc]| project(block, y_blc));
        }
        map(tape, [y_blc, gate_blc], |block, operands| {
            let layers = self.shard(block.shard)?;
            project(block, within(tape, "mamba", || layers.gate(tape, operands, &self.sizes))?)
        })
    }

    /// Separates the gate; x, B and C; and the time steps of a shard, each multiplied by its factor.
    fn split(&self, tape: &Tape, packed_blc: Var) -> Result<Vec<Var>> {
        let [gate, x, b, c, steps] = self.columns;
        let packed_blc = self.scaled(tape, packed_blc)?;
        Ok(ops::split(tape, packed_blc, 2, &[gate, x + b + c, steps])?)
    }

    /// Multiplies the gate, x, B, C and the time steps by their factors.
    fn scaled(&self, tape: &Tape, packed_blc: Var) -> Result<Var> {
        if self.sizes.factors == [1.0; 5] {
            return Ok(packed_blc);
        }
        let parts = ops::split(tape, packed_blc, 2, &self.columns)?.into_iter().zip(self.sizes.factors);
        let scaled = parts.map(|(part, factor)| Multiplier::new(factor).forward(tape, part));
        Ok(ops::concatenate(tape, &scaled.collect::<Result<Vec<_>>>()?, 2)?)
    }

    /// Gates the results of all local shards, and normalises groups of columns that shards share.
    fn gate_and_norm(&self, tape: &Tape, [y_blc, gate_blc]: [Var; 2]) -> Result<Var> {
        let StateSpaceSizes { heads, norm_groups: groups, epsilon, norm_first, .. } = self.sizes;
        let shards = self.shard_count();
        let span = NormSpan { groups, columns: heads.columns() / groups, shards };
        let weights: Vec<&Weight> = self.shards.iter().filter_map(|shard| shard.norm.as_ref()).collect();
        let normalise = |y_blc| {
            within(tape, "mamba", || Ok(ops::divided_rms_norm(tape, y_blc, &weights, span, epsilon)?))
        };
        let gate = |operands: [Var; 2]| {
            map(tape, operands, |_, [y_blc, gate_blc]| {
                within(tape, "mamba", || {
                    let gate_blc = ops::activation(tape, gate_blc, Activation::Silu)?;
                    Ok(ops::multiply(tape, y_blc, gate_blc)?)
                })
            })
        };
        match norm_first {
            true => gate([normalise(y_blc)?, gate_blc]),
            false => normalise(gate([y_blc, gate_blc])?),
        }
    }
}

impl StateShard {
    /// Gates and normalises the results of the scan.
    fn gate(&self, tape: &Tape, [y, gate]: [Var; 2], sizes: &StateSpaceSizes) -> Result<Var> {
        let gate = ops::activation(tape, gate, Activation::Silu)?;
        match sizes.norm_first {
            true => Ok(ops::multiply(tape, self.normalise(tape, y, sizes)?, gate)?),
            false => self.normalise(tape, ops::multiply(tape, y, gate)?, sizes),
        }
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
        let y_bld = match self.computes_jointly(tape) {
            true => self.forward_shards(tape, x_bld)?,
            false => x_bld.each_shard(tape, |x_bld| self.forward_shards(tape, x_bld))?,
        };
        self.output.leave(tape, y_bld, dtype)
    }
}
