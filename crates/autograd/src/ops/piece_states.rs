//! States that recurrent operators carry from piece to piece of a sequence, also between ranks.
//!
//! A piece maps the state that enters it to the state that leaves it by an affine map. Each piece computes
//! its map, and the state that leaves it if zeros enter. These are gathered from all ranks, and every rank
//! joins them in the order of pieces ([`affine_scan`]), so bits do not depend on the grid. Then each piece
//! runs from its entering state. Backward does the same with gradients, from the last piece to the first.

use collective::{Axis, ProcessGroup, tensors};
use device::{Category, Request};
use tensor::Tensor;
use tensor::ops::affine_scan;

use super::named;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{BlockIndex, Pieces, Placement, Source, Var, joined, part};
use crate::tape::Tape;

/// The pieces of a sequence, some of them on other ranks.
#[derive(Clone, Debug)]
pub(super) struct PieceOrder {
    operator: &'static str,
    /// Indices of all pieces, in the order of the ranks.
    dealt: Vec<usize>,
    /// Indices of the local pieces.
    here: Vec<usize>,
    group: Option<ProcessGroup>,
    /// The shard whose pieces are computed.
    shard: usize,
}

impl PieceOrder {
    /// Returns the pieces of `x`, the operand of `operator`; `None` for whole sequences.
    ///
    /// # Errors
    /// The call is for a single piece, which does not know the others, or `x` has pieces of several shards.
    pub(super) fn new(tape: &Tape, operator: &'static str, x: &Var) -> Result<Option<Self>> {
        let from = x.placement(Axis::Context);
        if from == Placement::Replicate {
            return Ok(None);
        }
        let Some(pieces) = tape.pieces().filter(|_| tape.block().is_none_or(|block| block.piece.is_none()))
        else {
            let to = Placement::Replicate;
            return Err(AutogradError::Placement { axis: Axis::Context.name(), from, to });
        };
        let here: Vec<usize> = pieces.here.iter().map(|piece| piece.number).collect();
        if x.blocks() != here.len() {
            return Err(AutogradError::Blocks { expected: here.len() });
        }
        let group = tape.pass().groups.along(Axis::Context).cloned();
        let shard = tape.block().unwrap_or_default().shard;
        Ok(Some(PieceOrder { operator, dealt: Pieces::dealt(pieces.all), here, group, shard }))
    }

    /// Runs `body`, whose operator calls compute local piece `index`.
    pub(super) fn within<T>(&self, tape: &Tape, index: usize, body: impl FnOnce() -> T) -> T {
        tape.within_block(BlockIndex { shard: self.shard, piece: Some(index) }, body)
    }

    /// Returns the operands of each local piece.
    fn operands<const N: usize>(&self, all: [Var; N]) -> Result<Vec<[Var; N]>> {
        let mut blocks = all.map(Var::into_blocks);
        let expected = self.here.len();
        let piece = |_| {
            let own: Vec<Var> = blocks.iter_mut().filter_map(Iterator::next).collect();
            <[Var; N]>::try_from(own).map_err(|_| AutogradError::Blocks { expected })
        };
        (0..expected).map(piece).collect()
    }

    /// Gathers a tensor of every piece from all ranks, in the order of pieces: `[pieces, elements]`. `own`
    /// has the local pieces' tensors.
    pub(super) fn gather(&self, own: Vec<Tensor>, category: Category) -> Result<Tensor> {
        let request = Request::new(category, self.operator);
        let flat = own.iter().map(|own| Ok(own.reshape([1, own.elements()])?));
        let packed = joined(flat.collect::<Result<_>>()?, request)?;
        drop(own);
        let gathered = match &self.group {
            Some(group) => tensors::all_gather(&packed, group, request)
                .map_err(|source| AutogradError::Collective { operator: self.operator, source })?,
            None => packed,
        };
        let pieces = self.dealt.len();
        let shape = [pieces, gathered.shape().columns()];
        let all = Tensor::empty(gathered.device(), shape, gathered.dtype(), request)?;
        // Without other ranks, as when planning a single layer, only the local pieces are there.
        let rows = gathered.shape().rows();
        for (index, number) in self.dealt.iter().enumerate().take(rows) {
            part(&all, *number, pieces)?.copy_from(&part(&gathered, index, rows)?)?;
        }
        Ok(all)
    }

    /// Copies what [`PieceOrder::gather`] has for the piece `shift` after each local piece, cyclically, to
    /// tensors shaped as `like`.
    pub(super) fn scatter(
        &self,
        all: &Tensor,
        shift: isize,
        like: &Tensor,
        category: Category,
    ) -> Result<Vec<Tensor>> {
        let pieces = self.dealt.len();
        let own = |number: &usize| {
            let number = number.cast_signed() + shift;
            let number = number.rem_euclid(pieces.cast_signed()).cast_unsigned();
            let own = like.like(all.dtype(), Request::new(category, self.operator))?;
            own.reshape([1, own.elements()])?.copy_from(&part(all, number, pieces)?)?;
            Ok(own)
        };
        self.here.iter().map(own).collect()
    }

    /// Returns whether local piece `index` is the last of its sequence.
    pub(super) fn is_last(&self, index: usize) -> bool {
        self.here.get(index).is_some_and(|number| number + 1 == self.dealt.len())
    }

