//! Reference forward functions in plain f64 code.

use rayon::prelude::*;
use tensor::ops::Activation;
use tensor::ops::attention::Heads;
use tensor::ops::gate::Gate;

pub(crate) fn activation(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + u.tanh())
        }
        Activation::GeluErf => 0.5 * x * libm::erfc(-x / std::f64::consts::SQRT_2),
        Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
    }
}

/// Returns the transpose of a matrix of `columns` columns.
pub(crate) fn transposed(values: &[f64], columns: usize) -> Vec<f64> {
    let column = |column: usize| values.iter().skip(column).step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}

/// Computes x · Wᵀ + b.
pub(crate) fn linear(x: &[f64], weight: &[f64], bias: Option<&[f64]>, inputs: usize) -> Vec<f64> {
    let outputs = weight.len() / inputs;
    let mut y = Vec::new();
    for x in x.chunks(inputs) {
        for (output, weight) in weight.chunks(inputs).enumerate() {
            let product: f64 = x.iter().zip(weight).map(|(x, w)| x * w).sum();
            y.push(product + bias.map_or(0.0, |bias| bias[output]));
        }
    }
    assert_eq!(y.len(), x.len() / inputs * outputs);
    y
}

/// Computes output, mean and rstd of every row.
pub(crate) fn layer_norm(x: &[f64], weight: &[f64], bias: &[f64], epsilon: f64) -> [Vec<f64>; 3] {
    let width = weight.len();
    let mut output = vec![];
    let mut means = vec![];
    let mut rstds = vec![];
    for x in x.chunks(width) {
        let mean = x.iter().sum::<f64>() / width as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        let rstd = 1.0 / (variance + epsilon).sqrt();
        output.extend(x.iter().zip(weight).zip(bias).map(|((x, g), b)| (x - mean) * rstd * g + b));
        means.push(mean);
        rstds.push(rstd);
    }
    [output, means, rstds]
}

/// Computes output `[batch, time, query · width]` and log-sum-exp `[batch, query, time]` of packed queries,
/// keys and values.
pub(crate) fn attention(qkv: &[f64], batch: usize, time: usize, heads: Heads) -> [Vec<f64>; 2] {
    let Heads { query, width, .. } = heads;
    let line = |line: usize| {
        let b = line / query;
        let head = line % query;
        let row = |t: usize, part: usize| &qkv[at(heads, b * time + t, part, head)..][..width];
        let position = |t: usize| {
            let product = |s: usize| row(t, 0).iter().zip(row(s, 1)).map(|(q, k)| q * k).sum::<f64>();
            let scores: Vec<f64> = (0..=t).map(|s| product(s) / (width as f64).sqrt()).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
            let mut out = vec![0.0; width];
            for (s, score) in scores.iter().enumerate() {
                let weight = (score - largest).exp() / total;
                out.iter_mut().zip(row(s, 2)).for_each(|(out, v)| *out += weight * v);
            }
            (out, largest + total.ln())
        };
        (0..time).map(position).unzip()
    };
    let lines: Vec<(Vec<Vec<f64>>, Vec<f64>)> = (0..batch * query).into_par_iter().map(line).collect();
    let mut output = vec![0.0; batch * time * query * width];
    for (line, (rows, _)) in lines.iter().enumerate() {
        for (t, row) in rows.iter().enumerate() {
            let first = ((line / query * time + t) * query + line % query) * width;
            output[first..][..width].copy_from_slice(row);
        }
    }
    [output, lines.into_iter().flat_map(|(_, logsumexp)| logsumexp).collect()]
}

/// Returns the index in packed rows of the first query (`part` 0), key (1) or value (2) column of a row and
/// query head.
pub(crate) fn at(heads: Heads, row: usize, part: usize, query_head: usize) -> usize {
    let [queries, keys, _] = heads.groups_of_columns();
    let (before, head, width) = match part {
        0 => (0, query_head, heads.width),
        1 => (queries, query_head / heads.group(), heads.width),
        _ => (queries + keys, query_head / heads.group(), heads.value_width),
    };
    row * heads.packed_columns() + before + head * width
}

pub(crate) fn embedding(
    tokens: &[u32],
    table: &[f64],
    positions: Option<&[f64]>,
    time: usize,
    width: usize,
) -> Vec<f64> {
    let rows = tokens.iter().enumerate().flat_map(|(row, token)| {
        let token = *token as usize * width;
        let position = row % time * width;
        let added = move |column: usize| positions.map_or(0.0, |positions| positions[position + column]);
        (0..width).map(move |column| table[token + column] + added(column))
    });
    rows.collect()
}

/// Computes the mean over rows of −ln softmax\[target\].
pub(crate) fn cross_entropy(logits: &[f64], targets: &[u32]) -> f64 {
    let vocab = logits.len() / targets.len();
    let rows = logits.chunks(vocab).zip(targets).map(|(row, target)| {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        largest + row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln() - row[*target as usize]
    });
    rows.sum::<f64>() / targets.len() as f64
}

pub(crate) fn mse(prediction: &[f64], target: &[f64]) -> f64 {
    prediction.iter().zip(target).map(|(p, t)| (p - t).powi(2)).sum::<f64>() / prediction.len() as f64
}

/// Computes output and rstd of every row.
pub(crate) fn rms_norm(x: &[f64], weight: &[f64], epsilon: f64) -> [Vec<f64>; 2] {
    let mut output = vec![];
    let mut rstds = vec![];
    for x in x.chunks(weight.len()) {
        let rstd = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + epsilon).sqrt();
        output.extend(x.iter().zip(weight).map(|(x, weight)| x * rstd * weight));
        rstds.push(rstd);
    }
    [output, rstds]
}

/// Returns a head rotated to `position`, half-split.
pub(crate) fn turned(head: &[f64], position: usize, theta: f64) -> Vec<f64> {
    let half = head.len() / 2;
    let angle = |pair: usize| position as f64 * theta.powf(-2.0 * pair as f64 / head.len() as f64);
    let low = (0..half).map(|i| head[i] * angle(i).cos() - head[i + half] * angle(i).sin());
    let high = (0..half).map(|i| head[i + half] * angle(i).cos() + head[i] * angle(i).sin());
    low.chain(high).collect()
}

/// Computes activation(gate) · up for rows `[gate | up]`.
pub(crate) fn gate(pair: &[f64], width: usize, gate: impl Into<Gate>) -> Vec<f64> {
    let Gate { activation: kind, clamp } = gate.into();
    let bounded = |g: f64, u: f64| match clamp.map(|clamp| (f64::from(clamp.limit), f64::from(clamp.offset)))
    {
        Some((limit, offset)) => (g.min(limit), u.clamp(-limit, limit) + offset),
        None => (g, u),
    };
    let value = |row: &[f64], i: usize| {
        let (g, u) = bounded(row[i], row[width + i]);
        activation(g, kind) * u
    };
    pair.chunks(2 * width).flat_map(|row| (0..width).map(move |i| value(row, i))).collect()
}
