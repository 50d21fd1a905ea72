//! Exponential running averages over micro-batches, such as the statistics of batch normalisation.

use device::parallel::for_pieces;
use device::{Backend, DType, Family, Function};

use super::kernels::family;
use super::{check, gpu};
use crate::{Result, Tensor};

pub(super) static FAMILY: Family = family!("running_average", constants: &[gpu::THREADS_CONSTANT]);

/// Elements per task.
const PIECE: usize = 4096;

/// Updates `averages [width]` with the rows of `values [rows, width]` in order: average = (1 − momentum) ·
/// average + momentum · value. Adds the number of rows to each of `counters`, u32.
pub fn fold(averages: &Tensor, counters: &Tensor, values: &Tensor, momentum: f32) -> Result<()> {
    const OPERATOR: &str = "running_average.fold";
    check::f32s(OPERATOR, &[("averages", averages), ("values", values)])?;
    check::dtype(OPERATOR, "counters", counters, DType::U32)?;
    let rows = values.shape().rows();
    let width = values.shape().columns();
    check::shape(OPERATOR, "averages", averages, [width])?;
    match values.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => on_host(averages, counters, values, momentum),
        Backend::Cuda => {
            let numbers = gpu::word(OPERATOR, counters.elements())?;
            let [width, rows] = [gpu::word(OPERATOR, width)?, gpu::word(OPERATOR, rows)?];
            let launch = values.device().kernel(Function::new(&FAMILY, "fold"));
            let launch = launch.write(averages).write(counters).read(values);
            let launch = launch.u32(width).u32(numbers).u32(rows).f32(momentum);
            let bytes = gpu::bytes(&[averages, averages, values]);
            let blocks = width.max(numbers).div_ceil(gpu::THREADS);
            Ok(launch.cost(bytes, 3 * values.elements() as u64).launch([blocks, 1, 1], gpu::THREADS)?)
        }
    }
}

fn on_host(averages: &Tensor, counters: &Tensor, values: &Tensor, momentum: f32) -> Result<()> {
    let rows = values.shape().rows();
    let width = values.shape().columns();
    let mut averages = averages.write::<f32>()?;
    let values = values.read::<f32>()?;
    let values: &[f32] = &values;
    for_pieces(&mut averages, PIECE, |index, averages| {
        for row in 0..rows {
            let values = &values[row * width + index * PIECE..][..averages.len()];
            for (average, value) in averages.iter_mut().zip(values) {
                *average = momentum.mul_add(*value, (1.0 - momentum) * *average);
            }
        }
    });
    let rows = u32::try_from(rows).unwrap_or(u32::MAX);
    counters.write::<u32>()?.iter_mut().for_each(|counter| *counter = counter.wrapping_add(rows));
    Ok(())
}
