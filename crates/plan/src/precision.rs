//! `plimsoll plan --precision`: the dtypes and arithmetic of every operator of a step.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use autograd::precision::PrecisionTable;
use autograd::{Call, Direction, Observer, ObserverError, RECOMPUTE};
use collective::{Axis, Communicator};
use config::RunConfig;
use device::DType;
use tensor::Tensor;
use worker::{Placement, Setup, Worker};

use crate::error::Result;
use crate::overhead::DeviceRanks;
use crate::plan::{boundless, work_of_each};
use crate::prepare::prepare_shapes;
use crate::resolve::resolve;
use crate::target::PlanOptions;

/// Dtypes of one operator in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorTypes {
    /// Number of forward calls of the planned ranks in one step.
    pub calls: u64,
    /// Dtypes of its results.
    pub results: BTreeSet<DType>,
    /// Dtypes of its inputs' gradients.
    pub gradients: BTreeSet<DType>,
}

/// Dtypes of all operators in a configuration's step.
#[derive(Clone, Debug)]
pub struct PlannedPrecision {
    /// Compute dtype, gradient dtype and whether f32 matmuls use TF32, in words.
    summary: String,
    operators: BTreeMap<&'static str, OperatorTypes>,
    table: PrecisionTable,
    /// Whether operands are cast as the table says (autocast).
    is_autocast: bool,
}

/// Returns the dtypes with which a configuration computes. The worker of each pipeline rank runs a step on
/// Meta while all operators are observed. Arithmetic comes from the model family's table.
pub fn plan_precision(config: RunConfig, options: &PlanOptions) -> Result<PlannedPrecision> {
    let ranks = DeviceRanks::from_config(&config);
    let description = options.target.device(options.capacity, ranks)?.description(ranks);
    let (config, _) = resolve(config, &description)?;
    // Dtypes do not depend on whether the run fits.
    let setup = boundless(&prepare_shapes(config, Placement::Meta(description))?);
    let seen = Rc::new(Seen::default());
    for rank in setup.config.parallel.grid().seen_from(0)?.group(Axis::Pipeline).ranks {
        let setup = Setup { plan_work: Some(work_of_each(1, 1)), ..setup.clone() };
        let communicator = Communicator::counted(rank, setup.config.world_size());
        let mut worker = Worker::new(&setup, communicator)?;
        worker.observe(Rc::<Seen>::clone(&seen));
        worker.step(setup.first_step())?;
    }
    let precision = &setup.config.precision;
    let scale = if precision.compute == DType::F16 { ", with a dynamic loss scale" } else { "" };
    let tf32 = if precision.tf32 { ", f32 matmuls in TF32" } else { "" };
    let compute = precision.compute;
    let gradients = precision.gradients;
    let weights = match (compute, precision.is_autocast()) {
        (DType::F32, _) => "",
        (_, false) => "; master weights in f32",
        (_, true) => "; weights in f32, cast by each operator",
    };
    let activations = match precision.is_autocast() {
        true => format!("operands of matmuls in {compute}, other activations in f32"),
        false => format!("activations in {compute}"),
    };
    let summary = format!("{activations}, gradients of weights in {gradients}{weights}{scale}{tf32}");
    let table = setup.config.model.autocast();
    let is_autocast = precision.is_autocast();
    Ok(PlannedPrecision { summary, operators: seen.0.take(), table, is_autocast })
}

#[derive(Default)]
struct Seen(RefCell<BTreeMap<&'static str, OperatorTypes>>);

impl Observer for Seen {
    fn before(&self, _: &Call) -> std::result::Result<(), ObserverError> {
        Ok(())
    }

    fn after(&self, call: &Call, results: &[Option<&Tensor>]) -> std::result::Result<(), ObserverError> {
        if call.operator == RECOMPUTE {
            return Ok(());
        }
        let mut seen = self.0.borrow_mut();
        let operator = seen.entry(call.operator).or_default();
        let types = results.iter().flatten().map(|tensor| tensor.dtype());
        match call.direction {
            Direction::Forward => {
                operator.calls += 1;
                operator.results.extend(types);
            }
            Direction::Recompute => {}
            Direction::Backward | Direction::BackwardWeight => operator.gradients.extend(types),
        }
        Ok(())
    }
}

impl PlannedPrecision {
    /// Returns the operators by name.
    #[must_use]
    pub fn operators(&self) -> &BTreeMap<&'static str, OperatorTypes> {
        &self.operators
    }
}

/// Joins the names of dtypes; a dash if there are none.
fn names(types: &BTreeSet<DType>) -> String {
    let names: Vec<&str> = types.iter().map(|dtype| dtype.name()).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}

impl fmt::Display for PlannedPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.summary)?;
        line(f, ["operator", "calls", "operands", "arithmetic", "results", "gradients", "always in f32"])?;
        for (name, types) in &self.operators {
            let row = self.table.find(name);
            let single = types.results.iter().chain(&types.gradients).all(|dtype| *dtype == DType::F32);
            let operands = match row {
                Some(row) if self.is_autocast => row.operands.name(),
                _ => "as given",
            };
            let arithmetic = match row {
                _ if single => "f32",
                Some(row) => row.arithmetic.name(),
                None => "not in the table",
            };
            let in_f32 = row.map_or("", |row| row.in_f32);
            let (calls, results, gradients) =
                (types.calls.to_string(), names(&types.results), names(&types.gradients));
            writeln!(f)?;
            line(f, [name, &calls, operands, arithmetic, &results, &gradients, in_f32])?;
        }
        Ok(())
    }
}

/// Writes a line of the table without trailing spaces.
fn line(f: &mut fmt::Formatter<'_>, cells: [&str; 7]) -> fmt::Result {
    let [operator, calls, operands, arithmetic, results, gradients, in_f32] = cells;
    let line = format!(
        "{operator:<22} {calls:>7}  {operands:<9} {arithmetic:<24} {results:<9} {gradients:<9} {in_f32}"
    );
    write!(f, "{}", line.trim_end())
}
