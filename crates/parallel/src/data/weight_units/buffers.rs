//! The buffers of gathered units: weights, and both layouts of weights in FP8.

use autograd::ops::Fp8Weight;
use device::{Arrival, Category, DType, Device, Request, StreamKind};
use nn::{ParameterId, Parameters};
use tensor::Tensor;
use tensor::ops::fp8_linear::{Quantised, Scaled};
use tensor::ops::fp8_parts;

use super::codes::Codes;
use crate::data::buffer_assignment::BufferAssignment;
use crate::data::weight_layout::{FlatWeights, ValueKind, WeightLayout};
use crate::error::{ParallelError, Result};

/// Number of kinds of values in a buffer: the gathered kinds, and transposed FP8 codes.
const KINDS: usize = ValueKind::ALL.len() + 1;
/// Index of the kind of FP8 codes as stored.
const STORED: usize = ValueKind::Fp8 as usize;
/// Index of the kind of transposed FP8 codes.
const TURNED: usize = ValueKind::ALL.len();
/// Alignment of each layout's codes, in elements.
const ALIGNMENT: usize = 512;

/// Buffers in which units take turns.
#[derive(Debug)]
pub(super) struct UnitBuffers {
    /// Index of each unit's buffer.
    buffer_of: Vec<usize>,
    /// The tensors of each buffer, by kind; `None` if no unit needs one.
    buffers: Vec<[Option<Tensor>; KINDS]>,
    /// By unit and array: kind, first element in the buffer, and number of elements.
    arrays: Vec<Vec<(usize, usize, usize)>>,
    /// Transposed FP8 codes of each parameter, if it has any.
    turned: Vec<Option<Tensor>>,
    /// By unit, FP8 copies to cast from gathered weights.
    copies: Vec<Vec<(Fp8Weight, Quantised)>>,
}

impl UnitBuffers {
    /// Allocates the buffers. A unit in use and the `prefetch` units after it get different buffers.
    pub(super) fn new(
        device: &Device,
        parameters: &Parameters,
        layout: &WeightLayout,
        codes: &Codes,
        prefetch: usize,
    ) -> Result<Self> {
        let kinds: [DType; KINDS] = std::array::from_fn(|kind| match ValueKind::ALL.get(kind) {
            Some(kind) => kind.gathered_as(parameters),
            None => fp8_parts::CODES,
        });
        let (sizes, arrays) = sizes(parameters, layout);
        let bytes: Vec<usize> = sizes
            .iter()
            .map(|elements| {
                elements.iter().zip(kinds).map(|(elements, dtype)| elements * dtype.bytes()).sum()
            })
            .collect();
        let BufferAssignment { buffer_of, elements } =
            BufferAssignment::new(&bytes, &layout.order, prefetch.saturating_add(1));
        let mut longest = vec![[0; KINDS]; elements.len()];
        for (unit, elements) in sizes.iter().enumerate() {
            let longest = &mut longest[buffer_of[unit]];
            longest.iter_mut().zip(elements).for_each(|(most, elements)| *most = (*most).max(*elements));
        }
        let buffer = |elements: [usize; KINDS]| -> Result<[Option<Tensor>; KINDS]> {
            let request = Request::new(Category::Communication, "gathered_weights").on(StreamKind::Reduce);
            let tensor = |kind: usize| match elements[kind] {
                0 => Ok(None),
                elements => Tensor::empty(device, [elements], kinds[kind], request).map(Some),
            };
            let mut tensors = [const { None }; KINDS];
            for (kind, own) in tensors.iter_mut().enumerate() {
                *own = tensor(kind)?;
            }
            Ok(tensors)
        };
        let buffers = longest.into_iter().map(buffer).collect::<Result<Vec<_>>>()?;
        let turned = vec![None; parameters.list().len()];
        let copies = vec![Vec::new(); sizes.len()];
        let mut buffers = UnitBuffers { buffer_of, buffers, arrays, turned, copies };
        buffers.locate_copies(device, parameters, codes, layout.ranks())?;
        Ok(buffers)
    }

