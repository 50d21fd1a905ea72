//! Norms of queries and keys.

use autograd::ops::{LaneShare, QkNormWeights};
use collective::Axis;
use tensor::ops::attention::Heads;

use crate::error::{NnError, Result};
use crate::init::Init;
use crate::lanes::Lanes;
use crate::parameters::Parameters;
use crate::sharding::Sharding;

/// The queries and keys that one mean square covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNormSpan {
    /// Each head.
    Head,
    /// All query heads of a position, and all its key heads.
    All,
}

impl QkNormSpan {
    /// Returns its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            QkNormSpan::Head => "head",
            QkNormSpan::All => "all",
        }
    }
}

/// RMS norm of queries and of keys.
#[derive(Clone, Debug)]
pub struct QkNorm {
    pub(super) weights: QkNormWeights,
    pub(super) epsilon: f32,
    pub(super) span: QkNormSpan,
    /// Columns of all query heads and of all key heads.
    pub(super) columns: [usize; 2],
}

impl QkNorm {
    /// Registers `{prefix}.q_norm.weight` and `{prefix}.k_norm.weight`, `[heads.width]` each, or the columns
    /// of all heads, of which lanes have parts: the norms' weights, at first 1, less `offset`.
    ///
    /// # Errors
    /// Out of memory, a name that exists, columns that lanes do not divide.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        heads: Heads,
        span: QkNormSpan,
        [epsilon, offset]: [f32; 2],
    ) -> Result<Self> {
        let columns = [heads.query_columns(), heads.key_columns()];
        let [query, key] = match span {
            QkNormSpan::Head => [heads.width; 2].map(|width| Ok(Sharding::replicated([width]))),
            QkNormSpan::All => {
                let lanes = parameters.lanes().all;
                columns.map(|columns| Sharding::replicated([columns]).divided(Axis::Tensor, 0, lanes))
            }
        };
        let mut weight = |part: &str, sharding: Sharding| {
            let (name, init) = (format!("{prefix}.{part}.weight"), Init::Constant(1.0 - offset));
            let weight = parameters.create_sharded(&name, sharding, init)?;
            Ok::<_, NnError>(if offset == 0.0 { weight } else { weight.plus(offset) })
        };
        let (query, key) = (weight("q_norm", query?)?, weight("k_norm", key?)?);
        Ok(QkNorm { weights: QkNormWeights { query, key, share: None }, epsilon, span, columns })
    }

    /// Returns the norms of each lane, which share the weights.
    pub(super) fn in_lanes(self, lanes: Lanes) -> Vec<Self> {
        let of_lane = |share| {
            let weights = QkNormWeights { share: Some(share), ..self.weights.clone() };
            QkNorm { weights, ..self.clone() }
        };
        LaneShare::of_lanes(lanes.here).into_iter().map(of_lane).collect()
    }
}
