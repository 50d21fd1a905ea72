//! A parameter of a group with its state.

use device::{Category, DType, Device, Request};
use tensor::ops::optimizer::{self, Item, Stream, UpdateRule};
use tensor::ops::weight_average::Averaged;
use tensor::{Result, Tensor};

use crate::average;
use crate::slot::Slot;

/// Type, rounding and offsets of the tensors in [`UpdateRule::states`].
#[derive(Clone, Debug)]
pub struct StateOptions {
    /// Type of states: f32; bf16, rounded stochastically at each update; or u8, for 8-bit codes in blocks.
    pub dtype: DType,
    /// Seed of the random numbers for stochastic rounding.
    pub seed: u64,
    /// Index of each slot's first element in its whole parameter, for shards; 0 for slots that are not
    /// listed.
    pub firsts: Vec<usize>,
    /// Whether an average of the master weights over updates is kept, in f32.
    pub average: bool,
}

impl Default for StateOptions {
    /// Returns the options for f32 states.
    fn default() -> Self {
        StateOptions { dtype: DType::F32, seed: 0, firsts: Vec::new(), average: false }
    }
}

/// A parameter of a group with its state.
#[derive(Debug)]
pub(crate) struct Member {
    /// Index of the slot and of its gradient among all slots.
    pub(crate) index: usize,
    pub(crate) slot: Slot,
    /// The f32 master weight, which updates change. For an f32 weight it is the weight itself, in shared
    /// storage. For a bf16 weight it is a separate tensor, 0 until the caller fills it; each update rounds it
    /// into the weight.
    pub(crate) master: Tensor,
    /// The states, in the order of [`UpdateRule::states`].
    pub(crate) states: Vec<Tensor>,
    /// Largest magnitude of each block of each state, if states have 8 bits.
    pub(crate) maxima: Vec<Tensor>,
    /// Average of the master over updates, f32; `None` if there is none.
    pub(crate) average: Option<Tensor>,
    /// Random numbers for the stochastic rounding of states.
    pub(crate) stream: Stream,
}

impl Member {
    /// Allocates the state of a slot on `device`, which may be a host pool.
    pub(crate) fn new(
        device: &Device,
        rule: &UpdateRule,
        options: &StateOptions,
        index: usize,
        slot: &Slot,
    ) -> Result<Self> {
        let _scope = device.module(&slot.name);
        let zeros = |elements, operator: &'static str, dtype: DType| {
            Tensor::zeros(device, elements, dtype, Request::new(Category::OptimizerState, operator))
        };
        let shape = slot.weight.shape();
        let master = match slot.weight.dtype() {
            DType::F32 => slot.weight.clone(),
            _ => zeros(shape, "optimizer.master", DType::F32)?,
        };
        let mut states = Vec::new();
        let mut maxima = Vec::new();
        for state in rule.states() {
            states.push(zeros(shape, state.name, options.dtype)?);
            if options.dtype == DType::U8 {
                let blocks = optimizer::blocks(slot.weight.elements());
                maxima.push(zeros([blocks].into(), "optimizer.maxima", DType::F32)?);
            }
        }
        let start = options.firsts.get(index).copied().unwrap_or(0);
        let stream = Stream::new(options.seed, &slot.name, start);
        let average = options.average.then(|| average::allocate(device, slot)).transpose()?;
        Ok(Member { index, slot: slot.clone(), master, states, maxima, average, stream })
    }

    /// Returns the number of elements of the parameter.
    pub(crate) fn elements(&self) -> usize {
        self.slot.weight.elements()
    }

    /// Returns whether the weight is a rounded copy of its master.
    pub(crate) fn is_copied(&self) -> bool {
        !self.master.shares_storage(&self.slot.weight)
    }

    /// Returns the rounded copy of the master that passes compute with; `None` if they read the master.
    pub(crate) fn copy(&self) -> Option<&Tensor> {
        self.is_copied().then_some(&self.slot.weight)
    }

    /// Returns the master and its average; `None` if there is no average.
    pub(crate) fn averaged(&self) -> Option<Averaged<'_>> {
        self.average.as_ref().map(|average| Averaged { weight: &self.master, average })
    }

    /// Returns the operands of an update of the whole parameter.
    pub(crate) fn item<'a>(&'a self, gradient: &'a Tensor) -> Item<'a> {
        Item {
            weight: &self.master,
            gradient,
            states: &self.states,
            maxima: &self.maxima,
            compute: self.copy(),
            decay: self.slot.decay,
            stream: self.stream,
        }
    }
}
