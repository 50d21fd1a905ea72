use tensor::DType;
use tensor::ops::embedding;

use crate::reference;
use crate::support::{devices, dot, read, tensor, wide};
use crate::trial::Trial;

/// Batch, time, vocabulary, context, width: tokens that never occur, rarely, and more often than a warp has
/// threads.
const SIZES: [[usize; 5]; 8] = [
    [1, 1, 1, 1, 1],
    [2, 3, 5, 4, 33],
    [4, 70, 50, 70, 16],
    [1, 9, 300, 20, 7],
    [8, 16, 3, 16, 200],
    [8, 128, 4, 130, 40],
    [6, 300, 1500, 300, 72],
    [3, 111, 10, 111, 65],
];

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for size in SIZES {
        forward(trial, size);
        [false, true].into_iter().for_each(|accumulate| gradients(trial, size, accumulate));
    }
}

/// Tests that outputs are sums of rows of the tables, rounded once.
fn forward(trial: &mut Trial<'_>, [batch, time, vocab, context, width]: [usize; 5]) {
    trial.label(format!("{batch}x{time} of {vocab}, width {width}"));
    let ids = trial.indices("tokens", batch * time, vocab);
    let tokens = tensor(&trial.device, &ids, [batch, time]);
    let (table, table_wide) = trial.operand("table", [vocab, width]);
    let (positions, positions_wide) = trial.operand("positions", [context, width]);
    let learned = (Some(&positions), Some(&positions_wide[..]));
    for (part, (positions, wide)) in [("output", learned), ("output without positions", (None, None))] {
        let output = embedding::forward(&tokens, &table, positions).unwrap();
        assert_eq!(output.shape(), [batch, time, width].into());
        trial.rounded_output(part, &output, || reference::embedding(&ids, &table_wide, wide, time, width));
    }
}

fn gradients(trial: &mut Trial<'_>, [batch, time, vocab, context, width]: [usize; 5], accumulate: bool) {
    trial.label(format!("{batch}x{time} of {vocab}, width {width}, accumulate {accumulate}"));
    let ids = trial.indices("tokens", batch * time, vocab);
    let tokens = tensor(&trial.device, &ids, [batch, time]);
    let (_, table) = trial.operand("table", [vocab, width]);
    let (_, positions) = trial.operand("positions", [context, width]);
    let (dy, dy_wide) = trial.operand("dy", [batch, time, width]);
    let [dtable, alone, padded] = ["dtable"; 3].map(|name| trial.target(name, [vocab, width], accumulate));
    let dpositions = trial.target("dpositions", [context, width], accumulate);
    let before = [&dtable, &dpositions].map(|target| match accumulate && trial.compares() {
        true => target.tensor.to_vec::<f32>().unwrap(),
        false => vec![0.0; target.tensor.elements()],
    });

    embedding::backward_weight(&dy, &tokens, &dtable, Some(&dpositions)).unwrap();
    let value = |table: &[f64], positions: &[f64]| {
        dot(&dy_wide, &reference::embedding(&ids, table, Some(positions), time, width))
    };
    trial.weight_gradient("dtable", &dtable, (&table, 0.0), |table| value(table, &positions));
    trial.weight_gradient("dpositions", &dpositions, (&positions, 0.0), |positions| value(&table, positions));
    // Rounded sums depend on the order: every row adds its gradients in the order of positions.
    let sums = |padding: Option<u32>| {
        let [mut table, mut positions] = before.clone();
        for (row, dy) in dy_wide.chunks(width).enumerate() {
            let token = ids[row] as usize * width;
            let position = row % time * width;
            for (column, dy) in dy.iter().enumerate() {
                if padding != Some(ids[row]) {
                    table[token + column] += *dy as f32;
                }
                positions[position + column] += *dy as f32;
            }
        }
        [wide(&table), wide(&positions)]
    };
    if trial.compares() {
        let [table, positions] = sums(None);
        assert_eq!(read(&dtable.tensor), table, "{}, {}", trial.what("order of dtable"), trial.name());
        let what = trial.what("order of dpositions");
        assert_eq!(read(&dpositions.tensor), positions, "{what}, {}", trial.name());
    }
    embedding::backward_weight(&dy, &tokens, &alone, None).unwrap();
    trial.same("dtable without positions", &alone.tensor, &dtable.tensor);
    embedding::backward_padded(&dy, &tokens, Some(ids[0]), &padded, None).unwrap();
    trial.rounded_output("dtable with padding", &padded.tensor, || {
        let [table, _] = sums(Some(ids[0]));
        table
    });
    // Gradients in half precision are rounded f32 gradients.
    if trial.dtype != DType::F32 {
        let dtable = trial.targets("dtable", [vocab, width], accumulate);
        let dpositions = trial.targets("dpositions", [context, width], accumulate);
        for (dtable, dpositions) in dtable.iter().zip(&dpositions) {
            embedding::backward_weight(&dy, &tokens, dtable, Some(dpositions)).unwrap();
        }
        trial.rounded("dtable in half precision", &dtable);
        trial.rounded("dpositions in half precision", &dpositions);
    }
}

#[test]
fn a_row_adds_its_tokens_in_order() {
    for case in devices().into_iter().filter(|case| case.dtype == DType::F32) {
        // In this order 1 is rounded away at 2^24 twice; in another it would not be.
        let dy = case.tensor(&[16_777_216.0, 1.0, 1.0, -16_777_216.0], [2, 2, 1]);
        let tokens = tensor(&case.device, &[1u32, 1, 1, 1], [2, 2]);
        let table = case.target("", [3, 1], false);
        embedding::backward_weight(&dy, &tokens, &table, Some(&case.target("", [2, 1], false))).unwrap();
        assert_eq!(read(&table.tensor), [0.0, 0.0, 0.0]);
    }
}
