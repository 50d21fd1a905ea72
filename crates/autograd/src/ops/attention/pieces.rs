//! Attention of sequences in pieces, some of which are on other ranks.
//!
//! Keys and values of all pieces are gathered one piece of every rank at a time, in forward and again in
//! backward. Each piece of queries is one call of the operator, with the same shapes on any number of ranks.

use collective::{Axis, ProcessGroup, tensors};
use device::{Category, DType, Request};
use tensor::ops::attention::{Masks, Qkv, Settings};
use tensor::ops::dropout::Mask;
use tensor::ops::rearrange;
use tensor::{Tensor, ops};

use super::super::{Dropout, autocast, named, parameter, values_of};
use super::whole::OPERATOR;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{BlockIndex, Pieces, Source, Var, part};
use crate::tape::Tape;
use crate::weight::Weight;

/// Backward of attention of sequences in pieces.
#[derive(Debug)]
pub struct PiecedAttentionRule {
    saved: Vec<PieceSaved>,
    layout: Layout,
    settings: Settings,
    sinks: Option<Weight>,
}

/// A piece of queries: what attention computed from and with it.
#[derive(Debug)]
struct PieceSaved {
    queries: Tensor,
    /// Keys, then values, of the piece itself.
    keys_values: Tensor,
    /// Results of attention, once it has run.
    results: Option<[Tensor; 2]>,
    /// Position of the first query.
    first: usize,
    documents: Option<Tensor>,
    dropout: Option<Mask>,
}

/// The pieces of all ranks.
#[derive(Debug)]
struct Layout {
    /// Numbers of all pieces, in the order of the ranks.
    dealt: Vec<usize>,
    group: Option<ProcessGroup>,
    batch: usize,
    /// Positions of a piece.
    time: usize,
}

/// Attention over `qkv`, for each piece that is here `[batch, time, columns]`: the columns of all query
/// heads, then all key heads, then all value heads. The results are `[batch, time, heads.query ·
/// heads.value_width]`. Gradients of keys and values are rounded for each piece of queries, added in f32 in a
/// fixed tree, and rounded once more. `sinks` are `[heads.query]`, as in [`Masks`].
///
/// # Errors
/// As [`ops::attention::forward`]; a tape without pieces; a failed collective.
pub(super) fn attention(
    tape: &Tape,
    (shard, qkv): (usize, Vec<Var>),
    settings: Settings,
    sinks: Option<&Weight>,
    dropout: Option<&Dropout>,
) -> Result<Vec<Var>> {
    let block = |index| BlockIndex { shard, piece: Some(index) };
    let operand = |(index, array): (usize, Var)| {
        tape.within_block(block(index), || autocast(tape, OPERATOR, [array]).map(|[array]| array))
    };
    let qkv = qkv.into_iter().enumerate().map(operand).collect::<Result<Vec<_>>>()?;
    // Gradients of sinks are added up as those of other weights of pieces.
    let copy = |index| sinks.map(|sinks| tape.within_block(block(index), || parameter(tape, sinks)));
    let of_sinks = (0..qkv.len()).filter_map(copy).collect::<Result<Vec<_>>>()?;
    tape.begin(OPERATOR)?;
    let pieces = tape.pieces().ok_or(AutogradError::NotRecorded)?;
    let [batch, time] = match qkv.first().map(|array| array.tensor().shape()) {
        Some(shape) if shape.dims().len() == 3 => [shape.dims()[0], shape.dims()[1]],
        _ => return Err(AutogradError::NotRecorded),
    };
    let group = tape.pass().groups.along(Axis::Context).cloned();
    let layout = Layout { dealt: Pieces::dealt(pieces.all), group, batch, time };
    let sources: Vec<Source> = qkv.iter().chain(&of_sinks).map(Var::block_source).collect();
    let values = qkv.first().map_or(Ok(None), |array| values_of(sinks, array.tensor().dtype()));
    let values = named(OPERATOR, values)?;
    let piece = |(index, array): (usize, Var)| -> Result<PieceSaved> {
        tape.within_block(block(index), || {
            let first = pieces.here[index].number * time;
            let documents = tape.pass().documents.clone().filter(|_| pieces.masks_documents);
            let dropout = dropout.and_then(|dropout| dropout.mask(tape));
            let [queries, keys_values] = named(OPERATOR, split(&array.into_tensor(), settings))?;
            Ok(PieceSaved { queries, keys_values, results: None, first, documents, dropout })
        })
    };
    let mut saved = qkv.into_iter().enumerate().map(piece).collect::<Result<Vec<_>>>()?;
    let all = layout.gather(&saved, Category::Activation)?;
    for piece in &mut saved {
        let masks = Masks { sinks: values.as_ref(), ..piece.masks() };
        let forward = ops::attention::forward(&piece.operands(&all), settings, masks, false);
        let ops::attention::Output { output, logsumexp } = named(OPERATOR, forward)?;
        piece.results = Some([output, logsumexp]);
    }
    drop(all);
    let outputs = saved.iter().filter_map(|piece| piece.results.as_ref().map(|[output, _]| output.clone()));
    let (outputs, sinks) = (outputs.collect(), sinks.cloned());
    tape.record(&sources, outputs, || PiecedAttentionRule { saved, layout, settings, sinks })
}

