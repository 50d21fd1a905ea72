//! Head widths that have attention kernels.

use std::fmt;

/// Head widths that have attention kernels on a GPU in one element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadWidths {
    /// Every width up to this one.
    UpTo(usize),
    /// Each of these widths.
    OneOf(&'static [u32]),
}

impl HeadWidths {
    /// Returns whether heads of `width` columns have a kernel.
    pub fn has(self, width: usize) -> bool {
        match self {
            HeadWidths::UpTo(widest) => width <= widest,
            HeadWidths::OneOf(widths) => widths.iter().any(|one| *one as usize == width),
        }
    }
}

impl fmt::Display for HeadWidths {
    /// `up to 256`, or `32, 64 and 128`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = match self {
            HeadWidths::UpTo(widest) => return write!(f, "up to {widest}"),
            HeadWidths::OneOf([]) => return f.write_str("no width"),
            HeadWidths::OneOf(widths) => widths,
        };
        for (index, width) in widths.iter().enumerate() {
            let separator = match widths.len() - index {
                left if left == widths.len() => "",
                1 => " and ",
                _ => ", ",
            };
            write!(f, "{separator}{width}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_formatted_and_compared() {
        let table: [(HeadWidths, &str, &[usize], &[usize]); 4] = [
            (HeadWidths::UpTo(256), "up to 256", &[1, 256], &[257]),
            (HeadWidths::OneOf(&[32, 64, 128]), "32, 64 and 128", &[32, 64, 128], &[33, 256]),
            (HeadWidths::OneOf(&[64]), "64", &[64], &[32]),
            (HeadWidths::OneOf(&[]), "no width", &[], &[64]),
        ];
        for (widths, text, has, has_not) in table {
            assert_eq!(widths.to_string(), text);
            assert!(has.iter().all(|width| widths.has(*width)), "{text}");
            assert!(!has_not.iter().any(|width| widths.has(*width)), "{text}");
        }
    }
}
