//! Attention with documents, windows, capped scores and dropout.

use tensor::ops::attention::{self, Heads, Masks, Qkv, Settings};
use tensor::ops::dropout::Mask;
use tensor::{DType, Tensor};

use crate::reference::at;
use crate::rotary::documents;
use crate::support::{Case, bits, devices, dot, tensor};
use crate::trial::Trial;

const SEED: u64 = 5;
const MICRO_BATCH: u64 = 9;
const PROBABILITY: f64 = 0.2;

/// Windows, caps and score factors: windows within a tile, over several tiles and longer than the sequence,
/// and caps that change the scores.
const WINDOWS_CAPS_SCALES: [(Option<usize>, Option<f32>, Option<f32>); 8] = [
    (Some(1), None, None),
    (Some(7), None, None),
    (Some(64), None, None),
    (Some(100), None, None),
    (Some(1000), None, None),
    (None, Some(0.7), None),
    (None, None, Some(0.3)),
    (Some(24), Some(2.0), Some(0.5)),
];

/// Returns batch, time and heads of calls with several tiles of every kernel, and partial last tiles.
fn sizes(case: &Case) -> Vec<(usize, usize, Heads)> {
    let heads = |query, key_value, width| Heads::grouped(query, key_value, width);
    let values = |heads, value_width| Heads { value_width, ..heads };
    match (case.device.is_cuda_like(), case.dtype) {
        (true, DType::Bf16 | DType::F16) => [32, 64, 96, 128]
            .iter()
            .flat_map(|width| [(2, 193, heads(4, 2, *width)), (1, 320, heads(2, 2, *width))])
            .chain([(1, 130, heads(2, 1, 40)), (2, 193, heads(4, 2, 80)), (1, 193, heads(2, 1, 256))])
            .chain([(2, 193, values(heads(4, 2, 40), 72)), (1, 193, values(heads(2, 1, 192), 128))])
            .collect(),
        _ => vec![
            (2, 17, heads(2, 1, 4)),
            (2, 70, heads(4, 2, 8)),
            (1, 131, heads(2, 2, 4)),
            (1, 200, heads(2, 1, 33)),
            (2, 70, values(heads(4, 2, 6), 9)),
            (1, 67, values(heads(2, 1, 36), 5)),
        ],
    }
}

/// Returns the dropout factor of one weight by its definition: positions 8 apart share a draw of four words.
fn factor(line: usize, query: usize, key: usize) -> f64 {
    let site = philox::key_of_name(SEED, "site");
    let [a, b, ..] = philox::philox4x32(site, [MICRO_BATCH as u32, 0, 0, 0]);
    let pair = |position: usize| (position / 16 * 8 + position % 8) as u32;
    let words = philox::philox4x32([a, b], [pair(query), pair(key), line as u32, 0]);
    let word = words[query / 8 % 2 * 2 + key / 8 % 2];
    let threshold = (PROBABILITY * 4_294_967_296.0) as u32;
    if word < threshold { 0.0 } else { 1.0 / (1.0 - f64::from(threshold) / 4_294_967_296.0) }
}

/// Computes output and log-sum-exp in f64. `first` is the first key of each token's document; `drops` applies
/// dropout.
fn expected(x: &[f64], time: usize, settings: Settings, first: Option<&[u32]>, drops: bool) -> [Vec<f64>; 2] {
    let Settings { heads, scale, soft_cap, window } = settings;
    let Heads { query, width, value_width, .. } = heads;
    let scale = scale.map_or(1.0 / (width as f64).sqrt(), f64::from);
    let capped = |score: f64| soft_cap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh());
    let batch = x.len() / time / heads.packed_columns();
    let mut output = vec![0.0; batch * time * query * value_width];
    let mut logsumexp = vec![];
    for (b, head) in (0..batch).flat_map(|b| (0..query).map(move |head| (b, head))) {
        let row = |t: usize, part: usize| {
            &x[at(heads, b * time + t, part, head)..][..if part == 2 { value_width } else { width }]
        };
        for t in 0..time {
            let begin = first.map_or(0, |first| first[b * time + t] as usize);
            let begin = begin.max((t + 1).saturating_sub(window.unwrap_or(time)));
            let score = |s: usize| capped(dot(row(t, 0), row(s, 1)) * scale);
            let scores: Vec<f64> = (begin..=t).map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
            logsumexp.push(largest + total.ln());
            let out = &mut output[((b * time + t) * query + head) * value_width..][..value_width];
            for (s, score) in (begin..).zip(&scores) {
                let factor = if drops { factor(b * query + head, t, s) } else { 1.0 };
                let weight = factor * (score - largest).exp() / total;
                out.iter_mut().zip(row(s, 2)).for_each(|(out, v)| *out += weight * v);
            }
        }
    }
    [output, logsumexp]
}

