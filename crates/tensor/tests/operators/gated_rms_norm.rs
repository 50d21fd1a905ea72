//! RMS norm of heads, times a gate.

use tensor::ops::gated_rms_norm::{
    GateFunction, Operands, Settings, backward_input, backward_weight, forward,
};

use tensor::Tensor;
use tensor::ops::lanes;
use tensor::ops::rearrange::repeat;

use crate::support::{devices, dot, read};
use crate::trial::Trial;

/// Batch, time, heads and width of a head.
const SIZES: [[usize; 4]; 4] = [[1, 2, 1, 5], [2, 17, 3, 16], [1, 9, 2, 33], [2, 3, 4, 128]];
const EPSILON: f32 = 1e-5;

fn reference([x, z, weight]: [&[f64]; 3], function: GateFunction) -> Vec<f64> {
    let width = weight.len();
    let row = |(x, z): (&[f64], &[f64])| -> Vec<f64> {
        let rstd = 1.0 / (dot(x, x) / width as f64 + f64::from(EPSILON)).sqrt();
        let gate = |z: f64| match function {
            GateFunction::Silu => z / (1.0 + (-z).exp()),
            GateFunction::Sigmoid => 1.0 / (1.0 + (-z).exp()),
        };
        (0..width).map(|c| x[c] * rstd * weight[c] * gate(z[c])).collect()
    };
    x.chunks(width).zip(z.chunks(width)).flat_map(row).collect()
}

/// Tests the output and all gradients, with both functions of the gate.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    for (index, [batch, time, heads, width]) in SIZES.into_iter().enumerate() {
        let function = [GateFunction::Silu, GateFunction::Sigmoid][index % 2];
        trial.label(format!("[{batch}, {time}] of {heads}x{width}, {}", function.name()));
        let shape = [batch, time, heads * width];
        let (x, x_wide) = trial.operand("x", shape);
        let (z, z_wide) = trial.operand("z", shape);
        let (weight, weight_wide) = trial.operand("weight", [width]);
        let operands = Operands { x: &x, z: &z, weight: &weight };
        let settings = Settings { epsilon: EPSILON, function };
        let wide: [&[f64]; 3] = [&x_wide, &z_wide, &weight_wide];
        let output = forward(operands, settings).unwrap();
        trial.output("output", &output, || reference(wide, function));

        let (dy, dy_wide) = trial.operand("dy", shape);
        let value = |index: usize, changed: &[f64]| {
            let mut all = wide;
            all[index] = changed;
            dot(&dy_wide, &reference(all, function))
        };
        let gradients = backward_input(&dy, operands, settings).unwrap();
        trial.gradient("dx", &gradients.x, (&x_wide, 0.0), |x| value(0, x));
        trial.gradient("dz", &gradients.z, (&z_wide, 0.0), |x| value(1, x));
        for accumulate in [false, true] {
            let target = trial.target("weight", [width], accumulate);
            backward_weight(&gradients.sums, trial.dtype, &target).unwrap();
            trial.weight_gradient("weight", &target, (&weight_wide, 0.0), |x| value(2, x));
        }
    }
}

/// Tests that every head of many has the bits of one head alone, and that the weight's gradient is their sum.
/// Heads fill a warp, and every thread takes several.
#[test]
fn many_equal_heads_have_the_results_of_one() {
    const HEADS: usize = 4_108;
    let settings = Settings { epsilon: EPSILON, function: GateFunction::Silu };
    for case in devices() {
        let width = 32 * lanes(case.dtype);
        let all_but_weight = ["x", "z", "dy"].map(|name| case.operand(name, [1, 1, width]).0);
        let (weight, _) = case.operand("weight", [width]);
        let compute = |[x, z, dy]: &[Tensor; 3]| {
            let operands = Operands { x, z, weight: &weight };
            let gradients = backward_input(dy, operands, settings).unwrap();
            let rows = [forward(operands, settings).unwrap(), gradients.x, gradients.z];
            (rows.map(|rows| read(&rows)), read(&gradients.sums))
        };
        let (one, terms) = compute(&all_but_weight);
        let many = all_but_weight.map(|one| repeat(&one, [1, HEADS, width].into()).unwrap());
        let (all, sums) = compute(&many);
        for (index, (one, all)) in one.iter().zip(&all).enumerate() {
            assert!(all.chunks(width).all(|head| head == one), "result {index}, {}", case.name());
        }
        for (column, term) in terms.iter().enumerate() {
            let sum: f64 = sums.iter().skip(column).step_by(width).sum();
            let expected = HEADS as f64 * term;
            let error = (sum - expected).abs();
            assert!(error <= 1e-4 * expected.abs(), "column {column}: {sum}, {expected}, {}", case.name());
        }
    }
}
