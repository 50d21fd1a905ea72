//! Linear layers of few rows: f64 results, and a row's bits beside any number of others.

use tensor::Tensor;
use tensor::ops::linear::forward_rows;

use crate::reference;
use crate::support::{bits, devices, read};

/// Rows of the operand.
const ALL: usize = 64;
/// Inputs and outputs: those of one step of a warp, of some steps, of more than are read ahead, of whole and
/// cut tiles in small and large blocks, and some that no kernel takes.
const SIZES: [[usize; 2]; 7] =
    [[64, 16], [192, 130], [512, 48], [4224, 33], [128, 4500], [576, 5001], [40, 70]];
/// Rows that are computed: those of each kernel, and their borders.
const ROWS: [usize; 8] = [1, 3, 8, 9, 16, 17, 40, 64];

#[test]
fn rows_have_the_bits_that_they_have_beside_any_others() {
    for case in devices() {
        for [inputs, outputs] in SIZES {
            let (x, x_wide) = case.operand("x", [ALL, 1, inputs]);
            let (weight, weight_wide) = case.operand("weight", [outputs, inputs]);
            let (bias, bias_wide) = case.operand("bias", [outputs]);
            let expected = reference::linear(&x_wide, &weight_wide, Some(&bias_wide), inputs);
            let forward = |rows| forward_rows(&x, &weight, Some(&bias), rows).unwrap();
            let all = bits(&forward(ALL));
            for rows in ROWS {
                let what = format!("{rows} rows, {inputs} inputs, {outputs} outputs");
                let own: Tensor = forward(rows).view(0, [rows, outputs]).unwrap();
                case.close(&what, &read(&own), &expected[..rows * outputs]);
                assert!(bits(&own) == all[..rows * outputs], "{}, {what}", case.name());
            }
        }
    }
}
