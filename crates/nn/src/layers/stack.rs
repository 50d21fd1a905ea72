//! Layers in sequence. Some may recompute their activations in backward.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use autograd::{AutogradError, Segment, Tape, Var, recompute};

use crate::error::{NnError, Result};
use crate::recompute::Recompute;

/// The value between two layers. A layer determines the shape of its output, so blocks may change it.
///
/// Between pipeline stages, and at the start of a recomputed segment, a stream is reduced to one variable in
/// the compute dtype ([`Stream::close`], [`Stream::open`]). This does not change the bits of the following
/// layers.
pub trait Stream: Sized {
    /// Converts the stream to one variable.
    fn close(self, tape: &Tape) -> Result<Var>;

    /// Recreates the stream from the result of [`Stream::close`].
    fn open(closed: Var) -> Self;

    /// Returns all variables of the stream, as outputs of a recomputed segment.
    fn into_variables(self) -> Vec<Var>;

    /// Inverse of [`Stream::into_variables`]; `None` if the number of variables is wrong.
    fn from_variables(variables: Vec<Var>) -> Option<Self>;

    /// Removes variables that layers read but do not change.
    fn split_inputs(self) -> (Self, Vec<Var>) {
        (self, Vec::new())
    }

    /// Adds the variables of [`Stream::split_inputs`].
    #[must_use]
    fn with_inputs(self, _inputs: Vec<Var>) -> Self {
        self
    }
}

impl Stream for Var {
    fn close(self, _: &Tape) -> Result<Var> {
        Ok(self)
    }

    fn open(closed: Var) -> Self {
        closed
    }

    fn into_variables(self) -> Vec<Var> {
        vec![self]
    }

    fn from_variables(mut variables: Vec<Var>) -> Option<Self> {
        variables.pop().filter(|_| variables.is_empty())
    }
}

/// A layer of a [`Stack`].
pub trait Layer {
    /// Type of the layer's input and output.
    type Stream: Stream;

    /// Computes the layer's output from its input.
    fn forward(&self, tape: &Tape, stream: Self::Stream) -> Result<Self::Stream>;
}

/// Layers in sequence.
pub struct Stack<L> {
    layers: Rc<[L]>,
    recompute: Recompute,
}

impl<L> Stack<L> {
    /// Creates a stack of `layers` that keeps all activations.
    pub fn new(layers: Vec<L>) -> Self {
        Stack { layers: layers.into(), recompute: Recompute::NONE }
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Makes the layers selected by `recompute` recompute their activations in backward.
    #[must_use]
    pub fn recomputing(self, recompute: Recompute) -> Self {
        Stack { recompute, ..self }
    }
}

impl<L: Layer + 'static> Stack<L> {
    /// Runs all layers in order.
    pub fn forward(&self, tape: &Tape, mut stream: L::Stream) -> Result<L::Stream> {
        for part in self.recompute.parts(self.layers.len()) {
            let run = LayerRange { layers: Rc::clone(&self.layers), range: part.layers };
            stream = match part.again && tape.is_recording() {
                true => {
                    let (stream, inputs) = stream.split_inputs();
                    let all = std::iter::once(stream.close(tape)?).chain(inputs.clone()).collect();
                    stream_of::<L::Stream>(recompute(tape, run, all)?)?.with_inputs(inputs)
                }
                false => run.forward(tape, stream)?,
            };
        }
        Ok(stream)
    }
}

/// Consecutive layers of a stack.
struct LayerRange<L> {
    layers: Rc<[L]>,
    range: Range<usize>,
}

impl<L: Layer> LayerRange<L> {
    fn forward(&self, tape: &Tape, stream: L::Stream) -> Result<L::Stream> {
        self.layers[self.range.clone()].iter().try_fold(stream, |stream, layer| layer.forward(tape, stream))
    }
}

impl<L: Layer> Segment for LayerRange<L> {
    type Error = NnError;

    fn run(&self, tape: &Tape, inputs: Vec<Var>) -> Result<Vec<Var>> {
        let mut inputs = inputs.into_iter();
        let input = inputs.next().ok_or(AutogradError::NotRecorded)?;
        let stream = L::Stream::open(input).with_inputs(inputs.collect());
        Ok(self.forward(tape, stream)?.into_variables())
    }
}

fn stream_of<S: Stream>(outputs: Vec<Var>) -> Result<S> {
    Ok(S::from_variables(outputs).ok_or(AutogradError::NotRecorded)?)
}

impl<L: fmt::Debug> fmt::Debug for Stack<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack").field("layers", &self.layers).field("recompute", &self.recompute).finish()
    }
}
