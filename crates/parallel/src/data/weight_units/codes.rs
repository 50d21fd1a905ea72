//! FP8 codes of sharded weights, which are gathered instead of the weights.

use std::cell::Cell;

use autograd::ops::Fp8Weight;
use collective::{Collective, ProcessGroup};
use device::{Category, DType, Device, Request, StreamKind};
use nn::{ParameterId, Parameters};
use tensor::Tensor;
use tensor::ops::fp8_linear::{Quantised, Scaled};
use tensor::ops::fp8_parts;

use super::staging::Staging;
use crate::data::stream_order::between_compute;
use crate::data::weight_layout::{FlatWeights, ValueKind, WeightLayout};
use crate::error::{ParallelError, Result};

/// Granularity of the number of weights, and distance between scales, in elements: 512 bytes.
const ALIGNMENT: usize = 128;

/// The FP8 codes of a rank's shards, and the scales of the whole weights.
#[derive(Debug)]
pub(super) struct Codes {
    /// By parameter, the FP8 copies and the index among FP8 weights; `None` if no codes are gathered.
    weights: Vec<Option<(Fp8Weight, usize)>>,
    /// By unit and array, the codes of this rank's shard of an FP8 array.
    shards: Vec<Vec<Option<Tensor>>>,
    /// By parameter, the [unit, array] and first element of its shard.
    positions: Vec<([usize; 2], usize)>,
    arrays: Option<Arrays>,
    /// Buffers for shards in host memory.
    staging: Option<Staging>,
    is_current: Cell<bool>,
}

/// Device arrays with an entry per FP8 weight.
#[derive(Debug)]
struct Arrays {
    /// Largest magnitudes of this rank's shards, spread over several words per weight.
    cells: Tensor,
    /// Largest magnitudes of the shards of all ranks, `[ranks, weights]`. [`Arrays::own`] is this rank's row.
    maxima: Tensor,
    own: Tensor,
    /// Scales `[weights, ALIGNMENT]`; only the first element of each row is used.
    factors: Tensor,
}

impl Codes {
    /// Allocates the codes of the shards of `rank`. With `host`, the shards to cast are in that pool.
    /// Allocates nothing without FP8 weights.
    pub(super) fn new(
        (device, host): (&Device, Option<&Device>),
        parameters: &Parameters,
        layout: &WeightLayout,
        rank: usize,
    ) -> Result<Self> {
        let request = Request::new(Category::Parameter, "fp8_weight_shard");
        let shard = |flat: &FlatWeights| {
            let part = [flat.elements / layout.ranks()];
            let is_coded = flat.kind == ValueKind::Fp8;
            is_coded.then(|| Tensor::empty(device, part, fp8_parts::CODES, request)).transpose()
        };
        let shards = layout.units.iter().map(|arrays| arrays.iter().map(shard).collect());
        let shards = shards.collect::<tensor::Result<Vec<Vec<_>>>>()?;
        let mut weights = Vec::new();
        let mut count = 0;
        for (number, parameter) in parameters.list().iter().enumerate() {
            let copies = parameters.fp8().copies_of(&parameter.weight);
            let coded = copies.filter(|_| parameters.is_only_in_fp8(ParameterId(number)));
            weights.push(coded.map(|copies| (copies.clone(), count)));
            count += usize::from(coded.is_some());
        }
        let arrays = (count > 0).then(|| Arrays::new(device, count, layout.ranks(), rank)).transpose()?;
        let positions = (0..weights.len()).map(|parameter| layout.position(parameter, rank)).collect();
        let coded = weights.iter().enumerate().filter(|(_, weight)| weight.is_some());
        let longest = coded.map(|(parameter, _)| layout.range(rank, parameter).len()).max();
        let staged = host.zip(longest);
        let staging = staged.map(|(host, longest)| Staging::new((device, host), longest, parameters.dtype()));
        let staging = staging.transpose()?;
        Ok(Codes { weights, shards, positions, arrays, staging, is_current: Cell::new(false) })
    }

    /// Casts this rank's shards, which `part` returns, if the weights have changed. All ranks call it.
    pub(super) fn cast(
        &self,
        group: &ProcessGroup,
        part: impl Fn(usize) -> Result<Option<(usize, Tensor)>>,
    ) -> Result<()> {
        let Some(arrays) = self.arrays.as_ref().filter(|_| !self.is_current.replace(true)) else {
            return Ok(());
        };
        let coded = self.weights.iter().enumerate();
        let coded: Vec<_> = coded.filter_map(|(at, weight)| weight.as_ref().map(|_| at)).collect();
        // A single rank needs no other rank's maxima, so it copies each weight from the host once.
        let together = if arrays.maxima.shape().rows() == 1 { 1 } else { coded.len() };
        for (round, weights) in coded.chunks(together).enumerate() {
            self.cast_round(group, arrays, (round * together, weights), &part)?;
        }
        Ok(())
    }

