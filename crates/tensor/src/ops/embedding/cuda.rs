//! Launches of `kernels/embedding.cu`.

use device::{Family, Function, Region};

use super::sizes::{ABSENT, Sizes};
use super::workspace;
use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

/// Rows per block of the kernels with one warp per row.
const ROWS_PER_BLOCK: usize = gpu::THREADS as usize / WARP;
const WARP: usize = 32;
/// Threads of a block of the kernels that read all tokens.
const WIDE_THREADS: u32 = 1024;
/// Maximum blocks of the kernel for frequent tokens. With more tokens, blocks loop over them.
const MOST_TURNS: usize = 256;
/// Columns that a block sums of a frequent token's row.
const COLUMNS: u32 = 64;
/// Token number that stands for "no padding token".
const NO_PADDING: u32 = u32::MAX;

pub(crate) static FAMILY: Family = family!(
    "embedding",
    constants: &[
        gpu::THREADS_CONSTANT,
        ("WIDE_THREADS", WIDE_THREADS),
        ("COLUMNS", COLUMNS),
        ("RARE", workspace::RARE),
        ("ABSENT", ABSENT),
    ],
);

pub(super) fn forward(
    operator: &'static str,
    tokens_bl: &Tensor,
    table_vd: &Tensor,
    positions_ld: Option<&Tensor>,
    out_bld: &Tensor,
    sizes: Sizes,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let rows = sizes.batch * sizes.time;
    let aligned =
        gpu::aligned(&[table_vd, out_bld]) && positions_ld.is_none_or(|positions| gpu::aligned(&[positions]));
    let vector = sizes.width.is_multiple_of(gpu::lanes(table_vd.dtype())) && aligned;
    let kernel = Function::new(&FAMILY, "forward").with_dtype(table_vd.dtype());
    let launch = out_bld.device().kernel(kernel).read(tokens_bl).read(table_vd).read(positions_ld);
    let launch = launch.write(out_bld).u32(word(rows)?).u32(word(sizes.time)?);
    let launch = launch.u32(word(sizes.vocab)?).u32(word(sizes.width)?).u32(u32::from(vector));
    let launch = launch.cost(2 * out_bld.bytes() as u64, out_bld.elements() as u64);
    Ok(launch.launch([word(rows.div_ceil(ROWS_PER_BLOCK))?, 1, 1], gpu::THREADS)?)
}

pub(super) fn local_tokens(
    operator: &'static str,
    tokens_bl: &Tensor,
    out_bl: &Tensor,
    first: usize,
    rows: usize,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let launch = out_bl.device().kernel(Function::new(&FAMILY, "local_tokens"));
    let launch = launch.read(tokens_bl).write(out_bl).u32(word(tokens_bl.elements())?);
    let launch = launch.u32(word(first)?).u32(word(rows)?).cost(gpu::bytes(&[tokens_bl, out_bl]), 0);
    let blocks = word(tokens_bl.elements().div_ceil(gpu::THREADS as usize))?;
    Ok(launch.launch([blocks, 1, 1], gpu::THREADS)?)
}

pub(super) fn positions(operator: &'static str, documents_bl: &Tensor, out_bl: &Tensor) -> Result<()> {
    let tokens = documents_bl.elements();
    let time = documents_bl.shape().columns();
    let launch = out_bl.device().kernel(Function::new(&FAMILY, "positions")).read(documents_bl).write(out_bl);
    let launch = launch.u32(gpu::word(operator, tokens)?).u32(gpu::word(operator, time)?);
    let launch = launch.cost(gpu::bytes(&[documents_bl, out_bl]), 0);
    let blocks = gpu::word(operator, tokens.div_ceil(gpu::THREADS as usize))?;
    Ok(launch.launch([blocks, 1, 1], gpu::THREADS)?)
}

/// The arrays in the workspace, all u32.
struct Lists<'a> {
    counts: Region<'a>,
    starts: Region<'a>,
    frequent: Region<'a>,
    lists: Region<'a>,
}

impl<'a> Lists<'a> {
    fn divide(workspace: &'a Tensor, rows: usize, vocab: usize) -> Self {
        let mut first = 0;
        let mut take = |words: usize| {
            let region = workspace.region().part(4 * first, 4 * words);
            first += words;
            region
        };
        Lists {
            counts: take(vocab),
            starts: take(vocab + 2),
            frequent: take(workspace::most_frequent(rows)),
            lists: take(rows),
        }
    }
}

