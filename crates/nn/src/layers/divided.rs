//! The layers of a branch, which may be divided in lanes.

use autograd::{Tape, Var, Weight, ops};

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
}

impl<A: Layer<Stream = Var>> Layer for Divided<A> {
    type Stream = Var;

    /// Maps `[.., width]` to the same shape.
    ///
    /// # Errors
    /// Operands of a wrong shape, out of memory, a failed collective.
    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        let Some(sum) = &self.sum else { return self.lanes[0].forward(tape, x) };
        let (dtype, lanes) = (x.tensor().dtype(), self.lanes.len());
        let inputs = within(tape, &sum.name, || Ok(ops::lane_inputs(tape, x, lanes, sum.time)?))?;
        let parts = self.lanes.iter().zip(inputs).map(|(lane, x)| lane.forward(tape, x));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        within(tape, &sum.name, || Ok(ops::lane_sum(tape, parts, sum.bias.as_ref(), dtype)?))
    }
}
