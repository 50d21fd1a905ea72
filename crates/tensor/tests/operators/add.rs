use tensor::ops::add;

use crate::support::{LENGTHS, devices, read};

#[test]
fn sums_are_rounded_once() {
    for case in devices() {
        for length in LENGTHS {
            let (a, a_wide) = case.operand("a", [length]);
            let (b, b_wide) = case.operand("b", [length]);
            let sum = |(a, b): (&f64, &f64)| f64::from(case.round((a + b) as f32));
            let expected: Vec<f64> = a_wide.iter().zip(&b_wide).map(sum).collect();
            assert_eq!(read(&add::forward(&a, &b).unwrap()), expected);
            add::into(&a, &b).unwrap();
            assert_eq!(read(&a), expected);
        }
    }
}

#[test]
fn only_the_view_is_written_at_any_offset() {
    for case in devices() {
        for (start, length) in [(1, 1), (1, 100), (2, 1001), (3, 4099), (4, 9000)] {
            let (all, before) = case.operand("all", [length + 10]);
            let (b, b_wide) = case.operand("b", [length]);
            add::into(&all.view(start, [length]).unwrap(), &b).unwrap();
            let expected: Vec<f64> = (0..length + 10)
                .map(|i| match i.checked_sub(start).and_then(|i| b_wide.get(i)) {
                    Some(b) => f64::from(case.round((before[i] + b) as f32)),
                    None => before[i],
                })
                .collect();
            assert_eq!(read(&all), expected, "{start} {length}, {}", case.name());
        }
    }
}
