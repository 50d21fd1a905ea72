//! Communication by axis of the grid: the bytes that a step sends, and for how long compute waits for them.

use collective::Axis;
use device::Description;
use serde::Serialize;
use worker::Setup;
use worker::build::{self, DataScope};

use crate::cost::{Cost, cost};
use crate::error::Result;
use crate::rates::DeviceRates;
use crate::roles::Plans;
use crate::work::Work;

/// The communication of a step along an axis with several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AxisCommunication {
    /// Name of the axis.
    pub axis: &'static str,
    /// Number of ranks along it.
    pub ranks: usize,
    /// Bytes sent by the rank that sends most.
    pub step_bytes_sent: u64,
    /// Seconds for which compute waits, by the cost model; `None` for a device without rates, and along
    /// [`Axis::Pipeline`], whose waits are those of the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposed_seconds: Option<f64>,
}

impl AxisCommunication {
    /// Returns the communication along each axis with several ranks.
    ///
    /// # Errors
    /// Errors of the data or of the schedule.
    pub(crate) fn of(
        setup: &Setup,
        plans: &Plans,
        (rates, description): (Option<&DeviceRates>, &Description),
    ) -> Result<Vec<Self>> {
        let (config, grid) = (&setup.config, setup.config.parallel.grid());
        if grid.world_size() == 1 {
            return Ok(Vec::new());
        }
        let predict = |rates| -> Result<Cost> {
            let dataset = build::dataset(config, DataScope::Shapes)?;
            let work = Work::count(config, &dataset, description)?;
            cost(config, &work, rates, &setup.blueprint.stages)
        };
        let cost = rates.map(predict).transpose()?;
        let most =
            |axis: Axis| plans.roles().iter().map(|plan| plan.step_traffic.along(axis).bytes_sent).max();
        let along = |axis: Axis| AxisCommunication {
            axis: axis.name(),
            ranks: grid.size(axis),
            step_bytes_sent: most(axis).unwrap_or(0),
            exposed_seconds: cost.and_then(|cost| match axis {
                Axis::Data => Some(cost.exposed),
                Axis::Tensor => Some(cost.shared_layers),
                Axis::Context => Some(cost.shared_sequences),
                Axis::Pipeline => None,
            }),
        };
        Ok(Axis::ALL.into_iter().filter(|axis| grid.size(*axis) > 1).map(along).collect())
    }
}
