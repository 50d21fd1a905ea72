//! The executor: every schedule gives the gradients of one rank, bit for bit, and holds the predicted number
//! of received tensors at each index of its list.

use autograd::{Mode, Tape, Var, ops};
use collective::{Axis, Communicator, GridGroups, RankGrid, threads};
use device::{Category, DType, Device, DeviceOptions};
use nn::layers::{Activation, Linear};
use nn::{Init, Input, Model, Parameters};
use parallel::ParallelError;
use parallel::data::{Assignment, BucketEnd, GradientReduction, Reduction, ReductionOptions};
use parallel::pipeline::{
    Action, ActionKind, ActionPart, Executor, Feed, Held, Loads, Schedule, ScheduleKind, StageBoundary,
    StagePart, loads,
};
use tensor::Tensor;

use super::shapes::schedule;

const ROWS: usize = 8;
const WIDTH: usize = 64;
/// Bytes of the tensor between stages: a multiple of the allocator's granularity.
const BYTES: usize = ROWS * WIDTH * 4;

/// A stage of one linear layer.
struct Layer {
    parameters: Parameters,
    linear: Linear,
}

impl Layer {
    fn new(device: &Device, stage: usize) -> Self {
        let mut parameters = Parameters::new(device, 1, DType::F32);
        let init = Init::uniform_fan_in(WIDTH);
        let name = stage.to_string();
        let linear = Linear::new(&mut parameters, &name, WIDTH, WIDTH, init, Activation::None).unwrap();
        Layer { parameters, linear }
    }
}

impl Model for Layer {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn forward(&self, tape: &Tape, input: Input) -> nn::Result<Var> {
        let x = match input {
            Input::Batch(batch) => tape.constant(batch),
            Input::Hidden(hidden) => hidden,
        };
        self.linear.forward(tape, x)
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> nn::Result<Var> {
        Ok(ops::mse(tape, prediction, targets, scale)?)
    }
}

/// A feed that generates micro-batches, and checks the held tensors at the start of each pass.
struct Watching<'a> {
    device: Device,
    schedule: &'a Schedule,
    loads: &'a Loads,
    rank: usize,
    index: usize,
    passes: usize,
    losses: Vec<f32>,
}

impl Watching<'_> {
    fn tensor(&self, name: &str, micro_batch: usize) -> Tensor {
        let key = philox::key_of_name(micro_batch as u64, name);
        let value = |i: usize| philox::normals(philox::philox4x32(key, [i as u32, 0, 0, 0]))[0];
        let values: Vec<f32> = (0..ROWS * WIDTH).map(value).collect();
        Tensor::from_host(&self.device, &values, [ROWS, WIDTH], Category::Input).unwrap()
    }

    /// Number of tensors from other ranks held at an index: inputs while an activation or weight half needs
    /// them, and gradients from their receive to the end of their pass, which in this model is the weight
    /// half's.
    fn expected(&self, action: Action, index: usize) -> usize {
        let last = self.schedule.stages - 1;
        let held_by = |stage: usize| {
            let Held { activations, weights, received_forward, received_backward } =
                self.loads.stages[stage].during[index];
            let consumes = matches!(action.kind, ActionKind::Backward | ActionKind::BackwardInput);
            let inputs = if stage > 0 { activations + weights + received_forward } else { 0 };
            let here = usize::from(consumes && stage == action.stage);
            inputs + if stage < last { weights + received_backward + here } else { 0 }
        };
        self.schedule.stages_of(self.rank).map(held_by).sum()
    }
}

impl Feed for Watching<'_> {
    type Error = ParallelError;

    fn enter(&mut self, action: Action, part: ActionPart) -> Result<(), ParallelError> {
        if part != ActionPart::Computing || self.index == usize::MAX {
            return Ok(());
        }
        let list = &self.schedule.actions[self.rank];
        let index = self.index + list[self.index..].iter().position(|other| *other == action).unwrap();
        self.index = index;
        self.passes += 1;
        let held =
            self.device.with_allocator(|allocator| allocator.category_bytes()).get(Category::Communication);
        if self.schedule.ranks > 1 {
            assert_eq!(held as usize, BYTES * self.expected(action, index), "index {index}: {action}");
        }
        Ok(())
    }

    fn inputs(&mut self, micro_batch: usize) -> Result<Tensor, ParallelError> {
        Ok(self.tensor("inputs", micro_batch))
    }

    fn targets(&mut self, micro_batch: usize) -> Result<Tensor, ParallelError> {
        Ok(self.tensor("targets", micro_batch))
    }

    fn loss(&mut self, _: usize, loss: &Tensor) -> Result<(), ParallelError> {
        self.losses.push(loss.to_vec::<f32>()?[0]);
        Ok(())
    }
}

/// A rank's gradients by stage, the sum of the losses on the last stage, and the losses of a validation.
type RunResults = (Vec<(usize, Vec<Vec<f32>>)>, Option<f32>, Vec<f32>);

