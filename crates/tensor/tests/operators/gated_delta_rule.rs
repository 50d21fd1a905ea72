//! The gated delta rule, compared with the recurrence of one token after another in f64.

use tensor::ops::gated_delta_rule::{
    DeltaHeads, DeltaSettings, Gradients, Operands, Output, backward, forward, step,
};
use tensor::{DType, Tensor};

use crate::support::{dot, tensor, typed, wide};
use crate::trial::Trial;

const EPSILON: f32 = 1e-6;
const BATCH: usize = 2;
/// Tokens of a chunk, over which kernels add up the terms of gradients of decays.
const CHUNK: usize = 64;

/// Sizes of a call.
struct Sizes {
    heads: DeltaHeads,
    time: usize,
    by_channel: bool,
    /// First tokens of the documents after the first.
    documents: &'static [usize],
    /// Whether there are states before the sequences, and after them.
    has_states: bool,
}

const fn heads(key: usize, value: usize, width: usize, value_width: usize) -> DeltaHeads {
    DeltaHeads { key, value, width, value_width }
}

/// One chunk and several, odd lengths, shared and own key heads, and documents that begin in chunks and with
/// them.
const SIZES: [Sizes; 10] = [
    Sizes { heads: heads(1, 1, 4, 3), time: 5, by_channel: false, documents: &[], has_states: false },
    Sizes { heads: heads(2, 4, 16, 16), time: 64, by_channel: false, documents: &[], has_states: true },
    Sizes {
        heads: heads(1, 2, 8, 24),
        time: 131,
        by_channel: false,
        documents: &[40, 64, 129],
        has_states: false,
    },
    Sizes { heads: heads(2, 2, 24, 8), time: 70, by_channel: true, documents: &[], has_states: true },
    Sizes { heads: heads(1, 2, 6, 5), time: 67, by_channel: true, documents: &[1, 66], has_states: true },
    Sizes { heads: heads(1, 1, 72, 80), time: 33, by_channel: false, documents: &[7], has_states: true },
    Sizes { heads: heads(1, 2, 64, 64), time: 130, by_channel: false, documents: &[], has_states: true },
    Sizes {
        heads: heads(1, 1, 128, 136),
        time: 97,
        by_channel: false,
        documents: &[30, 64],
        has_states: true,
    },
    Sizes { heads: heads(1, 2, 8, 4), time: 20, by_channel: false, documents: &[0, 9], has_states: true },
    Sizes { heads: heads(1, 1, 66, 68), time: 65, by_channel: true, documents: &[], has_states: false },
];

/// Values of the operands in f64: queries, keys and values; decays; rates; first states.
type Wide = [Vec<f64>; 4];

impl Sizes {
    fn settings(&self) -> DeltaSettings {
        DeltaSettings { heads: self.heads, by_channel: self.by_channel, epsilon: EPSILON }
    }

    /// Returns the outputs, and then the last states.
    fn reference(&self, [qkv, decay, rate, state]: [&[f64]; 4]) -> [Vec<f64>; 2] {
        let DeltaHeads { key, value, width, value_width } = self.heads;
        let channels = if self.by_channel { width } else { 1 };
        let mut outputs = vec![0.0; BATCH * self.time * value * value_width];
        let mut states = state.to_vec();
        for batch in 0..BATCH {
            for head in 0..value {
                let state =
                    &mut states[(batch * value + head) * width * value_width..][..width * value_width];
                for t in 0..self.time {
                    let row = batch * self.time + t;
                    if self.documents.contains(&t) {
                        state.fill(0.0);
                    }
                    let row_of = |first: usize, columns: usize| {
                        &qkv[row * self.heads.packed_columns() + first..][..columns]
                    };
                    let unit = |x: &[f64]| -> Vec<f64> {
                        let norm = (dot(x, x) + f64::from(EPSILON)).sqrt();
                        x.iter().map(|x| x / norm).collect()
                    };
                    let key_head = head / (value / key);
                    let q = unit(row_of(key_head * width, width));
                    let k = unit(row_of((key + key_head) * width, width));
                    let v = row_of(2 * key * width + head * value_width, value_width);
                    for (c, state) in state.chunks_exact_mut(value_width).enumerate() {
                        let decay = decay[(row * value + head) * channels + c % channels].exp();
                        state.iter_mut().for_each(|x| *x *= decay);
                    }
                    for (j, v) in v.iter().enumerate() {
                        let read: f64 = (0..width).map(|c| k[c] * state[c * value_width + j]).sum();
                        let x = rate[row * value + head] * (v - read);
                        (0..width).for_each(|c| state[c * value_width + j] += k[c] * x);
                        let read: f64 = (0..width).map(|c| q[c] * state[c * value_width + j]).sum();
                        outputs[(row * value + head) * value_width + j] = read / (width as f64).sqrt();
                    }
                }
            }
        }
        [outputs, states]
    }

    /// Returns the operands as tensors and in f64.
    fn operands(&self, trial: &Trial<'_>) -> ([Tensor; 4], Wide) {
        let DeltaHeads { value, width, value_width, .. } = self.heads;
        let single = trial.single();
        let (qkv, of_qkv) = trial.operand("qkv", [BATCH, self.time, self.heads.packed_columns()]);
        let mapped = |name: &str, shape: [usize; 3], map: fn(f32) -> f32| {
            let values: Vec<f32> = single.normal(name, shape.iter().product()).into_iter().map(map).collect();
            (tensor(&trial.device, &values, shape), wide(&values))
        };
        let (decay, of_decay) =
            mapped("decay", [BATCH, self.time, self.settings().decays()], |x| -0.2 * x * x - 0.01);
        let (rate, of_rate) = mapped("rate", [BATCH, self.time, value], |x| 2.0 / (1.0 + (-x).exp()));
        let (state, of_state) = single.operand("state", [BATCH, value, width, value_width]);
        let of_state = if self.has_states { of_state } else { vec![0.0; of_state.len()] };
        ([qkv, decay, rate, state], [of_qkv, of_decay, of_rate, of_state])
    }

