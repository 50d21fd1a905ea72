//! Attention of pieces of a sequence: queries of some positions with the keys of all positions.

use tensor::ops::attention::{self, Heads, Masks, Qkv, Settings};
use tensor::{DType, Tensor};

use crate::rotary::documents;
use crate::support::{Case, devices, read, tensor};

/// Returns batch, tokens per piece, number of pieces, and heads. Some pieces are multiples of tiles, others
/// not.
fn sizes(case: &Case) -> Vec<(usize, usize, usize, Heads)> {
    let heads = |query, key_value, width| Heads::grouped(query, key_value, width);
    let values = |heads, value_width| Heads { value_width, ..heads };
    match (case.device.is_cuda_like(), case.dtype) {
        (true, DType::Bf16 | DType::F16) => {
            let narrow = [(2, 37, 4, heads(4, 2, 32)), (1, 128, 4, heads(2, 2, 64))];
            let wide =
                [(1, 200, 2, heads(4, 1, 128)), (2, 37, 4, heads(4, 2, 80)), (1, 70, 3, heads(2, 1, 256))];
            let uneven = [(1, 70, 3, values(heads(4, 2, 64), 40)), (1, 70, 2, values(heads(2, 1, 192), 128))];
            // Tiles of Hopper's kernels before each piece, and ends within tiles.
            let whole =
                [(2, 192, 3, heads(4, 2, 64)), (1, 64, 4, heads(2, 1, 128)), (1, 320, 2, heads(4, 4, 128))];
            let others =
                [(2, 128, 3, heads(4, 2, 80)), (1, 192, 3, heads(4, 1, 256)), (1, 448, 3, heads(3, 3, 64))];
            let narrow = narrow.into_iter().chain(whole).chain(others);
            narrow.into_iter().chain(wide).chain(uneven).collect()
        }
        _ => vec![
            (2, 5, 4, heads(2, 1, 4)),
            (2, 37, 4, heads(4, 2, 8)),
            (1, 128, 2, heads(2, 2, 33)),
            (1, 37, 2, values(heads(2, 1, 6), 9)),
        ],
    }
}

/// Returns columns `columns` of rows `rows` of each sequence of `x`, `[batch, time, all]`.
fn part(x: &[f64], [batch, all]: [usize; 2], rows: std::ops::Range<usize>, columns: &[usize; 2]) -> Vec<f64> {
    let time = x.len() / batch / all;
    let row = |(b, t): (usize, usize)| x[(b * time + t) * all + columns[0]..][..columns[1]].iter().copied();
    (0..batch).flat_map(|b| rows.clone().map(move |t| (b, t))).flat_map(row).collect()
}

#[test]
fn pieces_are_rows_of_whole_sequences() {
    for case in devices() {
        for (batch, time, pieces, heads) in sizes(&case) {
            for (window, soft_cap, packs) in [
                (None, None, false),
                (Some(time + 3), None, false),
                (None, Some(0.7), false),
                (Some(9), Some(2.0), true),
                (None, None, true),
            ] {
                let settings = Settings { heads, scale: None, soft_cap, window };
                check(&case, [batch, time, pieces], settings, packs);
            }
        }
    }
}

fn check(case: &Case, [batch, time, pieces]: [usize; 3], settings: Settings, packs: bool) {
    let heads = settings.heads;
    let all = time * pieces;
    let (columns, queries, keys) =
        (heads.packed_columns(), heads.query_columns(), heads.key_columns() + heads.value_columns());
    let outputs = heads.output_columns();
    let what = |name: &str| format!("{name} {batch}x{time}x{pieces} {settings:?} {packs}");
    let (qkv, x) = case.operand("qkv", [batch, all, columns]);
    let (dy, dy_wide) = case.operand("dy", [batch, all, outputs]);
    let (firsts, list) = documents(case, batch, all);
    let masks = Masks { documents: packs.then_some(&firsts), ..Masks::default() };
    let qkv = Qkv::Packed(qkv);
    let whole = attention::forward(&qkv, settings, masks, false).unwrap();
    let gradients =
        attention::backward(&dy, &qkv, &whole.output, &whole.logsumexp, settings, masks, false).unwrap();
    let output = read(&whole.output);
    let gradient = read(&gradients.arrays()[0]);
    let own = |x: &[f64], all: usize, rows, columns: [usize; 2]| -> Vec<f32> {
        part(x, [batch, all], rows, &columns).iter().map(|value| *value as f32).collect()
    };
    let kv = case.tensor(&own(&x, columns, 0..all, [queries, keys]), [batch, all, keys]);
    let mut sum = vec![0.0; batch * all * keys];
    for piece in 0..pieces {
        let first = piece * time;
        let rows = piece * time..(piece + 1) * time;
        let q = case.tensor(&own(&x, columns, rows.clone(), [0, queries]), [batch, time, queries]);
        let dy = case.tensor(&own(&dy_wide, outputs, rows.clone(), [0, outputs]), [batch, time, outputs]);
        let starts: Vec<u32> = list
            .chunks(all)
            .flat_map(|starts| starts[rows.clone()].iter().map(|start| start.wrapping_sub(first as u32)))
            .collect();
        let starts = tensor(&case.device, &starts, [batch, time]);
        let masks = Masks { documents: packs.then_some(&starts), ..Masks::default() };
        let operands = Qkv::Piece { arrays: [q, kv.clone()], first };
        let result = attention::forward(&operands, settings, masks, false).unwrap();
        let expected = part(&output, [batch, outputs], rows.clone(), &[0, outputs]);
        case.close(&what("output"), &read(&result.output), &expected);
        let sums = read(&whole.logsumexp);
        let expected = part(&sums, [batch * heads.query, 1], rows.clone(), &[0, 1]);
        case.close(&what("logsumexp"), &read(&result.logsumexp), &expected);
        let backward = |dy: &Tensor| {
            attention::backward(dy, &operands, &result.output, &result.logsumexp, settings, masks, false)
        };
        let gradients = backward(&dy).unwrap().into_vec();
        let expected = part(&gradient, [batch, columns], rows, &[0, queries]);
        case.close(&what("dq"), &read(&gradients[0]), &expected);
        sum.iter_mut().zip(read(&gradients[1])).for_each(|(sum, value)| *sum += value);
    }
    case.close(&what("dk, dv"), &sum, &part(&gradient, [batch, columns], 0..all, &[queries, keys]));
}
