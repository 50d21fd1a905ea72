//! The gated delta rule on the host: one task per value head of a sequence, and per key head in backward.

mod backward;
mod chunk;
mod sequence;

use device::parallel::{for_pieces, simd};

use super::operands::{CHUNK, Geometry, Gradients, Operands};
use super::workspace::HostTask;
use crate::ops::rotary::check_documents;
use crate::ops::rows;
use crate::{Result, Tensor};
use backward::ChunkGradients;
use chunk::{Chunk, Split, reciprocal_norm};
pub(super) use chunk::{add, normalise};
use sequence::Sequence;

/// Operands of all sequences.
struct Arrays<'a> {
    geometry: &'a Geometry,
    qkv: &'a [f32],
    decay: &'a [f32],
    rate: &'a [f32],
    documents: Option<&'a [u32]>,
    state: Option<&'a [f32]>,
}

impl<'a> Arrays<'a> {
    fn sequence(&self, batch: usize) -> Sequence<'a> {
        let Geometry { time, settings, .. } = *self.geometry;
        let part = |all: &'a [f32], columns: usize| &all[batch * time * columns..][..time * columns];
        Sequence {
            time,
            settings,
            qkv: part(self.qkv, settings.heads.packed_columns()),
            decay: part(self.decay, settings.decays()),
            rate: part(self.rate, settings.heads.value),
            documents: self.documents.map(|documents| &documents[batch * time..][..time]),
        }
    }

    /// Sets `state` to the first state of a head, counted over all sequences.
    fn first_state(&self, head: usize, state: &mut [f32]) {
        match self.state {
            Some(states) => state.copy_from_slice(&states[head * state.len()..][..state.len()]),
            None => state.fill(0.0),
        }
    }
}

pub(super) fn forward(
    operator: &'static str,
    operands: &Operands<'_>,
    geometry: &Geometry,
    workspace: &Tensor,
    (output_blc, state): (&Tensor, Option<&Tensor>),
) -> Result<()> {
    let heads = geometry.settings.heads;
    let task = HostTask::forward(geometry);
    let mut workspace = workspace.write::<f32>()?;
    with_arrays(operator, operands, geometry, |arrays| {
        for_pieces(&mut workspace, task.words, |index, piece| {
            simd(
                #[inline(always)]
                || forward_head(arrays, index, piece),
            );
        });
    })?;
    let time = geometry.time;
    let columns = heads.output_columns();
    let per_task = rows::per_task(columns);
    let workspace: &[f32] = &workspace;
    for_pieces(&mut output_blc.values_mut()?, per_task * columns, |index, rows| {
        for (row, out) in rows.chunks_exact_mut(columns).enumerate() {
            let row = index * per_task + row;
            for (head, out) in out.chunks_exact_mut(heads.value_width).enumerate() {
                let piece = (row / time * heads.value + head) * task.words;
                out.copy_from_slice(
                    &workspace[piece + row % time * heads.value_width..][..heads.value_width],
                );
            }
        }
    });
    if let Some(state) = state {
        let size = heads.width * heads.value_width;
        for_pieces(&mut state.write::<f32>()?, size, |index, out| {
            out.copy_from_slice(&workspace[index * task.words + time * heads.value_width..][..size]);
        });
    }
    Ok(())
}

/// Computes the output and the last state of one value head, counted over all sequences.
fn forward_head(arrays: &Arrays<'_>, index: usize, piece: &mut [f32]) {
    let heads = arrays.geometry.settings.heads;
    let sequence = arrays.sequence(index / heads.value);
    let mut split = Split(piece);
    let output = split.take(sequence.time * heads.value_width);
    let state = split.take(heads.width * heads.value_width);
    arrays.first_state(index, state);
    for (number, output) in output.chunks_mut(CHUNK * heads.value_width).enumerate() {
        let mut chunk = Chunk::read(&sequence, [number, index % heads.value], &mut Split(&mut *split.0));
        chunk.correct(state);
        chunk.read_out(state, output);
        chunk.advance(state);
    }
}

