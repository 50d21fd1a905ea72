//! Attention over sequences in pieces, some of them on other ranks.
//!
//! Forward gathers the keys and values of all pieces, one piece of every rank at a time, and backward gathers
//! them again. Each piece of queries is one call of the operator, with the same shapes on any number of
//! ranks.

use collective::Axis;
use device::Category;
use tensor::Tensor;
use tensor::ops::attention::{Qkv, Settings};
use tensor::ops::rearrange;

use super::super::{Dropout, autocast, named, parameter, values_of};
use super::block::{OPERATOR, QueryBlock};
use super::layout::Layout;
use super::rule::{AttentionRule, Keys};
use crate::error::{AutogradError, Result};
use crate::sharded::{BlockIndex, Pieces, Source, Var};
use crate::tape::Tape;
use crate::weight::Weight;

/// Computes attention over the local pieces `qkv`, each `[batch, time, columns]`: the columns of all query
/// heads, then all key heads, then all value heads. The results are `[batch, time, heads.query ·
/// heads.value_width]`. `sinks` are `[heads.query]`, as in [`Masks`](tensor::ops::attention::Masks).
///
/// # Errors
/// The tape has no pieces, a collective failed, or errors of [`forward`](tensor::ops::attention::forward).
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
    // Gradients of sinks are summed over pieces like those of other weights.
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
    let piece = |(index, array): (usize, Var)| -> Result<QueryBlock> {
        tape.within_block(block(index), || {
            let first = pieces.here[index].number * time;
            let documents = tape.pass().documents.clone().filter(|_| pieces.masks_documents);
            let dropout = dropout.and_then(|dropout| dropout.mask(tape));
            let arrays = named(OPERATOR, split(&array.into_tensor(), settings))?;
            Ok(QueryBlock::new(Qkv::Piece { arrays, first }, documents, dropout))
        })
    };
    let mut blocks = qkv.into_iter().enumerate().map(piece).collect::<Result<Vec<_>>>()?;
    let all = layout.gather(&blocks, Category::Activation)?;
    let output = |block: &mut QueryBlock| block.forward(Some(&all), settings, values.as_ref(), false);
    let outputs = blocks.iter_mut().map(output).collect::<Result<Vec<_>>>()?;
    drop(all);
    let keys = Keys::Pieces(layout);
    let sinks = sinks.cloned();
    tape.record(&sources, outputs, || AttentionRule { blocks, keys, settings, sinks, sums: None })
}

/// Splits packed columns into queries, and keys with values.
fn split(qkv: &Tensor, settings: Settings) -> tensor::Result<[Tensor; 2]> {
    let heads = settings.heads;
    let queries = heads.query_columns();
    let keys_values = heads.key_columns() + heads.value_columns();
    Ok([rearrange::slice(qkv, 2, 0, queries)?, rearrange::slice(qkv, 2, queries, keys_values)?])
}
