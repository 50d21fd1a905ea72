//! CUDA graphs: calls on the compute stream, captured once and launched together.
#![allow(unsafe_code)] // graphs and their nodes are driver handles

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};

use super::argument::Argument;
use super::availability::driver_version;
use super::error::{CudaError, Named, Result};
use crate::kernels::NumberedWords;

/// The first driver version (CUDA 12.3) that returns the node of a captured call.
const FIRST_DRIVER: i32 = 12_030;

/// A captured launch whose arguments contain [`NumberedWords`].
#[derive(Debug)]
pub(crate) struct NumberedLaunch {
    pub(super) node: sys::CUgraphNode,
    pub(super) function: sys::CUfunction,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
    pub(super) arguments: Vec<Argument>,
    /// Index of the first of the two numbered words among the arguments, and the words.
    pub(super) numbered: (usize, NumberedWords),
}

impl NumberedLaunch {
    /// Sets the words for the micro-batch number increased by `shift`. Returns whether they changed.
    fn set_number(&mut self, shift: u64) -> bool {
        let (index, words) = self.numbered;
        let mut changed = false;
        let words = words.compute(words.number.wrapping_add(shift));
        for (argument, word) in self.arguments.iter_mut().skip(index).zip(words) {
            if let Argument::Word(value) = argument {
                changed |= *value != word;
                *value = word;
            }
        }
        changed
    }
}

/// A captured graph, ready to launch.
#[derive(Debug)]
pub(crate) struct CudaGraph {
    context: Arc<CudaContext>,
    graph: sys::CUgraph,
    /// The executable graph; null until it is instantiated.
    executable: sys::CUgraphExec,
    numbered: Vec<NumberedLaunch>,
    calls: usize,
}

/// Returns whether the driver can capture steps.
pub(crate) fn is_available() -> bool {
    driver_version() >= FIRST_DRIVER
}

/// Starts to capture `stream`, which must be alive: its calls are recorded and do not run.
pub(crate) fn begin(stream: sys::CUstream) -> Result<()> {
    // Libraries may load a kernel at its first call, which the other modes refuse during a capture.
    let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: callers pass a stream of a device that is alive.
    unsafe { result::stream::begin_capture(stream, mode) }.named("cuStreamBeginCapture")
}

/// Returns the graph node of the last call captured on `stream`. The next call will depend on it.
pub(super) fn last_node(stream: sys::CUstream) -> Result<sys::CUgraphNode> {
    const CALL: &str = "cuStreamGetCaptureInfo";
    let mut status = sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut id = 0;
    let mut graph = std::ptr::null_mut();
    let mut nodes = std::ptr::null();
    let mut edges = std::ptr::null();
    let mut count = 0;
    // SAFETY: all pointers refer to live values, and callers pass a stream that is alive.
    unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            stream,
            &raw mut status,
            &raw mut id,
            &raw mut graph,
            &raw mut nodes,
            &raw mut edges,
            &raw mut count,
        )
    }
    .result()
    .named(CALL)?;
    if count != 1 || nodes.is_null() {
        let text = format!("a captured launch is {count} nodes");
        return Err(CudaError { call: CALL, code: 0, text });
    }
    // SAFETY: the driver returned an array of one node, valid until the next call on the stream.
    Ok(unsafe { *nodes })
}

/// Ends the capture of `stream`. `numbered` are its launches with numbered words. Returns `None` if no call
/// was captured.
///
/// # Errors
/// The driver's, also if a call could not be captured.
pub(crate) fn end(
    context: &Arc<CudaContext>,
    stream: sys::CUstream,
    numbered: Vec<NumberedLaunch>,
) -> Result<Option<CudaGraph>> {
    // SAFETY: callers pass a stream that is alive.
    let graph = unsafe { result::stream::end_capture(stream) }.named("cuStreamEndCapture")?;
    let context = Arc::clone(context);
    let executable = std::ptr::null_mut();
    let mut captured = CudaGraph { context, graph, executable, numbered, calls: 0 };
    // SAFETY: the graph is alive, and without an array the driver only counts.
    unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut captured.calls) }
        .result()
        .named("cuGraphGetNodes")?;
    if captured.calls == 0 {
        return Ok(None);
    }
    let flags = sys::CUgraphInstantiate_flags(0);
    // SAFETY: the graph is alive.
    let executable = unsafe { result::graph::instantiate(graph, flags) };
    captured.executable = executable.named("cuGraphInstantiate")?;
    Ok(Some(captured))
}

/// Ends a capture of `stream` and drops its calls.
pub(crate) fn abandon(stream: sys::CUstream) {
    // SAFETY: callers pass a stream that is alive.
    if let Ok(graph) = unsafe { result::stream::end_capture(stream) }
        && !graph.is_null()
    {
        // SAFETY: nobody else has the graph.
        let _ = unsafe { result::graph::destroy(graph) };
    }
}

fn set_arguments(executable: sys::CUgraphExec, launch: &mut NumberedLaunch) -> Result<()> {
    let mut pointers: Vec<*mut c_void> = launch.arguments.iter_mut().map(Argument::pointer).collect();
    let [x, y, z] = launch.grid;
    let parameters = sys::CUDA_KERNEL_NODE_PARAMS {
        func: launch.function,
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: launch.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: launch.shared_bytes,
        kernelParams: pointers.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    };
    // SAFETY: the node is of the graph from which the executable was made; number and sizes of the arguments
    // were checked at the launch, and the driver copies them.
    unsafe { sys::cuGraphExecKernelNodeSetParams_v2(executable, launch.node, &raw const parameters) }
        .result()
        .named("cuGraphExecKernelNodeSetParams")
}

impl CudaGraph {
    /// Launches the graph on `stream`, with words for micro-batch numbers increased by `shift` since the
    /// capture.
    pub(crate) fn launch(&mut self, stream: sys::CUstream, shift: u64) -> Result<()> {
        for launch in &mut self.numbered {
            if launch.set_number(shift) {
                set_arguments(self.executable, launch)?;
            }
        }
        // SAFETY: graph and stream are alive; the graph's addresses are those that its work had when it was
        // captured, which the caller has checked to be unused by others.
        unsafe { result::graph::launch(self.executable, stream) }.named("cuGraphLaunch")
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        if !self.executable.is_null() {
            // SAFETY: made once, destroyed once; the driver keeps it until a launch under way has ended.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
        if !self.graph.is_null() {
            // SAFETY: as above.
            let _ = unsafe { result::graph::destroy(self.graph) };
        }
    }
}
