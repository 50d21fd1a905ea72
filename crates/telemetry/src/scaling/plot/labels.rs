//! Names beside the ends of lines, none over another.

use super::{BOTTOM, TOP};

/// Between the base lines of two labels.
const LINE: f64 = 17.0;

/// A name at the right of a line's end.
pub(super) struct Label {
    /// Where its line ends, if it has one.
    pub(super) end: Option<(f64, f64)>,
    /// Where the label would be, and is.
    pub(super) y: f64,
    pub(super) colour: &'static str,
    pub(super) name: String,
    pub(super) value: String,
}

/// Moves labels apart, each as little as the others allow: those that touch become one block around where they want to be.
pub(super) fn spread(labels: &mut [Label]) {
    labels.sort_by(|a, b| a.y.total_cmp(&b.y));
    // Blocks of neighbours: their first label, how many, and the middle of where they want to be.
    let mut blocks: Vec<(usize, usize, f64)> = Vec::new();
    for (index, label) in labels.iter().enumerate() {
        blocks.push((index, 1, label.y));
        while let [.., (_, many, middle), (_, next_many, next_middle)] = blocks.as_slice() {
            let apart = LINE * (many + next_many) as f64 / 2.0;
            if next_middle - middle >= apart {
                break;
            }
            let (many, next_many) = (*many as f64, *next_many as f64);
            let joined = (middle * many + next_middle * next_many) / (many + next_many);
            let Some((_, more, _)) = blocks.pop() else { break };
            if let Some((_, count, middle)) = blocks.last_mut() {
                *count += more;
                *middle = joined;
            }
        }
    }
    for (first, many, middle) in blocks {
        let half = LINE * (many - 1) as f64 / 2.0;
        let middle = middle.clamp(TOP + half, (BOTTOM - half).max(TOP + half));
        for (place, label) in labels[first..first + many].iter_mut().enumerate() {
            label.y = middle - half + LINE * place as f64;
        }
    }
    // Blocks that the edges pushed back may touch others.
    let mut below = BOTTOM;
    for label in labels.iter_mut().rev() {
        label.y = label.y.min(below);
        below = label.y - LINE;
    }
}
