//! Convolutions by cuDNN. Descriptors and the algorithm of each shape, type and pass are created once and
//! cached.
//!
//! The algorithm is cuDNN's first deterministic one whose workspace fits. It is a function of shapes, types,
//! device and library version, never of a timing. f32 convolutions use TF32 only if the device's options
//! enable it.
#![allow(unsafe_code)] // cuDNN's handles and descriptors

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_void};

use cudarc::cudnn::{result, sys};
use cudarc::driver;

use super::availability::has_convolutions;
use super::error::{CudaError, Named, Result};
use crate::buffer::Region;
use crate::convolution::{Convolution, ConvolutionPass, ConvolutionShape};
use crate::dtype::DType;

/// Key of a cached plan. The bytes of the workspace limit the choice of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) shape: ConvolutionShape,
    pub(super) pass: ConvolutionPass,
    pub(super) dtype: DType,
    pub(super) workspace: usize,
}

/// cuDNN's handle, and the plans created so far.
pub(super) struct Dnn {
    pub(super) handle: sys::cudnnHandle_t,
    plans: RefCell<HashMap<Key, Plan>>,
    /// Whether f32 operands are rounded to TF32.
    pub(super) tf32: bool,
}

impl Dnn {
    /// Opens cuDNN on `stream`; `None` if it cannot be opened. With `tf32`, f32 convolutions use TF32.
    pub(super) fn open(stream: driver::sys::CUstream, tf32: bool) -> Result<Option<Self>> {
        if !has_convolutions() {
            return Ok(None);
        }
        let handle = result::create_handle().named("cudnnCreate")?;
        let dnn = Dnn { handle, plans: RefCell::default(), tf32 };
        // SAFETY: the handle was made above, and the stream lives as long as the device.
        unsafe { result::set_stream(handle, stream.cast()) }.named("cudnnSetStream")?;
        Ok(Some(dnn))
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        self.plans.get_mut().clear();
        // SAFETY: made in `open`, destroyed once, after its plans.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

pub(super) fn name(pass: ConvolutionPass) -> &'static str {
    match pass {
        ConvolutionPass::Forward => "convolution",
        ConvolutionPass::BackwardInput => "convolution, input gradient",
        ConvolutionPass::BackwardWeight => "convolution, weight gradient",
    }
}

/// Enqueues a pass whose operands have been checked.
pub(super) fn convolve(dnn: &Dnn, call: &Convolution<'_>) -> Result<()> {
    let Convolution { shape, pass, dtype, .. } = *call;
    let key = Key { shape, pass, dtype, workspace: call.workspace.bytes };
    let mut plans = dnn.plans.borrow_mut();
    let plan = match plans.entry(key) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(index) => {
            let mut plan = Plan::new(&key, dnn.tf32).map_err(|error| described(error, &key))?;
            plan.choose(dnn.handle, &key).map_err(|error| described(error, &key))?;
            index.insert(plan)
        }
    };
    plan.run(dnn.handle, call)
}

pub(super) fn described(error: CudaError, key: &Key) -> CudaError {
    let Key { shape, pass, dtype, .. } = key;
    let text = format!("{} for {} of {shape:?} in {dtype}", error.text, name(*pass));
    CudaError { text, ..error }
}

/// cuDNN's number of an algorithm, by pass.
#[derive(Clone, Copy)]
pub(super) enum Algorithm {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    Input(sys::cudnnConvolutionBwdDataAlgo_t),
    Weight(sys::cudnnConvolutionBwdFilterAlgo_t),
}

/// cuDNN's descriptors of a pass, and the chosen algorithm.
pub(super) struct Plan {
    pub(super) input: sys::cudnnTensorDescriptor_t,
    pub(super) output: sys::cudnnTensorDescriptor_t,
    pub(super) weight: sys::cudnnFilterDescriptor_t,
    pub(super) convolution: sys::cudnnConvolutionDescriptor_t,
    /// The algorithm and the bytes of its workspace; `None` before one is chosen.
    pub(super) algorithm: Option<(Algorithm, usize)>,
}

impl Drop for Plan {
    fn drop(&mut self) {
        for tensor in [self.input, self.output].into_iter().filter(|tensor| !tensor.is_null()) {
            // SAFETY: made once in `Plan::new`, destroyed once.
            let _ = unsafe { result::destroy_tensor_descriptor(tensor) };
        }
        if !self.weight.is_null() {
            // SAFETY: made once in `Plan::new`, destroyed once.
            let _ = unsafe { result::destroy_filter_descriptor(self.weight) };
        }
        if !self.convolution.is_null() {
            // SAFETY: made once in `Plan::new`, destroyed once.
            let _ = unsafe { result::destroy_convolution_descriptor(self.convolution) };
        }
    }
}

