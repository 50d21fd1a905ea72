//! Weights that come and go (ZeRO stage 3): each rank holds an equal part of every unit's weights, and a unit
//! is gathered when an operator asks for one of its weights.
//!
//! Gathered units lie in a few buffers that are allocated once. A buffer is overwritten only by work behind
//! the passes that used it, so a unit is released when another one needs its buffer. While a unit is used,
//! the next ones are gathered, as many as [`UnitOptions::prefetch`]. The order of the units is that of the
//! last walk of the same kind: all ranks run the same passes, so they make the same calls.
//!
//! FP8 codes are gathered instead of a weight that is multiplied in FP8 only: each rank casts its part with
//! the factor of the whole weight, which follows from the largest magnitudes of all parts.

mod buffers;
mod codes;

use std::cell::RefCell;
use std::error::Error;
use std::rc::{Rc, Weak};

use autograd::{WeightHandle, WeightSource};
use collective::{DataPlane, SharedPlane};
use device::{Category, Device, Request, StreamKind};
use nn::{ParameterId, Parameters};
use tensor::Tensor;

use super::visits::Visits;
pub use super::visits::WalkKind;
use super::weight_layout::{FlatWeights, ValueKind, WeightLayout};
use crate::error::{ParallelError, Result};
use buffers::UnitBuffers;
use codes::Codes;

/// Options of [`WeightUnits`].
#[derive(Clone, Copy, Debug)]
pub struct UnitOptions {
    /// This rank's coordinate among those that hold parts.
    pub rank: usize,
    /// Units that are gathered ahead of their use.
    pub prefetch: usize,
}

/// The weights of a stage, of which this rank holds a part.
#[derive(Clone, Debug)]
pub struct WeightUnits(Rc<Units>);

#[derive(Debug)]
struct Units {
    device: Device,
    layout: WeightLayout,
    options: UnitOptions,
    /// This rank's part of each array of each unit.
    shards: Vec<Vec<Tensor>>,
    /// The handles of the weights, by parameter.
    handles: Vec<WeightHandle>,
    buffers: UnitBuffers,
    codes: Codes,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    /// The plane of the ranks that hold parts.
    plane: Option<SharedPlane>,
    /// The unit that each buffer holds.
    held: Vec<Option<usize>>,
    /// The unit that was asked for last.
    current: Option<usize>,
    visits: Visits,
}

impl WeightUnits {
    /// Allocates this rank's parts of `parameters`, which have no values, with their initial values, and the
    /// buffers of gathered units; `layout` is that of the weights.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        device: &Device,
        parameters: &Parameters,
        layout: WeightLayout,
        options: UnitOptions,
    ) -> Result<Self> {
        let dtype = parameters.dtype();
        let part = |flat: &FlatWeights| {
            let request = Request::new(Category::Parameter, "weight_shard");
            Tensor::zeros(device, [flat.elements / layout.ranks()], flat.kind.held_as(dtype), request)
        };
        let shards = layout.units.iter().map(|arrays| arrays.iter().map(part).collect());
        let shards = shards.collect::<tensor::Result<Vec<Vec<_>>>>()?;
        let codes = Codes::new(device, parameters, &layout, options.rank)?;
        let buffers = UnitBuffers::new(device, parameters, &layout, &codes, options.prefetch)?;
        let (held, visits) = (vec![None; buffers.count()], Visits::default());
        let state = RefCell::new(State { plane: None, held, current: None, visits });
        let handles: Vec<_> = parameters.list().iter().map(|parameter| parameter.weight.clone()).collect();
        let device = device.clone();
        let units = Rc::new(Units { device, layout, options, shards, handles, buffers, codes, state });
        for (parameter, handle) in parameters.list().iter().zip(&units.handles) {
            let source: Weak<dyn WeightSource> = Rc::downgrade(&units) as Weak<dyn WeightSource>;
            handle.gathered_by(source, parameter.unit);
        }
        let units = WeightUnits(units);
        for number in 0..parameters.list().len() {
            if let Some((first, part)) = units.part(number)? {
                parameters.fill_initial(ParameterId(number), first, &part)?;
            }
        }
        Ok(units)
    }

    /// Returns this rank's part of a parameter, with its first element there; `None` if it has none.
    ///
    /// # Errors
    /// None for a parameter of the stage.
    pub fn part(&self, parameter: usize) -> Result<Option<(usize, Tensor)>> {
        let Units { layout, shards, options: UnitOptions { rank, .. }, .. } = &*self.0;
        let range = layout.range(*rank, parameter);
        if range.is_empty() {
            return Ok(None);
        }
        let ([unit, array], offset) = layout.position(parameter, *rank);
        Ok(Some((range.start, shards[unit][array].view(offset, [range.len()])?)))
    }

    /// The parts of all ranks.
    pub fn layout(&self) -> &WeightLayout {
        &self.0.layout
    }

    /// Begins a walk through the units, which are gathered over `plane`. Weights in FP8 are cast if they have
    /// changed.
    ///
    /// # Errors
    /// A failed collective.
    pub fn begin(&self, kind: WalkKind, plane: &SharedPlane) -> Result<()> {
        let mut state = self.0.state.borrow_mut();
        state.plane = Some(plane.clone());
        state.visits.begin(kind);
        state.current = None;
        self.0.codes.cast(&mut plane.clone(), |parameter| self.part(parameter))
    }

    /// Gathers what the last walk of a kind did, for ranks that compute while this one has nothing to do.
    ///
    /// # Errors
    /// A failed collective.
    pub fn repeat(&self, kind: WalkKind, plane: &SharedPlane) -> Result<()> {
        self.begin(kind, plane)?;
        let units = self.0.state.borrow().visits.last(kind);
        units.into_iter().try_for_each(|unit| self.0.visit(unit))
    }

    /// Bytes of the parts that this rank holds.
    pub fn bytes(&self) -> usize {
        let weights: usize = self.0.shards.iter().flatten().map(Tensor::bytes).sum();
        weights + self.0.codes.bytes()
    }

    /// Releases all gathered units, whose weights have changed.
    pub fn outdate(&self) {
        let mut state = self.0.state.borrow_mut();
        state.current = None;
        state.held.fill(None);
        self.0.handles.iter().for_each(WeightHandle::release);
        self.0.codes.outdate();
    }
}

