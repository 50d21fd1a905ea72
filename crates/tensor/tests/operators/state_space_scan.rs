use tensor::ops::rearrange::slice;
use tensor::ops::state_space_scan::{
    Operands, StateHeads, advance, backward_input, backward_weight, forward, retreat,
};
use tensor::{DType, Tensor};

use crate::rotary::documents;
use crate::support::{Case, cpu, devices, dot, read, tensor};
use crate::trial::Trial;

const fn heads(heads: usize, groups: usize, width: usize, states: usize) -> StateHeads {
    StateHeads { heads, groups, width, states }
}

/// Batch, time and heads: within a chunk, just beyond it, and several chunks. The last five are of tensor
/// cores: narrow heads, heads of more than a strip, states of other tiles, and groups of more than a part.
const SIZES: [(usize, usize, StateHeads); 9] = [
    (2, 1, heads(2, 1, 3, 2)),
    (1, 65, heads(4, 2, 5, 6)),
    (2, 150, heads(2, 2, 8, 4)),
    (1, 64, heads(3, 1, 16, 16)),
    (2, 71, heads(2, 1, 16, 24)),
    (1, 66, heads(1, 1, 136, 8)),
    (1, 65, heads(2, 2, 8, 72)),
    (1, 66, heads(2, 2, 8, 136)),
    (1, 65, heads(18, 1, 8, 8)),
];

/// Limits of time steps in f64: none that matter, and narrow ones.
const LIMITS: [[f64; 2]; 2] = [[0.0, f64::INFINITY], [0.125, 1.5]];

/// Sizes and options of a scan, and the start of each token's document.
struct Reference {
    sizes: (usize, usize, StateHeads),
    limits: [f64; 2],
    first: Vec<i32>,
}

/// Operands of a scan: packed x, B and C; time steps; `a_log`; `d`; the bias of the time steps.
type Values<'a> = [&'a [f64]; 5];

impl Reference {
    /// Computes the outputs token by token.
    fn forward(&self, values: Values<'_>) -> Vec<f64> {
        let (batch, _, heads) = self.sizes;
        self.forward_from(values, &mut vec![0.0; batch * heads.columns() * heads.states])
    }

    /// Computes the outputs from the states before the first token, which those after the last replace.
    fn forward_from(&self, [xbc, dt, a_log, d, bias]: Values<'_>, all: &mut [f64]) -> Vec<f64> {
        let (batch, time, sizes) = self.sizes;
        let StateHeads { heads, groups, width, states } = sizes;
        let [low, high] = self.limits;
        let mut y = vec![0.0; batch * time * sizes.columns()];
        for (sequence, head) in (0..batch).flat_map(|b| (0..heads).map(move |head| (b, head))) {
            let state = &mut all[(sequence * heads + head) * states * width..][..states * width];
            for t in 0..time {
                let row = sequence * time + t;
                if self.first[row] == t as i32 {
                    state.fill(0.0);
                }
                let values = &xbc[row * sizes.packed_columns()..][..sizes.packed_columns()];
                let x = &values[head * width..][..width];
                let group = sizes.columns() + head / (heads / groups) * states;
                let b = &values[group..][..states];
                let c = &values[group + groups * states..][..states];
                let raw = dt[row * heads + head] + bias[head];
                let step = (raw.max(0.0) + (-raw.abs()).exp().ln_1p()).clamp(low, high);
                let decay = (-step * a_log[head].exp()).exp();
                let y = &mut y[row * sizes.columns() + head * width..][..width];
                for (k, x) in x.iter().enumerate() {
                    y[k] = d[head] * x;
                    for n in 0..states {
                        let value = &mut state[n * width + k];
                        *value = decay * *value + step * b[n] * x;
                        y[k] += c[n] * *value;
                    }
                }
            }
        }
        y
    }
}

/// Operands of a case, and their values in f64.
fn operands(case: &Case, (batch, time, heads): (usize, usize, StateHeads)) -> ([Tensor; 5], [Vec<f64>; 5]) {
    let (xbc, xbc_wide) = case.operand("xbc", [batch, time, heads.packed_columns()]);
    let (dt, dt_wide) = case.operand("dt", [batch, time, heads.heads]);
    let [a_log, d, bias] = ["a_log", "d", "bias"].map(|name| case.operand(name, [heads.heads]));
    ([xbc, dt, a_log.0, d.0, bias.0], [xbc_wide, dt_wide, a_log.1, d.1, bias.1])
}

