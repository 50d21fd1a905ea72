//! Gradients of scans on the host.

use device::parallel::{for_pieces, map, simd};

use super::cpu::{Chunk, Head, Scan, add, softplus};
use super::heads::{CHUNK, StateHeads};
use crate::ops::math::{exp, sum2};

/// Gradients of one head of one sequence.
struct HeadGradients {
    /// Gradient of the head's x, `[time, width]`.
    x: Vec<f32>,
    /// The head's part of the gradients of B and C, `[time, states]` each.
    b: Vec<f32>,
    c: Vec<f32>,
    dt: Vec<f32>,
    /// Sums of each chunk for `a_log`, `d` and `bias`.
    weights: Vec<[f32; 3]>,
}

/// Gradients of one chunk's time steps and log decays, and the chunk's sum for D.
struct StepGradients {
    steps: [f32; CHUNK],
    log_decays: [f32; CHUNK],
    skip: f32,
}

impl Scan<'_> {
    /// Writes the gradients of the inputs, and the sums of chunks for the weights. `ends` are the states
    /// before the first token and the gradient of those after the last.
    pub(super) fn backward(
        self,
        dy_blc: &[f32],
        ends: Option<(&[f32], &[f32])>,
        [dxbc, ddt, sums]: [&mut [f32]; 3],
    ) {
        let StateHeads { heads, groups, width, states } = self.heads;
        let columns = self.heads.packed_columns();
        let computed = map(self.sequences() * heads, |number| {
            simd(
                #[inline(always)]
                || self.head(number).backward(dy_blc, ends),
            )
        });
        dxbc.chunks_exact_mut(columns).for_each(|row| row[heads * width..].fill(0.0));
        for (number, gradients) in computed.into_iter().enumerate() {
            let head = self.head(number);
            head.scatter(&gradients.x, dxbc, columns, head.head * width);
            head.scatter(&gradients.dt, ddt, heads, head.head);
            // Heads of a group add up in their order.
            for (part, first) in [(gradients.b, 0), (gradients.c, groups * states)] {
                for (t, part) in part.chunks_exact(states).enumerate() {
                    let at = (head.first_row + t) * columns + head.b_column() + first;
                    add(&mut dxbc[at..at + states], 1.0, part);
                }
            }
            let first_chunk = number / heads * gradients.weights.len();
            for (chunk, weights) in gradients.weights.iter().enumerate() {
                let row = &mut sums[(first_chunk + chunk) * 3 * heads..][..3 * heads];
                weights.iter().enumerate().for_each(|(part, sum)| row[part * heads + head.head] = *sum);
            }
        }
    }
}

impl Scan<'_> {
    /// Replaces the gradient of the states after the last token by that of the states before the first.
    pub(super) fn retreat(self, dy_blc: &[f32], gradient: &mut [f32]) {
        let StateHeads { width, states, .. } = self.heads;
        for_pieces(gradient, width * states, |number, gradient| {
            simd(
                #[inline(always)]
                || {
                    let head = self.head(number);
                    let starts = (0..self.time).step_by(CHUNK).rev();
                    starts.for_each(|start| head.retreat(&head.chunk(start), dy_blc, gradient));
                },
            );
        });
    }
}

