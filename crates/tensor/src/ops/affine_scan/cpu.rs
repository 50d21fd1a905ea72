//! Scans of affine maps on the host, a task for each state.

use device::parallel::map;

use super::sizes::{Direction, Sizes};

pub(super) fn scan(maps: &[f32], states: &mut [f32], sizes: Sizes, direction: Direction) {
    let Sizes { pieces, states: count, rows, columns } = sizes;
    let each = rows * columns;
    let own: &[f32] = states;
    let joined = map(count, |number| {
        let mut values = vec![0.0; pieces * each];
        let mut value = vec![0.0; each];
        for piece in in_order(pieces, direction) {
            let at = piece * count + number;
            values[piece * each..][..each].copy_from_slice(&value);
            let added = &own[at * each..][..each];
            value = advanced(&maps[at * rows * rows..][..rows * rows], &value, added, (rows, direction));
        }
        values
    });
    for (number, values) in joined.into_iter().enumerate() {
        for (piece, value) in values.chunks_exact(each).enumerate() {
            states[(piece * count + number) * each..][..each].copy_from_slice(value);
        }
    }
}

fn in_order(pieces: usize, direction: Direction) -> impl Iterator<Item = usize> {
    (0..pieces).map(move |piece| match direction {
        Direction::Forward => piece,
        Direction::Backward => pieces - 1 - piece,
    })
}

/// Returns `map` · `value` + `added`, with the map transposed in backward.
fn advanced(map: &[f32], value: &[f32], added: &[f32], (rows, direction): (usize, Direction)) -> Vec<f32> {
    let columns = value.len() / rows;
    let mut next = added.to_vec();
    for (i, row) in next.chunks_exact_mut(columns).enumerate() {
        for (c, from) in value.chunks_exact(columns).enumerate() {
            let factor = match direction {
                Direction::Forward => map[i * rows + c],
                Direction::Backward => map[c * rows + i],
            };
            row.iter_mut().zip(from).for_each(|(to, from)| *to = factor.mul_add(*from, *to));
        }
    }
    next
}
