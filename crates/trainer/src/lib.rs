//! From a configuration to a trained model: the per-rank worker, the step, and what a run leaves behind.
//!
//! The one idea: **there is one worker and one loop**. A run on one rank, on four threads, and the dry run on Meta that
//! says beforehand what every rank will use are the same [`Worker`] over another device and another communicator.
//!
//! ```no_run
//! use config::RunConfig;
//! use trainer::RunOptions;
//! let config = RunConfig::quickstart(&["train.steps=20".into()])?;
//! let report = trainer::train(config, RunOptions::default())?;
//! println!("{} after {} steps", report.summary.weights_sha256, report.summary.steps);
//! # Ok::<(), trainer::TrainError>(())
//! ```

mod account;
mod bench;
mod blueprint;
mod build;
pub mod checkpoint;
mod connect;
mod costs;
mod division;
mod error;
mod expected;
mod failure;
mod feed;
mod hash;
mod hook;
mod interrupt;
mod launch;
mod measure;
mod outlived;
mod parts;
mod phases;
mod placement;
mod plan;
mod plan_page;
mod plan_report;
mod plan_schedule;
mod profile;
mod recompute;
mod rehearsal;
mod resume;
mod run;
mod run_directory;
mod run_report;
mod sample;
mod session;
mod startup;
mod state;
mod status;
mod step;
mod toml_file;
mod views;
mod watch;
mod worker;

pub use bench::{
    BenchOptions, FamilyTime, GPU_WARM_UP, PipelineMeasure, PipelineRank, ProductTime, ProductsMeasure,
    ProductsOptions, Rates, ScalingCase, StepMeasure, bench_pipeline, bench_products, bench_scaling,
    bench_scaling_as, bench_step,
};
pub use error::{Result, TrainError};
pub use expected::{PlannedPart, PlannedParts, PlannedPeak};
pub use hook::ModelHook;
pub use interrupt::Interrupt;
pub use launch::{RunOptions, TrainReport, train, train_as};
pub use phases::{PhaseSink, Phases};
pub use placement::{DeviceChoice, Gpus, Placement};
pub use plan::cost::Cost;
pub use plan::describe::{PlanTarget, describe_device};
pub use plan::fit::{Fit, Limit};
pub use plan::imitated::{DeviceRates, Overhead, OverheadPart, PlanDevice};
pub use plan::largest::{Largest, Outcome, Searched, Try, search_largest};
pub use plan::propose::{Proposal, Proposals, propose};
pub use plan::roles::Plans;
pub use plan::{Plan, plan};
pub use plan_page::plan_page;
pub use plan_report::{PipelinePlan, PlanOptions, PlanReport, plan_run};
pub use plan_schedule::{PlannedSchedule, plan_schedule};
pub use profile::{LayerTimes, Profile, TimedDivision, take_profile, timed_divisions};
pub use run_report::report_run;
pub use sample::{SampleOptions, sample};
pub use startup::Startup;
pub use worker::{DEFAULT_ALLOCATOR, Setup, Worker};
