//! The norm of gradients, the optimizer and its schedules on one rank.

use std::rc::Rc;

use device::Device;
use optim::{Optimizer, ScaleRule, Schedule};
use parallel::pipeline::StagePart;

use crate::build;
use crate::engine::Engine;
use crate::error::Result;
use crate::stages::{ModelNorm, optimizer};

/// Everything that updates a rank's parameters.
pub(crate) struct Update {
    pub(crate) norm: Rc<ModelNorm>,
    pub(crate) optimizer: Optimizer,
    /// The host pool of what is offloaded, if something is.
    pub(crate) host: Option<Device>,
    pub(crate) schedule: Schedule,
    /// The rule of the loss scale, if there is one.
    pub(crate) scale_rule: Option<ScaleRule>,
}

impl Update {
    /// Allocates the optimizer's state, and that of the norm.
    pub(crate) fn new(engine: &Engine, parts: &[StagePart], host: Option<Device>) -> Result<Self> {
        let Engine { setup, device, grid, .. } = engine;
        let config = &setup.config;
        let optimizer = optimizer::build((device, host.as_ref()), config, parts)?;
        let norm = ModelNorm::new(device, config, grid, &setup.blueprint, parts)?;
        let scale_rule = build::scale_rule(config);
        if scale_rule.is_some() {
            norm.norm.state().set_loss_scale(config.scaler.init_scale as f32, 0)?;
        }
        Ok(Update { norm: Rc::new(norm), optimizer, host, schedule: build::schedule(config), scale_rule })
    }
}
