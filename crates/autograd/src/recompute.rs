//! Recomputation: a segment of a model saves only its inputs, on the device or in host memory, and runs again
//! in backward.

use device::Device;
use tensor::Tensor;

use crate::backward::PendingWeights;
use crate::error::{AutogradError, Result};
use crate::offload::Input;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Placements, Source, Var};
use crate::sink::GradientSink;
use crate::tape::{SharedPass, Tape};

/// Name of the operator whose backward runs a segment again. In forward, only the segment's own operators
/// appear.
pub const RECOMPUTE: &str = "recompute";

/// A part of a model that can run again. Its fields are parameters and sizes, never activations.
pub trait Segment {
    /// Error of the segment.
    type Error: From<AutogradError> + std::error::Error + Send + Sync + 'static;

    /// Computes the outputs from the inputs. Backward calls this function again: it must make the same
    /// operator calls on the same values, and draws the same random numbers. In the second run the last
    /// call's output may be left uncomputed, so only operators may read values.
    fn run(&self, tape: &Tape, inputs: Vec<Var>) -> std::result::Result<Vec<Var>, Self::Error>;
}

/// Runs `segment` and saves only its inputs; backward runs it again. The bits are the same as without
/// recomputation. On a tape that records nothing, the segment runs as usual.
pub fn recompute<S: Segment + 'static>(
    tape: &Tape,
    segment: S,
    inputs: Vec<Var>,
) -> std::result::Result<Vec<Var>, S::Error> {
    if !tape.is_recording() {
        return segment.run(tape, inputs);
    }
    let layout: Vec<Layout> = inputs.iter().map(Layout::of_value).collect();
    let blocks: Vec<Var> = inputs.into_iter().flat_map(Var::into_blocks).collect();
    let sources: Vec<_> = blocks.iter().map(Var::block_source).collect();
    let tensors: Vec<_> = blocks.iter().map(|input| input.tensor().clone()).collect();
    let kept = match &tape.pass().offload {
        Some(offload) => offload.keep(tape.pass().micro_batch, tensors)?,
        None => tensors.into_iter().map(Input::Here).collect(),
    };
    let silent = tape.first_run();
    let constants = blocks.into_iter().map(|input| silent.constant(input.into_tensor()));
    let outputs = segment.run(&silent, joined(constants, &layout))?;
    let of_outputs: Vec<Layout> = outputs.iter().map(Layout::of_value).collect();
    let outputs = outputs.into_iter().flat_map(Var::into_blocks).map(Var::into_tensor).collect();
    let rule = || RecomputeRule {
        segment,
        calls: silent.calls(),
        has_weights: silent.has_weights(),
        device: tape.device().clone(),
        pass: tape.shared_pass(),
        inputs: kept,
        layout,
        pending: None,
    };
    let outputs = tape.record(&sources, outputs, rule)?;
    Ok(joined(outputs.into_iter(), &of_outputs))
}

/// Number of blocks and placements of a value whose blocks are stored separately.
#[derive(Clone, Copy, Debug)]
struct Layout {
    blocks: usize,
    placements: Placements,
}

impl Layout {
    fn of_value(value: &Var) -> Self {
        Layout { blocks: value.blocks(), placements: value.placements() }
    }
}

/// Reassembles a sequence of blocks into values of these layouts.
fn joined(mut blocks: impl Iterator<Item = Var>, layout: &[Layout]) -> Vec<Var> {
    let value = |layout: &Layout| {
        Some(Var::from_blocks(blocks.by_ref().take(layout.blocks))?.with_placements(layout.placements))
    };
    layout.iter().filter_map(value).collect()
}

/// Backward of [`recompute`].
#[derive(Debug)]
pub struct RecomputeRule<S> {
    segment: S,
    /// Number of operator calls in the segment.
    calls: u32,
    /// Whether the segment has trained weights.
    has_weights: bool,
    device: Device,
    pass: SharedPass,
    inputs: Vec<Input>,
    layout: Vec<Layout>,
    /// The weight halves of the segment's rules, kept between the halves of a divided backward.
    pending: Option<PendingWeights>,
}

/// The second run of a segment.
struct Again {
    tape: Tape,
    /// Leaves that stand for the inputs.
    leaves: Vec<Source>,
    /// Outputs that have a gradient, with the gradient.
    seeds: Vec<(Source, Tensor)>,
}

impl<S: Segment> RecomputeRule<S> {
    /// Runs the segment again on a tape of its own, consuming its saved inputs.
    fn again(&mut self, gradients: ValueGradients, wanted: &[bool]) -> Result<Again> {
        let tape = Tape::replaying(&self.device, self.pass.clone(), self.calls);
        let inputs = std::mem::take(&mut self.inputs).into_iter().map(Input::take);
        let inputs = inputs.collect::<Result<Vec<_>>>()?.into_iter().zip(wanted);
        let enter = |(tensor, wanted): (Tensor, &bool)| {
            if *wanted { tape.leaf(tensor) } else { tape.constant(tensor) }
        };
        let inputs: Vec<Var> = inputs.map(enter).collect();
        let leaves = inputs.iter().map(Var::block_source).collect();
        let outputs = self.segment.run(&tape, joined(inputs.into_iter(), &self.layout));
        let outputs = outputs.map_err(|error| AutogradError::Recompute(Box::new(error)))?;
        let sources = outputs.into_iter().flat_map(Var::into_blocks).map(|output| output.block_source());
        let seeds = sources.zip(gradients).filter_map(|(output, gradient)| Some((output, gradient?)));
        let seeds = seeds.filter(|(output, _)| output.id.is_some());
        Ok(Again { seeds: seeds.collect(), leaves, tape })
    }
}

impl<S: Segment> Rule for RecomputeRule<S> {
    fn operator(&self) -> &'static str {
        RECOMPUTE
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let here = self.inputs.iter().filter_map(|input| match input {
            Input::Here(tensor) => Some(Saved::new("input", tensor)),
            Input::Away(_) => None,
        });
        here.collect()
    }

    fn has_weights(&self) -> bool {
        self.has_weights
    }

    fn backward(
        &mut self,
        outputs: ValueGradients,
        wanted: &[bool],
        sink: &mut dyn GradientSink,
    ) -> Result<ValueGradients> {
        let Again { tape, leaves, seeds } = self.again(outputs, wanted)?;
        let mut gradients = tape.backward_from(seeds, sink)?;
        Ok(leaves.into_iter().map(|leaf| gradients.take(leaf)).collect())
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let Again { tape, leaves, seeds } = self.again(outputs, wanted)?;
        let (mut gradients, pending) = tape.backward_input_from(seeds)?;
        self.pending = Some(pending);
        Ok(leaves.into_iter().map(|leaf| gradients.take(leaf)).collect())
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        self.pending.map_or(Ok(()), |pending| pending.backward_weight(sink))
    }
}
