//! General operators, compared with plain f64 code and finite differences.

use tensor::Tensor;
use tensor::ops::matmul::{Factor, product};
use tensor::ops::pointwise::{self, Pair, Pointwise};
use tensor::ops::reduce::{self, Reduction};
use tensor::ops::{rearrange, softmax};

use crate::support::{Case, devices, dot, read};
use crate::trial::Trial;

/// A function, its f64 reference, and a shift of the operand into the range where the function is smooth.
type Function = (Pointwise, fn(f64) -> f64, f32);
const FUNCTIONS: [Function; 9] = [
    (Pointwise::Exp, f64::exp, 0.0),
    (Pointwise::Log, f64::ln, 6.0),
    (Pointwise::Sqrt, f64::sqrt, 6.0),
    (Pointwise::Reciprocal, |x| 1.0 / x, 6.0),
    (Pointwise::Square, |x| x * x, 0.0),
    (Pointwise::Tanh, f64::tanh, 0.0),
    (Pointwise::Scale(-1.5), |x| -1.5 * x, 0.0),
    (Pointwise::Shift(0.25), |x| x + 0.25, 0.0),
    (Pointwise::SoftCap(1.5), |x| 1.5 * (x / 1.5).tanh(), 0.5),
];

/// Returns an operand with mean `shift`.
fn shifted<const N: usize>(case: &Case, name: &str, shape: [usize; N], shift: f32) -> (Tensor, Vec<f64>) {
    let count = shape.iter().product();
    let values: Vec<f32> = case.normal(name, count).iter().map(|v| case.round(v + shift)).collect();
    (case.tensor(&values, shape), values.into_iter().map(f64::from).collect())
}

pub(crate) fn pointwise(trial: &mut Trial<'_>) {
    for ((function, plain, shift), length) in FUNCTIONS.iter().flat_map(|f| [1, 37, 5000].map(|n| (*f, n))) {
        trial.label(format!("{function:?} of {length}"));
        let (x, wide) = shifted(trial, "x", [length], shift);
        let (dy, weights) = trial.operand("dy", [length]);
        let y = pointwise::forward(&x, function).unwrap();
        trial.output("output", &y, || wide.iter().map(|x| plain(*x)).collect());
        let dx = pointwise::backward(&dy, &x, function).unwrap();
        trial.gradient("dx", &dx, (&wide, 0.0), |x| {
            dot(&weights, &x.iter().map(|x| plain(*x)).collect::<Vec<_>>())
        });
    }
}

/// Returns the indices of all elements of an array `[a, b, c]`.
fn each([a, b, c]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| [i, j, k])))
}

fn at(values: &[f64], [_, b, c]: [usize; 3], [i, j, k]: [usize; 3]) -> f64 {
    values[(i * b + j) * c + k]
}

/// Tests functions of two arrays that broadcast.
pub(crate) fn pairs(trial: &mut Trial<'_>) {
    let shapes = [
        ([3, 5, 7], [3, 5, 7]),
        ([3, 5, 7], [1, 1, 7]),
        ([3, 1, 7], [1, 5, 1]),
        ([1, 1, 1], [4, 33, 65]),
        ([2, 1, 3000], [2, 9, 1]),
    ];
    for (of_a, of_b) in shapes {
        let ((a, wide_a), (b, wide_b)) = (trial.operand("a", of_a), shifted(trial, "b", of_b, 6.0));
        let all = [0, 1, 2].map(|axis| of_a[axis].max(of_b[axis]));
        for (function, plain) in [
            (Pair::Add, (|a, b| a + b) as fn(f64, f64) -> f64),
            (Pair::Subtract, |a, b| a - b),
            (Pair::Multiply, |a, b| a * b),
            (Pair::Divide, |a, b| a / b),
        ] {
            trial.label(format!("{function:?} {of_a:?} {of_b:?}"));
            let own =
                |shape: [usize; 3], index: [usize; 3]| [0, 1, 2].map(|axis| index[axis].min(shape[axis] - 1));
            let value =
                |index| plain(at(&wide_a, of_a, own(of_a, index)), at(&wide_b, of_b, own(of_b, index)));
            let actual = pointwise::pair(&a, &b, function).unwrap();
            assert_eq!(actual.shape(), all.into());
            trial.output("output", &actual, || each(all).map(value).collect());
        }
    }
}

