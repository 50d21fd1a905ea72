//! The squarified treemap of Bruls, Huizing and van Wijk (2000): proportional areas that are nearly square.

/// A rectangle, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Divides `area` in proportion to `weights`, which must be in descending order. Returns an area for each
/// weight; empty if they sum to 0.
pub(super) fn squarify(weights: &[f64], area: Area) -> Vec<Area> {
    let total: f64 = weights.iter().sum();
    let mut areas = Vec::with_capacity(weights.len());
    if total <= 0.0 {
        return areas;
    }
    let scale = area.width * area.height / total;
    let mut rest = weights;
    let mut free = area;
    while !rest.is_empty() {
        let side = free.width.min(free.height);
        let count = row_length(rest, side, scale);
        let (row, others) = rest.split_at(count);
        free = index(row, scale, free, &mut areas);
        rest = others;
    }
    areas
}

/// Returns the number of weights in the next row along `side`. One more would worsen the worst aspect ratio.
fn row_length(weights: &[f64], side: f64, scale: f64) -> usize {
    let mut sum = 0.0;
    let mut worst = f64::INFINITY;
    for (count, weight) in weights.iter().enumerate() {
        sum += weight * scale;
        let depth = sum / side;
        let ratio = |part: f64| {
            let length = part * scale / depth;
            (length / depth).max(depth / length)
        };
        let shape = ratio(weights[0]).max(ratio(*weight));
        if shape > worst || shape.is_nan() {
            return count.max(1);
        }
        worst = shape;
    }
    weights.len()
}

/// Lays out a row along the shorter side of `free`. Returns the remaining area.
fn index(row: &[f64], scale: f64, free: Area, areas: &mut Vec<Area>) -> Area {
    let sum: f64 = row.iter().sum::<f64>() * scale;
    let Area { x, y, width, height } = free;
    let mut at = 0.0;
    if width >= height {
        let depth = sum / height;
        for weight in row {
            let length = weight * scale / depth;
            areas.push(Area { x, y: y + at, width: depth, height: length });
            at += length;
        }
        Area { x: x + depth, width: (width - depth).max(0.0), ..free }
    } else {
        let depth = sum / width;
        for weight in row {
            let length = weight * scale / depth;
            areas.push(Area { x: x + at, y, width: length, height: depth });
            at += length;
        }
        Area { y: y + depth, height: (height - depth).max(0.0), ..free }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_in_proportion_and_do_not_overlap() {
        let area = Area { x: 10.0, y: 20.0, width: 600.0, height: 400.0 };
        // The example from the paper.
        let weights = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0];
        let areas = squarify(&weights, area);
        assert_eq!(areas.len(), weights.len());
        for (weight, part) in weights.iter().zip(&areas) {
            assert!((part.width * part.height - weight * 10_000.0).abs() < 1e-6, "{part:?}");
            assert!(part.x >= 10.0 - 1e-9 && part.x + part.width <= 610.0 + 1e-9, "{part:?}");
            assert!(part.y >= 20.0 - 1e-9 && part.y + part.height <= 420.0 + 1e-9, "{part:?}");
            assert!((part.width / part.height).max(part.height / part.width) < 3.0, "{part:?}");
        }
        for (index, a) in areas.iter().enumerate() {
            for b in &areas[index + 1..] {
                let apart = a.x + a.width <= b.x + 1e-9
                    || b.x + b.width <= a.x + 1e-9
                    || a.y + a.height <= b.y + 1e-9
                    || b.y + b.height <= a.y + 1e-9;
                assert!(apart, "{a:?} {b:?}");
            }
        }
        assert!(squarify(&[], area).is_empty() && squarify(&[0.0], area).is_empty());
    }
}
