//! Gradients of one chunk of one value head on the host.

use super::chunk::{Chunk, Split, add};
use crate::ops::math::sum2;

/// Tiles of gradients of a chunk, of one value head: `n` tokens, `k` columns of keys, `v` of values.
pub(super) struct ChunkGradients<'a> {
    /// Gradient of the output, `[n, v]`.
    pub(super) dy: &'a mut [f32],
    /// Gradient of the corrections, and of the values, `[n, v]`.
    pub(super) dx: &'a mut [f32],
    /// Gradients of keys · keysᵀ and queries · keysᵀ, `[n, n]` each.
    dkeys: &'a mut [f32],
    dqueries: &'a mut [f32],
    /// Gradient of the queries, `[n, k]`.
    pub(super) dq: &'a mut [f32],
    /// Gradient of the keys as they correct or read earlier tokens, `[n, k]`.
    later: &'a mut [f32],
    /// Gradient of the keys as later tokens read them, `[n, k]`.
    earlier: &'a mut [f32],
    /// Gradient of the logarithms of the decays, `[n, channels]`.
    pub(super) ddecay: &'a mut [f32],
    /// Gradient of the rates, `[n]`.
    pub(super) drate: &'a mut [f32],
    /// Copy of the gradient of the state after the chunk, `[k, v]`.
    after: &'a mut [f32],
}

impl<'a> ChunkGradients<'a> {
    /// Splits the tiles off.
    pub(super) fn split(chunk: &Chunk<'_>, split: &mut Split<'a>) -> Self {
        let Chunk { n, width, value_width, channels, .. } = *chunk;
        ChunkGradients {
            dy: split.take(n * value_width),
            dx: split.take(n * value_width),
            dkeys: split.take(n * n),
            dqueries: split.take(n * n),
            dq: split.take(n * width),
            later: split.take(n * width),
            earlier: split.take(n * width),
            ddecay: split.take(n * channels),
            drate: split.take(n),
            after: split.take(width * value_width),
        }
    }

    /// Computes all gradients from `dy`, the state before the chunk and the gradient of the state after it,
    /// `dstate`, which becomes that of the state before it.
    #[inline(always)]
    pub(super) fn compute(&mut self, chunk: &Chunk<'_>, state: &[f32], dstate: &mut [f32]) {
        self.after.copy_from_slice(dstate);
        self.of_corrections(chunk);
        self.of_products(chunk);
        self.of_rows(chunk, state);
        self.of_decays(chunk, state);
        self.of_state(chunk, dstate);
    }

    /// Computes the gradients of corrections and rates.
    #[inline(always)]
    fn of_corrections(&mut self, chunk: &Chunk<'_>) {
        let [n, v, last] = [chunk.n, chunk.value_width, chunk.n - 1];
        // Of the corrections times their rates, first.
        for s in 0..n {
            let row = &mut self.dx[s * v..][..v];
            row.fill(0.0);
            for t in s..n {
                add(row, chunk.queries[t * n + s], &self.dy[t * v..][..v]);
            }
            if chunk.sees(last, s) {
                for c in 0..chunk.width {
                    let factor = chunk.k[s * chunk.width + c] * chunk.channel(chunk.until, s, c);
                    add(row, factor, &self.after[c * v..][..v]);
                }
            }
        }
        for t in (0..n).rev() {
            let (before, rest) = self.dx.split_at_mut(t * v);
            let row = &mut rest[..v];
            self.drate[t] = sum2(row, &chunk.x[t * v..][..v], |a, b| a * b);
            row.iter_mut().for_each(|value| *value *= chunk.rate[t]);
            for s in 0..t {
                add(&mut before[s * v..][..v], -chunk.keys[t * n + s], row);
            }
        }
    }

    /// Computes the gradients of the products of keys and queries.
    #[inline(always)]
    fn of_products(&mut self, chunk: &Chunk<'_>) {
        let [n, v] = [chunk.n, chunk.value_width];
        for t in 0..n {
            for s in 0..n {
                let at = t * n + s;
                let seen = s <= t && chunk.sees(t, s);
                let x = &chunk.x[s * v..][..v];
                let of_query = || chunk.rate[s] * sum2(&self.dy[t * v..][..v], x, |a, b| a * b);
                let of_key = || -chunk.rate[s] * sum2(&self.dx[t * v..][..v], x, |a, b| a * b);
                self.dqueries[at] = if seen { of_query() } else { 0.0 };
                self.dkeys[at] = if seen && s < t { of_key() } else { 0.0 };
            }
        }
    }

