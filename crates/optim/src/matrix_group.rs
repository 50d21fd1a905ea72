//! Groups of matrices, whose directions are orthogonalised before the weights step along them (Muon).
//!
//! A group is updated in waves of slots. The first launch of a wave updates the momenta and writes the
//! directions, in memory that all waves share. The caller orthogonalises them, and the second launch steps.

use std::ops::Range;

use device::{Category, DType, Device, Request};
use tensor::ops::optimizer::{self, Item, UpdateRule};
use tensor::ops::{StepState, Table};
use tensor::{Result, Tensor};

use crate::kept::Kept;
use crate::member::{Member, StateOptions};
use crate::offload::{Extent, Offload, Span, StatePiece, WithAverages};
use crate::slot::Slot;

/// Alignment of a slot's directions, in elements: 512 bytes.
const ALIGNMENT: usize = 256;

/// Options of a group of matrices, from which its state is allocated.
#[derive(Clone, Debug)]
pub struct MatrixGroupOptions {
    /// Fraction of the running mean of gradients that an update keeps.
    pub momentum: f32,
    /// Weight decay: an update subtracts this times the learning rate times the weight.
    pub weight_decay: f32,
    /// Factor of the learning rate for this group.
    pub rate_factor: f32,
    /// Type, rounding and offsets of the momenta.
    pub states: StateOptions,
    /// Indices of the slots of each wave, in increasing order.
    pub waves: Vec<Vec<usize>>,
}

/// Matrices with their momenta, and the tables of the launches of each wave.
#[derive(Debug)]
pub(crate) struct MatrixGroup {
    /// Rules of the two launches of a wave.
    rules: [UpdateRule; 2],
    rate_factor: f32,
    /// Members of all waves, wave by wave.
    kept: Kept,
    waves: Vec<Wave>,
}

/// The slots that are orthogonalised together.
#[derive(Debug)]
struct Wave {
    /// Directions of the slots, bf16, in memory that other waves use too.
    directions: Vec<Tensor>,
    /// Operand tables of the two launches; `None` with offloaded state, whose pieces have their own tables.
    tables: Option<[Table; 2]>,
}

impl MatrixGroup {
    /// Allocates the state of a group, slot by slot, on the device or in the host pool `host`. Then allocates
    /// the directions and the tables of the launches, and with a host pool the buffers on the device.
    pub(crate) fn new(
        devices: (&Device, Option<&Device>),
        slots: &[Slot],
        options: &MatrixGroupOptions,
    ) -> Result<Self> {
        let MatrixGroupOptions { momentum, weight_decay, rate_factor, states, waves } = options;
        let first_rule = UpdateRule::MuonMomentum { momentum: *momentum };
        let rules = [first_rule, UpdateRule::MuonStep { weight_decay: *weight_decay }];
        let kept = Kept::new(devices, slots, (&rules[0], states), &waves.concat())?;
        let (device, host) = devices;
        let mut first = 0;
        let mut calls = Vec::new();
        for wave in waves {
            calls.push(first..first + wave.len());
            first += wave.len();
        }
        let most = calls.iter().map(|call| directions_of(&kept.members()[call.clone()]).1).max();
        let request = Request::new(Category::OptimizerState, "muon.directions");
        let memory = Tensor::empty(device, [most.unwrap_or(0)], DType::Bf16, request)?;
        let wave = |call: &Range<usize>| {
            let members = &kept.members()[call.clone()];
            let (offsets, _) = directions_of(members);
            let directions = offsets.iter().zip(members);
            let directions = directions.map(|(offset, member)| memory.view(*offset, [member.elements()]));
            let tables = || {
                let count = members.len();
                let momenta = match states.dtype {
                    DType::U8 => Table::of_quantised(device, count)?,
                    _ => Table::of_parameters(device, count)?,
                };
                Ok::<_, tensor::TensorError>([momenta, Table::of_parameters(device, count)?])
            };
            let tables = if host.is_none() { Some(tables()?) } else { None };
            Ok(Wave { directions: directions.collect::<Result<_>>()?, tables })
        };
        let waves = calls.iter().map(wave).collect::<Result<Vec<_>>>()?;
        let kept = kept.in_calls(devices, calls, 2)?;
        Ok(MatrixGroup { rules, rate_factor: *rate_factor, kept, waves })
    }

