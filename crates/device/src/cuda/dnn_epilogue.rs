//! Convolutions by cuDNN that add a bias and a residual and apply ReLU before the result is rounded.
#![allow(unsafe_code)] // cuDNN's descriptors and calls

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;

use cudarc::cudnn::{result, sys};

use super::dnn::{Algorithm, Dnn, Key, Plan, convolve, described, tensor};
use super::error::{Named, Result};
use crate::buffer::Region;
use crate::convolution::{Convolution, ConvolutionEpilogue, ConvolutionPass, ConvolutionShape};

/// Cached plans of forward passes with epilogues.
pub(super) type EpiloguePlans = RefCell<HashMap<EpilogueKey, EpiloguePlan>>;

/// Key of a cached plan of a forward pass with an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EpilogueKey {
    key: Key,
    residual: bool,
    relu: bool,
}

/// cuDNN's descriptors, and the algorithms that cuDNN has not refused yet.
pub(super) struct EpiloguePlan {
    plan: Plan,
    bias: sys::cudnnTensorDescriptor_t,
    activation: sys::cudnnActivationDescriptor_t,
    /// Algorithms whose workspaces fit, with the bytes of the workspaces. The first is called; it is removed
    /// if cuDNN refuses it with the epilogue.
    algorithms: VecDeque<(sys::cudnnConvolutionFwdAlgo_t, usize)>,
}

impl Drop for EpiloguePlan {
    fn drop(&mut self) {
        if !self.bias.is_null() {
            // SAFETY: made once in `EpiloguePlan::new`, destroyed once.
            let _ = unsafe { result::destroy_tensor_descriptor(self.bias) };
        }
        if !self.activation.is_null() {
            // SAFETY: likewise.
            let _ = unsafe { sys::cudnnDestroyActivationDescriptor(self.activation) };
        }
    }
}

/// Enqueues a forward pass whose operands have been checked. The epilogue is included if cuDNN has an
/// algorithm that applies it. Returns whether it was applied.
pub(super) fn convolve_then(
    dnn: &Dnn,
    plans: &EpiloguePlans,
    call: &Convolution<'_>,
    epilogue: &ConvolutionEpilogue<'_>,
) -> Result<bool> {
    let Convolution { shape, dtype, .. } = *call;
    let key = Key { shape, pass: ConvolutionPass::Forward, dtype, workspace: call.workspace.bytes };
    let key = EpilogueKey { key, residual: epilogue.residual.is_some(), relu: epilogue.relu };
    let mut plans = plans.borrow_mut();
    let plan = match plans.entry(key) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(index) => {
            index.insert(EpiloguePlan::new(dnn, &key).map_err(|error| described(error, &key.key))?)
        }
    };
    match plan.run(dnn.handle, call, epilogue)? {
        true => Ok(true),
        false => convolve(dnn, call).map(|()| false),
    }
}

impl EpiloguePlan {
    fn new(dnn: &Dnn, key: &EpilogueKey) -> Result<Self> {
        let bias = std::ptr::null_mut();
        let activation = std::ptr::null_mut();
        let plan = Plan::new(&key.key, dnn.tf32)?;
        let mut own = EpiloguePlan { plan, bias, activation, algorithms: VecDeque::new() };
        let ConvolutionShape { output, .. } = key.key.shape;
        own.bias = tensor(key.key.dtype, 1, [1, 1, output[2]])?;
        own.activation = result::create_activation_descriptor().named("cudnnCreateActivationDescriptor")?;
        let mode = match key.relu {
            true => sys::cudnnActivationMode_t::CUDNN_ACTIVATION_RELU,
            false => sys::cudnnActivationMode_t::CUDNN_ACTIVATION_IDENTITY,
        };
        let nan = sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN;
        // SAFETY: the descriptor was made above; all other arguments are numbers.
        unsafe { result::set_activation_descriptor(own.activation, mode, nan, 0.0) }
            .named("cudnnSetActivationDescriptor")?;
        for (algorithm, bytes) in own.plan.possible(dnn.handle, &key.key)? {
            if let Algorithm::Forward(algorithm) = algorithm {
                own.algorithms.push_back((algorithm, bytes));
            }
        }
        Ok(own)
    }

    /// Enqueues the pass. Returns false, with nothing enqueued, if cuDNN has no algorithm for it.
    fn run(
        &mut self,
        handle: sys::cudnnHandle_t,
        call: &Convolution<'_>,
        epilogue: &ConvolutionEpilogue<'_>,
    ) -> Result<bool> {
        while let Some((algorithm, bytes)) = self.algorithms.front().copied() {
            let ran = self.enqueue(handle, call, epilogue, (algorithm, bytes));
            match ran {
                Ok(()) => return Ok(true),
                Err(error) if is_refusal(error.0) => self.algorithms.pop_front(),
                Err(_) => return ran.named("cudnnConvolutionBiasActivationForward").map(|()| true),
            };
        }
        Ok(false)
    }

    fn enqueue(
        &self,
        handle: sys::cudnnHandle_t,
        call: &Convolution<'_>,
        epilogue: &ConvolutionEpilogue<'_>,
        (algorithm, bytes): (sys::cudnnConvolutionFwdAlgo_t, usize),
    ) -> std::result::Result<(), result::CudnnError> {
        let address = |region: Region<'_>| (region.buffer.address() + region.offset as u64) as *mut c_void;
        // Without a residual the library wants an array of the output's shape, and multiplies it by 0.
        let residual = address(epilogue.residual.unwrap_or(call.output));
        let one = 1.0_f32;
        let factor = if epilogue.residual.is_some() { 1.0_f32 } else { 0.0 };
        let Plan { input, output, weight, convolution, .. } = self.plan;
        // SAFETY: the caller checked every region against its buffer; the descriptors describe them; the
        // workspace has the algorithm's bytes; the handle's stream belongs to the device.
        unsafe {
            result::convolution_bias_activation_forward(
                handle,
                (&raw const one).cast(),
                input,
                address(call.input),
                weight,
                address(call.weight),
                convolution,
                algorithm,
                address(call.workspace),
                bytes,
                (&raw const factor).cast(),
                output,
                residual,
                self.bias,
                address(epilogue.bias),
                self.activation,
                output,
                address(call.output),
            )
        }
    }
}

/// Returns whether a status means that cuDNN cannot make a call. Statuses 2000 to 4999 report unsupported
/// parameters, combinations and kernels; others report errors of the device.
fn is_refusal(status: sys::cudnnStatus_t) -> bool {
    matches!(status as u32, 2000..5000)
}
