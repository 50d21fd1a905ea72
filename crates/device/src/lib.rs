//! The device of a rank, with its caching allocator and logical streams.
//!
//! The one idea: **every byte that an operator touches is a [`Buffer`] from the caching allocator of crate
//! `memory`**, on every backend. [`Backend::Cpu`] backs the allocator's segments with host memory,
//! [`Backend::Cuda`] with a GPU's memory, and [`Backend::Meta`] with none, so that a program can be run for
//! its memory figures alone. Code above this crate allocates, launches and frees in the same order on each
//! backend, so the allocator's counters are the same.
//!
//! A device belongs to one worker thread (it is not `Send`); a [`Buffer`] may be dropped on any thread.
//!
//! Every call returns the errors of the driver and of earlier work of its stream. A section *Errors* names
//! only other errors.
//!
//! ```
//! use device::{Category, DType, Device, Request, StreamKind};
//! let device = Device::cpu(0, &device::DeviceOptions::default())?;
//! let request = Request::new(Category::Activation, "example");
//! let buffer = device.allocate(4 * 100, request)?;
//! device.copy_from_host(&[1.0f32; 100], buffer.region(0, 400))?;
//! assert_eq!(buffer.read::<f32>(0, 100)?[99], 1.0);
//! assert_eq!(device.statistics().allocated(), 512);
//! drop(buffer);
//! assert_eq!(device.statistics().allocated(), 0);
//! # Ok::<(), device::DeviceError>(())
//! ```
//!
//! This crate knows nothing of autograd, models or communication between ranks. `unsafe` appears only in
//! `access`, `blas`, `heap`, `raw` and `cuda`.

mod access;
mod arrival;
mod blas;
mod borrows;
mod buffer;
mod call_log;
mod capture;
mod capture_state;
mod context;
mod convolution;
pub mod cuda;
mod description;
mod device;
mod dtype;
mod error;
mod event;
mod fp8;
pub mod heap;
pub mod host;
mod host_buffer;
mod host_pool;
mod kernels;
mod logging;
mod marks;
mod matmul;
pub mod matmul_table;
mod module_scope;
mod moment;
pub mod nvtx;
pub mod parallel;
mod raw;
mod recent_events;
mod repeat;
mod repeated_call;
mod stream;
mod tiling;
mod transfer;
mod work;

pub use access::{ReadGuard, WriteGuard};
pub use arrival::Arrival;
pub use blas::{MatrixRef, gemm, gemm_then};
pub use buffer::{Buffer, Region};
pub use call_log::{
    CallLog, CopyKind, LoggedCall, LoggedCommunication, LoggedEvent, LoggedKernel, RepeatedCalls,
};
pub use capture::{Captured, CapturedPart, Graph};
pub use context::{ModuleEvent, ModuleObserver, Request};
pub use convolution::{Convolution, ConvolutionEpilogue, ConvolutionPass, ConvolutionShape};
pub use description::{Backend, Description, DeviceOptions, Kind};
pub use device::Device;
pub use dtype::{DType, Element, Float};
pub use error::{DeviceError, Result};
pub use event::{Event, SharedEvent};
pub use fp8::{E4m3, E5m2, Fp8};
pub use half::{bf16, f16};
pub use host_buffer::HostBuffer;
pub use kernels::{Family, Function, NumberedWords};
pub use marks::Mark;
pub use matmul::{Epilogue, Matmul, Operand, Scales};
pub use memory::{Category, Label, Statistics};
pub use module_scope::ModuleScope;
pub use raw::meta::page_table_bytes;
pub use repeat::{OutlivingRegion, Repetition};
pub use repeated_call::RepeatedCall;
pub use stream::StreamKind;
pub use system::names;
pub use tiling::{Schedule, TileRows, Tiling, Units};
pub use transfer::HostCopy;
pub use work::Work;