fn with_sizes<'a>(
    [xbc, dt, a_log, d, bias]: &'a [Tensor; 5],
    heads: StateHeads,
    limits: [f64; 2],
    documents: Option<&'a Tensor>,
) -> Operands<'a> {
    Operands { xbc, dt, a_log, d, bias, heads, limits: limits.map(|limit| limit as f32), documents }
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for (number, sizes) in SIZES.into_iter().enumerate() {
        for packed in [false, true] {
            compare(trial, sizes, packed, LIMITS[usize::from(number == 2)]);
        }
        compare_states(trial, sizes);
    }
}

fn compare(trial: &mut Trial<'_>, sizes: (usize, usize, StateHeads), packed: bool, limits: [f64; 2]) {
    let (batch, time, heads) = sizes;
    trial.label(format!("{sizes:?} packed {packed} {limits:?}"));
    let (tensors, wide) = operands(trial, sizes);
    let (dy, dy_wide) = trial.operand("dy", [batch, time, heads.columns()]);
    let (firsts, list) = documents(trial, batch, time);
    let list: Vec<i32> = list.into_iter().map(u32::cast_signed).collect();
    let first = if packed { list } else { vec![0; batch * time] };
    let reference = Reference { sizes, limits, first };
    let operands = with_sizes(&tensors, heads, limits, packed.then_some(&firsts));

    let values = wide.each_ref().map(Vec::as_slice);
    let y = forward(operands, None).unwrap();
    trial.output("output", &y, || reference.forward(values));
    let value = |part: usize, own: &[f64]| {
        let mut values = values;
        values[part] = own;
        dot(&dy_wide, &reference.forward(values))
    };
    let terms = dot(&dy_wide, &dy_wide).sqrt();
    let gradients = backward_input(&dy, operands, None).unwrap();
    trial.gradient("dxbc", &gradients.xbc, (values[0], terms), |own| value(0, own));
    // Where limits hold a step, differences see the bend.
    match limits == LIMITS[0] {
        true => trial.gradient("ddt", &gradients.dt, (values[1], terms), |own| value(1, own)),
        false => trial.result("ddt", &gradients.dt),
    }
    trial.result("sums", &gradients.sums);
    // What all tokens change cancels in the sums for `a_log` and the bias.
    let all = terms * time as f64;
    let sizes_of_terms = [all, terms, all];
    for accumulate in [false, true] {
        let names = ["da_log", "dd", "dbias"];
        let targets = names.map(|name| trial.target(name, [heads.heads], accumulate));
        backward_weight(&gradients.sums, trial.dtype, targets.each_ref().map(Some)).unwrap();
        for (part, (name, target)) in names.into_iter().zip(&targets).enumerate() {
            if part < 2 || limits == LIMITS[0] {
                let size = sizes_of_terms[part];
                trial.weight_gradient(name, target, (values[2 + part], size), |own| value(2 + part, own));
            }
        }
        let pair = trial.targets("dd", [heads.heads], accumulate);
        pair.iter().for_each(|target| {
            backward_weight(&gradients.sums, trial.dtype, [None, Some(target), None]).unwrap();
        });
        trial.rounded("half gradients of weights", &pair);
    }
}

