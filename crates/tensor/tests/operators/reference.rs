//! The forward functions in f64, as plainly as they can be written.

use tensor::ops::Activation;

pub(crate) fn activation(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Gelu => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + u.tanh())
        }
    }
}

/// x · Wᵀ + b.
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

/// Output, mean and rstd of every row.
pub(crate) fn layer_norm(x: &[f64], gamma: &[f64], beta: &[f64], epsilon: f64) -> [Vec<f64>; 3] {
    let width = gamma.len();
    let (mut output, mut means, mut rstds) = (vec![], vec![], vec![]);
    for x in x.chunks(width) {
        let mean = x.iter().sum::<f64>() / width as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        let rstd = 1.0 / (variance + epsilon).sqrt();
        output.extend(x.iter().zip(gamma).zip(beta).map(|((x, g), b)| (x - mean) * rstd * g + b));
        means.push(mean);
        rstds.push(rstd);
    }
    [output, means, rstds]
}

/// Output `[batch, time, width]` and log-sum-exp `[batch, heads, time]`.
pub(crate) fn attention(qkv: &[f64], batch: usize, time: usize, width: usize, heads: usize) -> [Vec<f64>; 2] {
    let head_width = width / heads;
    let row = |b: usize, t: usize, third: usize, head: usize| {
        &qkv[(b * time + t) * 3 * width + third * width + head * head_width..][..head_width]
    };
    let (mut output, mut logsumexp) = (vec![0.0; batch * time * width], vec![]);
    for b in 0..batch {
        for head in 0..heads {
            for t in 0..time {
                let scores: Vec<f64> = (0..=t)
                    .map(|s| {
                        let product: f64 =
                            row(b, t, 0, head).iter().zip(row(b, s, 1, head)).map(|(q, k)| q * k).sum();
                        product / (head_width as f64).sqrt()
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
                logsumexp.push(largest + total.ln());
                let out = &mut output[(b * time + t) * width + head * head_width..][..head_width];
                for (s, score) in scores.iter().enumerate() {
                    let weight = (score - largest).exp() / total;
                    out.iter_mut().zip(row(b, s, 2, head)).for_each(|(out, v)| *out += weight * v);
                }
            }
        }
    }
    [output, logsumexp]
}

pub(crate) fn embedding(
    tokens: &[u32],
    table: &[f64],
    positions: &[f64],
    time: usize,
    width: usize,
) -> Vec<f64> {
    let rows = tokens.iter().enumerate().flat_map(|(row, token)| {
        let (token, position) = (*token as usize * width, row % time * width);
        (0..width).map(move |column| table[token + column] + positions[position + column])
    });
    rows.collect()
}

/// Mean over rows of −ln softmax\[target\].
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
