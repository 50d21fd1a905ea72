//! Parameters that are kept as codes: frozen matrices of a quantised model.

use std::rc::Rc;
use std::slice;

use autograd::Weight;
use device::DType;
use tensor::ops::block_codes::{BLOCK, BlockCodes};
use tensor::{Shape, Tensor};

use super::{Parameter, ParameterId, Parameters};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::sharding::Sharding;

impl Parameter {
    /// Shape of this rank's part of the values.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.codes.as_ref().map_or_else(|| self.sharding.shape(), |codes| codes.shape())
    }

    /// Number of values of this rank's part.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape().elements()
    }
}

impl Parameters {
    /// Makes the weight of a linear layer between others, and its first use: in codes, if adapters are beside
    /// a quantised model.
    ///
    /// # Errors
    /// As for [`Parameters::create`]; sizes that cannot be divided in blocks.
    pub(crate) fn create_matrix(&mut self, name: &str, sharding: Sharding, init: Init) -> Result<Weight> {
        let Some(codes) = self.codes_of(name, sharding.shape())? else {
            return self.create_sharded(name, sharding, init);
        };
        let record = Sharding::replicated([codes.bytes()]);
        let id = self.register_as((name, Some(Rc::new(codes))), (record, DType::U8), init)?;
        Ok(self.use_of(id))
    }

    fn codes_of(&self, name: &str, shape: Shape) -> Result<Option<BlockCodes>> {
        let lora = self.tuning.lora();
        let Some((lora, alphabet)) = lora.and_then(|lora| Some((lora, lora.base?))) else { return Ok(None) };
        let rows = lora.rows_of(name, shape.rows());
        let refused = |elements: usize| {
            let text = format!(
                "lora.base: a matrix of {name} has {elements} elements, and codes need multiples of {BLOCK}"
            );
            NnError::Sizes(text)
        };
        BlockCodes::new(alphabet, shape, &rows).map(Some).map_err(refused)
    }

    /// The initial values of a parameter in codes.
    #[must_use]
    pub fn drawing(&self, parameter: ParameterId) -> Drawing {
        let Parameter { name, init, .. } = &self.list[parameter.0];
        Drawing { name: name.clone(), init: *init, seed: self.seed }
    }
}

/// The initial values of a whole parameter, before they are encoded.
#[derive(Clone, Debug)]
pub struct Drawing {
    name: String,
    init: Init,
    seed: u64,
}

impl Drawing {
    /// Fills `target`, f32, with the values from element `first` on.
    ///
    /// # Errors
    /// Another type.
    pub fn fill(&self, first: usize, target: &Tensor) -> Result<()> {
        let range = first..first + target.elements();
        Ok(self.init.fill(target, slice::from_ref(&range), self.seed, &self.name)?)
    }
}