impl Head<'_> {
    #[inline(always)]
    fn backward(&self, dy_blc: &[f32], ends: Option<(&[f32], &[f32])>) -> HeadGradients {
        let StateHeads { heads, width, states, .. } = self.scan.heads;
        let time = self.scan.time;
        let chunks = time.div_ceil(CHUNK);
        let mut entering = Vec::with_capacity(chunks);
        let first = (self.first_row / time * heads + self.head) * states * width;
        let own = |all: &[f32]| all[first..first + states * width].to_vec();
        let zeros = || vec![0.0; states * width];
        let mut state = ends.map_or_else(zeros, |(first, _)| own(first));
        for number in 0..chunks {
            entering.push(state.clone());
            self.advance(&self.chunk(number * CHUNK), &mut state);
        }
        let mut gradients = HeadGradients {
            x: vec![0.0; time * width],
            b: vec![0.0; time * states],
            c: vec![0.0; time * states],
            dt: vec![0.0; time],
            weights: vec![[0.0; 3]; chunks],
        };
        // The gradient of the state that leaves a chunk.
        let mut leaving = ends.map_or_else(zeros, |(_, last)| own(last));
        for (number, entering) in entering.iter().enumerate().rev() {
            let chunk = self.chunk(number * CHUNK);
            let mut steps = StepGradients { steps: [0.0; CHUNK], log_decays: [0.0; CHUNK], skip: 0.0 };
            self.pairs(&chunk, dy_blc, &mut gradients, &mut steps);
            self.through_states(&chunk, (dy_blc, entering, &leaving), &mut gradients, &mut steps);
            gradients.weights[number] = self.of_steps(&chunk, &steps, &mut gradients.dt);
            self.retreat(&chunk, dy_blc, &mut leaving);
        }
        gradients
    }

    #[inline(always)]
    fn dy<'y>(&self, dy_blc: &'y [f32], t: usize) -> &'y [f32] {
        let StateHeads { width, .. } = self.scan.heads;
        &dy_blc[(self.first_row + t) * self.scan.heads.columns() + self.head * width..][..width]
    }

    /// Adds the gradients of contributions from tokens of a chunk to later tokens of the same chunk.
    #[inline(always)]
    fn pairs(&self, chunk: &Chunk, dy_blc: &[f32], to: &mut HeadGradients, steps: &mut StepGradients) {
        let StateHeads { width, states, .. } = self.scan.heads;
        for i in 0..chunk.len() {
            let t = chunk.tokens.start + i;
            let dy = self.dy(dy_blc, t);
            for j in chunk.first[i]..=i {
                let from = chunk.tokens.start + j;
                let score = sum2(self.c(t), self.b(from), |c, b| c * b);
                let product = sum2(dy, self.x(from), |dy, x| dy * x);
                let decay = chunk.decay(i, j);
                let both = score * product * decay;
                steps.steps[j] += both;
                steps.log_decays[i] += both * chunk.steps[j];
                steps.log_decays[j] -= both * chunk.steps[j];
                add(&mut to.x[from * width..][..width], score * decay * chunk.steps[j], dy);
                let factor = product * decay * chunk.steps[j];
                add(&mut to.c[t * states..][..states], factor, self.b(from));
                add(&mut to.b[from * states..][..states], factor, self.c(t));
            }
            add(&mut to.x[t * width..][..width], self.scan.d[self.head], dy);
            steps.skip += sum2(dy, self.x(t), |dy, x| dy * x);
        }
    }

    /// Adds the gradients that pass through states: reads of the state that enters the chunk, and additions
    /// to the state that leaves it.
    #[inline(always)]
    fn through_states(
        &self,
        chunk: &Chunk,
        (dy_blc, entering, leaving): (&[f32], &[f32], &[f32]),
        to: &mut HeadGradients,
        steps: &mut StepGradients,
    ) {
        let StateHeads { width, states, .. } = self.scan.heads;
        let last = chunk.len() - 1;
        for i in 0..chunk.len() {
            let t = chunk.tokens.start + i;
            let dy = self.dy(dy_blc, t);
            let enters = chunk.enters(i);
            if chunk.sees[i] {
                let dc = &mut to.c[t * states..][..states];
                for ((dc, c), row) in dc.iter_mut().zip(self.c(t)).zip(entering.chunks_exact(width)) {
                    let seen = enters * sum2(row, dy, |state, dy| state * dy);
                    *dc += seen;
                    steps.log_decays[i] += c * seen;
                }
            }
            if i < chunk.first[last] {
                continue;
            }
            let leaves = chunk.leaves(i);
            let factor = leaves * chunk.steps[i];
            let db = &mut to.b[t * states..][..states];
            let dx = &mut to.x[t * width..][..width];
            for ((db, b), row) in db.iter_mut().zip(self.b(t)).zip(leaving.chunks_exact(width)) {
                let through = sum2(row, self.x(t), |gradient, x| gradient * x);
                *db += factor * through;
                add(dx, factor * b, row);
                steps.steps[i] += leaves * b * through;
                steps.log_decays[i] -= factor * b * through;
                steps.log_decays[last] += factor * b * through;
            }
        }
        if chunk.sees[last] {
            let kept = sum2(entering, leaving, |state, gradient| state * gradient);
            steps.log_decays[last] += chunk.enters(last) * kept;
        }
    }

    /// Writes the gradients of a chunk's raw steps; returns its sums for the weights.
    #[inline(always)]
    fn of_steps(&self, chunk: &Chunk, gradients: &StepGradients, dt: &mut [f32]) -> [f32; 3] {
        let [low, high] = self.scan.limits;
        let mut later = 0.0;
        let [mut of_a, mut of_bias] = [0.0; 2];
        for i in (0..chunk.len()).rev() {
            let t = chunk.tokens.start + i;
            later += gradients.log_decays[i];
            of_a += chunk.steps[i] * later;
            let raw = self.raw_step(t);
            let plain = softplus(raw);
            if plain > low && plain < high {
                dt[t] = (gradients.steps[i] + self.a * later) / (1.0 + exp(-raw));
            }
            of_bias += dt[t];
        }
        [of_a * self.a, gradients.skip, of_bias]
    }

    /// Replaces the gradient of a chunk's leaving state by the entering state's.
    #[inline(always)]
    fn retreat(&self, chunk: &Chunk, dy_blc: &[f32], gradient: &mut [f32]) {
        let width = self.scan.heads.width;
        let last = chunk.len() - 1;
        gradient.iter_mut().for_each(|gradient| *gradient *= chunk.enters(last));
        for i in (0..chunk.len()).filter(|i| chunk.sees[*i]) {
            let t = chunk.tokens.start + i;
            let enters = chunk.enters(i);
            for (c, row) in self.c(t).iter().zip(gradient.chunks_exact_mut(width)) {
                add(row, enters * c, self.dy(dy_blc, t));
            }
        }
    }
}
