use tensor::ops::{Activation, gate};

use crate::reference;
use crate::support::{devices, dot, read};

/// Rows and columns of the result: whole vectors and odd ones, and more than one piece.
const SIZES: [[usize; 2]; 5] = [[1, 1], [5, 33], [40, 64], [300, 352], [7, 4104]];

#[test]
fn results_and_gradients_match_the_reference() {
    for case in devices() {
        for ([rows, width], kind) in
            SIZES.into_iter().flat_map(|size| Activation::ALL.map(|kind| (size, kind)))
        {
            let what = |name: &str| format!("{name} {rows}x{width} {kind:?}");
            let (pair, pair_wide) = case.operand("pair", [rows, 2 * width]);
            let (dy, dy_wide) = case.operand("dy", [rows, width]);
            let truth = reference::gate(&pair_wide, width, kind);
            let hidden = gate::forward(&pair, kind).unwrap();
            case.close(&what("forward"), &read(&hidden), &truth);
            gate::backward(&pair, &dy, kind).unwrap();
            case.close(&what("made again"), &read(&dy), &truth);
            if kind == Activation::Relu {
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
