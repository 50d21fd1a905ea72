//! Stochastic gradient descent with momentum, with the formula of PyTorch's `torch.optim.SGD` (no dampening,
//! not Nesterov's), all parameters in one call.

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
    /// The momentum buffer, updated; without one there is no momentum.
    pub momentum: Option<&'a Tensor>,
    /// The bf16 copy of the weight that is computed with, written along.
    pub compute: Option<&'a Tensor>,
}

/// What all parameters share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Step size.
    pub learning_rate: f32,
    /// Fraction of the momentum buffer that a step keeps.
    pub momentum: f32,
    /// Fraction of the weight that is added to its gradient.
    pub weight_decay: f32,
    /// True at the first step, where the buffer becomes the gradient whatever it held.
    pub first_step: bool,
}

/// One step for all items, of which `table` was made for that many. `factor`: the two numbers of
/// [`super::norm::finish`]; every gradient is multiplied by the second as it is read.
/// Errors: shapes, types or counts that do not agree, tensors that overlap.
pub fn step(table: &Table, items: &[Item<'_>], hyper: &Hyper, factor: Option<&Tensor>) -> Result<()> {
    const OPERATOR: &str = "sgd.step";
    table.check(OPERATOR, items.len())?;
    for item in items {
        check::f32s(OPERATOR, &[("weight", item.weight)])?;
        check::elements(OPERATOR, "gradient", item.gradient, item.weight.elements())?;
        if let Some(momentum) = item.momentum {
            check::f32s(OPERATOR, &[("momentum", momentum)])?;
            check::elements(OPERATOR, "momentum", momentum, item.weight.elements())?;
        }
        optimizer::check_compute(OPERATOR, item.compute, item.weight.elements())?;
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
    let kernel = Function::new(&optimizer::FAMILY, "sgd").of(gradient.dtype());
    let launch = weight.device().kernel(kernel).read(listed.table.region());
    let launch = match factor {
        Some(factor) => launch.read(factor.region()),
        None => launch.null(),
    };
    let launch = launch.u32(listed.count).f32(hyper.learning_rate).f32(hyper.momentum);
    let launch = launch.f32(hyper.weight_decay).u32(u32::from(hyper.first_step));
    Ok(launch.cost(listed.bytes, 0).launch([listed.blocks, 1, 1], gpu::THREADS)?)
}

impl<'a> From<&Item<'a>> for Parameter<'a> {
    fn from(item: &Item<'a>) -> Self {
        let Item { weight, gradient, momentum, compute } = *item;
        Parameter { weight, gradient, first: momentum, second: None, compute, decay: true }
    }
}

fn on_host<G: Element + Into<f32>>(items: &[Item<'_>], hyper: &Hyper, factor: Option<&Tensor>) -> Result<()> {
    let factor = check::factor_value(factor)?;
    let mut guards = items.iter().map(Guards::<G>::of).collect::<Result<Vec<_>>>()?;
    let mut tasks = Vec::new();
    for guards in &mut guards {
        let values = guards.weight.chunks_mut(CHUNK).zip(guards.gradient.chunks(CHUNK));
        match &mut guards.momentum {
            Some(momentum) => tasks
                .extend(values.zip(momentum.chunks_mut(CHUNK)).map(|((w, g), m)| Piece::of(w, g, Some(m)))),
            None => tasks.extend(values.map(|(w, g)| Piece::of(w, g, None))),
        }
    }
    for_tasks(tasks, |piece: Piece<'_, G>| {
        simd(
            #[inline(always)]
            || piece.update(hyper, factor),
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
    momentum: Option<WriteGuard<'a, f32>>,
}

impl<'a, G: Element> Guards<'a, G> {
    fn of(item: &Item<'a>) -> Result<Self> {
        let momentum = item.momentum.map(Tensor::write).transpose()?;
        Ok(Guards { weight: item.weight.write()?, gradient: item.gradient.read()?, momentum })
    }
}

struct Piece<'a, G> {
    weight: &'a mut [f32],
    gradient: &'a [G],
    momentum: Option<&'a mut [f32]>,
}

impl<'a, G: Copy + Into<f32>> Piece<'a, G> {
    fn of(weight: &'a mut [f32], gradient: &'a [G], momentum: Option<&'a mut [f32]>) -> Self {
        Piece { weight, gradient, momentum }
    }

    #[inline(always)]
    fn update(self, hyper: &Hyper, factor: f32) {
        let Hyper { learning_rate, momentum: keep, weight_decay, first_step } = *hyper;
        let values = self.weight.iter_mut().zip(self.gradient);
        match self.momentum {
            Some(momentum) => {
                for ((weight, gradient), momentum) in values.zip(momentum) {
                    let gradient = (*gradient).into() * factor + weight_decay * *weight;
                    *momentum = if first_step { gradient } else { keep * *momentum + gradient };
                    *weight -= learning_rate * *momentum;
                }
            }
            None => {
                for (weight, gradient) in values {
                    *weight -= learning_rate * ((*gradient).into() * factor + weight_decay * *weight);
                }
            }
        }
    }
}