    /// Assigns memory to the FP8 layouts of all weights.
    fn locate_copies(
        &mut self,
        device: &Device,
        parameters: &Parameters,
        codes: &Codes,
        ranks: usize,
    ) -> Result<()> {
        let mut ends = vec![[0; 2]; self.copies.len()];
        for (unit, arrays) in self.arrays.iter().enumerate().filter(|_| ValueKind::Fp8.is_gathered(ranks)) {
            let of_codes = arrays.iter().filter(|(kind, ..)| *kind == STORED);
            ends[unit][0] = of_codes.map(|(_, first, elements)| first + elements).max().unwrap_or(0);
        }
        for (number, parameter) in parameters.list().iter().enumerate() {
            let Some(copies) = parameters.fp8().copies_of(&parameter.weight) else { continue };
            let unit = parameter.unit;
            let shape = parameter.weight.shape();
            let rows = shape.rows();
            let columns = shape.columns();
            let buffer = &self.buffers[self.buffer_of[unit]];
            let Some(turned) = &buffer[TURNED] else { continue };
            let [end, turned_end] = &mut ends[unit];
            let transposed = turned.view(*turned_end, [columns, rows])?;
            *turned_end += (rows * columns).next_multiple_of(ALIGNMENT);
            if codes.has(number) {
                self.turned[number] = Some(transposed);
                continue;
            }
            let Some(stored) = &buffer[STORED] else { continue };
            let values = stored.view(*end, [rows, columns])?;
            *end += (rows * columns).next_multiple_of(ALIGNMENT);
            let [by_row, by_column] = factors(device, copies, [rows, columns])?;
            let layouts = Quantised {
                stored: Some(Scaled { values, scales: by_row }),
                transposed: Some(Scaled { values: transposed, scales: by_column }),
            };
            self.copies[unit].push((copies.clone(), layouts));
        }
        Ok(())
    }

    /// Number of buffers.
    pub(super) fn count(&self) -> usize {
        self.buffers.len()
    }

    /// Index of a unit's buffer.
    pub(super) fn buffer_of(&self, unit: usize) -> usize {
        self.buffer_of[unit]
    }

    /// Returns the memory of a unit's array.
    pub(super) fn array(&self, unit: usize, array: usize) -> Result<Tensor> {
        let (kind, first, elements) = self.arrays[unit][array];
        let tensor = self.buffers[self.buffer_of[unit]][kind].as_ref();
        let missing = || ParallelError::Grid(format!("unit {unit} has no buffer"));
        Ok(tensor.ok_or_else(missing)?.view(first, [elements])?)
    }

    /// Returns the memory of a parameter's transposed codes.
    ///
    /// # Errors
    /// The parameter's codes are not gathered.
    pub(super) fn turned(&self, parameter: usize) -> Result<Tensor> {
        let missing = || ParallelError::Grid(format!("parameter {parameter} has no codes"));
        self.turned[parameter].clone().ok_or_else(missing)
    }

    /// Records the event at which a unit's values arrive.
    pub(super) fn arrive(&self, unit: usize, arrival: &Arrival) {
        self.buffers[self.buffer_of[unit]].iter().flatten().for_each(|tensor| tensor.arrives(arrival));
    }

    /// Provides memory for FP8 layouts that are cast from a unit's gathered weights.
    pub(super) fn fill_copies(&self, unit: usize) {
        self.copies[unit].iter().for_each(|(copies, layouts)| copies.fill_later(layouts.clone()));
    }

    /// Drops the FP8 layouts of a unit.
    pub(super) fn release_copies(&self, unit: usize) {
        self.copies[unit].iter().for_each(|(copies, _)| copies.release());
    }
}

/// Number of elements that each unit needs of each kind, and the location of each of its arrays.
type Sizes = (Vec<[usize; KINDS]>, Vec<Vec<(usize, usize, usize)>>);

fn sizes(parameters: &Parameters, layout: &WeightLayout) -> Sizes {
    let mut sizes = vec![[0; KINDS]; layout.units.len()];
    let mut positions = Vec::new();
    for (size, arrays) in sizes.iter_mut().zip(&layout.units) {
        let position = |flat: &FlatWeights| {
            let kind = flat.kind as usize;
            let first = size[kind];
            size[kind] += if flat.kind.is_gathered(layout.ranks()) { flat.elements } else { 0 };
            (kind, first, flat.elements)
        };
        positions.push(arrays.iter().map(position).collect());
    }
    for (number, parameter) in parameters.list().iter().enumerate() {
        if parameters.fp8().copies_of(&parameter.weight).is_some() {
            let size = &mut sizes[parameter.unit];
            let is_gathered = parameters.is_only_in_fp8(ParameterId(number));
            let elements = parameter.weight.elements().next_multiple_of(ALIGNMENT);
            size[STORED] += if is_gathered { 0 } else { elements };
            size[TURNED] += elements;
        }
    }
    (sizes, positions)
}

/// Allocates the scales of both layouts of a weight; they are one tensor if the weight has one scale.
fn factors(device: &Device, copies: &Fp8Weight, sizes: [usize; 2]) -> Result<[Tensor; 2]> {
    let request = Request::new(Category::Parameter, "fp8_factors");
    let zeros = |elements: usize| Tensor::zeros(device, [elements], DType::F32, request);
    if copies.is_tensorwise() {
        let one = zeros(1)?;
        return Ok([one.clone(), one]);
    }
    let [rows, columns] = sizes.map(zeros);
    Ok([rows?, columns?])
}
