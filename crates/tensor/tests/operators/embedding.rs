use tensor::DType;
use tensor::ops::embedding;

use crate::reference;
use crate::support::{Case, bits, devices, dot, half_precision, read, tensor, wide};

/// Batch, time, vocabulary, context, width: tokens that occur never, rarely, and more often than a warp has
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

#[test]
fn forward_adds_the_rows_of_its_tables() {
    for case in devices() {
        for ([batch, time, vocab, context, width], learned) in
            SIZES.into_iter().flat_map(|size| [(size, true), (size, false)])
        {
            let ids = case.indices("tokens", batch * time, vocab);
            let (table, table_wide) = case.operand("table", [vocab, width]);
            let (positions, positions_wide) = case.operand("positions", [context, width]);
            let tokens = tensor(&case.device, &ids, [batch, time]);
            let output = embedding::forward(&tokens, &table, learned.then_some(&positions)).unwrap();
            assert_eq!(output.shape(), [batch, time, width].into());
            let positions_wide = learned.then_some(&positions_wide[..]);
            let expected = reference::embedding(&ids, &table_wide, positions_wide, time, width);
            let rounded: Vec<f64> = expected.iter().map(|v| f64::from(case.round(*v as f32))).collect();
            assert_eq!(read(&output), rounded, "{}", case.name());
        }
    }
}

#[test]
fn gradients_match_finite_differences() {
    for case in devices() {
        for size in SIZES {
            [false, true].into_iter().for_each(|accumulate| gradients(&case, size, accumulate));
        }
    }
}

fn gradients(case: &Case, [batch, time, vocab, context, width]: [usize; 5], accumulate: bool) {
    let ids = case.indices("tokens", batch * time, vocab);
    let (_, table) = case.operand("table", [vocab, width]);
    let (_, positions) = case.operand("positions", [context, width]);
    let (dy, dy_wide) = case.operand("dy", [batch, time, width]);
    let dtable = case.target("dtable", [vocab, width], accumulate);
    let dpositions = case.target("dpositions", [context, width], accumulate);
    let tokens = tensor(&case.device, &ids, [batch, time]);
    embedding::backward_weight(&dy, &tokens, &dtable, Some(&dpositions)).unwrap();
    let value = |table: &[f64], positions: &[f64]| {
        dot(&dy_wide, &reference::embedding(&ids, table, Some(positions), time, width))
    };
    let dtable = case.added(&dtable, "dtable");
    case.is_gradient("table", &dtable, &table, |table| value(table, &positions));
    let dpositions = case.added(&dpositions, "dpositions");
    case.is_gradient("positions", &dpositions, &positions, |positions| value(&table, positions));
}

/// Rounded sums depend on the order.
#[test]
fn every_row_adds_its_gradients_in_the_order_of_positions() {
    for case in devices() {
        for ([batch, time, vocab, context, width], accumulate) in
            SIZES.into_iter().flat_map(|size| [(size, false), (size, true)])
        {
            let ids = case.indices("tokens", batch * time, vocab);
            let (dy, dy_wide) = case.operand("dy", [batch, time, width]);
            let dtable = case.target("dtable", [vocab, width], accumulate);
            let dpositions = case.target("dpositions", [context, width], accumulate);
            let [mut table, mut positions] = [&dtable, &dpositions].map(|target| {
                let before = target.tensor.to_vec::<f32>().unwrap();
                if accumulate { before } else { vec![0.0; before.len()] }
            });
            for (row, dy) in dy_wide.chunks(width).enumerate() {
                let token = ids[row] as usize * width;
                let position = row % time * width;
                for (column, dy) in dy.iter().enumerate() {
                    table[token + column] += *dy as f32;
                    positions[position + column] += *dy as f32;
                }
            }
            let tokens = tensor(&case.device, &ids, [batch, time]);
            embedding::backward_weight(&dy, &tokens, &dtable, Some(&dpositions)).unwrap();
            let what = format!("{batch}x{time} of {vocab}, width {width}, {}", case.name());
            assert_eq!(read(&dtable.tensor), wide(&table), "{what}");
            assert_eq!(read(&dpositions.tensor), wide(&positions), "{what}");
            let alone = case.target("dtable", [vocab, width], accumulate);
            embedding::backward_weight(&dy, &tokens, &alone, None).unwrap();
            assert_eq!(bits(&alone.tensor), bits(&dtable.tensor), "{what} without positions");
            let padded = case.target("dtable", [vocab, width], accumulate);
            embedding::backward_padded(&dy, &tokens, Some(ids[0]), &padded, None).unwrap();
            let before = case.target("dtable", [vocab, width], accumulate).tensor.to_vec::<f32>().unwrap();
            let row = ids[0] as usize * width..(ids[0] as usize + 1) * width;
            let unused = if accumulate { before[row.clone()].to_vec() } else { vec![0.0; width] };
            table[row].copy_from_slice(&unused);
            assert_eq!(read(&padded.tensor), wide(&table), "{what} with padding");
        }
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

#[test]
fn gradients_in_half_precision_are_rounded_f32_gradients() {
    for case in half_precision() {
        for ([batch, time, vocab, context, width], accumulate) in
            SIZES.into_iter().flat_map(|size| [(size, false), (size, true)])
        {
            let ids = case.indices("tokens", batch * time, vocab);
            let tokens = tensor(&case.device, &ids, [batch, time]);
            let (dy, _) = case.operand("dy", [batch, time, width]);
            let tables = case.targets("dtable", [vocab, width], accumulate);
            let positions = case.targets("dpositions", [context, width], accumulate);
            for (table, positions) in tables.iter().zip(&positions) {
                embedding::backward_weight(&dy, &tokens, table, Some(positions)).unwrap();
            }
            let what = format!("{batch}x{time} of {vocab}, width {width}, {accumulate}");
            case.is_rounded(&what, &tables);
            case.is_rounded(&what, &positions);
        }
    }
}
