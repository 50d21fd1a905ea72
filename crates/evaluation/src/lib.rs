//! One rank that computes losses and does not train: its stages, without gradients and optimizer.
//!
//! The one idea: **an evaluation is a validation without training**. Passes, graphs and the order of sums are
//! those of [`worker::Worker::validate`], so losses are the same bits.
//!
//! ```
//! use collective::Communicator;
//! use config::RunConfig;
//! use evaluation::Evaluator;
//! use nn::Stage;
//! use worker::dataset::DataScope;
//! use worker::{Placement, Setup, WorkerError};
//! let sets = ["parallel.data=1", "train.validation_micro_batches=2"].map(String::from);
//! let config = RunConfig::quickstart(&sets)?;
//! let whole = |config: &RunConfig, _: &_, _: &_| Ok::<_, WorkerError>(vec![Stage::whole(config.layers())]);
//! let setup = Setup::new(config, Placement::Cpu, DataScope::All, whole)?;
//! let mut evaluator = Evaluator::new(&setup, Communicator::solo(), None)?;
//! assert_eq!(evaluator.losses(&mut |_| ())?.losses.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::Arc;

use collective::{Axis, Communicator};
use device::Device;
use nn::Model;
use parallel::data::{WeightUnits, WorkKind};
use worker::engine::Engine;
use worker::state::loading;
use worker::validation::results;
use worker::{Losses, Result, Setup, Weights, build};

/// One rank of an evaluation.
pub struct Evaluator {
    engine: Engine,
    models: Vec<StageWeights>,
}

/// A stage's model, with this rank's shards of its weights if weights are sharded.
type StageWeights = (Box<dyn Model>, Option<WeightUnits>);

impl Evaluator {
    /// Builds this rank's stages, reserves the memory that passes need, and reads the weights. A plan has no
    /// weights.
    ///
    /// # Errors
    /// Memory runs out, or weights cannot be read or belong to another model.
    pub fn new(setup: &Setup, communicator: Communicator, weights: Option<&dyn Weights>) -> Result<Self> {
        let config = &setup.config;
        let device = setup.device(communicator.rank())?;
        let mut engine = Engine::connect(device, setup, communicator)?;
        let read = weights.map_or_else(Arc::default, |weights| setup.names_in(weights));
        let model = |stage: usize| -> Result<StageWeights> {
            let stage = &setup.blueprint.stages[stage];
            let host = build::host_pool(&engine.device, config)?;
            build::sharded_model(config, (&engine.device, host.as_ref()), engine.grid, stage, &read)
        };
        let models = engine.stages().map(model).collect::<Result<Vec<_>>>()?;
        engine.allocate_pixels()?;
        engine.warm_up()?;
        if let Some(weights) = weights {
            let own = models.iter().map(|(model, units)| (&**model, units.as_ref()));
            loading::load_models(&mut engine, own, weights)?;
        }
        let mut evaluator = Evaluator { engine, models };
        evaluator.rehearse()?;
        Ok(evaluator)
    }

    /// Returns the results of all validation micro-batches in order, equal on every rank. If this rank has
    /// the last stage, calls `on_losses` with the number of its losses so far.
    pub fn losses(&mut self, on_losses: &mut dyn FnMut(usize)) -> Result<Losses> {
        let own = self.passes(None, on_losses)?;
        let assignment = self.engine.setup.config.validation_assignment();
        results::of_all(&mut self.engine.groups, &own, &assignment)
    }

    /// Returns whether this rank has the last stage, and so computes losses.
    pub fn has_losses(&self) -> bool {
        let grid = &self.engine.grid;
        grid.coordinate(Axis::Pipeline) + 1 == grid.size(Axis::Pipeline)
    }

    /// Returns the number of micro-batches that this rank's replica runs.
    pub fn own_micro_batches(&self) -> u64 {
        self.engine.own_micro_batches()
    }

    /// Returns the number of micro-batches that were replayed from CUDA graphs.
    pub fn replayed_micro_batches(&self) -> u64 {
        self.engine.replayed_micro_batches()
    }

    /// Returns this rank's device.
    pub fn device(&self) -> &Device {
        &self.engine.device
    }

    /// Returns the results of this rank's micro-batches, at most `most`; empty unless it has the last stage.
    fn passes(&mut self, most: Option<usize>, on_losses: &mut dyn FnMut(usize)) -> Result<Losses> {
        for units in self.models.iter().filter_map(|(_, units)| units.as_ref()) {
            units.begin(WorkKind::Forward, &self.engine.groups.divided(Axis::Data)?.within)?;
        }
        let models = self.models.iter().map(|(model, _)| &**model).collect();
        Ok(self.engine.losses(models, most, Some(on_losses))?.0)
    }

    /// Runs one micro-batch, if memory comes from a driver, so that its memory is reserved. A plan does
    /// nothing else.
    fn rehearse(&mut self) -> Result<()> {
        if !self.engine.device.is_cuda_like() && !self.engine.device.is_meta() {
            return Ok(());
        }
        let real = self.engine.begin_rehearsal()?;
        let ran = self.passes(Some(1), &mut |_| ());
        // Transports that count give no values.
        self.models.iter().filter_map(|(_, units)| units.as_ref()).for_each(WeightUnits::outdate);
        self.engine.end_rehearsal(real, ran)
    }
}
