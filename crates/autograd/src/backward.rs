//! Backward: runs the rules in reverse order, dropping each as soon as it has run.

use std::collections::BTreeMap;
use std::rc::Rc;

use device::{Category, DType, Device, Label, Request};
use tensor::{Tensor, ops};

use crate::error::{AutogradError, Result};
use crate::observer::{Call, Direction};
use crate::pass::Pass;
use crate::rule::{Rule, ValueGradients};
use crate::sharded::{BlockIndex, GradientSums, Source, Var};
use crate::sink::GradientSink;
use crate::tape::{Node, Tape};

/// Gradients of the tape's leaves.
#[derive(Debug, Default)]
pub struct LeafGradients(BTreeMap<u32, Tensor>);

impl LeafGradients {
    /// Removes and returns the gradient of a leaf; `None` if no gradient reached it.
    pub fn take(&mut self, leaf: Source) -> Option<Tensor> {
        self.0.remove(&leaf.id?.index)
    }
}

/// The weight halves of rules whose input half has run, in the same order.
pub struct PendingWeights {
    device: Device,
    pass: Rc<Pass>,
    rules: Vec<Later>,
}

/// A rule whose weight half is pending, with its module and its block.
type Later = (Label, Option<BlockIndex>, Box<dyn Rule>);

impl PendingWeights {
    /// Runs the weight halves. The gradients have the same bits as in an undivided backward.
    pub fn backward_weight(self, sink: &mut dyn GradientSink) -> Result<()> {
        let mut sums = GradientSums::of_pass(&self.pass);
        for (module, block, rule) in self.rules {
            let _scope = self.device.at_module(module);
            sums.with(block, sink, |sink| weight_half(&self.pass, (module, block), rule, sink))?;
        }
        sums.finish(sink)
    }
}

impl std::fmt::Debug for PendingWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PendingWeights({} rules)", self.rules.len())
    }
}

impl Tape {
    /// Runs backward from a loss: a scalar, or the first element of a vector whose other elements are
    /// metrics. The loss's gradient is 1, or the pass's loss scale. Consumes tape and loss. Weight gradients
    /// go to `sink`; gradients of leaves are returned.
    ///
    /// # Errors
    /// The loss is not recorded on this tape, or an operator or the sink failed.
    pub fn backward(self, loss: Var, sink: &mut dyn GradientSink) -> Result<LeafGradients> {
        let root = self.index_of(loss.source())?;
        let sums = GradientSums::of_pass(&self.shared_pass().0);
        self.run(Vec::new(), Some((root, loss)), &mut Weights::Now(sink, sums))
    }

    /// Runs backward from gradients of some outputs, whose tensors may already be freed.
    pub fn backward_from(
        self,
        seeds: Vec<(Source, Tensor)>,
        sink: &mut dyn GradientSink,
    ) -> Result<LeafGradients> {
        let sums = GradientSums::of_pass(&self.shared_pass().0);
        self.run(seeds, None, &mut Weights::Now(sink, sums))
    }

    /// Runs only the input halves of [`Tape::backward_from`], for zero-bubble schedules.
    pub fn backward_input_from(
        self,
        seeds: Vec<(Source, Tensor)>,
    ) -> Result<(LeafGradients, PendingWeights)> {
        self.input_halves(seeds, None)
    }

    /// Runs only the input halves of [`Tape::backward`].
    pub fn backward_input(self, loss: Var) -> Result<(LeafGradients, PendingWeights)> {
        let root = self.index_of(loss.source())?;
        self.input_halves(Vec::new(), Some((root, loss)))
    }

    fn input_halves(
        self,
        seeds: Vec<(Source, Tensor)>,
        root: Option<(u32, Var)>,
    ) -> Result<(LeafGradients, PendingWeights)> {
        let device = self.device().clone();
        let (pass, _) = self.shared_pass();
        let mut rules = Vec::new();
        let leaves = self.run(seeds, root, &mut Weights::Later(&mut rules))?;
        Ok((leaves, PendingWeights { device, pass, rules }))
    }

    fn run(
        self,
        seeds: Vec<(Source, Tensor)>,
        root: Option<(u32, Var)>,
        weights: &mut Weights<'_>,
    ) -> Result<LeafGradients> {
        let indices = seeds.iter().map(|(output, _)| self.index_of(*output)).collect::<Result<Vec<_>>>()?;
        let device = self.device().clone();
        let (pass, _) = self.shared_pass();
        let graph = self.graph.take();
        let mut flowing: ValueGradients = Vec::new();
        flowing.resize_with(graph.values as usize, || None);
        for (index, (_, gradient)) in indices.into_iter().zip(seeds) {
            accumulate(&mut flowing[index as usize], gradient)?;
        }
        let (mut root, loss) = root.unzip();
        for mut node in graph.nodes.into_iter().rev() {
            let _scope = device.at_module(node.module);
            let call = of_rule(&pass, (node.module, node.block), node.rule.operator(), Direction::Backward);
            pass.observers.before(|| call)?;
            let gradients = match root.take_if(|root| *root == node.first_output) {
                Some(_) => from_root(&mut node, loss.as_ref(), &pass, weights)?,
                None => from_outputs(&mut node, &mut flowing, weights)?,
            };
            let results = gradients.iter().flatten().map(Option::as_ref);
            pass.observers.after(|| call, results)?;
            let Some(gradients) = gradients else { continue };
            pass_on(&node, gradients, &mut flowing)?;
            weights.half(&pass, (node.module, node.block, node.rule))?;
        }
        weights.finish()?;
        let leaf = |index: u32| flowing[index as usize].take().map(|gradient| (index, gradient));
        Ok(LeafGradients(graph.leaves.into_iter().filter_map(leaf).collect()))
    }
}

