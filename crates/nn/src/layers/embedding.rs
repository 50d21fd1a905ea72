//! Token embedding with learned, fixed or no position embedding.

use autograd::ops::{Positions, TokenTable};
use autograd::{Tape, Var, Weight, ops};
use device::{Float, dispatch};
use tensor::Tensor;

use super::within;
use crate::buffers::ModelBuffer;
use crate::error::Result;
use crate::init::Init;
use crate::parameters::{ParameterRole, Parameters};

/// Embeds tokens, and adds position embeddings if there are any. Positions restart with each document.
#[derive(Debug)]
pub struct Embedding {
    /// The token table, or its local shards.
    tables: Vec<Weight>,
    padding: Option<u32>,
    positions: Table,
    is_sharded: bool,
    shards_rows: bool,
    noise: Option<EmbeddingNoise>,
}

/// Uniform noise that is added in training.
#[derive(Debug)]
struct EmbeddingNoise {
    site: ops::Noise,
    /// Magnitude, times the root of the elements of a sequence.
    alpha: f64,
}

impl EmbeddingNoise {
    /// The noise of the table `name`, if there is some.
    fn new(parameters: &Parameters, name: &str, shards_rows: bool) -> Option<Self> {
        let alpha = parameters.embedding_noise();
        let site = || ops::Noise::new(parameters.seed(), &format!("{name}.noise"));
        let site = || if shards_rows { site().over_rows() } else { site() };
        (alpha > 0.0).then(|| EmbeddingNoise { site: site(), alpha })
    }

    /// Adds the noise to `rows_bld`, whose sequences have `elements` elements.
    fn forward(&self, tape: &Tape, rows_bld: Var, elements: usize) -> Result<Var> {
        let magnitude = (self.alpha / (elements as f64).sqrt()) as f32;
        within(tape, "noise", || Ok(ops::noise(tape, rows_bld, &self.site, magnitude)?))
    }
}

#[derive(Debug)]
enum Table {
    None,
    Learned(Weight),
    Fixed(ModelBuffer),
}

impl Embedding {
    /// Registers the token table `name`, of shape `[vocabulary, width]`.
    ///
    /// # Errors
    /// Memory is exhausted, or the name exists.
    pub fn new(
        parameters: &mut Parameters,
        name: &str,
        [vocabulary, width]: [usize; 2],
        init: Init,
    ) -> Result<Self> {
        let is_sharded = parameters.style(name).is_some();
        let shards_rows = parameters.shards_rows();
        let tables = parameters.with_role(ParameterRole::Embedding, |parameters| {
            parameters.create_shards(name, [vocabulary, width], init)
        })?;
        let noise = EmbeddingNoise::new(parameters, name, is_sharded && shards_rows);
        Ok(Embedding { tables, padding: None, positions: Table::None, is_sharded, shards_rows, noise })
    }

    /// Uses the existing token table `name` again, without positions and noise.
    ///
    /// # Errors
    /// There is no such table.
    pub fn reused(parameters: &mut Parameters, name: &str) -> Result<Self> {
        let is_sharded = parameters.style(name).is_some();
        let shards_rows = parameters.shards_rows();
        let tables = parameters.for_each_shard(is_sharded, |parameters| parameters.reuse(name))?;
        let positions = Table::None;
        Ok(Embedding { tables, padding: None, positions, is_sharded, shards_rows, noise: None })
    }

    /// Excludes the row of the token `padding` from training.
    #[must_use]
    pub fn with_padding(self, padding: Option<u32>) -> Self {
        Embedding { padding, ..self }
    }

    /// Registers the learned position table `name`, of shape `[context, width]`.
    ///
    /// # Errors
    /// Memory is exhausted, or the name exists.
    pub fn with_positions(
        self,
        parameters: &mut Parameters,
        name: &str,
        context: usize,
        init: Init,
    ) -> Result<Self> {
        let table = parameters.with_role(ParameterRole::Embedding, |parameters| {
            parameters.create(name, [context, self.width()], init)
        })?;
        Ok(Embedding { positions: Table::Learned(table), ..self })
    }

    /// Registers sinusoidal positions as the buffer `name`, of shape `[context, width]` (Vaswani and others,
    /// *Attention Is All You Need*, 2017).
    ///
    /// # Errors
    /// Memory is exhausted, or the name exists.
    pub fn with_sinusoids(self, parameters: &mut Parameters, name: &str, context: usize) -> Result<Self> {
        let width = self.width();
        let values = (0..context * width).map(|i| sinusoid(i / width, i % width, width));
        let buffer = dispatch!(
            parameters.dtype(),
            T => {
                let values: Vec<T> = values.map(T::from_f32).collect();
                parameters.create_buffer(name, [context, width], &values)?
            },
            _ => parameters.create_buffer(name, [context, width], &values.collect::<Vec<f32>>())?,
        );
        Ok(Embedding { positions: Table::Fixed(buffer), ..self })
    }

    fn width(&self) -> usize {
        self.tables[0].shape().columns()
    }

    /// Maps u32 tokens `[batch, time]` to `[batch, time, width]`, whose rows may be sharded. In training
    /// the noise of [`Parameters::with_embedding_noise`] is added.
    ///
    /// # Errors
    /// A token is outside the table, there are more positions than registered, or memory is exhausted.
    pub fn forward(&self, tape: &Tape, tokens_bl: &Tensor) -> Result<Var> {
        let positions = match &self.positions {
            Table::None => None,
            Table::Learned(table) => Some(Positions::Learned(table)),
            Table::Fixed(table) => Some(Positions::Fixed(table.tensor())),
        };
        let table = match self.is_sharded {
            // Passes that generate text have few rows, so every rank computes all of them.
            true => TokenTable::Shards {
                tables: &self.tables,
                shards_rows: self.shards_rows && tape.pass().cache.is_none(),
            },
            false => TokenTable::Whole(&self.tables[0]),
        };
        let embedding = || Ok(ops::embedding(tape, tokens_bl, table, positions, self.padding)?);
        let rows_bld = within(tape, "embedding", embedding)?;
        let Some(noise) = &self.noise else { return Ok(rows_bld) };
        let pieces = tape.pieces().map_or(1, |pieces| pieces.all);
        noise.forward(tape, rows_bld, pieces * tokens_bl.shape().columns() * self.width())
    }
}

/// Returns sin(position / 10000^(2i / width)) for column 2i, and the cosine for column 2i + 1.
fn sinusoid(position: usize, column: usize, width: usize) -> f32 {
    let exponent = (column / 2 * 2) as f64 / width as f64;
    let angle = position as f64 / libm::pow(10_000.0, exponent);
    (if column.is_multiple_of(2) { libm::sin(angle) } else { libm::cos(angle) }) as f32
}
