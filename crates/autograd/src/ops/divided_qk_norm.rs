//! Normalisation of all query heads together, and of all key heads together, where heads are divided in
//! lanes: mean squares are sums over lanes.

use device::{Category, DType, Request};
use tensor::ops::attention::Heads;
use tensor::ops::divided_norm::{self, Saved as Operands};
use tensor::ops::{rearrange, rms_norm};
use tensor::{Tensor, TensorError};

use super::cast::autocast_all;
use super::lanes::LanePlane;
use super::row_qk_norm::divided;
use super::{QkNormWeights, named};
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved};
use crate::sink::{GradientSink, ready, target};
use crate::tape::{Source, Tape, Var};
use crate::weight::Weight;

const OPERATOR: &str = "divided_qk_norm";
/// The dimension of columns.
const COLUMNS: usize = 2;

/// Backward of [`divided_qk_norm`].
#[derive(Debug)]
pub struct DividedQkNormRule {
    lanes: Vec<LaneNorm>,
    heads: Heads,
    rows: RowStatistics,
    planes: LanePlane,
}

/// The norm of queries and keys of one lane.
#[derive(Debug)]
struct LaneNorm {
    weights: QkNormWeights,
    /// Queries, then keys; the input half adds the gradients of their normalised values.
    parts: [Tensor; 2],
    gradients: Option<[Tensor; 2]>,
}

/// Sums over the columns of all lanes, or statistics that follow from them.
#[derive(Debug)]
struct RowStatistics {
    /// Of the rows of queries, then of keys: f32 `[2, rows]`.
    all: Tensor,
    /// Columns of all query heads and of all key heads.
    columns: [usize; 2],
}

impl RowStatistics {
    /// The statistics of queries, part 0, or of keys.
    fn part(&self, part: usize) -> tensor::Result<Tensor> {
        part_of(&self.all, part)
    }
}

/// Row `part` of `[2, rows]`.
fn part_of(all: &Tensor, part: usize) -> tensor::Result<Tensor> {
    let rows = all.shape().columns();
    all.view(part * rows, [rows])
}

/// RMS norm of the queries of all heads of a row, and of its keys. Each `qkv [batch, time,
/// heads.packed_columns()]` has the heads of a lane that is here, whose weights are `weights`; all lanes have
/// `columns` columns of queries and of keys. Values are unchanged.
///
/// # Errors
/// Shapes or types that do not agree, no lane, out of memory, a failed collective.
pub fn divided_qk_norm(
    tape: &Tape,
    mut qkv: Vec<Var>,
    heads: Heads,
    weights: Vec<QkNormWeights>,
    columns: [usize; 2],
    epsilon: f32,
) -> Result<Vec<Var>> {
    autocast_all(tape, OPERATOR, &mut qkv)?;
    tape.begin(OPERATOR)?;
    let planes = LanePlane::of(tape);
    let sources: Vec<Source> = qkv.iter().map(Var::source).collect();
    let (mut lanes, mut values) = (Vec::with_capacity(qkv.len()), Vec::with_capacity(qkv.len()));
    for (qkv, weights) in qkv.into_iter().zip(weights) {
        let [queries, keys, of_values] = named(OPERATOR, divided(qkv.tensor(), heads))?;
        lanes.push(LaneNorm { weights, parts: [queries, keys], gradients: None });
        values.push(of_values);
    }
    let sums = lanes.iter().map(LaneNorm::squares).collect::<tensor::Result<Vec<_>>>();
    let request = Request::new(Category::Activation, OPERATOR);
    let rows = RowStatistics { all: planes.sum(named(OPERATOR, sums)?, request)?, columns };
    for (part, columns) in columns.into_iter().enumerate() {
        named(OPERATOR, divided_norm::rstd(&rows.part(part)?, columns, epsilon))?;
    }
    let normalised = lanes.iter().zip(values).map(|(lane, values)| lane.forward(&rows, &values));
    let outputs = named(OPERATOR, normalised.collect::<tensor::Result<Vec<_>>>())?;
    tape.record(&sources, outputs, || DividedQkNormRule { lanes, heads, rows, planes })
}

impl LaneNorm {
    fn weight(&self, part: usize) -> &Weight {
        if part == 0 { &self.weights.query } else { &self.weights.key }
    }

    /// Makes a number of every row of queries and of keys.
    fn of_rows(
        &self,
        category: Category,
        write: impl Fn(usize, &Tensor) -> tensor::Result<()>,
    ) -> tensor::Result<Tensor> {
        let queries = &self.parts[0];
        let request = Request::new(category, OPERATOR);
        let all = Tensor::empty(queries.device(), [2, queries.shape().rows()], DType::F32, request)?;
        (0..2).try_for_each(|part| write(part, &part_of(&all, part)?))?;
        Ok(all)
    }

