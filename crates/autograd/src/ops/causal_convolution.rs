//! Causal depthwise convolution of sequences.

use device::{Category, Request};
use tensor::Tensor;
use tensor::ops::causal_convolution::{self, Operands};
use tensor::ops::{self, rearrange};

use super::piece_states::PieceOrder;
use super::{autocast, named, only, values_of};
use crate::error::{AutogradError, Result};
use crate::pass::CachedPass;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::sink::{GradientSink, discarded, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "causal_convolution";

/// Weights of a causal convolution, and its options.
#[derive(Clone, Debug)]
pub struct CausalConvolution {
    /// Weights `[channels, 1, width]`, the oldest input's first.
    pub weight: Weight,
    /// Bias `[channels]`, if any.
    pub bias: Option<Weight>,
    /// Whether SiLU is applied to the result.
    pub silu: bool,
}

/// Backward of [`causal_convolution()`].
#[derive(Debug)]
pub struct CausalConvolutionRule {
    x: Tensor,
    layer: CausalConvolution,
    documents: Option<Tensor>,
    /// The rows before a piece.
    halo: Option<Tensor>,
    /// Gradient of the output, kept between the input and weight halves of backward.
    gradient: Option<Tensor>,
}

/// Convolves each channel of `x_blc [batch, time, channels]` along its sequence. Tokens do not read other
/// documents of the pass.
pub fn causal_convolution(tape: &Tape, x_blc: Var, layer: &CausalConvolution) -> Result<Var> {
    if let Some(order) = PieceOrder::new(tape, OPERATOR, &x_blc)? {
        let [x_blc] = autocast(tape, OPERATOR, [x_blc])?;
        return layer.forward_pieces(tape, &order, x_blc);
    }
    map(tape, [x_blc], |_, [x_blc]| {
        let [x_blc] = autocast(tape, OPERATOR, [x_blc])?;
        tape.begin(OPERATOR)?;
        if let Some(pass) = &tape.pass().cache {
            return Ok(tape.constant(layer.forward_cached(tape, pass, x_blc.tensor())?));
        }
        layer.forward(tape, x_blc, None)
    })
}

impl CausalConvolution {
    /// Computes and records whole sequences, or a piece with the rows before it.
    fn forward(&self, tape: &Tape, x_blc: Var, halo: Option<Var>) -> Result<Var> {
        let documents = tape.pass().documents.clone();
        let sources: Vec<_> = [Some(&x_blc), halo.as_ref()].into_iter().flatten().map(Var::source).collect();
        let halo = halo.map(Var::into_tensor);
        let forward = self.with_operands(x_blc.tensor(), documents.as_ref(), |operands| {
            causal_convolution::forward(x_blc.tensor(), Operands { halo: halo.as_ref(), ..operands })
        });
        tape.record_one(&sources, named(OPERATOR, forward)?, || CausalConvolutionRule {
            x: x_blc.into_tensor(),
            layer: self.clone(),
            documents,
            halo,
            gradient: None,
        })
    }

    /// Computes the pieces of sequences. Every piece reads the last rows of the piece before it; the first
    /// one's documents begin in it, so that it reads none.
    fn forward_pieces(&self, tape: &Tape, order: &PieceOrder, x_blc: Var) -> Result<Var> {
        let placements = x_blc.placements();
        let pieces: Vec<Var> = x_blc.into_blocks().collect();
        tape.begin(OPERATOR)?;
        let kept = self.weight.shape().columns().saturating_sub(1);
        let last_rows = |piece: &Var| {
            let x_blc = piece.tensor();
            let first = x_blc.shape().dims()[1].saturating_sub(kept);
            named(OPERATOR, rearrange::slice(x_blc, 1, first, kept))
        };
        let rows = pieces.iter().map(last_rows).collect::<Result<Vec<_>>>()?;
        let like = rows.first().cloned().ok_or(AutogradError::NotRecorded)?;
        let all = order.gather(rows, Category::Workspace)?;
        let halos = order.scatter(&all, -1, &like, Category::Activation)?;
        drop((all, like));
        let sources: Vec<_> = pieces.iter().map(Var::block_source).collect();
        let inputs = pieces.into_iter().map(Var::into_tensor);
        let outputs = inputs.chain(halos).collect();
        let mut inputs = tape.record(&sources, outputs, || HaloRule { order: order.clone() })?;
        let halos = inputs.split_off(sources.len());
        let piece = |(index, (x_blc, halo)): (usize, (Var, Var))| {
            order.within(tape, index, || {
                tape.begin(OPERATOR)?;
                self.forward(tape, x_blc, Some(halo))
            })
        };
        let outputs = inputs.into_iter().zip(halos).enumerate().map(piece).collect::<Result<Vec<_>>>()?;
        let all = Var::from_blocks(outputs).ok_or(AutogradError::NotRecorded)?;
        Ok(all.with_placements(placements))
    }

    /// Computes a whole sequence that fills a slot of the pass's state, or the next token of every sequence.
    fn forward_cached(&self, tape: &Tape, pass: &CachedPass, x_blc: &Tensor) -> Result<Tensor> {
        let state = pass.next_state().ok_or(AutogradError::NoCache)?;
        let computed = match (pass.slot(), &tape.pass().documents) {
            (Some(slot), _) => self.with_operands(x_blc, None, |operands| {
                causal_convolution::store(x_blc, state, slot)?;
                causal_convolution::forward(x_blc, operands)
            }),
            (None, Some(documents)) => self.with_operands(x_blc, Some(documents), |operands| {
                causal_convolution::step(x_blc, operands, state)
            }),
            (None, None) => return Err(AutogradError::NoCache),
        };
        named(OPERATOR, computed)
    }

    /// Calls `compute` with the values of the weights.
    fn with_operands<T>(
        &self,
        x_blc: &Tensor,
        documents: Option<&Tensor>,
        compute: impl FnOnce(Operands<'_>) -> tensor::Result<T>,
    ) -> tensor::Result<T> {
        let weight = self.weight.values(x_blc.dtype())?;
        let bias = values_of(self.bias.as_ref(), x_blc.dtype())?;
        compute(Operands { weight: &weight, bias: bias.as_ref(), silu: self.silu, documents, halo: None })
    }
}

/// Backward of the rows that pieces take from each other: adds their gradients to the pieces that have them.
#[derive(Debug)]
struct HaloRule {
    order: PieceOrder,
}

impl Rule for HaloRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let mut gradients =
            outputs.into_iter().collect::<Option<Vec<_>>>().ok_or(AutogradError::NotRecorded)?;
        let halos = gradients.split_off(gradients.len() / 2);
        let like = halos.first().cloned().ok_or(AutogradError::NotRecorded)?;
        let all = self.order.gather(halos, Category::Workspace)?;
        let added = self.order.scatter(&all, 1, &like, Category::ActivationGradient)?;
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        let sum = |(index, (dx_blc, added)): (usize, (Tensor, Tensor))| {
            if self.order.is_last(index) {
                return Ok(Some(dx_blc));
            }
            let dx_blc = dx_blc.into_unique(request)?;
            let [time, channels] = [dx_blc.shape().dims()[1], dx_blc.shape().columns()];
            let [batch, kept] = [added.shape().dims()[0], added.shape().dims()[1]];
            for sequence in 0..batch {
                let first = (sequence * time + time - kept) * channels;
                let rows = added.view(sequence * kept * channels, [kept, channels])?;
                ops::add::into(&dx_blc.view(first, [kept, channels])?, &rows)?;
            }
            Ok(Some(dx_blc))
        };
        gradients.into_iter().zip(added).enumerate().map(sum).collect()
    }
}

