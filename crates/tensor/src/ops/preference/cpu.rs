//! Preference losses on the host. There are only as many numbers as rows, so one thread computes them.

use super::objective::Objective;
use super::operands::{Output, Sequences, VALUES};
use crate::ops::cross_entropy::{IGNORED, Mean};
use crate::{Result, Tensor};

/// Reciprocal of the smallest value of 1 − p for an answer's mean probability p, so that odds are finite.
pub(super) const LEAST_IMPROBABILITY: u32 = 10_000_000;

/// Sums over the rows of one sequence.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// ln p of the answer, rounded to f32 as the reference's scores are.
    score: f32,
    /// Number of the answer's targets.
    tokens: f64,
    /// Sum of −ln p over all targets.
    loss: f64,
    targets: f64,
    /// ln p of the answer by the reference model.
    reference: f32,
}

/// Loss of a pair, its derivatives with respect to the scores of both answers, and both rewards.
struct PairLoss {
    loss: f64,
    slopes: [f64; 2],
    rewards: [f64; 2],
}

/// Computes ln p of each answer.
pub(super) fn scores(sequences: Sequences, scores: &Tensor) -> Result<()> {
    let scored: Vec<f32> = sums(sequences, None)?.iter().map(|sums| sums.score).collect();
    scores.set(&scored)
}

/// Computes the loss of the pairs, its statistics, and the weights of rows.
pub(super) fn forward(
    sequences: Sequences,
    reference: Option<&Tensor>,
    (objective, scale): (Objective, f32),
    learnt: Mean<'_>,
    output: &Output,
) -> Result<()> {
    let all = sums(sequences, reference)?;
    let count = (all.len() / 2) as f64;
    let of_target = if objective.learns_prompts() {
        let own: f64 = all.iter().step_by(2).map(|chosen| chosen.targets).sum();
        let divisor = learnt.divisor(own as usize)?;
        if divisor > 0 { f64::from(learnt.scale) / f64::from(divisor) } else { 0.0 }
    } else {
        0.0
    };
    let mut values = [0.0; VALUES];
    let mut slopes = Vec::with_capacity(all.len());
    for pair in all.chunks_exact(2) {
        let [chosen, rejected] = [pair[0], pair[1]];
        let PairLoss { loss, slopes: own, rewards } = of_pair(objective, [chosen, rejected]);
        let margin = rewards[0] - rewards[1];
        let figures = [loss, f64::from(u8::from(margin > 0.0)), margin, rewards[0], rewards[1], 0.0];
        values
            .iter_mut()
            .zip(figures)
            .for_each(|(value, figure)| *value += figure * f64::from(scale) / count);
        values[0] += of_target * chosen.loss;
        values[5] += of_target * chosen.loss;
        slopes.extend(own.map(|slope| -slope * f64::from(scale) / count));
    }
    output.values.set(&values.map(|value| value as f32))?;
    let targets = sequences.targets.read::<u32>()?;
    let answers = sequences.answers.read::<u32>()?;
    let time = targets.len() / answers.len();
    let mut weights = output.weights.values_mut()?;
    for (row, (weight, target)) in weights.iter_mut().zip(targets.iter()).enumerate() {
        let sequence = row / time;
        let position = row % time;
        let own = if position >= answers[sequence] as usize { slopes[sequence] } else { 0.0 };
        let learns = if sequence.is_multiple_of(2) { of_target } else { 0.0 };
        *weight = if *target == IGNORED { 0.0 } else { (own + learns) as f32 };
    }
    Ok(())
}

/// Computes the sums over the rows of every sequence, in row order.
fn sums(sequences: Sequences, reference: Option<&Tensor>) -> Result<Vec<Sums>> {
    let Sequences { losses, targets, answers } = sequences;
    let losses = losses.values()?;
    let targets = targets.read::<u32>()?;
    let answers = answers.read::<u32>()?;
    let reference = reference.map(Tensor::values).transpose()?;
    let time = targets.len() / answers.len();
    let of_sequence = |(index, answer): (usize, &u32)| {
        let mut sums = Sums::default();
        let mut score = 0.0;
        let rows = index * time..(index + 1) * time;
        for (position, (loss, target)) in losses[rows.clone()].iter().zip(&targets[rows]).enumerate() {
            if *target == IGNORED {
                continue;
            }
            (sums.loss, sums.targets) = (sums.loss + f64::from(*loss), sums.targets + 1.0);
            if position >= *answer as usize {
                score -= f64::from(*loss);
                sums.tokens += 1.0;
            }
        }
        let reference = reference.as_ref().map_or(0.0, |reference| reference[index]);
        Sums { score: score as f32, reference, tokens: sums.tokens.max(1.0), ..sums }
    };
    Ok(answers.iter().enumerate().map(of_sequence).collect())
}

/// Returns ln σ(x).
fn log_sigmoid(x: f64) -> f64 {
    x.min(0.0) - libm::log1p(libm::exp(-x.abs()))
}

/// Returns σ(x).
fn sigmoid(x: f64) -> f64 {
    libm::exp(log_sigmoid(x))
}

fn of_pair(objective: Objective, pair: [Sums; 2]) -> PairLoss {
    let (_, parameter, smoothing) = objective.parameters();
    let parameter = f64::from(parameter);
    let smoothing = f64::from(smoothing);
    let gains = pair.map(|sums| f64::from(sums.score) - f64::from(sums.reference));
    match objective {
        Objective::Dpo { .. } => {
            let rewards = gains.map(|gain| parameter * gain);
            let margin = rewards[0] - rewards[1];
            let loss = -(1.0 - smoothing) * log_sigmoid(margin) - smoothing * log_sigmoid(-margin);
            let slope = parameter * (smoothing * sigmoid(margin) - (1.0 - smoothing) * sigmoid(-margin));
            PairLoss { loss, slopes: [slope, -slope], rewards }
        }
        Objective::Ipo { .. } => {
            let means = [gains[0] / pair[0].tokens, gains[1] / pair[1].tokens];
            let distance = means[0] - means[1] - 0.5 / parameter;
            let slopes = [2.0 * distance / pair[0].tokens, -2.0 * distance / pair[1].tokens];
            PairLoss { loss: distance * distance, slopes, rewards: gains.map(|gain| parameter * gain) }
        }
        Objective::Orpo { .. } => {
            let least = -1.0 / f64::from(LEAST_IMPROBABILITY);
            let means = pair.map(|sums| (f64::from(sums.score) / sums.tokens).min(least));
            let odds = means.map(|mean| mean - libm::log(-libm::expm1(mean)));
            let ratio = odds[0] - odds[1];
            let slope = -parameter * sigmoid(-ratio);
            let of_mean = |which: usize| slope / (-libm::expm1(means[which])) / pair[which].tokens;
            PairLoss {
                loss: -parameter * log_sigmoid(ratio),
                slopes: [of_mean(0), -of_mean(1)],
                rewards: means.map(|mean| parameter * mean),
            }
        }
    }
}
