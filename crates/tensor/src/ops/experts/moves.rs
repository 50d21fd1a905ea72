//! Copies of rows between the order of tokens and the order of experts.

use device::parallel::{for_pieces, simd};
use device::{Backend, Category, DType, Request};

use super::cuda;
use crate::ops::routing::{NONE, Routes};
use crate::ops::{check, rows};
use crate::{Result, Tensor};

/// Copies each row of `x [.., columns]` to the slots of its experts: `[slots, columns]`. Unused slots are
/// zeros.
pub fn gather(x: &Tensor, routes: &Routes, category: Category) -> Result<Tensor> {
    const OPERATOR: &str = "experts.gather";
    let dtype = check::computed(OPERATOR, &[("x", x)])?;
    let columns = x.shape().columns();
    let chosen = routes.per_token();
    check::elements(OPERATOR, "x", x, routes.rows() * columns)?;
    let request = Request::new(category, OPERATOR);
    let gathered = Tensor::empty(x.device(), [routes.slots(), columns], dtype, request)?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x = x.values()?;
            let sources = routes.sources.read::<u32>()?;
            let (x, sources): (&[f32], &[u32]) = (&x, &sources);
            let per_task = rows::per_task(columns);
            for_pieces(&mut gathered.values_mut()?, per_task * columns, |index, gathered| {
                let sources = rows::piece(sources, index, per_task);
                for (row, source) in gathered.chunks_exact_mut(columns).zip(sources) {
                    match *source {
                        NONE => row.fill(0.0),
                        source => row.copy_from_slice(&x[source as usize / chosen * columns..][..columns]),
                    }
                }
            });
        }
        Backend::Cuda => cuda::gather(OPERATOR, x, routes, &gathered)?,
    }
    Ok(gathered)
}

/// Adds the results of each token's experts, `y [slots, columns]`, in the order of its choices. Also adds the
/// weighted biases of the experts, `bias [experts · columns]`. Sums are in f32 and rounded once to `dtype`;
/// the result has `shape`.
pub fn combine(
    y: &Tensor,
    bias: Option<&Tensor>,
    routes: &Routes,
    shape: impl Into<crate::Shape>,
    dtype: DType,
) -> Result<Tensor> {
    sum("experts.combine", (y, bias), routes, (shape.into(), dtype), Category::Activation)
}

/// Adds the gradients of each token's slots, `dy [slots, columns]`, in the order of its choices. Sums are in
/// f32 and rounded once to `dtype`; the result has `shape`.
pub fn sum_choices(
    dy: &Tensor,
    routes: &Routes,
    shape: impl Into<crate::Shape>,
    dtype: DType,
) -> Result<Tensor> {
    let category = Category::ActivationGradient;
    sum("experts.sum_choices", (dy, None), routes, (shape.into(), dtype), category)
}

fn sum(
    operator: &'static str,
    (y, bias): (&Tensor, Option<&Tensor>),
    routes: &Routes,
    (shape, dtype): (crate::Shape, DType),
    category: Category,
) -> Result<Tensor> {
    let columns = y.shape().columns();
    let chosen = routes.per_token();
    check::computed(operator, &[("y", y)])?;
    check::shape(operator, "y", y, [routes.slots(), columns])?;
    if let Some(bias) = bias {
        check::computed(operator, &[("bias", bias)])?;
        check::shape(operator, "bias", bias, [routes.experts() * columns])?;
    }
    let out = Tensor::empty(y.device(), shape, dtype, Request::new(category, operator))?;
    check::elements(operator, "out", &out, routes.rows() * columns)?;
    match y.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let bias = bias.map(Tensor::values).transpose()?;
            let y = y.values()?;
            let slots = routes.slots.read::<u32>()?;
            let weights = routes.weights.read::<f32>()?;
            let choices = routes.choices.read::<u32>()?;
            let (y, slots, weights, choices): (&[f32], &[u32], &[f32], &[u32]) =
                (&y, &slots, &weights, &choices);
            let bias = bias.as_deref();
            let per_task = rows::per_task(columns);
            for_pieces(&mut out.values_mut()?, per_task * columns, |index, out| {
                for (row, out) in out.chunks_exact_mut(columns).enumerate() {
                    let own = (index * per_task + row) * chosen;
                    out.fill(0.0);
                    for choice in own..own + chosen {
                        let y = &y[slots[choice] as usize * columns..][..columns];
                        simd(|| out.iter_mut().zip(y).for_each(|(out, y)| *out += y));
                        if let Some(bias) = bias {
                            let bias = &bias[choices[choice] as usize * columns..][..columns];
                            let weight = weights[choice];
                            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += weight * bias);
                        }
                    }
                }
            });
        }
        Backend::Cuda => cuda::sum(operator, (y, bias), routes, &out)?,
    }
    Ok(out)
}

/// Returns the gradients of the routing weights, `[rows, per_token]` f32. These are the gradients of the
/// slots, `of_slots [slots]` f32, plus the part that the experts' biases contribute: dy · bias, for `dy [..,
/// columns]` and `bias [experts · columns]`.
pub fn weight_gradients(
    of_slots: &Tensor,
    biases: Option<(&Tensor, &Tensor)>,
    routes: &Routes,
) -> Result<Tensor> {
    const OPERATOR: &str = "experts.weight_gradients";
    check::f32s(OPERATOR, &[("of_slots", of_slots)])?;
    check::shape(OPERATOR, "of_slots", of_slots, [routes.slots()])?;
    if let Some((dy, bias)) = biases {
        check::computed(OPERATOR, &[("dy", dy), ("bias", bias)])?;
        check::shape(OPERATOR, "bias", bias, [routes.experts() * dy.shape().columns()])?;
        check::elements(OPERATOR, "dy", dy, routes.rows() * dy.shape().columns())?;
    }
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let gradients = Tensor::empty(of_slots.device(), routes.weights.shape(), DType::F32, request)?;
    match of_slots.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let of_slots = of_slots.read::<f32>()?;
            let slots = routes.slots.read::<u32>()?;
            let mut target = gradients.write::<f32>()?;
            let own = target.iter_mut().zip(slots.iter());
            own.for_each(|(target, slot)| *target = of_slots[*slot as usize]);
            if let Some((dy, bias)) = biases {
                let columns = dy.shape().columns();
                let choices = routes.choices.read::<u32>()?;
                let dy = dy.values()?;
                let bias = bias.values()?;
                let chosen = routes.per_token();
                for (choice, (target, expert)) in target.iter_mut().zip(choices.iter()).enumerate() {
                    let dy = &dy[choice / chosen * columns..][..columns];
                    let bias = &bias[*expert as usize * columns..][..columns];
                    *target += dy.iter().zip(bias).map(|(dy, bias)| dy * bias).sum::<f32>();
                }
            }
        }
        Backend::Cuda => cuda::weight_gradients(OPERATOR, of_slots, biases, routes, &gradients)?,
    }
    Ok(gradients)
}
