//! Evaluates a trained model on any grid: computes the loss of all tokens of some data, or answers
//! multiple-choice questions.

mod choices;
mod input;
mod loss;
mod options;
mod prepare;

pub use choices::Choices;
pub use options::EvaluateOptions;

use std::fmt;

use collective::{Axis, Communicator};
use evaluation::Evaluator;
use serde::Serialize;
use telemetry::Progress;
use telemetry::progress::StepFigures;
use worker::{Losses, Setup, Validation, WorkerError};

use crate::ranks::on_ranks;
use loss::Targets;
use prepare::Prepared;
use run::Startup;
use run::prepare_kernels;
use run::{Result, RunError};

/// The result of an evaluation, equal on every grid.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Identifier of the model's weights.
    pub model: String,
    /// Identifier of the data: a SHA-256.
    pub data: String,
    /// Number of predicted tokens, or of images for an image model.
    pub tokens: u64,
    /// Mean loss per token or image, in nats.
    pub loss: f64,
    /// Mean loss per byte of text, in nats; `None` if tokens do not consist of bytes.
    pub loss_per_byte: Option<f64>,
    /// Exponential of the loss.
    pub perplexity: f64,
    /// Fractions of questions answered correctly, for multiple choice.
    #[serde(flatten)]
    pub choices: Option<Choices>,
    /// For images, the fraction whose class had the highest score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_1: Option<f64>,
    /// For images, the fraction whose class was among the five highest scores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_5: Option<f64>,
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evaluation { tokens, loss, loss_per_byte, perplexity, choices, .. } = self;
        if let Some(choices) = choices {
            writeln!(f, "{choices}")?;
        }
        if let (Some(first), Some(among)) = (self.top_1, self.top_5) {
            let first = 100.0 * first;
            let among = 100.0 * among;
            return write!(f, "{tokens} images, loss {loss:.6}, top-1 {first:.2} %, top-5 {among:.2} %");
        }
        write!(f, "{tokens} tokens, loss {loss:.6} per token")?;
        if let Some(loss) = loss_per_byte {
            write!(f, " ({loss:.6} per byte)")?;
        }
        write!(f, ", perplexity {perplexity:.4}")
    }
}

/// Evaluates a model on consecutive sequences without overlap, of which the last may be shorter, or on
/// multiple-choice questions. Returns `None` on ranks of a job other than 0.
///
/// # Errors
/// Status 2, before anything is allocated: there is no model, the data is invalid, settings conflict, or the
/// model does not fit. If a rank fails, all end.
pub fn evaluate(mut startup: Startup, options: &EvaluateOptions) -> Result<Option<Evaluation>> {
    let prepared = prepare::prepare(&startup, options);
    let Prepared { setup, weights, questions, data } = startup.agree(prepared)?;
    let same = startup.check_same(&setup, &data);
    startup.agree(same)?;
    let fits = check_fit(&setup, startup.rank());
    startup.agree(fits)?;
    let dataset = setup.dataset.clone();
    let shared = setup.clone();
    let model = weights.id().to_owned();
    let body = move |communicator: Communicator| -> Result<Losses> {
        prepare_kernels(&setup)?;
        let grid = setup.config.parallel.grid().seen_from(communicator.rank()).map_err(WorkerError::from)?;
        let replica = grid.coordinate(Axis::Data);
        let mut evaluator = Evaluator::new(&setup, communicator, Some(&*weights))?;
        // Only the first replica shows progress.
        let shows = usize::from(replica > 0 || !evaluator.has_losses());
        let steps = evaluator.own_micro_batches();
        let mut progress = Progress::new(shows, steps, (steps / 10).max(1));
        let losses = evaluator.losses(&mut |done| progress.step(done as u64, &StepFigures::default()))?;
        progress.finish();
        Ok(losses)
    };
    let Some(all) = on_ranks(startup, &shared, body)? else { return Ok(None) };
    if let Validation { loss, accuracy: Some(accuracy), .. } = Validation::from_losses(&all) {
        return Ok(Some(Evaluation {
            model,
            data,
            tokens: accuracy.images,
            loss,
            loss_per_byte: None,
            perplexity: loss.exp(),
            choices: None,
            top_1: Some(accuracy.top_1()),
            top_5: Some(accuracy.top_5()),
        }));
    }
    let losses = all.losses;
    let Targets { counts, bytes } = loss::targets(&*dataset.source, dataset.tokens.as_deref())?;
    let (tokens, loss) = loss::mean(&losses, &counts);
    let loss_per_byte = bytes.filter(|bytes| *bytes > 0).map(|bytes| loss * tokens as f64 / bytes as f64);
    let choices = questions.map(|questions| choices::score(&questions, &losses, &counts));
    Ok(Some(Evaluation {
        model,
        data,
        tokens,
        loss,
        loss_per_byte,
        perplexity: loss.exp(),
        choices,
        top_1: None,
        top_5: None,
    }))
}

/// Runs a rank's micro-batch on Meta, which counts memory as on its device.
///
/// # Errors
/// The micro-batch does not fit.
fn check_fit(setup: &Setup, rank: usize) -> Result<()> {
    let imitated = plan::roles::imitation(setup)?.on_meta();
    let communicator = Communicator::counted(rank, setup.config.world_size());
    let refused = |error: WorkerError| match error.is_out_of_memory() {
        true => RunError::Refused(format!("the evaluation does not fit: {error}")),
        false => error.into(),
    };
    Evaluator::new(&imitated, communicator, None).map(drop).map_err(refused)
}