impl Units {
    /// Gathers a unit on the reduce stream, unless its buffer holds it. The first operator that uses a weight
    /// waits for it.
    fn fetch(&self, state: &mut State, unit: usize) -> Result<()> {
        const STREAM: StreamKind = StreamKind::Reduce;
        let slot = self.buffers.slot_of(unit);
        if state.held[slot] == Some(unit) {
            return Ok(());
        }
        let missing =
            || ParallelError::Grid("weights were used before their ranks were connected".to_owned());
        let plane = state.plane.as_mut().ok_or_else(missing)?;
        if let Some(before) = state.held[slot].take() {
            self.release(before);
        }
        // Behind the passes that used the buffer.
        self.device.wait(STREAM, &self.device.record(StreamKind::Compute)?)?;
        let arrays = self.layout.units[unit].iter().enumerate();
        for (array, flat) in arrays {
            let whole = self.buffers.array(unit, array)?;
            let own = match flat.kind {
                ValueKind::Fp8 => self.codes.shard(unit, array)?,
                ValueKind::Weights | ValueKind::Records => &self.shards[unit][array],
            };
            plane.all_gather(own.region(), whole.region(), STREAM)?;
            for (parameter, first) in &flat.members {
                let handle = &self.handles[*parameter];
                let values = whole.view(*first, handle.shape())?;
                match flat.kind {
                    ValueKind::Fp8 => {
                        self.codes.fill(*parameter, values, self.buffers.turned(*parameter)?, STREAM)?;
                    }
                    ValueKind::Weights | ValueKind::Records => handle.fill(values)?,
                }
            }
        }
        self.buffers.arrive(unit, &self.device.arrival(STREAM)?);
        self.buffers.fill_copies(unit);
        state.held[slot] = Some(unit);
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

    /// Gathers a unit that is used now, and those that follow.
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

    /// Gathers the units that follow in the walk, up to one that needs a buffer in use.
    fn fetch_ahead(&self, state: &mut State, current: usize) -> Result<()> {
        let mut taken = vec![self.buffers.slot_of(current)];
        for next in state.visits.following(self.options.prefetch) {
            let slot = self.buffers.slot_of(next);
            if taken.contains(&slot) {
                break;
            }
            self.fetch(state, next)?;
            taken.push(slot);
        }
        Ok(())
    }
}

impl WeightSource for Units {
    fn gather(&self, unit: usize) -> std::result::Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.visit(unit)?)
    }
}
