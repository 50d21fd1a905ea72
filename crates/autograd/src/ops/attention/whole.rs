//! Attention over whole sequences.

use device::{Category, Request};
use tensor::ops::attention::{Qkv, Settings};

use super::super::{Dropout, autocast, named, values_of};
use super::block::{OPERATOR, QueryBlock, apart, together};
use super::cached::cached;
use super::measures::AttentionMeasures;
use super::rule::{AttentionRule, Keys};
use crate::error::{AutogradError, Result};
use crate::sharded::{Source, Var};
use crate::tape::Tape;
use crate::weight::Weight;

/// Computes [`attention_with_sinks`](super::attention_with_sinks) of one block with the heads in `settings`.
/// Without masks, `qkv` may have the blocks of several shards, computed in one call with the same bits as one
/// after another.
pub(super) fn attention(
    tape: &Tape,
    qkv: Qkv<Var>,
    settings: Settings,
    sinks: Option<&Weight>,
    dropout: Option<&Dropout>,
    measures: AttentionMeasures,
) -> Result<Var> {
    let placements = qkv.arrays()[0].placements();
    let shards = qkv.arrays()[0].blocks();
    let operand = |block| autocast(tape, OPERATOR, [block]).map(|[block]| block);
    let operands = |array: Var| array.into_blocks().map(operand).collect::<Result<Vec<_>>>();
    let qkv = qkv.map(operands).transpose()?;
    let dtype = qkv.arrays()[0][0].tensor().dtype();
    let sink_values = named(OPERATOR, values_of(sinks, dtype))?;
    let sources: Vec<Source> = qkv.arrays().iter().flatten().map(Var::block_source).collect();
    let request = Request::new(Category::Activation, OPERATOR);
    let batch = |blocks: Vec<Var>| together(blocks.into_iter().map(Var::into_tensor).collect(), request);
    if let Some(pass) = &tape.pass().cache {
        let qkv = qkv.map(batch).transpose()?;
        return cached(tape, pass, &qkv, settings, None, sink_values.as_ref());
    }
    tape.begin(OPERATOR)?;
    let dropout = dropout.and_then(|dropout| dropout.mask(tape));
    let mut block = QueryBlock::new(qkv.map(batch).transpose()?, tape.pass().documents.clone(), dropout);
    let output = block.forward(None, settings, sink_values.as_ref(), measures.output)?;
    let outputs = tape.record(&sources, apart(output, shards)?, || AttentionRule {
        blocks: vec![block],
        keys: Keys::Own { shards, measures: measures.gradients },
        settings,
        sinks: sinks.cloned(),
        sums: None,
    })?;
    Ok(Var::from_blocks(outputs).ok_or(AutogradError::NotRecorded)?.with_placements(placements))
}
