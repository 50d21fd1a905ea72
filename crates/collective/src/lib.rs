//! Communication between ranks: a control channel for small host messages, process groups for device regions.
//!
//! The one idea: **a wait never hangs and a sum never changes**. Every call has a sequence number and every
//! wait a deadline. If a rank fails, falls silent or makes another call than its peers, all of them get an
//! error with rank, operation and number ([`CollectiveError`]). Sums over ranks follow a fixed tree and are
//! rounded at each node, so their bits do not depend on the order of arrival.
//!
//! A worker holds one [`Communicator`] from one of the transports:
//!
//! * [`Communicator::solo`]: a single rank;
//! * [`threads::run`]: ranks as threads of one process;
//! * [`tcp::start`]: ranks as processes started by a launcher such as `torchrun`, connected over TCP;
//! * `mpi::start`, with the feature `mpi`: ranks as processes started by an MPI launcher;
//! * [`Communicator::over_nccl`]: any of these, with device regions moved by NCCL;
//! * [`Communicator::over_shared_gpu`]: threads that share one GPU, which moves their device regions;
//! * [`Communicator::counted`]: one rank of many, for planning; moves nothing and counts everything.
//!
//! A call is a value, a [`Collective`]. A [`ProcessGroup`] checks, numbers, counts and logs it, then passes
//! it to its backend. [`Communicator::divide`] creates further groups.
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
//! [`RankGrid`] gives ranks coordinates along axes, [`GridGroups`] holds each rank's groups by axis, and
//! [`tensors`] has collectives of whole tensors.
//!
//! The crate does not know what the values mean. A new host transport implements the queues of `link`; `host`
//! provides the rest. A transport for device memory implements [`GroupBackend`].

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
