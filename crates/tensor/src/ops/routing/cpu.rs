//! Routing on the host.

use device::parallel::{for_pieces, for_tasks};

use super::routes::{NONE, Routes};
use super::settings::{Balance, Balancing, Routing, ScoreFunction, TokenRows};
use crate::ops::math::exp;
use crate::ops::rows;
use crate::{Result, Tensor};

/// Number added to the sum of sigmoids that divides the weights, as in DeepSeek-V3.
const EPSILON: f32 = 1e-20;

pub(super) fn forward(
    (logits, correction): (&Tensor, Option<&Tensor>),
    routing: &Routing,
    loads: Option<&Tensor>,
    tokens: Option<&TokenRows>,
    routes: &Routes,
) -> Result<()> {
    let experts = routing.experts;
    let chosen = routing.per_token;
    let correction = correction.map(Tensor::read::<f32>).transpose()?;
    let logits = logits.read::<f32>()?;
    let correction = correction.as_deref();
    let logits: &[f32] = &logits;
    let mut weights = routes.weights.write::<f32>()?;
    let mut choices = routes.choices.write::<u32>()?;
    let per_task = rows::per_task(experts);
    let tasks = weights.chunks_mut(per_task * chosen).zip(choices.chunks_mut(per_task * chosen));
    for_tasks(
        tasks.enumerate().collect(),
        |(index, (weights, choices)): (usize, (&mut [f32], &mut [u32]))| {
            let logits = rows::piece(logits, index, per_task * experts);
            let outputs = weights.chunks_exact_mut(chosen).zip(choices.chunks_exact_mut(chosen));
            for (logits, (weights, choices)) in logits.chunks_exact(experts).zip(outputs) {
                let scores = scores(logits, routing.scores);
                choose(&scores, correction, routing, choices);
                weigh(&scores, choices, routing, weights);
            }
        },
    );
    drop(weights);
    order(&choices, routing.alignment, routes)?;
    if let (Some(TokenRows { mask, .. }), Some(counts)) = (tokens, &routes.token_counts) {
        let mask = mask.read::<u32>()?;
        let mut counts = counts.write::<u32>()?;
        counts.fill(0);
        for (choices, _) in choices.chunks_exact(chosen).zip(mask.iter()).filter(|(_, mask)| **mask != 0) {
            choices.iter().for_each(|expert| counts[*expert as usize] += 1);
            counts[experts] += chosen as u32;
        }
    }
    let Some(loads) = loads else { return Ok(()) };
    let counts = routes.token_counts.as_ref().unwrap_or(&routes.counts);
    let mut loads = loads.write::<u32>()?;
    let counts = counts.read::<u32>()?;
    loads.iter_mut().zip(counts.iter()).for_each(|(load, count)| *load += count);
    Ok(())
}

fn scores(logits: &[f32], function: ScoreFunction) -> Vec<f32> {
    match function {
        ScoreFunction::Softmax => softmax(logits),
        ScoreFunction::Sigmoid => logits.iter().map(|logit| 1.0 / (1.0 + exp(-logit))).collect(),
    }
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut values: Vec<f32> = logits.iter().map(|logit| exp(logit - largest)).collect();
    let all: f32 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= all);
    values
}

/// Writes the experts with the largest corrected scores to `choices`, in descending order.
fn choose(scores: &[f32], correction: Option<&[f32]>, routing: &Routing, choices: &mut [u32]) {
    let corrected = |expert: usize| scores[expert] + correction.map_or(0.0, |all| all[expert]);
    let size = scores.len() / routing.groups;
    let mut group_choices = vec![0; routing.groups_per_token];
    if routing.groups > 1 {
        let sums: Vec<f32> = (0..routing.groups)
            .map(|group| two_largest((group * size..(group + 1) * size).map(corrected)))
            .collect();
        largest(routing.groups, |group| sums[group], &mut group_choices);
    }
    let is_open = |expert: usize| routing.groups == 1 || group_choices.contains(&((expert / size) as u32));
    let score = |expert| if is_open(expert) { corrected(expert) } else { f32::NEG_INFINITY };
    largest(scores.len(), score, choices);
}

