use tensor::ops::embedding;

use crate::reference;
use crate::support::{added, cpu, dot, indices, is_gradient, operand, read, target, tensor};

/// Batch, time, vocab, context, width.
const SIZES: [[usize; 5]; 5] =
    [[1, 1, 1, 1, 1], [2, 3, 5, 4, 33], [4, 70, 50, 70, 16], [1, 9, 300, 20, 7], [8, 16, 3, 16, 200]];

#[test]
fn forward_adds_the_rows_of_both_tables() {
    let device = cpu();
    for [batch, time, vocab, context, width] in SIZES {
        let ids = indices("tokens", batch * time, vocab);
        let (table, table_wide) = operand(&device, "table", [vocab, width]);
        let (positions, positions_wide) = operand(&device, "positions", [context, width]);
        let output = embedding::forward(&tensor(&device, &ids, [batch, time]), &table, &positions).unwrap();
        assert_eq!(output.shape(), [batch, time, width].into());
        let expected = reference::embedding(&ids, &table_wide, &positions_wide, time, width);
        let rounded: Vec<f64> = expected.iter().map(|v| f64::from(*v as f32)).collect();
        assert_eq!(read(&output), rounded);
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let device = cpu();
    for [batch, time, vocab, context, width] in SIZES {
        for accumulate in [false, true] {
            let ids = indices("tokens", batch * time, vocab);
            let (_, table) = operand(&device, "table", [vocab, width]);
            let (_, positions) = operand(&device, "positions", [context, width]);
            let (dy, dy_wide) = operand(&device, "dy", [batch, time, width]);
            let dtable = target(&device, "dtable", [vocab, width], accumulate);
            let dpositions = target(&device, "dpositions", [context, width], accumulate);
            let tokens = tensor(&device, &ids, [batch, time]);
            embedding::backward_weight(&dy, &tokens, &dtable, &dpositions).unwrap();
            let value = |table: &[f64], positions: &[f64]| {
                dot(&dy_wide, &reference::embedding(&ids, table, positions, time, width))
            };
            is_gradient("table", &added(&dtable, "dtable"), &table, |table| value(table, &positions));
            let dpositions = added(&dpositions, "dpositions");
            is_gradient("positions", &dpositions, &positions, |positions| value(&table, positions));
        }
    }
}

#[test]
fn a_row_adds_its_tokens_in_their_order() {
    let device = cpu();
    // In this order 1 is lost in 2^24 twice; in another it would not be.
    let dy = tensor(&device, &[16_777_216.0f32, 1.0, 1.0, -16_777_216.0], [2, 2, 1]);
    let tokens = tensor(&device, &[1u32, 1, 1, 1], [2, 2]);
    let table = target(&device, "", [3, 1], false);
    embedding::backward_weight(&dy, &tokens, &table, &target(&device, "", [2, 1], false)).unwrap();
    assert_eq!(read(&table.tensor), [0.0, 0.0, 0.0]);
}
