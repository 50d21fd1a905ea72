//! Scans on the host, a task for each head of a sequence.

use std::ops::Range;

use device::parallel::{for_pieces, map, simd};

use super::heads::{CHUNK, StateHeads};
use crate::ops::math::{exp, sum2};

/// Values of the operands, and sizes.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a> {
    pub(super) xbc: &'a [f32],
    pub(super) dt: &'a [f32],
    pub(super) a_log: &'a [f32],
    pub(super) d: &'a [f32],
    pub(super) bias: &'a [f32],
    pub(super) documents: Option<&'a [u32]>,
    pub(super) heads: StateHeads,
    pub(super) limits: [f32; 2],
    pub(super) time: usize,
}

/// One head of one sequence.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) scan: Scan<'a>,
    pub(super) head: usize,
    /// Index of the sequence's first row.
    pub(super) first_row: usize,
    /// The head's A.
    pub(super) a: f32,
}

/// One chunk of a head: its time steps, and their sums times A from the chunk's first token on.
pub(super) struct Chunk {
    pub(super) tokens: Range<usize>,
    pub(super) steps: [f32; CHUNK],
    pub(super) log_decays: [f32; CHUNK],
    /// Index in the chunk of the first token of each token's document.
    pub(super) first: [usize; CHUNK],
    /// Whether each token's document has tokens before the chunk.
    pub(super) sees: [bool; CHUNK],
}

impl Chunk {
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the decay from token `j` to token `i` of the chunk.
    #[inline(always)]
    pub(super) fn decay(&self, i: usize, j: usize) -> f32 {
        exp(self.log_decays[i] - self.log_decays[j])
    }

    /// Returns the factor of the entering state in token `i`.
    #[inline(always)]
    pub(super) fn enters(&self, i: usize) -> f32 {
        if self.sees[i] { exp(self.log_decays[i]) } else { 0.0 }
    }

    /// Returns the factor of token `i` in the leaving state; 0 if another document follows.
    #[inline(always)]
    pub(super) fn leaves(&self, i: usize) -> f32 {
        let last = self.len() - 1;
        if i >= self.first[last] { self.decay(last, i) } else { 0.0 }
    }
}

/// Returns ln(1 + e^x).
#[inline(always)]
pub(super) fn softplus(x: f32) -> f32 {
    x.max(0.0) + libm::log1pf(exp(-x.abs()))
}

impl<'a> Scan<'a> {
    pub(super) fn sequences(&self) -> usize {
        self.dt.len() / (self.time * self.heads.heads)
    }

    /// Returns the head with this number, counted over all sequences.
    pub(super) fn head(self, number: usize) -> Head<'a> {
        let head = number % self.heads.heads;
        let first_row = number / self.heads.heads * self.time;
        Head { scan: self, head, first_row, a: -exp(self.a_log[head]) }
    }

    pub(super) fn forward(self, state: Option<&mut [f32]>, y_blc: &mut [f32]) {
        let StateHeads { heads, width, states, .. } = self.heads;
        let each = width * states;
        let initial = state.as_deref().filter(|_| self.documents.is_some());
        let computed = map(self.sequences() * heads, |number| {
            simd(
                #[inline(always)]
                || {
                    let own = initial.and_then(|initial| initial.get(number * each..(number + 1) * each));
                    let mut state = own.map_or_else(|| vec![0.0; each], <[f32]>::to_vec);
                    let y = self.head(number).forward(&mut state);
                    (y, state)
                },
            )
        });
        let mut kept = state.map(|state| state.chunks_exact_mut(each));
        for (number, (y, state)) in computed.into_iter().enumerate() {
            self.head(number).scatter(&y, y_blc, self.heads.columns(), number % heads * width);
            if let Some(kept) = kept.as_mut().and_then(Iterator::next) {
                kept.copy_from_slice(&state);
            }
        }
    }
}

impl Scan<'_> {
    /// Replaces the states before the first token by those after the last.
    pub(super) fn advance(self, state: &mut [f32]) {
        let StateHeads { width, states, .. } = self.heads;
        let reads = self.documents.is_some();
        for_pieces(state, width * states, |number, state| {
            simd(
                #[inline(always)]
                || {
                    let head = self.head(number);
                    if !reads {
                        state.fill(0.0);
                    }
                    (0..self.time).step_by(CHUNK).for_each(|start| head.advance(&head.chunk(start), state));
                },
            );
        });
    }
}

