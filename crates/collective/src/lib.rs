//! Communication between ranks: small host messages on the control channel, device regions in process groups.
//!
//! The one idea: **a wait never hangs and a sum never changes**. Every call has a sequence number and every
//! wait a deadline. If a rank fails, falls silent or makes another call than its peers, all of them get an
//! error that names rank, operation and number ([`CollectiveError`]). Sums over ranks are added in the order
//! of a fixed tree and rounded at each node, so their bits do not depend on the order of arrival.
//!
//! A worker holds one [`Communicator`] from one of the transports:
//!
//! * [`Communicator::solo`]: a world of one;
//! * [`threads::run`]: ranks as threads of one process;
//! * [`tcp::start`]: ranks as processes that a launcher such as `torchrun` starts, connected over TCP;
//! * `mpi::start`, with the feature `mpi`: ranks as processes that an MPI launcher starts;
//! * [`Communicator::over_nccl`]: any of these, with device regions moved by NCCL;
//! * [`Communicator::over_shared_gpu`]: threads that use one GPU, with device regions moved by that GPU;
//! * [`Communicator::counted`]: one rank of many alone, for planning; it moves nothing and counts everything.
//!
//! A call is a value, a [`Collective`], that a [`ProcessGroup`] checks, numbers, counts, logs and passes to
//! its backend. [`Communicator::divide`] makes further groups beside that of all ranks.
//!
//! ```
//! use collective::Collective;
//! use collective::threads::{Options, run};
//! use device::{Category, DType, Device, DeviceOptions, Request, StreamKind};
//!
//! let sums = run(3, Options::default(), |communicator| -> Result<f32, String> {
//!     let rank = communicator.rank();
//!     let device = Device::cpu(rank, &DeviceOptions::default()).map_err(|e| e.to_string())?;
//!     let request = Request::new(Category::Communication, "example");
//!     let buffer = device.allocate(4, request).map_err(|e| e.to_string())?;
//!     let region = buffer.region(0, 4);
//!     device.copy_from_host(&[rank as f32 + 1.0], region).map_err(|e| e.to_string())?;
//!     let sum = Collective::AllReduce { region, dtype: DType::F32 };
//!     communicator.group.run(sum, StreamKind::Reduce).map_err(|e| e.to_string())?;
//!     Ok(buffer.read::<f32>(0, 1).map_err(|e| e.to_string())?[0])
//! })?;
//! assert_eq!(sums, [6.0, 6.0, 6.0]);
//! # Ok::<(), collective::threads::RunError<String>>(())
//! ```
//!
//! [`RankGrid`] gives ranks coordinates along axes, [`GridGroups`] each rank its groups by axis, and
//! [`tensors`] has collectives of whole tensors.
//!
//! The crate does not know what the values mean. A new transport for host memory implements the queues of
//! `link` and gets the rest from `host`; one for device memory implements [`GroupBackend`].

mod backend;
mod call;
mod caller;
mod collective;
mod communicator;
mod control;
mod counted;
mod error;
mod grid;
mod grid_groups;
mod host;
mod link;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod nccl;
mod payload;
mod peer_access;
mod process_group;
mod processes;
mod rank_tree;
mod shards;
mod shared_gpu;
mod solo;
mod split;
mod sum;
pub mod tcp;
pub mod tensors;
pub mod threads;
mod traffic;
mod tree;

pub use backend::{GroupBackend, GroupCall, NumberedMessage};
pub use call::{Call, CallKind, Channel, Signature};
pub use caller::Caller;
pub use collective::{Collective, PEER_COPIES, PEER_SUMS, PeerRegion, Reach};
pub use communicator::Communicator;
pub use control::{ControlChannel, DELAY_INTERVAL, Observer, Watch};
pub use error::{CollectiveError, Failure, Result};
pub use grid::{Axis, GridShape, Group, RankGrid};
pub use grid_groups::{AxisGroups, DividedGroup, GridGroups};
pub use payload::kept_bytes;
pub use peer_access::{PeerAccess, PeerAccessOptions, PeerMethod, SharedLayout, SharedSum, SumKernels};
pub use process_group::ProcessGroup;
pub use processes::{IdentityError, Process, Processes, Transport, World};
pub use rank_tree::RankTree;
pub use split::SplitGroup;
pub use traffic::{AxisTraffic, OperationTraffic, Traffic};
pub use tree::{TreeSum, exchange_shards, shard, tree_sums};
