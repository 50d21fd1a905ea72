//! A rank that generates text, step by step.

use checkpoint::Target;
use collective::{Axis, Communicator, GridGroups, RankGrid};
use device::{Category, DType, Device, Request};
use tensor::Tensor;
use tensor::ops::choose::{self, DRAW_ROWS, seen_words};

use worker::engine::Engine;
use worker::graphs::StepGraphs;
use worker::graphs::refusals::never_captured_decoding;
use worker::state::loading;
use worker::{Result, Setup, Weights, WorkerError};

use crate::lines::{self, Line};
use crate::options::GeneratorOptions;
use crate::passes::Passes;
use crate::stage::OwnStage;

/// Rows that a GPU computes in a step, of which each sequence has one. Its time is that of reading the
/// weights.
const GPU_ROWS: usize = 64;
/// The same on a CPU.
const CPU_ROWS: usize = 8;

/// Bytes of what a [`Generator`] holds and of its peaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct GeneratorBytes {
    /// Weights of this rank's stages.
    pub weights: u64,
    /// Keys and values of this rank's layers.
    pub cache: u64,
    /// The most that was allocated.
    pub peak_allocated: u64,
    /// The most that was reserved.
    pub peak_reserved: u64,
}

/// One rank of a generation.
pub struct Generator {
    options: GeneratorOptions,
    pub(crate) passes: Passes,
    /// Tokens, documents and draws of a step: `[2 + DRAW_ROWS, rows]` u32.
    pub(crate) state: Tensor,
    /// Tokens that each slot's sequence has, a bit each, where a penalty asks for them.
    seen: Option<Tensor>,
    /// The next token of each slot's sequence: `[slots]` u32.
    chosen: Tensor,
    /// The CUDA graph of the pass over all rows and the choice of their tokens.
    pub(crate) graphs: StepGraphs,
}

impl Generator {
    /// Sequences that a replica on a device like this generates at once, at most.
    pub fn most_slots(is_gpu: bool) -> usize {
        if is_gpu { GPU_ROWS } else { CPU_ROWS }
    }

    /// Builds this rank's stages and caches, has the allocator reserve what generating needs, and reads the
    /// weights, if there are any: a plan has none.
    ///
    /// # Errors
    /// A model that takes no tokens, out of memory, weights that cannot be read or that belong to another
    /// model.
    pub fn new(
        setup: &Setup,
        communicator: Communicator,
        options: GeneratorOptions,
        weights: Option<&dyn Weights>,
    ) -> Result<Self> {
        let config = &setup.config;
        let nn::Examples::Tokens { vocabulary, .. } = config.model.examples() else {
            return Err(WorkerError::Refused("a model without tokens generates no text".to_owned()));
        };
        let device = setup.device(communicator.rank())?;
        let never = never_captured_decoding(config);
        let graphs = StepGraphs::new("decode steps", config.train.graphs, &device, never)?;
        let mut engine = Engine::connect(device.clone(), setup, communicator)?;
        let stages = engine.stages().map(|stage| OwnStage::new(&engine, stage, options));
        let stages = stages.collect::<Result<_>>()?;
        let rows = Self::most_slots(device.is_cuda_like());
        let state = Tensor::for_host(&device, [2 + DRAW_ROWS, rows], DType::U32, Category::Input)?;
        let request = Request::new(Category::Buffer, "seen_tokens");
        let seen = match options.choice.repetition_penalty == 1.0 {
            true => None,
            false => {
                let shape = [options.slots, seen_words(vocabulary)];
                Some(Tensor::zeros(&device, shape, DType::U32, request)?)
            }
        };
        let chosen =
            Tensor::zeros(&device, [options.slots], DType::U32, Request::new(Category::Buffer, "chosen"))?;
        engine.warm_up()?;
        let passes = Passes { engine, vocabulary, stages };
        let mut generator = Generator { options, passes, state, seen, chosen, graphs };
        generator.rehearse()?;
        if let Some(weights) = weights {
            let Passes { engine, stages, .. } = &mut generator.passes;
            let own = stages.iter().map(|stage| (&*stage.model, stage.units.as_ref()));
            loading::load_models(engine, own, weights)?;
        }
        Ok(generator)
    }

    /// Bytes so far.
    pub fn bytes(&self) -> GeneratorBytes {
        let statistics = self.passes.engine.device.statistics();
        GeneratorBytes {
            weights: self.passes.stages.iter().map(OwnStage::weight_bytes).sum(),
            cache: self.passes.stages.iter().map(OwnStage::cache_bytes).sum(),
            peak_allocated: statistics.peak_allocated(),
            peak_reserved: statistics.peak_reserved(),
        }
    }

    /// Bytes of weights that a step reads: all but a table of tokens that the head does not use.
    pub fn weight_bytes_read(&self) -> u64 {
        let vocabulary = self.passes.vocabulary;
        let parameters = self.passes.stages.iter().flat_map(|stage| stage.model.parameters().list());
        let of_tokens = |dims: &[usize]| matches!(dims, [rows, _] if *rows == vocabulary);
        let tables: Vec<u64> = parameters
            .filter(|parameter| of_tokens(parameter.weight.shape().dims()))
            .map(|parameter| parameter.weight.bytes() as u64)
            .collect();
        self.bytes().weights - tables.iter().skip(1).sum::<u64>()
    }

    /// Number of steps so far whose pass over all rows was replayed from a CUDA graph.
    pub fn replayed_steps(&self) -> u64 {
        self.graphs.replays()
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        &self.passes.engine.device
    }

    /// The groups of this rank, and the channel between the hosts of all ranks.
    pub fn groups(&mut self) -> &mut GridGroups {
        &mut self.passes.engine.groups
    }

