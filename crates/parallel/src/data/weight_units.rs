//! Sharded weights: each rank holds an equal shard of every unit's weights (ZeRO stage 3), on its device or
//! in host memory. A unit is gathered when an operator accesses one of its weights.
//!
//! Gathered units take turns in a few buffers that are allocated once. Work that overwrites a buffer is
//! enqueued after the passes that used it, so a unit is released when another one needs its buffer. While a
//! unit is in use, the next [`UnitOptions::prefetch`] units are gathered, in the order of the last work of
//! the same kind. All ranks run the same passes, so they make the same calls.
//!
//! If a weight is multiplied in FP8 only, its FP8 codes are gathered instead. Each rank casts its shard with
//! the scale of the whole weight, computed from the largest magnitudes of all shards. If weights are in host
//! memory, the codes stay on the device, and weights are copied there only after an update.

mod buffers;
mod codes;
mod staging;

use std::cell::RefCell;
use std::error::Error;
use std::rc::{Rc, Weak};

use autograd::{WeightHandle, WeightSource};
use collective::{Collective, ProcessGroup};
use device::{Category, Device, Request, StreamKind};
use nn::{ParameterId, Parameters};
use tensor::Tensor;

use super::visits::Visits;
pub use super::visits::WorkKind;
use super::weight_layout::{FlatWeights, ValueKind, WeightLayout};
use crate::error::{ParallelError, Result};
use buffers::UnitBuffers;
use codes::Codes;

/// The stream of copies and collectives of weights.
const STREAM: StreamKind = StreamKind::Reduce;

/// Options of [`WeightUnits`].
#[derive(Clone, Copy, Debug)]
pub struct UnitOptions {
    /// This rank's index among the ranks that hold shards.
    pub rank: usize,
    /// Number of units gathered ahead of their use.
    pub prefetch: usize,
}

/// This rank's shards of a stage's weights.
#[derive(Clone, Debug)]
pub struct WeightUnits(Rc<Units>);

#[derive(Debug)]
struct Units {
    device: Device,
    /// The host memory pool of this rank's shards, if they are not on the device.
    host: Option<Device>,
    layout: WeightLayout,
    options: UnitOptions,
    /// This rank's shard of each array of each unit.
    shards: Vec<Vec<Tensor>>,
    /// The handles of the weights, by parameter.
    handles: Vec<WeightHandle>,
    buffers: UnitBuffers,
    codes: Codes,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    /// The group of the ranks that hold shards.
    group: Option<ProcessGroup>,
    /// The unit in each buffer.
    held: Vec<Option<usize>>,
    /// The unit used last.
    current: Option<usize>,
    visits: Visits,
}

impl WeightUnits {
    /// Allocates buffers for gathered units and this rank's shards of `parameters`, with initial values. The
    /// parameters must have no values of their own. With `host`, the shards are in that pool.
    pub fn new(
        (device, host): (&Device, Option<&Device>),
        parameters: &Parameters,
        layout: WeightLayout,
        options: UnitOptions,
    ) -> Result<Self> {
        let part = |flat: &FlatWeights| {
            let request = Request::new(Category::Parameter, "weight_shard");
            let on = host.unwrap_or(device);
            let elements = flat.elements / layout.ranks();
            Tensor::zeros(on, [elements], flat.kind.held_as(parameters), request)
        };
        let shards = layout.units.iter().map(|arrays| arrays.iter().map(part).collect());
        let shards = shards.collect::<tensor::Result<Vec<Vec<_>>>>()?;
        let codes = Codes::new((device, host), parameters, &layout, options.rank)?;
        let buffers = UnitBuffers::new(device, parameters, &layout, &codes, options.prefetch)?;
        let held = vec![None; buffers.count()];
        let visits = Visits::default();
        let state = RefCell::new(State { group: None, held, current: None, visits });
        let handles: Vec<_> = parameters.list().iter().map(|parameter| parameter.weight.clone()).collect();
        let device = device.clone();
        let host = host.cloned();
        let units = Rc::new(Units { device, host, layout, options, shards, handles, buffers, codes, state });
        for (parameter, handle) in parameters.list().iter().zip(&units.handles) {
            let source: Weak<dyn WeightSource> = Rc::downgrade(&units) as Weak<dyn WeightSource>;
            handle.gathered_by(source, parameter.unit);
        }
        let units = WeightUnits(units);
        for number in 0..parameters.list().len() {
            if let Some((first, part)) = units.part(number)? {
                units.0.fill_initial(parameters, ParameterId(number), (first, &part))?;
            }
        }
        Ok(units)
    }

