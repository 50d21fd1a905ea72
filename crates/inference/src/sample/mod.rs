//! Generates text with a trained model on any grid, and the sample at the end of a run.

mod at_end;
mod ends;
mod generate;
mod memory;
mod messages;
mod options;
mod prepare;
mod prompts;
mod shown;
mod talk;
mod text;

pub use at_end::sampler;
pub use memory::RankMemory;
pub use messages::Messages;
pub use options::SampleOptions;
pub use shown::{Show, TextEvent};
pub use text::{End, SampledText};

use std::time::Instant;

use collective::Communicator;
use generation::Generator;
use serde::Serialize;

use crate::ranks::on_ranks;
use generate::generate;
use prepare::Prepared;
use run::Result;
use run::Startup;
use run::prepare_kernels;

/// Generated texts, with memory and time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sampled {
    /// The texts in the order of their prompts; empty if only planned.
    pub texts: Vec<SampledText>,
    /// Planned and used memory of each rank.
    pub memory: Vec<RankMemory>,
    /// Number of generated tokens.
    pub tokens: u64,
    /// Seconds from the first prompt to the last token.
    pub seconds: f64,
}

/// Continues prompts with a trained model. Rank 0 passes the texts to `show` as they are generated, one after
/// another. Returns `None` on ranks of a job other than 0.
///
/// # Errors
/// Status 2, before anything is allocated: there is no model, it has no text, options or prompts conflict, or
/// the model does not fit. If a rank or `show` fails, all end.
pub fn sample(mut startup: Startup, options: &SampleOptions, show: Show) -> Result<Option<Sampled>> {
    let prepared = Prepared::new(&startup, options);
    let Prepared { setup, weights, job, talk, generator } = startup.agree(prepared)?;
    let same = startup.check_same(&setup, &format!("{options:?}"));
    startup.agree(same)?;
    let planned = memory::plan(&setup, generator);
    let planned = startup.agree(planned)?;
    if options.plan_only {
        let first = startup.rank() == 0;
        startup.finish()?;
        let none = Sampled { texts: Vec::new(), memory: planned, tokens: 0, seconds: 0.0 };
        return Ok(first.then_some(none));
    }
    let shared = setup.clone();
    let body = move |communicator: Communicator| -> Result<Sampled> {
        prepare_kernels(&setup)?;
        let first = communicator.rank() == 0;
        let mut rank = Generator::new(&setup, communicator, generator, Some(&*weights))?;
        let began = Instant::now();
        let show = |piece: TextEvent<'_>| if first { show(piece) } else { Ok(()) };
        let texts = match &talk {
            Some(talk) => talk.hold(&mut rank, generator, &job, &show)?,
            None => generate(&mut rank, generator, &job, &show)?,
        };
        let seconds = began.elapsed().as_secs_f64();
        let memory = memory::compare(&mut rank, &planned)?;
        let tokens = texts.iter().map(|text| text.drawn() as u64).sum();
        let texts = texts.into_iter().map(text::Text::into_sampled).collect();
        Ok(Sampled { texts, memory, tokens, seconds })
    };
    on_ranks(startup, &shared, body)
}
