//! Causal self-attention: multi-head, grouped-query or multi-query.
//!
//! Tensor-parallel shards hold separate heads; local shards are computed in one call where that is faster.
//! Queries of a sequence piece attend to keys and values of earlier pieces, also on other ranks.

mod block;
mod cached;
mod layout;
mod measures;
mod pieces;
mod rule;
mod whole;

use collective::Axis;
use tensor::ops::attention::{Qkv, Settings};

use super::Dropout;
use crate::error::{AutogradError, Result};
use crate::sharded::{Dimension, Placement, Var, map};
use crate::tape::Tape;
use crate::weight::Weight;

pub use cached::rotated_attention;
pub use measures::AttentionMeasures;
pub use rule::AttentionRule;

/// Computes attention over `qkv`, arrays `[batch, time, columns]` with the columns described by the heads.
/// The result is `[batch, time, heads.query · heads.value_width]`. Tokens attend only within their document.
/// In training, `dropout` drops attention weights. If the columns are in shards, each shard has an equal part
/// of the heads.
pub fn attention(
    tape: &Tape,
    qkv: Qkv<Var>,
    settings: impl Into<Settings>,
    dropout: Option<&Dropout>,
    measures: AttentionMeasures,
) -> Result<Var> {
    attention_with_sinks(tape, qkv, settings.into(), &[], dropout, measures)
}

/// [`attention`] with attention sinks ([`Masks`](tensor::ops::attention::Masks)). `sinks` has one weight per
/// local shard, or is empty.
pub fn attention_with_sinks(
    tape: &Tape,
    qkv: Qkv<Var>,
    settings: Settings,
    sinks: &[Weight],
    dropout: Option<&Dropout>,
    measures: AttentionMeasures,
) -> Result<Var> {
    let is_pieced = qkv.arrays().iter().any(|array| array.placement(Axis::Context) != Placement::Replicate);
    let settings = of_shard(settings, &qkv);
    let whole = |qkv, shard| whole::attention(tape, qkv, settings, sinks.get(shard), dropout, measures);
    match qkv {
        Qkv::Packed(qkv) if is_pieced => pieced(tape, qkv, settings, sinks, dropout),
        Qkv::Packed(qkv) if qkv.blocks() > 1 && attends_jointly(tape, sinks, dropout, measures) => {
            whole(Qkv::Packed(qkv), 0)
        }
        Qkv::Packed(qkv) => map(tape, [qkv], |block, [qkv]| whole(Qkv::Packed(qkv), block.shard)),
        Qkv::Separate(arrays) if !is_pieced => {
            map(tape, arrays, |block, arrays| whole(Qkv::Separate(arrays), block.shard))
        }
        Qkv::Separate([first, ..]) | Qkv::Piece { arrays: [first, _], .. } => {
            let from = first.placement(Axis::Context);
            let to = Placement::Replicate;
            Err(AutogradError::Placement { axis: Axis::Context.name(), from, to })
        }
    }
}

/// Returns the settings with the heads of one shard.
fn of_shard(settings: Settings, qkv: &Qkv<Var>) -> Settings {
    match qkv.arrays()[0].placement(Axis::Tensor) {
        Placement::Shard(Dimension::Columns { shards }) => {
            Settings { heads: settings.heads.divided(shards), ..settings }
        }
        _ => settings,
    }
}

/// Returns whether attention computes all local shards in one call, which requires causal attention over
/// whole sequences of one document each. Otherwise it computes one shard after another.
pub fn attends_jointly(
    tape: &Tape,
    sinks: &[Weight],
    dropout: Option<&Dropout>,
    measures: AttentionMeasures,
) -> bool {
    let pass = tape.pass();
    let is_plain = sinks.is_empty() && dropout.is_none() && measures == AttentionMeasures::default();
    is_plain && pass.cache.is_none() && pass.documents.is_none() && pass.pieces.is_none()
}

/// Computes attention of each shard over the pieces of its sequences.
fn pieced(
    tape: &Tape,
    qkv: Var,
    settings: Settings,
    sinks: &[Weight],
    dropout: Option<&Dropout>,
) -> Result<Var> {
    let placements = qkv.placements();
    let pieces = tape.pieces().map_or(1, |pieces| pieces.here.len());
    let first = tape.block().unwrap_or_default().shard;
    let mut blocks: Vec<Var> = qkv.into_blocks().collect();
    let mut outputs = Vec::with_capacity(blocks.len());
    for shard in (first..).take(blocks.len() / pieces) {
        let own = blocks.drain(..pieces).collect();
        outputs.extend(pieces::attention(tape, (shard, own), settings, sinks.get(shard), dropout)?);
    }
    let all = Var::from_blocks(outputs).ok_or(AutogradError::NotRecorded)?;
    Ok(all.with_placements(placements))
}
