//! Kernel launches; the arguments are checked against the compiled kernel's parameters.
#![allow(unsafe_code)] // a launch passes addresses to code that Rust's compiler cannot check

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::argument::Argument;
use super::error::{CudaError, Named};
use super::graph::{NumberedLaunch, last_node};
use super::reach::PeerAddress;
use crate::buffer::Region;
use crate::call_log::{LoggedCall, LoggedKernel};
use crate::device::Device;
use crate::error::{DeviceError, Result};
use crate::kernels::{Function, NumberedWords};
use crate::stream::StreamKind;
use crate::work::Work;

/// Upper bound on the number of arguments of any kernel.
const MOST_ARGUMENTS: usize = 24;

/// A kernel and its arguments, in the order of its parameters. [`Launch::launch`] enqueues it.
#[derive(Debug)]
#[must_use = "a launch that is not launched does nothing"]
pub struct Launch<'a> {
    device: &'a Device,
    function: Function,
    arguments: Vec<Argument>,
    /// Index of the first of two numbered words, if there are any.
    numbered: Option<(usize, NumberedWords)>,
    outside: Option<DeviceError>,
    shared_bytes: u32,
    stream: StreamKind,
    /// Whether the kernel may begin before earlier ones have ended.
    is_early: bool,
    work: Work,
}

/// Compute capability from which on a kernel may begin before earlier ones have ended.
const EARLY_SINCE: (u32, u32) = (9, 0);

impl Device {
    /// Prepares a launch of `function`, on the compute stream unless [`Launch::on`] sets another.
    pub fn kernel(&self, function: Function) -> Launch<'_> {
        Launch {
            device: self,
            function,
            arguments: Vec::with_capacity(MOST_ARGUMENTS),
            numbered: None,
            outside: None,
            shared_bytes: 0,
            stream: StreamKind::Compute,
            is_early: false,
            work: Work::default(),
        }
    }
}

