//! Launches of `kernels/experts_hopper.cu`: matmuls of groups in half precision and FP8 on Hopper.

use device::cuda::{Boxes, Launch};
use device::{DType, Family, Function, Tiling, Units, Work};

use crate::ops::GradientTarget;
use crate::ops::check;
use crate::ops::fp8_linear::Scaled;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::ops::routing::Routes;
use crate::{Result, Tensor};

/// Sizes of a kernel's tiles.
struct Tiles {
    /// Rows of results in a tile.
    rows: u32,
    columns: u32,
    /// Stages of the shared-memory ring of operand tiles.
    stages: u32,
}

const WHOLE: Tiles = Tiles { rows: 128, columns: 256, stages: 4 };
/// Tiles for kernels that add partial sums in f32, which need twice the registers.
const ADDING: Tiles = Tiles { rows: 128, columns: 128, stages: 6 };
/// Threads of a block: one producer and two consumer warp groups of four warps.
const THREADS: u32 = 384;
/// Rows of a copy box, for operands whose rows run along the summed dimension and for results.
const PANEL: u32 = 64;
/// Maximum number of experts: their offsets are kept in shared memory.
const MOST_EXPERTS: usize = 384;

impl Tiles {
    const fn macros(&self) -> [(&'static str, u32); 3] {
        [("ROWS", self.rows), ("COLUMNS", self.columns), ("STAGES", self.stages)]
    }
}

/// Returns the preprocessor macros of a kernel variant: the tile sizes, then `others`.
const fn with<const N: usize, const M: usize>(
    tiles: &Tiles,
    others: [(&'static str, u32); N],
) -> [(&'static str, u32); M] {
    let sizes = tiles.macros();
    let mut all = [("", 0); M];
    let mut at = 0;
    while at < M {
        all[at] = if at < sizes.len() { sizes[at] } else { others[at - sizes.len()] };
        at += 1;
    }
    all
}

#[derive(Clone, Copy)]
enum Variant {
    Bf16,
    F16,
    /// FP8 with left operands in E4M3.
    Fp8,
    /// FP8 with left operands in E5M2.
    Fp8Gradients,
    /// [`Variant::Fp8`] for gradients of weights, which are added in f32.
    Fp8Adding,
    /// [`Variant::Fp8Gradients`] for gradients of weights, which are added in f32.
    Fp8GradientsAdding,
}

const FP8: (&str, u32) = ("FP8", 1);
const E5M2: (&str, u32) = ("LEFT_IS_E5M2", 1);
const ADDS: (&str, u32) = ("ADDS_STAGES", 1);

/// Kernels of `kernels/experts_hopper.cu`, in the order of [`Variant`]; empty for other architectures.
pub(crate) static FAMILY: Family = family!(
    "experts_hopper",
    headers: ["experts_hopper_results.cuh", "hopper.cuh"],
    variants: &[
        &WHOLE.macros(),
        &with::<1, 4>(&WHOLE, [("HALF_IS_F16", 1)]),
        &with::<1, 4>(&WHOLE, [FP8]),
        &with::<2, 5>(&WHOLE, [FP8, E5M2]),
        &with::<2, 5>(&ADDING, [FP8, ADDS]),
        &with::<3, 6>(&ADDING, [FP8, E5M2, ADDS]),
    ],
);

/// Operands of a matmul, with their factors if they are FP8.
#[derive(Clone, Copy)]
struct Operands<'a> {
    left: &'a Tensor,
    right: &'a Tensor,
    factors: Option<[&'a Tensor; 2]>,
}

impl<'a> Operands<'a> {
    fn scaled(left: &'a Scaled, right: &'a Scaled) -> Self {
        let factors = Some([&left.scales, &right.scales]);
        Operands { left: &left.values, right: &right.values, factors }
    }

    fn add_factors<'t>(&self, launch: Launch<'t>) -> Launch<'t> {
        let Some([left, right]) = self.factors else { return launch };
        let step = |factors: &Tensor| u32::from(factors.elements() > 1);
        launch.read(left).read(right).u32(step(left)).u32(step(right))
    }
}

pub(super) struct Matmul<'a> {
    routes: &'a Routes,
    operands: Operands<'a>,
    result: &'a Tensor,
    experts: u32,
    /// Outputs and inputs of an expert's matrix, `[outputs, inputs]`.
    sizes: [u32; 2],
}

impl<'a> Matmul<'a> {
    /// Describes the half-precision matmul of `left` and `right` into `result`, where experts have matrices
    /// `[outputs, inputs]`; `None` if Hopper's kernels do not support it.
    ///
    /// # Errors
    /// Sizes of more than 32 bits.
    pub(super) fn new(
        operator: &'static str,
        [left, right, result]: [&'a Tensor; 3],
        routes: &'a Routes,
        sizes: [usize; 2],
    ) -> Result<Option<Self>> {
        let operands = Operands { left, right, factors: None };
        let matmul = Self::create(operator, operands, result, routes, sizes)?;
        Ok(matmul.filter(|_| left.dtype() != DType::F32))
    }

    fn create(
        operator: &'static str,
        operands: Operands<'a>,
        result: &'a Tensor,
        routes: &'a Routes,
        sizes: [usize; 2],
    ) -> Result<Option<Self>> {
        let tensors = [operands.left, operands.right, result];
        let is_hopper = result.device().description().compute_capability.0 == 9;
        let whole = sizes.iter().all(|size| size.is_multiple_of(8)) && gpu::aligned(&tensors);
        let exists = tensors.iter().all(|tensor| tensor.elements() > 0);
        if !(is_hopper && whole && exists && routes.experts() <= MOST_EXPERTS) {
            return Ok(None);
        }
        let [outputs, inputs] = sizes;
        let sizes = [gpu::word(operator, outputs)?, gpu::word(operator, inputs)?];
        let experts = gpu::word(operator, routes.experts())?;
        Ok(Some(Matmul { routes, operands, result, experts, sizes }))
    }

    /// Describes a matmul in FP8, which only Hopper multiplies in groups.
    ///
    /// # Errors
    /// As [`Matmul::new`]; a GPU without the kernels.
    fn in_fp8(
        operator: &'static str,
        operands: Operands<'a>,
        result: &'a Tensor,
        routes: &'a Routes,
        sizes: [usize; 2],
    ) -> Result<Self> {
        let matmul = Self::create(operator, operands, result, routes, sizes)?;
        let expected = format!("a GPU of compute capability 9 and at most {MOST_EXPERTS} experts");
        matmul.ok_or_else(|| check::wrong(operator, "x", operands.left, expected))
    }

    /// Begins a launch of the kernel `name`, or of `wide` for results in f32. `adds` selects the FP8 kernels
    /// that add partial sums in f32.
    fn kernel<'t>(&self, [name, wide]: [&'static str; 2], adds: bool) -> Launch<'t>
    where
        'a: 't,
    {
        let left = self.operands.left.dtype();
        let variant = match (left, adds) {
            (DType::F16, _) => Variant::F16,
            (DType::E4m3, false) => Variant::Fp8,
            (DType::E5m2, false) => Variant::Fp8Gradients,
            (DType::E4m3, true) => Variant::Fp8Adding,
            (DType::E5m2, true) => Variant::Fp8GradientsAdding,
            _ => Variant::Bf16,
        };
        let name = if self.result.dtype() == DType::F32 { wide } else { name };
        self.result.device().kernel(Function::new(&FAMILY, name).variant(variant as usize))
    }