/// Tests sums and maxima along every dimension.
pub(crate) fn reduce(trial: &mut Trial<'_>) {
    for (shape, axis) in [[1, 1, 1], [3, 5, 7], [2, 300, 3], [40, 2, 700]]
        .into_iter()
        .flat_map(|s| [0, 1, 2].map(|axis| (s, axis)))
    {
        trial.label(format!("{shape:?} along {axis}"));
        let (x, wide) = trial.operand("x", shape);
        let mut reduced = shape;
        reduced[axis] = 1;
        let terms = |index: [usize; 3]| {
            let wide = &wide;
            (0..shape[axis]).map(move |term| {
                let mut index = index;
                index[axis] = term;
                at(wide, shape, index)
            })
        };
        let sums = reduce::forward(&x, axis, Reduction::Sum).unwrap();
        assert_eq!(sums.shape(), reduced.into());
        trial.output("sums", &sums, || each(reduced).map(|index| terms(index).sum()).collect());
        let largest: Vec<f64> =
            each(reduced).map(|index| terms(index).fold(f64::NEG_INFINITY, f64::max)).collect();
        let maxima = reduce::forward(&x, axis, Reduction::Maximum).unwrap();
        trial.rounded_output("maxima", &maxima, || largest.clone());
        let (dy, values) = trial.operand("dy", reduced);
        let dx = reduce::backward_maximum(&dy, &x, &maxima, axis).unwrap();
        let number = |index: [usize; 3]| {
            let mut index = index;
            index[axis] = 0;
            (index[0] * reduced[1] + index[1]) * reduced[2] + index[2]
        };
        trial.rounded_output("gradient of maxima", &dx, || {
            let mut left: Vec<Option<f64>> = values.into_iter().map(Some).collect();
            let first = |index| {
                let result = number(index);
                let own = at(&wide, shape, index) == largest[result];
                if own { left[result].take().unwrap_or(0.0) } else { 0.0 }
            };
            each(shape).map(first).collect()
        });
    }
}

pub(crate) fn softmax(trial: &mut Trial<'_>) {
    for (rows, columns) in [(1, 1), (3, 33), (5, 1000), (130, 7)] {
        trial.label(format!("[{rows}, {columns}]"));
        let (x, wide) = trial.operand("x", [rows, columns]);
        let plain = |x: &[f64]| -> Vec<f64> {
            x.chunks(columns)
                .flat_map(|row| {
                    let all: f64 = row.iter().map(|x| x.exp()).sum();
                    row.iter().map(move |x| x.exp() / all)
                })
                .collect()
        };
        let y = softmax::forward(&x).unwrap();
        trial.output("output", &y, || plain(&wide));
        let (dy, weights) = trial.operand("dy", [rows, columns]);
        let dx = softmax::backward(&dy, &y).unwrap();
        let terms = weights.iter().map(|w| (w / columns as f64).powi(2)).sum::<f64>().sqrt();
        trial.gradient("dx", &dx, (&wide, terms), |x| dot(&weights, &plain(x)));
    }
}

/// Tests products of plain and transposed matrices.
pub(crate) fn matmul(trial: &mut Trial<'_>) {
    for (count, m, k, n) in [(1, 1, 1, 1), (3, 5, 7, 4), (2, 64, 48, 80), (4, 16, 33, 8), (6, 9, 16, 9)] {
        for (of_a, of_b) in [(false, false), (true, false), (false, true), (true, true)] {
            trial.label(format!("{count} of [{m}, {k}] · [{k}, {n}]"));
            let shape = |swap: bool, rows, columns| {
                if swap { [count, columns, rows] } else { [count, rows, columns] }
            };
            let ((a, wide_a), (b, wide_b)) =
                (trial.operand("a", shape(of_a, m, k)), trial.operand("b", shape(of_b, k, n)));
            let value = |[index, row, column]: [usize; 3]| -> f64 {
                let left = |inner| if of_a { [index, inner, row] } else { [index, row, inner] };
                let right = |inner| if of_b { [index, column, inner] } else { [index, inner, column] };
                let sa = shape(of_a, m, k);
                let sb = shape(of_b, k, n);
                (0..k).map(|inner| at(&wide_a, sa, left(inner)) * at(&wide_b, sb, right(inner))).sum()
            };
            let a = Factor { tensor: &a, transposed: of_a };
            let b = Factor { tensor: &b, transposed: of_b };
            let actual = product(a, b, device::Category::Activation).unwrap();
            assert_eq!(actual.shape(), [count, m, n].into());
            trial.output("product", &actual, || each([count, m, n]).map(value).collect());
        }
    }
}

