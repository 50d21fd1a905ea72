//! Sites in a model that draw random numbers in training.

use tensor::Tensor;

use crate::sharded::TensorRanks;
use crate::tape::Tape;

/// The numbering of elements of a sharded array.
#[derive(Clone, Copy, Debug, Default)]
enum Numbering {
    /// Elements are numbered by their index in the array, which is unsharded.
    #[default]
    Whole,
    /// Elements are numbered by their index in the unsharded array. The rank holds some of its rows.
    Rows,
    /// Elements are numbered by their index in a shard. Each of this many local shards is a separate site.
    Shards(usize),
}

/// A site that draws a random number for each element of an array.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) seed: u64,
    name: String,
    /// Order in which the array's elements are numbered.
    numbering: Numbering,
}

impl Site {
    /// Returns a site named `name`, unique in the model.
    pub(super) fn new(seed: u64, name: &str) -> Self {
        Site { seed, name: name.to_owned(), numbering: Numbering::Whole }
    }

    /// Returns the same site for arrays whose rows are sharded along [`collective::Axis::Tensor`].
    pub(super) fn over_rows(self) -> Self {
        Site { numbering: Numbering::Rows, ..self }
    }

    /// Returns one site for each shard of a layer; `shards` of them are local.
    pub(super) fn of_shards(self, shards: usize) -> Self {
        Site { numbering: Numbering::Shards(shards), ..self }
    }

    /// Number of the first element of `x`, the elements that are here.
    pub(super) fn first(&self, tape: &Tape, x: &Tensor) -> usize {
        match self.numbering {
            Numbering::Rows => TensorRanks::new(tape, true).first_shard(x.elements()),
            Numbering::Whole | Numbering::Shards(_) => 0,
        }
    }

    /// Returns the site's name with the indices of the shard and piece that the tape currently computes.
    pub(super) fn name(&self, tape: &Tape) -> String {
        let mut name = self.name.clone();
        if let Numbering::Shards(shards) = self.numbering {
            let first = TensorRanks::new(tape, false).first_shard(shards);
            name.push_str(&format!(".{}", first + tape.block().unwrap_or_default().shard));
        }
        if let Some(piece) = &tape.pass().piece {
            name.push_str(&format!(".piece.{}", piece.number));
        }
        name
    }
}
