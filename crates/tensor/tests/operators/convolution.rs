use device::Backend;
use tensor::Tensor;
use tensor::ops::convolution::{self, ConvolutionOptions};

use crate::support::{Case, devices, dot, read};
use crate::trial::Trial;

/// Sizes of a case: images, height, width, channels, outputs and kernel, with the options.
pub(crate) struct Sizes {
    pub(crate) input: [usize; 4],
    pub(crate) outputs: usize,
    pub(crate) kernel: [usize; 2],
    pub(crate) options: ConvolutionOptions,
}

fn options(
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
) -> ConvolutionOptions {
    ConvolutionOptions { stride, padding, dilation, groups }
}

/// Returns cases with every option alone and all together, channels that are and are not whole vectors, and
/// several pieces.
pub(crate) fn table() -> Vec<Sizes> {
    let sizes = |input, outputs, kernel, options| Sizes { input, outputs, kernel, options };
    let plain = ConvolutionOptions::default();
    vec![
        sizes([2, 5, 6, 8], 16, [1, 1], plain),
        sizes([2, 5, 6, 8], 16, [1, 1], options([2, 2], [0, 0], [1, 1], 1)),
        sizes([2, 9, 7, 3], 8, [7, 7], options([2, 2], [3, 3], [1, 1], 1)),
        sizes([2, 6, 6, 16], 8, [3, 3], options([1, 1], [1, 1], [1, 1], 1)),
        sizes([3, 7, 5, 8], 8, [3, 3], options([2, 2], [1, 1], [1, 1], 1)),
        sizes([1, 9, 11, 8], 16, [3, 3], options([1, 1], [2, 2], [2, 2], 1)),
        sizes([2, 6, 6, 16], 32, [3, 3], options([1, 1], [1, 1], [1, 1], 2)),
        sizes([1, 8, 9, 16], 16, [2, 3], options([2, 1], [1, 0], [1, 2], 2)),
        sizes([1, 70, 80, 64], 64, [3, 3], options([1, 1], [1, 1], [1, 1], 1)),
    ]
}

impl Sizes {
    pub(crate) fn weight(&self) -> [usize; 4] {
        [self.outputs, self.kernel[0], self.kernel[1], self.input[3] / self.options.groups]
    }

    pub(crate) fn output(&self) -> [usize; 4] {
        let ConvolutionOptions { stride, padding, dilation, .. } = self.options;
        let size = |axis: usize| {
            let extent = dilation[axis] * (self.kernel[axis] - 1) + 1;
            (self.input[1 + axis] + 2 * padding[axis] - extent) / stride[axis] + 1
        };
        [self.input[0], size(0), size(1), self.outputs]
    }

    /// Calls `visit(output, input, weight)` with the indices of output, input and weight in each term.
    pub(crate) fn terms(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let ConvolutionOptions { stride, padding, dilation, groups } = self.options;
        let ([images, rows, columns, outputs], [_, height, width, channels]) = (self.output(), self.input);
        let own = channels / groups;
        let per_group = outputs / groups;
        let source = |axis: usize, at: usize, kernel: usize| {
            (at * stride[axis] + kernel * dilation[axis]).checked_sub(padding[axis])
        };
        for position in 0..images * rows * columns {
            let (image, row, column) =
                (position / (rows * columns), position / columns % rows, position % columns);
            for element in 0..self.kernel[0] * self.kernel[1] {
                let down = element / self.kernel[1];
                let right = element % self.kernel[1];
                let (Some(y), Some(x)) = (source(0, row, down), source(1, column, right)) else { continue };
                if y >= height || x >= width {
                    continue;
                }
                for output in 0..outputs {
                    for channel in 0..own {
                        let input = ((image * height + y) * width + x) * channels + output / per_group * own;
                        let weight = (output * self.kernel[0] * self.kernel[1] + element) * own;
                        visit(position * outputs + output, input + channel, weight + channel);
                    }
                }
            }
        }
    }
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for sizes in table() {
        trial.label(format!("{:?} {:?} {:?}", sizes.input, sizes.kernel, sizes.options));
        let (x, x_wide) = trial.operand("x", sizes.input);
        let (weight, weight_wide) = trial.operand("weight", sizes.weight());
        let (dy, dy_wide) = trial.operand("dy", sizes.output());
        let mut expected = [&dy_wide, &x_wide, &weight_wide].map(|like| vec![0.0; like.len()]);
        if trial.compares() {
            let [output, dx, dw] = &mut expected;
            sizes.terms(|o, i, w| {
                output[o] += x_wide[i] * weight_wide[w];
                dx[i] += dy_wide[o] * weight_wide[w];
                dw[w] += dy_wide[o] * x_wide[i];
            });
        }
        let [output, dx, dw] = expected;
        let actual = convolution::forward(&x, &weight, &sizes.options).unwrap();
        assert_eq!(actual.shape(), sizes.output().into());
        trial.output("output", &actual, || output);
        let size = [sizes.input[1], sizes.input[2]];
        let actual = convolution::backward_input(&dy, &weight, size, &sizes.options).unwrap();
        assert_eq!(actual.shape(), sizes.input.into());
        trial.output("dx", &actual, || dx);
        for accumulate in [false, true] {
            let target = trial.target("dw", sizes.weight(), accumulate);
            convolution::backward_weight(&dy, &x, &target, &sizes.options).unwrap();
            trial.weight_gradient_is("dw", &target, || dw.clone());
        }
    }
    half_gradients(trial, &table()[3]);
}

