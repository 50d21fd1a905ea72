//! The parameters of a model or stage, in the order of building its layers.

mod codes;
mod ones;
mod prediction_modules;
mod role;
mod shards;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::slice;
use std::sync::Arc;

use autograd::ops::Fp8Weight;
use autograd::{UseId, Weight, WeightHandle};
use collective::RankGrid;
use device::{Category, DType, Device, Element, Request};
use tensor::{Shape, Tensor};

use crate::buffers::ModelBuffer;
use crate::error::{NnError, Result};
use crate::expert_loads::ExpertLoads;
use crate::fp8::Fp8Weights;
use crate::init::Init;
use crate::lora::Adapters;
use crate::placements::PlacementTable;
use crate::running_statistics::RunningStatistics;
use crate::sharding::Sharding;
use crate::shards::Shards;
use crate::tuning::Tuning;

pub use codes::{CodedValues, MatrixCodes};
pub use prediction_modules::{MOST_MODULES, PredictionModules};
pub use role::ParameterRole;

/// Index into [`Parameters::list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterId(pub usize);

/// One named parameter.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Unique name, with the model's global layer numbers.
    pub name: String,
    /// Values of this rank's part in the compute dtype, or its record of codes.
    pub weight: WeightHandle,
    /// Description of the codes, if the parameter stores codes instead of values.
    pub codes: Option<MatrixCodes>,
    /// How the parameter is divided over the grid.
    pub sharding: Sharding,
    /// Index among the local shards, if layers are sharded.
    pub shard: usize,
    /// Role in the model.
    pub role: ParameterRole,
    /// Numbers of rows of the whole matrices that the parameter stacks: one, or the parts of a fused
    /// matrix or of experts. Empty for other roles than [`ParameterRole::Hidden`].
    pub matrices: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// Whether another stage also holds the parameter and uses it.
    pub shared: bool,
    /// Whether the parameter is trained. A frozen one has no gradient, master weights or optimizer state.
    pub trained: bool,
    /// Number of operators that use the parameter in a pass.
    pub users: usize,
    /// Index of the unit with which the parameter is gathered if weights are sharded.
    pub unit: usize,
}

/// One use of a parameter by one operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Identifier of the use in gradient sinks.
    pub id: UseId,
    /// The parameter.
    pub parameter: ParameterId,
    /// Index of the use's branch, and position within it.
    position: (usize, BranchPosition),
}

/// Order of a gradient within its branch: the reverse of the order in which backward completes gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BranchPosition {
    /// A parameter of all shards, created before the shards' parameters.
    Before,
    /// A parameter of the local shard with this index.
    Shard(usize),
    /// A parameter of all shards, created after the shards' parameters.
    After,
}

/// All parameters of a model or stage, and their uses.
#[derive(Debug)]
pub struct Parameters {
    device: Device,
    /// The grid, with the coordinates whose parts are created; `None` if the model is not divided.
    grid: Option<RankGrid>,
    seed: u64,
    dtype: DType,
    embedding_noise: f64,
    modules: PredictionModules,
    tuning: Arc<Tuning>,
    /// Whether parameters are created without values.
    released: bool,
    /// Names of parameters whose initial values are not drawn.
    undrawn: Arc<BTreeSet<String>>,
    shards: Shards,
    placements: PlacementTable,
    /// Local shard that new parameters belong to; `None` for parameters of all shards.
    shard: Option<usize>,
    /// Index of the branch that new uses belong to.
    branch: usize,
    /// While a branch is being built, the position of a new parameter of all shards.
    position: Option<BranchPosition>,
    /// Index of the unit that new parameters belong to.
    unit: usize,
    /// Role of new parameters of two or more dimensions.
    role: ParameterRole,
    list: Vec<Parameter>,
    /// Parameters by name and local shard.
    by_name: BTreeMap<(String, usize), ParameterId>,
    uses: Vec<Use>,
    buffers: Vec<ModelBuffer>,
    statistics: Rc<RunningStatistics>,
    expert_loads: Rc<ExpertLoads>,
    adapters: Adapters,
    fp8: Fp8Weights,
    /// Parameters shared by all shards, by name.
    copied: BTreeMap<String, Weight>,
    /// Constant ones, by length.
    ones: BTreeMap<usize, Tensor>,
}

impl Parameters {
    /// Creates an empty list. Initial values are generated from `seed` and rounded to `dtype`, f32 or bf16.
    pub fn new(device: &Device, seed: u64, dtype: DType) -> Self {
        Parameters {
            device: device.clone(),
            grid: None,
            seed,
            dtype,
            embedding_noise: 0.0,
            modules: PredictionModules::default(),
            tuning: Arc::default(),
            released: false,
            undrawn: Arc::default(),
            shards: Shards::ONE,
            placements: PlacementTable::new(),
            shard: None,
            branch: 0,
            position: None,
            unit: 0,
            role: ParameterRole::Matrix,
            list: Vec::new(),
            by_name: BTreeMap::new(),
            uses: Vec::new(),
            buffers: Vec::new(),
            statistics: Rc::default(),
            expert_loads: Rc::default(),
            adapters: Adapters::default(),
            fp8: Fp8Weights::default(),
            copied: BTreeMap::new(),
            ones: BTreeMap::new(),
        }
    }

