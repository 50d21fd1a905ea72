//! The layers of a branch, which may be divided in lanes.

use autograd::{Tape, Var, Weight, ops};
use device::DType;

use super::stack::each_piece;
use super::{Layer, within};
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

/// The layers `A` of a branch. If they are divided in lanes, each lane has all rows as its input and a part
/// of the output, and the parts are added.
#[derive(Debug)]
pub struct Divided<A> {
    lanes: Vec<A>,
    /// The sum over lanes, if there are several.
    sum: Option<LaneSum>,
}

#[derive(Debug)]
struct LaneSum {
    /// Name of the layer whose outputs are added.
    name: String,
    bias: Option<Weight>,
    /// Rows of a sequence.
    time: usize,
}

impl<A> Divided<A> {
    /// Registers the layers that `make` makes for each lane. If layers are divided, it also registers
    /// `{output}.bias`, `[width]`, where `biases` is true; `output` is the last layer, which divides its
    /// inputs. Sequences have `time` rows.
    ///
    /// # Errors
    /// Errors of `make`; out of memory, a name that exists.
    pub(super) fn new(
        parameters: &mut Parameters,
        (output, width, biases): (&str, usize, bool),
        time: usize,
        make: impl FnMut(&mut Parameters) -> Result<A>,
    ) -> Result<Self> {
        let lanes = parameters.for_each_lane(make)?;
        if !parameters.lanes().is_divided() {
            return Ok(Divided { lanes, sum: None });
        }
        let bias = biases.then(|| parameters.create(&format!("{output}.bias"), [width], Init::Constant(0.0)));
        let name = super::linear::short(output).to_owned();
        Ok(Divided { lanes, sum: Some(LaneSum { name, bias: bias.transpose()?, time }) })
    }

    /// The layers if they are not divided.
    pub(super) fn whole(&self) -> Option<&A> {
        self.lanes.first().filter(|_| self.sum.is_none())
    }
}

/// A layer of a branch that lanes divide.
pub(crate) trait DividedLayer: Layer<Stream = Var> + Sized {
    /// Maps the inputs of the lanes that are here, each by itself.
    ///
    /// # Errors
    /// As [`Layer::forward`].
    fn forward_lanes(lanes: &[Self], tape: &Tape, x: Vec<Var>) -> Result<Vec<Var>> {
        each_lane(lanes, x, |lane, x| lane.forward(tape, x))
    }

    /// Maps the inputs of the lanes that are here, for each lane one for every piece of sequences.
    ///
    /// # Errors
    /// As [`Layer::forward`].
    fn forward_lanes_of_pieces(lanes: &[Self], tape: &Tape, x: Vec<Vec<Var>>) -> Result<Vec<Vec<Var>>> {
        each_lane(lanes, x, |lane, x| lane.forward_pieces(tape, x))
    }
}

/// Returns the results of `f` for each lane with its value.
pub(super) fn each_lane<A, T, U>(
    lanes: &[A],
    values: Vec<T>,
    f: impl Fn(&A, T) -> Result<U>,
) -> Result<Vec<U>> {
    lanes.iter().zip(values).map(|(lane, value)| f(lane, value)).collect()
}

impl<A: DividedLayer> Layer for Divided<A> {
    type Stream = Var;

    /// Maps `[.., width]` to the same shape.
    ///
    /// # Errors
    /// Operands of a wrong shape, out of memory, a failed collective.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        let Some(sum) = &self.sum else { return self.lanes[0].forward(tape, x) };
        let dtype = x.tensor().dtype();
        let inputs = sum.inputs(tape, x, self.lanes.len())?;
        let parts = A::forward_lanes(&self.lanes, tape, inputs)?;
        sum.output(tape, parts, dtype)
    }

    fn forward_pieces(&self, tape: &Tape, x: Vec<Var>) -> Result<Vec<Var>> {
        let Some(sum) = &self.sum else { return self.lanes[0].forward_pieces(tape, x) };
        let Some(dtype) = x.first().map(|x| x.tensor().dtype()) else { return Ok(x) };
        let inputs = each_piece(tape, x, |x| sum.inputs(tape, x, self.lanes.len()))?;
        let parts = A::forward_lanes_of_pieces(&self.lanes, tape, exchanged(inputs))?;
        each_piece(tape, exchanged(parts), |parts| sum.output(tape, parts, dtype))
    }
}

impl LaneSum {
    /// The input of each of `lanes` lanes.
    fn inputs(&self, tape: &Tape, x: Var, lanes: usize) -> Result<Vec<Var>> {
        let time = self.time / tape.pieces_of_sequence();
        within(tape, &self.name, || Ok(ops::lane_inputs(tape, x, lanes, time)?))
    }

    fn output(&self, tape: &Tape, parts: Vec<Var>, dtype: DType) -> Result<Var> {
        within(tape, &self.name, || Ok(ops::lane_sum(tape, parts, self.bias.as_ref(), dtype)?))
    }
}

/// Returns the lists of the first values of all lists, of their second values and so on.
pub(super) fn exchanged<T>(lists: Vec<Vec<T>>) -> Vec<Vec<T>> {
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    let length = lists.first().map_or(0, ExactSizeIterator::len);
    (0..length).map(|_| lists.iter_mut().filter_map(Iterator::next).collect()).collect()
}