    fn of_matrix(&self, matrix: &Tensor, box_rows: u32) -> Boxes {
        let rows = matrix.shape().rows();
        let columns = matrix.shape().columns();
        Boxes { dtype: matrix.dtype(), layers: 1, rows, columns, box_rows }
    }

    fn of_experts(&self, matrices: &Tensor, box_rows: u32) -> Boxes {
        let [rows, columns] = self.sizes.map(|size| size as usize);
        Boxes { dtype: matrices.dtype(), layers: self.routes.experts(), rows, columns, box_rows }
    }

    /// Adds the arguments that all kernels take: offsets of groups, result and sizes.
    fn with_groups<'t>(&self, launch: Launch<'t>) -> Launch<'t> {
        let launch = launch.read(&self.routes.offsets).write(self.result);
        launch.u32(self.experts).u32(self.sizes[0]).u32(self.sizes[1])
    }

    /// Returns how the work is divided if tokens spread evenly over experts: tiles of each expert's rows, or
    /// of each expert's gradient if the sum runs over rows.
    fn tiling(&self, tiles: &Tiles, sums_rows: bool) -> Tiling {
        let experts = self.routes.experts().max(1);
        let [outputs, inputs] = self.sizes.map(|size| size as usize);
        let each = self.routes.slots().div_ceil(experts);
        let padded = |size: usize, tile: u32| size.next_multiple_of(tile as usize);
        let [rows, columns, sum] = match sums_rows {
            true => [padded(outputs, tiles.rows), padded(inputs, tiles.columns), padded(each, PANEL)],
            false => {
                let columns = self.result.shape().columns();
                let sum = outputs * inputs / columns.max(1);
                [padded(each, tiles.rows), padded(columns, tiles.columns), padded(sum, PANEL)]
            }
        };
        let units = experts * (rows / tiles.rows as usize) * (columns / tiles.columns as usize);
        let flops = Work::flops_of_products([experts, rows, columns, sum]);
        Tiling { units: Units::Equal { count: units as u64, flops }, drops: false }
    }

    /// `moved` is the bytes moved for the result.
    fn launch(&self, launch: Launch<'_>, moved: u64, tiles: &Tiles, sums_rows: bool) -> Result<()> {
        let (Operands { left, right, .. }, result) = (self.operands, self.result);
        let matrix = self.sizes.iter().map(|size| *size as usize).product();
        let flops = Work::flops_of_products([self.routes.slots(), matrix]);
        let launch = launch.cost(gpu::bytes(&[left, right]) + moved, flops);
        let launch = launch.tiled(self.tiling(tiles, sums_rows));
        let stage = (tiles.rows + tiles.columns) * 128;
        // Two boxes of results of each consumer.
        let boxes = 2 * 2 * PANEL * 128;
        let words = (self.experts + 1) * 4;
        let shared = 1024 + tiles.stages * (stage + 16) + boxes + words;
        let blocks = result.device().description().multiprocessors;
        Ok(launch.shared(shared).launch([blocks, 1, 1], THREADS)?)
    }

    /// Computes y = x · Wᵀ + b of each group.
    pub(super) fn forward(&self, bias: Option<&Tensor>) -> Result<()> {
        let Operands { left, right, .. } = self.operands;
        let launch = self.kernel(["forward", "forward_wide"], false);
        let launch = launch.boxes(left.region(), &self.of_matrix(left, WHOLE.rows));
        let launch = launch.boxes(right.region(), &self.of_experts(right, WHOLE.columns));
        let launch = self.operands.add_factors(launch).read(bias);
        self.launch(self.with_groups(launch), gpu::bytes(&[self.result]), &WHOLE, false)
    }

    /// Computes dx = dy · W of each group.
    pub(super) fn backward_input(&self) -> Result<()> {
        let Operands { left, right, factors } = self.operands;
        let launch = self.kernel(["backward_input", "backward_input_wide"], false);
        let launch = launch.boxes(left.region(), &self.of_matrix(left, WHOLE.rows));
        let weights = match factors {
            Some(_) => self.of_matrix(right, WHOLE.columns),
            None => self.of_experts(right, PANEL),
        };
        let launch = self.operands.add_factors(launch.boxes(right.region(), &weights));
        self.launch(self.with_groups(launch), gpu::bytes(&[self.result]), &WHOLE, false)
    }

    /// Computes weight (+)= dyᵀ · x of each group.
    pub(super) fn backward_weight(&self, weight: &GradientTarget) -> Result<()> {
        let Operands { left, right, factors } = self.operands;
        let (tiles, [left_rows, right_rows]) = match factors {
            Some(_) => (&ADDING, [ADDING.rows, ADDING.columns]),
            None => (&WHOLE, [PANEL; 2]),
        };
        let launch = self.kernel(["backward_weight", "backward_weight_wide"], factors.is_some());
        let launch = launch.boxes(left.region(), &self.of_matrix(left, left_rows));
        let launch = launch.boxes(right.region(), &self.of_matrix(right, right_rows));
        let launch = launch.boxes(self.result.region(), &self.of_experts(self.result, PANEL));
        let launch = self.with_groups(self.operands.add_factors(launch)).u32(u32::from(weight.accumulate));
        self.launch(launch, weight.moved(), tiles, true)
    }
}