    /// Adds FP8 copies of the weights of the linear layers selected by `fp8`.
    #[must_use]
    pub fn in_fp8(self, fp8: Fp8Weights) -> Self {
        Parameters { fp8, ..self }
    }

    /// Trains only the parameters selected by `tuning`.
    #[must_use]
    pub fn tuned(self, tuning: Arc<Tuning>) -> Self {
        Parameters { tuning, ..self }
    }

    /// Returns the same list, whose token embeddings get noise in training: uniform numbers in \[−1, 1) times
    /// `alpha` / √(tokens of a sequence × width). Jain and others, *NEFTune: Noisy Embeddings Improve
    /// Instruction Finetuning*, 2023.
    #[must_use]
    pub fn with_embedding_noise(self, alpha: f64) -> Self {
        Parameters { embedding_noise: alpha, ..self }
    }

    /// The `alpha` of [`Parameters::with_embedding_noise`]; 0: there is no noise.
    pub(crate) fn embedding_noise(&self) -> f64 {
        self.embedding_noise
    }

    /// Creates only the parts of parameters at these coordinates of a grid.
    #[must_use]
    pub fn on_grid(self, grid: RankGrid) -> Self {
        Parameters { grid: Some(grid), ..self }
    }

    /// Creates parameters without values, to be provided later.
    #[must_use]
    pub fn released(self) -> Self {
        Parameters { released: true, ..self }
    }

    /// Returns the same list, in which parameters of these names get zeros instead of initial values, which
    /// are replaced before anything depends on them. The initial values of others do not change.
    #[must_use]
    pub fn without_drawing(self, undrawn: Arc<BTreeSet<String>>) -> Self {
        Parameters { undrawn, ..self }
    }

    /// Starts a new unit: later parameters are gathered together if weights are sharded. A layer that is
    /// computed as a whole, such as a block, is a unit.
    pub fn begin_unit(&mut self) {
        let is_used = self.list.last().is_some_and(|parameter| parameter.unit == self.unit);
        self.unit += usize::from(is_used);
    }