    /// Returns this rank's shard of a parameter and the index of its first element; `None` if it holds none.
    pub fn part(&self, parameter: usize) -> Result<Option<(usize, Tensor)>> {
        let Units { layout, shards, options: UnitOptions { rank, .. }, .. } = &*self.0;
        let range = layout.range(*rank, parameter);
        if range.is_empty() {
            return Ok(None);
        }
        let ([unit, array], offset) = layout.position(parameter, *rank);
        Ok(Some((range.start, shards[unit][array].view(offset, [range.len()])?)))
    }

    /// The shards of all ranks.
    pub fn layout(&self) -> &WeightLayout {
        &self.0.layout
    }

    /// Begins work of a kind, whose units are gathered over `group`. Casts changed weights to FP8.
    pub fn begin(&self, kind: WorkKind, group: &ProcessGroup) -> Result<()> {
        let mut state = self.0.state.borrow_mut();
        state.group = Some(group.clone());
        state.visits.begin(kind);
        state.current = None;
        // Casts of units that are still gathered are made again, as always at the beginning of work.
        state.held.iter().flatten().for_each(|unit| self.0.buffers.fill_copies(*unit));
        self.0.codes.cast(group, |parameter| self.part(parameter))
    }

    /// Gathers the units that the last work of this kind used, on a rank that has nothing to compute.
    pub fn repeat(&self, kind: WorkKind, group: &ProcessGroup) -> Result<()> {
        self.begin(kind, group)?;
        let units = self.0.state.borrow().visits.last(kind);
        units.into_iter().try_for_each(|unit| self.0.visit(unit))
    }

    /// Bytes of the shards that this rank holds.
    pub fn bytes(&self) -> usize {
        let weights: usize = self.0.shards.iter().flatten().map(Tensor::bytes).sum();
        weights + self.0.codes.bytes()
    }

    /// Releases all gathered units, because the weights have changed.
    pub fn outdate(&self) {
        let mut state = self.0.state.borrow_mut();
        state.current = None;
        state.held.fill(None);
        self.0.handles.iter().for_each(WeightHandle::release);
        self.0.codes.outdate();
    }
}

impl Units {
    /// Gathers a unit on the reduce stream, unless its buffer already holds it. The first operator that uses
    /// a weight waits for it.
    fn fetch(&self, state: &mut State, unit: usize) -> Result<()> {
        let buffer = self.buffers.buffer_of(unit);
        if state.held[buffer] == Some(unit) {
            return Ok(());
        }
        if let Some(before) = state.held[buffer].take() {
            self.release(before);
        }
        // After the passes that used the buffer, and after updates of offloaded shards.
        self.device.wait(STREAM, &self.device.record(StreamKind::Compute)?)?;
        if let Some(host) = &self.host {
            self.device.wait_for_pool(host, STREAM)?;
        }
        let arrays = self.layout.units[unit].iter().enumerate();
        for (array, flat) in arrays {
            let whole = if flat.kind.is_gathered(self.layout.ranks()) {
                let whole = self.buffers.array(unit, array)?;
                self.gather_array((unit, array, flat.kind), &whole, state.group.as_ref())?;
                whole
            } else {
                self.codes.shard(unit, array)?.clone()
            };
            for (parameter, first) in &flat.members {
                let handle = &self.handles[*parameter];
                let values = whole.view(*first, handle.shape())?;
                match flat.kind {
                    ValueKind::Fp8 => {
                        self.codes.fill(*parameter, values, self.buffers.turned(*parameter)?)?;
                    }
                    ValueKind::Weights | ValueKind::Records | ValueKind::Frozen => handle.fill(values)?,
                }
            }
        }
        self.buffers.arrive(unit, &self.device.arrival(STREAM)?);
        self.buffers.fill_copies(unit);
        state.held[buffer] = Some(unit);
        Ok(())
    }

