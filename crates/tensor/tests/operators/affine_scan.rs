//! Scans of affine maps, compared with f64.

use tensor::Tensor;
use tensor::ops::affine_scan::{backward, forward};

use crate::support::{tensor, wide};
use crate::trial::Trial;

/// Pieces, states, rows and columns: factors, and matrices of one strip and of several.
const SIZES: [[usize; 4]; 4] = [[3, 2, 1, 300], [1, 2, 4, 3], [4, 3, 6, 5], [8, 2, 20, 37]];

/// Returns the states that enter the pieces; `backward`, the gradients of those that leave them.
fn reference(
    [pieces, states, rows, columns]: [usize; 4],
    [maps, added]: [&[f64]; 2],
    back: bool,
) -> Vec<f64> {
    let each = rows * columns;
    let mut results = vec![0.0; added.len()];
    for state in 0..states {
        let mut value = vec![0.0; each];
        for number in 0..pieces {
            let piece = if back { pieces - 1 - number } else { number };
            let at = piece * states + state;
            results[at * each..][..each].copy_from_slice(&value);
            let map = &maps[at * rows * rows..][..rows * rows];
            let next = |index: usize| {
                let [i, j] = [index / columns, index % columns];
                let factor = |c: usize| if back { map[c * rows + i] } else { map[i * rows + c] };
                added[at * each + index] + (0..rows).map(|c| factor(c) * value[c * columns + j]).sum::<f64>()
            };
            value = (0..each).map(next).collect();
        }
    }
    results
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for sizes in SIZES {
        let [pieces, states, rows, columns] = sizes;
        trial.label(format!("{sizes:?}"));
        let single = trial.single();
        let (maps, of_maps) = {
            let shape = [pieces, states, rows, rows];
            let values: Vec<f32> = single
                .normal("maps", shape.iter().product())
                .into_iter()
                .map(|value| value / (rows as f32).sqrt())
                .collect();
            (tensor(&trial.device, &values, shape), wide(&values))
        };
        let shape = [pieces, states, rows, columns];
        let added = |name: &str| single.operand(name, shape);
        for (name, back) in [("entering", false), ("leaving", true)] {
            let (own, of_own): (Tensor, _) = added(name);
            let call = if back { backward } else { forward };
            call(&maps, &own).unwrap();
            trial.single_output(name, &own, || reference(sizes, [&of_maps, &of_own], back));
        }
    }
}
