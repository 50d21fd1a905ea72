//! Communication by axis of the grid: the bytes sent in a step, and how long compute waits for them.

use collective::Axis;
use serde::Serialize;
use worker::Setup;

use crate::roles::Plans;
use crate::step_time::StepTime;

/// Communication of one step along one axis that has several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AxisCommunication {
    /// Name of the axis.
    pub axis: &'static str,
    /// Number of ranks along it.
    pub ranks: usize,
    /// Bytes sent in a step by the rank that sends the most.
    pub step_bytes_sent: u64,
    /// Predicted seconds per step in which compute waits; `None` without a predicted step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposed_seconds: Option<f64>,
}

impl AxisCommunication {
    /// Returns the communication along each axis with several ranks. `time` is the predicted step.
    pub(crate) fn from_plans(setup: &Setup, plans: &Plans, time: Option<&StepTime>) -> Vec<Self> {
        let grid = setup.config.parallel.grid();
        let most =
            |axis: Axis| plans.roles().iter().map(|plan| plan.step_traffic.along(axis).bytes_sent).max();
        let along = |axis: Axis| AxisCommunication {
            axis: axis.name(),
            ranks: grid.size(axis),
            step_bytes_sent: most(axis).unwrap_or(0),
            exposed_seconds: time.map(|time| match axis {
                Axis::Data => time.parts.reduction_seconds,
                Axis::Tensor => time.parts.layers_seconds,
                // Context-parallel ranks also reduce gradients, together with the data-parallel ranks.
                Axis::Context if grid.size(Axis::Data) == 1 => {
                    time.parts.sequences_seconds + time.parts.reduction_seconds
                }
                Axis::Context => time.parts.sequences_seconds,
                Axis::Pipeline => time.parts.pipeline_seconds,
            }),
        };
        Axis::ALL.into_iter().filter(|axis| grid.size(*axis) > 1).map(along).collect()
    }
}
