//! Launches of `kernels/experts_hopper.cu`: matmuls of groups in half precision on Hopper.

use device::cuda::{Boxes, Launch};
use device::{DType, Family, Function};

use crate::ops::GradientTarget;
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::ops::routing::Routes;
use crate::{Result, Tensor};

/// Results of a tile.
const ROWS: u32 = 128;
const COLUMNS: u32 = 256;
/// Stages of the ring of operands.
const STAGES: u32 = 4;
/// Threads of a block: a producer and two consumers of four warps.
const THREADS: u32 = 384;
/// Rows of a box of an operand whose rows run along the sums, and of one of results.
const PANEL: u32 = 64;
/// Most experts: their offsets lie in shared memory.
const MOST_EXPERTS: usize = 384;

const SIZES: [(&str, u32); 3] = [("ROWS", ROWS), ("COLUMNS", COLUMNS), ("STAGES", STAGES)];

/// `kernels/experts_hopper.cu`, empty for other architectures; in bf16, then in f16.
pub(crate) static FAMILY: Family = family!(
    "experts_hopper",
    headers: ["hopper.cuh"],
    constants: &SIZES,
    variants: &[&[], &[("HALF_IS_F16", 1)]],
);

/// A matmul of groups on Hopper.
pub(super) struct Matmul<'a> {
    routes: &'a Routes,
    experts: u32,
    /// Outputs and inputs of an expert's matrix.
    sizes: [u32; 2],
}

impl<'a> Matmul<'a> {
    /// The matmul of two operands, of which it writes the third tensor, with matrices `[outputs, inputs]`, if
    /// Hopper's kernels have it.
    ///
    /// # Errors
    /// Sizes of more than 32 bits.
    pub(super) fn new(
        operator: &'static str,
        tensors: [&Tensor; 3],
        routes: &'a Routes,
        [outputs, inputs]: [usize; 2],
    ) -> Result<Option<Self>> {
        let is_hopper = tensors[0].device().description().compute_capability.0 == 9;
        let is_half = tensors[0].dtype() != DType::F32;
        let whole = outputs.is_multiple_of(8) && inputs.is_multiple_of(8) && gpu::aligned(&tensors);
        let exists = tensors.iter().all(|tensor| tensor.elements() > 0);
        if !(is_hopper && is_half && whole && exists && routes.experts() <= MOST_EXPERTS) {
            return Ok(None);
        }
        let sizes = [gpu::word(operator, outputs)?, gpu::word(operator, inputs)?];
        Ok(Some(Matmul { routes, experts: gpu::word(operator, routes.experts())?, sizes }))
    }

    /// Begins a launch of the kernel `names[0]`, or of `names[1]` for results in f32 of other operands.
    fn kernel<'t>(&self, names: [&'static str; 2], x: &'t Tensor, out: DType) -> Launch<'t> {
        let function = Function::new(&FAMILY, names[usize::from(out != x.dtype())]);
        x.device().kernel(function.variant(usize::from(x.dtype() == DType::F16)))
    }

    /// The boxes of a matrix of all rows of experts.
    fn of_rows(&self, x: &Tensor, box_rows: u32) -> Boxes {
        let (rows, columns) = (x.shape().rows(), x.shape().columns());
        Boxes { dtype: x.dtype(), layers: 1, rows, columns, box_rows }
    }

    /// The boxes of the experts' matrices.
    fn of_matrices(&self, weight: &Tensor, box_rows: u32) -> Boxes {
        let [rows, columns] = self.sizes.map(|size| size as usize);
        Boxes { dtype: weight.dtype(), layers: self.routes.experts(), rows, columns, box_rows }
    }

    fn launch(&self, launch: Launch<'_>, operands: [&Tensor; 2], result: &Tensor) -> Result<()> {
        let matrix = self.sizes.iter().map(|size| u64::from(*size)).product::<u64>();
        let flops = 2 * self.routes.slots() as u64 * matrix;
        let launch = launch.cost(gpu::bytes(&[operands[0], operands[1], result]), flops);
        let stage = (ROWS + COLUMNS) * 128;
        // Two boxes of results of each consumer.
        let boxes = 2 * 2 * PANEL * 128;
        let words = (self.experts + 1) * 4;
        let shared = 1024 + STAGES * (stage + 16) + boxes + words;
        let blocks = result.device().description().multiprocessors;
        Ok(launch.shared(shared).launch([blocks, 1, 1], THREADS)?)
    }

    /// y = x · Wᵀ + b of each group.
    pub(super) fn forward(
        &self,
        (x, weight, bias): (&Tensor, &Tensor, Option<&Tensor>),
        y: &Tensor,
    ) -> Result<()> {
        let launch = self.kernel(["forward", "forward_wide"], x, y.dtype());
        let launch = launch.boxes(x.region(), &self.of_rows(x, ROWS));
        let launch = launch.boxes(weight.region(), &self.of_matrices(weight, COLUMNS));
        let launch = match bias {
            Some(bias) => launch.read(bias.region()),
            None => launch.null(),
        };
        let launch = launch.read(self.routes.offsets.region()).write(y.region());
        let launch = launch.u32(self.experts).u32(self.sizes[0]).u32(self.sizes[1]);
        self.launch(launch, [x, weight], y)
    }

    /// dx = dy · W of each group.
    pub(super) fn backward_input(&self, (dy, weight): (&Tensor, &Tensor), dx: &Tensor) -> Result<()> {
        let launch = self.kernel(["backward_input", "backward_input_wide"], dy, dx.dtype());
        let launch = launch.boxes(dy.region(), &self.of_rows(dy, ROWS));
        let launch = launch.boxes(weight.region(), &self.of_matrices(weight, PANEL));
        let launch = launch.read(self.routes.offsets.region()).write(dx.region());
        let launch = launch.u32(self.experts).u32(self.sizes[0]).u32(self.sizes[1]);
        self.launch(launch, [dy, weight], dx)
    }

    /// weight (+)= dyᵀ · x of each group.
    pub(super) fn backward_weight(&self, (dy, x): (&Tensor, &Tensor), weight: &GradientTarget) -> Result<()> {
        let launch = self.kernel(["backward_weight", "backward_weight_wide"], dy, weight.tensor.dtype());
        let launch = launch.boxes(dy.region(), &self.of_rows(dy, PANEL));
        let launch = launch.boxes(x.region(), &self.of_rows(x, PANEL));
        let launch = launch.boxes(weight.tensor.region(), &self.of_matrices(&weight.tensor, PANEL));
        let launch = launch.read(self.routes.offsets.region()).write(weight.tensor.region());
        let launch = launch.u32(self.experts).u32(self.sizes[0]).u32(self.sizes[1]);
        let launch = launch.u32(u32::from(weight.accumulate));
        self.launch(launch, [dy, x], &weight.tensor)
    }
}
