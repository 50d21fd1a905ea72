//! The engine of a rank: device, transports and executor, shared by training, evaluation and generation.

pub(crate) mod connections;

use std::rc::Rc;
use std::sync::Arc;

use autograd::Offload;
use collective::{Axis, Communicator, GridGroups, RankGrid};
use config::RunConfig;
use data::Prefetcher;
use device::Device;
use nn::Model;
use parallel::pipeline::{Executor, Skipped};

use crate::build;
use crate::error::{Result, WorkerError};
use crate::feed::WorkerFeed;
use crate::feed::batch_arrays::BatchArrays;
use crate::feed::batches::{self, MicroBatches};
use crate::feed::numbers::Numbers;
use crate::feed::observation::Observation;
use crate::feed::pairs::PairWork;
use crate::feed::pieces::ContextPieces;
use crate::feed::pixels::PixelBuffer;
use crate::feed::results::Results;
use crate::feed::settings::PassSettings;
use crate::graphs::Recorder;
use crate::phases::Phases;
use crate::setup::Setup;
use crate::validation::results::{Evaluated, Losses};
use crate::validation::{Evaluation, Passes};

/// One rank's device, transports and executor, without its models.
pub struct Engine {
    /// The setup that all ranks share.
    pub setup: Setup,
    /// The grid, with this rank's coordinates.
    pub grid: RankGrid,
    /// This rank's device.
    pub device: Device,
    /// This rank's process groups.
    pub groups: GridGroups,
    /// Runs this rank's actions of the pipeline schedule.
    pub executor: Executor,
    /// Captures steps, evaluated micro-batches and decode steps as CUDA graphs.
    pub recorder: Recorder,
    /// Whether data-parallel ranks are connected to send each other any tensor. False for GPUs with peer
    /// access, and for GPUs that sum unsharded gradients in NCCL's order.
    pub(crate) has_peers: bool,
    /// Device buffer for pixel inputs, on ranks with the first stage.
    pub(crate) pixels: Option<Rc<PixelBuffer>>,
    /// Host memory for offloaded activations; `None` if they are not offloaded.
    pub(crate) offload: Option<Offload>,
    /// ln p of all answers under the reference model, once computed.
    pub(crate) reference: Option<Arc<[f32]>>,
    /// Captured evaluation, after the first evaluation of several micro-batches.
    pub(crate) evaluation: Option<Evaluation>,
}

impl Engine {
    /// Connects a rank to the other ranks of its grid.
    ///
    /// # Errors
    /// The grid's size differs from the communicator's, or a connection fails.
    pub fn connect(device: Device, setup: &Setup, communicator: Communicator) -> Result<Self> {
        let grid = grid_of(&setup.config, &communicator)?;
        let groups = connections::connect(communicator, &device, &setup.config, grid)?;
        let blueprint = &setup.blueprint;
        let schedule = blueprint.schedule_of(&setup.config, grid.coordinate(Axis::Data))?;
        let mut executor = Executor::new(&device, grid, schedule, blueprint.boundaries.clone())?;
        if let Some(work) = setup.plan_work {
            executor.limit_work(work);
        }
        let setup = setup.clone();
        let reference = setup.reference.clone();
        let has_peers = false;
        let pixels = None;
        let offload = None;
        let evaluation = None;
        let recorder = Recorder::new(&device);
        Ok(Engine {
            setup,
            grid,
            device,
            groups,
            executor,
            recorder,
            has_peers,
            pixels,
            offload,
            reference,
            evaluation,
        })
    }

