use tensor::ops::attention::Heads;
use tensor::ops::qk_norm::{self, Weights};
use tensor::ops::rotary::Angles;

use crate::reference;
use crate::rotary::{documents, table};
use crate::support::{Case, bits, devices, dot, half_precision, read};

const EPSILON: f32 = 1e-6;
const THETA: f64 = 10_000.0;

const fn heads(query: usize, key_value: usize, width: usize) -> Heads {
    Heads::grouped(query, key_value, width)
}

/// Batch, time, heads: widths with and without whole vectors, and more rows than a run has.
const SIZES: [(usize, usize, Heads); 6] = [
    (1, 3, heads(2, 1, 4)),
    (2, 17, heads(3, 3, 6)),
    (2, 33, heads(4, 2, 32)),
    (1, 20, heads(4, 1, 64)),
    (3, 50, heads(2, 1, 96)),
    (2, 9, heads(4, 2, 128)),
];

/// Queries and keys normalised and rotated, values unchanged.
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

#[test]
fn results_and_gradients_match_the_reference() {
    for case in devices() {
        for (batch, time, heads) in SIZES {
            [false, true].into_iter().for_each(|packed| check(&case, batch, time, heads, packed));
        }
    }
}

fn check(case: &Case, batch: usize, time: usize, heads: Heads, packed: bool) {
    let what = |name: &str| format!("{name} {batch}x{time} {heads:?} {packed}");
    let (qkv, x) = case.operand("qkv", [batch, time, heads.packed_columns()]);
    let (query, query_wide) = case.operand("query", [heads.width]);
    let (key, key_wide) = case.operand("key", [heads.width]);
    let (dy, dy_wide) = case.operand("dy", [batch, time, heads.packed_columns()]);
    let weights = Weights { query: &query, key: &key };
    let (table, (firsts, list)) = (table(case, heads.width, time), documents(case, batch, time));
    let angles = Angles { table: &table, head_width: None, documents: packed.then_some(&firsts) };
    let first = packed.then_some(&list[..]);

    let result = qk_norm::forward(&qkv, heads, weights, angles, EPSILON).unwrap();
    let truth = expected(&x, time, heads, [&query_wide, &key_wide], first);
    case.close(&what("output"), &read(&result.output), &truth);

    let apart =
        qk_norm::backward_input(dy.clone(), &qkv, &result.rstd, heads, weights, angles, false).unwrap();
    assert_eq!(read(&dy), dy_wide, "a gradient with other views is not overwritten");
    let gradients = qk_norm::backward_input(dy, &qkv, &result.rstd, heads, weights, angles, false).unwrap();
    assert_eq!(bits(&gradients.input), bits(&apart.input), "{}", what("in place"));
    let value =
        |x: &[f64], query: &[f64], key: &[f64]| dot(&dy_wide, &expected(x, time, heads, [query, key], first));
    let terms = dy_wide.iter().map(|dy| dy * dy).sum::<f64>().sqrt();
    case.is_gradient_of_terms(&what("dqkv"), terms, &read(&gradients.input), &x, |x| {
        value(x, &query_wide, &key_wide)
    });
    for accumulate in [false, true] {
        let dquery = case.target("dquery", [heads.width], accumulate);
        let dkey = case.target("dkey", [heads.width], accumulate);
        qk_norm::backward_weight(&gradients.sums, case.dtype, &dquery, &dkey).unwrap();
        let dquery = case.added(&dquery, "dquery");
        case.is_gradient(&what("dquery"), &dquery, &query_wide, |query| value(&x, query, &key_wide));
        let dkey = case.added(&dkey, "dkey");
        case.is_gradient(&what("dkey"), &dkey, &key_wide, |key| value(&x, &query_wide, key));
    }
}

#[test]
fn gradients_in_half_precision_are_rounded_f32_gradients() {
    for case in half_precision() {
        let (batch, time, heads) = SIZES[3];
        let (qkv, _) = case.operand("qkv", [batch, time, heads.packed_columns()]);
        let (weight, _) = case.operand("weight", [heads.width]);
        let (dy, _) = case.operand("dy", [batch, time, heads.packed_columns()]);
        let weights = Weights { query: &weight, key: &weight };
        let table = table(&case, heads.width, time);
        let angles = Angles { table: &table, head_width: None, documents: None };
        let result = qk_norm::forward(&qkv, heads, weights, angles, EPSILON).unwrap();
        let sums =
            qk_norm::backward_input(dy, &qkv, &result.rstd, heads, weights, angles, false).unwrap().sums;
        for accumulate in [false, true] {
            let query = case.targets("dquery", [heads.width], accumulate);
            let key = case.targets("dkey", [heads.width], accumulate);
            for (query, key) in query.iter().zip(&key) {
                qk_norm::backward_weight(&sums, case.dtype, query, key).unwrap();
            }
            case.is_rounded("dquery", &query);
            case.is_rounded("dkey", &key);
        }
    }
}