/// Compares scans that begin with states, and whose last states have a gradient. One sequence has a document
/// that begins with it, and another one begins inside both.
fn compare_states(trial: &mut Trial<'_>, sizes: (usize, usize, StateHeads)) {
    let (batch, time, heads) = sizes;
    trial.label(format!("{sizes:?} with states"));
    let (tensors, wide) = operands(trial, sizes);
    let (dy, dy_wide) = trial.operand("dy", [batch, time, heads.columns()]);
    let shape = [batch, heads.heads, heads.states, heads.width];
    let single = trial.single();
    let starts = |row: usize| match (row % time, row / time) {
        (at, _) if at >= 70 => 70,
        (_, 1) => 0,
        _ => -2,
    };
    let first: Vec<i32> = (0..batch * time).map(starts).collect();
    let list: Vec<u32> = first.iter().map(|at| at.cast_unsigned()).collect();
    let documents = tensor(&trial.device, &list, [batch, time]);
    let operands = with_sizes(&tensors, heads, LIMITS[0], Some(&documents));
    let reference = Reference { sizes, limits: LIMITS[0], first };
    let values = wide.each_ref().map(Vec::as_slice);

    let (state, state_wide) = single.operand("state", shape);
    let mut last_wide = state_wide.clone();
    let y_wide = reference.forward_from(values, &mut last_wide);
    let last = single.operand("state", shape).0;
    trial.output("output", &forward(operands, Some(&last)).unwrap(), || y_wide.clone());
    trial.output("last state", &last, || last_wide.clone());
    let advanced = single.operand("state", shape).0;
    advance(operands, &advanced).unwrap();
    trial.same("advanced state", &advanced, &last);

    let dlast = || single.operand("dlast", shape).0;
    let dlast_wide = single.operand("dlast", shape).1;
    let value = |part: usize, own: &[f64]| {
        let mut values = values;
        let mut state = if part == 5 { own.to_vec() } else { state_wide.clone() };
        if let Some(value) = values.get_mut(part) {
            *value = own;
        }
        let y = reference.forward_from(values, &mut state);
        dot(&dy_wide, &y) + dot(&dlast_wide, &state)
    };
    let terms = dot(&dy_wide, &dy_wide).sqrt();
    let dfirst = dlast();
    retreat(&dy, operands, &dfirst).unwrap();
    trial.gradient("dstate", &dfirst, (&state_wide, terms), |own| value(5, own));
    let again = dlast();
    let gradients = backward_input(&dy, operands, Some([&state, &again])).unwrap();
    trial.gradient("dxbc", &gradients.xbc, (values[0], terms), |own| value(0, own));
    trial.gradient("ddt", &gradients.dt, (values[1], terms), |own| value(1, own));
    for (part, name) in [(0, "da_log"), (2, "dbias")] {
        let target = trial.target(name, [heads.heads], false);
        let mut targets = [None; 3];
        targets[part] = Some(&target);
        backward_weight(&gradients.sums, trial.dtype, targets).unwrap();
        let size = terms * sizes.1 as f64;
        trial.weight_gradient(name, &target, (values[2 + part], size), |own| value(2 + part, own));
    }
}

/// Tests that a sequence computed in parts, with a state from part to part, has the outputs of the whole.
#[test]
fn parts_from_a_state_give_the_outputs_of_a_whole_sequence() {
    let heads = heads(4, 2, 5, 6);
    let time = 90;
    let before = 70;
    for case in devices() {
        let (tensors, _) = operands(&case, (1, time, heads));
        let whole = forward(with_sizes(&tensors, heads, LIMITS[0], None), None).unwrap();
        let state = heads.allocate(&case.device, 1).unwrap();
        let part = |first: usize, count: usize, state: &Tensor| {
            let [xbc, dt, a_log, d, bias] = &tensors;
            let own = [slice(xbc, 1, first, count).unwrap(), slice(dt, 1, first, count).unwrap()];
            let positions = vec![(first as u32).wrapping_neg(); count];
            let documents = tensor(&case.device, &positions, [1, count]);
            let [xbc, dt] = own;
            let tensors = [xbc, dt, a_log.clone(), d.clone(), bias.clone()];
            let operands = with_sizes(&tensors, heads, LIMITS[0], Some(&documents));
            read(&forward(operands, Some(state)).unwrap())
        };
        let mut parts = part(0, before, &state);
        (before..time).for_each(|position| parts.extend(part(position, 1, &state)));
        case.close("parts", &parts, &read(&whole));
    }
}

#[test]
fn operands_that_do_not_agree_are_refused() {
    let case = Case::new(cpu(), DType::F32);
    let own = heads(4, 2, 5, 6);
    let (tensors, _) = operands(&case, (2, 3, own));
    let call = |heads| forward(with_sizes(&tensors, heads, LIMITS[0], None), None).map(drop);
    let state = own.allocate(&case.device, 3).unwrap();
    let table = [
        (call(heads(4, 2, 5, 7)), "xbc has shape [2, 3, 44]"),
        (call(heads(2, 2, 10, 6)), "dt has shape"),
        (forward(with_sizes(&tensors, own, LIMITS[0], None), Some(&state)).map(drop), "at least 3"),
        (
            backward_input(&tensors[0], with_sizes(&tensors, own, LIMITS[0], None), None).map(drop),
            "dy has shape [2, 3, 44]",
        ),
    ];
    for (refused, expected) in table {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
