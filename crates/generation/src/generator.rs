//! One rank of text generation, step by step.

use std::sync::Arc;

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

/// Number of rows, one per sequence, that a GPU computes in a step. Up to this number, a step takes only the
/// time to read the weights.
const GPU_ROWS: usize = 64;
/// Number of rows that a CPU computes in a step.
const CPU_ROWS: usize = 8;

/// Memory of a [`Generator`] in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct GeneratorBytes {
    /// Bytes of the weights of this rank's stages.
    pub weights: u64,
    /// Bytes of the cached keys and values of this rank's layers.
    pub cache: u64,
    /// Peak allocated bytes.
    pub peak_allocated: u64,
    /// Peak reserved bytes.
    pub peak_reserved: u64,
}

/// One rank of a generation.
pub struct Generator {
    options: GeneratorOptions,
    pub(crate) passes: Passes,
    /// Input of a step: token, document and draw of each row, `[2 + DRAW_ROWS, rows]` u32.
    pub(crate) state: Tensor,
    /// Bit set of the tokens in each slot's sequence; `None` without a repetition penalty.
    seen: Option<Tensor>,
    /// Next token of each slot's sequence: `[slots]` u32.
    chosen: Tensor,
    /// CUDA graph of the pass over all rows and the choice of their tokens.
    pub(crate) graphs: StepGraphs,
}

impl Generator {
    /// Returns the maximum number of sequences that a replica generates at once.
    pub fn most_slots(is_gpu: bool) -> usize {
        if is_gpu { GPU_ROWS } else { CPU_ROWS }
    }

    /// Builds this rank's stages and caches, reserves the memory that generating needs, and reads the
    /// weights. A plan has no weights.
    ///
    /// # Errors
    /// The model takes no tokens, memory runs out, or weights cannot be read or belong to another model.
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
        let read = weights.map_or_else(Arc::default, |weights| setup.names_in(weights));
        let stages = engine.stages().map(|stage| OwnStage::new(&engine, stage, options, &read));
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

    /// Returns the memory used so far.
    pub fn bytes(&self) -> GeneratorBytes {
        let statistics = self.passes.engine.device.statistics();
        GeneratorBytes {
            weights: self.passes.stages.iter().map(OwnStage::weight_bytes).sum(),
            cache: self.passes.stages.iter().map(OwnStage::cache_bytes).sum(),
            peak_allocated: statistics.peak_allocated(),
            peak_reserved: statistics.peak_reserved(),
        }
    }

    /// Returns the bytes of weights that a step reads: all except a token table that the head does not use.
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

    /// Returns the number of steps whose pass was replayed from a CUDA graph.
    pub fn replayed_steps(&self) -> u64 {
        self.graphs.replays()
    }

    /// Returns this rank's device.
    pub fn device(&self) -> &Device {
        &self.passes.engine.device
    }

    /// Returns this rank's process groups, and the control channel between all ranks.
    pub fn groups(&mut self) -> &mut GridGroups {
        &mut self.passes.engine.groups
    }

    /// Computes the next token of every sequence. `replicas` has one list per replica with an entry for each
    /// slot, `None` for an empty slot. Returns the tokens of all replicas on every rank, a list of slots
    /// each; tokens of empty slots are meaningless. All ranks must call this with the same lines. Waits for
    /// the device once, to read four bytes per slot.
    ///
    /// # Errors
    /// There are more lines than slots, a line exceeds the capacity, the number of replicas differs, or a
    /// rank or the transport fails.
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

    /// Returns the tokens of this replica's slots if this rank has the last stage; otherwise empty.
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

    /// Chooses the next token of each slot from the logits. Returns whether there are logits.
    pub(crate) fn choose(&self, logits: Option<Tensor>) -> Result<bool> {
        let Some(logits) = logits else { return Ok(false) };
        let rows = self.state.shape().columns();
        let draws = self.state.view(2 * rows, [DRAW_ROWS, rows])?;
        let tokens = self.state.view(0, [rows, 1])?;
        let seen = self.seen.as_ref().map(|seen| (&tokens, seen));
        choose::forward(&logits, &draws, seen, self.options.choice, &self.chosen)?;
        Ok(true)
    }

    /// Sets the bits of the tokens in new sequences, for the repetition penalty.
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

    /// Runs the longest step once before weights are loaded, so that its memory is reserved.
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

    /// Returns the grid of ranks.
    pub fn grid(&self) -> &RankGrid {
        &self.passes.engine.grid
    }

    /// Overwrites this rank's parts of the parameter or buffer `name` with an array's `bytes` of type
    /// `dtype`. Does nothing if this rank has no part.
    ///
    /// # Errors
    /// The types do not convert.
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
