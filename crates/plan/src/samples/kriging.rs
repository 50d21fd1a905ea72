//! Kriging: estimates a value at a point from noisy values at other points.

/// Standard deviation of values far apart, as logarithms of ratios of times.
const DEVIATION: f64 = 0.3;
/// Distance, in doublings of a size, at which the correlation of values is 1/e.
const LENGTH: f64 = 8.0;
/// Standard deviation of values at one point around their neighbours, since algorithms change with the size,
/// and of a single value there, since a call differs from step to step.
const ROUGHNESS: f64 = 0.072;
const NOISE: f64 = 0.036;

/// Returns the value at a point by ordinary kriging with an exponential covariance (Cressie, *Statistics for
/// Spatial Data*, 1993, section 3.2); `None` without samples. A sample is its squared distance to the point,
/// and its value; `squared(i, j)` is the squared distance of two samples. The constants were chosen for calls
/// of steps that the samples do not include.
pub(super) fn estimate(samples: &[(f64, f64)], squared: impl Fn(usize, usize) -> f64) -> Option<f64> {
    let covariance = |squared: f64| {
        let rough = if squared == 0.0 { ROUGHNESS.powi(2) } else { 0.0 };
        DEVIATION.powi(2) * (-squared.sqrt() / LENGTH).exp() + rough
    };
    let row = |row: usize| {
        let noise = |column| if column == row { NOISE.powi(2) } else { 0.0 };
        (0..=row).map(|column| covariance(squared(row, column)) + noise(column)).collect()
    };
    let factor = cholesky((0..samples.len()).map(row).collect());
    let ones = solve(&factor, vec![1.0; samples.len()]);
    let values = solve(&factor, samples.iter().map(|(_, value)| *value).collect());
    let to_point: Vec<f64> = samples.iter().map(|(squared, _)| covariance(*squared)).collect();
    let dot = |one: &[f64], other: &[f64]| one.iter().zip(other).map(|(one, other)| one * other).sum::<f64>();
    let mean = values.iter().sum::<f64>() / ones.iter().sum::<f64>();
    Some(mean + dot(&to_point, &values) - mean * dot(&to_point, &ones)).filter(|value| value.is_finite())
}

/// Returns the Cholesky factor of a positive definite matrix, both by the rows of their lower triangles.
fn cholesky(mut rows: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    for row in 0..rows.len() {
        for column in 0..=row {
            let products = (0..column).map(|index| rows[row][index] * rows[column][index]);
            let rest = rows[row][column] - products.sum::<f64>();
            rows[row][column] = if column == row { rest.sqrt() } else { rest / rows[column][column] };
        }
    }
    rows
}

/// Solves the equations whose matrix has the Cholesky factor `factor`.
fn solve(factor: &[Vec<f64>], mut right: Vec<f64>) -> Vec<f64> {
    let count = right.len();
    for row in 0..count {
        let known: f64 = (0..row).map(|column| factor[row][column] * right[column]).sum();
        right[row] = (right[row] - known) / factor[row][row];
    }
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|below| factor[below][row] * right[below]).sum();
        right[row] = (right[row] - known) / factor[row][row];
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the estimate at `point` from positions on a line and values.
    fn on_line(point: f64, samples: &[(f64, f64)]) -> Option<f64> {
        let squared = |one: f64, other: f64| (one - other).powi(2);
        let seen: Vec<_> = samples.iter().map(|(at, value)| (squared(*at, point), *value)).collect();
        estimate(&seen, |one, other| squared(samples[one].0, samples[other].0))
    }

    #[test]
    fn estimates_follow_samples_and_average_noise() {
        assert_eq!(on_line(1.0, &[]), None);
        let close = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 1e-9;
        assert!(close(on_line(5.0, &[(1.0, 0.7)]), 0.7));
        // Samples at one point are averaged.
        let pair = [(3.0, 0.1), (3.0, 0.3)];
        assert!(close(on_line(3.0, &pair), 0.2) && close(on_line(9.0, &pair), 0.2));
        // Between samples on a line, estimates are on the line.
        let line: Vec<_> = (0..21).map(|index| (f64::from(index), 0.05 * f64::from(index))).collect();
        assert!((on_line(10.5, &line).unwrap() - 0.525).abs() < 1e-3);
        // A value that is off counts mostly at its own point, since algorithms change with the size.
        let mut rough = line.clone();
        rough[10].1 += 0.2;
        let moved = |at: f64| on_line(at, &rough).unwrap() - 0.05 * at;
        let [here, beside] = [moved(10.0), moved(10.25)];
        assert!((0.1..0.2).contains(&here) && beside > 0.0 && beside < 0.75 * here, "{here} {beside}");
    }

    #[test]
    fn equations_are_solved() {
        let matrix = [[4.0, 2.0, 0.6], [2.0, 5.0, 1.0], [0.6, 1.0, 3.0]];
        let right = [1.0, -2.0, 0.5];
        let factor = cholesky((0..3).map(|row| matrix[row][..=row].to_vec()).collect());
        let solution = solve(&factor, right.to_vec());
        for (row, right) in matrix.iter().zip(right) {
            let product: f64 = row.iter().zip(&solution).map(|(one, other)| one * other).sum();
            assert!((product - right).abs() < 1e-12);
        }
    }
}