impl Plan {
    /// Creates the descriptors of a pass.
    pub(super) fn new(key: &Key, tf32: bool) -> Result<Self> {
        let shape = &key.shape;
        let null = std::ptr::null_mut();
        let mut plan = Plan {
            input: null,
            output: null.cast(),
            weight: null.cast(),
            convolution: null.cast(),
            algorithm: None,
        };
        plan.input = tensor(key.dtype, shape.batch, shape.input)?;
        plan.output = tensor(key.dtype, shape.batch, shape.output)?;
        plan.weight = result::create_filter_descriptor().named("cudnnCreateFilterDescriptor")?;
        let channels = shape.input[2] / shape.groups;
        let sizes = integers([shape.output[2], channels, shape.kernel[0], shape.kernel[1]])?;
        // SAFETY: the descriptor was made above.
        unsafe { result::set_filter4d_descriptor(plan.weight, data_type(key.dtype)?, NHWC, sizes) }
            .named("cudnnSetFilter4dDescriptor")?;
        plan.convolution =
            result::create_convolution_descriptor().named("cudnnCreateConvolutionDescriptor")?;
        let [[pad_h, pad_w], [stride_h, stride_w], [dilation_h, dilation_w]] =
            [integers(shape.padding)?, integers(shape.stride)?, integers(shape.dilation)?];
        let math = match key.dtype {
            DType::F32 if tf32 => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
            DType::F32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
            _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
        };
        let [groups] = integers([shape.groups])?;
        // SAFETY: the descriptor was made above; all other arguments are numbers.
        unsafe {
            result::set_convolution2d_descriptor(
                plan.convolution,
                pad_h,
                pad_w,
                stride_h,
                stride_w,
                dilation_h,
                dilation_w,
                sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
                sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
            )
        }
        .named("cudnnSetConvolution2dDescriptor")?;
        // SAFETY: as above.
        unsafe { result::set_convolution_math_type(plan.convolution, math) }
            .named("cudnnSetConvolutionMathType")?;
        // SAFETY: as above.
        unsafe { result::set_convolution_group_count(plan.convolution, groups) }
            .named("cudnnSetConvolutionGroupCount")?;
        Ok(plan)
    }

    fn run(&self, handle: sys::cudnnHandle_t, call: &Convolution<'_>) -> Result<()> {
        let Some((algorithm, bytes)) = self.algorithm else { return Ok(()) };
        let address = |region: Region<'_>| (region.buffer.address() + region.offset as u64) as *mut c_void;
        let x = address(call.input);
        let w = address(call.weight);
        let y = address(call.output);
        let workspace = address(call.workspace);
        let alpha = 1.0_f32;
        let beta = if call.accumulate { 1.0_f32 } else { 0.0 };
        let alpha = (&raw const alpha).cast();
        let beta = (&raw const beta).cast();
        let input = self.input;
        let output = self.output;
        let weight = self.weight;
        let convolution = self.convolution;
        match algorithm {
            // SAFETY: `Convolution::check` checked every region against its buffer; the descriptors describe
            // them; the workspace has the algorithm's bytes; the handle's stream belongs to the device.
            Algorithm::Forward(algorithm) => unsafe {
                result::convolution_forward(
                    handle,
                    alpha,
                    input,
                    x,
                    weight,
                    w,
                    convolution,
                    algorithm,
                    workspace,
                    bytes,
                    beta,
                    output,
                    y,
                )
            }
            .named("cudnnConvolutionForward"),
            // SAFETY: as above.
            Algorithm::Input(algorithm) => unsafe {
                result::convolution_backward_data(
                    handle,
                    alpha,
                    weight,
                    w,
                    output,
                    y,
                    convolution,
                    algorithm,
                    workspace,
                    bytes,
                    beta,
                    input,
                    x,
                )
            }
            .named("cudnnConvolutionBackwardData"),
            // SAFETY: as above.
            Algorithm::Weight(algorithm) => unsafe {
                result::convolution_backward_filter(
                    handle,
                    alpha,
                    input,
                    x,
                    output,
                    y,
                    convolution,
                    algorithm,
                    workspace,
                    bytes,
                    beta,
                    weight,
                    w,
                )
            }
            .named("cudnnConvolutionBackwardFilter"),
        }
    }
}

/// Channels-last layout, for images and kernels.
const NHWC: sys::cudnnTensorFormat_t = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC;

/// Creates the descriptor of a dense array of images.
pub(super) fn tensor(
    dtype: DType,
    batch: usize,
    [height, width, channels]: [usize; 3],
) -> Result<sys::cudnnTensorDescriptor_t> {
    let sizes = integers([batch, channels, height, width])?;
    let descriptor = result::create_tensor_descriptor().named("cudnnCreateTensorDescriptor")?;
    // SAFETY: the descriptor was made above.
    let set = unsafe { result::set_tensor4d_descriptor(descriptor, NHWC, data_type(dtype)?, sizes) };
    set.named("cudnnSetTensor4dDescriptor")?;
    Ok(descriptor)
}

/// Converts sizes to cuDNN's integers.
///
/// # Errors
/// A size that does not fit 32 bits.
fn integers<const N: usize>(sizes: [usize; N]) -> Result<[c_int; N]> {
    let mut integers = [0; N];
    for (integer, size) in integers.iter_mut().zip(sizes) {
        *integer = c_int::try_from(size).map_err(|_| unsupported(format!("a size of {size}")))?;
    }
    Ok(integers)
}

fn data_type(dtype: DType) -> Result<sys::cudnnDataType_t> {
    match dtype {
        DType::Bf16 => Ok(sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16),
        DType::F16 => Ok(sys::cudnnDataType_t::CUDNN_DATA_HALF),
        DType::F32 => Ok(sys::cudnnDataType_t::CUDNN_DATA_FLOAT),
        _ => Err(unsupported(dtype.to_string())),
    }
}

fn unsupported(what: String) -> CudaError {
    let code = sys::cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED as i64;
    CudaError { call: "cuDNN", code, text: format!("{what} is not supported") }
}