/// Operands that several calls with the same heads share, as tensors and in f64.
struct Operands {
    batch: usize,
    time: usize,
    qkv: Qkv<Tensor>,
    x: Vec<f64>,
    dy: Tensor,
    dy_wide: Vec<f64>,
    /// Position of the first token of each token's document.
    documents: Tensor,
    firsts: Vec<u32>,
}

impl Operands {
    fn new(case: &Case, batch: usize, time: usize, heads: Heads) -> Self {
        let (qkv, x) = case.operand("qkv", [batch, time, heads.packed_columns()]);
        let (dy, dy_wide) = case.operand("dy", [batch, time, heads.output_columns()]);
        let (documents, firsts) = documents(case, batch, time);
        Operands { batch, time, qkv: Qkv::Packed(qkv), x, dy, dy_wide, documents, firsts }
    }
}

/// Tests documents with dropout, windows, caps, score factors, and sinks.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    for (batch, time, heads) in sizes(trial) {
        let operands = Operands::new(trial, batch, time, heads);
        for (packs, drops) in [(true, false), (false, true), (true, true)] {
            masked(trial, &operands, heads.into(), packs, drops);
        }
        for (window, soft_cap, scale) in WINDOWS_CAPS_SCALES {
            let settings = Settings { heads, scale, soft_cap, window };
            for (packs, drops) in [(false, false), (true, true)] {
                masked(trial, &operands, settings, packs, drops);
            }
        }
        for (window, soft_cap, packs) in
            [(None, None, false), (None, Some(1.5), true), (Some(9), Some(1.5), false)]
        {
            let settings = Settings { window, soft_cap, ..heads.into() };
            with_sinks(trial, &operands, settings, packs);
        }
    }
}

fn masked(trial: &mut Trial<'_>, operands: &Operands, settings: Settings, packs: bool, drops: bool) {
    let Operands { batch, time, qkv, x, dy, dy_wide, documents, firsts } = operands;
    trial.label(format!("{batch}x{time} {settings:?} {packs} {drops}"));
    let dropout = drops.then(|| Mask::new(SEED, "site", MICRO_BATCH, PROBABILITY));
    let masks = Masks { documents: packs.then_some(documents), dropout, sinks: None };
    let truth = |x: &[f64]| expected(x, *time, settings, packs.then_some(&firsts[..]), drops);
    let result = attention::forward(qkv, settings, masks, false).unwrap();
    let [output, logsumexp] = if trial.compares() { truth(x) } else { Default::default() };
    trial.output("output", &result.output, || output);
    trial.output("logsumexp", &result.logsumexp, || logsumexp);
    let gradients =
        attention::backward(dy, qkv, &result.output, &result.logsumexp, settings, masks, false).unwrap();
    let terms = dot(dy_wide, dy_wide).sqrt();
    trial.gradient("dqkv", &gradients.arrays()[0], (x, terms), |x| dot(dy_wide, &truth(x)[0]));
}