/// Order of the weight halves of rules.
enum Weights<'a> {
    /// Runs each weight half directly after its input half.
    Now(&'a mut dyn GradientSink, GradientSums),
    /// Keeps the weight halves for later, in the same order.
    Later(&'a mut Vec<Later>),
}

impl Weights<'_> {
    /// Runs the input half of a rule, and possibly parts of its weight half; [`Weights::half`] runs or keeps
    /// the weight half.
    fn input_half(
        &mut self,
        node: &mut Node,
        outputs: ValueGradients,
        wanted: &[bool],
    ) -> Result<ValueGradients> {
        let gradients = match self {
            Weights::Now(sink, sums) => {
                sums.with(node.block, *sink, |sink| node.rule.backward(outputs, wanted, sink))
            }
            Weights::Later(_) => node.rule.backward_input(outputs, wanted),
        };
        gradients.map_err(|e| name(e, node.rule.operator()))
    }

    fn half(&mut self, pass: &Pass, (module, block, rule): Later) -> Result<()> {
        match self {
            Weights::Now(sink, sums) => {
                return sums.with(block, *sink, |sink| weight_half(pass, (module, block), rule, sink));
            }
            Weights::Later(rules) if rule.has_weights() => rules.push((module, block, rule)),
            Weights::Later(_) => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        match self {
            Weights::Now(sink, sums) => sums.finish(*sink),
            Weights::Later(_) => Ok(()),
        }
    }
}

/// Runs the rule that recorded the loss; `None` if it needs no gradient.
fn from_root(
    node: &mut Node,
    loss: Option<&Var>,
    pass: &Pass,
    weights: &mut Weights<'_>,
) -> Result<Option<ValueGradients>> {
    let wanted = wanted(node);
    let operator = node.rule.operator();
    if let Some(gradients) = node.rule.backward_root(&wanted).map_err(|e| name(e, operator))? {
        return Ok(Some(gradients));
    }
    let Some(loss) = loss else { return Ok(None) };
    // Figures after the loss have no gradient.
    let shape = if loss.tensor.elements() > 1 { [].into() } else { loss.tensor.shape() };
    let one = Tensor::empty(loss.tensor.device(), shape, DType::F32, gradient_request())?;
    match &pass.loss_scale {
        Some(factor) => one.copy_from(&factor.scale)?,
        None => ops::fill::constant(&one, 1.0)?,
    }
    weights.input_half(node, vec![Some(one)], &wanted).map(Some)
}

/// Runs a rule on the gradients of its outputs. Returns `None`, without running the rule, if there are none.
fn from_outputs(
    node: &mut Node,
    flowing: &mut [Option<Tensor>],
    weights: &mut Weights<'_>,
) -> Result<Option<ValueGradients>> {
    let first = node.first_output as usize;
    let outputs: Vec<_> =
        flowing[first..first + node.outputs as usize].iter_mut().map(Option::take).collect();
    if outputs.iter().all(Option::is_none) {
        return Ok(None);
    }
    if let [Some(input)] = node.inputs[..] {
        let slot = &mut flowing[input as usize];
        if let Some(sum) = slot.take_if(|sum| sum.is_unique()) {
            *slot = node.rule.take_sum(sum);
        }
    }
    let wanted = wanted(node);
    weights.input_half(node, outputs, &wanted).map(Some)
}

fn wanted(node: &Node) -> Vec<bool> {
    node.inputs.iter().map(Option::is_some).collect()
}

fn pass_on(node: &Node, gradients: ValueGradients, flowing: &mut [Option<Tensor>]) -> Result<()> {
    for (input, gradient) in node.inputs.iter().zip(gradients) {
        if let (Some(index), Some(gradient)) = (input, gradient) {
            accumulate(&mut flowing[*index as usize], gradient)?;
        }
    }
    Ok(())
}

fn weight_half(
    pass: &Pass,
    computed: (Label, Option<BlockIndex>),
    rule: Box<dyn Rule>,
    sink: &mut dyn GradientSink,
) -> Result<()> {
    let operator = rule.operator();
    if !rule.has_weights() {
        return rule.backward_weight(sink).map_err(|e| name(e, operator));
    }
    let call = || of_rule(pass, computed, operator, Direction::BackwardWeight);
    pass.observers.before(call)?;
    rule.backward_weight(sink).map_err(|e| name(e, operator))?;
    pass.observers.after(call, std::iter::empty())
}

/// Returns the observed call of a rule.
fn of_rule(
    pass: &Pass,
    (module, block): (Label, Option<BlockIndex>),
    operator: &'static str,
    direction: Direction,
) -> Call {
    Call { direction, module, operator, micro_batch: pass.micro_batch, piece: pass.piece_number(block) }
}

fn name(error: AutogradError, operator: &'static str) -> AutogradError {
    match error {
        AutogradError::Tensor(source) => {
            AutogradError::Operator { operator: format!("{operator}.backward"), source }
        }
        other => other,
    }
}

/// Adds a gradient to a value's accumulated gradient, in place if no other tensor shares its storage.
fn accumulate(slot: &mut Option<Tensor>, gradient: Tensor) -> Result<()> {
    *slot = Some(match slot.take() {
        None => gradient,
        Some(sum) => {
            let sum = sum.into_unique(gradient_request())?;
            ops::add::into(&sum, &gradient)?;
            sum.with_maxima(None)
        }
    });
    Ok(())
}

fn gradient_request() -> Request {
    Request::new(Category::ActivationGradient, "backward")
}
