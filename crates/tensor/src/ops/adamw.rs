//! AdamW (Loshchilov and Hutter, *Decoupled Weight Decay Regularization*, 2019) with the formula of PyTorch's
//! `torch.optim.AdamW`, all parameters in one call.

use device::parallel::{CHUNK, for_tasks, simd};
use device::{Backend, Element, Function, ReadGuard, WriteGuard, dispatch};

use super::optimizer::{self, Parameter};
use super::{Table, cast, check, gpu};
use crate::{Result, Tensor};

/// One parameter with its state; all tensors of as many elements, and f32 but for `gradient` and `compute`.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The weight, updated.
    pub weight: &'a Tensor,
    /// Its gradient: f32 or bf16, as those of all items.
    pub gradient: &'a Tensor,
    /// The running mean of gradients, updated.
    pub first: &'a Tensor,
    /// The running mean of squared gradients, updated.
    pub second: &'a Tensor,
    /// The bf16 copy of the weight that is computed with, written along.
    pub compute: Option<&'a Tensor>,
    /// Whether weight decay applies to it.
    pub decay: bool,
}

/// What all parameters share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Step size.
    pub learning_rate: f32,
    /// Decay of the mean of gradients.
    pub beta1: f32,
    /// Decay of the mean of squared gradients.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Fraction of a weight, times the learning rate, that it loses at each step.
    pub weight_decay: f32,
    /// This step's number, from 1.
    pub step: u32,
}

/// One step for all items, of which `table` was made for that many. `factor`: the two numbers of
/// [`super::norm::finish`]; every gradient is multiplied by the second as it is read.
/// Errors: shapes, types or counts that do not agree, tensors that overlap.
pub fn step(table: &Table, items: &[Item<'_>], hyper: &Hyper, factor: Option<&Tensor>) -> Result<()> {
    const OPERATOR: &str = "adamw.step";
    table.check(OPERATOR, items.len())?;
    for item in items {
        let Item { weight, gradient, first, second, compute, .. } = *item;
        check::f32s(OPERATOR, &[("weight", weight), ("first", first), ("second", second)])?;
        check::elements(OPERATOR, "gradient", gradient, weight.elements())?;
        check::elements(OPERATOR, "first", first, weight.elements())?;
        check::elements(OPERATOR, "second", second, weight.elements())?;
        optimizer::check_compute(OPERATOR, compute, weight.elements())?;
    }
    check::factor(OPERATOR, factor)?;
    let dtype = check::gradients(OPERATOR, items.iter().map(|item| item.gradient))?;
    let Some(first) = items.first() else { return Ok(()) };
    match first.weight.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => dispatch!(
            dtype,
            G => on_host::<G>(items, hyper, factor),
            _ => Err(check::unsupported(OPERATOR, "gradient", first.gradient)),
        ),
        Backend::Cuda => on_gpu(OPERATOR, table, items, hyper, factor),
    }
}

/// One launch of `kernels/optimizer.cu`.
fn on_gpu(
    operator: &'static str,
    table: &Table,
    items: &[Item<'_>],
    hyper: &Hyper,
    factor: Option<&Tensor>,
) -> Result<()> {
    let [Item { weight, gradient, .. }, ..] = items else { return Ok(()) };
    let parameters: Vec<Parameter<'_>> = items.iter().map(Parameter::from).collect();
    let listed = optimizer::list(operator, table, &parameters)?;
    let kernel = Function::new(&optimizer::FAMILY, "adamw").of(gradient.dtype());
    let launch = weight.device().kernel(kernel).read(listed.table.region());
    let launch = match factor {
        Some(factor) => launch.read(factor.region()),
        None => launch.null(),
    };
    let c = Coefficients::of(hyper, hyper.weight_decay, 1.0);
    let launch = launch.u32(listed.count).f32(c.keep).f32(c.take1).f32(c.beta2).f32(c.take2);
    let launch = launch.f32(c.root_correction).f32(c.epsilon).f32(c.step_size);
    Ok(launch.cost(listed.bytes, 0).launch([listed.blocks, 1, 1], gpu::THREADS)?)
}

impl<'a> From<&Item<'a>> for Parameter<'a> {
    fn from(item: &Item<'a>) -> Self {
        let Item { weight, gradient, first, second, compute, decay } = *item;
        Parameter { weight, gradient, first: Some(first), second: Some(second), compute, decay }
    }
}

