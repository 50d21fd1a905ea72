use tensor::ops::gate::{Clamp, Gate};
use tensor::ops::{Activation, gate};

use crate::reference;
use crate::support::{devices, dot, read, wide};

/// gpt-oss's clamp is wider; this one bounds many operands.
const CLAMP: Clamp = Clamp { limit: 0.7, offset: 1.0 };
/// Rows and columns of the result: whole vectors and odd ones, and more than one piece.
const SIZES: [[usize; 2]; 5] = [[1, 1], [5, 33], [40, 64], [300, 352], [7, 4104]];

/// Replaces values so near the bounds that finite differences would cross them.
fn away_from_bounds(mut values: Vec<f32>) -> Vec<f32> {
    values.iter_mut().filter(|x| (x.abs() - CLAMP.limit).abs() < 4e-3).for_each(|x| *x = 0.75);
    values
}

#[test]
fn results_and_gradients_match_the_reference() {
    for case in devices() {
        let kinds = Activation::ALL.map(Gate::from).into_iter();
        let clamped = Gate { activation: Activation::QuickGelu, clamp: Some(CLAMP) };
        let kinds: Vec<_> = kinds.chain([clamped]).collect();
        for ([rows, width], kind) in SIZES.iter().flat_map(|size| kinds.iter().map(|kind| (*size, *kind))) {
            let what = |name: &str| format!("{name} {rows}x{width} {kind:?}");
            let values = away_from_bounds(case.normal("pair", rows * 2 * width));
            let (pair, pair_wide) = (case.tensor(&values, [rows, 2 * width]), wide(&values));
            let (dy, dy_wide) = case.operand("dy", [rows, width]);
            let truth = reference::gate(&pair_wide, width, kind);
            let hidden = gate::forward(&pair, kind).unwrap();
            case.close(&what("forward"), &read(&hidden), &truth);
            gate::backward(&pair, &dy, kind).unwrap();
            case.close(&what("made again"), &read(&dy), &truth);
            if kind.activation == Activation::Relu {
                // The derivative is undefined at ReLU's corner.
                continue;
            }
            let terms = dy_wide.iter().map(|dy| dy * dy).sum::<f64>().sqrt();
            case.is_gradient_of_terms(&what("gradient"), terms, &read(&pair), &pair_wide, |pair| {
                dot(&dy_wide, &reference::gate(pair, width, kind))
            });
        }
    }
}
