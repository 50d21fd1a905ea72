//! Launches of kernels that are built from `kernels/held_rows.cuh`, which take the same arguments in the same
//! order.

use device::cuda::Launch;
use device::{DType, Family, Function};

use super::Settings;
use super::forms::form;
use crate::ops::columns::cuda::{self as columns, Cut};
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

pub(in crate::ops) struct Forward<'a> {
    pub(in crate::ops) family: &'static Family,
    pub(in crate::ops) x: &'a Tensor,
    /// Branch and sum: x + branch is stored in the sum, whose rows are normalised.
    pub(in crate::ops) residual: Option<(&'a Tensor, &'a Tensor)>,
    /// The kernel's parameters in order; `None` for an absent parameter.
    pub(in crate::ops) parameters: &'a [Option<&'a Tensor>],
    pub(in crate::ops) settings: Settings,
    pub(in crate::ops) output: &'a Tensor,
    pub(in crate::ops) statistics: &'a [&'a Tensor],
    pub(in crate::ops) flops_per_element: u64,
}

/// Arguments of the kernel that computes the input's gradient, plus `dsum`.
pub(in crate::ops) struct BackwardInput<'a> {
    pub(in crate::ops) family: &'static Family,
    pub(in crate::ops) dy: &'a Tensor,
    pub(in crate::ops) dsum: Option<&'a Tensor>,
    pub(in crate::ops) x: &'a Tensor,
    pub(in crate::ops) weight: &'a Tensor,
    pub(in crate::ops) statistics: &'a [&'a Tensor],
    pub(in crate::ops) dx: &'a Tensor,
    pub(in crate::ops) flops_per_element: u64,
}

/// Arguments of the kernel that computes the parameters' gradients, with partial sums in `workspace`.
pub(in crate::ops) struct BackwardWeight<'a> {
    pub(in crate::ops) family: &'static Family,
    pub(in crate::ops) dy: &'a Tensor,
    pub(in crate::ops) x: &'a Tensor,
    pub(in crate::ops) statistics: &'a [&'a Tensor],
    pub(in crate::ops) workspace: &'a Tensor,
    /// Target of each of the kernel's sums, in order; targets at the end may be absent.
    pub(in crate::ops) targets: &'a [&'a GradientTarget],
    pub(in crate::ops) sums: u32,
    pub(in crate::ops) flops_per_element: u64,
}

impl Forward<'_> {
    pub(in crate::ops) fn launch(&self, operator: &'static str) -> Result<()> {
        let Self { x: x_td, output: output_td, statistics, .. } = self;
        let more: Vec<&Tensor> = self.residual.iter().flat_map(|(branch, sum)| [*branch, *sum]).collect();
        let parameters: Vec<&Tensor> = self.parameters.iter().copied().flatten().collect();
        let aligned = gpu::aligned(&[x_td, output_td]) && gpu::aligned(&parameters) && gpu::aligned(&more);
        let form = form(x_td.shape().columns(), x_td.dtype(), aligned, self.settings.block_per_row);
        let kernel = Function::new(self.family, form.forward).with_dtype(x_td.dtype());
        let launch = x_td.device().kernel(kernel).read(*x_td);
        let (branch_td, sum_td) = self.residual.unzip();
        let launch = launch.read(branch_td);
        let launch = self.parameters.iter().fold(launch, |launch, parameter| launch.read(*parameter));
        let launch = launch.write(sum_td).write(*output_td);
        let launch = statistics.iter().fold(launch, |launch, statistic| launch.write(*statistic));
        let launch = add_sizes(operator, launch, x_td)?.f32(self.settings.epsilon).read(output_td.maxima());
        let bytes = gpu::bytes(&[x_td, output_td]) + gpu::bytes(statistics) + gpu::bytes(&more);
        let launch = launch.cost(bytes, self.flops_per_element * x_td.elements() as u64);
        Ok(launch.launch(grid(operator, x_td, form.rows_per_block)?, gpu::THREADS)?)
    }
}

impl BackwardInput<'_> {
    pub(in crate::ops) fn launch(&self, operator: &'static str) -> Result<()> {
        let Self { dy: dy_td, x: x_td, weight: weight_d, statistics, dx: dx_td, .. } = self;
        let more: Vec<&Tensor> = self.dsum.into_iter().collect();
        let aligned = gpu::aligned(&[dy_td, x_td, weight_d, dx_td]) && gpu::aligned(&more);
        let form = form(x_td.shape().columns(), x_td.dtype(), aligned, false);
        let kernel = Function::new(self.family, form.backward).with_dtype(x_td.dtype());
        let launch = x_td.device().kernel(kernel).read(*dy_td).read(self.dsum).read(*x_td).read(*weight_d);
        let launch = statistics.iter().fold(launch, |launch, statistic| launch.read(*statistic));
        let launch = add_sizes(operator, launch.write(*dx_td), x_td)?.read(dx_td.maxima());
        let bytes = gpu::bytes(&[dy_td, x_td, dx_td]) + gpu::bytes(statistics) + gpu::bytes(&more);
        let launch = launch.cost(bytes, self.flops_per_element * x_td.elements() as u64);
        Ok(launch.launch(grid(operator, x_td, form.rows_per_block)?, gpu::THREADS)?)
    }
}

impl BackwardWeight<'_> {
    pub(in crate::ops) fn launch(&self, operator: &'static str) -> Result<()> {
        let Self { dy: dy_td, x: x_td, statistics, workspace, .. } = self;
        let cut = Cut::divide(operator, dy_td, gpu::aligned(&[dy_td, x_td]))?;
        let kernel = Function::new(self.family, "weight_sums").with_dtype(dy_td.dtype());
        let launch = dy_td.device().kernel(kernel).read(*dy_td).read(*x_td);
        let launch = statistics.iter().fold(launch, |launch, statistic| launch.read(*statistic));
        let launch = launch.write(*workspace);
        let launch = launch.u32(cut.rows).u32(cut.width).u32(cut.rows_per_run).u32(u32::from(cut.vector));
        let launch =
            launch.cost(gpu::bytes(&[dy_td, x_td]), self.flops_per_element * dy_td.elements() as u64);
        launch.launch(cut.grid(), gpu::THREADS)?;
        let width = DType::F32.bytes() * x_td.shape().columns();
        self.targets.iter().enumerate().try_for_each(|(index, target)| {
            columns::finish(self.family, workspace, index * width, &cut, self.sums * cut.width, target)
        })
    }
}

/// Adds the numbers of rows and columns to a launch.
fn add_sizes<'a>(operator: &'static str, launch: Launch<'a>, x_td: &Tensor) -> Result<Launch<'a>> {
    let rows = x_td.shape().rows();
    let width = x_td.shape().columns();
    Ok(launch.u32(gpu::word(operator, rows)?).u32(gpu::word(operator, width)?))
}

fn grid(operator: &'static str, x_td: &Tensor, rows_per_block: usize) -> Result<[u32; 3]> {
    Ok([gpu::word(operator, x_td.shape().rows().div_ceil(rows_per_block))?, 1, 1])
}
