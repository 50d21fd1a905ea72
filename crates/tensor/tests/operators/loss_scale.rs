use tensor::DType;
use tensor::ops::cross_entropy::Mean;
use tensor::ops::loss_scale::{ScaleRule, adapt};
use tensor::ops::{StepState, cross_entropy, mse};

use crate::support::{devices, half_precision, read, tensor};

#[test]
fn the_scale_follows_the_norms_of_updates() {
    let rule = ScaleRule { growth: 2.0, backoff: 0.5, interval: 3 };
    for case in devices().into_iter().filter(|case| case.dtype == DType::F32) {
        let state = StepState::new(&case.device).unwrap();
        assert_eq!(state.loss_scale().unwrap(), (0.0, 0));
        state.set_loss_scale(1024.0, 0).unwrap();
        // The norm of each update, and the scale and number of good updates after it.
        let table = [
            (1.0, 1024.0, 1),
            (0.0, 1024.0, 2),
            (5.0, 2048.0, 0),
            (f32::INFINITY, 1024.0, 0),
            (1.0, 1024.0, 1),
            (f32::NAN, 512.0, 0),
            (1.0, 512.0, 1),
            (1.0, 512.0, 2),
            (1.0, 1024.0, 0),
        ];
        for (number, (norm, scale, good_steps)) in table.into_iter().enumerate() {
            state.set_norm(norm, 1.0).unwrap();
            adapt(&rule, &state).unwrap();
            assert_eq!(state.loss_scale().unwrap(), (scale, good_steps), "{number}, {}", case.name());
            let factor = read(&state.gradient_scale_tensor().unwrap());
            assert_eq!(factor, [f64::from(1.0 / scale)], "{number}, {}", case.name());
        }
        // A scale that would not be finite stays.
        state.set_loss_scale(3e38, 2).unwrap();
        adapt(&rule, &state).unwrap();
        assert_eq!(state.loss_scale().unwrap(), (3e38, 0), "{}", case.name());
    }
}

/// Gradients that a half type would round to 0 keep their digits.
#[test]
fn losses_multiply_their_gradients_before_rounding() {
    for case in half_precision() {
        let factor = tensor(&case.device, &[65_536.0f32], [1]);
        let [rows, vocab] = [7, 1000];
        let targets = tensor(&case.device, &case.indices("targets", rows, vocab), [rows]);
        let scaled = |logits: &tensor::Tensor| {
            let result = cross_entropy::forward_mean(
                logits.clone(),
                &targets,
                Mean::of_rows(1e-4),
                true,
                Some(&factor),
            );
            read(&result.unwrap().gradient.unwrap())
        };
        let (logits, _) = case.operand("logits", [rows, vocab]);
        let wide: Vec<f32> = case.normal("logits", rows * vocab);
        let expected = scaled(&case.single().tensor(&wide, [rows, vocab]));
        case.close("cross_entropy", &scaled(&logits), &expected);
        let (a, a_wide) = case.operand("a", [40, 50]);
        let (b, b_wide) = case.operand("b", [40, 50]);
        let actual = read(&mse::backward_scaled(&a, &b, 1e-4, Some(&factor)).unwrap());
        let slope = 2.0 * f64::from(1e-4f32) / 2000.0 * 65_536.0;
        let expected: Vec<f64> = a_wide.iter().zip(&b_wide).map(|(a, b)| slope * (a - b)).collect();
        case.close("mse", &actual, &expected);
    }
}
