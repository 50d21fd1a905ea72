//! Copies of rows between the order of tokens and the order of experts.

use device::parallel::{for_pieces, simd};
use device::{Backend, Category, DType, Request};

use super::cuda;
use crate::ops::routing::{NONE, Routes};
use crate::ops::{check, rows};
use crate::{Result, Tensor};

/// Copies each row of `x_td [.., columns]` to the slots of its experts: `[slots, columns]`. Unused slots are
/// zeros.
pub fn gather(x_td: &Tensor, routes: &Routes, category: Category) -> Result<Tensor> {
    const OPERATOR: &str = "experts.gather";
    let dtype = check::computed(OPERATOR, &[("x", x_td)])?;
    let columns = x_td.shape().columns();
    let chosen = routes.per_token();
    check::elements(OPERATOR, "x", x_td, routes.rows() * columns)?;
    let request = Request::new(category, OPERATOR);
    let gathered_sd = Tensor::empty(x_td.device(), [routes.slots(), columns], dtype, request)?;
    match x_td.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let x_td = x_td.values()?;
            let sources_s = routes.sources.read::<u32>()?;
            let (x_td, sources_s): (&[f32], &[u32]) = (&x_td, &sources_s);
            let per_task = rows::per_task(columns);
            for_pieces(&mut gathered_sd.values_mut()?, per_task * columns, |index, gathered| {
                let sources = rows::piece(sources_s, index, per_task);
                for (row, source) in gathered.chunks_exact_mut(columns).zip(sources) {
                    match *source {
                        NONE => row.fill(0.0),
                        source => row.copy_from_slice(&x_td[source as usize / chosen * columns..][..columns]),
                    }
                }
            });
        }
        Backend::Cuda => cuda::gather(OPERATOR, x_td, routes, &gathered_sd)?,
    }
    Ok(gathered_sd)
}

/// Adds the results of each token's experts, `y_sd [slots, columns]`, in the order of its choices. Also adds
/// the weighted biases of the experts, `bias_ed [experts · columns]`. Sums are in f32 and rounded once to
/// `dtype`; the result has `shape`.
pub fn combine(
    y_sd: &Tensor,
    bias_ed: Option<&Tensor>,
    routes: &Routes,
    shape: impl Into<crate::Shape>,
    dtype: DType,
) -> Result<Tensor> {
    sum("experts.combine", (y_sd, bias_ed), routes, (shape.into(), dtype), Category::Activation)
}

/// Adds the gradients of each token's slots, `dy_sd [slots, columns]`, in the order of its choices. Sums are
/// in f32 and rounded once to `dtype`; the result has `shape`.
pub fn sum_choices(
    dy_sd: &Tensor,
    routes: &Routes,
    shape: impl Into<crate::Shape>,
    dtype: DType,
) -> Result<Tensor> {
    let category = Category::ActivationGradient;
    sum("experts.sum_choices", (dy_sd, None), routes, (shape.into(), dtype), category)
}

fn sum(
    operator: &'static str,
    (y_sd, bias_ed): (&Tensor, Option<&Tensor>),
    routes: &Routes,
    (shape, dtype): (crate::Shape, DType),
    category: Category,
) -> Result<Tensor> {
    let columns = y_sd.shape().columns();
    let chosen = routes.per_token();
    check::computed(operator, &[("y", y_sd)])?;
    check::shape(operator, "y", y_sd, [routes.slots(), columns])?;
    if let Some(bias_ed) = bias_ed {
        check::computed(operator, &[("bias", bias_ed)])?;
        check::shape(operator, "bias", bias_ed, [routes.experts() * columns])?;
    }
    let out_td = Tensor::empty(y_sd.device(), shape, dtype, Request::new(category, operator))?;
    check::elements(operator, "out", &out_td, routes.rows() * columns)?;
    match y_sd.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let bias_ed = bias_ed.map(Tensor::values).transpose()?;
            let y_sd = y_sd.values()?;
            let slots_tp = routes.slots.read::<u32>()?;
            let weights_tp = routes.weights.read::<f32>()?;
            let choices_tp = routes.choices.read::<u32>()?;
            let (y_sd, slots_tp, weights_tp, choices_tp): (&[f32], &[u32], &[f32], &[u32]) =
                (&y_sd, &slots_tp, &weights_tp, &choices_tp);
            let bias_ed = bias_ed.as_deref();
            let per_task = rows::per_task(columns);
            for_pieces(&mut out_td.values_mut()?, per_task * columns, |index, out| {
                for (row, out) in out.chunks_exact_mut(columns).enumerate() {
                    let own = (index * per_task + row) * chosen;
                    out.fill(0.0);
                    for choice in own..own + chosen {
                        let y = &y_sd[slots_tp[choice] as usize * columns..][..columns];
                        simd(|| out.iter_mut().zip(y).for_each(|(out, y)| *out += y));
                        if let Some(bias) = bias_ed {
                            let bias = &bias[choices_tp[choice] as usize * columns..][..columns];
                            let weight = weights_tp[choice];
                            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += weight * bias);
                        }
                    }
                }
            });
        }
        Backend::Cuda => cuda::sum(operator, (y_sd, bias_ed), routes, &out_td)?,
    }
    Ok(out_td)
}

/// Returns the gradients of the routing weights, `[rows, per_token]` f32. These are the gradients of the
/// slots, `of_slots_s [slots]` f32, plus the part that the experts' biases contribute: dy · bias, for `dy_td
/// [.., columns]` and `bias_ed [experts · columns]`.
pub fn weight_gradients(
    of_slots_s: &Tensor,
    biases: Option<(&Tensor, &Tensor)>,
    routes: &Routes,
) -> Result<Tensor> {
    const OPERATOR: &str = "experts.weight_gradients";
    check::f32s(OPERATOR, &[("of_slots", of_slots_s)])?;
    check::shape(OPERATOR, "of_slots", of_slots_s, [routes.slots()])?;
    if let Some((dy_td, bias_ed)) = biases {
        check::computed(OPERATOR, &[("dy", dy_td), ("bias", bias_ed)])?;
        check::shape(OPERATOR, "bias", bias_ed, [routes.experts() * dy_td.shape().columns()])?;
        check::elements(OPERATOR, "dy", dy_td, routes.rows() * dy_td.shape().columns())?;
    }
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let gradients_tp = Tensor::empty(of_slots_s.device(), routes.weights.shape(), DType::F32, request)?;
    match of_slots_s.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let of_slots_s = of_slots_s.read::<f32>()?;
            let slots = routes.slots.read::<u32>()?;
            let mut target = gradients_tp.write::<f32>()?;
            let own = target.iter_mut().zip(slots.iter());
            own.for_each(|(target, slot)| *target = of_slots_s[*slot as usize]);
            if let Some((dy_td, bias_ed)) = biases {
                let columns = dy_td.shape().columns();
                let choices = routes.choices.read::<u32>()?;
                let dy_td = dy_td.values()?;
                let bias_ed = bias_ed.values()?;
                let chosen = routes.per_token();
                for (choice, (target, expert)) in target.iter_mut().zip(choices.iter()).enumerate() {
                    let dy = &dy_td[choice / chosen * columns..][..columns];
                    let bias = &bias_ed[*expert as usize * columns..][..columns];
                    *target += dy.iter().zip(bias).map(|(dy, bias)| dy * bias).sum::<f32>();
                }
            }
        }
        Backend::Cuda => cuda::weight_gradients(OPERATOR, of_slots_s, biases, routes, &gradients_tp)?,
    }
    Ok(gradients_tp)
}