/// Adds the gradients `dy_bld` to the rows of their tokens in `table`, or overwrites the table.
pub(super) fn table_gradient(
    operator: &'static str,
    dy_bld: &Tensor,
    (tokens_bl, padding): (&Tensor, Option<u32>),
    workspace: &Tensor,
    table: &GradientTarget,
    sizes: Sizes,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let device = dy_bld.device();
    let rows = sizes.batch * sizes.time;
    let lists = Lists::divide(workspace, rows, sizes.vocab);
    list(operator, tokens_bl, padding.unwrap_or(NO_PADDING), &lists, sizes)?;

    let lanes = gpu::lanes(dy_bld.dtype());
    let vector = sizes.width.is_multiple_of(lanes) && gpu::aligned(&[dy_bld, &table.tensor]);
    let pieces = sizes.width.div_ceil(WARP * if vector { lanes } else { 1 });
    let vocab = word(sizes.vocab)?;
    let width = word(sizes.width)?;
    let accumulate = u32::from(table.accumulate);
    let kernel = Function::new(&FAMILY, "rare_rows").from_to(dy_bld.dtype(), table.tensor.dtype());
    let launch = device.kernel(kernel).read(dy_bld).read(lists.starts).read(lists.lists);
    let launch = launch.write(&table.tensor).u32(vocab).u32(width).u32(accumulate).u32(u32::from(vector));
    let moved = gpu::bytes(&[dy_bld]) + moved(table, rows, sizes.width);
    let launch = launch.cost(moved, dy_bld.elements() as u64);
    let blocks = word(sizes.vocab.div_ceil(ROWS_PER_BLOCK))?;
    launch.launch([blocks, word(pieces)?, 1], gpu::THREADS)?;

    let kernel = Function::new(&FAMILY, "frequent_rows").from_to(dy_bld.dtype(), table.tensor.dtype());
    let launch = device.kernel(kernel).read(dy_bld).read(lists.starts).read(lists.frequent);
    let launch = launch.read(lists.lists).write(&table.tensor).u32(vocab).u32(width).u32(accumulate);
    let turns = word(workspace::most_frequent(rows).min(MOST_TURNS))?;
    // The number of frequent tokens is known only on the device: the launch before counts the bytes of both.
    let launch = launch.cost(0, 0);
    Ok(launch.launch([turns, word(sizes.width.div_ceil(COLUMNS as usize))?, 1], gpu::THREADS)?)
}

/// Returns the bytes moved in a table: all of it is overwritten, or up to `rows` rows are added to.
fn moved(table: &GradientTarget, rows: usize, width: usize) -> u64 {
    let rows = (rows * width * table.tensor.dtype().bytes()) as u64;
    if table.accumulate { table.moved().min(2 * rows) } else { table.moved() }
}

/// Lists the positions of every token except `padding`.
fn list(
    operator: &'static str,
    tokens_bl: &Tensor,
    padding: u32,
    lists: &Lists<'_>,
    sizes: Sizes,
) -> Result<()> {
    let device = tokens_bl.device();
    let kernel = |name| device.kernel(Function::new(&FAMILY, name));
    let rows = tokens_bl.elements();
    let vocab = gpu::word(operator, sizes.vocab)?;
    let count = gpu::word(operator, rows)?;
    let blocks = [count.div_ceil(gpu::THREADS), 1, 1];
    let bytes = tokens_bl.bytes() as u64;
    device.zero(lists.counts)?;
    let launch =
        kernel("count_tokens").read(tokens_bl).write(lists.counts).u32(count).u32(vocab).u32(padding);
    launch.cost(bytes, 0).launch(blocks, gpu::THREADS)?;
    let launch =
        kernel("start_lists").read(lists.counts).write(lists.starts).write(lists.frequent).u32(vocab);
    launch.cost(8 * u64::from(vocab), 0).launch([1, 1, 1], WIDE_THREADS)?;
    let launch = kernel("list_rare").read(tokens_bl).read(lists.starts).write(lists.counts);
    let launch = launch.write(lists.lists).u32(count).u32(padding).cost(2 * bytes, 0);
    launch.launch(blocks, gpu::THREADS)?;
    let launch = kernel("list_frequent").read(tokens_bl).read(lists.starts).read(lists.frequent);
    let launch = launch.write(lists.lists).u32(count).u32(vocab).cost(bytes, 0);
    let turns = gpu::word(operator, workspace::most_frequent(rows).min(WIDE_THREADS as usize))?;
    Ok(launch.launch([turns, 1, 1], WIDE_THREADS)?)
}

/// Adds the gradients `dy_bld` to the rows of their positions in `positions`, or overwrites the table.
pub(super) fn position_gradient(
    operator: &'static str,
    dy_bld: &Tensor,
    positions: &GradientTarget,
    sizes: Sizes,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let target = &positions.tensor;
    let lanes = gpu::lanes(dy_bld.dtype());
    let vector = sizes.width.is_multiple_of(lanes) && gpu::aligned(&[dy_bld, target]);
    let threads = target.elements() / if vector { lanes } else { 1 };
    let kernel = Function::new(&FAMILY, "position_rows").from_to(dy_bld.dtype(), target.dtype());
    let launch = dy_bld.device().kernel(kernel).read(dy_bld).write(target);
    let launch = launch.u32(word(sizes.batch)?).u32(word(sizes.time)?).u32(word(target.shape().rows())?);
    let launch = launch.u32(word(sizes.width)?).u32(u32::from(positions.accumulate)).u32(u32::from(vector));
    let moved = gpu::bytes(&[dy_bld]) + moved(positions, sizes.time, sizes.width);
    let launch = launch.cost(moved, dy_bld.elements() as u64);
    Ok(launch.launch([word(threads)?.div_ceil(gpu::THREADS), 1, 1], gpu::THREADS)?)
}