/// Returns the columns of queries, and those of keys and values.
fn split(qkv: &Tensor, settings: Settings) -> tensor::Result<[Tensor; 2]> {
    let heads = settings.heads;
    let (queries, keys_values) = (heads.query_columns(), heads.key_columns() + heads.value_columns());
    Ok([rearrange::slice(qkv, 2, 0, queries)?, rearrange::slice(qkv, 2, queries, keys_values)?])
}

impl PieceSaved {
    fn masks(&self) -> Masks<'_> {
        Masks { documents: self.documents.as_ref(), dropout: self.dropout, sinks: None }
    }

    fn operands(&self, all: &Tensor) -> Qkv<Tensor> {
        Qkv::Piece { arrays: [self.queries.clone(), all.clone()], first: self.first }
    }
}

impl Layout {
    /// Number of ranks.
    fn ranks(&self) -> usize {
        self.group.as_ref().map_or(1, ProcessGroup::world_size)
    }

    /// Returns keys and values of all pieces in the order of their positions, `[batch, positions, columns]`.
    fn gather(&self, own: &[PieceSaved], category: Category) -> Result<Tensor> {
        let request = Request::new(category, OPERATOR);
        let first = &own.first().ok_or(AutogradError::NotRecorded)?.keys_values;
        let (positions, columns) = (self.dealt.len() * self.time, first.shape().columns());
        let all = Tensor::empty(first.device(), [self.batch, positions, columns], first.dtype(), request)?;
        for (index, piece) in own.iter().enumerate() {
            let gathered = match &self.group {
                Some(group) => tensors::all_gather(&piece.keys_values, group, request)
                    .map_err(|source| AutogradError::Collective { operator: OPERATOR, source })?,
                None => piece.keys_values.clone(),
            };
            for holder in 0..self.ranks() {
                let number = self.dealt[holder * own.len() + index];
                let of_holder = part(&gathered, holder, self.ranks())?;
                self.sequences(&all, number, columns, &of_holder, |all, piece| all.copy_from(piece))?;
            }
        }
        Ok(all)
    }

    /// Returns the sum over ranks of `all`, `[batch, positions, columns]`: that of the pieces that are here,
    /// `[own · batch, time, columns]`.
    fn scatter(&self, all: Tensor, own: usize) -> Result<Tensor> {
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        let columns = all.shape().columns();
        let rows = self.dealt.len() * self.batch;
        let dealt = Tensor::empty(all.device(), [rows, self.time, columns], all.dtype(), request)?;
        for (index, number) in self.dealt.iter().enumerate() {
            let piece = part(&dealt, index, self.dealt.len())?;
            self.sequences(&all, *number, columns, &piece, |all, piece| piece.copy_from(all))?;
        }
        drop(all);
        // Without other ranks, as in the plan of a layer alone, the first pieces are here.
        let Some(group) = &self.group else { return part(&dealt, 0, self.dealt.len() / own) };
        let of = |source| AutogradError::Collective { operator: OPERATOR, source };
        tensors::reduce_scatter(&dealt, group, request).map_err(of)
    }

    /// Calls `copy` with the rows of piece `number` of each sequence in `all`, and in `piece`.
    fn sequences(
        &self,
        all: &Tensor,
        number: usize,
        columns: usize,
        piece: &Tensor,
        copy: impl Fn(&Tensor, &Tensor) -> tensor::Result<()>,
    ) -> Result<()> {
        let elements = self.time * columns;
        for sequence in 0..self.batch {
            let whole = all.view((sequence * self.dealt.len() + number) * elements, [elements])?;
            copy(&whole, &piece.view(sequence * elements, [elements])?)?;
        }
        Ok(())
    }
}

