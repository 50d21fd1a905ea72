//! The parameters of a model, or of one stage of it, in the order in which its layers were built.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use autograd::ops::{self, Adapter, Fp8Recipe, Fp8Weight, NormSettings};
use autograd::{UseId, Weight};
use device::{Category, DType, Device, Element, Request};
use tensor::ops::fp8_linear::MULTIPLE;
use tensor::{Shape, Tensor};

use crate::buffers::ModelBuffer;
use crate::error::{NnError, Result};
use crate::fp8::{Fp8Layers, LinearRole};
use crate::hugging_face::FolderTensor;
use crate::init::Init;
use crate::lora::Lora;
use crate::running_statistics::{ChannelStatistics, RunningStatistics};
use crate::tuning::Tuning;

/// Index into [`Parameters::list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterId(pub usize);

/// One named parameter.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The unique name, with the model's global layer numbers.
    pub name: String,
    /// Values, in the compute dtype.
    pub tensor: Tensor,
    /// Whether weight decay applies: to matrices, but not to biases and norms.
    pub decay: bool,
    /// Initial values.
    pub init: Init,
    /// Whether another stage of the model also has the parameter, with its own uses.
    pub shared: bool,
    /// Whether the parameter is trained. A frozen one has no gradient, no master and no optimizer state.
    pub trained: bool,
}

/// One use of a parameter by one operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The use's number in gradient sinks.
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
    tuning: Arc<Tuning>,
    list: Vec<Parameter>,
    by_name: BTreeMap<String, ParameterId>,
    uses: Vec<Use>,
    buffers: Vec<ModelBuffer>,
    statistics: Rc<RunningStatistics>,
    adapters: Vec<FolderTensor>,
    fp8: Option<Arc<Fp8Layers>>,
    /// Whether the next linear layer is the model's first.
    is_first: bool,
    linear_layers: Vec<String>,
    fp8_weights: Vec<Fp8Weight>,
}

impl Parameters {
    /// Returns an empty list; initial values will be generated from `seed`, rounded to `dtype`: f32 or bf16.
    pub fn new(device: &Device, seed: u64, dtype: DType) -> Self {
        Parameters {
            device: device.clone(),
            seed,
            dtype,
            tuning: Arc::default(),
            list: Vec::new(),
            by_name: BTreeMap::new(),
            uses: Vec::new(),
            buffers: Vec::new(),
            statistics: Rc::default(),
            adapters: Vec::new(),
            fp8: None,
            is_first: false,
            linear_layers: Vec::new(),
            fp8_weights: Vec::new(),
        }
    }

    /// Returns the same list, in which the linear layers that `fp8` chooses get FP8 copies of their weights.
    /// `is_first` says whether the list is of the model's first stage.
    #[must_use]
    pub fn in_fp8(self, fp8: Option<Arc<Fp8Layers>>, is_first: bool) -> Self {
        Parameters { fp8, is_first, ..self }
    }

    /// Returns the same list, in which only parameters that `tuning` selects will be trained.
    #[must_use]
    pub fn tuned(self, tuning: Arc<Tuning>) -> Self {
        Parameters { tuning, ..self }
    }

