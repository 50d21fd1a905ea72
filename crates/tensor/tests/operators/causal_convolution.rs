use tensor::ops::Activation;
use tensor::ops::causal_convolution::{
    Operands, backward_halo, backward_input, backward_weight, forward, state, step, store,
};
use tensor::ops::rearrange::concatenate;
use tensor::{DType, Tensor};

use crate::reference;
use crate::rotary::documents;
use crate::support::{Case, cpu, devices, dot, read, tensor};
use crate::trial::Trial;

/// Batch, time, channels, width: with and without whole vectors, shorter than the width, and several runs of
/// rows.
const SIZES: [[usize; 4]; 5] = [[2, 1, 3, 4], [1, 2, 8, 4], [2, 37, 5, 3], [3, 50, 72, 4], [2, 65, 132, 2]];

/// Sizes and options of a convolution, and the start of each token's document.
struct Reference {
    sizes: [usize; 4],
    silu: bool,
    first: Vec<i32>,
    /// Inputs before the sequences; empty if there are none.
    halo: Vec<f64>,
}

impl Reference {
    fn forward(&self, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
        let [_, time, channels, width] = self.sizes;
        let value = |index: usize| {
            let row = index / channels;
            let channel = index % channels;
            let at = row % time;
            let reach = (width - 1).min((at as i32 - self.first[row]) as usize);
            let input = |lag: usize| match lag > at {
                true => self.halo[((row / time + 1) * (width - 1) + at - lag) * channels + channel],
                false => x[(row - lag) * channels + channel],
            };
            let term = |lag: usize| weight[channel * width + width - 1 - lag] * input(lag);
            let sum = (0..=reach).map(term).sum::<f64>() + bias.get(channel).copied().unwrap_or_default();
            if self.silu { reference::activation(sum, Activation::Silu) } else { sum }
        };
        (0..x.len()).map(value).collect()
    }
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for (number, sizes) in SIZES.into_iter().enumerate() {
        for packed in [false, true] {
            compare(trial, sizes, [packed, number % 2 == usize::from(packed), number % 3 != 0]);
        }
        compare_halo(trial, sizes, number % 2 == 0);
    }
}

fn compare(trial: &mut Trial<'_>, sizes: [usize; 4], [packed, silu, has_bias]: [bool; 3]) {
    let [batch, time, channels, width] = sizes;
    trial.label(format!("{sizes:?} packed {packed} silu {silu} bias {has_bias}"));
    let (x, x_wide) = trial.operand("x", [batch, time, channels]);
    let (weight, weight_wide) = trial.operand("weight", [channels, 1, width]);
    let (bias, mut bias_wide) = trial.operand("bias", [channels]);
    let (dy, dy_wide) = trial.operand("dy", [batch, time, channels]);
    let (firsts, list) = documents(trial, batch, time);
    let list: Vec<i32> = list.into_iter().map(u32::cast_signed).collect();
    let first = if packed { list } else { vec![0; batch * time] };
    let reference = Reference { sizes, silu, first, halo: Vec::new() };
    if !has_bias {
        bias_wide.clear();
    }
    let documents = packed.then_some(&firsts);
    let bias = has_bias.then_some(&bias);
    let operands = Operands { weight: &weight, bias, silu, documents, halo: None };

    let y = forward(&x, operands).unwrap();
    trial.output("output", &y, || reference.forward(&x_wide, &weight_wide, &bias_wide));
    let value = |x: &[f64], weight: &[f64], bias: &[f64]| dot(&dy_wide, &reference.forward(x, weight, bias));
    let terms = dot(&dy_wide, &dy_wide).sqrt();
    let dx = backward_input(&dy, &x, operands).unwrap();
    trial.gradient("dx", &dx, (&x_wide, terms), |x| value(x, &weight_wide, &bias_wide));
    for accumulate in [false, true] {
        let dweight = trial.target("dweight", [channels, 1, width], accumulate);
        let dbias = trial.target("dbias", [channels], accumulate);
        backward_weight(&dy, &x, operands, &dweight, has_bias.then_some(&dbias)).unwrap();
        trial.weight_gradient("dweight", &dweight, (&weight_wide, terms), |w| value(&x_wide, w, &bias_wide));
        if has_bias {
            trial.weight_gradient("dbias", &dbias, (&bias_wide, terms), |b| value(&x_wide, &weight_wide, b));
        }
        let pair = trial.targets("dweight", [channels, width], accumulate);
        pair.iter().for_each(|target| backward_weight(&dy, &x, operands, target, None).unwrap());
        trial.rounded("half gradients of weights", &pair);
    }
}