    /// Joins the states of all pieces in their order. Returns the states that enter the local pieces or, if
    /// `is_backward`, the gradients of the states that leave them.
    fn join(&self, maps: &[Tensor], states: Vec<Tensor>, is_backward: bool) -> Result<Vec<Tensor>> {
        let category = if is_backward { Category::ActivationGradient } else { Category::Activation };
        let (Some(map), Some(state)) = (maps.first(), states.first().cloned()) else {
            return Err(AutogradError::NotRecorded);
        };
        let pieces = self.dealt.len();
        let [count, rows] = [map.shape().dims()[0], map.shape().columns()];
        let columns = state.elements() / (count * rows).max(1);
        let maps = self.gather(maps.to_vec(), Category::Workspace)?.reshape([pieces, count, rows, rows])?;
        let all = self.gather(states, Category::Workspace)?;
        let scan = if is_backward { affine_scan::backward } else { affine_scan::forward };
        named(self.operator, scan(&maps, &all.reshape([pieces, count, rows, columns])?))?;
        drop(maps);
        self.scatter(&all, 0, &state, category)
    }
}

/// An operator that computes a piece from the state that enters it.
pub(super) trait Recurrence<const N: usize>: Clone + 'static {
    /// Returns the map of a piece, `[n, k, k]` f32, and the state that leaves it if zeros enter: n states of
    /// k rows, f32 in the operator's shape.
    fn map(&self, inputs: &[Tensor; N], documents: Option<&Tensor>) -> Result<[Tensor; 2]>;

    /// Computes and records a piece. Returns the output and a value whose gradient is that of the state that
    /// leaves the piece.
    fn forward(&self, tape: &Tape, inputs: [Var; N], entering: Tensor) -> Result<Vec<Var>>;

    /// Returns the gradient that the output of a piece gives the state that enters it.
    fn retreat(
        &self,
        dy: &Tensor,
        inputs: &[Tensor; N],
        documents: Option<&Tensor>,
        entering: &Tensor,
    ) -> Result<Tensor>;
}

/// Computes a recurrent operator over the pieces of sequences. Operands have the operator's types.
pub(super) fn scan<const N: usize>(
    tape: &Tape,
    order: &PieceOrder,
    operands: [Var; N],
    recurrence: &impl Recurrence<N>,
) -> Result<Var> {
    let placements = operands.first().map(Var::placements).unwrap_or_default();
    let operands = order.operands(operands)?;
    let mut pieces = Vec::with_capacity(operands.len());
    for (index, own) in operands.iter().enumerate() {
        let documents = order.within(tape, index, || tape.pass().documents.clone());
        pieces.push(Piece { inputs: own.each_ref().map(|own| own.tensor().clone()), documents });
    }
    tape.begin(order.operator)?;
    let mut maps = Vec::with_capacity(pieces.len());
    let mut states = Vec::with_capacity(pieces.len());
    for piece in &pieces {
        let [map, state] = recurrence.map(&piece.inputs, piece.documents.as_ref())?;
        maps.push(map);
        states.push(state);
    }
    let entering = order.join(&maps, states, false)?;
    let entering: Vec<Tensor> =
        tape.record(&[], entering, || JoinRule)?.into_iter().map(Var::into_tensor).collect();

    let mut outputs = Vec::with_capacity(pieces.len());
    let mut leaving = Vec::with_capacity(pieces.len());
    for (index, (own, entering)) in operands.into_iter().zip(&entering).enumerate() {
        let results = order.within(tape, index, || recurrence.forward(tape, own, entering.clone()))?;
        let [output, state] = <[Var; 2]>::try_from(results).map_err(|_| AutogradError::NotRecorded)?;
        outputs.push(output);
        leaving.push(state);
    }
    tape.begin(order.operator)?;
    let sources: Vec<Source> = outputs.iter().chain(&leaving).map(Var::block_source).collect();
    drop(leaving);
    let outputs = outputs.into_iter().map(Var::into_tensor).collect();
    let outputs = tape.record(&sources, outputs, || ScanRule {
        order: order.clone(),
        recurrence: recurrence.clone(),
        maps,
        pieces: pieces.into_iter().zip(entering).collect(),
    })?;
    let all = Var::from_blocks(outputs).ok_or(AutogradError::NotRecorded)?;
    Ok(all.with_placements(placements))
}

/// Rule of the states that enter pieces, whose gradients [`ScanRule`] computes.
#[derive(Debug)]
struct JoinRule;

impl Rule for JoinRule {
    fn operator(&self) -> &'static str {
        "join_states"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        Vec::new()
    }

    fn backward_input(&mut self, _outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        Ok(Vec::new())
    }
}

/// Operands of a piece.
#[derive(Debug)]
struct Piece<const N: usize> {
    inputs: [Tensor; N],
    documents: Option<Tensor>,
}

/// Backward of [`scan`], before that of its pieces: computes the gradients of the states that leave them.
#[derive(Debug)]
struct ScanRule<R, const N: usize> {
    order: PieceOrder,
    recurrence: R,
    /// Maps of the local pieces; dropped by backward.
    maps: Vec<Tensor>,
    /// The local pieces, whose own rules save the same tensors, and the states that enter them.
    pieces: Vec<(Piece<N>, Tensor)>,
}

impl<R: Recurrence<N>, const N: usize> Rule for ScanRule<R, N> {
    fn operator(&self) -> &'static str {
        self.order.operator
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.maps.iter().map(|map| Saved::new("map", map)).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let gradients = outputs.into_iter().collect::<Option<Vec<_>>>().ok_or(AutogradError::NotRecorded)?;
        let maps = std::mem::take(&mut self.maps);
        let pieces = std::mem::take(&mut self.pieces);
        let retreat = |(dy, (piece, entering)): (&Tensor, (Piece<N>, Tensor))| {
            self.recurrence.retreat(dy, &piece.inputs, piece.documents.as_ref(), &entering)
        };
        let added = gradients.iter().zip(pieces).map(retreat).collect::<Result<Vec<_>>>()?;
        let leaving = self.order.join(&maps, added, true)?;
        Ok(gradients.into_iter().chain(leaving).map(Some).collect())
    }
}