    /// The members with their state.
    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Updates all waves of an update that has begun. `gradients` has one tensor for each slot of all groups.
    /// `orthogonalise(wave, directions)` replaces a wave's directions.
    pub(crate) fn update<E: From<tensor::TensorError>>(
        &self,
        gradients: &[Tensor],
        state: &StepState,
        mut orthogonalise: impl FnMut(usize, &[Tensor]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for (number, wave) in self.waves.iter().enumerate() {
            self.launch(0, (number, wave), gradients, state)?;
            orthogonalise(number, &wave.directions)?;
            self.launch(1, (number, wave), gradients, state)?;
        }
        Ok(())
    }

    /// Runs the first (0) or second (1) launch of a wave, one launch for each piece if state is offloaded.
    /// Averages of the weights follow the second launch.
    fn launch(
        &self,
        launch: usize,
        (number, wave): (usize, &Wave),
        gradients: &[Tensor],
        state: &StepState,
    ) -> Result<()> {
        let rule = &self.rules[launch];
        state.with_rate_factor(self.rate_factor, || optimizer::change_rule(rule, state))?;
        let members = self.kept.of_call(number);
        let (Some(tables), None) = (&wave.tables, self.kept.offload()) else {
            let extents = match launch {
                0 => [Extent::States, Extent::States],
                _ => [Extent::Values, Extent::Written],
            };
            let averages = if launch == 0 { WithAverages::NONE } else { self.kept.moved_averages(state) };
            let update = |piece: &StatePiece| {
                self.update_piece(launch, (wave, members), piece, gradients, state)?;
                piece.update_averages(averages, state)
            };
            let pass = |offload: &Offload| offload.pass_with(number, extents, averages, update);
            return self.kept.offload().map_or(Ok(()), pass);
        };
        let each = members.iter().zip(&wave.directions);
        let items = each.filter_map(|(member, direction)| match launch {
            0 => Some(Item { weight: direction, compute: None, ..member.item(gradients.get(member.index)?) }),
            _ => Some(Item { states: &[], maxima: &[], ..member.item(direction) }),
        });
        optimizer::update(&tables[launch], rule, &items.collect::<Vec<_>>(), state)?;
        if launch == 0 { Ok(()) } else { self.kept.update_averages(number, state) }
    }

    fn update_piece(
        &self,
        launch: usize,
        (wave, members): (&Wave, &[Member]),
        piece: &StatePiece,
        gradients: &[Tensor],
        state: &StepState,
    ) -> Result<()> {
        let spans: Vec<&Span> = piece.spans().iter().collect();
        let part = |whole: &Tensor, span: &Span| whole.view(span.range.start, [span.range.len()]);
        let direction = |span: &&Span| {
            let number = members.iter().position(|member| member.index == span.index);
            part(&wave.directions[number.unwrap_or(0)], span)
        };
        let directions = spans.iter().map(direction).collect::<Result<Vec<_>>>()?;
        let gradient = |span: &&Span| part(&gradients[span.index], span);
        let gradients = spans.iter().map(gradient).collect::<Result<Vec<_>>>()?;
        let item = |number: usize| match launch {
            0 => {
                Item { weight: &directions[number], compute: None, ..spans[number].item(&gradients[number]) }
            }
            _ => Item { states: &[], maxima: &[], ..spans[number].item(&directions[number]) },
        };
        let items: Vec<_> = (0..spans.len()).map(item).collect();
        optimizer::update(&piece.tables[launch], &self.rules[launch], &items, state)
    }
}

/// Returns the index of the first direction of each member in the shared memory, and the elements of all.
fn directions_of(members: &[Member]) -> (Vec<usize>, usize) {
    let mut offsets = Vec::with_capacity(members.len());
    let mut end = 0;
    for member in members {
        offsets.push(end);
        end += member.elements().next_multiple_of(ALIGNMENT);
    }
    (offsets, end)
}
