//! Decays and rates of the gated delta rule.

use tensor::ops::delta_gates::{Gates, Operands, backward_input, backward_weight, forward};

use crate::support::dot;
use crate::trial::Trial;

/// Batch, time, heads and decays per head.
const SIZES: [[usize; 4]; 3] = [[1, 3, 2, 1], [2, 37, 5, 1], [2, 19, 3, 8]];
const FACTOR: f32 = 2.0;

/// Returns decays and then rates from a, b, the speeds' logarithms and the bias.
fn reference([a, b, log_speed, bias]: [&[f64]; 4]) -> [Vec<f64>; 2] {
    let channels = bias.len() / log_speed.len();
    let softplus = |x: f64| x.exp().ln_1p();
    let decay = |(at, a): (usize, &f64)| {
        let c = at % bias.len();
        -log_speed[c / channels].exp() * softplus(a + bias[c])
    };
    let rate = |b: &f64| f64::from(FACTOR) / (1.0 + (-b).exp());
    [a.iter().enumerate().map(decay).collect(), b.iter().map(rate).collect()]
}

/// Tests both gates and all gradients.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    for [batch, time, heads, channels] in SIZES {
        trial.label(format!("[{batch}, {time}] of {heads}x{channels}"));
        let decays = heads * channels;
        let (a, a_wide) = trial.operand("a", [batch, time, decays]);
        let (b, b_wide) = trial.operand("b", [batch, time, heads]);
        let (log_speed, log_speed_wide) = trial.operand("log_speed", [heads]);
        let (bias, bias_wide) = trial.operand("bias", [decays]);
        let operands = Operands { a: &a, b: &b, log_speed: &log_speed, bias: &bias };
        let wide: [&[f64]; 4] = [&a_wide, &b_wide, &log_speed_wide, &bias_wide];
        let expected = reference(wide);
        let gates = forward(operands, FACTOR).unwrap();
        trial.single_output("decay", &gates.decay, || expected[0].clone());
        trial.single_output("rate", &gates.rate, || expected[1].clone());

        let single = trial.single();
        let (ddecay, ddecay_wide) = single.operand("ddecay", [batch, time, decays]);
        let (drate, drate_wide) = single.operand("drate", [batch, time, heads]);
        let value = |index: usize, changed: &[f64]| {
            let mut all = wide;
            all[index] = changed;
            let [decay, rate] = reference(all);
            dot(&ddecay_wide, &decay) + dot(&drate_wide, &rate)
        };
        let gradients = Gates { decay: &ddecay, rate: &drate };
        let inputs = backward_input(gradients, operands, FACTOR).unwrap();
        trial.gradient("da", &inputs.decay, (&a_wide, 0.0), |x| value(0, x));
        trial.gradient("db", &inputs.rate, (&b_wide, 0.0), |x| value(1, x));
        for accumulate in [false, true] {
            let of_speed = trial.target("log_speed", [heads], accumulate);
            let of_bias = trial.target("bias", [decays], accumulate);
            backward_weight(&ddecay, operands, &of_speed, &of_bias).unwrap();
            let terms = dot(&ddecay_wide, &ddecay_wide).sqrt();
            trial.weight_gradient("log_speed", &of_speed, (&log_speed_wide, terms), |x| value(2, x));
            trial.weight_gradient("bias", &of_bias, (&bias_wide, terms), |x| value(3, x));
        }
    }
}
