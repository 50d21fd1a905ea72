//! Matmuls of a device: checks operands, times the call and passes it to cuBLASLt.

use super::blas::multiply;
use crate::call_log::LoggedCall;
use crate::device::{Device, OnDevice};
use crate::matmul::{Epilogue, Matmul, Operand, Scales};
use crate::matmul_table::MatmulKey;
use crate::stream::StreamKind;

impl Device {
    /// Enqueues a matmul on the compute stream.
    ///
    /// # Errors
    /// A device that is not a GPU, operands that do not fit their regions, a combination that cuBLASLt does
    /// not support.
    pub fn matmul(&self, call: &Matmul<'_>) -> crate::Result<()> {
        let logged = || LoggedCall::Matmul { key: MatmulKey::from_call(call), work: call.work() };
        if self.logged_call(|| check(call), logged)? {
            return Ok(());
        }
        let cuda = self.gpu_or_refuse("matmul")?;
        check(call)?;
        let stream = cuda.streams.handle(StreamKind::Compute);
        let timed = cuda.timed(stream, "matmul", || name(call).to_owned(), call.work());
        let multiplied = self.with_blas_workspace(|address| multiply(&cuda.blas, call, address, stream));
        multiplied.on(self)?;
        timed.finish().on(self)
    }
}

fn name(call: &Matmul<'_>) -> &'static str {
    match call.epilogue {
        Epilogue::None if call.a.dtype.is_fp8() => "matmul in FP8",
        Epilogue::Bias(_) if call.a.dtype.is_fp8() => "matmul+bias in FP8",
        Epilogue::None => "matmul",
        Epilogue::Bias(_) => "matmul+bias",
        Epilogue::BiasRelu(_) => "matmul+bias+relu",
        Epilogue::BiasResidualRelu { .. } => "matmul+bias+residual+relu",
        Epilogue::GeluBias { .. } => "matmul+bias+gelu",
        Epilogue::GeluGradient { .. } => "matmul·gelu'",
        Epilogue::BiasGradient(_) => "matmul, bias gradient",
        Epilogue::Combined { .. } => "matmul+matrix",
    }
}

fn check(call: &Matmul<'_>) -> crate::Result<()> {
    let unsupported = |operand: &&Operand<'_>| match operand.scales {
        None => !operand.dtype.is_float(),
        Some(_) => !operand.dtype.is_fp8(),
    };
    if let Some(Operand { dtype, .. }) = [&call.a, &call.b, &call.out].into_iter().find(unsupported) {
        return Err(crate::DeviceError::Unsupported { call: "matmul", dtype: *dtype });
    }
    let [m, n, k] = [call.m, call.n, call.k];
    let shapes = [(call.a, [m, k]), (call.b, [k, n]), (call.out, [m, n])];
    // A matrix that is added has the layout of the output.
    let added = call.out.stored([m, n]).iter().product();
    let more = match call.epilogue {
        Epilogue::None => vec![],
        Epilogue::Bias(bias) | Epilogue::BiasRelu(bias) => vec![(bias, n)],
        Epilogue::BiasResidualRelu { bias, residual } => vec![(bias, n), (residual, added)],
        Epilogue::GeluBias { bias, pre } => vec![(bias, n), (pre, m * n)],
        Epilogue::GeluGradient { pre } => vec![(pre, m * n)],
        Epilogue::Combined { added: matrix, .. } => vec![(matrix, added)],
        Epilogue::BiasGradient(bias) => vec![(bias, m)],
    };
    let scales =
        [(call.a, m), (call.b, n)].into_iter().filter_map(|(operand, outer)| match operand.scales? {
            Scales::Tensor(region) => Some((region, size_of::<f32>())),
            Scales::Outer(region) => Some((region, outer * size_of::<f32>())),
        });
    let vectors = more.into_iter().map(|(region, elements)| (region, elements * call.out.dtype.bytes()));
    for (region, bytes) in vectors.chain(scales) {
        region.checked_address()?;
        if region.bytes != bytes {
            return Err(crate::DeviceError::Length { operator: "matmul", left: region.bytes, right: bytes });
        }
    }
    for (operand, shape) in shapes {
        operand.region.checked_address()?;
        let [least, most] = operand.elements(shape).map(|elements| elements * operand.dtype.bytes());
        let left = operand.region.bytes;
        if !(least..=most).contains(&left) {
            return Err(crate::DeviceError::Length { operator: "matmul", left, right: most });
        }
    }
    Ok(())
}
