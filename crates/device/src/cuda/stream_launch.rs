//! Launches of loaded kernels, which a replayed step may repeat.
#![allow(unsafe_code)] // a launch passes addresses to code that Rust's compiler cannot check

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::Cuda;
use super::argument::Argument;
use super::error::{Named, Result};
use crate::kernels::Function;
use crate::stream::StreamKind;

/// A launch of a loaded kernel, whose arguments match its parameters.
pub(crate) struct StreamLaunch {
    pub(super) function: Function,
    pub(super) handle: sys::CUfunction,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
    pub(super) stream: StreamKind,
    pub(super) is_early: bool,
    pub(super) arguments: Vec<Argument>,
}

impl StreamLaunch {
    /// Enqueues the kernel on its stream, a stream of `cuda`.
    pub(crate) fn enqueue(&mut self, cuda: &Cuda) -> Result<()> {
        let stream = cuda.streams.handle(self.stream);
        let StreamLaunch { function, grid, threads, shared_bytes, .. } = *self;
        let mut pointers: Vec<*mut c_void> = self.arguments.iter_mut().map(Argument::pointer).collect();
        // SAFETY: function and stream are alive; number and sizes of the arguments match the kernel's
        // parameters; addresses come from regions inside live buffers, whose memory is reused in stream order
        // only: a kernel that begins early waits before it uses them. A launch that is made again has the
        // addresses of a replayed step, of whose memory nobody else has a part.
        let launched = unsafe {
            enqueue(self.handle, (grid, threads, shared_bytes), stream, self.is_early, &mut pointers)
        };
        launched.named("cuLaunchKernel").map_err(|mut error| {
            error.text = format!(
                "{function} ({} × {} × {} blocks of {threads} threads, {shared_bytes} bytes shared): {}",
                grid[0], grid[1], grid[2], error.text
            );
            error
        })
    }
}

/// Enqueues a kernel with `shared_bytes` for each of `grid` blocks of `threads` threads.
///
/// # Safety
/// Function and stream are alive, and the arguments match the function's parameters. Without `is_early` the
/// kernel begins when earlier kernels have ended; with it, the kernel waits for them itself.
unsafe fn enqueue(
    function: sys::CUfunction,
    (grid, threads, shared_bytes): ([u32; 3], u32, u32),
    stream: sys::CUstream,
    is_early: bool,
    arguments: &mut [*mut c_void],
) -> std::result::Result<(), result::DriverError> {
    let [x, y, z] = grid;
    if !is_early {
        // SAFETY: that of this function.
        return unsafe {
            result::launch_kernel(function, (x, y, z), (threads, 1, 1), shared_bytes, stream, arguments)
        };
    }
    let mut attribute = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let config = sys::CUlaunchConfig {
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared_bytes,
        hStream: stream,
        attrs: &raw mut attribute,
        numAttrs: 1,
    };
    let extra = std::ptr::null_mut();
    // SAFETY: as above; the driver copies configuration and arguments.
    unsafe { sys::cuLaunchKernelEx(&raw const config, function, arguments.as_mut_ptr(), extra) }.result()
}
