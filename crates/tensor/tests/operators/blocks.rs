#![expect(clippy::single_range_in_vec_init, reason = "a matrix may have one block")]

use std::ops::Range;

use tensor::TensorError;
use tensor::ops::blocks;

use crate::support::{devices, read};

/// Outputs and ranges: one block of all rows, several blocks, only some rows, an empty block.
const LAYOUTS: [(usize, &[Range<usize>]); 4] =
    [(5, &[0..5]), (70, &[0..40, 40..55, 55..70]), (300, &[7..140, 200..201]), (9, &[3..3, 1..8])];

#[test]
fn blocks_are_spread_and_gathered() {
    for case in devices() {
        for ((outputs, ranges), width) in LAYOUTS.iter().flat_map(|layout| [1, 8, 33].map(|w| (layout, w))) {
            let rows = ranges.iter().map(Range::len).sum();
            let columns = ranges.len() * width;
            let (packed, wide) = case.operand("packed", [rows, width]);
            let matrix = blocks::spread(&packed, ranges, *outputs, 0.5).unwrap();
            let mut expected = vec![0.0; outputs * columns];
            let order =
                ranges.iter().enumerate().flat_map(|(i, range)| range.clone().map(move |row| (i, row)));
            for (from, (block, row)) in order.clone().enumerate() {
                for column in 0..width {
                    // Half of the smallest f16 numbers has fewer digits.
                    let half = case.round((0.5 * wide[from * width + column]) as f32);
                    expected[row * columns + block * width + column] = f64::from(half);
                }
            }
            assert_eq!(read(&matrix), expected, "{outputs} {ranges:?} {width}, {}", case.name());

            for accumulate in [false, true] {
                let (matrix, wide) = case.operand("matrix", [*outputs, columns]);
                let mut target = case.target("target", [rows, width], accumulate);
                target.tensor = case.operand("before", [rows, width]).0;
                let before = read(&target.tensor);
                blocks::gather(&matrix, ranges, 2.0, &target).unwrap();
                let mut expected = vec![];
                for (to, (block, row)) in order.clone().enumerate() {
                    for column in 0..width {
                        let own = 2.0 * wide[row * columns + block * width + column];
                        let earlier = if accumulate { before[to * width + column] } else { 0.0 };
                        expected.push(f64::from(case.round((earlier + own) as f32)));
                    }
                }
                assert_eq!(read(&target.tensor), expected, "{outputs} {ranges:?} {width}, {}", case.name());
            }
        }
    }
}

#[test]
fn rows_outside_the_matrix_are_refused() {
    for case in devices() {
        let (packed, _) = case.operand("packed", [4, 3]);
        for (outputs, ranges) in [(3, vec![0..4]), (9, vec![0..3]), (9, vec![6..10])] {
            let refused = blocks::spread(&packed, &ranges, outputs, 1.0).unwrap_err();
            assert!(matches!(refused, TensorError::Shape { .. }), "{refused:?}");
        }
    }
}
