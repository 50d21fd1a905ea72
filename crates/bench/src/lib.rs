//! Measurements of steps, scaling, pipelines, matmuls, layers for profiles, and devices.
//!
//! The one idea: **measurements are data**. A run never measures itself; the results of this crate are
//! written to a file once, and every rank and every plan reads the same file.
//!
//! ```
//! use bench::{BenchOptions, bench_step};
//! use worker::DeviceChoice;
//! let config = config::RunConfig::quickstart(&["parallel.data=1".into(), "model.width=32".into()])?;
//! let (device, warm_up_time) = (DeviceChoice::Cpu, std::time::Duration::ZERO);
//! let options = BenchOptions { device, steps: 1, warm_up: 1, warm_up_time, profile: true, trace: None };
//! assert!(bench_step(config, &options)?.tokens_per_second() > 0.0);
//! # Ok::<(), bench::BenchError>(())
//! ```

mod attention;
mod call_samples;
mod calls_alone;
mod cycled;
mod describe;
mod error;
mod experts;
mod forward;
mod generate;
mod links;
mod listings;
mod matmul;
mod measured_device;
mod measured_step;
mod one_rank;
mod operators;
mod options;
mod pipeline;
mod predict;
mod probe;
mod profile;
mod random_configs;
mod ranks;
mod rates;
mod recurrence;
mod scaling;
mod step;
mod steps;
mod timeline;

pub use attention::{AttentionSizes, AttentionTime, bench_attention};
pub use call_samples::Extent;
pub use calls_alone::random_calls;
pub use describe::describe_device;
pub use error::{BenchError, Result};
pub use experts::{ExpertSizes, ExpertTime, Spread, bench_experts};
pub use forward::bench_forward;
pub use generate::{SampleBenchOptions, SampleMeasure, bench_sample};
pub use links::{check_hosts, measure_network};
pub use listings::{FigureOrigin, ListedFigure, Listing, PyTorchFigures, memory_listings};
pub use matmul::{MatmulMeasure, MatmulOptions, MatmulTime, bench_matmul};
pub use measured_device::measured_device;
pub use measured_step::{CallDifference, FamilyDifference};
pub use operators::{OperatorOptions, profile_operators};
pub use options::{BenchOptions, GPU_WARM_UP, measures_gpu};
pub use pipeline::{PipelineMeasure, PipelineRank, bench_pipeline};
pub use predict::{
    PredictCase, Prediction, PredictionErrors, bench_prediction, cases_of, measured_calls, predict_cases,
    tiny_predict_cases,
};
pub use probe::{Probe, probe};
pub use profile::take_profile;
pub use random_configs::{RandomConfig, RandomRanks, random_configs};
pub use rates::Rates;
pub use recurrence::{LeastWork, Recurrence, RecurrenceSizes, RecurrenceTime, bench_recurrence};
pub use scaling::{ScalingCase, bench_scaling, bench_scaling_as};
pub use step::{FamilyTime, StepMeasure, bench_step};
