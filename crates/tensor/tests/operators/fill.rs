use tensor::ops::fill;

use crate::support::LENGTHS;
use crate::trial::Trial;

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for length in LENGTHS {
        trial.label(format!("{length}"));
        let (x, _) = trial.operand("x", [length]);
        fill::constant(&x, -2.5).unwrap();
        trial.rounded_output("constant", &x, || vec![-2.5; length]);
    }
}
