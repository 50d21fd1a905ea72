//! The loop over steps: the text of each slot, and the treatment of chosen tokens.
//!
//! Every rank follows all texts of all replicas, so that all make the same decisions without communication.

use std::time::{Duration, Instant};

use collective::Axis;
use data::Tokenizer;
use generation::{Generator, GeneratorOptions, Line};
use parallel::data::Assignment;

use super::prompts::Prompt;
use super::shown::{Piece, Shown};
use super::text::{End, Text};
use run::Result;

/// Texts to generate.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) prompts: Vec<Prompt>,
    /// Tokens to add to each, at most.
    pub(super) tokens: usize,
    /// White space before a text that is not part of it.
    pub(super) space: String,
    /// Texts that end a text.
    pub(super) stop: Vec<String>,
    /// Tokens that end a text.
    pub(super) ends: Vec<u32>,
    pub(super) tokenizer: Tokenizer,
    /// The longest time, after which unfinished texts end. Used on one rank only.
    pub(super) limit: Option<Duration>,
}

/// The key of the draws of a turn's text.
fn key(seed: u64, turn: usize) -> [u32; 2] {
    match turn {
        0 => philox::key_of_name(seed, "sample"),
        turn => philox::key_of_name(seed, &format!("sample.{turn}")),
    }
}

/// The texts of a replica's slots, and the waiting texts.
struct Queue {
    slots: Vec<Option<usize>>,
    waiting: std::vec::IntoIter<usize>,
}

impl Queue {
    /// Assigns waiting texts to free slots.
    fn fill(&mut self, texts: &[Text]) {
        for slot in &mut self.slots {
            if slot.is_none_or(|text| texts[text].end().is_some()) {
                *slot = self.waiting.next();
            }
        }
    }

    fn is_done(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }
}

/// The replicas that generate texts: in turn.
pub(super) fn assignment(texts: usize, replicas: usize) -> Assignment {
    Assignment::in_turn(texts, replicas)
}

/// Generates all texts.
pub(super) fn generate(
    generator: &mut Generator,
    options: GeneratorOptions,
    job: &Job,
    show: &dyn Fn(Piece<'_>) -> std::io::Result<()>,
) -> Result<Vec<Text>> {
    let began = Instant::now();
    let replicas = generator.grid().size(Axis::Data);
    let mut texts: Vec<_> =
        job.prompts.iter().map(|prompt| Text::new(prompt.clone(), &job.space, &job.tokenizer)).collect();
    if job.tokens == 0 {
        texts.iter_mut().for_each(|text| text.finish(End::Length, &job.tokenizer));
    }
    let assignment = assignment(texts.len(), replicas);
    let queue = |replica: usize| {
        let all = assignment.numbers(replica).filter(|text| texts[*text].end().is_none());
        Queue { slots: vec![None; options.slots], waiting: all.collect::<Vec<_>>().into_iter() }
    };
    let mut queues: Vec<_> = (0..replicas).map(queue).collect();
    let mut shown = Shown::default();
    loop {
        queues.iter_mut().for_each(|queue| queue.fill(&texts));
        shown.update(&texts, show)?;
        if queues.iter().all(Queue::is_done) {
            return Ok(texts);
        }
        let line = |text: &Option<usize>| text.map(|text| line(&texts[text]));
        let lines = |queue: &Queue| queue.slots.iter().map(line).collect();
        let lines: Vec<Vec<_>> = queues.iter().map(lines).collect();
        let tokens = generator.step(&lines)?;
        let is_late = job.limit.is_some_and(|limit| began.elapsed() >= limit);
        for (queue, tokens) in queues.iter().zip(&tokens) {
            for (text, token) in queue.slots.iter().zip(tokens) {
                let Some(text) = text.map(|text| &mut texts[text]) else { continue };
                text.add(*token, &job.tokenizer, &job.stop, &job.ends, options.capacity);
                if text.drawn() == job.tokens {
                    text.finish(End::Length, &job.tokenizer);
                }
                if is_late {
                    text.finish(End::Time, &job.tokenizer);
                }
            }
        }
    }
}

fn line(text: &Text) -> Line<'_> {
    Line {
        tokens: text.window(),
        is_new: text.is_new,
        seen: (text.drawn() == 0).then(|| text.tokens()),
        number: text.drawn() as u32,
        key: key(text.prompt.seed, text.prompt.turn),
    }
}
