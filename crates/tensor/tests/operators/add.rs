use tensor::ops::add;

use crate::support::LENGTHS;
use crate::trial::Trial;

/// Tests that sums are rounded once.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    for length in LENGTHS {
        trial.label(format!("{length}"));
        let (a, a_wide) = trial.operand("a", [length]);
        let (b, b_wide) = trial.operand("b", [length]);
        let expected = || a_wide.iter().zip(&b_wide).map(|(a, b)| a + b).collect();
        trial.rounded_output("sum", &add::forward(&a, &b).unwrap(), expected);
        add::into(&a, &b).unwrap();
        trial.rounded_output("sum in place", &a, expected);
    }
    // Only the view is written, at any offset.
    for (start, length) in [(1, 1), (1, 100), (2, 1001), (3, 4099), (4, 9000)] {
        trial.label(format!("{length} from {start}"));
        let (all, before) = trial.operand("all", [length + 10]);
        let (b, b_wide) = trial.operand("b", [length]);
        add::into(&all.view(start, [length]).unwrap(), &b).unwrap();
        let added = |i: usize| i.checked_sub(start).and_then(|i| b_wide.get(i)).unwrap_or(&0.0);
        trial.rounded_output("sum in a view", &all, || {
            (0..length + 10).map(|i| before[i] + added(i)).collect()
        });
    }
}
