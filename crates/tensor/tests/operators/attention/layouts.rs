//! All layouts of queries, keys and values give equal results, and so do shared and copied heads.

use super::*;

/// Tests that separate operands give the same bits as packed ones.
pub(super) fn separate(
    trial: &mut Trial<'_>,
    size: &Size,
    values: &[f32],
    dy: &Tensor,
    (output, logsumexp, gradients): &Results,
) {
    let [queries, keys, values] = split(values, size);
    let [query, key_value, _] = size.columns();
    let array = |values: &[f32], columns| trial.tensor(values, [size.batch, size.time, columns]);
    let apart = Qkv::Separate([array(&queries, query), array(&keys, key_value), array(&values, key_value)]);
    let (apart_output, apart_logsumexp, apart_gradients) = both(dy, &apart, size.heads);
    trial.same("output of separate operands", &apart_output, output);
    trial.same("logsumexp of separate operands", &apart_logsumexp, logsumexp);
    for (part, gradient) in ["dq", "dk", "dv"].into_iter().zip(apart_gradients.arrays()) {
        trial.result(part, gradient);
    }
    if trial.compares() {
        let expected = split(&bits(packed(gradients)), size);
        let actual: Vec<_> = apart_gradients.arrays().iter().map(bits).collect();
        assert!(actual == expected, "{}, {}", trial.what("gradients of separate operands"), trial.name());
    }
}

/// Tests that query heads sharing a key and value head give the same results as with a copy for each.
pub(super) fn shared(
    case: &Case,
    size: &Size,
    values: &[f32],
    dy: &Tensor,
    (output, logsumexp, gradients): &Results,
) {
    let Heads { query, width, .. } = size.heads;
    let all = Size { heads: Heads::multi(query, width), ..*size };
    let mut copied = vec![0.0f32; all.qkv_shape().iter().product()];
    for row in 0..size.batch * size.time {
        for (part, head) in (0..3).flat_map(|part| (0..query).map(move |head| (part, head))) {
            let from = &values[at(size.heads, row, part, head)..][..width];
            copied[at(all.heads, row, part, head)..][..width].copy_from_slice(from);
        }
    }
    let copied = Qkv::Packed(case.tensor(&copied, all.qkv_shape()));
    let (all_output, all_logsumexp, all_gradients) = both(dy, &copied, all.heads);
    let what = format!("{size:?}, {}", case.name());
    assert_eq!(bits(output), bits(&all_output), "{what}");
    assert_eq!(bits(logsumexp), bits(&all_logsumexp), "{what}");
    let [dq, ..] = split(&bits(packed(gradients)), size);
    let [all_dq, ..] = split(&bits(packed(&all_gradients)), &all);
    assert!(dq == all_dq, "{what}");
}

/// Rounded sums depend on the order. On a GPU, registers hold the sums of a whole group, so there are no
/// per-head sums to compare with.
#[test]
fn gradients_of_a_group_add_its_query_heads_in_order() {
    let case = devices().into_iter().find(|case| case.device.backend() == Backend::Cpu).unwrap();
    let size = Size::new([2, 60, 8, 6, 2]);
    let Heads { query, width, .. } = size.heads;
    let (qkv, _) = case.operand("qkv", size.qkv_shape());
    let dy = case.normal("dy", size.output_shape().iter().product());
    let all = |dy: &[f32]| {
        let dy = case.tensor(dy, size.output_shape());
        let (_, _, gradients) = both(&dy, &Qkv::Packed(qkv.clone()), size.heads);
        split(&packed(&gradients).to_vec::<f32>().unwrap(), &size)
    };
    // The gradient of one head alone.
    let by_head = |head: usize| {
        let own = |column: usize| column / width % query == head;
        let dy: Vec<f32> = dy.iter().enumerate().map(|(at, dy)| if own(at) { *dy } else { 0.0 }).collect();
        all(&dy)
    };
    let mut sums = by_head(0);
    for head in 1..query {
        let heads = by_head(head);
        for (sum, part) in sums.iter_mut().zip(heads) {
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
    }
    let actual = all(&dy);
    assert_eq!(actual[1], sums[1]);
    assert_eq!(actual[2], sums[2]);
}

#[test]
fn unaligned_operands_give_the_same_results() {
    let Some(device) = gpu() else { return };
    for size in [[1, 100, 64, 2, 2], [1, 100, 64, 4, 2]].map(Size::new) {
        let [_, time, columns] = size.qkv_shape();
        let values = normal("qkv", time * columns + 2);
        let whole = typed(&device, DType::Bf16, &values, [values.len()]);
        let shifted = whole.view(2, size.qkv_shape()).unwrap();
        let plain = typed(&device, DType::Bf16, &values[2..], size.qkv_shape());
        let dy = typed(&device, DType::Bf16, &normal("dy", time * size.columns()[0]), size.output_shape());
        let run = |qkv| {
            let (output, _, gradients) = both(&dy, &Qkv::Packed(qkv), size.heads);
            [&output, packed(&gradients)].map(read)
        };
        for (a, b) in run(shifted).into_iter().zip(run(plain)) {
            let length = dot(&b, &b).sqrt();
            let error = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            assert!(error <= 1e-2 * length, "{error} of {length}");
        }
    }
}