fn two_largest(values: impl Iterator<Item = f32>) -> f32 {
    let start = [f32::NEG_INFINITY; 2];
    let [first, second] = values.fold(start, |[first, second], value| match value > first {
        true => [value, first],
        false => [first, second.max(value)],
    });
    if second == f32::NEG_INFINITY { first } else { first + second }
}

/// Writes the indices of the largest values in descending order. Of equal values the first comes first; NaN
/// ranks last.
fn largest(count: usize, value: impl Fn(usize) -> f32, indices: &mut [u32]) {
    for number in 0..indices.len() {
        let taken = &indices[..number];
        let free = (0..count).filter(|index| !taken.contains(&(*index as u32)));
        let best = free.reduce(|best, next| {
            let own = value(best);
            let other = value(next);
            if other > own || own.is_nan() && !other.is_nan() { next } else { best }
        });
        indices[number] = best.unwrap_or(0) as u32;
    }
}

/// Writes the weights of the experts that a row chose.
fn weigh(scores: &[f32], choices: &[u32], routing: &Routing, weights: &mut [f32]) {
    weights.iter_mut().zip(choices).for_each(|(weight, expert)| *weight = scores[*expert as usize]);
    let sum = if routing.normalised { weights.iter().sum::<f32>() + EPSILON } else { 1.0 };
    let sum = if routing.normalised { sum.max(routing.least_sum) } else { sum };
    weights.iter_mut().for_each(|weight| *weight = *weight / sum * routing.scale);
}

fn order(choices: &[u32], alignment: usize, routes: &Routes) -> Result<()> {
    let mut offsets = routes.offsets.write::<u32>()?;
    let mut counts = routes.counts.write::<u32>()?;
    counts.fill(0);
    choices.iter().for_each(|expert| counts[*expert as usize] += 1);
    let mut first = 0;
    for (offset, count) in offsets.iter_mut().zip(counts.iter()) {
        *offset = first;
        first += count.next_multiple_of(alignment as u32);
    }
    if let Some(end) = offsets.last_mut() {
        *end = routes.slots() as u32;
    }
    let mut next = offsets.to_vec();
    let mut slots = routes.slots.write::<u32>()?;
    let mut sources = routes.sources.write::<u32>()?;
    sources.fill(NONE);
    for (index, (expert, slot)) in choices.iter().zip(slots.iter_mut()).enumerate() {
        let own = &mut next[*expert as usize];
        *slot = *own;
        sources[*own as usize] = index as u32;
        *own += 1;
    }
    Ok(())
}

