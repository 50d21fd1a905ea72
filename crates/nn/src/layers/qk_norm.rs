//! Norms of queries and keys.

use autograd::Weight;
use autograd::ops::QkNormWeights;
use tensor::ops::attention::Heads;

use super::NormOptions;
use crate::error::Result;
use crate::init::Init;
use crate::parameters::Parameters;

system::names! {
    /// The columns that one mean square of queries or keys covers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum QkNormSpan {
        /// The columns of one head.
        Head = "head",
        /// The columns of all query heads of a position, or of all its key heads.
        All = "all",
    }
}

/// RMS norm of queries and of keys.
#[derive(Clone, Debug)]
pub struct QkNorm {
    /// Weights of each local shard; a single entry if each head has its own norm.
    pub(super) weights: Vec<QkNormWeights>,
    pub(super) epsilon: f32,
    pub(super) span: QkNormSpan,
    /// Whether the norm follows the rotation; only for norms of heads.
    pub(super) is_last: bool,
    /// Numbers of columns of all query heads, and of all key heads.
    pub(super) columns: [usize; 2],
}

impl QkNorm {
    /// Registers the weights `{prefix}.q_norm.weight` and `{prefix}.k_norm.weight`, if norms have weights.
    /// Per head they are `[heads.width]` each and shared by all shards; otherwise they have the columns of
    /// all heads and are sharded.
    ///
    /// # Errors
    /// Memory is exhausted, a name exists, or the shards do not divide the columns.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        heads: Heads,
        span: QkNormSpan,
        norms: NormOptions,
    ) -> Result<Self> {
        let columns = [heads.query_columns(), heads.key_columns()];
        let NormOptions { epsilon, .. } = norms;
        let offset = if norms.is_less_one { 1.0 } else { 0.0 };
        if !norms.has_weight {
            let ones = |parameters: &mut Parameters, columns: [usize; 2]| -> Result<_> {
                let [query, key] = columns;
                Ok(QkNormWeights { query: parameters.ones(query)?, key: parameters.ones(key)? })
            };
            let shards = parameters.shards();
            let weights = match span {
                QkNormSpan::Head => vec![ones(parameters, [heads.width; 2])?],
                QkNormSpan::All => {
                    let columns = columns.map(|columns| columns / shards.all);
                    (0..shards.here).map(|_| ones(parameters, columns)).collect::<Result<_>>()?
                }
            };
            return Ok(QkNorm { weights, epsilon, span, is_last: false, columns });
        }
        let mut weights = |part: &str, columns: usize| -> Result<Vec<Weight>> {
            let name = format!("{prefix}.{part}.weight");
            let init = Init::Constant(1.0 - offset);
            let weights = match span {
                QkNormSpan::Head => vec![parameters.create_copied(&name, [heads.width], init)?],
                QkNormSpan::All => parameters.create_shards(&name, [columns], init)?,
            };
            let shifted = |weight: Weight| if offset == 0.0 { weight } else { weight.plus(offset) };
            Ok(weights.into_iter().map(shifted).collect())
        };
        let queries = weights("q_norm", columns[0])?;
        let keys = weights("k_norm", columns[1])?;
        let pairs = queries.into_iter().zip(keys);
        let weights = pairs.map(|(query, key)| QkNormWeights { query, key }).collect();
        Ok(QkNorm { weights, epsilon, span, is_last: false, columns })
    }

    /// Moves norms of heads behind the rotation if `is_last`.
    #[must_use]
    pub fn after_rotation(self, is_last: bool) -> Self {
        QkNorm { is_last, ..self }
    }
}