    /// Computes the next token of every sequence. `replicas` has the lines of each replica: entry i of one is
    /// that of slot i, `None` for a slot without one. Returns the tokens of all replicas, on every rank, a
    /// list of slots each; those of slots without a sequence mean nothing. All ranks call it with the same
    /// lines; it waits for the device once, to read four bytes for each slot.
    ///
    /// # Errors
    /// More lines than slots, a line longer than the capacity, lines of another number of replicas, a failure
    /// of a rank or of the transport.
    pub fn step(&mut self, replicas: &[Vec<Option<Line<'_>>>]) -> Result<Vec<Vec<u32>>> {
        let own = self.passes.engine.grid.coordinate(Axis::Data);
        let lines = replicas.get(own).filter(|_| replicas.len() == self.passes.engine.grid.size(Axis::Data));
        let other = || WorkerError::Refused(format!("lines of {} replicas", replicas.len()));
        let lines = lines.ok_or_else(other)?;
        lines::check(lines, self.options)?;
        let most = replicas.iter().map(|lines| self.passes.count(lines)).max().unwrap_or(0);
        let chosen = self.chosen(lines, most)?;
        if self.passes.engine.grid.world_size() == 1 {
            return Ok(vec![chosen]);
        }
        let bytes: Vec<u8> = chosen.iter().flat_map(|token| token.to_le_bytes()).collect();
        let all = self.passes.engine.groups.control().all_gather(&bytes)?;
        let last = (Axis::Pipeline, self.passes.engine.grid.size(Axis::Pipeline) - 1);
        let of_replica = |replica: usize| {
            let bytes = all.get(self.passes.engine.grid.rank_at(&[(Axis::Data, replica), last]));
            let (words, _) = bytes.map_or(&[][..], Vec::as_slice).as_chunks::<4>();
            words.iter().map(|word| u32::from_le_bytes(*word)).collect()
        };
        Ok((0..self.passes.engine.grid.size(Axis::Data)).map(of_replica).collect())
    }

    /// The tokens of this replica's slots where this rank has the model's end; elsewhere none.
    fn chosen(&mut self, lines: &[Option<Line<'_>>], most: usize) -> Result<Vec<u32>> {
        let rows = self.state.shape().columns();
        self.state.set(&lines::state(lines, rows))?;
        self.see(lines)?;
        let has_end = match self.passes.has_caches() {
            true => {
                self.passes.fill(lines, most)?;
                self.extend()?
            }
            false => {
                let logits = self.passes.logits_of_all(rows, lines, most)?;
                self.choose(logits)?
            }
        };
        Ok(if has_end { self.chosen.to_vec::<u32>()? } else { Vec::new() })
    }

    /// Chooses the next token of each slot from the logits, if there are any. Returns whether there are.
    pub(crate) fn choose(&self, logits: Option<Tensor>) -> Result<bool> {
        let Some(logits) = logits else { return Ok(false) };
        let rows = self.state.shape().columns();
        let draws = self.state.view(2 * rows, [DRAW_ROWS, rows])?;
        let tokens = self.state.view(0, [rows, 1])?;
        let seen = self.seen.as_ref().map(|seen| (&tokens, seen));
        choose::forward(&logits, &draws, seen, self.options.choice, &self.chosen)?;
        Ok(true)
    }

    /// Marks the tokens of new sequences as seen.
    fn see(&mut self, lines: &[Option<Line<'_>>]) -> Result<()> {
        let Some(seen) = &self.seen else { return Ok(()) };
        let words = seen.shape().columns();
        for (slot, line) in lines.iter().enumerate() {
            if let Some(line) = line.filter(|line| line.seen.is_some()) {
                seen.view(slot * words, [words])?.set(&line.seen_bits(words))?;
            }
        }
        Ok(())
    }

    /// Rehearses the longest step, before there are weights.
    fn rehearse(&mut self) -> Result<()> {
        let real = self.passes.engine.begin_rehearsal()?;
        let longest = vec![0; self.options.longest.clamp(1, self.options.capacity)];
        let line = |slot: usize| {
            Some(Line { tokens: &longest, is_new: slot == 0, seen: None, number: 0, key: [0, 0] })
        };
        let lines: Vec<_> = (0..self.options.slots).map(line).collect();
        let ran = self.chosen(&lines, 0);
        // Transports that count give no values.
        self.passes.outdate();
        self.passes.engine.end_rehearsal(real, ran)
    }

    /// The grid of ranks.
    pub fn grid(&self) -> &RankGrid {
        &self.passes.engine.grid
    }

    /// Overwrites this rank's parts of the parameter or buffer `name`, of which there may be none, with the
    /// bytes of an array of type `dtype`.
    ///
    /// # Errors
    /// Types that do not convert.
    pub fn set_array(&self, name: &str, dtype: DType, bytes: &[u8]) -> Result<()> {
        for OwnStage { model, .. } in &self.passes.stages {
            for parameter in model.parameters().list().iter().filter(|parameter| parameter.name == name) {
                let tensor = parameter.weight.tensor()?;
                let size = dtype.bytes();
                let coordinate = |axis| model.parameters().coordinate(axis, parameter.shard);
                for run in parameter.sharding.runs(coordinate, 0..tensor.elements()) {
                    let part = tensor.view(run.local, [run.elements])?;
                    let own = &bytes[size * run.whole..size * (run.whole + run.elements)];
                    Target::whole(name.to_owned(), dtype, part).take(0, own)?;
                }
            }
            for buffer in model.buffers().iter().filter(|buffer| buffer.name() == name) {
                Target::whole(name.to_owned(), dtype, buffer.tensor().clone()).take(0, bytes)?;
            }
        }
        Ok(())
    }
}
