//! Packing of heads whose keys share their rotated columns.

use tensor::ops::latent_qkv::{LatentHeads, backward, forward};

use crate::trial::Trial;

/// Heads with and without whole vectors, one key head, values without columns, and rotated pairs that are
/// neighbours or half a head apart.
const HEADS: [LatentHeads; 4] = [
    LatentHeads { query: 3, key_value: 3, rotated: 6, plain: 5, value_width: 7, interleaved: true },
    LatentHeads { query: 4, key_value: 4, rotated: 16, plain: 32, value_width: 24, interleaved: true },
    LatentHeads { query: 2, key_value: 2, rotated: 8, plain: 16, value_width: 8, interleaved: false },
    LatentHeads { query: 5, key_value: 1, rotated: 16, plain: 40, value_width: 0, interleaved: true },
];
const BATCH: usize = 2;
const TIME: usize = 37;

/// Returns for each packed column the number of its operand and the column there.
fn sources(heads: LatentHeads) -> Vec<(usize, usize)> {
    let LatentHeads { query, key_value, rotated, plain, value_width, interleaved } = heads;
    let width = plain + rotated;
    let turned = |column: usize| match (interleaved, column < rotated / 2) {
        (false, _) => column,
        (true, true) => 2 * column,
        (true, false) => 2 * column - rotated + 1,
    };
    let of_query = |head: usize, column: usize| match column < rotated {
        true => (0, head * width + plain + turned(column)),
        false => (0, head * width + column - rotated),
    };
    let of_key = |head: usize, column: usize| match column < rotated {
        true => (2, turned(column)),
        false => (1, head * (plain + value_width) + column - rotated),
    };
    let of_value = |head: usize, column: usize| (1, head * (plain + value_width) + plain + column);
    let queries = (0..query * width).map(|at| of_query(at / width, at % width));
    let keys = (0..key_value * width).map(|at| of_key(at / width, at % width));
    let values = (0..key_value * value_width).map(|at| of_value(at / value_width, at % value_width));
    queries.chain(keys).chain(values).collect()
}

/// Tests that heads are packed as defined, and that gradients of shared columns are added.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    for heads in HEADS {
        trial.label(format!("{heads:?}"));
        let sources = sources(heads);
        let columns = heads.columns();
        let operand = |number: usize| trial.operand("operand", [BATCH, TIME, columns[number]]);
        let [(queries, q), (keys_values, kv), (rotated, r)] = [0, 1, 2].map(operand);
        let packed = forward([&queries, &keys_values, &rotated], heads).unwrap();
        assert_eq!(packed.shape().columns(), sources.len(), "{}", trial.what("columns"));
        let wide = [q, kv, r];
        trial.rounded_output("packed", &packed, || {
            (0..BATCH * TIME)
                .flat_map(|row| sources.iter().map(move |(operand, column)| (row, *operand, *column)))
                .map(|(row, operand, column)| wide[operand][row * columns[operand] + column])
                .collect()
        });

        let (dy, dy_wide) = trial.operand("dy", [BATCH, TIME, sources.len()]);
        let sums = |number: usize| {
            let mut sums = vec![0.0; BATCH * TIME * columns[number]];
            for (row, dy) in dy_wide.chunks(sources.len()).enumerate() {
                for ((_, column), dy) in sources.iter().zip(dy).filter(|((operand, _), _)| *operand == number)
                {
                    sums[row * columns[number] + column] += dy;
                }
            }
            sums
        };
        let gradients = backward(&dy, heads).unwrap();
        let parts = ["dqueries", "dkeys_values", "drotated"];
        for (number, (part, gradient)) in parts.into_iter().zip(&gradients).enumerate() {
            trial.output(part, gradient, || sums(number));
        }
    }
}
