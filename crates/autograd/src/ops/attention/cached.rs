//! Attention with key and value caches, for passes that generate text.

use tensor::Tensor;
use tensor::ops;
use tensor::ops::attention::{Masks, Qkv, Settings};

use super::super::{Rotary, autocast, named, values_of};
use super::block::OPERATOR;
use crate::error::{AutogradError, Result};
use crate::pass::CachedPass;
use crate::sharded::Var;
use crate::tape::Tape;
use crate::weight::Weight;

/// Computes attention of the next token of every sequence in the pass's caches, after rotating its query and
/// key by `rotary`. Heads must not be in shards.
///
/// # Errors
/// The pass extends no caches; errors of [`attention`](super::attention()).
pub fn rotated_attention(
    tape: &Tape,
    qkv: Var,
    settings: Settings,
    rotary: &Rotary,
    sinks: Option<&Weight>,
) -> Result<Var> {
    let [qkv] = autocast(tape, OPERATOR, [qkv])?;
    let sinks = named(OPERATOR, values_of(sinks, qkv.tensor().dtype()))?;
    let pass = tape.pass().cache.as_ref().filter(|pass| pass.slot().is_none());
    let pass = pass.ok_or(AutogradError::NoCache)?;
    cached(tape, pass, &Qkv::Packed(qkv.into_tensor()), settings, Some(&rotary.table), sinks.as_ref())
}

/// Computes attention with caches: of whole sequences that fill them, or of the next token of every sequence.
/// Records nothing.
///
/// # Errors
/// There are fewer caches than calls; errors of [`ops::cached_attention`].
pub(super) fn cached(
    tape: &Tape,
    pass: &CachedPass,
    qkv: &Qkv<Tensor>,
    settings: Settings,
    angles: Option<&Tensor>,
    sinks: Option<&Tensor>,
) -> Result<Var> {
    let Some(cache) = pass.next() else { return Err(AutogradError::NoCache) };
    let output = match (pass.slot(), &tape.pass().documents) {
        (Some(slot), _) => {
            named(OPERATOR, ops::cached_attention::store(qkv, settings.heads, cache, slot))?;
            let masks = Masks { sinks, ..Masks::default() };
            named(OPERATOR, ops::attention::forward(qkv, settings, masks, false))?.output
        }
        (None, Some(documents)) => {
            let extended = ops::cached_attention::forward(qkv, settings, cache, documents, angles, sinks);
            named(OPERATOR, extended)?
        }
        (None, None) => return Err(AutogradError::NoCache),
    };
    Ok(tape.constant(output))
}