impl Rule for CausalConvolutionRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let halo = self.halo.iter().map(|halo| Saved::new("halo", halo));
        [Saved::new("x", &self.x)].into_iter().chain(halo).collect()
    }

    fn has_weights(&self) -> bool {
        self.layer.weight.is_trained() || self.layer.bias.as_ref().is_some_and(Weight::is_trained)
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let dy_blc = only(outputs)?;
        let halo = self.halo.as_ref();
        let backward = |operands: Operands<'_>| {
            let operands = Operands { halo, ..operands };
            let of_x = || causal_convolution::backward_input(&dy_blc, &self.x, operands);
            let of_halo = || causal_convolution::backward_halo(&dy_blc, &self.x, operands);
            let mut gradients = vec![wanted[0].then(of_x).transpose()?];
            if halo.is_some() {
                gradients.push(wanted[1].then(of_halo).transpose()?);
            }
            Ok(gradients)
        };
        let gradients = self.layer.with_operands(&self.x, self.documents.as_ref(), backward)?;
        self.gradient = self.has_weights().then_some(dy_blc);
        Ok(gradients)
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let CausalConvolutionRule { x, layer, documents, halo, gradient } = *self;
        let Some(dy_blc) = gradient else { return Ok(()) };
        let bias_target = match &layer.bias {
            Some(bias) => target(sink, bias)?,
            None => None,
        };
        let weight_target = match (target(sink, &layer.weight)?, &bias_target) {
            (Some(target), _) => target,
            (None, Some(bias)) => discarded(&layer.weight, bias)?,
            (None, None) => return Ok(()),
        };
        layer.with_operands(&x, documents.as_ref(), |operands| {
            let bias = bias_target.as_ref();
            let operands = Operands { halo: halo.as_ref(), ..operands };
            causal_convolution::backward_weight(&dy_blc, &x, operands, &weight_target, bias)
        })?;
        drop((dy_blc, x, halo));
        layer.bias.as_ref().map_or(Ok(()), |bias| ready(sink, bias))?;
        ready(sink, &layer.weight)
    }
}
