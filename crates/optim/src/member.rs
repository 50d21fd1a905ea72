//! A slot of a group with its state, and how it is kept.

use device::{Category, DType, Device, Request};
use tensor::ops::optimizer::{self, Item, Stream, UpdateRule};
use tensor::{Result, Tensor};

use crate::slot::Slot;

/// How the tensors of [`UpdateRule::states`] are kept.
#[derive(Clone, Debug)]
pub struct StateOptions {
    /// f32; bf16, which each update rounds stochastically; or u8 for 8 bits, block by block.
    pub dtype: DType,
    /// The seed of the random numbers of rounding.
    pub seed: u64,
    /// Index of each slot's first element in its whole parameter; 0 for slots that are not listed.
    pub firsts: Vec<usize>,
}

impl Default for StateOptions {
    /// f32.
    fn default() -> Self {
        StateOptions { dtype: DType::F32, seed: 0, firsts: Vec::new() }
    }
}

/// A slot of a group with its state.
#[derive(Debug)]
pub(crate) struct Member {
    /// Index of the slot, and of its gradient.
    pub(crate) index: usize,
    pub(crate) slot: Slot,
    /// The f32 master weight, which is updated. An f32 weight is its own master and shares its storage. The
    /// master of a bf16 weight is a separate tensor, 0 until the caller fills it; each update rounds it into
    /// the weight.
    pub(crate) master: Tensor,
    /// The tensors of [`UpdateRule::states`].
    pub(crate) states: Vec<Tensor>,
    /// The maxima of their blocks, if they are in 8 bits.
    pub(crate) maxima: Vec<Tensor>,
    /// Random numbers that round them.
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
        Ok(Member { index, slot: slot.clone(), master, states, maxima, stream })
    }

    /// Number of elements.
    pub(crate) fn elements(&self) -> usize {
        self.slot.weight.elements()
    }

    /// Returns whether the weight is a rounded copy of its master.
    pub(crate) fn is_copied(&self) -> bool {
        !self.master.shares_storage(&self.slot.weight)
    }

    /// Returns the operands of an update of the whole slot.
    pub(crate) fn item<'a>(&'a self, gradient: &'a Tensor) -> Item<'a> {
        Item {
            weight: &self.master,
            gradient,
            states: &self.states,
            maxima: &self.maxima,
            compute: self.is_copied().then_some(&self.slot.weight),
            decay: self.slot.decay,
            stream: self.stream,
        }
    }
}
