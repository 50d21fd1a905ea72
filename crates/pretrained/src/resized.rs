//! Token tables with more rows than a folder stores. Missing rows are filled with the mean of the stored
//! rows.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use checkpoint::Target;
use nn::{FolderTensor, HuggingFaceModel};
use system::file_error::FileContext;

use crate::error::Result;
use crate::load;
use crate::tensor_file::StoredTensor;

/// Number of rows read at a time.
const ROWS: usize = 256;

/// Mean row of each token table, by tensor name, computed on first use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Means(Arc<BTreeMap<&'static str, OnceLock<Vec<f32>>>>);

/// Returns whether `stored` has the layout of `tensor` in a model with fewer tokens.
pub(crate) fn is_shorter(tensor: &FolderTensor, stored: &StoredTensor, model: &HuggingFaceModel) -> bool {
    let is_table = model.tables.contains(&tensor.name.as_str());
    match (stored.shape(), &tensor.shape[..]) {
        ([there, columns_there], [here, columns]) => is_table && columns_there == columns && there < here,
        _ => false,
    }
}

impl Means {
    /// Creates the means of a model's token tables, not yet computed.
    pub(crate) fn from_model(model: &HuggingFaceModel) -> Self {
        Means(Arc::new(model.tables.iter().map(|name| (*name, OnceLock::new())).collect()))
    }

    /// Reads `stored`, a table with fewer rows, into the elements of `target` that `tensor` covers, and fills
    /// missing rows.
    pub(crate) fn load(&self, tensor: &FolderTensor, stored: &StoredTensor, target: &Target) -> Result<()> {
        let shorter = FolderTensor { shape: stored.shape().to_vec(), ..tensor.clone() };
        load::load(&shorter, stored, target)?;
        let [there, columns] = shorter.rows_and_columns();
        let first = there * columns;
        let end = target.first + target.tensor.elements();
        if end <= first {
            return Ok(());
        }
        let mean = self.mean(tensor, stored)?;
        for row in first.max(target.first) / columns..end.div_ceil(columns) {
            let start = (row * columns).max(target.first);
            let end = ((row + 1) * columns).min(end);
            let values = &mean[start - row * columns..end - row * columns];
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            target.take(start - target.first, &bytes)?;
        }
        Ok(())
    }

    /// Returns the mean row of a table, summed in f64 from the first row on.
    fn mean(&self, tensor: &FolderTensor, stored: &StoredTensor) -> Result<Vec<f32>> {
        let cell = self.0.get(tensor.name.as_str());
        if let Some(mean) = cell.and_then(OnceLock::get) {
            return Ok(mean.clone());
        }
        let path = stored.path();
        let file = system::input::open(path).context(path, "open it")?;
        let &[rows, columns] = stored.shape() else { return Ok(Vec::new()) };
        let mut sums = vec![0.0_f64; columns];
        let mut values = Vec::new();
        for first in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first);
            values.resize(count * columns, 0.0);
            stored.read(&file, first * columns..(first + count) * columns, &mut values)?;
            for row in values.chunks_exact(columns) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
            }
        }
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / rows as f64) as f32).collect();
        Ok(cell.map_or_else(|| mean.clone(), |cell| cell.get_or_init(|| mean.clone()).clone()))
    }
}
