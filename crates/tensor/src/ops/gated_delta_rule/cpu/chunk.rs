//! One chunk of one value head on the host, in contiguous tiles.

use super::sequence::Sequence;
use crate::ops::gated_delta_rule::operands::CHUNK;
use crate::ops::math::{exp, sum2};

/// Splits tiles off a piece of workspace.
pub(super) struct Split<'a>(pub(super) &'a mut [f32]);

impl<'a> Split<'a> {
    /// Returns the next `count` elements.
    pub(super) fn take(&mut self, count: usize) -> &'a mut [f32] {
        let (first, rest) = std::mem::take(&mut self.0).split_at_mut(count);
        self.0 = rest;
        first
    }
}

/// The operands of a chunk of one value head. `n` tokens, `k` columns of keys, `v` of values.
pub(super) struct Chunk<'a> {
    /// Number of tokens.
    pub(super) n: usize,
    /// Position of the first token.
    pub(super) start: usize,
    pub(super) width: usize,
    pub(super) value_width: usize,
    /// Decays per token.
    pub(super) channels: usize,
    /// Position at which each token's document begins.
    pub(super) documents: Option<&'a [u32]>,
    /// Normalised queries over √width, `[n, k]`.
    pub(super) q: &'a mut [f32],
    /// Normalised keys, `[n, k]`.
    pub(super) k: &'a mut [f32],
    /// Values, `[n, v]`.
    pub(super) v: &'a mut [f32],
    /// Rates, `[n]`.
    pub(super) rate: &'a mut [f32],
    /// Sums of the logarithms of the decays, `[n, channels]`.
    pub(super) sums: &'a mut [f32],
    /// Decays since the chunk's beginning, `[n, channels]`.
    pub(super) since: &'a mut [f32],
    /// Decays until the chunk's end, `[n, channels]`.
    pub(super) until: &'a mut [f32],
    /// Products of keys with earlier keys, decayed, `[n, n]`.
    pub(super) keys: &'a mut [f32],
    /// Products of queries with keys, decayed, `[n, n]`.
    pub(super) queries: &'a mut [f32],
    /// Corrections v − Sᵀk, `[n, v]`.
    pub(super) x: &'a mut [f32],
}

impl<'a> Chunk<'a> {
    /// Reads chunk `index` of `head` in a sequence, and computes all its tiles except the corrections.
    #[inline(always)]
    pub(super) fn read(sequence: &Sequence<'a>, [index, head]: [usize; 2], split: &mut Split<'a>) -> Self {
        let heads = sequence.settings.heads;
        let channels = sequence.settings.channels();
        let start = index * CHUNK;
        let n = CHUNK.min(sequence.time - start);
        let [width, value_width] = [heads.width, heads.value_width];
        let mut chunk = Chunk {
            n,
            start,
            width,
            value_width,
            channels,
            documents: sequence.documents,
            q: split.take(n * width),
            k: split.take(n * width),
            v: split.take(n * value_width),
            rate: split.take(n),
            sums: split.take(n * channels),
            since: split.take(n * channels),
            until: split.take(n * channels),
            keys: split.take(n * n),
            queries: split.take(n * n),
            x: split.take(n * value_width),
        };
        let key_head = head / (heads.value / heads.key);
        let scale = 1.0 / (width as f32).sqrt();
        for t in 0..n {
            let row = &sequence.qkv[(start + t) * heads.packed_columns()..][..heads.packed_columns()];
            let from = |first: usize, columns: usize| &row[first..first + columns];
            let keys = heads.key * width;
            let to = t * width..(t + 1) * width;
            normalise(
                from(key_head * width, width),
                scale,
                sequence.settings.epsilon,
                &mut chunk.q[to.clone()],
            );
            normalise(from(keys + key_head * width, width), 1.0, sequence.settings.epsilon, &mut chunk.k[to]);
            let value = from(2 * keys + head * value_width, value_width);
            chunk.v[t * value_width..][..value_width].copy_from_slice(value);
            chunk.rate[t] = sequence.rate[(start + t) * heads.value + head];
            let decay = &sequence.decay[((start + t) * heads.value + head) * channels..][..channels];
            for (c, decay) in decay.iter().enumerate() {
                let before = if t == 0 { 0.0 } else { chunk.sums[(t - 1) * channels + c] };
                chunk.sums[t * channels + c] = before + decay;
            }
        }
        for t in 0..n {
            for c in 0..channels {
                let sum = chunk.sums[t * channels + c];
                chunk.since[t * channels + c] = exp(sum);
                chunk.until[t * channels + c] = exp(chunk.sums[(n - 1) * channels + c] - sum);
            }
        }
        let mut keys = std::mem::take(&mut chunk.keys);
        let mut queries = std::mem::take(&mut chunk.queries);
        chunk.pairs(keys, queries);
        std::mem::swap(&mut chunk.keys, &mut keys);
        std::mem::swap(&mut chunk.queries, &mut queries);
        chunk
    }

    /// Returns whether token `t` sees the earlier token `s`.
    #[inline(always)]
    pub(super) fn sees(&self, t: usize, s: usize) -> bool {
        self.documents
            .is_none_or(|documents| documents[self.start + t].cast_signed() <= (self.start + s) as i32)
    }