/// A product does not depend on the offset of its operands in their storages.
#[test]
fn factors_begin_at_any_element() {
    let sizes = [(5, 7, 4), (9, 9, 16), (64, 32, 48)];
    for (case, (m, k, n)) in devices().iter().flat_map(|case| sizes.map(|sizes| (case, sizes))) {
        for (of_a, of_b) in [(0, 1), (1, 0), (3, 2), (4, 4)] {
            let (a, wide_a) = case.operand("a", [of_a + m * k]);
            let (b, wide_b) = case.operand("b", [of_b + k * n]);
            let a = a.view(of_a, [m, k]).unwrap();
            let b = b.view(of_b, [k, n]).unwrap();
            let actual = product(Factor::plain(&a), Factor::plain(&b), device::Category::Activation).unwrap();
            let term =
                |row, column, inner| wide_a[of_a + row * k + inner] * wide_b[of_b + inner * n + column];
            let value = |[_, row, column]: [usize; 3]| (0..k).map(|inner| term(row, column, inner)).sum();
            let expected: Vec<f64> = each([1, m, n]).map(value).collect();
            case.close(&format!("[{m}, {k}] · [{k}, {n}] from {of_a} and {of_b}"), &read(&actual), &expected);
        }
    }
}

/// Tests that rearranged arrays have the elements of their definition.
pub(crate) fn rearrange(trial: &mut Trial<'_>) {
    for shape in [[3, 5, 7], [1, 2, 1], [40, 33, 65], [6, 9, 48]] {
        let (x, wide) = trial.operand("x", shape);
        for (one, other) in [(0, 1), (1, 2), (0, 2), (1, 1)] {
            trial.label(format!("{shape:?} by {one} and {other}"));
            let mut swapped = shape;
            swapped.swap(one, other);
            let value = |mut index: [usize; 3]| {
                index.swap(one, other);
                at(&wide, shape, index)
            };
            let actual = rearrange::transpose(&x, one, other).unwrap();
            trial.rounded_output("transpose", &actual, || each(swapped).map(value).collect());
        }
        (0..3).for_each(|axis| slices(trial, (&x, &wide), shape, axis));
        // A slice of the outermost dimension and a reshape allocate no memory.
        assert!(rearrange::slice(&x, 0, 0, 1).unwrap().shares_storage(&x));
    }
}

fn slices(trial: &mut Trial<'_>, (x, wide): (&Tensor, &[f64]), shape: [usize; 3], axis: usize) {
    trial.label(format!("{shape:?} along {axis}"));
    let start = shape[axis] / 3;
    let length = (shape[axis] / 2).max(1);
    let mut sliced = shape;
    sliced[axis] = length;
    let part = rearrange::slice(x, axis, start, length).unwrap();
    let value = |mut index: [usize; 3]| {
        index[axis] += start;
        at(wide, shape, index)
    };
    trial.rounded_output("slice", &part, || each(sliced).map(value).collect());
    let back = rearrange::slice_backward(&part, shape.into(), axis, start).unwrap();
    let gradient = |index: [usize; 3]| {
        let inside = (start..start + length).contains(&index[axis]);
        if inside { at(wide, shape, index) } else { 0.0 }
    };
    trial.rounded_output("gradient of a slice", &back, || each(shape).map(gradient).collect());
    let before = rearrange::slice(x, axis, 0, start).unwrap();
    let rest = shape[axis] - start - length;
    let after = rearrange::slice(x, axis, start + length, rest).unwrap();
    let joined = rearrange::concatenate(&[&before, &part, &after], axis).unwrap();
    trial.rounded_output("concatenation", &joined, || wide.to_vec());
    let one = rearrange::slice(x, axis, 0, 1).unwrap();
    let value = |mut index: [usize; 3]| {
        index[axis] = 0;
        at(wide, shape, index)
    };
    let repeated = rearrange::repeat(&one, shape.into()).unwrap();
    trial.rounded_output("repetition", &repeated, || each(shape).map(value).collect());
}

#[test]
fn operands_that_do_not_agree_are_refused() {
    for case in devices() {
        let (x, _) = case.operand("x", [2, 3]);
        let (y, _) = case.operand("y", [3, 2]);
        let refused = [
            pointwise::pair(&x, &y, Pair::Add).unwrap_err(),
            pointwise::pair(&x, &y.reshape([1, 1, 6]).unwrap(), Pair::Add).unwrap_err(),
            reduce::forward(&x, 2, Reduction::Sum).unwrap_err(),
            rearrange::transpose(&x, 0, 2).unwrap_err(),
            rearrange::slice(&x, 1, 2, 2).unwrap_err(),
            rearrange::slice(&x, 3, 0, 1).unwrap_err(),
            rearrange::concatenate(&[], 0).unwrap_err(),
            rearrange::concatenate(&[&x, &y], 0).unwrap_err(),
            rearrange::repeat(&x, [4, 3].into()).unwrap_err(),
            product(Factor::plain(&x), Factor::plain(&x), device::Category::Activation).unwrap_err(),
        ];
        assert!(refused.iter().all(|error| error.to_string().contains("expected")), "{refused:?}");
    }
}