/// Compares sequences whose first documents start before them and read their halo.
fn compare_halo(trial: &mut Trial<'_>, sizes: [usize; 4], silu: bool) {
    let [batch, time, channels, width] = sizes;
    trial.label(format!("{sizes:?} with a halo, silu {silu}"));
    let (x, x_wide) = trial.operand("x", [batch, time, channels]);
    let (weight, weight_wide) = trial.operand("weight", [channels, 1, width]);
    let (bias, bias_wide) = trial.operand("bias", [channels]);
    let (dy, dy_wide) = trial.operand("dy", [batch, time, channels]);
    let (halo, halo_wide) = trial.operand("halo", [batch, width - 1, channels]);
    // The first document has one token before the first sequence and many before the others.
    let start = |row: usize| match row % time {
        at if at >= time.div_ceil(2).max(2) => time.div_ceil(2).max(2) as i32,
        _ if row < time => -1,
        _ => -9,
    };
    let first: Vec<i32> = (0..batch * time).map(start).collect();
    let documents =
        tensor(&trial.device, &first.iter().map(|at| at.cast_unsigned()).collect::<Vec<_>>(), [batch, time]);
    let reference = |halo: &[f64]| Reference { sizes, silu, first: first.clone(), halo: halo.to_vec() };
    let operands =
        Operands { weight: &weight, bias: Some(&bias), silu, documents: Some(&documents), halo: Some(&halo) };
    let y = forward(&x, operands).unwrap();
    let whole = reference(&halo_wide);
    trial.output("output", &y, || whole.forward(&x_wide, &weight_wide, &bias_wide));
    let value = |x: &[f64], weight: &[f64]| dot(&dy_wide, &whole.forward(x, weight, &bias_wide));
    let terms = dot(&dy_wide, &dy_wide).sqrt();
    let dx = backward_input(&dy, &x, operands).unwrap();
    trial.gradient("dx", &dx, (&x_wide, terms), |x| value(x, &weight_wide));
    let dhalo = backward_halo(&dy, &x, operands).unwrap();
    trial.gradient("dhalo", &dhalo, (&halo_wide, terms), |halo| {
        dot(&dy_wide, &reference(halo).forward(&x_wide, &weight_wide, &bias_wide))
    });
    let dweight = trial.target("dweight", [channels, 1, width], false);
    backward_weight(&dy, &x, operands, &dweight, None).unwrap();
    trial.weight_gradient("dweight", &dweight, (&weight_wide, terms), |w| value(&x_wide, w));
}

/// Tests that tokens computed one by one from a state have the bits of a whole sequence.
#[test]
fn steps_from_a_state_give_the_bits_of_a_whole_sequence() {
    const SLOTS: usize = 3;
    for case in devices() {
        for [channels, width, before] in [[5, 4, 0], [8, 2, 1], [72, 3, 9], [64, 4, 2], [12, 4, 30]] {
            let what = format!("{channels} channels, {width}, after {before}, {}", case.name());
            let time = before + 6;
            let (x, _) = case.operand("x", [1, time, channels]);
            let (weight, _) = case.operand("weight", [channels, width]);
            let (bias, _) = case.operand("bias", [channels]);
            let operands =
                Operands { weight: &weight, bias: Some(&bias), silu: true, documents: None, halo: None };
            let whole = read(&forward(&x, operands).unwrap());
            let kept = state(&case.device, SLOTS, [width, channels], case.dtype).unwrap();
            if before > 0 {
                store(&x.view(0, [1, before, channels]).unwrap(), &kept, 1).unwrap();
            }
            for position in before..time {
                let next = next_rows(&case, &x, position);
                let row = |row: u32| if row == 1 { position as u32 } else { row };
                let positions: Vec<u32> = (0..SLOTS as u32 + 1).map(|at| row(at).wrapping_neg()).collect();
                let documents = tensor(&case.device, &positions, [SLOTS + 1, 1]);
                let operands = Operands { documents: Some(&documents), ..operands };
                let y = read(&step(&next, operands, &kept).unwrap());
                assert_eq!(y[channels..2 * channels], whole[position * channels..][..channels], "{what}");
                assert!(y[SLOTS * channels..].iter().all(|value| *value == 0.0), "{what}");
            }
        }
    }
}

/// Returns rows for three slots and one more, with row `position` of `x [1, time, channels]` for the second.
fn next_rows(case: &Case, x: &Tensor, position: usize) -> Tensor {
    let channels = x.shape().columns();
    let [other] = ["other"].map(|name| case.operand(name, [1, 1, channels]).0);
    let own = x.view(position * channels, [1, 1, channels]).unwrap();
    concatenate(&[&other, &own, &other, &other], 0).unwrap()
}

#[test]
fn operands_that_do_not_agree_are_refused() {
    let device = cpu();
    let case = Case::new(device.clone(), DType::F32);
    let zeros = |shape: [usize; 3]| case.operand("zeros", shape).0;
    let x = zeros([2, 3, 4]);
    let operands = |weight| Operands { weight, bias: None, silu: false, documents: None, halo: None };
    let own = zeros([2, 2, 4]);
    let [narrow, wide, fits] = [[4, 1, 1], [4, 1, 5], [4, 1, 4]].map(zeros);
    let kept = state(&device, 3, [4, 4], DType::F32).unwrap();
    let table = [
        (forward(&x, operands(&narrow)).map(drop), "weight has shape [4, 1, 1]"),
        (forward(&x, operands(&wide)).map(drop), "[4, 2, 3 or 4]"),
        (forward(&zeros([2, 3, 5]), operands(&fits)).map(drop), "weight has shape"),
        (backward_input(&zeros([2, 2, 4]), &x, operands(&fits)).map(drop), "dy has shape"),
        (forward(&x, Operands { halo: Some(&own), ..operands(&fits) }).map(drop), "halo has shape [2, 2, 4]"),
        (step(&zeros([3, 1, 4]), operands(&fits), &kept).map(drop), "and positions"),
        (store(&x, &kept, 0), "x has shape"),
        (store(&zeros([1, 3, 4]), &kept, 3), "more than 3 slots"),
    ];
    for (refused, expected) in table {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
