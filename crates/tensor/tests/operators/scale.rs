use tensor::ops::scale;

use crate::support::{LENGTHS, devices, read, tensor};

#[test]
fn results_are_rounded_once_for_factors_on_host_and_device() {
    for case in devices() {
        for length in LENGTHS {
            let (x, wide) = case.operand("x", [length]);
            let times = |values: &[f64], factor: f32| -> Vec<f64> {
                values.iter().map(|x| f64::from(case.round((x * f64::from(factor)) as f32))).collect()
            };
            scale::in_place(&x, 0.3).unwrap();
            let scaled = times(&wide, 0.3);
            assert_eq!(read(&x), scaled);
            scale::by(&x, &tensor(&case.device, &[-4.0f32], [])).unwrap();
            assert_eq!(read(&x), times(&scaled, -4.0));
        }
    }
}
