//! Labels beside the ends of lines, moved apart to avoid overlaps.

/// Pixels between the baselines of two labels.
const LINE: f64 = 17.0;

/// The name and last value of a line, drawn to the right of its end.
pub(super) struct Label {
    /// End point of the line, if the label belongs to a line.
    pub(super) end: Option<(f64, f64)>,
    /// Vertical position: the desired one before [`spread`], the final one after it.
    pub(super) y: f64,
    pub(super) colour: &'static str,
    pub(super) name: String,
    pub(super) value: String,
}

/// Moves labels apart between `top` and `bottom`, each as little as possible. Touching labels form a block
/// around the mean of their desired positions.
pub(super) fn spread(labels: &mut [Label], (top, bottom): (f64, f64)) {
    labels.sort_by(|a, b| a.y.total_cmp(&b.y));
    // Blocks of adjacent labels: index of the first label, their number, and the mean of their desired
    // positions.
    let mut blocks: Vec<(usize, usize, f64)> = Vec::new();
    for (index, label) in labels.iter().enumerate() {
        blocks.push((index, 1, label.y));
        while let [.., (_, many, middle), (_, next_many, next_middle)] = blocks.as_slice() {
            let apart = LINE * (many + next_many) as f64 / 2.0;
            if next_middle - middle >= apart {
                break;
            }
            let many = *many as f64;
            let next_many = *next_many as f64;
            let mean = (middle * many + next_middle * next_many) / (many + next_many);
            let Some((_, more, _)) = blocks.pop() else { break };
            if let Some((_, count, middle)) = blocks.last_mut() {
                *count += more;
                *middle = mean;
            }
        }
    }
    for (first, many, middle) in blocks {
        let half = LINE * (many - 1) as f64 / 2.0;
        let middle = middle.clamp(top + half, (bottom - half).max(top + half));
        for (index, label) in labels[first..first + many].iter_mut().enumerate() {
            label.y = middle - half + LINE * index as f64;
        }
    }
    // Blocks that were pushed back from the edges may touch others.
    let mut below = bottom;
    for label in labels.iter_mut().rev() {
        label.y = label.y.min(below);
        below = label.y - LINE;
    }
}