    /// Returns whether token `t` sees the state before the chunk.
    #[inline(always)]
    pub(super) fn carries(&self, t: usize) -> bool {
        let start = self.start as i32;
        self.documents.is_none_or(|documents| documents[self.start + t].cast_signed() < start)
    }

    /// Returns whether token `t` begins a document.
    #[inline(always)]
    pub(super) fn begins(&self, t: usize) -> bool {
        let at = self.start + t;
        at > 0 && self.documents.is_some_and(|documents| documents[at] as usize == at)
    }

    /// Returns the decay of channel `c` from token `s` to token `t`.
    #[inline(always)]
    pub(super) fn between(&self, t: usize, s: usize, c: usize) -> f32 {
        exp(self.sums[t * self.channels + c] - self.sums[s * self.channels + c])
    }

    /// Returns the decay of key channel `c` in `table`, which has one column per channel or one for all
    /// channels.
    #[inline(always)]
    pub(super) fn channel(&self, table: &[f32], t: usize, c: usize) -> f32 {
        table[t * self.channels + if self.channels == 1 { 0 } else { c }]
    }

    fn pairs(&self, keys: &mut [f32], queries: &mut [f32]) {
        let [n, width] = [self.n, self.width];
        for t in 0..n {
            for s in 0..n {
                let at = t * n + s;
                (keys[at], queries[at]) = (0.0, 0.0);
                if s > t || !self.sees(t, s) {
                    continue;
                }
                let [q, k] = [&self.q[t * width..][..width], &self.k[t * width..][..width]];
                let other = &self.k[s * width..][..width];
                let [of_key, of_query] = match self.channels {
                    1 => {
                        let decay = self.between(t, s, 0);
                        [sum2(k, other, |a, b| a * b) * decay, sum2(q, other, |a, b| a * b) * decay]
                    }
                    _ => {
                        let mut sums = [0.0; 2];
                        for c in 0..width {
                            let decayed = other[c] * self.between(t, s, c);
                            sums[0] += k[c] * decayed;
                            sums[1] += q[c] * decayed;
                        }
                        sums
                    }
                };
                keys[at] = if s < t { of_key } else { 0.0 };
                queries[at] = of_query;
            }
        }
    }

    /// Computes the corrections from the state before the chunk, `[k, v]`.
    #[inline(always)]
    pub(super) fn correct(&mut self, state: &[f32]) {
        let [n, v] = [self.n, self.value_width];
        for t in 0..n {
            let (before, rest) = self.x.split_at_mut(t * v);
            let x = &mut rest[..v];
            x.copy_from_slice(&self.v[t * v..][..v]);
            let carries = {
                let start = self.start as i32;
                self.documents.is_none_or(|documents| documents[self.start + t].cast_signed() < start)
            };
            if carries {
                for c in 0..self.width {
                    let since = self.since[t * self.channels + if self.channels == 1 { 0 } else { c }];
                    add(x, -self.k[t * self.width + c] * since, &state[c * v..][..v]);
                }
            }
            for s in 0..t {
                add(x, -self.keys[t * n + s] * self.rate[s], &before[s * v..][..v]);
            }
        }
    }

    /// Computes the outputs from the state before the chunk and the corrections. `output(t)` is a row.
    #[inline(always)]
    pub(super) fn read_out(&self, state: &[f32], output: &mut [f32]) {
        let [n, v] = [self.n, self.value_width];
        for t in 0..n {
            let out = &mut output[t * v..][..v];
            out.fill(0.0);
            if self.carries(t) {
                for c in 0..self.width {
                    let factor = self.q[t * self.width + c] * self.channel(self.since, t, c);
                    add(out, factor, &state[c * v..][..v]);
                }
            }
            for s in 0..=t {
                add(out, self.queries[t * n + s] * self.rate[s], &self.x[s * v..][..v]);
            }
        }
    }

    /// Replaces the state before the chunk by the state after it.
    #[inline(always)]
    pub(super) fn advance(&self, state: &mut [f32]) {
        let [n, v, last] = [self.n, self.value_width, self.n - 1];
        for c in 0..self.width {
            let row = &mut state[c * v..][..v];
            let kept = if self.carries(last) { self.channel(self.since, last, c) } else { 0.0 };
            row.iter_mut().for_each(|value| *value *= kept);
            for s in (0..n).filter(|s| self.sees(last, *s)) {
                let factor = self.k[s * self.width + c] * self.channel(self.until, s, c) * self.rate[s];
                add(row, factor, &self.x[s * v..][..v]);
            }
        }
    }
}

/// Adds `factor` times `from` to `to`.
#[inline(always)]
pub(in crate::ops) fn add(to: &mut [f32], factor: f32, from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
}

/// Writes `scale` times `x`, divided by its norm.
#[inline(always)]
pub(in crate::ops) fn normalise(x: &[f32], scale: f32, epsilon: f32, y: &mut [f32]) {
    let factor = scale * reciprocal_norm(x, epsilon);
    y.iter_mut().zip(x).for_each(|(y, x)| *y = x * factor);
}

/// Returns the reciprocal norm of a row.
#[inline(always)]
pub(super) fn reciprocal_norm(x: &[f32], epsilon: f32) -> f32 {
    1.0 / (sum2(x, x, |a, b| a * b) + epsilon).sqrt()
}
