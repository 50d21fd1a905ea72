use tensor::ops::attention::Heads;
use tensor::ops::qk_norm::{self, Weights};
use tensor::ops::rotary::Angles;

use crate::reference;
use crate::rotary::{documents, table};
use crate::support::{dot, read};
use crate::trial::Trial;

const EPSILON: f32 = 1e-6;
const THETA: f64 = 10_000.0;

const fn heads(query: usize, key_value: usize, width: usize) -> Heads {
    Heads::grouped(query, key_value, width)
}

/// Batch, time, heads: widths with and without whole vectors, and more rows than a run.
const SIZES: [(usize, usize, Heads); 6] = [
    (1, 3, heads(2, 1, 4)),
    (2, 17, heads(3, 3, 6)),
    (2, 33, heads(4, 2, 32)),
    (1, 20, heads(4, 1, 64)),
    (3, 50, heads(2, 1, 96)),
    (2, 9, heads(4, 2, 128)),
];

/// Returns packed rows with queries and keys normalised and rotated, and values unchanged.
fn expected(x: &[f64], time: usize, heads: Heads, weights: [&[f64]; 2], first: Option<&[u32]>) -> Vec<f64> {
    let rows = x.chunks(heads.packed_columns()).enumerate();
    rows.flat_map(|(row, x)| {
        let position = row % time - first.map_or(0, |first| first[row] as usize);
        let of_head = move |(head, x): (usize, &[f64])| {
            let weight = weights[usize::from(head >= heads.query)];
            match head < heads.query + heads.key_value {
                true => {
                    let [normal, _] = reference::rms_norm(x, weight, f64::from(EPSILON));
                    reference::turned(&normal, position, THETA)
                }
                false => x.to_vec(),
            }
        };
        x.chunks(heads.width).enumerate().flat_map(of_head)
    })
    .collect()
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for (batch, time, heads) in SIZES {
        [false, true].into_iter().for_each(|packed| of_size(trial, batch, time, heads, packed));
    }
}

fn of_size(trial: &mut Trial<'_>, batch: usize, time: usize, heads: Heads, packed: bool) {
    trial.label(format!("{batch}x{time} {heads:?} {packed}"));
    let (qkv, x) = trial.operand("qkv", [batch, time, heads.packed_columns()]);
    let (query, query_wide) = trial.operand("query", [heads.width]);
    let (key, key_wide) = trial.operand("key", [heads.width]);
    let (dy, dy_wide) = trial.operand("dy", [batch, time, heads.packed_columns()]);
    let weights = Weights { query: &query, key: &key };
    let table = table(trial, heads.width, time);
    let (firsts, list) = documents(trial, batch, time);
    let angles =
        Angles { table: &table, head_width: None, documents: packed.then_some(&firsts), interleaved: false };
    let first = packed.then_some(&list[..]);

    let result = qk_norm::forward(&qkv, heads, weights, angles, EPSILON).unwrap();
    trial.output("output", &result.output, || expected(&x, time, heads, [&query_wide, &key_wide], first));
    trial.result("rstd", &result.rstd);
    let apart =
        qk_norm::backward_input(dy.clone(), &qkv, &result.rstd, heads, weights, angles, false).unwrap();
    if trial.compares() {
        assert_eq!(read(&dy), dy_wide, "a gradient with other views is not overwritten");
    }
    let gradients = qk_norm::backward_input(dy, &qkv, &result.rstd, heads, weights, angles, false).unwrap();
    trial.same("gradient in place", &gradients.input, &apart.input);
    let value =
        |x: &[f64], query: &[f64], key: &[f64]| dot(&dy_wide, &expected(x, time, heads, [query, key], first));
    let terms = dot(&dy_wide, &dy_wide).sqrt();
    trial.gradient("dqkv", &gradients.input, (&x, terms), |x| value(x, &query_wide, &key_wide));
    trial.result("sums", &gradients.sums);
    for accumulate in [false, true] {
        let dquery = trial.target("dquery", [heads.width], accumulate);
        let dkey = trial.target("dkey", [heads.width], accumulate);
        qk_norm::backward_weight(&gradients.sums, trial.dtype, &dquery, &dkey).unwrap();
        trial.weight_gradient("dquery", &dquery, (&query_wide, 0.0), |query| value(&x, query, &key_wide));
        trial.weight_gradient("dkey", &dkey, (&key_wide, 0.0), |key| value(&x, &query_wide, key));
        // In half precision they are rounded f32 gradients.
        let pairs = ["dquery", "dkey"].map(|name| trial.targets(name, [heads.width], accumulate));
        for half in [0, 1] {
            let [query, key] = [&pairs[0][half], &pairs[1][half]];
            qk_norm::backward_weight(&gradients.sums, trial.dtype, query, key).unwrap();
        }
        pairs.iter().for_each(|pair| trial.rounded("half gradients of weights", pair));
    }
}
