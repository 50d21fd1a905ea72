use tensor::ops::cross_entropy;

use crate::reference;
use crate::support::{bits, close, cpu, indices, is_gradient, operand, read, tensor};

/// Rows, vocab.
const SIZES: [[usize; 2]; 6] = [[1, 2], [1, 33], [7, 5], [70, 256], [3, 1000], [200, 130]];

#[test]
fn loss_and_gradient() {
    let device = cpu();
    for [rows, vocab] in SIZES {
        for scale in [1.0, 0.125] {
            let what = format!("{rows}x{vocab} scale {scale}");
            let (logits, logits_wide) = operand(&device, "logits", [rows, vocab]);
            let ids = indices("targets", rows, vocab);
            let made = cross_entropy::forward(logits, &tensor(&device, &ids, [rows]), scale, true).unwrap();
            let value = |logits: &[f64]| f64::from(scale) * reference::cross_entropy(logits, &ids);
            close(&what, &read(&made.loss), &[value(&logits_wide)]);
            is_gradient(&what, &read(&made.gradient.unwrap()), &logits_wide, value);
        }
    }
}

#[test]
fn in_place_apart_and_without_gradient_give_the_same_bits() {
    let device = cpu();
    let (logits, before) = operand(&device, "logits", [3, 50, 300]);
    let targets = tensor(&device, &indices("targets", 150, 300), [3, 50]);
    let without = cross_entropy::forward(logits.clone(), &targets, 0.5, false).unwrap();
    assert!(without.gradient.is_none());
    let apart = cross_entropy::forward(logits.clone(), &targets, 0.5, true).unwrap();
    assert_eq!(read(&logits), before, "scores that others look at stay");
    let address = logits.region().buffer.address();
    let in_place = cross_entropy::forward(logits, &targets, 0.5, true).unwrap();
    let (apart_gradient, gradient) = (apart.gradient.unwrap(), in_place.gradient.unwrap());
    assert_eq!(gradient.region().buffer.address(), address);
    assert_ne!(apart_gradient.region().buffer.address(), address);
    assert!(gradient.is_unique());
    assert_eq!(bits(&gradient), bits(&apart_gradient));
    assert_eq!(bits(&in_place.loss), bits(&apart.loss));
    assert_eq!(bits(&in_place.loss), bits(&without.loss));
}

#[test]
fn scores_of_any_size_give_finite_losses() {
    let device = cpu();
    let logits = tensor(&device, &[1e30f32, -1e30, 0.0, 3e4, 3e4 + 1.0, -3e4], [2, 3]);
    let made = cross_entropy::forward(logits, &tensor(&device, &[0u32, 1], [2]), 1.0, true).unwrap();
    let expected = (1.0 + (-1.0f64).exp()).ln() / 2.0;
    close("loss", &read(&made.loss), &[expected]);
    let p = 1.0 / (1.0 + 1f64.exp());
    close("gradient", &read(&made.gradient.unwrap()), &[0.0, 0.0, 0.0, p / 2.0, -p / 2.0, 0.0]);
}
