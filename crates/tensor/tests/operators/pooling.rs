use tensor::ops::pooling::{self, Windows};

use crate::support::{devices, read, wide};

const INPUTS: [[usize; 4]; 3] = [[2, 7, 9, 3], [1, 8, 8, 16], [3, 5, 6, 520]];

fn windows() -> Vec<Windows> {
    let of = |size, stride, padding, counts_padding| Windows { size, stride, padding, counts_padding };
    vec![
        of([3, 3], [2, 2], [1, 1], true),
        of([3, 3], [2, 2], [1, 1], false),
        of([2, 3], [2, 1], [0, 1], false),
        of([1, 2], [3, 2], [0, 0], true),
        of([5, 5], [5, 5], [0, 0], true),
    ]
}

/// Calls `visit(output, elements of its window)` with indices without channels.
fn each_window(input: [usize; 4], of: &Windows, mut visit: impl FnMut(usize, &[usize])) -> [usize; 4] {
    let [images, height, width, channels] = input;
    let outputs =
        |axis: usize| (input[1 + axis] + 2 * of.padding[axis] - of.size[axis]) / of.stride[axis] + 1;
    let [rows, columns] = [outputs(0), outputs(1)];
    for window in 0..images * rows * columns {
        let (image, row, column) = (window / (rows * columns), window / columns % rows, window % columns);
        let mut elements = Vec::new();
        for element in 0..of.size[0] * of.size[1] {
            let y = (row * of.stride[0] + element / of.size[1]).checked_sub(of.padding[0]);
            let x = (column * of.stride[1] + element % of.size[1]).checked_sub(of.padding[1]);
            if let (Some(y), Some(x)) = (y.filter(|y| *y < height), x.filter(|x| *x < width)) {
                elements.push((image * height + y) * width + x);
            }
        }
        visit(window, &elements);
    }
    [images, rows, columns, channels]
}

#[test]
fn maxima_and_their_gradients_are_those_of_plain_code() {
    for case in devices() {
        for input in INPUTS {
            for of in windows() {
                // Few values, so that windows have several largest elements.
                let values: Vec<f32> =
                    case.normal("x", input.iter().product()).iter().map(|v| v.round().max(0.0)).collect();
                let (x, channels) = (case.tensor(&values, input), input[3]);
                let (mut expected, mut chosen) = (Vec::new(), Vec::new());
                let shape = each_window(input, &of, |_, elements| {
                    for channel in 0..channels {
                        let mut best = elements[0] * channels + channel;
                        for element in elements {
                            let at = element * channels + channel;
                            best = if values[at] > values[best] { at } else { best };
                        }
                        expected.push(f64::from(values[best]));
                        chosen.push(best);
                    }
                });
                let output = pooling::maximum(&x, &of).unwrap();
                assert_eq!(output.shape(), shape.into());
                assert_eq!(read(&output), expected, "{of:?} of {input:?}, {}", case.name());
                let (dy, dy_wide) = case.operand("dy", shape);
                let mut gradient = vec![0.0; values.len()];
                chosen.iter().zip(&dy_wide).for_each(|(at, dy)| gradient[*at] += dy);
                let dx = pooling::maximum_backward(&dy, &x, &output, &of).unwrap();
                case.close(&format!("{of:?} of {input:?}"), &read(&dx), &gradient);
            }
        }
    }
}

#[test]
fn means_and_their_gradients_are_those_of_plain_code() {
    for case in devices() {
        for input in INPUTS {
            for of in windows().into_iter().chain([Windows::whole([input[1], input[2]])]) {
                let values = case.normal("x", input.iter().product());
                let (x, channels) = (case.tensor(&values, input), input[3]);
                let (mut expected, mut terms) = (Vec::new(), Vec::new());
                let shape =
                    each_window(input, &of, |window, elements| {
                        let divisor =
                            if of.counts_padding { of.size[0] * of.size[1] } else { elements.len() } as f64;
                        for channel in 0..channels {
                            let sum: f64 =
                                elements.iter().map(|at| f64::from(values[at * channels + channel])).sum();
                            expected.push(sum / divisor);
                            terms.extend(elements.iter().map(|at| {
                                (at * channels + channel, window * channels + channel, 1.0 / divisor)
                            }));
                        }
                    });
                let output = pooling::average(&x, &of).unwrap();
                assert_eq!(output.shape(), shape.into());
                case.close(&format!("{of:?} of {input:?}"), &read(&output), &expected);
                let (dy, dy_wide) = case.operand("dy", shape);
                let mut gradient = vec![0.0; values.len()];
                terms.iter().for_each(|(at, window, scale)| gradient[*at] += dy_wide[*window] * scale);
                let dx = pooling::average_backward(&dy, [input[1], input[2]], &of).unwrap();
                assert_eq!(dx.shape(), input.into());
                case.close(&format!("gradient, {of:?} of {input:?}"), &read(&dx), &gradient);
            }
        }
    }
}

#[test]
fn a_maximum_is_nan_if_an_element_is() {
    for case in devices() {
        let values = [1.0, f32::NAN, 5.0, 7.0];
        let x = case.tensor(&values, [1, 1, 4, 1]);
        let of = Windows { size: [1, 2], stride: [1, 2], padding: [0, 0], counts_padding: true };
        let output = read(&pooling::maximum(&x, &of).unwrap());
        assert!(output[0].is_nan() && output[1] == 7.0, "{output:?}, {}", case.name());
        let dy = case.tensor(&[2.0, 3.0], [1, 1, 2, 1]);
        let y = pooling::maximum(&x, &of).unwrap();
        let dx = pooling::maximum_backward(&dy, &x, &y, &of).unwrap();
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