    fn squares(&self) -> tensor::Result<Tensor> {
        self.of_rows(Category::Activation, |part, sums| divided_norm::squares(&self.parts[part], sums))
    }

    /// Packs the normalised queries and keys with the values.
    fn forward(&self, rows: &RowStatistics, values: &Tensor) -> tensor::Result<Tensor> {
        let normalised = |part: usize| {
            let x = &self.parts[part];
            divided_norm::forward(x, &self.weight(part).values(x.dtype())?, &rows.part(part)?)
        };
        rearrange::concatenate(&[&normalised(0)?, &normalised(1)?, values], COLUMNS)
    }

    /// Calls `body` with the operands of the backward pass of queries or keys.
    fn with_operands<T>(
        &self,
        rows: &RowStatistics,
        part: usize,
        body: impl FnOnce(Operands<'_>) -> tensor::Result<T>,
    ) -> tensor::Result<T> {
        let x = &self.parts[part];
        let (weight, rstd) = (self.weight(part).values(x.dtype())?, rows.part(part)?);
        body(Operands { x, weight: &weight, rstd: &rstd })
    }

    fn products(&self, rows: &RowStatistics, gradients: &[Tensor; 2]) -> tensor::Result<Tensor> {
        self.of_rows(Category::ActivationGradient, |part, sums| {
            self.with_operands(rows, part, |operands| {
                divided_norm::products(&gradients[part], operands, sums)
            })
        })
    }

    /// The gradient of queries, keys and values, from the gradients of normalised ones; `sums` are products
    /// over all lanes.
    fn backward_input(
        &self,
        rows: &RowStatistics,
        [queries, keys, values]: [&Tensor; 3],
        sums: &Tensor,
    ) -> tensor::Result<Tensor> {
        let input = |part: usize, dy: &Tensor| {
            self.with_operands(rows, part, |operands| {
                divided_norm::backward_input(dy, operands, &part_of(sums, part)?, rows.columns[part])
            })
        };
        rearrange::concatenate(&[&input(0, queries)?, &input(1, keys)?, values], COLUMNS)
    }

    fn backward_weight(&self, rows: &RowStatistics, part: usize, sink: &mut dyn GradientSink) -> Result<()> {
        let weight = self.weight(part);
        if let (Some(target), Some(gradients)) = (target(sink, weight)?, &self.gradients) {
            let (x, rstd) = (&self.parts[part], rows.part(part)?);
            rms_norm::backward_weight(&gradients[part], x, &rstd, &target)?;
        }
        ready(sink, weight)
    }
}

impl Rule for DividedQkNormRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let parts = self.lanes.iter().map(|lane| &lane.parts);
        let parts =
            parts.flat_map(|[queries, keys]| [Saved::new("queries", queries), Saved::new("keys", keys)]);
        parts.chain([Saved::new("rstd", &self.rows.all)]).collect()
    }

    fn has_weights(&self) -> bool {
        let is_trained = |lane: &LaneNorm| lane.weights.query.is_trained() || lane.weights.key.is_trained();
        self.lanes.iter().any(is_trained)
    }

    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        _wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let mut values = Vec::with_capacity(self.lanes.len());
        let mut sums = Vec::with_capacity(self.lanes.len());
        for (lane, gradient) in self.lanes.iter_mut().zip(outputs) {
            let gradient = gradient.ok_or(AutogradError::NotRecorded)?;
            let [queries, keys, of_values] = divided(&gradient, self.heads)?;
            let gradients = [queries, keys];
            sums.push(lane.products(&self.rows, &gradients)?);
            lane.gradients = Some(gradients);
            values.push(of_values);
        }
        let sums = self.planes.sum(sums, Request::new(Category::ActivationGradient, OPERATOR))?;
        let input = |(lane, values): (&LaneNorm, Tensor)| {
            let Some([queries, keys]) = &lane.gradients else { return Err(missing()) };
            Ok(Some(lane.backward_input(&self.rows, [queries, keys, &values], &sums)?))
        };
        let inputs = self.lanes.iter().zip(values).map(input);
        Ok(inputs.collect::<tensor::Result<Vec<_>>>()?)
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        for lane in &self.lanes {
            for part in [1, 0] {
                lane.backward_weight(&self.rows, part, sink)?;
            }
        }
        Ok(())
    }
}

fn missing() -> TensorError {
    TensorError::Count { operator: OPERATOR, actual: 0, expected: 1 }
}