fn on_host<G: Element + Into<f32>>(items: &[Item<'_>], hyper: &Hyper, factor: Option<&Tensor>) -> Result<()> {
    let factor = check::factor_value(factor)?;
    let decaying = Coefficients::of(hyper, hyper.weight_decay, factor);
    let plain = Coefficients::of(hyper, 0.0, factor);
    let mut guards = items.iter().map(Guards::<G>::of).collect::<Result<Vec<_>>>()?;
    let tasks = guards.iter_mut().zip(items).flat_map(|(guards, item)| {
        let coefficients = if item.decay { decaying } else { plain };
        let states = guards.first.chunks_mut(CHUNK).zip(guards.second.chunks_mut(CHUNK));
        let values = guards.weight.chunks_mut(CHUNK).zip(guards.gradient.chunks(CHUNK));
        values.zip(states).map(move |((weight, gradient), (first, second))| Piece {
            weight,
            gradient,
            first,
            second,
            coefficients,
        })
    });
    for_tasks(tasks.collect(), |piece: Piece<'_, G>| {
        simd(
            #[inline(always)]
            || piece.update(),
        );
    });
    drop(guards);
    let copies = items.iter().filter_map(|item| Some((item.weight, item.compute?)));
    copies.into_iter().try_for_each(|(weight, compute)| {
        cast::into(&weight.reshape([weight.elements()])?, &compute.reshape([weight.elements()])?)
    })
}

struct Guards<'a, G> {
    weight: WriteGuard<'a, f32>,
    gradient: ReadGuard<'a, G>,
    first: WriteGuard<'a, f32>,
    second: WriteGuard<'a, f32>,
}

impl<'a, G: Element> Guards<'a, G> {
    fn of(item: &Item<'a>) -> Result<Self> {
        Ok(Guards {
            weight: item.weight.write()?,
            gradient: item.gradient.read()?,
            first: item.first.write()?,
            second: item.second.write()?,
        })
    }
}

/// The step's numbers, computed in f64 and rounded once.
#[derive(Clone, Copy)]
struct Coefficients {
    factor: f32,
    keep: f32,
    take1: f32,
    beta2: f32,
    take2: f32,
    root_correction: f32,
    epsilon: f32,
    step_size: f32,
}

impl Coefficients {
    fn of(hyper: &Hyper, weight_decay: f32, factor: f32) -> Self {
        let (rate, beta1, beta2) =
            (f64::from(hyper.learning_rate), f64::from(hyper.beta1), f64::from(hyper.beta2));
        let correction = |beta: f64| 1.0 - libm::pow(beta, f64::from(hyper.step));
        Coefficients {
            factor,
            keep: (1.0 - rate * f64::from(weight_decay)) as f32,
            take1: (1.0 - beta1) as f32,
            beta2: hyper.beta2,
            take2: (1.0 - beta2) as f32,
            root_correction: correction(beta2).sqrt() as f32,
            epsilon: hyper.epsilon,
            step_size: (rate / correction(beta1)) as f32,
        }
    }
}

struct Piece<'a, G> {
    weight: &'a mut [f32],
    gradient: &'a [G],
    first: &'a mut [f32],
    second: &'a mut [f32],
    coefficients: Coefficients,
}

impl<G: Copy + Into<f32>> Piece<'_, G> {
    #[inline(always)]
    fn update(self) {
        let c = self.coefficients;
        let values = self.weight.iter_mut().zip(self.gradient);
        let states = self.first.iter_mut().zip(self.second.iter_mut());
        for ((weight, gradient), (first, second)) in values.zip(states) {
            let gradient = (*gradient).into() * c.factor;
            *first += c.take1 * (gradient - *first);
            *second = c.beta2 * *second + c.take2 * gradient * gradient;
            let root = second.sqrt() / c.root_correction + c.epsilon;
            *weight = *weight * c.keep - c.step_size * (*first / root);
        }
    }
}