impl<'a> Head<'a> {
    /// Returns columns of the row of token `t` from `first` on.
    #[inline(always)]
    fn columns(&self, t: usize, first: usize, count: usize) -> &'a [f32] {
        &self.scan.xbc[(self.first_row + t) * self.scan.heads.packed_columns() + first..][..count]
    }

    #[inline(always)]
    pub(super) fn x(&self, t: usize) -> &'a [f32] {
        let width = self.scan.heads.width;
        self.columns(t, self.head * width, width)
    }

    /// Returns the first column of the head's B in a row of `xbc`. Its C begins groups · states columns
    /// later.
    pub(super) fn b_column(&self) -> usize {
        let StateHeads { heads, groups, states, .. } = self.scan.heads;
        self.scan.heads.columns() + self.head / (heads / groups) * states
    }

    #[inline(always)]
    pub(super) fn b(&self, t: usize) -> &'a [f32] {
        self.columns(t, self.b_column(), self.scan.heads.states)
    }

    #[inline(always)]
    pub(super) fn c(&self, t: usize) -> &'a [f32] {
        let StateHeads { groups, states, .. } = self.scan.heads;
        self.columns(t, self.b_column() + groups * states, states)
    }

    /// Returns the time step of token `t` before softplus.
    #[inline(always)]
    pub(super) fn raw_step(&self, t: usize) -> f32 {
        self.scan.dt[(self.first_row + t) * self.scan.heads.heads + self.head] + self.scan.bias[self.head]
    }

    /// Returns the chunks of the sequence.
    pub(super) fn chunk(&self, start: usize) -> Chunk {
        let tokens = start..self.scan.time.min(start + CHUNK);
        let [low, high] = self.scan.limits;
        let mut chunk = Chunk {
            tokens: tokens.clone(),
            steps: [0.0; CHUNK],
            log_decays: [0.0; CHUNK],
            first: [0; CHUNK],
            sees: [false; CHUNK],
        };
        let mut sum = 0.0f32;
        for (i, t) in tokens.enumerate() {
            let step = softplus(self.raw_step(t)).max(low).min(high);
            sum = step.mul_add(self.a, sum);
            chunk.steps[i] = step;
            chunk.log_decays[i] = sum;
            let document = self.scan.documents.map_or(0, |documents| documents[self.first_row + t]);
            let from = document.cast_signed() - start as i32;
            chunk.first[i] = from.max(0) as usize;
            chunk.sees[i] = from < 0;
        }
        chunk
    }

    /// Computes the head's outputs, `[time, width]`, and replaces `state` by the state after the last token.
    #[inline(always)]
    fn forward(&self, state: &mut [f32]) -> Vec<f32> {
        let StateHeads { width, .. } = self.scan.heads;
        let mut y = vec![0.0; self.scan.time * width];
        for (number, y) in y.chunks_mut(CHUNK * width).enumerate() {
            let chunk = self.chunk(number * CHUNK);
            for (i, y) in y.chunks_exact_mut(width).enumerate() {
                let t = chunk.tokens.start + i;
                let skip = self.scan.d[self.head];
                y.iter_mut().zip(self.x(t)).for_each(|(y, x)| *y = skip * x);
                for j in chunk.first[i]..=i {
                    let from = chunk.tokens.start + j;
                    let score = sum2(self.c(t), self.b(from), |c, b| c * b);
                    add(y, score * chunk.decay(i, j) * chunk.steps[j], self.x(from));
                }
                let enters = chunk.enters(i);
                if chunk.sees[i] {
                    for (c, row) in self.c(t).iter().zip(state.chunks_exact(width)) {
                        add(y, enters * c, row);
                    }
                }
            }
            self.advance(&chunk, state);
        }
        y
    }

    /// Replaces the state that enters a chunk by its leaving state.
    #[inline(always)]
    pub(super) fn advance(&self, chunk: &Chunk, state: &mut [f32]) {
        let width = self.scan.heads.width;
        let last = chunk.len() - 1;
        match chunk.sees[last] {
            true => state.iter_mut().for_each(|value| *value *= chunk.enters(last)),
            false => state.fill(0.0),
        }
        for j in chunk.first[last]..chunk.len() {
            let t = chunk.tokens.start + j;
            let factor = chunk.leaves(j) * chunk.steps[j];
            for (b, row) in self.b(t).iter().zip(state.chunks_exact_mut(width)) {
                add(row, factor * b, self.x(t));
            }
        }
    }

    /// Copies rows of one head to columns from `first` on of the sequence's rows in `to`.
    pub(super) fn scatter(&self, rows: &[f32], to: &mut [f32], columns: usize, first: usize) {
        let width = rows.len() / self.scan.time;
        for (t, row) in rows.chunks_exact(width).enumerate() {
            to[(self.first_row + t) * columns + first..][..width].copy_from_slice(row);
        }
    }
}

/// Computes to += factor · x.
#[inline(always)]
pub(super) fn add(to: &mut [f32], factor: f32, x: &[f32]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to = factor.mul_add(*x, *to));
}