    /// Returns the first token of each token's document. States are of a document that begins before.
    fn starts(&self, trial: &Trial<'_>) -> Option<Tensor> {
        let before = if self.has_states { 3_u32.wrapping_neg() } else { 0 };
        let first = |t: usize| {
            self.documents.iter().rfind(|first| **first <= t).map_or(before, |first| *first as u32)
        };
        let starts: Vec<u32> = (0..BATCH * self.time).map(|row| first(row % self.time)).collect();
        let has = !self.documents.is_empty();
        has.then(|| tensor(&trial.device, &starts, [BATCH, self.time]))
    }
}

/// Tests outputs, last states and all gradients.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    for sizes in &SIZES {
        let Sizes { heads, time, by_channel, documents, has_states } = *sizes;
        trial.label(format!("{heads:?}, {time} tokens, {by_channel}, {documents:?}"));
        let ([qkv, decay, rate, state], wide) = sizes.operands(trial);
        let starts = sizes.starts(trial);
        let operands = Operands {
            qkv: &qkv,
            decay: &decay,
            rate: &rate,
            documents: starts.as_ref(),
            state: has_states.then_some(&state),
        };
        let settings = sizes.settings();
        let Output { output, state: last } = forward(&operands, settings, has_states).unwrap();
        let expected = if trial.compares() {
            sizes.reference(wide.each_ref().map(Vec::as_slice))
        } else {
            Default::default()
        };
        trial.output("output", &output, || expected[0].clone());
        if let Some(last) = &last {
            // Tensor cores round the operands of its matmuls to the type.
            trial.output("last state", last, || expected[1].clone());
        }

        let (dy, dy_wide) = trial.operand("dy", [BATCH, time, heads.output_columns()]);
        let (dstate, dstate_wide) =
            trial.single().operand("dstate", [BATCH, heads.value, heads.width, heads.value_width]);
        let dstate = has_states.then_some(&dstate);
        let gradients = backward(&dy, dstate, &operands, settings).unwrap();
        let value = |index: usize, changed: &[f64]| {
            let mut all = wide.each_ref().map(Vec::as_slice);
            all[index] = changed;
            let [outputs, states] = sizes.reference(all);
            dot(&dy_wide, &outputs) + if has_states { dot(&dstate_wide, &states) } else { 0.0 }
        };
        let Gradients { qkv, decay, rate, state } = gradients;
        let terms = dot(&dy_wide, &dy_wide).sqrt();
        trial.gradient("dqkv", &qkv, (&wide[0], terms), |x| value(0, x));
        // A decay scales all that later tokens read: their terms, each rounded to the type, cancel.
        let sums = terms * (time.min(CHUNK) as f64).sqrt();
        trial.gradient("ddecay", &decay, (&wide[1], sums), |x| value(1, x));
        trial.gradient("drate", &rate, (&wide[2], terms), |x| value(2, x));
        if let Some(state) = &state {
            trial.gradient("dstate", state, (&wide[3], terms), |x| value(3, x));
        }
    }
    one_token_at_a_time(trial);
}

/// Tests that tokens that are computed one by one give the outputs and the states of the whole sequence.
fn one_token_at_a_time(trial: &mut Trial<'_>) {
    const SLOTS: usize = BATCH;
    const ROWS: usize = 3;
    for by_channel in [false, true] {
        let heads = heads(2, 4, 12, 8);
        let sizes = Sizes { heads, time: 6, by_channel, documents: &[], has_states: false };
        trial.label(format!("{heads:?}, one by one, {by_channel}"));
        let (_, wide) = sizes.operands(trial);
        let settings = sizes.settings();
        let shape = [SLOTS, heads.value, heads.width, heads.value_width];
        let elements = shape.iter().product();
        let states = tensor(&trial.device, &vec![f32::NAN; elements], shape);
        let expected = if trial.compares() {
            sizes.reference(wide.each_ref().map(Vec::as_slice))
        } else {
            Default::default()
        };
        for t in 0..sizes.time {
            let rows = |values: &[f64], columns: usize, dtype: DType| {
                let row = |row: usize| {
                    let from = (row.min(SLOTS - 1) * sizes.time + t) * columns;
                    (from..from + columns).map(|at| values[at] as f32).collect::<Vec<_>>()
                };
                let values: Vec<f32> = (0..ROWS).flat_map(row).collect();
                typed(&trial.device, dtype, &values, [ROWS, 1, columns])
            };
            let positions = tensor(&trial.device, &[0_u32.wrapping_sub(t as u32); ROWS], [ROWS, 1]);
            let operands = Operands {
                qkv: &rows(&wide[0], heads.packed_columns(), trial.dtype),
                decay: &rows(&wide[1], settings.decays(), DType::F32),
                rate: &rows(&wide[2], heads.value, DType::F32),
                documents: Some(&positions),
                state: Some(&states),
            };
            let output = step(&operands, settings).unwrap();
            let columns = heads.output_columns();
            trial.output("output", &output, || {
                let token = |row: usize| &expected[0][(row * sizes.time + t) * columns..][..columns];
                (0..SLOTS).flat_map(token).copied().chain(vec![0.0; columns]).collect()
            });
        }
        trial.single_output("states", &states, || expected[1].clone());
    }
}
