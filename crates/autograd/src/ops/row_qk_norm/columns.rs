//! The columns of packed queries, keys and values.

use tensor::Tensor;
use tensor::ops::attention::Heads;
use tensor::ops::rearrange;

/// The dimension of columns.
pub(super) const COLUMNS: usize = 2;

/// Divides the columns of packed queries, keys and values, copies each.
pub(super) fn divided(qkv: &Tensor, heads: Heads) -> tensor::Result<[Tensor; 3]> {
    let [query, key, value] = heads.groups_of_columns();
    let part = |first, count| rearrange::slice(qkv, COLUMNS, first, count);
    Ok([part(0, query)?, part(query, key)?, part(query + key, value)?])
}
