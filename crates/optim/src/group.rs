//! Groups of parameters, each updated by one rule.

use device::{DType, Device};
use tensor::ops::optimizer::{self, UpdateRule};
use tensor::ops::{StepState, Table};
use tensor::{Result, Tensor};

use crate::kept::Kept;
use crate::member::StateOptions;
use crate::offload::{Extent, StatePiece};
use crate::slot::Slot;

/// Options of a group of parameters, from which its state is allocated.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Update rule of the group.
    pub rule: UpdateRule,
    /// Factor of the learning rate for this group.
    pub rate_factor: f32,
    /// Type, rounding and offsets of the rule's states.
    pub states: StateOptions,
    /// Indices of the group's parameters among all slots, in increasing order.
    pub slots: Vec<usize>,
}

impl GroupOptions {
    /// Returns one group of all `count` slots, with f32 states.
    pub fn all(rule: UpdateRule, count: usize) -> Self {
        let states = StateOptions::default();
        GroupOptions { rule, rate_factor: 1.0, states, slots: (0..count).collect() }
    }
}

/// The two calls that together make an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Updates the group's first slots.
    First,
    /// Updates all other slots.
    Rest,
}

/// Parameters with the rule that updates them, their state, and the tables of the rule's launches.
#[derive(Debug)]
pub(crate) struct Group {
    rule: UpdateRule,
    rate_factor: f32,
    kept: Kept,
    /// Address tables of the members of each call; `None` with offloaded state, whose pieces have their own
    /// tables.
    tables: Option<[Table; 2]>,
}

impl Group {
    /// Allocates the state of a group, slot by slot, on the device or in the host pool `host`. Then allocates
    /// the tables of its launches, and with a host pool the buffers on the device. The first call updates
    /// slots with an index below `first`.
    pub(crate) fn new(
        (device, host): (&Device, Option<&Device>),
        slots: &[Slot],
        options: &GroupOptions,
        first: usize,
    ) -> Result<Self> {
        let GroupOptions { rule, rate_factor, states, slots: indices } = options;
        let devices = (device, host);
        let kept = Kept::new(devices, slots, (rule, states), indices)?;
        let all = kept.members().len();
        let first = kept.members().partition_point(|member| member.index < first);
        let table = |slots| match states.dtype {
            DType::U8 => Table::of_quantised(device, slots),
            _ => Table::of_parameters(device, slots),
        };
        let tables = match host {
            None => Some([table(first)?, table(all - first)?]),
            Some(_) => None,
        };
        let kept = kept.in_calls(devices, vec![0..first, first..all], 1)?;
        Ok(Group { rule: *rule, rate_factor: *rate_factor, kept, tables })
    }

    /// Counts an update and computes the coefficients for the group's slots.
    pub(crate) fn begin(&self, state: &StepState) -> Result<()> {
        state.with_rate_factor(self.rate_factor, || optimizer::begin(&self.rule, state))
    }

    /// Replaces another group's coefficients in `state` by the coefficients of this group.
    pub(crate) fn replace_coefficients(&self, state: &StepState) -> Result<()> {
        state.with_rate_factor(self.rate_factor, || optimizer::change_rule(&self.rule, state))
    }

    /// The members with their state.
    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Returns whether a call updates no slot of this group.
    pub(crate) fn skips(&self, call: Call) -> bool {
        self.kept.of_call(call as usize).is_empty()
    }

    /// Updates the slots of a call in one launch, or in one launch per piece of offloaded state, and then the
    /// averages of their weights. `gradients` has one tensor for each slot of all groups.
    pub(crate) fn update(&self, call: Call, gradients: &[Tensor], state: &StepState) -> Result<()> {
        let (Some(tables), None) = (&self.tables, self.kept.offload()) else {
            let averages = self.kept.moved_averages(state);
            let update = |piece: &StatePiece| {
                self.update_piece(piece, gradients, state)?;
                piece.update_averages(averages, state)
            };
            let extents = [Extent::State, Extent::All];
            return self
                .kept
                .offload()
                .map_or(Ok(()), |offload| offload.pass_with(call as usize, extents, averages, update));
        };
        let members = self.kept.of_call(call as usize);
        let items = members.iter().filter_map(|member| Some(member.item(gradients.get(member.index)?)));
        optimizer::update(&tables[call as usize], &self.rule, &items.collect::<Vec<_>>(), state)?;
        self.kept.update_averages(call as usize, state)
    }

    fn update_piece(&self, piece: &StatePiece, gradients: &[Tensor], state: &StepState) -> Result<()> {
        let spans = piece.spans().iter().filter_map(|span| Some((span, gradients.get(span.index)?)));
        let parts = spans.map(|(span, gradient)| gradient.view(span.range.start, [span.range.len()]));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let items = piece.spans().iter().zip(&parts).map(|(span, part)| span.item(part));
        optimizer::update(&piece.tables[0], &self.rule, &items.collect::<Vec<_>>(), state)
    }
}