impl Rule for PiecedAttentionRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.saved.iter().flat_map(PieceSaved::list).collect()
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let saved = std::mem::take(&mut self.saved);
        let gradients = outputs.into_iter().collect::<Option<Vec<_>>>().ok_or(AutogradError::NotRecorded)?;
        let all = self.layout.gather(&saved, Category::ActivationGradient)?;
        let (mut of_queries, mut sums, parts) = (Vec::with_capacity(saved.len()), Vec::new(), saved.len());
        let mut of_sinks = Vec::new();
        for (piece, gradient) in saved.into_iter().zip(gradients) {
            if let Some(sinks) = &self.sinks {
                of_sinks.push(piece.sink_gradients(&gradient, sinks, self.settings)?);
            }
            let [dq, sum] = piece.backward(&all, &gradient, self.settings)?;
            of_queries.push(dq);
            push_sum(&mut sums, sum)?;
        }
        drop(all);
        let (_, sum) = sums.pop().ok_or(AutogradError::NotRecorded)?;
        let of_keys_values = self.layout.scatter(sum, parts)?;
        let packed = |(index, dq): (usize, Tensor)| {
            let request = Request::new(Category::ActivationGradient, OPERATOR);
            let own = part(&of_keys_values, index, parts)?;
            let sum = ops::rounded_sum::forward(&[own], None, dq.dtype(), request)?;
            Ok(Some(rearrange::concatenate(&[&dq, &sum], 2)?))
        };
        let of_qkv = of_queries.into_iter().enumerate().map(packed);
        of_qkv.chain(of_sinks.into_iter().map(Ok)).collect()
    }
}

impl PieceSaved {
    fn list(&self) -> Vec<Saved<'_>> {
        let results = self.results.iter().flatten().zip(["output", "logsumexp"]);
        let results = results.map(|(array, name)| Saved::new(name, array));
        [Saved::new("queries", &self.queries), Saved::new("keys_values", &self.keys_values)]
            .into_iter()
            .chain(results)
            .collect()
    }

    /// Returns the gradients of the sinks, f32, if they are trained.
    fn sink_gradients(
        &self,
        gradient: &Tensor,
        sinks: &Weight,
        settings: Settings,
    ) -> Result<Option<Tensor>> {
        let Some([output, logsumexp]) = self.results.as_ref().filter(|_| sinks.is_trained()) else {
            return Ok(None);
        };
        let values = sinks.values(output.dtype())?;
        let sums = ops::attention::sink_gradients(gradient, output, logsumexp, &values, settings.heads)?;
        Ok(Some(sums))
    }

    /// Returns the gradients of the piece's queries, and in f32 those of all keys and values.
    fn backward(mut self, all: &Tensor, gradient: &Tensor, settings: Settings) -> Result<[Tensor; 2]> {
        let [output, logsumexp] = self.results.take().ok_or(AutogradError::NotRecorded)?;
        let (operands, masks) = (self.operands(all), self.masks());
        let gradients =
            ops::attention::backward(gradient, &operands, &output, &logsumexp, settings, masks, false)?;
        let mut gradients = gradients.into_vec().into_iter();
        let (Some(dq), Some(sum)) = (gradients.next(), gradients.next()) else {
            return Err(AutogradError::NotRecorded);
        };
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        if sum.dtype() == DType::F32 {
            return Ok([dq, sum]);
        }
        let wide = sum.like(DType::F32, request)?;
        ops::cast::into(&sum, &wide)?;
        Ok([dq, wide])
    }
}

/// Adds the sum of one more piece to sums of complete subtrees, each with its level.
fn push_sum(sums: &mut Vec<(u32, Tensor)>, sum: Tensor) -> Result<()> {
    sums.push((0, sum));
    while let [.., (first, _), (second, _)] = &sums[..]
        && first == second
    {
        let (Some((level, second)), Some((_, first))) = (sums.pop(), sums.pop()) else { return Ok(()) };
        ops::add::into(&first, &second)?;
        sums.push((level + 1, first));
    }
    Ok(())
}