impl Launch<'_> {
    /// Adds an address to read from: a `const T *` parameter.
    pub fn read(self, region: Region<'_>) -> Self {
        self.region(region)
    }

    /// Adds an address to write to, or to read and write: a `T *` parameter.
    pub fn write(self, region: Region<'_>) -> Self {
        self.region(region)
    }

    fn region(mut self, region: Region<'_>) -> Self {
        match region.checked_address() {
            Ok(address) => self.arguments.push(Argument::Double(address)),
            Err(error) => self.outside = Some(error),
        }
        self
    }

    /// The device that launches.
    pub(super) fn device(&self) -> &Device {
        self.device
    }

    /// Adds a structure of 64-bit words, or keeps the error for the launch.
    pub(super) fn described<const N: usize>(mut self, words: Result<[u64; N]>) -> Self {
        match words {
            Ok(words) => self.arguments.push(Argument::Doubles(words.to_vec())),
            Err(error) => self.outside = Some(error),
        }
        self
    }

    /// Adds an address in another GPU's memory.
    pub fn peer(self, index: PeerAddress<'_>) -> Self {
        self.u64(index.address)
    }

    /// Joins the last `count` arguments, which are 64-bit ones, into a structure of `length` of them: these,
    /// then zeros or null pointers.
    pub fn structure(mut self, count: usize, length: usize) -> Self {
        let joined = self.arguments.split_off(self.arguments.len().saturating_sub(count));
        let value = |argument| match argument {
            Argument::Word(value) => vec![u64::from(value)],
            Argument::Double(value) => vec![value],
            Argument::Doubles(values) => values,
        };
        let mut values: Vec<u64> = joined.into_iter().flat_map(value).collect();
        values.resize(length, 0);
        self.arguments.push(Argument::Doubles(values));
        self
    }

    /// Adds a null pointer.
    pub fn null(self) -> Self {
        self.u64(0)
    }

    /// Adds a 32-bit integer.
    pub fn u32(mut self, value: u32) -> Self {
        self.arguments.push(Argument::Word(value));
        self
    }

    /// Adds two 32-bit integers that follow from a micro-batch's number. A kernel has at most two of them.
    pub fn numbered(mut self, words: NumberedWords) -> Self {
        self.numbered = Some((self.arguments.len(), words));
        let [first, second] = words.of(words.number);
        self.u32(first).u32(second)
    }

    /// Adds a 64-bit integer.
    pub fn u64(mut self, value: u64) -> Self {
        self.arguments.push(Argument::Double(value));
        self
    }

    /// Adds an f32.
    pub fn f32(self, value: f32) -> Self {
        self.u32(value.to_bits())
    }

    /// Adds an f64.
    pub fn f64(self, value: f64) -> Self {
        self.u64(value.to_bits())
    }

    /// Sets the dynamic shared memory of each block, in bytes.
    pub fn shared(self, bytes: u32) -> Self {
        Launch { shared_bytes: bytes, ..self }
    }

    /// Sets the stream.
    pub fn on(self, stream: StreamKind) -> Self {
        Launch { stream, ..self }
    }

    /// Lets the kernel begin while the one before it in the stream still runs, on GPUs that can (programmatic
    /// dependent launch): it calls `wait_for_earlier` of `kernels/early.cuh` before it reads results of
    /// earlier kernels, and before it writes.
    pub fn early(self) -> Self {
        Launch { is_early: true, ..self }
    }

    /// Sets the fewest bytes to move and FLOPs to do, with which the measured time is compared.
    pub fn cost(self, bytes: u64, flops: u64) -> Self {
        Launch { work: Work { bytes, flops }, ..self }
    }

    /// Enqueues the kernel: `grid` blocks of `threads` threads each. An empty grid does nothing.
    ///
    /// # Errors
    /// Arguments that do not match the kernel's parameters, a device that is not a GPU, the driver's.
    pub fn launch(mut self, grid: [u32; 3], threads: u32) -> Result<()> {
        if let Some(error) = self.outside.take() {
            return Err(error);
        }
        if grid.contains(&0) {
            return Ok(());
        }
        let (function, device) = (self.function, self.device);
        let Launch { shared_bytes, stream, work, .. } = self;
        let call = LoggedKernel { function, grid, threads, shared_bytes, stream, work };
        if device.log(|| LoggedCall::Kernel(call)) {
            return Ok(());
        }
        let cuda = device.gpu_or_refuse(function.family().name)?;
        device.interrupt_capture_on(stream, "a launch on another stream")?;
        let mut modules = cuda.modules.borrow_mut();
        let kernel = modules.kernel(function, self.shared_bytes).map_err(|e| device.cuda_error(e))?;
        let kernel = kernel.ok_or(DeviceError::MissingKernel { function })?;
        if kernel.parameters.iter().ne(self.arguments.iter().map(Argument::bytes).collect::<Vec<_>>().iter())
        {
            let sizes: Vec<_> = self.arguments.iter().map(Argument::bytes).collect();
            let text =
                format!("{function} has parameters of {:?} bytes and was given {sizes:?}", kernel.parameters);
            return Err(device.cuda_error(CudaError { call: "cuLaunchKernel", code: 0, text }));
        }
        let mut pointers: Vec<*mut c_void> = self.arguments.iter_mut().map(Argument::pointer).collect();
        let stream = cuda.streams.handle(self.stream);
        let timed = cuda.timed(stream, function.family().name, || function.symbol(), self.work);
        let is_early = self.is_early && device.description().compute_capability >= EARLY_SINCE;
        // SAFETY: function and stream are alive; number and sizes of the arguments match the kernel's
        // parameters; addresses come from regions inside live buffers, whose memory is reused in stream order
        // only: a kernel that begins early waits before it uses them.
        let launched = unsafe {
            enqueue(kernel.handle, (grid, threads, self.shared_bytes), stream, is_early, &mut pointers)
        };
        let launched = launched.named("cuLaunchKernel").map_err(|mut error| {
            error.text = format!(
                "{function} ({} × {} × {} blocks of {threads} threads, {} bytes shared): {}",
                grid[0], grid[1], grid[2], self.shared_bytes, error.text
            );
            device.cuda_error(error)
        });
        launched.and_then(|()| timed.finish().map_err(|e| device.cuda_error(e)))?;
        let handle = kernel.handle;
        self.note_numbered(handle, (grid, threads), stream).map_err(|e| device.cuda_error(e))
    }

    /// Notes a captured launch with numbered words.
    fn note_numbered(
        self,
        function: sys::CUfunction,
        (grid, threads): ([u32; 3], u32),
        stream: sys::CUstream,
    ) -> super::error::Result<()> {
        let captures = self.device.captures();
        let Some(numbered) = self.numbered.filter(|_| captures.is_on()) else { return Ok(()) };
        let (node, shared_bytes, arguments) = (last_node(stream)?, self.shared_bytes, self.arguments);
        let launch = NumberedLaunch { node, function, grid, threads, shared_bytes, arguments, numbered };
        captures.add_numbered(launch);
        Ok(())
    }
}

/// Enqueues a kernel with `shared_bytes` for each of `grid` blocks of `threads` threads.
///
/// # Safety
/// Function and stream are alive, and the arguments are those of the function. Without `is_early` the kernel
/// begins when earlier ones have ended; with it, it waits for them itself.
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
