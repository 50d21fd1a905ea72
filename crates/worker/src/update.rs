//! Updates the parameters of one rank: gradient norm, optimizer and schedules.

use std::rc::Rc;

use device::Device;
use optim::{AverageSchedule, Optimizer, ScaleRule, Schedule};
use parallel::pipeline::StagePart;

use crate::build;
use crate::engine::Engine;
use crate::error::Result;
use crate::stages::matrices::{self, MatrixGroup};
use crate::stages::{ModelNorm, optimizer};

/// The state of a rank's parameter updates.
pub(crate) struct Update {
    pub(crate) norm: Rc<ModelNorm>,
    pub(crate) optimizer: Optimizer,
    /// The optimizer's groups of matrices, in order.
    pub(crate) matrices: Vec<MatrixGroup>,
    /// The host pool for offloaded data; `None` if nothing is offloaded.
    pub(crate) host: Option<Device>,
    pub(crate) schedule: Schedule,
    /// Schedule of averages of weights; `None` without averages.
    pub(crate) average: Option<AverageSchedule>,
    /// How the loss scale adapts; `None` without one.
    pub(crate) scale_rule: Option<ScaleRule>,
}

impl Update {
    /// Allocates the state of the optimizer and of the gradient norm.
    pub(crate) fn new(engine: &Engine, parts: &[StagePart], host: Option<Device>) -> Result<Self> {
        let Engine { setup, device, grid, .. } = engine;
        let config = &setup.config;
        let matrices = matrices::groups(device, config, grid, parts)?;
        let optimizer = optimizer::build((device, host.as_ref()), config, parts, &matrices)?;
        let norm = ModelNorm::new(device, config, grid, &setup.blueprint, parts)?;
        let scale_rule = build::scale_rule(config);
        if scale_rule.is_some() {
            norm.norm.state().set_loss_scale(config.scaler.init_scale as f32, 0)?;
        }
        let schedule = build::schedule(config);
        let average = build::average_schedule(config);
        optimizer.begin_averages()?;
        let norm = Rc::new(norm);
        Ok(Update { norm, optimizer, matrices, host, schedule, average, scale_rule })
    }
}
