//! Names, types and shapes of the tensors that an optimizer keeps.

use std::ops::Range;

use device::DType;
use tensor::ops::optimizer::{BLOCK, StateTensor, UpdateRule};
use tensor::{Shape, Tensor};

/// Start of the names of arrays with averages of weights, before the parameter's name.
pub const AVERAGE_PREFIX: &str = "ema.";

/// Name, type and granularity of a tensor that an optimizer keeps for a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateArray {
    /// Name: `adamw.first.<parameter>` for a state, `adamw.first_maxima.<parameter>` for its block maxima.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Number of parameter elements per element of the array: 1, or [`BLOCK`] for maxima.
    pub per: usize,
}

impl StateArray {
    /// Returns the array of a parameter's master weights, which is named as the parameter.
    pub fn master(parameter: &str) -> StateArray {
        StateArray { name: parameter.to_owned(), dtype: DType::F32, per: 1 }
    }

    /// Returns the array of the average of a parameter's master weights.
    pub fn average(parameter: &str) -> StateArray {
        StateArray { name: format!("{AVERAGE_PREFIX}{parameter}"), dtype: DType::F32, per: 1 }
    }

    /// Returns the arrays of a state in `dtype`: the state itself and, for 8 bits, its block maxima.
    fn for_state(state: &StateTensor, parameter: &str, dtype: DType) -> impl Iterator<Item = StateArray> {
        let own = StateArray { name: format!("{}.{parameter}", state.name), dtype, per: 1 };
        let name = format!("{}_maxima.{parameter}", state.name);
        let maxima = StateArray { name, dtype: DType::F32, per: BLOCK };
        std::iter::once(own).chain((dtype == DType::U8).then_some(maxima))
    }

    /// Returns all arrays that `rule` keeps for a parameter. `dtype` is the type of states: f32, bf16, or u8
    /// for 8 bits.
    pub fn all(rule: &UpdateRule, parameter: &str, dtype: DType) -> Vec<StateArray> {
        rule.states().iter().flat_map(|state| StateArray::for_state(state, parameter, dtype)).collect()
    }

    /// Returns the range of the array's elements for a range of the parameter's elements.
    pub fn range(&self, elements: Range<usize>) -> Range<usize> {
        elements.start / self.per..elements.end.div_ceil(self.per)
    }

    /// Returns the shape of the array for a parameter of this shape.
    pub fn shape(&self, parameter: Shape) -> Shape {
        match self.per {
            1 => parameter,
            per => [parameter.elements().div_ceil(per)].into(),
        }
    }
}

/// A tensor that the optimizer keeps, with its name.
#[derive(Clone, Debug)]
pub struct NamedState<'a> {
    /// Array to which the tensor, or the whole that it is a shard of, belongs.
    pub array: StateArray,
    /// Index of the tensor's slot.
    pub slot: usize,
    /// The tensor itself.
    pub tensor: &'a Tensor,
}
