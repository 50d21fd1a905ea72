//! The parameters of a model, or of one stage of it, in the order in which its layers made them.

use autograd::{UseId, Weight};
use device::{Category, DType, Device, Request};
use tensor::{Shape, Tensor};

use crate::error::{NnError, Result};
use crate::init::Init;

/// Index into [`Parameters::list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterId(pub usize);

/// One named parameter.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Unique name, with the model's global layer numbers.
    pub name: String,
    /// Values, in the compute dtype.
    pub tensor: Tensor,
    /// Whether weight decay applies: to matrices, not to biases and normalisation.
    pub decay: bool,
    /// How it starts.
    pub init: Init,
}

/// One use of a parameter by one operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Its number in gradient sinks.
    pub id: UseId,
    /// The parameter.
    pub parameter: ParameterId,
}

/// All parameters and their uses.
#[derive(Debug)]
pub struct Parameters {
    device: Device,
    seed: u64,
    dtype: DType,
    list: Vec<Parameter>,
    uses: Vec<Use>,
}

impl Parameters {
    /// None yet; initial values will come from `seed`, rounded to `dtype`: f32 or bf16.
    pub fn new(device: &Device, seed: u64, dtype: DType) -> Self {
        Parameters { device: device.clone(), seed, dtype, list: Vec::new(), uses: Vec::new() }
    }

    /// Makes a parameter and its first use. Errors: out of memory, or a name that exists.
    pub fn create(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Weight> {
        let parameter = self.create_unused(name, shape, init)?;
        Ok(self.use_of(parameter))
    }

    /// Makes a parameter that [`Parameters::reuse`] will use. Errors: as for [`Parameters::create`].
    pub fn create_unused(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<ParameterId> {
        if self.find(name).is_some() {
            return Err(NnError::Parameter { name: name.to_owned(), problem: "made twice" });
        }
        let shape = shape.into();
        let request = Request::new(Category::Parameter, "parameter");
        let scope = self.device.module(name);
        let tensor = Tensor::empty(&self.device, shape, self.dtype, request)?;
        drop(scope);
        init.fill(&tensor, 0, self.seed, name)?;
        let decay = shape.dims().len() >= 2;
        self.list.push(Parameter { name: name.to_owned(), tensor, decay, init });
        Ok(ParameterId(self.list.len() - 1))
    }

    /// Another use of a parameter made before, with a gradient of its own. Errors: no such parameter.
    pub fn reuse(&mut self, name: &str) -> Result<Weight> {
        let found = self.find(name);
        let missing = || NnError::Parameter { name: name.to_owned(), problem: "used before it is made" };
        Ok(self.use_of(found.ok_or_else(missing)?))
    }

    fn use_of(&mut self, parameter: ParameterId) -> Weight {
        let id = UseId(self.uses.len() as u32);
        self.uses.push(Use { id, parameter });
        Weight::new(self.list[parameter.0].tensor.clone(), id)
    }

    /// Gives `target`, f32 or bf16 and as long as the parameter or a part of it, the parameter's initial values from
    /// element `first` on: those of an f32 master are not rounded to the parameter's type.
    pub fn fill_initial(&self, parameter: ParameterId, first: usize, target: &Tensor) -> Result<()> {
        let Parameter { name, init, .. } = &self.list[parameter.0];
        Ok(init.fill(target, first, self.seed, name)?)
    }

    /// The type of their values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The parameters in the order of their making.
    pub fn list(&self) -> &[Parameter] {
        &self.list
    }

    /// Every use, in order; entry i is `UseId(i)`.
    pub fn uses(&self) -> &[Use] {
        &self.uses
    }

    /// The parameter of this name.
    pub fn find(&self, name: &str) -> Option<ParameterId> {
        self.list.iter().position(|p| p.name == name).map(ParameterId)
    }

    /// Elements of all parameters, each counted once.
    pub fn elements(&self) -> usize {
        self.list.iter().map(|p| p.tensor.elements()).sum()
    }

    /// The device that they live on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}