    /// Makes a parameter and its first use. Errors: out of memory, a name that exists.
    pub fn create(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Weight> {
        let parameter = self.create_unused(name, shape, init)?;
        Ok(self.use_of(parameter))
    }

    /// Makes a parameter that [`Parameters::reuse`] will use. Errors: as for [`Parameters::create`].
    pub fn create_unused(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<ParameterId> {
        self.check_new(name)?;
        let shape = shape.into();
        let request = Request::new(Category::Parameter, "parameter");
        let scope = self.device.module(name);
        let tensor = Tensor::empty(&self.device, shape, self.dtype, request)?;
        drop(scope);
        init.fill(&tensor, 0, self.seed, name)?;
        let decay = shape.dims().len() >= 2;
        let (name, trained) = (name.to_owned(), self.tuning.trains(name));
        self.list.push(Parameter { name: name.clone(), tensor, decay, init, shared: false, trained });
        let id = ParameterId(self.list.len() - 1);
        self.by_name.insert(name, id);
        Ok(id)
    }

    /// Makes the adapter of the linear layer `layer`, whose weight is `[outputs, inputs]`; `None` for a layer
    /// without one. A starts like the weight of PyTorch's linear layers, B at zero. Errors: as for
    /// [`Parameters::create`].
    pub fn create_adapter(&mut self, layer: &str, [outputs, inputs]: [usize; 2]) -> Result<Option<Adapter>> {
        let tuning = Arc::clone(&self.tuning);
        let Some(lora) = tuning.lora() else { return Ok(None) };
        let modules = lora.modules_of(layer, outputs);
        if modules.is_empty() {
            return Ok(None);
        }
        self.adapters.extend(lora.tensors(layer, inputs, &modules));
        let parts: Vec<_> = modules.into_iter().map(|module| module.rows).collect();
        let ([a, b], rows) = (Lora::names(layer), parts.iter().map(Range::len).sum::<usize>());
        let a = self.create(&a, [parts.len() * lora.r, inputs], Init::uniform_fan_in(inputs))?;
        let b = self.create(&b, [rows, lora.r], Init::Constant(0.0))?;
        let site = format!("{layer}.lora_dropout");
        let dropout = (lora.dropout > 0.0).then(|| ops::Dropout::new(self.seed, &site, lora.dropout));
        Ok(Some(Adapter { a, b, parts, scale: lora.scale(), dropout }))
    }

    /// Makes the FP8 copies of the linear layer `layer`'s weight; `None` for a layer that multiplies in the
    /// compute type. Errors: out of memory, sizes that FP8 does not have.
    pub fn create_fp8(
        &mut self,
        layer: &str,
        weight: &Weight,
        role: LinearRole,
    ) -> Result<Option<Fp8Weight>> {
        let is_first = std::mem::take(&mut self.is_first);
        self.linear_layers.push(layer.to_owned());
        let Some(fp8) = self.fp8.as_ref().filter(|fp8| fp8.selects(layer, role, is_first)) else {
            return Ok(None);
        };
        let [outputs, inputs] = [weight.tensor().shape().rows(), weight.tensor().shape().columns()];
        if ![outputs, inputs].iter().all(|size| size.is_multiple_of(MULTIPLE)) {
            let text = format!(
                "precision.fp8_layers: linear layer {layer} has {inputs} inputs and {outputs} outputs, and FP8 \
                 needs multiples of {MULTIPLE}: choose layers without it"
            );
            return Err(NnError::Sizes(text));
        }
        let scope = self.device.module(&format!("{layer}.weight"));
        let copies = Fp8Weight::new(weight.tensor(), fp8.recipe(), fp8.gradients())?;
        drop(scope);
        self.fp8_weights.push(copies.clone());
        Ok(Some(copies))
    }

    /// Settings of a norm with this epsilon, which measures its results where FP8 matmuls read them.
    pub fn norm_settings(&self, epsilon: f32) -> NormSettings {
        let measures = self.fp8.as_ref().is_some_and(|fp8| fp8.recipe() == Fp8Recipe::Tensorwise);
        NormSettings { epsilon, measures }
    }

    /// Records that the weights may have changed, so that FP8 copies are cast again at their next use.
    pub fn outdate_copies(&self) {
        self.fp8_weights.iter().for_each(Fp8Weight::outdate);
    }

    /// Names of the linear layers in the order of creation; one that uses another's weight is left out.
    pub fn linear_layers(&self) -> &[String] {
        &self.linear_layers
    }

    /// The matrices of all adapters in PEFT's format.
    pub fn adapters(&self) -> &[FolderTensor] {
        &self.adapters
    }

    /// Adds a use of an existing parameter, with its own gradient. Errors: no such parameter.
    pub fn reuse(&mut self, name: &str) -> Result<Weight> {
        let found = self.find(name);
        let missing = || NnError::Parameter { name: name.to_owned(), problem: "used before it is made" };
        Ok(self.use_of(found.ok_or_else(missing)?))
    }

    /// Records that another stage also has this parameter. Errors: no such parameter.
    pub fn share(&mut self, name: &str) -> Result<()> {
        let missing = || NnError::Parameter { name: name.to_owned(), problem: "shared before it is made" };
        let found = self.find(name).ok_or_else(missing)?;
        self.list[found.0].shared = true;
        Ok(())
    }

    /// Makes a buffer of `T`'s type with these initial values. Errors: out of memory, a count other than the
    /// shape's, or a name that exists.
    pub fn create_buffer<T: Element>(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
        values: &[T],
    ) -> Result<ModelBuffer> {
        self.check_new(name)?;
        let buffer = ModelBuffer::new(&self.device, name, shape, values)?;
        self.buffers.push(buffer.clone());
        Ok(buffer)
    }

    /// Adds running statistics of a batch norm with `channels` channels.
    pub fn create_statistics(&mut self, norm: &str, channels: usize) -> ChannelStatistics {
        self.statistics.add(norm, channels)
    }

    /// Makes the running statistics of all batch norms so far, and the buffers that are their parts. A model
    /// calls it once, after its layers are built. Errors: out of memory, a name that exists.
    pub fn allocate_statistics(&mut self) -> Result<()> {
        if self.statistics.is_empty() {
            return Ok(());
        }
        for buffer in self.statistics.allocate(&self.device)? {
            self.check_new(buffer.name())?;
            self.buffers.push(buffer);
        }
        Ok(())
    }

    /// The running statistics of the batch norms.
    pub fn statistics(&self) -> &RunningStatistics {
        &self.statistics
    }

    fn check_new(&self, name: &str) -> Result<()> {
        if self.find(name).is_some() || self.buffers.iter().any(|buffer| buffer.name() == name) {
            return Err(NnError::Parameter { name: name.to_owned(), problem: "made twice" });
        }
        Ok(())
    }

    /// Adds a use of a parameter; a frozen one has none.
    fn use_of(&mut self, parameter: ParameterId) -> Weight {
        let Parameter { tensor, trained, .. } = &self.list[parameter.0];
        if !trained {
            return Weight::frozen(tensor.clone());
        }
        let id = UseId(self.uses.len() as u32);
        self.uses.push(Use { id, parameter });
        Weight::new(tensor.clone(), id)
    }

    /// Fills `target`, f32 or bf16, with the parameter's initial values from element `first` on; those of an
    /// f32 master are not rounded to the parameter's type.
    pub fn fill_initial(&self, parameter: ParameterId, first: usize, target: &Tensor) -> Result<()> {
        let Parameter { name, init, .. } = &self.list[parameter.0];
        Ok(init.fill(target, first, self.seed, name)?)
    }

    /// The seed of the initial values, and of the model's random numbers.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The type of the parameters' values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The parameters in the order of creation.
    pub fn list(&self) -> &[Parameter] {
        &self.list
    }

    /// The buffers in the order of creation.
    pub fn buffers(&self) -> &[ModelBuffer] {
        &self.buffers
    }

    /// Every use of a trained parameter, in order; entry i is `UseId(i)`.
    pub fn uses(&self) -> &[Use] {
        &self.uses
    }

    /// The parameter named `name`.
    pub fn find(&self, name: &str) -> Option<ParameterId> {
        self.by_name.get(name).copied()
    }

    /// Elements of all parameters, each counted once.
    pub fn elements(&self) -> usize {
        self.list.iter().map(|p| p.tensor.elements()).sum()
    }

    /// The parameters' device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}
