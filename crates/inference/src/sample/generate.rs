//! The loop over generation steps: assigns texts to slots and processes chosen tokens.
//!
//! Every rank tracks all texts of all replicas, so that all ranks make the same decisions without
//! communication.

use std::time::{Duration, Instant};

use collective::Axis;
use data::Tokenizer;
use generation::{Generator, GeneratorOptions, Line};
use parallel::data::Assignment;

use super::prompts::Prompt;
use super::shown::{Shown, TextEvent};
use super::text::{End, Text};
use run::Result;

/// The texts to generate.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) prompts: Vec<Prompt>,
    /// Maximum number of new tokens for each prompt.
    pub(super) tokens: usize,
    /// White space that precedes a text and is not part of it.
    pub(super) space: String,
    /// Strings that end a text.
    pub(super) stop: Vec<String>,
    /// Tokens that end a text.
    pub(super) ends: Vec<u32>,
    pub(super) tokenizer: Tokenizer,
    /// Time limit after which unfinished texts end; only used on a single rank.
    pub(super) limit: Option<Duration>,
}

/// Returns the key of the random draws for a conversation turn.
fn key(seed: u64, turn: usize) -> [u32; 2] {
    match turn {
        0 => philox::key_of_name(seed, "sample"),
        turn => philox::key_of_name(seed, &format!("sample.{turn}")),
    }
}

/// The texts in a replica's slots, and the waiting texts.
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

/// Assigns texts to replicas, round-robin.
pub(super) fn assignment(texts: usize, replicas: usize) -> Assignment {
    Assignment::round_robin(texts, replicas)
}

/// Generates all texts.
pub(super) fn generate(
    generator: &mut Generator,
    options: GeneratorOptions,
    job: &Job,
    show: &dyn Fn(TextEvent<'_>) -> std::io::Result<()>,
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