    /// Casts this rank's shards of `weights`; their indices among FP8 weights start at `first`.
    fn cast_round(
        &self,
        group: &ProcessGroup,
        arrays: &Arrays,
        (first, weights): (usize, &[usize]),
        part: &impl Fn(usize) -> Result<Option<(usize, Tensor)>>,
    ) -> Result<()> {
        let mut last = None;
        let mut here = |parameter: usize| match (part(parameter)?, &self.staging, &last) {
            (Some((_, part)), Some(staging), known) => {
                let staged = match known {
                    Some((known, staged)) if *known == parameter => Tensor::clone(staged),
                    _ => staging.bring(&part)?,
                };
                last = Some((parameter, staged.clone()));
                Ok(Some(staged))
            }
            (part, ..) => Ok::<_, ParallelError>(part.map(|(_, part)| part)),
        };
        for (number, parameter) in (first..).zip(weights) {
            if let Some(part) = here(*parameter)? {
                let cells = arrays.cells.view(number * fp8_parts::CELLS, [fp8_parts::CELLS])?;
                fp8_parts::measure(&part, &cells)?;
            }
        }
        arrays.exchange(group, first, weights.len())?;
        for (number, parameter) in (first..).zip(weights) {
            let ([unit, array], first) = self.positions[*parameter];
            if let Some(part) = here(*parameter)? {
                let codes = self.shard(unit, array)?.view(first, [part.elements()])?;
                fp8_parts::cast(&part, &arrays.factor(number)?, &codes)?;
            }
        }
        Ok(())
    }

    /// Fills this rank's shard of a weight in host memory, by running `fill` on a device buffer.
    ///
    /// # Errors
    /// `fill` failed, or the shard is on the device.
    pub(super) fn fill_part(&self, part: &Tensor, fill: impl FnOnce(&Tensor) -> Result<()>) -> Result<()> {
        let missing = || ParallelError::Grid("no part of codes is in host memory".to_owned());
        self.staging.as_ref().ok_or_else(missing)?.fill(part, fill)
    }

    /// Provides the gathered codes `[rows, columns]` of a parameter as its FP8 copy. The transposed layout is
    /// made in `turned` when backward needs it.
    pub(super) fn fill(&self, parameter: usize, codes: Tensor, turned: Tensor) -> Result<()> {
        let (Some((copies, number)), Some(arrays)) = (&self.weights[parameter], &self.arrays) else {
            return Ok(());
        };
        let scales = arrays.factor(*number)?;
        let transposed = Some(Scaled { values: turned, scales: scales.clone() });
        copies.fill(Quantised { stored: Some(Scaled { values: codes, scales }), transposed });
        Ok(())
    }

    /// Drops the gathered FP8 copies of a parameter.
    pub(super) fn release(&self, parameter: usize) {
        if let Some((copies, _)) = &self.weights[parameter] {
            copies.release();
        }
    }

    /// Records that the weights have changed.
    pub(super) fn outdate(&self) {
        self.is_current.set(false);
        self.weights.iter().flatten().for_each(|(copies, _)| copies.release());
    }

    /// Returns whether codes of a parameter are gathered instead of its values.
    pub(super) fn has(&self, parameter: usize) -> bool {
        self.weights[parameter].is_some()
    }

    /// Returns the codes of this rank's shard of an array.
    ///
    /// # Errors
    /// The array holds no FP8 weights.
    pub(super) fn shard(&self, unit: usize, array: usize) -> Result<&Tensor> {
        let missing = || ParallelError::Grid(format!("array {array} of unit {unit} has no codes"));
        self.shards[unit][array].as_ref().ok_or_else(missing)
    }

    /// Bytes of the codes of this rank's shards.
    pub(super) fn bytes(&self) -> usize {
        self.shards.iter().flatten().flatten().map(Tensor::bytes).sum()
    }
}

impl Arrays {
    fn new(device: &Device, count: usize, ranks: usize, rank: usize) -> Result<Self> {
        let count = count.next_multiple_of(ALIGNMENT);
        let zeros = |shape: [usize; 2], dtype: DType| {
            Tensor::zeros(device, shape, dtype, Request::new(Category::Parameter, "fp8_factors"))
        };
        let maxima = zeros([ranks, count], DType::U32)?;
        let own = maxima.view(rank * count, [count])?;
        let factors = zeros([count, ALIGNMENT], DType::F32)?;
        Ok(Arrays { cells: zeros([count, fp8_parts::CELLS], DType::U32)?, maxima, own, factors })
    }

    /// Computes the scales of `count` weights starting at index `first`, from the magnitudes of all ranks'
    /// shards. With several ranks, `count` must be all weights.
    fn exchange(&self, group: &ProcessGroup, first: usize, count: usize) -> Result<()> {
        let ranks = self.maxima.shape().rows();
        let count = if ranks == 1 { count } else { self.own.elements() };
        let own = self.own.view(first, [count])?;
        let cells = self.cells.view(first * fp8_parts::CELLS, [count, fp8_parts::CELLS])?;
        fp8_parts::fold(&cells, &own)?;
        if ranks > 1 {
            between_compute(own.device(), || {
                Ok(group.run(
                    Collective::AllGather { input: own.region(), output: self.maxima.region() },
                    StreamKind::Reduce,
                )?)
            })?;
        }
        let maxima = self.maxima.view(first, [ranks, count])?;
        Ok(fp8_parts::factors(&maxima, &self.factors.view(first * ALIGNMENT, [count, ALIGNMENT])?)?)
    }

    /// Returns the scale of a weight.
    fn factor(&self, number: usize) -> Result<Tensor> {
        Ok(self.factors.view(number * ALIGNMENT, [1])?)
    }
}
