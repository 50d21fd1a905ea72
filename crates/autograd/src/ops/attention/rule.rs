//! The backward rule of attention.

use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops;
use tensor::ops::attention::Settings;
use tensor::ops::rearrange;

use super::block::{OPERATOR, QueryBlock, apart, together};
use super::layout::Layout;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::part;
use crate::sink::{GradientSink, give_gradient};
use crate::weight::Weight;

/// Backward of [`attention`](super::attention()).
#[derive(Debug)]
pub struct AttentionRule {
    /// One block of whole sequences, or one block per local piece; empty once backward has run.
    pub(super) blocks: Vec<QueryBlock>,
    pub(super) keys: Keys,
    pub(super) settings: Settings,
    pub(super) sinks: Option<Weight>,
    /// Gradients of the sinks and the dtype of the operands, kept between the input and weight halves of
    /// backward.
    pub(super) sums: Option<(Tensor, DType)>,
}

/// The keys and values that a query block reads.
#[derive(Debug)]
pub(super) enum Keys {
    /// The keys and values of the block itself, which has whole sequences.
    Own {
        /// Number of shards in the batch.
        shards: usize,
        /// Whether to measure the largest magnitudes of the gradients.
        measures: bool,
    },
    /// The keys and values of all pieces, also on other ranks.
    Pieces(Layout),
}

impl AttentionRule {
    /// Returns the gradients of whole sequences of `shards` shards, and keeps the gradients of the sinks.
    fn of_sequences(
        &mut self,
        mut blocks: Vec<QueryBlock>,
        gradients: Vec<Tensor>,
        (shards, measures): (usize, bool),
    ) -> Result<ValueGradients> {
        let gradient = together(gradients, request())?;
        let block = blocks.pop().ok_or(AutogradError::NotRecorded)?;
        if let Some(sinks) = &self.sinks {
            let sums = block.sink_gradients(&gradient, sinks, self.settings)?;
            self.sums = sums.map(|sums| (sums, gradient.dtype()));
        }
        let arrays = block.backward(None, &gradient, self.settings, measures)?;
        let arrays = arrays.into_iter().map(|array| apart(array, shards)).collect::<Result<Vec<_>>>()?;
        Ok(arrays.into_iter().flatten().map(Some).collect())
    }

    /// Returns the gradients of the pieces, then the gradients of the sinks from each piece. Gradients of
    /// keys and values are rounded for each piece of queries, summed in f32 in a fixed tree, and rounded once
    /// more.
    fn of_pieces(
        &self,
        layout: &Layout,
        blocks: Vec<QueryBlock>,
        gradients: Vec<Tensor>,
    ) -> Result<ValueGradients> {
        let all = layout.gather(&blocks, Category::ActivationGradient)?;
        let mut of_queries = Vec::with_capacity(blocks.len());
        let mut sums = Vec::new();
        let parts = blocks.len();
        let mut of_sinks = Vec::new();
        for (block, gradient) in blocks.into_iter().zip(gradients) {
            if let Some(sinks) = &self.sinks {
                of_sinks.push(block.sink_gradients(&gradient, sinks, self.settings)?);
            }
            let mut arrays = block.backward(Some(&all), &gradient, self.settings, false)?.into_iter();
            let (Some(dq), Some(sum)) = (arrays.next(), arrays.next()) else {
                return Err(AutogradError::NotRecorded);
            };
            of_queries.push(dq);
            let sum = in_f32(sum)?;
            drop(block);
            push_sum(&mut sums, sum)?;
        }
        drop(all);
        let (_, sum) = sums.pop().ok_or(AutogradError::NotRecorded)?;
        let of_keys_values = layout.scatter(sum, parts)?;
        let packed = |(index, dq): (usize, Tensor)| {
            let own = part(&of_keys_values, index, parts)?;
            let sum = ops::rounded_sum::forward(&[own], None, dq.dtype(), request())?;
            Ok(Some(rearrange::concatenate(&[&dq, &sum], 2)?))
        };
        let of_qkv = of_queries.into_iter().enumerate().map(packed);
        of_qkv.chain(of_sinks.into_iter().map(Ok)).collect()
    }
}

fn request() -> Request {
    Request::new(Category::ActivationGradient, OPERATOR)
}

fn in_f32(sum: Tensor) -> Result<Tensor> {
    if sum.dtype() == DType::F32 {
        return Ok(sum);
    }
    let wide = sum.like(DType::F32, request())?;
    ops::cast::into(&sum, &wide)?;
    Ok(wide)
}

/// Adds one more piece's sum to a stack of sums of complete subtrees, each with its level.
fn push_sum(sums: &mut Vec<(u32, Tensor)>, sum: Tensor) -> Result<()> {
    sums.push((0, sum));
    while let [.., (first, _), (second, _)] = &sums[..]
        && first == second
    {
        let (Some((level, second)), Some((_, first))) = (sums.pop(), sums.pop()) else { return Ok(()) };
        ops::add::into(&first, &second)?;
        sums.push((level + 1, first));
    }
    Ok(())
}

impl Rule for AttentionRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.blocks.iter().flat_map(QueryBlock::saved).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let blocks = std::mem::take(&mut self.blocks);
        let gradients = outputs.into_iter().collect::<Option<Vec<_>>>().ok_or(AutogradError::NotRecorded)?;
        match &self.keys {
            Keys::Own { shards, measures } => self.of_sequences(blocks, gradients, (*shards, *measures)),
            Keys::Pieces(layout) => self.of_pieces(layout, blocks, gradients),
        }
    }

    fn has_weights(&self) -> bool {
        // The sinks of pieces are operands, whose gradients are summed over pieces.
        let is_whole = matches!(self.keys, Keys::Own { .. });
        is_whole && self.sinks.as_ref().is_some_and(Weight::is_trained)
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let (Some(sinks), Some((sums, dtype))) = (&self.sinks, &self.sums) else { return Ok(()) };
        give_gradient(sink, sinks, |target| ops::attention::accumulate_sinks(sums, *dtype, target))
    }
}
