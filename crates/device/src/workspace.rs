//! How many bytes of scratch each call takes on a GPU: the only place that says so, for the device and for its plan.

/// What cuBLASLt may use, for the whole life of a device: what NVIDIA recommends for Hopper.
pub const PRODUCT: usize = 32 << 20;

/// Runs of rows that a sum over the rows of a matrix is cut into: of at least 32 rows, at most 256 of them.
pub const fn column_runs(rows: usize) -> usize {
    let runs = rows.div_ceil(32);
    if runs == 0 {
        1
    } else if runs > 256 {
        256
    } else {
        runs
    }
}

/// The gradient of a bias: an f32 row for every run.
pub const fn column_sums(rows: usize, columns: usize) -> usize {
    4 * column_runs(rows) * columns
}

/// The gradients of a layer norm's parameters: two f32 rows for every run.
pub const fn layer_norm_backward_weight(rows: usize, width: usize) -> usize {
    2 * column_sums(rows, width)
}

/// An f32 loss for every row.
pub const fn cross_entropy(rows: usize) -> usize {
    4 * rows
}

/// Elements of one partial sum of a mean square.
pub const MSE_CHUNK: usize = 8192;

/// An f64 for every chunk.
pub const fn mse(elements: usize) -> usize {
    8 * elements.div_ceil(MSE_CHUNK)
}

/// Occurrences from which on a token is frequent: its gradient is added up by whole blocks.
pub const FREQUENT: usize = 33;

/// The lists of a token table's gradient, u32 each: occurrences of every token, where every list starts and two more,
/// the frequent tokens, the lists themselves.
pub const fn embedding_backward_weight(tokens: usize, vocab: usize) -> usize {
    4 * (vocab + (vocab + 2) + tokens / FREQUENT + tokens)
}

/// The table of an optimizer's tensors: 56 bytes each, and where its blocks begin. Nothing for none.
pub const fn parameter_table(tensors: usize) -> usize {
    if tensors == 0 { 0 } else { 56 * tensors + 4 * (tensors + 1) }
}

/// The table of a norm's tensors: 16 bytes each, where its chunks begin, and a counter.
pub const fn gradient_table(tensors: usize) -> usize {
    16 * tensors + 4 * (tensors + 1) + 4
}

/// The table of the parts that a norm's sums are of: 16 bytes each, where its chunks begin, and where its sums go.
pub const fn gradient_parts_table(parts: usize) -> usize {
    16 * parts + 4 * (parts + 1) + 4 * parts
}

/// Of every query an f32 that is the same along its row (delta), and where `bf16` its log-sum-exp in powers of two.
pub const fn attention_backward(batch: usize, heads: usize, time: usize, bf16: bool) -> usize {
    let numbers = if bf16 { 2 } else { 1 };
    4 * numbers * batch * heads * time
}
