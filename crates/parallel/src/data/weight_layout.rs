//! The layout of sharded weights (ZeRO stage 3) on the ranks that hold them.

use std::ops::Range;

use device::DType;
use nn::{ParameterId, Parameters};
use tensor::ops::fp8_parts;
use tensor::ops::norm::CHUNK;

use super::buckets::BucketLayout;
use super::zero::owned;

/// Weights concatenated in one array. Each rank owns an equal shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FlatWeights {
    /// Number of elements of the array, a multiple of the ranks.
    pub(super) elements: usize,
    /// Each parameter with the index of its first element.
    pub(super) members: Vec<(usize, usize)>,
    /// Kind of the gathered values.
    pub(super) kind: ValueKind,
}

/// Kind of the values gathered for a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// Weights.
    Weights,
    /// FP8 codes instead of the weights.
    Fp8,
    /// Records of codes, the only form of some frozen weights.
    Records,
    /// Frozen weights in a type of their own.
    Frozen,
}

impl ValueKind {
    /// All kinds.
    pub(super) const ALL: [ValueKind; 4] =
        [ValueKind::Weights, ValueKind::Fp8, ValueKind::Records, ValueKind::Frozen];

    fn for_parameter(parameters: &Parameters, number: usize) -> Self {
        match &parameters.list()[number].codes {
            Some(_) => ValueKind::Records,
            None if parameters.list()[number].weight.dtype() != parameters.dtype() => ValueKind::Frozen,
            None if parameters.is_only_in_fp8(ParameterId(number)) => ValueKind::Fp8,
            None => ValueKind::Weights,
        }
    }

    /// Returns the dtype in which ranks hold their shards.
    pub(super) fn held_as(self, parameters: &Parameters) -> DType {
        match self {
            ValueKind::Weights | ValueKind::Fp8 => parameters.dtype(),
            ValueKind::Records => DType::U8,
            ValueKind::Frozen => parameters.frozen_type().unwrap_or(parameters.dtype()),
        }
    }

    /// Returns whether `ranks` ranks gather values of this kind into a buffer. A single rank already holds
    /// its FP8 codes whole on the device.
    pub(super) fn is_gathered(self, ranks: usize) -> bool {
        self != ValueKind::Fp8 || ranks > 1
    }

    /// Returns the dtype of the gathered values.
    pub(super) fn gathered_as(self, parameters: &Parameters) -> DType {
        if self == ValueKind::Fp8 { fp8_parts::CODES } else { self.held_as(parameters) }
    }
}

/// The weights of a stage by unit; each unit is gathered as a whole.
///
/// Trained weights have the layout of their gradients in buckets, so that a rank owns the same elements of
/// both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightLayout {
    ranks: usize,
    /// The arrays of each unit.
    pub(super) units: Vec<Vec<FlatWeights>>,
    /// By parameter: number of elements, its [unit, array], and the first element there.
    positions: Vec<(usize, [usize; 2], usize)>,
    /// The units in the order in which forward uses them.
    pub(super) order: Vec<usize>,
}

impl WeightLayout {
    /// Lays out weights for `ranks` ranks; `layout` is the layout of their gradients.
    pub fn new(parameters: &Parameters, layout: &BucketLayout, ranks: usize) -> Self {
        let count = parameters.list().iter().map(|parameter| parameter.unit + 1).max().unwrap_or(0);
        let mut units: Vec<Vec<FlatWeights>> = vec![Vec::new(); count];
        let mut array_of_bucket = vec![None; layout.elements.len()];
        let mut positions = Vec::new();
        let mut frozen = vec![[None; ValueKind::ALL.len()]; count];
        for ((number, parameter), slot) in
            parameters.list().iter().enumerate().zip(layout.first_uses(parameters))
        {
            let arrays = &mut units[parameter.unit];
            let kind = ValueKind::for_parameter(parameters, number);
            let add = |arrays: &mut Vec<FlatWeights>, elements: usize| {
                arrays.push(FlatWeights { elements, members: Vec::new(), kind });
                arrays.len() - 1
            };
            let (array, offset) = match slot {
                Some(slot) => {
                    let array = array_of_bucket[slot.bucket]
                        .get_or_insert_with(|| add(arrays, layout.elements[slot.bucket]));
                    (*array, slot.offset)
                }
                // All stages with a shared weight hold the same shards of it.
                None if parameter.shared => {
                    (add(arrays, parameter.weight.elements().next_multiple_of(CHUNK * ranks)), 0)
                }
                None => {
                    let array = &mut frozen[parameter.unit][kind as usize];
                    let array = *array.get_or_insert_with(|| add(arrays, 0));
                    let offset = arrays[array].elements;
                    arrays[array].elements += parameter.weight.elements().next_multiple_of(CHUNK);
                    (array, offset)
                }
            };
            arrays[array].members.push((number, offset));
            positions.push((parameter.weight.elements(), [parameter.unit, array], offset));
        }
        let frozen = frozen.into_iter().enumerate();
        for (unit, array) in
            frozen.flat_map(|(unit, arrays)| arrays.into_iter().flatten().map(move |array| (unit, array)))
        {
            let elements = &mut units[unit][array].elements;
            *elements = elements.next_multiple_of(CHUNK * ranks);
        }
        WeightLayout { ranks, units, positions, order: order_of_units(parameters, count) }
    }

