use tensor::ops::accuracy;
use tensor::ops::cross_entropy::IGNORED;

use crate::support::{devices, tensor};

#[test]
fn counts_are_those_of_sorted_classes() {
    for case in devices() {
        for [rows, classes] in [[1, 2], [9, 3], [40, 10], [256, 1000], [5, 2049]] {
            let (scores, wide) = case.operand("scores", [rows, classes]);
            let mut ids = case.indices("targets", rows, classes);
            // Half of the targets are among the best, some are ignored.
            let sorted = |row: usize| {
                let row = &wide[row * classes..][..classes];
                let mut order: Vec<usize> = (0..classes).collect();
                order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
                order
            };
            for (row, id) in ids.iter_mut().enumerate() {
                match row % 8 {
                    0 | 1 => *id = sorted(row)[0] as u32,
                    2 | 3 => *id = sorted(row)[(row % 7).min(classes - 1)] as u32,
                    4 => *id = IGNORED,
                    _ => {}
                }
            }
            let position_of = |row: usize| sorted(row).iter().position(|class| *class == ids[row] as usize);
            let positions: Vec<usize> =
                (0..rows).filter(|row| ids[*row] != IGNORED).filter_map(position_of).collect();
            let within =
                |most: usize| positions.iter().filter(|position_of| **position_of < most).count() as u32;
            let expected = [positions.len() as u32, within(1), within(5)];
            let plain = accuracy::count(&scores, &tensor(&case.device, &ids, [rows])).unwrap();
            assert_eq!(plain.to_vec::<u32>().unwrap(), expected, "{rows}x{classes} {}", case.name());
            let mixed: Vec<u32> = ids.iter().flat_map(|id| [*id, 0, 1]).collect();
            let mixed = accuracy::count(&scores, &tensor(&case.device, &mixed, [rows, 3])).unwrap();
            assert_eq!(mixed.to_vec::<u32>().unwrap(), expected);
        }
    }
}

#[test]
fn equal_scores_and_nan_have_an_order() {
    for case in devices() {
        let nan = f32::NAN;
        let scores = case.tensor(&[1.0, 1.0, nan, 2.0, 3.0, 1.0, nan, nan], [4, 2]);
        let counts = |ids: [u32; 4]| {
            accuracy::count(&scores, &tensor(&case.device, &ids, [4])).unwrap().to_vec::<u32>().unwrap()
        };
        // The lower of equal classes; a NaN is above a number; NaN against NaN is no success.
        assert_eq!(counts([0, 0, 0, 0]), [4, 2, 4]);
        assert_eq!(counts([1, 1, 1, 1]), [4, 0, 4]);
    }
}
