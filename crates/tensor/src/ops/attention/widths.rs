//! Head widths that have attention kernels.

use std::fmt;

/// Head widths that have attention kernels on a GPU in one element type: multiples of `step` up to `widest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadWidths {
    /// Divisor of all widths.
    pub step: usize,
    /// The largest width; 0: no width has a kernel.
    pub widest: usize,
}

impl HeadWidths {
    /// Returns whether heads of `width` columns have a kernel.
    pub fn has(self, width: usize) -> bool {
        width <= self.widest && width.is_multiple_of(self.step)
    }
}

impl fmt::Display for HeadWidths {
    /// Writes `up to 256`, or `8, 16, 24, … 256`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeadWidths { step, widest } = *self;
        match (step, widest) {
            (_, 0) => f.write_str("no width"),
            (1, _) => write!(f, "up to {widest}"),
            _ => write!(f, "{step}, {}, {}, … {widest}", 2 * step, 3 * step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_formatted_and_compared() {
        type Row<'a> = (HeadWidths, &'a str, &'a [usize], &'a [usize]);
        let widths = |step, widest| HeadWidths { step, widest };
        let table: [Row<'_>; 3] = [
            (widths(1, 256), "up to 256", &[1, 256], &[257]),
            (widths(8, 256), "8, 16, 24, … 256", &[8, 80, 256], &[33, 84, 264]),
            (widths(1, 0), "no width", &[], &[64]),
        ];
        for (widths, text, has, has_not) in table {
            assert_eq!(widths.to_string(), text);
            assert!(has.iter().all(|width| widths.has(*width)), "{text}");
            assert!(!has_not.iter().any(|width| widths.has(*width)), "{text}");
        }
    }
}
