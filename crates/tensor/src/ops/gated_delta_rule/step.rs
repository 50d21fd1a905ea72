//! The next token of sequences whose states are kept, for generation.

use device::parallel::{for_tasks, simd};
use device::{Backend, Category, DType, Request};

use super::operands::{DeltaHeads, DeltaSettings, Geometry, Operands};
use super::{cpu, cuda};
use crate::ops::check;
use crate::ops::math::exp;
use crate::{Result, Tensor, TensorError};

/// Advances the state of every slot by one token, and returns the outputs `[rows, 1, value heads · value
/// width]`. Row i is the next token of slot i; rows beyond the slots give 0. The order of sums differs from
/// [`forward`](super::forward()), so results agree up to rounding.
///
/// * `operands.documents [rows, 1]`: minus the position of every row, modulo 2³². A row at position 0 begins
///   with an empty state.
/// * `operands.state [slots, value heads, width, value width]` f32: the states, which are overwritten.
///
/// # Errors
/// Shapes or types that do not agree, no states or documents, fewer rows than slots, out of memory.
pub fn step(operands: &Operands<'_>, settings: DeltaSettings) -> Result<Tensor> {
    const OPERATOR: &str = "gated_delta_rule.step";
    let missing = TensorError::Count { operator: OPERATOR, actual: 0, expected: 1 };
    let (Some(states), Some(documents)) = (operands.state, operands.documents) else { return Err(missing) };
    let geometry = Geometry::check(OPERATOR, &Operands { state: None, ..*operands }, settings)?;
    let heads = settings.heads;
    check::f32s(OPERATOR, &[("state", states)])?;
    check::rank(OPERATOR, "state", states, 4)?;
    let slots = states.shape().dims()[0];
    check::shape(OPERATOR, "state", states, [slots, heads.value, heads.width, heads.value_width])?;
    if geometry.time != 1 || geometry.batch < slots {
        return Err(check::wrong(OPERATOR, "qkv", operands.qkv, format!("[at least {slots}, 1, _]")));
    }
    let device = operands.qkv.device();
    let request = Request::new(Category::Activation, OPERATOR);
    let output_blc = Tensor::empty(device, geometry.output_shape(), operands.qkv.dtype(), request)?;
    // On the host, rows of the query, the key, the decays and the output of each head.
    let words =
        if device.is_cuda_like() { 0 } else { slots * heads.value * (3 * heads.width + heads.value_width) };
    let workspace = Tensor::empty(device, [words], DType::F32, Request::new(Category::Workspace, OPERATOR))?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => on_host(operands, &geometry, (states, documents), &workspace, &output_blc)?,
        Backend::Cuda => cuda::step(OPERATOR, operands, &geometry, states, &output_blc)?,
    }
    Ok(output_blc)
}

fn on_host(
    operands: &Operands<'_>,
    geometry: &Geometry,
    (states, documents): (&Tensor, &Tensor),
    workspace: &Tensor,
    output_blc: &Tensor,
) -> Result<()> {
    let settings = geometry.settings;
    let DeltaHeads { key, value, width, value_width } = settings.heads;
    let qkv = operands.qkv.values()?;
    let decay = operands.decay.values()?;
    let rate = operands.rate.values()?;
    let documents = documents.read::<u32>()?;
    let qkv: &[f32] = &qkv;
    let decay: &[f32] = &decay;
    let rate: &[f32] = &rate;
    let documents: &[u32] = &documents;
    let mut states = states.write::<f32>()?;
    let mut workspace = workspace.write::<f32>()?;
    let rows = workspace.chunks_exact_mut(3 * width + value_width);
    let tasks = rows.zip(states.chunks_exact_mut(width * value_width)).enumerate().collect();
    for_tasks(tasks, |(index, (rows, state)): (usize, (&mut [f32], &mut [f32]))| {
        simd(
            #[inline(always)]
            || {
                let [slot, head] = [index / value, index % value];
                let row = &qkv[slot * settings.heads.packed_columns()..];
                let key_head = head / (value / key);
                let (query, rows) = rows.split_at_mut(width);
                let (own, rows) = rows.split_at_mut(width);
                let (kept, x) = rows.split_at_mut(width);
                let scale = 1.0 / (width as f32).sqrt();
                cpu::normalise(&row[key_head * width..][..width], scale, settings.epsilon, query);
                cpu::normalise(&row[(key + key_head) * width..][..width], 1.0, settings.epsilon, own);
                let decays = &decay[index * settings.channels()..][..settings.channels()];
                let is_first = documents[slot] == 0;
                for (c, kept) in kept.iter_mut().enumerate() {
                    *kept = if is_first { 0.0 } else { exp(decays[c % decays.len()]) };
                }
                x.copy_from_slice(&row[2 * key * width + head * value_width..][..value_width]);
                let channels = || own.iter().zip(&*kept);
                for (state, (key, kept)) in state.chunks_exact_mut(value_width).zip(channels()) {
                    // An empty state may hold any bits.
                    let keep = |old: f32| if is_first { 0.0 } else { old * kept };
                    state.iter_mut().for_each(|value| *value = keep(*value));
                    cpu::add(x, -key, state);
                }
                x.iter_mut().for_each(|x| *x *= rate[index]);
                for (state, key) in state.chunks_exact_mut(value_width).zip(&*own) {
                    cpu::add(state, *key, x);
                }
                x.fill(0.0);
                for (state, query) in state.chunks_exact(value_width).zip(&*query) {
                    cpu::add(x, *query, state);
                }
            },
        );
    });
    let mut output = output_blc.values_mut()?;
    output.fill(0.0);
    for (out, rows) in
        output.chunks_exact_mut(value_width).zip(workspace.chunks_exact(3 * width + value_width))
    {
        out.copy_from_slice(&rows[3 * width..]);
    }
    Ok(())
}
