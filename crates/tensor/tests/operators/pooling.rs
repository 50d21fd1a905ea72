use tensor::ops::pooling::{self, Windows};

use crate::support::{devices, read, wide};
use crate::trial::Trial;

const INPUTS: [[usize; 4]; 3] = [[2, 7, 9, 3], [1, 8, 8, 16], [3, 5, 6, 520]];

fn windows() -> Vec<Windows> {
    let window = |size, stride, padding, counts_padding| Windows { size, stride, padding, counts_padding };
    vec![
        window([3, 3], [2, 2], [1, 1], true),
        window([3, 3], [2, 2], [1, 1], false),
        window([2, 3], [2, 1], [0, 1], false),
        window([1, 2], [3, 2], [0, 0], true),
        window([5, 5], [5, 5], [0, 0], true),
    ]
}

/// Returns the shape of the results.
fn output_shape([images, height, width, channels]: [usize; 4], windows: &Windows) -> [usize; 4] {
    let outputs = |axis: usize, length: usize| {
        (length + 2 * windows.padding[axis] - windows.size[axis]) / windows.stride[axis] + 1
    };
    [images, outputs(0, height), outputs(1, width), channels]
}

/// Calls `visit(output, elements)` for each output with the indices of its window's elements, without
/// channels.
fn each_window(input: [usize; 4], windows: &Windows, mut visit: impl FnMut(usize, &[usize])) {
    let ([_, height, width, _], [images, rows, columns, _]) = (input, output_shape(input, windows));
    for window in 0..images * rows * columns {
        let image = window / (rows * columns);
        let row = window / columns % rows;
        let column = window % columns;
        let mut elements = Vec::new();
        for element in 0..windows.size[0] * windows.size[1] {
            let y = (row * windows.stride[0] + element / windows.size[1]).checked_sub(windows.padding[0]);
            let x = (column * windows.stride[1] + element % windows.size[1]).checked_sub(windows.padding[1]);
            if let (Some(y), Some(x)) = (y.filter(|y| *y < height), x.filter(|x| *x < width)) {
                elements.push((image * height + y) * width + x);
            }
        }
        visit(window, &elements);
    }
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for input in INPUTS {
        for windows in windows() {
            trial.label(format!("{windows:?} of {input:?}"));
            maxima(trial, input, &windows);
        }
        for windows in windows().into_iter().chain([Windows::whole([input[1], input[2]])]) {
            trial.label(format!("{windows:?} of {input:?}"));
            means(trial, input, &windows);
        }
    }
}

fn maxima(trial: &mut Trial<'_>, input: [usize; 4], windows: &Windows) {
    // Few values, so that windows have several largest elements.
    let values: Vec<f32> =
        trial.normal("x", input.iter().product()).iter().map(|v| v.round().max(0.0)).collect();
    let x = trial.tensor(&values, input);
    let channels = input[3];
    // The element that each maximum is.
    let mut chosen = Vec::new();
    if trial.compares() {
        each_window(input, windows, |_, elements| {
            for channel in 0..channels {
                let mut best = elements[0] * channels + channel;
                for element in elements {
                    let at = element * channels + channel;
                    best = if values[at] > values[best] { at } else { best };
                }
                chosen.push(best);
            }
        });
    }
    let output = pooling::maximum(&x, windows).unwrap();
    let shape = output_shape(input, windows);
    assert_eq!(output.shape(), shape.into());
    trial.rounded_output("maxima", &output, || chosen.iter().map(|at| f64::from(values[*at])).collect());
    let (dy, dy_wide) = trial.operand("dy", shape);
    let dx = pooling::maximum_backward(&dy, &x, &output, windows).unwrap();
    trial.output("gradient of maxima", &dx, || {
        let mut gradient = vec![0.0; values.len()];
        chosen.iter().zip(&dy_wide).for_each(|(at, dy)| gradient[*at] += dy);
        gradient
    });
}

fn means(trial: &mut Trial<'_>, input: [usize; 4], windows: &Windows) {
    let (x, x_wide) = trial.operand("x", input);
    let shape = output_shape(input, windows);
    let (dy, dy_wide) = trial.operand("dy", shape);
    let mut expected = [&dy_wide, &x_wide].map(|like| vec![0.0; like.len()]);
    let [means, gradient] = &mut expected;
    if trial.compares() {
        each_window(input, windows, |window, elements| {
            let divisor =
                if windows.counts_padding { windows.size[0] * windows.size[1] } else { elements.len() }
                    as f64;
            for (element, channel) in elements.iter().flat_map(|at| (0..input[3]).map(move |c| (at, c))) {
                let at = element * input[3] + channel;
                let output = window * input[3] + channel;
                means[output] += x_wide[at] / divisor;
                gradient[at] += dy_wide[output] / divisor;
            }
        });
    }
    let [means, gradient] = expected;
    let output = pooling::average(&x, windows).unwrap();
    assert_eq!(output.shape(), shape.into());
    trial.output("means", &output, || means);
    let dx = pooling::average_backward(&dy, [input[1], input[2]], windows).unwrap();
    assert_eq!(dx.shape(), input.into());
    trial.output("gradient of means", &dx, || gradient);
}

#[test]
fn a_maximum_is_nan_if_an_element_is() {
    for case in devices() {
        let values = [1.0, f32::NAN, 5.0, 7.0];
        let x = case.tensor(&values, [1, 1, 4, 1]);
        let windows = Windows { size: [1, 2], stride: [1, 2], padding: [0, 0], counts_padding: true };
        let output = read(&pooling::maximum(&x, &windows).unwrap());
        assert!(output[0].is_nan() && output[1] == 7.0, "{output:?}, {}", case.name());
        let dy = case.tensor(&[2.0, 3.0], [1, 1, 2, 1]);
        let y = pooling::maximum(&x, &windows).unwrap();
        let dx = pooling::maximum_backward(&dy, &x, &y, &windows).unwrap();
        assert_eq!(read(&dx), wide(&[0.0, 2.0, 0.0, 3.0]));
    }
}

#[test]
fn windows_that_do_not_fit_are_refused() {
    let case = &devices()[0];
    let (x, _) = case.operand("x", [1, 4, 4, 2]);
    let table = [
        Windows { size: [5, 1], stride: [1, 1], padding: [0, 0], counts_padding: true },
        Windows { size: [2, 2], stride: [0, 1], padding: [0, 0], counts_padding: true },
        Windows { size: [2, 2], stride: [1, 1], padding: [2, 0], counts_padding: true },
        Windows { size: [0, 2], stride: [1, 1], padding: [0, 0], counts_padding: true },
    ];
    for windows in table {
        let error = pooling::maximum(&x, &windows).unwrap_err().to_string();
        assert!(error.starts_with("pooling.maximum: x has shape [1, 4, 4, 2]"), "{error}");
    }
}
