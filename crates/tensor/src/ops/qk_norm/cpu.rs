//! Normalisation of queries and keys on the host, one task per run of rows.

use device::ReadGuard;
use device::parallel::{for_tasks, simd};

use super::operands::Weights;
use super::workspace;
use crate::host_values::Values;
use crate::ops::attention::Heads;
use crate::ops::rms_norm::cpu::{row_gradient, rstd as reciprocal};
use crate::ops::rotary::{self, Rotation, cpu::rotate_head};
use crate::{Result, Tensor};

/// Operands in the host's memory.
pub(super) struct Operands<'a> {
    qkv: Values<'a>,
    weights: [Values<'a>; 2],
    table: Values<'a>,
    documents: Option<ReadGuard<'a, u32>>,
    heads: Heads,
    time: usize,
}

impl<'a> Operands<'a> {
    pub(super) fn read(
        qkv_blc: &'a Tensor,
        heads: Heads,
        weights: Weights<'a>,
        angles: rotary::Angles<'a>,
    ) -> Result<Self> {
        Ok(Operands {
            qkv: qkv_blc.values()?,
            weights: [weights.query.values()?, weights.key.values()?],
            table: angles.table.values()?,
            documents: angles.documents.map(Tensor::read).transpose()?,
            heads,
            time: qkv_blc.shape().dims()[1],
        })
    }

    pub(super) fn rows(&self, operator: &'static str) -> Result<Rows<'_>> {
        let documents = self.documents.as_deref();
        rotary::check_documents(operator, documents, self.time)?;
        let [query, key] = &self.weights;
        let width = self.heads.width;
        let angles = rotary::cpu::Angles { table: &self.table, documents, time: self.time, width };
        Ok(Rows { qkv: &self.qkv, weights: [query, key], angles, heads: self.heads })
    }
}

#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    qkv: &'a [f32],
    weights: [&'a [f32]; 2],
    angles: rotary::cpu::Angles<'a>,
    heads: Heads,
}

impl Rows<'_> {
    fn count(&self) -> usize {
        self.qkv.len() / self.heads.packed_columns()
    }

    fn per_run(&self) -> usize {
        self.count().div_ceil(workspace::runs(self.count())).max(1)
    }

    fn normed(&self) -> usize {
        self.heads.query + self.heads.key_value
    }

    /// Returns 0 for a query head, 1 for a key head.
    fn kind(&self, head: usize) -> usize {
        usize::from(head >= self.heads.query)
    }

    pub(super) fn forward(&self, epsilon: f32, output_blc: &mut [f32], rstd_th: &mut [f32]) {
        let columns = self.heads.packed_columns();
        let normed = self.normed();
        let per_run = self.per_run();
        let tasks =
            output_blc.chunks_mut(per_run * columns).zip(rstd_th.chunks_mut(per_run * normed)).enumerate();
        for_tasks(tasks.collect(), |(run, (output, rstd)): (usize, (&mut [f32], &mut [f32]))| {
            simd(
                #[inline(always)]
                || {
                    let rows = output.chunks_exact_mut(columns).zip(rstd.chunks_exact_mut(normed));
                    for (row, (output, rstd)) in rows.enumerate() {
                        self.forward_row(run * per_run + row, epsilon, output, rstd);
                    }
                },
            );
        });
    }

    #[inline(always)]
    fn forward_row(&self, row: usize, epsilon: f32, output: &mut [f32], rstd: &mut [f32]) {
        output.copy_from_slice(&self.qkv[row * output.len()..][..output.len()]);
        let angles = self.angles.row(row);
        for (head, (values, rstd)) in output.chunks_exact_mut(self.heads.width).zip(rstd).enumerate() {
            *rstd = reciprocal(values, epsilon);
            let weight = self.weights[self.kind(head)];
            values.iter_mut().zip(weight).for_each(|(value, weight)| *value *= *rstd * weight);
            rotate_head(values, angles, Rotation::Forward);
        }
    }

    /// Replaces `gradient_blc`, the output's gradient, by the input's. Writes the partial sums of the
    /// weights' gradients to `sums`.
    pub(super) fn backward(&self, rstd_th: &[f32], gradient_blc: &mut [f32], sums: &mut [f32]) {
        let columns = self.heads.packed_columns();
        let per_run = self.per_run();
        let mut pieces = gradient_blc.chunks_mut(per_run * columns);
        let tasks = sums.chunks_mut(2 * self.heads.width).map(|sums| (sums, pieces.next()));
        for_tasks(
            tasks.enumerate().collect(),
            |(run, (sums, rows)): (usize, (&mut [f32], Option<&mut [f32]>))| {
                simd(
                    #[inline(always)]
                    || {
                        sums.fill(0.0);
                        for (row, gradient) in
                            rows.into_iter().flat_map(|r| r.chunks_exact_mut(columns)).enumerate()
                        {
                            self.backward_row(run * per_run + row, rstd_th, gradient, sums);
                        }
                    },
                );
            },
        );
    }

    #[inline(always)]
    fn backward_row(&self, row: usize, rstd: &[f32], gradient: &mut [f32], sums: &mut [f32]) {
        let width = self.heads.width;
        let x = &self.qkv[row * gradient.len()..][..gradient.len()];
        let rstd = &rstd[row * self.normed()..][..self.normed()];
        let angles = self.angles.row(row);
        let heads = gradient.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(rstd);
        for (head, ((gradient, x), rstd)) in heads.enumerate() {
            rotate_head(gradient, angles, Rotation::Backward);
            let kind = self.kind(head);
            let sums = &mut sums[kind * width..][..width];
            for ((sum, dy), x) in sums.iter_mut().zip(&*gradient).zip(x) {
                *sum += dy * (x * rstd);
            }
            row_gradient(x, *rstd, self.weights[kind], gradient);
        }
    }
}

/// Computes out (+)= the sum over all runs for the weight of queries (`part` 0) or keys (1).
pub(super) fn finish(sums: &[f32], part: usize, out: &mut [f32], accumulate: bool) {
    let width = out.len();
    for (column, out) in out.iter_mut().enumerate() {
        let total: f32 = sums.chunks_exact(2 * width).map(|run| run[part * width + column]).sum();
        *out = if accumulate { *out + total } else { total };
    }
}