/// Tests that a sink takes weight from all keys of its head.
fn with_sinks(trial: &mut Trial<'_>, operands: &Operands, settings: Settings, packs: bool) {
    let Operands { batch, time, qkv, x, dy, dy_wide, documents, firsts } = operands;
    let heads = settings.heads;
    trial.label(format!("{batch}x{time} {settings:?} {packs}"));
    let (sinks, sinks_wide) = trial.operand("sinks", [heads.query]);
    let truth = |x: &[f64], sinks: &[f64]| {
        let first = packs.then_some(&firsts[..]);
        let [mut output, mut logsumexp] = expected(x, *time, settings, first, false);
        for (line, value) in logsumexp.iter_mut().enumerate() {
            let b = line / time / heads.query;
            let head = line / time % heads.query;
            let t = line % time;
            let all = value.exp() + sinks[head].exp();
            let out = &mut output[((b * time + t) * heads.query + head) * heads.value_width..];
            let out = &mut out[..heads.value_width];
            out.iter_mut().for_each(|out| *out *= value.exp() / all);
            *value = all.ln();
        }
        [output, logsumexp]
    };
    let masks = Masks { documents: packs.then_some(documents), dropout: None, sinks: Some(&sinks) };
    let result = attention::forward(qkv, settings, masks, false).unwrap();
    let [output, logsumexp] = if trial.compares() { truth(x, &sinks_wide) } else { Default::default() };
    trial.output("output with sinks", &result.output, || output);
    trial.output("logsumexp with sinks", &result.logsumexp, || logsumexp);
    let gradients =
        attention::backward(dy, qkv, &result.output, &result.logsumexp, settings, masks, false).unwrap();
    let terms = dot(dy_wide, dy_wide).sqrt();
    let value = |x: &[f64], sinks: &[f64]| dot(dy_wide, &truth(x, sinks)[0]);
    trial.gradient("dqkv with sinks", &gradients.arrays()[0], (x, terms), |x| value(x, &sinks_wide));
    let sums = attention::sink_gradients(dy, &result.output, &result.logsumexp, &sinks, heads).unwrap();
    for accumulate in [false, true] {
        let target = trial.target("dsinks", [heads.query], accumulate);
        attention::accumulate_sinks(&sums, trial.dtype, &target).unwrap();
        trial.weight_gradient("dsinks", &target, (&sinks_wide, terms), |sinks| value(x, sinks));
    }
}

/// A window as long as the sequence changes no bit, and neither does any key outside a window.
#[test]
fn keys_outside_a_window_change_no_bit() {
    for case in devices() {
        let width = if case.dtype != DType::F32 { 64 } else { 8 };
        let heads = Heads::multi(2, width);
        let time = 300;
        let settings = |window| Settings { window, ..heads.into() };
        let (qkv, x) = case.operand("qkv", [1, time, heads.packed_columns()]);
        let run = |qkv: &Tensor, window| {
            let qkv = Qkv::Packed(qkv.clone());
            bits(&attention::forward(&qkv, settings(window), Masks::default(), false).unwrap().output)
        };
        assert_eq!(run(&qkv, Some(time)), run(&qkv, None), "{}", case.name());
        let changed: Vec<f32> = x.iter().map(|v| *v as f32).collect();
        let columns = heads.packed_columns();
        let mut changed = changed;
        changed[..150 * columns].iter_mut().for_each(|v| *v = case.round(-*v + 1.0));
        let changed = case.tensor(&changed, [1, time, columns]);
        // Rows from 150 + 70 − 1 on see nothing of the changed ones.
        let seen = 219 * heads.query_columns();
        let [before, after] = [&qkv, &changed].map(|qkv| run(qkv, Some(70)));
        assert_eq!(before[seen..], after[seen..], "{}", case.name());
        assert_ne!(before[..seen], after[..seen], "{}", case.name());
    }
}

/// Packed documents give the same results as each document alone. If they begin at a tile of keys, the bits
/// are equal, because all sums then have one order.
#[test]
fn a_document_does_not_see_others() {
    for case in devices() {
        let width = if case.dtype != DType::F32 { 64 } else { 8 };
        let heads = Heads::multi(2, width);
        let time = 512;
        let half = 256;
        let (qkv, x) = case.operand("qkv", [1, time, heads.packed_columns()]);
        let first: Vec<u32> = (0..time).map(|t| (t / half * half) as u32).collect();
        let documents = tensor(&case.device, &first, [1, time]);
        let masks = Masks { documents: Some(&documents), dropout: None, sinks: None };
        let together = attention::forward(&Qkv::Packed(qkv), heads, masks, false).unwrap().output;
        let none = vec![0_u32; half];
        let alone = tensor(&case.device, &none, [1, half]);
        let masks = Masks { documents: Some(&alone), dropout: None, sinks: None };
        let part = |number: usize| -> Tensor {
            let count = half * heads.packed_columns();
            let values: Vec<f32> = x[number * count..][..count].iter().map(|v| *v as f32).collect();
            let qkv = case.tensor(&values, [1, half, heads.packed_columns()]);
            attention::forward(&Qkv::Packed(qkv), heads, masks, false).unwrap().output
        };
        let expected: Vec<u32> = (0..2).flat_map(|number| bits(&part(number))).collect();
        assert_eq!(bits(&together), expected, "{}", case.name());
    }
}
