use tensor::ops::scale;

use crate::support::{LENGTHS, tensor};
use crate::trial::Trial;

/// Tests that results are rounded once, for factors on host and device.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    for length in LENGTHS {
        trial.label(format!("{length}"));
        let (x, wide) = trial.operand("x", [length]);
        let times = |values: &[f64], factor: f32| -> Vec<f64> {
            values.iter().map(|x| x * f64::from(factor)).collect()
        };
        scale::in_place(&x, 0.3).unwrap();
        let scaled = times(&wide, 0.3);
        trial.rounded_output("product", &x, || scaled.clone());
        scale::by(&x, &tensor(&trial.device, &[-4.0f32], [])).unwrap();
        let scaled: Vec<f64> = scaled.iter().map(|x| f64::from(trial.round(*x as f32))).collect();
        trial.rounded_output("product by a factor on the device", &x, || times(&scaled, -4.0));
    }
}
