//! Stochastic gradient descent with momentum, with the formula of PyTorch's `torch.optim.SGD` (no dampening,
//! not Nesterov's), all parameters in one call.

use device::parallel::{CHUNK, for_tasks, simd};
use device::{ReadGuard, WriteGuard};

use super::check;
use crate::{Result, Tensor};

/// One parameter with its state; all tensors f32 and of as many elements.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The weight, updated.
    pub weight: &'a Tensor,
    /// Its gradient.
    pub gradient: &'a Tensor,
    /// The momentum buffer, updated; without one there is no momentum.
    pub momentum: Option<&'a Tensor>,
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

/// One step for all items. `factor`: the two numbers of [`super::norm::finish`]; every gradient is multiplied
/// by the second as it is read. Errors: shapes or types that do not agree, tensors that overlap.
pub fn step(items: &[Item<'_>], hyper: &Hyper, factor: Option<&Tensor>) -> Result<()> {
    const OPERATOR: &str = "sgd.step";
    for item in items {
        check::f32s(OPERATOR, &[("weight", item.weight), ("gradient", item.gradient)])?;
        check::elements(OPERATOR, "gradient", item.gradient, item.weight.elements())?;
        if let Some(momentum) = item.momentum {
            check::f32s(OPERATOR, &[("momentum", momentum)])?;
            check::elements(OPERATOR, "momentum", momentum, item.weight.elements())?;
        }
    }
    check::factor(OPERATOR, factor)?;
    if items.iter().any(|item| item.weight.device().is_meta()) {
        return Ok(());
    }
    let factor = check::factor_value(factor)?;
    let mut guards = items.iter().map(Guards::of).collect::<Result<Vec<_>>>()?;
    let mut tasks = Vec::new();
    for guards in &mut guards {
        let values = guards.weight.chunks_mut(CHUNK).zip(guards.gradient.chunks(CHUNK));
        match &mut guards.momentum {
            Some(momentum) => tasks
                .extend(values.zip(momentum.chunks_mut(CHUNK)).map(|((w, g), m)| Piece::of(w, g, Some(m)))),
            None => tasks.extend(values.map(|(w, g)| Piece::of(w, g, None))),
        }
    }
    for_tasks(tasks, |piece: Piece<'_>| {
        simd(
            #[inline(always)]
            || piece.update(hyper, factor),
        );
    });
    Ok(())
}

struct Guards<'a> {
    weight: WriteGuard<'a, f32>,
    gradient: ReadGuard<'a, f32>,
    momentum: Option<WriteGuard<'a, f32>>,
}

impl<'a> Guards<'a> {
    fn of(item: &Item<'a>) -> Result<Self> {
        let momentum = item.momentum.map(Tensor::write).transpose()?;
        Ok(Guards { weight: item.weight.write()?, gradient: item.gradient.read()?, momentum })
    }
}

struct Piece<'a> {
    weight: &'a mut [f32],
    gradient: &'a [f32],
    momentum: Option<&'a mut [f32]>,
}

impl<'a> Piece<'a> {
    fn of(weight: &'a mut [f32], gradient: &'a [f32], momentum: Option<&'a mut [f32]>) -> Self {
        Piece { weight, gradient, momentum }
    }

    #[inline(always)]
    fn update(self, hyper: &Hyper, factor: f32) {
        let Hyper { learning_rate, momentum: keep, weight_decay, first_step } = *hyper;
        let values = self.weight.iter_mut().zip(self.gradient);
        match self.momentum {
            Some(momentum) => {
                for ((weight, gradient), momentum) in values.zip(momentum) {
                    let gradient = gradient * factor + weight_decay * *weight;
                    *momentum = if first_step { gradient } else { keep * *momentum + gradient };
                    *weight -= learning_rate * *momentum;
                }
            }
            None => {
                for (weight, gradient) in values {
                    *weight -= learning_rate * (gradient * factor + weight_decay * *weight);
                }
            }
        }
    }
}