pub(super) fn backward(
    operator: &'static str,
    (dy_blc, dstate): (&Tensor, Option<&Tensor>),
    operands: &Operands<'_>,
    geometry: &Geometry,
    workspace: &Tensor,
    gradients: &Gradients,
) -> Result<()> {
    let heads = geometry.settings.heads;
    let task = HostTask::backward(geometry);
    let dy_blc = dy_blc.values()?;
    let dstate = dstate.map(Tensor::values).transpose()?;
    let dy_blc: &[f32] = &dy_blc;
    let dstate: Option<&[f32]> = dstate.as_deref();
    let mut workspace = workspace.write::<f32>()?;
    with_arrays(operator, operands, geometry, |arrays| {
        for_pieces(&mut workspace, task.words, |index, piece| {
            simd(
                #[inline(always)]
                || backward_head(arrays, (dy_blc, dstate), index, piece),
            );
        });
    })?;
    let workspace: &[f32] = &workspace;
    let channels = geometry.settings.channels();
    let [time, group, width] = [geometry.time, geometry.group(), heads.width];
    let of_key = |batch: usize, head: usize| (batch * heads.key + head) * task.words;
    let of_value =
        |batch: usize, head: usize| of_key(batch, head / group) + task.shared + head % group * task.own;
    let scatter = |target: &Tensor, columns: usize, copy: &(dyn Fn([usize; 2], &mut [f32]) + Sync)| {
        let per_task = rows::per_task(columns);
        for_pieces(&mut target.values_mut()?, per_task * columns, |index, rows| {
            for (row, out) in rows.chunks_exact_mut(columns).enumerate() {
                let row = index * per_task + row;
                copy([row / time, row % time], out);
            }
        });
        Ok::<_, crate::TensorError>(())
    };
    scatter(&gradients.qkv, heads.packed_columns(), &|[batch, t], out| {
        let (keys, values) = out.split_at_mut(2 * heads.key * width);
        for (index, out) in keys.chunks_exact_mut(width).enumerate() {
            let [kind, head] = [index / heads.key, index % heads.key];
            out.copy_from_slice(&workspace[of_key(batch, head) + (kind * time + t) * width..][..width]);
        }
        for (head, out) in values.chunks_exact_mut(heads.value_width).enumerate() {
            let from = of_value(batch, head) + t * heads.value_width;
            out.copy_from_slice(&workspace[from..][..heads.value_width]);
        }
    })?;
    scatter(&gradients.decay, geometry.settings.decays(), &|[batch, t], out| {
        for (head, out) in out.chunks_exact_mut(channels).enumerate() {
            let from = of_value(batch, head) + time * heads.value_width + t * channels;
            out.copy_from_slice(&workspace[from..][..channels]);
        }
    })?;
    scatter(&gradients.rate, heads.value, &|[batch, t], out| {
        for (head, out) in out.iter_mut().enumerate() {
            *out = workspace[of_value(batch, head) + time * (heads.value_width + channels) + t];
        }
    })?;
    let Some(state) = &gradients.state else { return Ok(()) };
    let size = width * heads.value_width;
    for_pieces(&mut state.write::<f32>()?, size, |index, out| {
        let [batch, head] = [index / heads.value, index % heads.value];
        let from = of_value(batch, head) + time * (heads.value_width + channels + 1);
        out.copy_from_slice(&workspace[from..][..size]);
    });
    Ok(())
}

