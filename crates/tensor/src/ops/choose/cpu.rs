//! Sampling on the host, one task per row.

use device::parallel::for_pieces;

use super::choice::Choice;
use crate::{Result, Tensor};

/// Fixed-point units of a probability of 1. Sums of these are exact, so their order does not matter.
const UNITS: f64 = 4_294_967_296.0;

pub(super) fn forward(
    logits: &Tensor,
    draws: &Tensor,
    seen: Option<(&Tensor, &Tensor)>,
    choice: Choice,
    chosen: &Tensor,
) -> Result<()> {
    let rows = logits.shape().rows();
    let vocabulary = logits.shape().columns();
    let logits = logits.values()?;
    let draws = draws.read::<u32>()?;
    let (logits, draws): (&[f32], &[u32]) = (&logits, &draws);
    if let Some((tokens, seen)) = seen {
        let tokens = tokens.read::<u32>()?;
        let words = seen.shape().columns();
        for (token, seen) in tokens.iter().zip(seen.write::<u32>()?.chunks_exact_mut(words)) {
            if let Some(word) = seen.get_mut(*token as usize / 32) {
                *word |= 1 << (token % 32);
            }
        }
    }
    let words = seen.map_or(0, |(_, seen)| seen.shape().columns());
    let seen = seen.map(|(_, seen)| seen.read::<u32>()).transpose()?;
    let seen = seen.as_deref();
    for_pieces(&mut chosen.write::<u32>()?, 1, |row, chosen| {
        let seen = seen.map(|seen| &seen[row * words..][..words]);
        let scores = scores(&logits[row * vocabulary..][..vocabulary], seen, choice);
        let draw = [0, 1, 2].map(|line| draws[line * rows + row]);
        chosen[0] = choose(&scores, draw, choice);
    });
    Ok(())
}

/// Returns the logits after penalty and temperature.
fn scores(logits: &[f32], seen: Option<&[u32]>, choice: Choice) -> Vec<f32> {
    let penalty = choice.repetition_penalty;
    let scale = if choice.temperature > 0.0 { 1.0 / choice.temperature } else { 1.0 };
    let score = |(token, logit): (usize, &f32)| {
        let is_seen = seen.is_some_and(|seen| seen[token / 32] >> (token % 32) & 1 == 1);
        let penalised = match is_seen {
            true if *logit > 0.0 => logit / penalty,
            true => logit * penalty,
            false => *logit,
        };
        penalised * scale
    };
    logits.iter().enumerate().map(score).collect()
}

fn choose(scores: &[f32], [number, low, high]: [u32; 3], choice: Choice) -> u32 {
    if choice.temperature <= 0.0 {
        return largest(scores.iter().copied().enumerate());
    }
    let least = threshold(scores, choice);
    let candidates = scores.iter().copied().enumerate().filter(|(_, score)| *score >= least);
    let noisy = candidates.map(|(token, score)| {
        let words = philox::philox4x32([low, high], [token as u32 / 4, number, 0, 0]);
        (token, score + gumbel(words[token % 4]))
    });
    largest(noisy)
}

/// Returns Gumbel noise −ln(−ln u), where u in (0, 1) is the uniform number of a random word.
fn gumbel(word: u32) -> f32 {
    let uniform = (f64::from(word) + 0.5) / UNITS;
    -libm::log(-libm::log(uniform)) as f32
}

/// Returns the index of the largest value, the first of equals.
fn largest(values: impl Iterator<Item = (usize, f32)>) -> u32 {
    let start = (0, f32::NEG_INFINITY);
    values.fold(start, |best, next| if next.1 > best.1 { next } else { best }).0 as u32
}

/// Returns the lowest score that may be drawn under top-k and top-p.
fn threshold(scores: &[f32], choice: Choice) -> f32 {
    if !choice.has_limits(scores.len()) {
        return f32::NEG_INFINITY;
    }
    let limited = choice.top_k > 0 && (choice.top_k as usize) < scores.len();
    let mut sorted = scores.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let least = if limited { sorted[choice.top_k as usize - 1] } else { f32::NEG_INFINITY };
    if choice.top_p >= 1.0 {
        return least;
    }
    let top = sorted.first().copied().unwrap_or_default();
    let mass = |score: f32| (f64::from((score - top).exp()) * UNITS) as u64;
    let candidates = || sorted.iter().copied().take_while(|score| *score >= least);
    let wanted = (f64::from(choice.top_p) * candidates().map(mass).sum::<u64>() as f64).ceil() as u64;
    let mut sum = 0;
    let enough = candidates().find(|score| {
        sum += mass(*score);
        sum >= wanted
    });
    enough.unwrap_or(least)
}