/// Tests that gradients of weights in the compute type are rounded f32 gradients.
fn half_gradients(trial: &mut Trial<'_>, sizes: &Sizes) {
    trial.label(format!("{:?} {:?} {:?}", sizes.input, sizes.kernel, sizes.options));
    let (x, _) = trial.operand("x", sizes.input);
    let (dy, _) = trial.operand("dy", sizes.output());
    let targets = [false, true].map(|accumulate| {
        let targets = trial.targets("dw", sizes.weight(), accumulate);
        for target in &targets {
            convolution::backward_weight(&dy, &x, target, &sizes.options).unwrap();
        }
        targets
    });
    let [overwritten, [single, own]] = &targets;
    trial.rounded("dw in the compute type", overwritten);
    trial.output("dw added in the compute type", &own.tensor, || read(&single.tensor));
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let case = &devices()[0];
    let operand = |case: &Case, shape: [usize; 4]| -> Tensor { case.operand("t", shape).0 };
    let x = operand(case, [1, 4, 4, 6]);
    let table = [
        ([8, 3, 3, 5], ConvolutionOptions::default(), "6 channels / 1 groups"),
        ([8, 3, 3, 3], options([1, 1], [0, 0], [1, 1], 3), "6 channels / 3 groups"),
        ([7, 3, 3, 3], options([1, 1], [0, 0], [1, 1], 2), "out a multiple of the groups"),
        ([8, 5, 3, 6], ConvolutionOptions::default(), "a kernel of at most 4"),
        ([8, 3, 3, 6], options([0, 1], [0, 0], [1, 1], 1), "groups"),
    ];
    for (weight, options, message) in table {
        let error = convolution::forward(&x, &operand(case, weight), &options).unwrap_err().to_string();
        assert!(error.starts_with("convolution.forward: weight has shape"), "{error}");
        assert!(error.contains(message), "{error}");
    }
    assert_eq!(case.device.backend(), Backend::Cpu);
}

/// The backward pass is linear in `dy` with the weights of the forward pass, so that ⟨dy, forward(x)⟩ =
/// ⟨backward(dy), x⟩.
#[test]
fn gradients_are_adjoint_to_the_output() {
    for case in devices().iter().map(Case::single) {
        let sizes = &table()[7];
        let (x, x_wide) = case.operand("x", sizes.input);
        let (weight, _) = case.operand("weight", sizes.weight());
        let (dy, dy_wide) = case.operand("dy", sizes.output());
        let output = read(&convolution::forward(&x, &weight, &sizes.options).unwrap());
        let size = [sizes.input[1], sizes.input[2]];
        let dx = read(&convolution::backward_input(&dy, &weight, size, &sizes.options).unwrap());
        let forward = dot(&output, &dy_wide);
        let backward = dot(&dx, &x_wide);
        assert!((forward - backward).abs() < 1e-4 * forward.abs().max(10.0), "{forward} {backward}");
    }
}
