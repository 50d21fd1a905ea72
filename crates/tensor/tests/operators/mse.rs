use tensor::ops::mse;

use crate::reference;
use crate::support::{LENGTHS, close, devices, read};

#[test]
fn loss_and_gradient_match_the_reference() {
    for case in devices() {
        for length in LENGTHS {
            let (prediction, wide) = case.operand("prediction", [length]);
            let (target, target_wide) = case.operand("target", [length]);
            let loss = mse::forward(&prediction, &target, 0.25).unwrap();
            close("mse", &read(&loss), &[0.25 * reference::mse(&wide, &target_wide)]);
            assert_eq!(loss.shape(), [].into());
            let gradient = mse::backward(&prediction, &target, 0.25).unwrap();
            case.is_gradient("mse", &read(&gradient), &wide, |p| 0.25 * reference::mse(p, &target_wide));
        }
    }
}
