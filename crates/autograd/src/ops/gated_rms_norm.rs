//! RMS normalisation of each head, times a gate.

use tensor::ops::gated_rms_norm::{self, Gradients, Operands, Settings};
use tensor::{DType, Tensor};

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::sink::{GradientSink, give_gradient};
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "gated_rms_norm";

/// Backward of [`gated_rms_norm()`].
#[derive(Debug)]
pub struct GatedRmsNormRule {
    /// Input and gates, dropped by the input half.
    saved: Option<[Tensor; 2]>,
    weight: Weight,
    settings: Settings,
    /// Partial sums of the weight's gradient, kept between the input and weight halves of backward.
    sums: Option<(Tensor, DType)>,
}

/// Normalises each head of `x_blc`, as wide as the weight, and multiplies it by the function of `z_blc`.
pub fn gated_rms_norm(
    tape: &Tape,
    x_blc: Var,
    z_blc: Var,
    weight: &Weight,
    settings: Settings,
) -> Result<Var> {
    map(tape, [x_blc, z_blc], |_, operands| {
        let [x_blc, z_blc] = autocast(tape, OPERATOR, operands)?;
        tape.begin(OPERATOR)?;
        let weight_k = named(OPERATOR, weight.values(x_blc.tensor().dtype()))?;
        let operands = Operands { x: x_blc.tensor(), z: z_blc.tensor(), weight: &weight_k };
        let output_blc = named(OPERATOR, gated_rms_norm::forward(operands, settings))?;
        let sources = [x_blc.source(), z_blc.source()];
        tape.record_one(&sources, output_blc, || GatedRmsNormRule {
            saved: Some([x_blc.into_tensor(), z_blc.into_tensor()]),
            weight: weight.clone(),
            settings,
            sums: None,
        })
    })
}

impl Rule for GatedRmsNormRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.saved.iter().flat_map(|[x, z]| [Saved::new("x", x), Saved::new("z", z)]).collect()
    }

    fn has_weights(&self) -> bool {
        self.weight.is_trained()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let dy_blc = only(outputs)?;
        let Some([x, z]) = self.saved.take() else { return Ok(vec![None; 2]) };
        let weight_k = self.weight.values(x.dtype())?;
        let operands = Operands { x: &x, z: &z, weight: &weight_k };
        let gradients = gated_rms_norm::backward_input(&dy_blc, operands, self.settings)?;
        let Gradients { x: dx, z: dz, sums } = gradients;
        self.sums = self.has_weights().then(|| (sums, x.dtype()));
        Ok(vec![Some(dx), Some(dz)])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let Some((sums, computed)) = &self.sums else { return Ok(()) };
        give_gradient(sink, &self.weight, |target| gated_rms_norm::backward_weight(sums, *computed, target))
    }
}
