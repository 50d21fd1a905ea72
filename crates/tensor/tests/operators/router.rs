//! Gradients of routers compared with f64.

use tensor::ops::router;

use crate::reference::{self, transposed};
use crate::support::{devices, operand, read, wide};

/// Numbers of rows, experts and inputs. With 1,300 or 9,000 rows, a GPU adds several parts of them, and the
/// last part has fewer rows than others.
const SIZES: [[usize; 3]; 4] = [[1, 1, 1], [77, 5, 33], [1300, 16, 72], [9000, 70, 24]];

#[test]
fn gradients_of_routers_match_f64() {
    for case in devices() {
        for [rows, experts, inputs] in SIZES {
            let what = format!("{rows} rows, {experts} experts, {inputs} inputs");
            let (dy, dy_wide) = operand(&case.device, "dy", [rows, experts]);
            let (x, x_wide) = case.operand("x", [rows, inputs]);
            let columns_of_dy = transposed(&dy_wide, experts);
            let of_weight = reference::linear(&columns_of_dy, &transposed(&x_wide, inputs), None, rows);
            let of_bias: Vec<f64> = columns_of_dy.chunks(rows).map(|column| column.iter().sum()).collect();
            for accumulate in [false, true] {
                let weights = case.targets("weight", [experts, inputs], accumulate);
                let bias = case.target("bias", [experts], accumulate);
                for weight in &weights {
                    router::backward_weight(&dy, &x, Some(weight), None).unwrap();
                }
                router::backward_weight(&dy, &x, None, Some(&bias)).unwrap();
                let before = wide(&case.normal("weight", experts * inputs));
                let before = |at: usize| if accumulate { before[at] } else { 0.0 };
                let after: Vec<f64> =
                    of_weight.iter().enumerate().map(|(at, sum)| sum + before(at)).collect();
                weights.iter().for_each(|weight| case.close(&what, &read(&weight.tensor), &after));
                case.is_rounded(&what, &weights);
                case.close(&what, &case.added(&bias, "bias"), &of_bias);
            }
        }
    }
}
