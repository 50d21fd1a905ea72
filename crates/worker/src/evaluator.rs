//! One rank that computes losses and does not train: its stages, without gradients and optimizer.

use std::sync::Arc;

use collective::{Axis, Communicator, Planes, RankGrid};
use device::Device;
use nn::Model;
use parallel::pipeline::Executor;

use crate::blueprint;
use crate::build;
use crate::connect;
use crate::error::Result;
use crate::feed::{self, WorkerFeed};
use crate::numbers::Numbers;
use crate::phases::Phases;
use crate::pixel_buffer::PixelBuffer;
use crate::setup::Setup;
use crate::start::Weights;
use crate::state;
use crate::validation::{self, Losses};

/// One rank of an evaluation.
pub struct Evaluator {
    setup: Setup,
    grid: RankGrid,
    device: Device,
    planes: Planes,
    models: Vec<Box<dyn Model>>,
    executor: Executor,
    /// The memory of inputs that are pixels, on ranks with the first stage.
    pixels: Option<PixelBuffer>,
}

impl Evaluator {
    /// Builds this rank's stages, has the allocator reserve what passes need, and reads the weights, if there
    /// are any: a plan has none. Errors: out of memory, weights that cannot be read or that belong to another
    /// model.
    pub fn new(setup: &Setup, communicator: Communicator, weights: Option<&dyn Weights>) -> Result<Self> {
        let (config, rank) = (&setup.config, communicator.rank());
        let grid = config.parallel.grid().seen_from(rank)?;
        let device = setup.device(rank)?;
        let mut planes = connect::connect(communicator, &device, config, grid)?;
        let blueprint = Arc::clone(&setup.blueprint);
        let stages = blueprint.stages_of(grid.coordinate(Axis::Pipeline));
        let model = |stage: usize| -> Result<Box<dyn Model>> {
            let model = build::model(config, &device, &blueprint.stages[stage])?;
            if let Some(weights) = weights {
                state::load_model(&*model, weights)?;
            }
            Ok(model)
        };
        let models = stages.map(model).collect::<Result<Vec<_>>>()?;
        let own_stages = blueprint.stages_of(grid.coordinate(Axis::Pipeline));
        let pixels = PixelBuffer::of_stages(&device, &setup.dataset, own_stages)?;
        connect::warm_up(&mut planes, &device, config, &[], false)?;
        let schedule = blueprint::schedule(config)?;
        let executor = Executor::new(&device, grid, schedule, blueprint.crossings.clone())?;
        let setup = setup.clone();
        let mut evaluator = Evaluator { setup, grid, device, planes, models, executor, pixels };
        evaluator.rehearse()?;
        Ok(evaluator)
    }

    /// Returns the result of each validation micro-batch of the setup's data, in order; equal on every rank.
    /// Calls `on_losses` with the number of this rank's losses so far, where it has the model's end.
    pub fn losses(&mut self, on_losses: &mut dyn FnMut(usize)) -> Result<Losses> {
        let own = self.passes(None, on_losses)?;
        validation::of_all(&mut self.planes, &own, &self.setup.config.validation_assignment())
    }

    /// Returns whether this rank has the model's end, and so losses.
    pub fn has_losses(&self) -> bool {
        self.grid.coordinate(Axis::Pipeline) + 1 == self.grid.size(Axis::Pipeline)
    }

    /// Number of micro-batches that this rank's replica runs.
    pub fn own_micro_batches(&self) -> u64 {
        Numbers::validation(&self.setup.config, &self.grid).count() as u64
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The results of this rank's micro-batches, at most `most`, where the model ends.
    fn passes(&mut self, most: Option<usize>, on_losses: &mut dyn FnMut(usize)) -> Result<Losses> {
        let (config, dataset) = (&self.setup.config, &self.setup.dataset);
        let numbers = Numbers::validation(config, &self.grid);
        let own = numbers.count().min(most.unwrap_or(usize::MAX));
        let mut data = feed::prefetcher(dataset, config, &mut self.planes);
        let order = self.executor.validation_data_order(own, dataset.source.packs_documents());
        let mut phases = Phases::new(&self.device);
        let mut feed =
            WorkerFeed::new(&self.device, (config, dataset), numbers, (&mut data, &order), &mut phases);
        feed.pixels = self.pixels.as_mut();
        feed.on_losses = Some(on_losses);
        let models = self.models.iter().map(|model| &**model).collect();
        self.executor.validate(models, &mut self.planes, own, &mut feed)?;
        feed.results()
    }

    /// Makes the allocator reserve the passes' memory before ranks wait for each other on their devices. In a
    /// plan this is all.
    fn rehearse(&mut self) -> Result<()> {
        let grid = self.grid;
        if !self.device.is_cuda_like() && !self.device.is_meta() {
            return Ok(());
        }
        let counted = Planes::new(Communicator::counted(grid.rank(), grid.world_size()), grid)?;
        let real = std::mem::replace(&mut self.planes, counted);
        let ran = self.passes(Some(1), &mut |_| ());
        self.planes = real;
        ran?;
        self.device.synchronize()?;
        match grid.world_size() {
            1 => Ok(()),
            _ => Ok(self.planes.control().barrier()?),
        }
    }
}