    /// Creates a parameter and its first use.
    ///
    /// # Errors
    /// Memory is exhausted, or the name exists.
    pub fn create(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Weight> {
        self.create_sharded(name, Sharding::replicated(shape), init)
    }

    /// Creates this rank's part of a parameter, and its first use.
    pub fn create_sharded(&mut self, name: &str, sharding: Sharding, init: Init) -> Result<Weight> {
        let parameter = self.register_parameter(name, sharding, init)?;
        Ok(self.use_of(parameter))
    }

    /// Creates a parameter for later use by [`Parameters::reuse`].
    pub fn create_unused(&mut self, name: &str, sharding: Sharding, init: Init) -> Result<ParameterId> {
        self.register_parameter(name, sharding, init)
    }

    fn register_parameter(&mut self, name: &str, sharding: Sharding, init: Init) -> Result<ParameterId> {
        self.register_as((name, None), (sharding, self.dtype), init)
    }

    /// Creates a parameter that stores elements of type `dtype`.
    fn register_as(
        &mut self,
        (name, codes): (&str, Option<MatrixCodes>),
        (sharding, dtype): (Sharding, DType),
        init: Init,
    ) -> Result<ParameterId> {
        self.check_new(name)?;
        let tensor = match self.released {
            true => None,
            false => {
                let _scope = self.device.module(name);
                let request = Request::new(Category::Parameter, "parameter");
                Some(Tensor::empty(&self.device, sharding.shape(), dtype, request)?)
            }
        };
        let released = || WeightHandle::released(&self.device, sharding.shape(), dtype);
        let id = ParameterId(self.list.len());
        self.list.push(Parameter {
            name: name.to_owned(),
            weight: tensor.clone().map_or_else(released, WeightHandle::from),
            codes,
            role: ParameterRole::from_dims(sharding.whole().dims().len(), self.role),
            matrices: Vec::new(),
            sharding,
            shard: self.shard.unwrap_or(0),
            init,
            shared: false,
            trained: self.tuning.trains(name),
            users: 0,
            unit: self.unit,
        });
        self.by_name.insert((name.to_owned(), self.shard.unwrap_or(0)), id);
        tensor.map_or(Ok(()), |tensor| self.fill_initial(id, 0, &tensor))?;
        Ok(id)
    }

    /// Adds another use of an existing parameter, with a gradient of its own.
    ///
    /// # Errors
    /// There is no such parameter.
    pub fn reuse(&mut self, name: &str) -> Result<Weight> {
        let id = self.find(name);
        let missing = || NnError::Parameter { name: name.to_owned(), problem: "used before it is made" };
        Ok(self.use_of(id.ok_or_else(missing)?))
    }

    /// Records that another stage also holds this parameter.
    ///
    /// # Errors
    /// There is no such parameter.
    pub fn share(&mut self, name: &str) -> Result<()> {
        let missing = || NnError::Parameter { name: name.to_owned(), problem: "shared before it is made" };
        let id = self.find(name).ok_or_else(missing)?;
        self.list[id.0].shared = true;
        Ok(())
    }

    /// Creates a buffer of `T`'s dtype with these initial values.
    ///
    /// # Errors
    /// Memory is exhausted, the number of values is not the shape's, or the name exists.
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

    /// Adds buffers that are views of shared arrays.
    ///
    /// # Errors
    /// A name exists.
    pub fn register(&mut self, buffers: Vec<ModelBuffer>) -> Result<()> {
        for buffer in buffers {
            self.check_new(buffer.name())?;
            self.buffers.push(buffer);
        }
        Ok(())
    }

    /// The running statistics of the batch norms.
    pub fn statistics(&self) -> &Rc<RunningStatistics> {
        &self.statistics
    }

    /// The loads of the layers with experts.
    pub fn expert_loads(&self) -> &Rc<ExpertLoads> {
        &self.expert_loads
    }

    /// The adapters of linear layers.
    pub fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    pub(crate) fn adapters_mut(&mut self) -> &mut Adapters {
        &mut self.adapters
    }

    /// The FP8 copies of weights.
    pub fn fp8(&self) -> &Fp8Weights {
        &self.fp8
    }

    /// Returns whether ranks may exchange a sharded parameter as FP8 codes only. This requires that its only
    /// use in a pass is a layer that multiplies in FP8, with one scale.
    pub fn is_only_in_fp8(&self, parameter: ParameterId) -> bool {
        let Parameter { weight, users, shared, .. } = &self.list[parameter.0];
        let tensorwise = self.fp8.copies_of(weight).is_some_and(Fp8Weight::is_tensorwise);
        tensorwise && *users == 1 && !shared
    }

    pub(crate) fn fp8_mut(&mut self) -> &mut Fp8Weights {
        &mut self.fp8
    }

    /// The selection of trained parameters.
    pub(crate) fn tuning(&self) -> &Arc<Tuning> {
        &self.tuning
    }

    fn check_new(&self, name: &str) -> Result<()> {
        if self.find(name).is_some() || self.buffers.iter().any(|buffer| buffer.name() == name) {
            return Err(NnError::Parameter { name: name.to_owned(), problem: "made twice" });
        }
        Ok(())
    }

    /// Adds a use of a parameter; for a frozen one, returns a weight without a use.
    fn use_of(&mut self, parameter: ParameterId) -> Weight {
        self.list[parameter.0].users += 1;
        let Parameter { weight, codes, trained, .. } = &self.list[parameter.0];
        let weight = weight.clone();
        if !trained {
            let blocks = codes.as_ref().map(|codes| Rc::clone(&codes.blocks));
            return Weight::frozen(weight).in_codes(blocks);
        }
        let id = UseId(self.uses.len() as u32);
        let position = self.next_position();
        self.uses.push(Use { id, parameter, position });
        Weight::new(weight, id)
    }

    /// Fills `target`, f32 or bf16, with the initial values of this part of the parameter, starting at
    /// element `first`. Values for f32 master weights are not rounded to the parameter's dtype. A record of
    /// codes is filled with zeros: its values are drawn when weights are loaded ([`CodedValues::draw`]).
    /// Parameters of [`Parameters::without_drawing`] are filled with zeros too.
    pub fn fill_initial(&self, parameter: ParameterId, first: usize, target: &Tensor) -> Result<()> {
        let Parameter { name, init, sharding, shard, codes, .. } = &self.list[parameter.0];
        if codes.is_some() || self.undrawn.contains(name) {
            return Ok(target.zero()?);
        }
        let range = first..first + target.elements();
        if target.device().is_meta() {
            // Plans build many parts of large matrices, and Meta draws no values.
            return Ok(init.fill(target, slice::from_ref(&range), self.seed, name)?);
        }
        let runs = sharding.runs(|axis| self.coordinate(axis, *shard), range);
        let elements: Vec<_> = runs.iter().map(|run| run.whole..run.whole + run.elements).collect();
        Ok(init.fill(target, &elements, self.seed, name)?)
    }

    /// Seed of the initial values, and of the model's random numbers.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Dtype of the parameters' values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The parameters in order of creation.
    pub fn list(&self) -> &[Parameter] {
        &self.list
    }

    /// The buffers in order of creation.
    pub fn buffers(&self) -> &[ModelBuffer] {
        &self.buffers
    }

    /// Every use of a trained parameter, in order; entry i is `UseId(i)`.
    pub fn uses(&self) -> &[Use] {
        &self.uses
    }

    /// Returns the parameter named `name`, of the shard being built if the parameter is sharded.
    pub fn find(&self, name: &str) -> Option<ParameterId> {
        self.by_name.get(&(name.to_owned(), self.shard.unwrap_or(0))).copied()
    }

    /// Number of elements of all parameters, each counted once.
    pub fn elements(&self) -> usize {
        self.list.iter().map(Parameter::elements).sum()
    }

    /// The parameters' device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}