pub(super) fn backward(
    (dw, logits): (&Tensor, &Tensor),
    routes: &Routes,
    (routing, balancing): (&Routing, Balancing<'_>),
    gradient: &Tensor,
) -> Result<()> {
    let experts = routing.experts;
    let chosen = routing.per_token;
    let Balancing { factors, loss_scale, tokens } = balancing;
    let counts = routes.token_counts.as_ref().unwrap_or(&routes.counts).read::<u32>()?;
    let mask = tokens.map(|tokens| tokens.mask.read::<u32>()).transpose()?;
    let mask: Option<&[u32]> = mask.as_deref();
    let scale = loss_scale.map(Tensor::read::<f32>).transpose()?.map_or(1.0, |scale| scale[0]);
    let balance = Balance { load: factors.load * scale, logits: factors.logits * scale };
    let (rows, all) = match tokens {
        Some(tokens) => (tokens.count.read::<u32>()?[0] as f32, counts[experts] as f32),
        None => (routes.rows() as f32, routes.choices.elements() as f32),
    };
    // The gradient of each row's normalised scores by the loss of loads.
    let factor = balance.load * experts as f32 / rows;
    let of_load = counts[..experts].iter().map(|count| factor * (*count as f32 / all));
    let of_load: Option<Vec<f32>> = (balance.load != 0.0).then(|| of_load.collect());
    let of_logits = balance.logits * 2.0 / rows;
    let dw = dw.read::<f32>()?;
    let logits = logits.read::<f32>()?;
    let choices = routes.choices.read::<u32>()?;
    let (dw, logits, choices): (&[f32], &[f32], &[u32]) = (&dw, &logits, &choices);
    let of_load = of_load.as_deref();
    let per_task = rows::per_task(experts);
    for_pieces(&mut gradient.write::<f32>()?, per_task * experts, |index, gradient| {
        let logits = rows::piece(logits, index, per_task * experts).chunks_exact(experts);
        let dw = rows::piece(dw, index, per_task * chosen).chunks_exact(chosen);
        let choices = rows::piece(choices, index, per_task * chosen).chunks_exact(chosen);
        let rows = gradient.chunks_exact_mut(experts).zip(logits).zip(dw).zip(choices).enumerate();
        for (row, (((gradient, logits), dw), choices)) in rows {
            of_weights(dw, logits, choices, routing, gradient);
            if mask.is_some_and(|mask| mask[index * per_task + row] == 0) {
                continue;
            }
            if let Some(of_load) = of_load {
                add_of_load(of_load, logits, routing.scores, gradient);
            }
            if of_logits != 0.0 {
                add_of_log_sum(of_logits, logits, gradient);
            }
        }
    });
    Ok(())
}

fn of_weights(dw: &[f32], logits: &[f32], choices: &[u32], routing: &Routing, gradient: &mut [f32]) {
    gradient.fill(0.0);
    let scores = scores(logits, routing.scores);
    let own = |expert: &u32| scores[*expert as usize];
    let sum = if routing.normalised { choices.iter().map(own).sum::<f32>() + EPSILON } else { 1.0 };
    let depends = routing.normalised && sum >= routing.least_sum;
    let sum = if routing.normalised { sum.max(routing.least_sum) } else { sum };
    let mean: f32 = match depends {
        true => dw.iter().zip(choices).map(|(dw, expert)| dw * (own(expert) / sum)).sum(),
        false => 0.0,
    };
    for (dw, expert) in dw.iter().zip(choices) {
        gradient[*expert as usize] = (dw - mean) / sum * routing.scale;
    }
    through_scores(&scores, routing.scores, gradient);
}

fn through_scores(scores: &[f32], function: ScoreFunction, gradient: &mut [f32]) {
    match function {
        ScoreFunction::Softmax => {
            let all: f32 = gradient.iter().zip(scores).map(|(g, score)| g * score).sum();
            gradient.iter_mut().zip(scores).for_each(|(g, score)| *g = score * (*g - all));
        }
        ScoreFunction::Sigmoid => {
            gradient.iter_mut().zip(scores).for_each(|(g, score)| *g *= score * (1.0 - score));
        }
    }
}

fn add_of_load(of_load: &[f32], logits: &[f32], function: ScoreFunction, gradient: &mut [f32]) {
    let scores = scores(logits, function);
    let sum = match function {
        ScoreFunction::Softmax => 1.0,
        ScoreFunction::Sigmoid => scores.iter().sum::<f32>() + EPSILON,
    };
    let mean: f32 = match function {
        ScoreFunction::Softmax => 0.0,
        ScoreFunction::Sigmoid => of_load.iter().zip(&scores).map(|(g, score)| g * (score / sum)).sum(),
    };
    let mut own: Vec<f32> = of_load.iter().map(|g| (g - mean) / sum).collect();
    through_scores(&scores, function, &mut own);
    gradient.iter_mut().zip(own).for_each(|(g, own)| *g += own);
}

/// Adds the gradient of the squared log-sum-exp of `logits`, times `factor`.
fn add_of_log_sum(factor: f32, logits: &[f32], gradient: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|logit| exp(logit - largest)).sum();
    let log_sum = largest + libm::logf(sum);
    let softmax = softmax(logits);
    gradient.iter_mut().zip(softmax).for_each(|(g, p)| *g += factor * log_sum * p);
}