fn run_rank(schedule: &Schedule, communicator: Communicator) -> Result<RunResults, ParallelError> {
    let rank = communicator.rank();
    let device = Device::cpu(rank, &DeviceOptions::default())?;
    let grid = RankGrid::new(&[(Axis::Data, 1), (Axis::Pipeline, schedule.ranks)], rank)?;
    let stages: Vec<_> = schedule.stages_of(rank).collect();
    let options = |stage: usize| ReductionOptions {
        assignment: Assignment::contiguous(1, 1).with_lanes_of(schedule.micro_batches),
        rank: 0,
        bucket_end: BucketEnd::Bytes(512),
        dtype: DType::F32,
        reduction: Reduction::Tree,
        zero_stage: 0,
        loss: stage + 1 == schedule.stages,
        loss_values: 1,
    };
    let part = |stage: &usize| {
        let model = Box::new(Layer::new(&device, *stage));
        let reduction = GradientReduction::new(&device, model.parameters(), options(*stage)).unwrap();
        StagePart { model, reduction, weights: None }
    };
    let mut parts: Vec<_> = stages.iter().map(part).collect();
    let boundary = StageBoundary {
        shape: [ROWS, WIDTH].into(),
        dtype: DType::F32,
        evaluated_dtype: DType::F32,
        gradient: true,
    };
    let boundaries = vec![boundary; schedule.stages - 1];
    let executor = Executor::new(&device, grid, schedule.clone(), boundaries)?;
    let loads = loads(schedule);
    let mut feed = Watching {
        device: device.clone(),
        schedule,
        loads: &loads,
        rank,
        index: 0,
        passes: 0,
        losses: Vec::new(),
    };
    let mut groups = GridGroups::new(communicator, grid)?;
    let scale = 1.0 / schedule.micro_batches as f32;
    // The second step shows that the first leaves nothing behind.
    for _ in 0..2 {
        (feed.index, feed.passes) = (0, 0);
        executor.train(&mut parts, &mut groups, Mode::Train, scale, &mut feed)?;
        let passes = schedule.actions[rank].iter().filter(|action| action.kind.is_compute()).count();
        assert_eq!(feed.passes, passes);
        let data = groups.divided(Axis::Data)?;
        parts.iter_mut().try_for_each(|part| part.reduction.finish(&data))?;
        let live = device.with_allocator(|allocator| allocator.category_bytes());
        for category in [Category::Communication, Category::Activation, Category::ActivationGradient] {
            assert_eq!(live.get(category), 0, "{category:?}");
        }
    }
    feed.index = usize::MAX;
    let models = parts.iter().map(|part| &*part.model).collect();
    executor.validate(models, &mut groups, 0..schedule.micro_batches, &mut feed)?;
    let gradients =
        |part: &StagePart| part.reduction.gradients().iter().map(|g| g.to_vec().unwrap()).collect();
    let loss = parts.iter().find_map(|part| part.reduction.loss());
    let loss = loss.map(|loss| loss.to_vec::<f32>().unwrap()[0]);
    Ok((stages.into_iter().zip(parts.iter().map(gradients)).collect(), loss, feed.losses))
}

/// Runs a schedule on all its ranks, and collects the results.
fn run(schedule: &Schedule) -> RunResults {
    let shared = schedule.clone();
    let body = move |communicator: Communicator| run_rank(&shared, communicator);
    let ranks = threads::run(schedule.ranks, threads::Options::default(), body).unwrap();
    let mut whole: RunResults = (Vec::new(), None, Vec::new());
    for (gradients, loss, losses) in ranks {
        whole.0.extend(gradients);
        whole.1 = whole.1.or(loss);
        whole.2.extend(losses);
    }
    whole.0.sort_by_key(|(stage, _)| *stage);
    whole
}

#[test]
fn every_schedule_gives_the_gradients_of_one_rank_and_holds_its_loads() {
    for (stages, micro_batches) in [(2, 1), (2, 5), (4, 4), (4, 8)] {
        // All stages on one rank, which passes tensors from stage to stage.
        let alone = run(&schedule(ScheduleKind::Interleaved, 1, stages, micro_batches));
        assert_eq!((alone.0.len(), alone.2.len()), (stages, micro_batches));
        assert!(alone.1.unwrap() > 0.0);
        for kind in ScheduleKind::ALL {
            let (ranks, chunks) = match kind {
                ScheduleKind::Interleaved if micro_batches % 2 == 0 && stages > 2 => (2, stages / 2),
                ScheduleKind::Interleaved => continue,
                _ => (stages, 1),
            };
            let results = run(&schedule(kind, ranks, chunks, micro_batches));
            assert!(results == alone, "{kind}: {stages} stages, {micro_batches} micro-batches");
        }
    }
}

#[test]
fn a_schedule_for_another_number_of_ranks_is_refused() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let grid = RankGrid::new(&[(Axis::Pipeline, 2)], 0).unwrap();
    let boundary = StageBoundary {
        shape: [ROWS, WIDTH].into(),
        dtype: DType::F32,
        evaluated_dtype: DType::F32,
        gradient: true,
    };
    for (schedule, cuts) in
        [(schedule(ScheduleKind::GPipe, 3, 1, 3), 2), (schedule(ScheduleKind::GPipe, 2, 1, 3), 2)]
    {
        let refused = Executor::new(&device, grid, schedule, vec![boundary; cuts]);
        assert!(matches!(refused, Err(ParallelError::Grid(_))));
    }
}
