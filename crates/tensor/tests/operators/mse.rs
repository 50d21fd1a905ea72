use tensor::ops::mse;

use crate::reference;
use crate::support::LENGTHS;
use crate::trial::Trial;

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for length in LENGTHS {
        trial.label(format!("{length}"));
        let (prediction, wide) = trial.operand("prediction", [length]);
        let (target, target_wide) = trial.operand("target", [length]);
        let loss = mse::forward(&prediction, &target, 0.25).unwrap();
        assert_eq!(loss.shape(), [].into());
        trial.single_output("loss", &loss, || vec![0.25 * reference::mse(&wide, &target_wide)]);
        let gradient = mse::backward(&prediction, &target, 0.25).unwrap();
        trial.gradient("gradient", &gradient, (&wide, 0.0), |p| 0.25 * reference::mse(p, &target_wide));
    }
}
