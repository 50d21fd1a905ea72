use tensor::Tensor;
use tensor::ops::rotary::{Angles, Frequencies, Rotation, Scaling, rotate};

use crate::reference;
use crate::support::{Case, devices, read, tensor};
use crate::trial::Trial;

const THETA: f64 = 10_000.0;

/// Batch, time, rotated heads, further columns, head width: with and without whole vectors.
const SIZES: [[usize; 5]; 6] = [
    [2, 5, 3, 4, 2],
    [1, 33, 2, 0, 6],
    [3, 70, 4, 64, 32],
    [2, 65, 3, 1, 64],
    [2, 40, 5, 128, 128],
    [1, 9, 2, 96, 96],
];

/// Returns a table of angles for `context` positions.
pub(crate) fn table(case: &Case, width: usize, context: usize) -> Tensor {
    let frequencies = Frequencies { width, theta: THETA, scaling: Scaling::None };
    tensor(&case.device, &frequencies.table(context), [context, width])
}

/// Returns the start of each token's document, for documents of 1, 2, 3 … tokens in every sequence.
pub(crate) fn documents(case: &Case, batch: usize, time: usize) -> (Tensor, Vec<u32>) {
    let (mut first, mut next, mut length) = (0, 1, 1);
    let of_sequence: Vec<u32> = (0..time as u32)
        .map(|at| {
            if at == next {
                (first, length) = (at, length + 1);
                next = at + length;
            }
            first
        })
        .collect();
    let all = of_sequence.repeat(batch);
    (tensor(&case.device, &all, [batch, time]), all)
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for ([batch, time, heads, rest, width], packed) in SIZES.into_iter().flat_map(|s| [(s, false), (s, true)])
    {
        trial.label(format!("{batch}x{time}, {heads} heads of {width}, {packed}"));
        let columns = heads * width + rest;
        let table = table(trial, width, time + 3);
        let (firsts, list) = documents(trial, batch, time);
        let angles = Angles {
            table: &table,
            head_width: None,
            documents: packed.then_some(&firsts),
            interleaved: false,
        };
        let (x, x_wide) = trial.operand("x", [batch, time, columns]);
        let turned = rotate(x.clone(), heads, angles, Rotation::Forward, false).unwrap();
        assert!(!turned.shares_storage(&x));
        trial.output("operand in use", &x, || x_wide.clone());
        trial.output("rotated", &turned, || {
            let mut expected = x_wide.clone();
            for (row, values) in expected.chunks_mut(columns).enumerate() {
                let first = if packed { list[row] as usize } else { 0 };
                for head in values.chunks_mut(width).take(heads) {
                    head.copy_from_slice(&reference::turned(head, row % time - first, THETA));
                }
            }
            expected
        });
        let address = x.region().buffer.address();
        let in_place = rotate(x, heads, angles, Rotation::Forward, false).unwrap();
        assert_eq!(in_place.region().buffer.address(), address);
        trial.same("rotated in place", &in_place, &turned);
        // The gradient of a rotation is the inverse rotation.
        let back = rotate(in_place, heads, angles, Rotation::Backward, false).unwrap();
        trial.output("rotated back", &back, || x_wide.clone());
        if trial.compares() {
            let rest = |tensor: &Tensor| -> Vec<f64> {
                let all = read(tensor);
                all.chunks(columns).flat_map(|row| row[heads * width..].to_vec()).collect()
            };
            assert_eq!(rest(&back), rest(&turned), "{}: columns after the heads", trial.what("rest"));
        }
    }
}

#[test]
fn scaled_frequencies_match_their_definitions() {
    let table_row =
        |scaling: &Scaling| Frequencies { width: 64, theta: 500_000.0, scaling: scaling.clone() }.table(2);
    let angle = |table: &[f32], pair: usize| f64::from(table[64 + 32 + pair]).asin();
    let plain = table_row(&Scaling::None);
    let linear = table_row(&Scaling::Linear { factor: 4.0 });
    let llama3 = table_row(&Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 8192 });
    for pair in 1..32 {
        let frequency = 500_000f64.powf(-2.0 * pair as f64 / 64.0);
        let close = |actual: f64, expected: f64| (actual / expected - 1.0).abs() < 1e-5;
        assert!(close(angle(&plain, pair), frequency), "{pair}");
        assert!(close(angle(&linear, pair), frequency / 4.0), "{pair}");
        let turns = 8192.0 * frequency / std::f64::consts::TAU;
        let share = ((turns - 1.0) / 3.0).clamp(0.0, 1.0);
        let expected = share * frequency + (1.0 - share) * frequency / 8.0;
        assert!(close(angle(&llama3, pair), expected), "{pair}");
    }
}