/// Computes the gradients of one key head, counted over all sequences, and of its value heads.
fn backward_head(
    arrays: &Arrays<'_>,
    (dy_blc, dstate): (&[f32], Option<&[f32]>),
    index: usize,
    piece: &mut [f32],
) {
    let geometry = arrays.geometry;
    let heads = geometry.settings.heads;
    let channels = geometry.settings.channels();
    let [time, width, value_width, group] = [geometry.time, heads.width, heads.value_width, geometry.group()];
    let batch = index / heads.key;
    let sequence = arrays.sequence(batch);
    let size = width * value_width;
    let chunks = geometry.chunks();
    let task = HostTask::backward(geometry);
    let mut split = Split(piece);
    let [all_dq, all_dk] = [split.take(time * width), split.take(time * width)];
    let own = split.take(group * task.own);
    let states = split.take(group * chunks * size);
    for (member, (states, own)) in
        states.chunks_exact_mut(chunks * size).zip(own.chunks_exact_mut(task.own)).enumerate()
    {
        let head = index % heads.key * group + member;
        let from = (batch * heads.value + head) * size;
        let after = &mut own[time * (value_width + channels + 1)..];
        match dstate {
            Some(dstate) => after.copy_from_slice(&dstate[from..][..size]),
            None => after.fill(0.0),
        }
        arrays.first_state(batch * heads.value + head, &mut states[..size]);
        for number in 1..chunks {
            let (before, next) = states.split_at_mut(number * size);
            let before = &before[(number - 1) * size..];
            let next = &mut next[..size];
            let mut chunk = Chunk::read(&sequence, [number - 1, head], &mut Split(&mut *split.0));
            chunk.correct(before);
            next.copy_from_slice(before);
            chunk.advance(next);
        }
    }
    for number in (0..chunks).rev() {
        let tokens = number * CHUNK..time.min((number + 1) * CHUNK);
        let rows = tokens.start * width..tokens.end * width;
        let [dq, dk] = [&mut all_dq[rows.clone()], &mut all_dk[rows]];
        dq.fill(0.0);
        dk.fill(0.0);
        for (member, own) in own.chunks_exact_mut(task.own).enumerate() {
            let head = index % heads.key * group + member;
            let mut parts = Split(own);
            let dv = parts.take(time * value_width);
            let [ddecay, drate] = [parts.take(time * channels), parts.take(time)];
            let state = &states[(member * chunks + number) * size..][..size];
            let mut tiles = Split(&mut *split.0);
            let mut chunk = Chunk::read(&sequence, [number, head], &mut tiles);
            chunk.correct(state);
            let mut own = ChunkGradients::split(&chunk, &mut tiles);
            for (t, row) in own.dy.chunks_exact_mut(value_width).enumerate() {
                let from = (batch * time + tokens.start + t) * heads.output_columns() + head * value_width;
                row.copy_from_slice(&dy_blc[from..][..value_width]);
            }
            own.compute(&chunk, state, parts.0);
            own.add_to(dq, dk);
            dv[tokens.start * value_width..tokens.end * value_width].copy_from_slice(own.dx);
            ddecay[tokens.start * channels..tokens.end * channels].copy_from_slice(own.ddecay);
            drate[tokens.clone()].copy_from_slice(own.drate);
        }
        let scale = 1.0 / (width as f32).sqrt();
        for (t, token) in tokens.enumerate() {
            let row = &sequence.qkv[token * heads.packed_columns()..];
            let key_head = index % heads.key;
            let q = &row[key_head * width..][..width];
            let k = &row[(heads.key + key_head) * width..][..width];
            unnormalise(q, scale, geometry.settings.epsilon, &mut dq[t * width..][..width]);
            unnormalise(k, 1.0, geometry.settings.epsilon, &mut dk[t * width..][..width]);
        }
    }
}

/// Replaces the gradient of a normalised row by that of the row `x`.
#[inline(always)]
fn unnormalise(x: &[f32], scale: f32, epsilon: f32, gradient: &mut [f32]) {
    let reciprocal = reciprocal_norm(x, epsilon);
    let along = crate::ops::math::sum2(x, gradient, |x, g| x * reciprocal * g);
    for (g, x) in gradient.iter_mut().zip(x) {
        *g = scale * reciprocal * (*g - x * reciprocal * along);
    }
}

/// Calls `body` with the values of the operands.
fn with_arrays(
    operator: &'static str,
    operands: &Operands<'_>,
    geometry: &Geometry,
    body: impl FnOnce(&Arrays<'_>),
) -> Result<()> {
    let Operands { qkv, decay, rate, documents, state } = *operands;
    let qkv = qkv.values()?;
    let decay = decay.values()?;
    let rate = rate.values()?;
    let documents = documents.map(Tensor::read::<u32>).transpose()?;
    check_documents(operator, documents.as_deref(), geometry.time)?;
    let state = state.map(Tensor::values).transpose()?;
    body(&Arrays {
        geometry,
        qkv: &qkv,
        decay: &decay,
        rate: &rate,
        documents: documents.as_deref(),
        state: state.as_deref(),
    });
    Ok(())
}
