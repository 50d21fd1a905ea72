//! Parameters stored as codes: frozen matrices of a quantised model.

use std::ops::Range;
use std::rc::Rc;

use autograd::Weight;
use collective::Axis;
use device::DType;
use tensor::ops::block_codes::{BLOCK, BlockCodes};
use tensor::{Shape, Tensor};

use super::{Parameter, ParameterId, Parameters};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::sharding::{ElementRun, Sharding};

/// Codes of a parameter that stores a record of codes instead of values. Each rank's part has a record of its
/// own.
#[derive(Clone, Debug)]
pub struct MatrixCodes {
    /// Format of this rank's codes.
    pub blocks: Rc<BlockCodes>,
    /// Sharding of the decoded values.
    pub sharding: Sharding,
}

impl Parameter {
    /// Shape of this rank's decoded values.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.codes.as_ref().map_or_else(|| self.sharding.shape(), |codes| codes.blocks.shape())
    }

    /// Number of this rank's decoded values.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape().elements()
    }
}

impl Parameters {
    /// Creates this rank's part of an inner linear layer's weight, and its first use. It is stored as codes
    /// or in a half type if adapters are trained on such a model.
    ///
    /// # Errors
    /// Errors of [`Parameters::create`], or the sizes cannot be divided into blocks.
    pub(crate) fn create_matrix(&mut self, name: &str, sharding: Sharding, init: Init) -> Result<Weight> {
        let Some(blocks) = self.codes_of(name, &sharding)? else {
            let dtype = self.frozen_type().filter(|_| !self.tuning.trains(name)).unwrap_or(self.dtype);
            let rows = sharding.whole().rows();
            let id = self.register_as((name, None), (sharding, dtype), init)?;
            let rows = self.fused_rows(name, rows);
            self.stack(name, &rows);
            return Ok(self.use_of(id));
        };
        let bytes = blocks.bytes();
        let parts = sharding.parts();
        let record = Sharding::replicated([parts * bytes]).divided(Axis::Tensor, 0, parts)?;
        let codes = MatrixCodes { blocks: Rc::new(blocks), sharding };
        let id = self.register_as((name, Some(codes)), (record, DType::U8), init)?;
        Ok(self.use_of(id))
    }

    /// The type of the values of frozen matrices, if it is not that of other weights.
    #[must_use]
    pub fn frozen_type(&self) -> Option<DType> {
        self.tuning.lora()?.base_type.filter(|dtype| *dtype != self.dtype)
    }

    fn codes_of(&self, name: &str, sharding: &Sharding) -> Result<Option<BlockCodes>> {
        let lora = self.tuning.lora();
        let Some((lora, alphabet)) = lora.and_then(|lora| Some((lora, lora.base?))) else { return Ok(None) };
        if lora.trains(name) {
            return Ok(None);
        }
        let whole = sharding.whole().rows();
        let shape = sharding.shape();
        // Parts have equal rows of each module, or all rows.
        let rows = lora.rows_of(name, whole).into_iter().map(|rows| rows * shape.rows() / whole);
        let refused = |elements: usize| {
            let text = format!(
                "lora.base: a matrix of {name} has {elements} elements, and codes need multiples of {BLOCK}"
            );
            NnError::Sizes(text)
        };
        BlockCodes::new(alphabet, shape, &rows.collect::<Vec<_>>()).map(Some).map_err(refused)
    }

    /// Returns the values of this rank's part of a coded parameter, for encoding; `None` for other
    /// parameters.
    #[must_use]
    pub fn coded_values(&self, parameter: ParameterId) -> Option<CodedValues> {
        let Parameter { name, init, codes, shard, .. } = &self.list[parameter.0];
        let MatrixCodes { blocks, sharding } = codes.clone()?;
        let coordinate = |axis: Axis| self.coordinate(axis, *shard);
        let coordinates = Axis::ALL.map(coordinate).to_vec();
        let name = name.clone();
        let codes = (*blocks).clone();
        Some(CodedValues { name, codes, sharding, coordinates, init: *init, seed: self.seed })
    }
}

/// The values of a part of a parameter before they are encoded.
#[derive(Clone, Debug)]
pub struct CodedValues {
    /// Name of the parameter.
    pub name: String,
    /// Format of the part's codes.
    pub codes: BlockCodes,
    sharding: Sharding,
    /// Index of the part along each axis.
    coordinates: Vec<usize>,
    init: Init,
    seed: u64,
}

impl CodedValues {
    /// Shape of the whole parameter.
    #[must_use]
    pub fn whole(&self) -> Shape {
        self.sharding.whole()
    }

    /// Returns the location within the whole parameter of elements `range` of the part.
    #[must_use]
    pub fn runs(&self, range: Range<usize>) -> Vec<ElementRun> {
        let index = |axis: Axis| Axis::ALL.into_iter().position(|other| other == axis);
        let coordinate = |axis: Axis| index(axis).and_then(|index| self.coordinates.get(index).copied());
        self.sharding.runs(|axis| coordinate(axis).unwrap_or(0), range)
    }

    /// Fills `target`, f32, with the initial values of the part, starting at element `first`.
    ///
    /// # Errors
    /// `target` has another dtype.
    pub fn draw(&self, first: usize, target: &Tensor) -> Result<()> {
        let runs = self.runs(first..first + target.elements());
        let elements: Vec<_> = runs.iter().map(|run| run.whole..run.whole + run.elements).collect();
        Ok(self.init.fill(target, &elements, self.seed, &self.name)?)
    }
}