    /// Gathers one array of a unit into `whole`: copies this rank's shard, from the host if it is there, and
    /// receives the others.
    fn gather_array(
        &self,
        (unit, array, kind): (usize, usize, ValueKind),
        whole: &Tensor,
        group: Option<&ProcessGroup>,
    ) -> Result<()> {
        let missing =
            || ParallelError::Grid("weights were used before their ranks were connected".to_owned());
        let part = match kind {
            ValueKind::Fp8 => self.codes.shard(unit, array)?,
            ValueKind::Weights | ValueKind::Records | ValueKind::Frozen => &self.shards[unit][array],
        };
        let mut own = part.clone();
        if self.host.is_some() && kind != ValueKind::Fp8 {
            own = whole.view(self.options.rank * part.elements(), [part.elements()])?;
            own.copy_from_pool(part, STREAM)?;
            if self.layout.ranks() == 1 {
                return Ok(());
            }
        }
        Ok(group
            .ok_or_else(missing)?
            .run(Collective::AllGather { input: own.region(), output: whole.region() }, STREAM)?)
    }

    /// Draws the initial values of this rank's shard of a parameter, which begins at element `first`. Draws
    /// on the device, so that the bits do not depend on where the shard is kept.
    fn fill_initial(
        &self,
        parameters: &Parameters,
        parameter: ParameterId,
        (first, part): (usize, &Tensor),
    ) -> Result<()> {
        let Some(host) = &self.host else { return Ok(parameters.fill_initial(parameter, first, part)?) };
        if self.codes.has(parameter.0) {
            return self
                .codes
                .fill_part(part, |buffer| Ok(parameters.fill_initial(parameter, first, buffer)?));
        }
        let ([unit, array], _) = self.layout.position(parameter.0, self.options.rank);
        let buffer = self.buffers.array(unit, array)?.view(0, [part.elements()])?;
        parameters.fill_initial(parameter, first, &buffer)?;
        buffer.copy_to_pool(part, StreamKind::Compute)?;
        host.fill_until(self.device.record(StreamKind::Compute)?);
        Ok(())
    }

    /// Releases the weights of a unit.
    fn release(&self, unit: usize) {
        for (parameter, _) in self.layout.units[unit].iter().flat_map(|flat| &flat.members) {
            self.handles[*parameter].release();
            self.codes.release(*parameter);
        }
        self.buffers.release_copies(unit);
    }

    /// Gathers a unit that is needed now, and the units expected next.
    fn visit(&self, unit: usize) -> Result<()> {
        let mut state = self.state.borrow_mut();
        if state.current == Some(unit) {
            return Ok(());
        }
        self.fetch(&mut state, unit)?;
        state.current = Some(unit);
        state.visits.visit(unit);
        self.fetch_ahead(&mut state, unit)
    }

    /// Gathers the units expected next, up to the first whose buffer is in use.
    fn fetch_ahead(&self, state: &mut State, current: usize) -> Result<()> {
        let mut taken = vec![self.buffers.buffer_of(current)];
        for next in state.visits.following(self.options.prefetch) {
            let buffer = self.buffers.buffer_of(next);
            if taken.contains(&buffer) {
                break;
            }
            self.fetch(state, next)?;
            taken.push(buffer);
        }
        Ok(())
    }
}

impl WeightSource for Units {
    fn gather(&self, unit: usize) -> std::result::Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.visit(unit)?)
    }
}