/// Tests YaRN and LongRoPE, which also multiply cosines and sines by a factor.
#[test]
fn frequencies_of_long_contexts_match_their_definitions() {
    let (theta, context, attention) = (10_000.0_f64, 4096_usize, 1.25);
    let table = |scaling| Frequencies { width: 64, theta, scaling }.table(2);
    let angle = |table: &[f32], pair: usize| {
        assert_eq!(f64::from(table[pair]), attention, "{pair}");
        f64::from(table[64 + 32 + pair]).atan2(f64::from(table[64 + pair]))
    };
    let close = |actual: f64, expected: f64| (actual / expected - 1.0).abs() < 2e-5;
    for truncates in [false, true] {
        let (factor, fast, slow) = (8.0, 32.0, 1.0);
        let yarn = table(Scaling::Yarn { factor, fast, slow, context, truncates, attention });
        let index =
            |turns: f64| 64.0 * (context as f64 / (turns * std::f64::consts::TAU)).ln() / (2.0 * theta.ln());
        let low = index(fast);
        let high = index(slow);
        let (low, high) = if truncates { (low.floor(), high.ceil()) } else { (low, high) };
        for pair in 0..32 {
            let frequency = theta.powf(-2.0 * pair as f64 / 64.0);
            let share = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let expected = share * frequency / factor + (1.0 - share) * frequency;
            assert!(close(angle(&yarn, pair), expected), "{pair}, {truncates}");
        }
    }
    let factors: Vec<f64> = (0..32).map(|pair| 1.0 + 0.25 * f64::from(pair)).collect();
    let long = table(Scaling::LongRope { factors: factors.clone(), attention });
    for (pair, factor) in factors.iter().enumerate() {
        let expected = theta.powf(-2.0 * pair as f64 / 64.0) / factor;
        assert!(close(angle(&long, pair), expected), "{pair}");
    }
}

/// Rotates neighbouring elements of a head together, or elements of both halves.
fn turned(head: &[f64], position: usize, interleaved: bool) -> Vec<f64> {
    if !interleaved {
        return reference::turned(head, position, THETA);
    }
    let every_second = |first: usize| head.iter().skip(first).step_by(2).copied();
    let halves: Vec<f64> = every_second(0).chain(every_second(1)).collect();
    let halves = reference::turned(&halves, position, THETA);
    let (low, high) = halves.split_at(head.len() / 2);
    low.iter().zip(high).flat_map(|(low, high)| [*low, *high]).collect()
}

/// With a table narrower than a head, only the head's first columns rotate.
#[test]
fn a_part_of_each_head_rotates() {
    const SIZES: [[usize; 6]; 4] =
        [[2, 5, 3, 4, 2, 6], [1, 33, 2, 0, 24, 32], [2, 65, 4, 64, 64, 96], [1, 40, 3, 64, 64, 64]];
    for case in devices() {
        let all = SIZES.into_iter().flat_map(|sizes| [(sizes, false), (sizes, true)]);
        for ([batch, time, heads, rest, width, head_width], interleaved) in all {
            let what = format!("{width} of {head_width} columns, {interleaved}");
            let columns = heads * head_width + rest;
            let table = table(&case, width, time);
            let (firsts, list) = documents(&case, batch, time);
            let head_width_of_angles = Some(head_width);
            let documents = Some(&firsts);
            let angles = Angles { table: &table, head_width: head_width_of_angles, documents, interleaved };
            let (x, x_wide) = case.operand("x", [batch, time, columns]);
            let rotated = rotate(x.clone(), heads, angles, Rotation::Forward, false).unwrap();
            let mut expected = x_wide.clone();
            for (row, values) in expected.chunks_mut(columns).enumerate() {
                for head in values.chunks_mut(head_width).take(heads) {
                    let position = row % time - list[row] as usize;
                    let part = turned(&head[..width], position, interleaved);
                    head[..width].copy_from_slice(&part);
                }
            }
            case.close(&what, &read(&rotated), &expected);
            let back = rotate(rotated, heads, angles, Rotation::Backward, false).unwrap();
            case.close(&what, &read(&back), &x_wide);
            let narrow = Angles { head_width: Some(width - 1), ..angles };
            let refused = rotate(x, heads, narrow, Rotation::Forward, false).unwrap_err().to_string();
            assert!(refused.contains("columns, those of a head"), "{refused}");
        }
    }
}
