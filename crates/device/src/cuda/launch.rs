//! Kernel launches. Arguments are checked against the compiled kernel's parameters.
use super::argument::Argument;
use super::error::CudaError;
use super::graph::{NumberedLaunch, last_node};
use super::reach::PeerAddress;
use super::stream_launch::StreamLaunch;
use crate::buffer::Region;
use crate::call_log::{LoggedCall, LoggedKernel};
use crate::device::{Device, OnDevice};
use crate::error::{DeviceError, Result};
use crate::kernels::{Function, NumberedWords};
use crate::repeat::Repeat;
use crate::stream::StreamKind;
use crate::tiling::Tiling;
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
    /// Index of the first of the two numbered words; `None` if there are none.
    numbered: Option<(usize, NumberedWords)>,
    outside: Option<DeviceError>,
    shared_bytes: u32,
    stream: StreamKind,
    /// Whether the kernel may begin before earlier kernels have ended.
    is_early: bool,
    work: Work,
    tiling: Option<Tiling>,
}

/// Minimum compute capability for kernels that begin before earlier ones have ended.
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
            tiling: None,
        }
    }
}

/// Memory that can be passed to a kernel by its address.
pub trait Operand<'r> {
    /// Returns the region; `None` is passed as a null address.
    fn operand(self) -> Option<Region<'r>>;
}

impl<'r> Operand<'r> for Region<'r> {
    fn operand(self) -> Option<Region<'r>> {
        Some(self)
    }
}

impl<'r, T: Operand<'r>> Operand<'r> for Option<T> {
    fn operand(self) -> Option<Region<'r>> {
        self.and_then(T::operand)
    }
}

impl Launch<'_> {
    /// Adds an address to read from: a `const T *` parameter, null for `None`.
    pub fn read<'r>(self, operand: impl Operand<'r>) -> Self {
        self.region(operand.operand())
    }

    /// Adds an address to write to, or to read and write: a `T *` parameter, null for `None`.
    pub fn write<'r>(self, operand: impl Operand<'r>) -> Self {
        self.region(operand.operand())
    }

    fn region(mut self, region: Option<Region<'_>>) -> Self {
        match region.map_or(Ok(0), |region| region.checked_address()) {
            Ok(address) => self.arguments.push(Argument::Double(address)),
            Err(error) => self.outside = Some(error),
        }
        self
    }

    pub(super) fn device(&self) -> &Device {
        self.device
    }

    /// Adds a structure of 64-bit words; an error is returned by the launch.
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

    /// Joins the last `count` arguments, all 64-bit, into a structure of `length` words, padded with zeros.
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

    /// Adds two 32-bit integers that depend on the micro-batch's number. A kernel has at most one such pair.
    pub fn numbered(mut self, words: NumberedWords) -> Self {
        self.numbered = Some((self.arguments.len(), words));
        let [first, second] = words.compute(words.number);
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

    /// Sets the stream of the launch.
    pub fn on(self, stream: StreamKind) -> Self {
        Launch { stream, ..self }
    }

    /// Allows the kernel to begin while the previous one in the stream still runs, on GPUs that support it
    /// (programmatic dependent launch). The kernel must call `wait_for_earlier` of `kernels/early.cuh` before
    /// it reads results of earlier kernels and before it writes.
    pub fn early(self) -> Self {
        Launch { is_early: true, ..self }
    }

    /// Sets the minimum bytes and FLOPs of the call, with which the measured time is compared.
    pub fn cost(self, bytes: u64, flops: u64) -> Self {
        Launch { work: Work { bytes, flops }, ..self }
    }

    /// Sets how the kernel divides its work.
    pub fn tiled(self, tiling: Tiling) -> Self {
        Launch { tiling: Some(tiling), ..self }
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
        let function = self.function;
        let device = self.device;
        let Launch { shared_bytes, stream, work, tiling, .. } = self;
        let call = LoggedKernel { function, grid, threads, shared_bytes, stream, work, tiling };
        if device.log(|| LoggedCall::Kernel(call)) {
            return Ok(());
        }
        let cuda = device.gpu_or_refuse(function.family().name)?;
        let mut modules = cuda.modules.borrow_mut();
        let kernel = modules.kernel(function, self.shared_bytes).on(device)?;
        let kernel = kernel.ok_or(DeviceError::MissingKernel { function })?;
        if kernel.parameters.iter().ne(self.arguments.iter().map(Argument::bytes).collect::<Vec<_>>().iter())
        {
            let sizes: Vec<_> = self.arguments.iter().map(Argument::bytes).collect();
            let text =
                format!("{function} has parameters of {:?} bytes and was given {sizes:?}", kernel.parameters);
            return Err(device.cuda_error(CudaError { call: "cuLaunchKernel", code: 0, text }));
        }
        let is_early = self.is_early && device.description().compute_capability >= EARLY_SINCE;
        let (handle, numbered, arguments) =
            (kernel.handle, self.numbered, std::mem::take(&mut self.arguments));
        let mut call =
            StreamLaunch { function, handle, grid, threads, shared_bytes, stream, is_early, arguments };
        if stream != StreamKind::Compute {
            return device.between_graphs(|| {
                timed(device, &mut call, work)?;
                Ok(((), Repeat::Launch(call)))
            });
        }
        timed(device, &mut call, work)?;
        note_numbered(device, call, numbered).on(device)
    }
}

/// Enqueues a launch. If calls are timed, also times it, with its minimum `work`.
fn timed(device: &Device, call: &mut StreamLaunch, work: Work) -> Result<()> {
    let family = call.function.family().name;
    let cuda = device.gpu_or_refuse(family)?;
    let function = call.function;
    let timed = cuda.timed(cuda.streams.handle(call.stream), family, || function.symbol(), work);
    let launched = call.enqueue(cuda).and_then(|()| timed.finish());
    launched.on(device)
}

/// Records a captured launch with numbered words.
fn note_numbered(
    device: &Device,
    call: StreamLaunch,
    numbered: Option<(usize, NumberedWords)>,
) -> super::error::Result<()> {
    let captures = device.captures();
    let cuda = device.gpu();
    let Some((numbered, cuda)) = numbered.zip(cuda).filter(|_| captures.is_on()) else { return Ok(()) };
    let StreamLaunch { handle: function, grid, threads, shared_bytes, arguments, .. } = call;
    let node = last_node(cuda.streams.handle(call.stream))?;
    captures.add_numbered(NumberedLaunch {
        node,
        function,
        grid,
        threads,
        shared_bytes,
        arguments,
        numbered,
    });
    Ok(())
}
