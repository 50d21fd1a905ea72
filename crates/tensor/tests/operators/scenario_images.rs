//! One call of every operator on images.

use device::Device;
use tensor::ops::GradientTarget;
use tensor::ops::batch_norm::{self, Affine, Passes, Saved};
use tensor::ops::convolution::{self, ConvolutionOptions};
use tensor::ops::folded_convolution::{self, Ending, Norm};
use tensor::ops::pooling::{self, Windows};
use tensor::ops::running_average;
use tensor::{DType, Tensor};

use crate::scenario::{Sizes, make};
use crate::support::tensor;

/// Runs every operator on images once and calls `after(operator, results)` after each.
pub(crate) fn every_image_operator(
    device: &Device,
    sizes: &Sizes,
    after: &mut dyn FnMut(&'static str, &[&Tensor]),
) {
    // Whole vectors of channels, and single channels.
    for channels in [8 * sizes.heads, sizes.heads + 2] {
        let operand = |name: &str, shape: &[usize]| make(device, sizes.dtype, name, shape);
        let x = operand("images", &[sizes.batch, 13, 11, channels]);
        let strided = ConvolutionOptions { stride: [2, 2], padding: [1, 1], ..ConvolutionOptions::default() };
        for (kernel, options) in [(3, strided), (1, ConvolutionOptions::default())] {
            let weight = operand("kernel", &[channels, kernel, kernel, channels]);
            let y = convolution::forward(&x, &weight, &options).unwrap();
            after("convolution.forward", &[&y]);
            let dx = convolution::backward_input(&y, &weight, [13, 11], &options).unwrap();
            after("convolution.backward_input", &[&dx]);
            for accumulate in [false, true] {
                let shape = [channels, kernel, kernel, channels];
                let target =
                    GradientTarget { tensor: make(device, sizes.gradients, "dkernel", &shape), accumulate };
                convolution::backward_weight(&y, &x, &target, &options).unwrap();
                after("convolution.backward_weight", &[&target.tensor]);
            }
        }
        folded(device, sizes, &x, after);
        norms(device, sizes, &x, after);
        let windows = Windows { size: [3, 3], stride: [2, 2], padding: [1, 1], counts_padding: true };
        let y = pooling::maximum(&x, &windows).unwrap();
        after("pooling.maximum", &[&y]);
        after("pooling.maximum_backward", &[&pooling::maximum_backward(&y, &x, &y, &windows).unwrap()]);
        let y = pooling::average(&x, &windows).unwrap();
        after("pooling.average", &[&y]);
        after("pooling.average_backward", &[&pooling::average_backward(&y, [13, 11], &windows).unwrap()]);
    }
}

fn folded(device: &Device, sizes: &Sizes, x: &Tensor, after: &mut dyn FnMut(&'static str, &[&Tensor])) {
    let channels = x.shape().columns();
    let [weight, bias] = ["weight", "bias"].map(|name| make(device, sizes.dtype, name, &[channels]));
    let [mean, variance] = ["mean", "mean"].map(|name| make(device, DType::F32, name, &[channels]));
    let norm = Norm { weight: &weight, bias: &bias, mean: &mean, variance: &variance, epsilon: 100.0 };
    for kernel in [3, 1] {
        let kernels = make(device, sizes.dtype, "kernel", &[channels, kernel, kernel, channels]);
        let options = ConvolutionOptions { padding: [kernel / 2; 2], ..ConvolutionOptions::default() };
        for ending in [Ending::None, Ending::Relu, Ending::ResidualRelu(x)] {
            let y = folded_convolution::forward(x, &kernels, norm, ending, &options).unwrap();
            after("folded_convolution.forward", &[&y]);
        }
    }
}

fn norms(device: &Device, sizes: &Sizes, x: &Tensor, after: &mut dyn FnMut(&'static str, &[&Tensor])) {
    let (channels, dtype) = (x.shape().columns(), sizes.dtype);
    let [weight, bias] = ["weight", "bias"].map(|name| make(device, dtype, name, &[channels]));
    let record = make(device, DType::F32, "record", &[2, channels]);
    for (relu, residual) in [(true, Some(x)), (true, None), (false, None)] {
        let affine = Affine { weight: &weight, bias: &bias, epsilon: 1e-5, relu };
        let result = batch_norm::forward(x, residual, affine, Some(&record)).unwrap();
        after("batch_norm.forward", &[&result.output, &result.mean, &result.rstd, &record]);
        let variance = record.view(channels, [channels]).unwrap();
        let output = batch_norm::evaluate(x, residual, affine, [&result.mean, &variance]).unwrap();
        after("batch_norm.evaluate", &[&output]);
        let passes = match (relu, residual) {
            (false, _) => Passes::Everywhere,
            (true, Some(_)) => Passes::ByOutput(&result.output),
            (true, None) => Passes::ByInput { bias: &bias },
        };
        let saved = Saved { x, passes, mean: &result.mean, rstd: &result.rstd };
        for dy in [output.clone(), make(device, dtype, "dy", x.shape().dims())] {
            let gradients = batch_norm::backward_input(dy, saved, &weight, residual.is_some()).unwrap();
            after("batch_norm.backward_input", &[&gradients.input, &gradients.sums]);
            for accumulate in [false, true] {
                let targets = ["dw", "db"].map(|name| GradientTarget {
                    tensor: make(device, sizes.gradients, name, &[channels]),
                    accumulate,
                });
                batch_norm::backward_weight(&gradients.sums, dtype, &targets[0], &targets[1]).unwrap();
                after("batch_norm.backward_weight", &[&targets[0].tensor, &targets[1].tensor]);
            }
        }
    }
    let averages = make(device, DType::F32, "averages", &[2 * channels]);
    let counters = tensor(device, &[0u32], [1]);
    running_average::fold(&averages, &counters, &record.reshape([1, 2 * channels]).unwrap(), 0.1).unwrap();
    after("running_average.fold", &[&averages]);
}