    /// Returns the indices of this rank's stages, in order.
    pub fn stages(&self) -> impl Iterator<Item = usize> + '_ {
        self.setup.blueprint.stages_of(self.grid.coordinate(Axis::Pipeline))
    }

    /// Establishes the connections for passes without training, so that nothing is connected or loaded later.
    ///
    /// # Errors
    /// A connection fails.
    pub fn warm_up(&mut self) -> Result<()> {
        let device = &self.device;
        let config = &self.setup.config;
        self.has_peers = connections::warm_up(&mut self.groups, device, config, &[], false)?;
        Ok(())
    }

    /// Allocates the buffer for pixel inputs, on ranks with the first stage.
    pub fn allocate_pixels(&mut self) -> Result<()> {
        self.pixels = PixelBuffer::of_stages(&self.device, &*self.setup.dataset.source, self.stages())?;
        Ok(())
    }

    /// Returns the uploader for these micro-batches' arrays. `pairs` is the work of passes on preference
    /// pairs.
    pub(crate) fn arrays(&self, batches: &MicroBatches, pairs: Option<PairWork>) -> BatchArrays {
        let config = &self.setup.config;
        BatchArrays {
            device: self.device.clone(),
            recorder: self.recorder.clone(),
            dataset: self.setup.dataset.clone(),
            dtype: config.precision.weight_dtype(),
            batches: batches.clone(),
            pixels: self.pixels.clone(),
            pieces: ContextPieces::from_config(config, &self.grid),
            pairs,
            modules: config.train.prediction_modules(),
            last_stage: config.stages() - 1,
            shares: None,
        }
    }

    /// Returns the indices of a step's micro-batches whose data this rank needs, in order.
    pub(crate) fn data_order(&self) -> Vec<usize> {
        let Setup { config, dataset, .. } = &self.setup;
        self.executor.data_order(dataset.source.packs_documents() || config.masks_padding())
    }

    /// Returns a prefetching reader of micro-batches.
    pub(crate) fn prefetcher(&mut self) -> Prefetcher {
        batches::prefetcher(&self.setup, &mut self.groups)
    }

    /// Computes the losses of this rank's validation micro-batches, at most `most`, with its `models`. Calls
    /// `on_losses` with the number of losses so far. Losses exist on ranks with the last stage.
    ///
    /// # Errors
    /// A pass fails, or data cannot be read.
    pub fn losses(
        &mut self,
        models: Vec<&dyn Model>,
        most: Option<usize>,
        on_losses: Option<&mut dyn FnMut(usize)>,
    ) -> Result<(Losses, Skipped)> {
        let config = Arc::clone(&self.setup.config);
        let numbers = Numbers::validation(&config, &self.grid);
        let pairs = PairWork::from_config(&config, self.reference.as_ref());
        let has_figures = pairs.is_some();
        let (evaluated, skipped) = self.evaluate(models, (numbers.clone(), pairs, most), on_losses)?;
        let targets = match config.means_over_targets() && !self.device.is_meta() {
            true => Some(self.targets(&numbers, evaluated.values.len())?),
            false => None,
        };
        Ok((Losses::new(evaluated, has_figures, targets), skipped))
    }

    /// Returns the number of validation micro-batches of this rank's replica.
    #[must_use]
    pub fn own_micro_batches(&self) -> u64 {
        Numbers::validation(&self.setup.config, &self.grid).count() as u64
    }

    /// Returns how many evaluated micro-batches were replayed from CUDA graphs.
    #[must_use]
    pub fn replayed_micro_batches(&self) -> u64 {
        self.evaluation.as_ref().map_or(0, Evaluation::replays)
    }

    /// Returns the number of targets in each of the first `count` micro-batches.
    fn targets(&self, numbers: &Numbers, count: usize) -> Result<Vec<u32>> {
        let source = &self.setup.dataset.source;
        let targets = (0..count).map(|index| source.targets(numbers.id(index)));
        let narrowed = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Ok(targets.map(|count| count.map(narrowed)).collect::<std::result::Result<_, _>>()?)
    }

    /// Computes ln p of each answer in this rank's micro-batches of pairs, at most `most`, with its `models`.
    /// Calls `on_scores` with the number of micro-batches so far. Scores exist on ranks with the last stage.
    ///
    /// # Errors
    /// A pass fails, or data cannot be read.
    pub(crate) fn scores(
        &mut self,
        models: Vec<&dyn Model>,
        most: Option<usize>,
        on_scores: &mut dyn FnMut(usize),
    ) -> Result<(Vec<Vec<f32>>, Skipped)> {
        let numbers = Numbers::pairs(&self.setup.config, &self.grid, self.setup.pair_micro_batches());
        let (evaluated, skipped) =
            self.evaluate(models, (numbers, Some(PairWork::SCORES), most), Some(on_scores))?;
        Ok((evaluated.values, skipped))
    }

    /// Evaluates this rank's micro-batches with these numbers, at most `most`.
    fn evaluate(
        &mut self,
        models: Vec<&dyn Model>,
        (numbers, pairs, most): (Numbers, Option<PairWork>, Option<usize>),
        on_losses: Option<&mut dyn FnMut(usize)>,
    ) -> Result<(Evaluated, Skipped)> {
        let count = numbers.count().min(most.unwrap_or(usize::MAX));
        let source = &self.setup.dataset.source;
        let packs = source.packs_documents();
        let counts_classes = source.classes().is_some();
        let order: Rc<[usize]> = self.executor.validation_data_order(count, packs).into();
        let mut evaluation = match self.evaluation.take() {
            Some(evaluation) => evaluation,
            None => Evaluation::new(&self.device, &self.setup.config)?,
        };
        // A prefetcher of its own: that of training goes on where it is.
        let data = self.prefetcher();
        evaluation.batches.begin(data, numbers, &order);
        evaluation.arriving.begin(counts_classes);
        let mut feed = WorkerFeed {
            arrays: self.arrays(&evaluation.batches, pairs),
            settings: PassSettings { autocast: build::autocast(&self.setup.config), ..Default::default() },
            observation: Observation::new(&self.device, &Phases::new(&self.device, &self.recorder)),
            results: Results::new(&self.device, &self.recorder, &evaluation.arriving, on_losses),
        };
        let executor = &self.executor;
        let groups = &mut self.groups;
        let passes = Passes { models, executor, groups, count, feed: &mut feed };
        let ran = evaluation.run(&self.device, passes);
        evaluation.batches.end();
        self.evaluation = Some(evaluation);
        let skipped = ran?;
        Ok((feed.results.all()?, skipped))
    }

    /// Replaces the transports by counting ones, which transfer nothing, and returns the real ones.
    ///
    /// While ranks wait for each other on their devices, no driver may be called: with ranks as threads of
    /// one process, both could wait forever. So a rehearsal on undefined values, whose results are discarded,
    /// first makes the allocator reserve the memory that passes need.
    pub fn begin_rehearsal(&mut self) -> Result<GridGroups> {
        let counted = Communicator::counted(self.grid.rank(), self.grid.world_size());
        let counted = connections::divided(counted, &self.setup.config, self.grid)?;
        Ok(std::mem::replace(&mut self.groups, counted))
    }

    /// Ends a rehearsal with its result `ran`. No rank continues while another may still call its driver.
    ///
    /// # Errors
    /// The rehearsal failed, for example out of memory, or the transport fails.
    pub fn end_rehearsal<T>(&mut self, real: GridGroups, ran: Result<T>) -> Result<()> {
        self.groups = real;
        ran?;
        self.settle()
    }

    /// Waits for this rank's device and then for the other ranks. No rank continues while another still waits
    /// on its device or reads this rank's memory.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.device.synchronize()?;
        match self.grid.world_size() {
            1 => Ok(()),
            _ => Ok(self.groups.control().barrier()?),
        }
    }
}

/// Returns the grid as seen by this rank.
///
/// # Errors
/// The grid's size differs from the communicator's.
fn grid_of(config: &RunConfig, communicator: &Communicator) -> Result<RankGrid> {
    let grid = config.parallel.grid().seen_from(communicator.rank())?;
    if communicator.world_size() != grid.world_size() {
        return Err(WorkerError::Refused(format!(
            "{} ranks were started, and the configuration has {}",
            communicator.world_size(),
            config.parallel.grid_in_words()
        )));
    }
    Ok(grid)
}