    /// Computes the gradients of queries and keys.
    #[inline(always)]
    fn of_rows(&mut self, chunk: &Chunk<'_>, state: &[f32]) {
        let [n, k, v, last] = [chunk.n, chunk.width, chunk.value_width, chunk.n - 1];
        for t in 0..n {
            for c in 0..k {
                let at = t * k + c;
                let carried = if chunk.carries(t) { chunk.channel(chunk.since, t, c) } else { 0.0 };
                let kept =
                    if chunk.sees(last, t) { chunk.channel(chunk.until, t, c) * chunk.rate[t] } else { 0.0 };
                let [row, after] = [&state[c * v..][..v], &self.after[c * v..][..v]];
                self.dq[at] = carried * sum2(row, &self.dy[t * v..][..v], |a, b| a * b);
                self.later[at] = -carried * sum2(row, &self.dx[t * v..][..v], |a, b| a * b);
                self.earlier[at] = kept * sum2(after, &chunk.x[t * v..][..v], |a, b| a * b);
            }
        }
        // The last row of decays takes the sum over the tokens that the state keeps.
        for c in 0..chunk.channels {
            let columns = if chunk.channels == 1 { 0..k } else { c..c + 1 };
            let terms = (0..n).flat_map(|s| columns.clone().map(move |c| s * k + c));
            self.ddecay[last * chunk.channels + c] = terms.map(|at| chunk.k[at] * self.earlier[at]).sum();
        }
        for t in 0..n {
            for s in (0..=t).filter(|s| chunk.sees(t, *s)) {
                let [of_key, of_query] = [self.dkeys[t * n + s], self.dqueries[t * n + s]];
                let whole = if chunk.channels == 1 { chunk.between(t, s, 0) } else { 0.0 };
                for c in 0..k {
                    let decay = if chunk.channels == 1 { whole } else { chunk.between(t, s, c) };
                    let [from, to] = [s * k + c, t * k + c];
                    self.dq[to] += of_query * decay * chunk.k[from];
                    self.later[to] += of_key * decay * chunk.k[from];
                    self.earlier[from] += decay * (of_query * chunk.q[to] + of_key * chunk.k[to]);
                }
            }
        }
    }

    /// Computes the gradients of the logarithms of the decays.
    #[inline(always)]
    fn of_decays(&mut self, chunk: &Chunk<'_>, state: &[f32]) {
        let [k, v, channels, last] = [chunk.width, chunk.value_width, chunk.channels, chunk.n - 1];
        for c in 0..channels {
            let columns = if channels == 1 { 0..k } else { c..c + 1 };
            let mut sum = self.ddecay[last * channels + c];
            if chunk.carries(last) {
                for c in columns.clone() {
                    let [row, after] = [&state[c * v..][..v], &self.after[c * v..][..v]];
                    sum += chunk.channel(chunk.since, last, c) * sum2(row, after, |a, b| a * b);
                }
            }
            for t in (0..chunk.n).rev() {
                for at in columns.clone().map(|c| t * k + c) {
                    sum += chunk.q[at] * self.dq[at] + chunk.k[at] * (self.later[at] - self.earlier[at]);
                }
                if chunk.begins(t) {
                    sum = 0.0;
                }
                self.ddecay[t * channels + c] = sum;
            }
        }
    }

    /// Computes the gradient of the state before the chunk.
    #[inline(always)]
    fn of_state(&self, chunk: &Chunk<'_>, dstate: &mut [f32]) {
        let [n, k, v, last] = [chunk.n, chunk.width, chunk.value_width, chunk.n - 1];
        for c in 0..k {
            let row = &mut dstate[c * v..][..v];
            let kept = if chunk.carries(last) { chunk.channel(chunk.since, last, c) } else { 0.0 };
            row.iter_mut().for_each(|value| *value *= kept);
            for t in (0..n).filter(|t| chunk.carries(*t)) {
                let since = chunk.channel(chunk.since, t, c);
                add(row, chunk.q[t * k + c] * since, &self.dy[t * v..][..v]);
                add(row, -chunk.k[t * k + c] * since, &self.dx[t * v..][..v]);
            }
        }
    }

    /// Adds the gradients of queries and keys to the sums over value heads, `[n, k]` each.
    pub(super) fn add_to(&self, dq: &mut [f32], dk: &mut [f32]) {
        add(dq, 1.0, self.dq);
        add(dk, 1.0, self.later);
        add(dk, 1.0, self.earlier);
    }
}
