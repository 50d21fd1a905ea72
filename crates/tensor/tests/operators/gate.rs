use tensor::ops::gate::{Clamp, Gate};
use tensor::ops::{Activation, gate};

use crate::reference;
use crate::support::{dot, wide};
use crate::trial::Trial;

/// A clamp that bounds many operands; gpt-oss's is wider.
const CLAMP: Clamp = Clamp { limit: 0.7, offset: 1.0 };
/// Rows and columns of the result: whole vectors, odd sizes, and several pieces.
const SIZES: [[usize; 2]; 5] = [[1, 1], [5, 33], [40, 64], [300, 352], [7, 4104]];

/// Replaces values so near the bounds that finite differences would cross them.
fn away_from_bounds(mut values: Vec<f32>) -> Vec<f32> {
    values.iter_mut().filter(|x| (x.abs() - CLAMP.limit).abs() < 4e-3).for_each(|x| *x = 0.75);
    values
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    let clamped = Gate { activation: Activation::QuickGelu, clamp: Some(CLAMP) };
    let kinds: Vec<_> = Activation::ALL.map(Gate::from).into_iter().chain([clamped]).collect();
    for ([rows, width], kind) in SIZES.iter().flat_map(|size| kinds.iter().map(|kind| (*size, *kind))) {
        trial.label(format!("{rows}x{width} {kind:?}"));
        let values = away_from_bounds(trial.normal("pair", rows * 2 * width));
        let pair = trial.tensor(&values, [rows, 2 * width]);
        let pair_wide = wide(&values);
        let (dy, dy_wide) = trial.operand("dy", [rows, width]);
        let truth = || reference::gate(&pair_wide, width, kind);
        trial.output("output", &gate::forward(&pair, kind).unwrap(), truth);
        gate::backward(&pair, &dy, kind).unwrap();
        trial.output("output made again", &dy, truth);
        if kind.activation == Activation::Relu {
            // The derivative is undefined at ReLU's corner.
            continue;
        }
        let terms = dot(&dy_wide, &dy_wide).sqrt();
        trial.gradient("gradient", &pair, (&pair_wide, terms), |pair| {
            dot(&dy_wide, &reference::gate(pair, width, kind))
        });
    }
}
