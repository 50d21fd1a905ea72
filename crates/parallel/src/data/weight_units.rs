//! Weights that come and go (ZeRO stage 3): each rank holds an equal part of every unit's weights, and a unit
//! is gathered when an operator asks for one of its weights.
//!
//! Gathered units lie in a few buffers that are allocated once. A buffer is overwritten only by work behind
//! the passes that used it, so a unit is released when another one needs its buffer. While a unit is used,
//! the next ones are gathered, as many as [`UnitOptions::prefetch`]. The order of the units is that of the
//! last walk of the same kind: all ranks run the same passes, so they make the same calls.

use std::cell::RefCell;
use std::error::Error;
use std::rc::{Rc, Weak};

use autograd::{WeightHandle, WeightSource};
use collective::{DataPlane, SharedPlane};
use device::{Category, Device, Request, StreamKind};
use nn::{ParameterId, Parameters};
use tensor::Tensor;

use super::slots::Slots;
use super::visits::Visits;
pub use super::visits::WalkKind;
use super::weight_layout::WeightLayout;
use crate::error::{ParallelError, Result};

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
    /// The buffer of each unit.
    slot_of: Vec<usize>,
    slots: Vec<Tensor>,
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
        let part = |elements: usize| {
            let request = Request::new(Category::Parameter, "weight_shard");
            Tensor::zeros(device, [elements / layout.ranks()], dtype, request)
        };
        let shards =
            layout.units.iter().map(|arrays| arrays.iter().map(|flat| part(flat.elements)).collect());
        let shards = shards.collect::<tensor::Result<Vec<Vec<_>>>>()?;
        let Slots { of: slot_of, elements } =
            Slots::new(&layout.sizes(), &layout.order, options.prefetch.saturating_add(1));
        let request = Request::new(Category::Communication, "gathered_weights").on(StreamKind::Reduce);
        let slot = |elements: &usize| Tensor::empty(device, [*elements], dtype, request);
        let slots = elements.iter().map(slot).collect::<tensor::Result<Vec<_>>>()?;
        let state =
            State { plane: None, held: vec![None; slots.len()], current: None, visits: Visits::default() };
        let handles: Vec<_> = parameters.list().iter().map(|parameter| parameter.weight.clone()).collect();
        let units = Rc::new(Units {
            device: device.clone(),
            layout,
            options,
            shards,
            handles,
            slot_of,
            slots,
            state: RefCell::new(state),
        });
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

    /// Begins a walk through the units, which are gathered over `plane`.
    pub fn begin(&self, kind: WalkKind, plane: &SharedPlane) {
        let mut state = self.0.state.borrow_mut();
        state.plane = Some(plane.clone());
        state.visits.begin(kind);
        state.current = None;
    }

    /// Gathers what the last walk of a kind did, for ranks that compute while this one has nothing to do.
    ///
    /// # Errors
    /// A failed collective.
    pub fn repeat(&self, kind: WalkKind, plane: &SharedPlane) -> Result<()> {
        self.begin(kind, plane);
        let units = self.0.state.borrow().visits.last(kind);
        units.into_iter().try_for_each(|unit| self.0.visit(unit))
    }

    /// Bytes of the parts that this rank holds.
    pub fn bytes(&self) -> usize {
        self.0.shards.iter().flatten().map(Tensor::bytes).sum()
    }

    /// Releases all gathered units, whose weights have changed.
    pub fn outdate(&self) {
        let mut state = self.0.state.borrow_mut();
        state.current = None;
        state.held.fill(None);
        self.0.handles.iter().for_each(WeightHandle::release);
    }
}

impl Units {
    /// Gathers a unit on the reduce stream, unless its buffer holds it. The first operator that uses a weight
    /// waits for it.
    fn fetch(&self, state: &mut State, unit: usize) -> Result<()> {
        const STREAM: StreamKind = StreamKind::Reduce;
        let slot = self.slot_of[unit];
        if state.held[slot] == Some(unit) {
            return Ok(());
        }
        let missing =
            || ParallelError::Grid("weights were used before their ranks were connected".to_owned());
        let plane = state.plane.as_mut().ok_or_else(missing)?;
        if let Some(before) = state.held[slot].take() {
            self.members(before).for_each(|(parameter, ..)| self.handles[parameter].release());
        }
        // Behind the passes that used the buffer.
        self.device.wait(STREAM, &self.device.record(StreamKind::Compute)?)?;
        let mut first = 0;
        for (flat, shard) in self.layout.units[unit].iter().zip(&self.shards[unit]) {
            let whole = self.slots[slot].view(first, [flat.elements])?;
            plane.all_gather(shard.region(), whole.region(), STREAM)?;
            first += flat.elements;
        }
        self.slots[slot].arrives(&self.device.arrival(STREAM)?);
        for (parameter, first) in self.members(unit) {
            let handle = &self.handles[parameter];
            handle.fill(self.slots[slot].view(first, handle.shape())?)?;
        }
        state.held[slot] = Some(unit);
        Ok(())
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

    /// The parameters of a unit, each with its first element in the unit's buffer.
    fn members(&self, unit: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let arrays = self.layout.units[unit].iter().scan(0, |first, flat| {
            let begin = *first;
            *first += flat.elements;
            Some((begin, flat))
        });
        arrays.flat_map(|(begin, flat)| {
            flat.members.iter().map(move |(number, offset)| (*number, begin + offset))
        })
    }

    /// Gathers the units that follow in the walk, up to one that needs a buffer in use.
    fn fetch_ahead(&self, state: &mut State, current: usize) -> Result<()> {
        let mut taken = vec![self.slot_of[current]];
        for next in state.visits.following(self.options.prefetch) {
            let slot = self.slot_of[next];
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
