//! Sigmoid gates of elements and of rows.

use tensor::ops::sigmoid_gate::{backward, forward};

use crate::support::dot;
use crate::trial::Trial;

/// Rows and columns.
const SIZES: [[usize; 2]; 3] = [[1, 1], [37, 5], [70, 130]];

fn reference([x, z]: [&[f64]; 2]) -> Vec<f64> {
    let each = x.len() / z.len();
    x.iter().enumerate().map(|(at, x)| x / (1.0 + (-z[at / each]).exp())).collect()
}

/// Tests the output and both gradients.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    for [rows, columns] in SIZES {
        for gates in [1, columns] {
            trial.label(format!("[{rows}, {columns}] by {gates}"));
            let (x, x_wide) = trial.operand("x", [rows, columns]);
            let (z, z_wide) = trial.operand("z", [rows, gates]);
            let output = forward(&x, &z).unwrap();
            trial.output("output", &output, || reference([&x_wide, &z_wide]));
            let (dy, dy_wide) = trial.operand("dy", [rows, columns]);
            let [dx, dz] = backward(&dy, &x, &z).unwrap();
            let terms = dot(&dy_wide, &dy_wide).sqrt();
            trial.gradient("dx", &dx, (&x_wide, terms), |x| dot(&dy_wide, &reference([x, &z_wide])));
            trial.gradient("dz", &dz, (&z_wide, terms), |z| dot(&dy_wide, &reference([&x_wide, z])));
        }
    }
}