/// Computes y = x · Wᵀ + b of each group, in FP8.
pub(super) fn forward(
    operator: &'static str,
    (x, weight, bias): (&Scaled, &Scaled, Option<&Tensor>),
    routes: &Routes,
    y: &Tensor,
) -> Result<()> {
    if y.elements() == 0 {
        return Ok(());
    }
    let sizes = [y.shape().columns(), x.values.shape().columns()];
    Matmul::in_fp8(operator, Operands::scaled(x, weight), y, routes, sizes)?.forward(bias)
}

/// Computes dx = dy · W of each group, in FP8.
pub(super) fn backward_input(
    operator: &'static str,
    (dy, weight): (&Scaled, &Scaled),
    routes: &Routes,
    dx: &Tensor,
) -> Result<()> {
    if dx.elements() == 0 {
        return Ok(());
    }
    let sizes = [dy.values.shape().columns(), dx.shape().columns()];
    Matmul::in_fp8(operator, Operands::scaled(dy, weight), dx, routes, sizes)?.backward_input()
}

/// Computes weight (+)= dyᵀ · x of each group, in FP8.
pub(super) fn backward_weight(
    operator: &'static str,
    (dy, x): (&Scaled, &Scaled),
    routes: &Routes,
    weight: &GradientTarget,
) -> Result<()> {
    let sizes = [dy, x].map(|operand| operand.values.shape().rows());
    let operands = Operands::scaled(dy, x);
    let matmul = Matmul::in_fp8(operator, operands, &weight.tensor, routes, sizes)?;
    matmul.backward_weight(weight)
}