    /// Returns the range of a parameter's elements that `rank` holds; empty if none.
    pub fn range(&self, rank: usize, parameter: usize) -> Range<usize> {
        let (elements, [unit, array], offset) = self.positions[parameter];
        owned(elements, offset, self.units[unit][array].elements, self.ranks, rank)
    }

    /// Returns the [unit, array] of a parameter, and the index of its first element within the rank's shard.
    pub(super) fn position(&self, parameter: usize, rank: usize) -> ([usize; 2], usize) {
        let (_, [unit, array], offset) = self.positions[parameter];
        let first = rank * (self.units[unit][array].elements / self.ranks);
        ([unit, array], (offset + self.range(rank, parameter).start).saturating_sub(first))
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }
}

/// Returns all `count` units in the order of their uses. A table that a head uses again comes again.
fn order_of_units(parameters: &Parameters, count: usize) -> Vec<usize> {
    let mut order = Vec::new();
    let mut next = 0;
    for unit in parameters.uses().iter().map(|used| parameters.list()[used.parameter.0].unit) {
        order.extend(next..=unit);
        next = next.max(unit + 1);
        if order.last() != Some(&unit) {
            order.push(unit);
        }
    }
    order.extend(next..count);
    order
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::{DType, Description, Device, DeviceOptions};
    use nn::{Init, Parameters, Tuning};
    use tensor::ops::norm::CHUNK;

    use super::super::buckets::BucketEnd;
    use super::{BucketLayout, FlatWeights, WeightLayout};

    /// Creates a table, two blocks of a weight and a bias, and perhaps a head that uses the table again.
    fn parameters(freeze: &[&str], is_tied: bool) -> Parameters {
        let device = Device::meta(0, Description::host(), &DeviceOptions::default()).unwrap();
        let freeze: Vec<_> = freeze.iter().map(|glob| (*glob).to_owned()).collect();
        let tuning = Arc::new(Tuning::new(&freeze).unwrap());
        let mut parameters = Parameters::new(&device, 1, DType::F32).tuned(tuning);
        let mut create = |unit: &str, sizes: &[usize]| {
            parameters.begin_unit();
            for (number, size) in sizes.iter().enumerate() {
                parameters.create(&format!("{unit}.{number}"), [*size], Init::Constant(0.0)).unwrap();
            }
        };
        create("table", &[5 * CHUNK]);
        create("block.0", &[2 * CHUNK, 1]);
        create("block.1", &[2 * CHUNK, 1]);
        if is_tied {
            parameters.reuse("table.0").unwrap();
        }
        parameters
    }

    fn layout(parameters: &Parameters, ranks: usize) -> WeightLayout {
        let buckets = BucketLayout::from_parameters(parameters, DType::F32, BucketEnd::Unit, ranks);
        WeightLayout::new(parameters, &buckets, ranks)
    }

    #[test]
    fn units_are_used_in_order_and_a_tied_table_again() {
        let layouts = [false, true].map(|is_tied| layout(&parameters(&[], is_tied), 2));
        assert_eq!(layouts[0].order, [0, 1, 2]);
        assert_eq!(layouts[1].order, [0, 1, 2, 0]);
        for layout in layouts {
            let elements = |arrays: &Vec<FlatWeights>| arrays.iter().map(|flat| flat.elements).sum();
            let sizes: Vec<usize> = layout.units.iter().map(elements).collect();
            assert_eq!(sizes, [6 * CHUNK, 4 * CHUNK, 4 * CHUNK]);
            // Backward completes the bias first.
            assert_eq!((layout.range(0, 1), layout.range(1, 1)), (0..CHUNK, CHUNK..2 * CHUNK));
            assert_eq!((layout.range(0, 2), layout.range(1, 2)), (0..1, 1..1));
        }
    }

    #[test]
    fn frozen_weights_have_an_array_of_their_own() {
        let layout = layout(&parameters(&["*.1"], false), 3);
        let arrays = |unit: usize| layout.units[unit].iter().map(|flat| flat.elements).collect::<Vec<_>>();
        assert_eq!([arrays(0), arrays(1)], [vec![6 * CHUNK], vec![3 * CHUNK, 3 * CHUNK]]);
        assert_eq!((layout.range(0, 2), layout.position(2, 0)), (0..1, ([1, 1], 0)));
        // The second rank's shard of the table begins at the second third.
        assert_eq!((layout.range(1, 0), layout.position(0, 1)), (2 * CHUNK..4 * CHUNK, ([0, 0], 0)));
    }
}
