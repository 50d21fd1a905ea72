//! The plan of a run: the memory of every rank to the byte, and predicted times, before anything starts.
//!
//! The one idea: **the plan is the run**. Every rank is the real worker on Meta, which counts memory instead
//! of allocating it, with transports that only count. No formula estimates a byte. Only times are predicted,
//! from counted work and from rates that were measured once and stored in a file.
//!
//! ```
//! use plan::{PlanOptions, PlanTarget};
//! let config = config::RunConfig::quickstart(&["parallel.data=4".into()])?;
//! let options = PlanOptions { target: PlanTarget::from_argument("cpu")?, capacity: None };
//! let report = plan::plan_run(config, &options)?.to_string();
//! assert!(report.contains("reserved"), "{report}");
//! # Ok::<(), plan::PlanError>(())
//! ```

mod balance;
mod busy;
mod by_axis;
mod call_size;
mod call_times;
mod clock;
mod compared;
mod continuation;
pub mod costs;
mod effects;
mod epochs;
mod error;
mod fit;
mod fp8_cost;
mod host;
mod imitated;
mod lane_cost;
mod largest;
mod layer_cost;
mod load;
pub mod measure;
mod most_memory;
mod overhead;
mod page;
mod page_parts;
pub mod partition;
mod plan;
mod precision;
mod predicted_calls;
mod prepare;
mod profile;
mod program;
mod propose;
mod rates;
pub mod recompute;
pub mod remedy;
mod report;
mod resolve;
pub mod roles;
mod samples;
mod scaled;
mod schedule;
mod screening;
mod step_calls;
mod step_time;
mod step_work;
mod steps;
mod surroundings;
mod target;
mod timed_partitions;
mod timed_step;
mod toml_file;
mod tuning_cost;
mod user_device;
mod whole_gradients;

pub use balance::Balance;
pub use by_axis::AxisCommunication;
pub use call_size::{CallSize, CallSizes};
pub use call_times::{host_convolution, host_launches, replayed_launches};
pub use continuation::{Continuation, continuation};
pub use effects::without_effect;
pub use epochs::Epochs;
pub use error::{PlanError, Result};
pub use fit::{Fit, Limit, SharedMemory};
pub use fp8_cost::Fp8Cost;
pub use host::{HostPart, HostUse, RankForm};
pub use imitated::PlanDevice;
pub use lane_cost::LaneCost;
pub use largest::{Largest, Outcome, Try, search_largest};
pub use layer_cost::LayerCost;
pub use load::{Load, Loaded};
pub use overhead::{DeviceRanks, Overhead, OverheadPart};
pub use page::plan_page;
pub use page_parts::{memory_tiles, subtitle};
pub use plan::{Plan, plan};
pub use precision::{OperatorTypes, PlannedPrecision, plan_precision};
pub use predicted_calls::predicted_calls;
pub use prepare::{prepare, prepare_known, prepare_shapes};
pub use profile::{LONGEST, LayerTimes, Profile};
pub use propose::{FitOptions, FitProgress, LargerBatch, Miss, Proposal, Proposals, Trade, Trades, propose};
pub use rates::DeviceRates;
pub use report::{PipelinePlan, PlanReport, plan_run};
pub use resolve::resolve;
pub use roles::Plans;
pub use samples::MeasuredCalls;
pub use scaled::ClassRatio;
pub use schedule::{PlannedSchedule, plan_schedule};
pub use step_calls::{step_calls, with_peers};
pub use step_time::{Basis, FamilySeconds, StepEnergy, StepParts, StepTime};
pub use step_work::StepWork;
pub use surroundings::{Network, Power};
pub use target::{PlanOptions, PlanTarget};
pub use timed_partitions::{TimedPartition, timed_partitions};
pub use tuning_cost::TuningCost;
pub use whole_gradients::WholeGradients;
