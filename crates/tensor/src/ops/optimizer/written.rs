//! Elements that an update writes on the CPU.

use device::{DType, WriteGuard, bf16};

use super::item::Item;
use crate::Result;

/// The elements that an item's update writes: weights, which it also reads, or directions.
pub(super) enum WrittenGuard<'a> {
    Weights(WriteGuard<'a, f32>),
    Directions(WriteGuard<'a, bf16>),
}

/// Consecutive elements that an update writes.
pub(super) enum Written<'a> {
    Weights(&'a mut [f32]),
    Directions(&'a mut [bf16]),
}

impl<'a> WrittenGuard<'a> {
    pub(super) fn lock(item: &Item<'a>) -> Result<Self> {
        Ok(match item.weight.dtype() {
            DType::Bf16 => WrittenGuard::Directions(item.weight.write()?),
            _ => WrittenGuard::Weights(item.weight.write()?),
        })
    }

    /// Divides the elements into chunks of `elements`.
    pub(super) fn chunks(&mut self, elements: usize) -> Vec<Written<'_>> {
        match self {
            WrittenGuard::Weights(weights) => weights.chunks_mut(elements).map(Written::Weights).collect(),
            WrittenGuard::Directions(all) => all.chunks_mut(elements).map(Written::Directions).collect(),
        }
    }
}

impl Written<'_> {
    /// Calls `body` with the weights, or with zeros that it replaces by directions, which are then rounded.
    pub(super) fn update(self, body: impl FnOnce(&mut [f32])) {
        match self {
            Written::Weights(weights) => body(weights),
            Written::Directions(rounded) => {
                let mut directions = vec![0.0; rounded.len()];
                body(&mut directions);
                rounded.iter_mut().zip(directions).for_each(|(to, from)| *to = bf16::from_f32(from));
            }
        }
    }
}
