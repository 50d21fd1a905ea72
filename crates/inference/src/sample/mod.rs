//! Text from a trained model, on any grid, and the sample at the end of a run.

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
pub use shown::{Piece, Show};
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

/// Sampled texts, with their memory and time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sampled {
    /// The texts in the order of their prompts; none of a plan.
    pub texts: Vec<SampledText>,
    /// The memory of each rank, planned and used.
    pub memory: Vec<RankMemory>,
    /// Tokens that were drawn.
    pub tokens: u64,
    /// Seconds from the first prompt to the last token.
    pub seconds: f64,
}

/// Continues prompts with a trained model. Rank 0 hands their texts to `show` as they come, one after the
/// other. `None` on ranks of a job other than 0.
///
/// # Errors
/// With status 2, before anything is allocated: no model there, one without text, options or prompts that do
/// not go together, a model that does not fit. A rank's failure ends all; so does what `show` refuses.
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
        let show = |piece: Piece<'_>| if first { show(piece) } else { Ok(()) };
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
