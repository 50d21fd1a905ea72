//! Partial sums over tensor lanes, and tables and scores whose rows or classes are divided.

use device::{Category, Request};
use tensor::ops::cross_entropy::{IGNORED, Mean};
use tensor::ops::linear_cross_entropy::divided::{
    ClassRun, gradient, gradients_of, merge, statistics, statistics_of,
};
use tensor::ops::linear_cross_entropy::{Operands, Settings};
use tensor::ops::{Activation, embedding, linear, rounded_sum};
use tensor::{DType, Tensor};

const TEST: Request = Request::new(Category::Activation, "test");

use crate::reference;
use crate::support::{Case, bits, devices, read, tensor};

#[test]
fn partial_results_are_f32_sums_of_the_operands_products() {
    for case in devices() {
        for [rows, inputs, outputs] in [[1, 1, 1], [3, 40, 17], [70, 64, 96]] {
            let (x, x_wide) = case.operand("x", [rows, inputs]);
            let (weight, weight_wide) = case.operand("weight", [outputs, inputs]);
            let (dy, dy_wide) = case.operand("dy", [rows, outputs]);
            let output = linear::partial(&x, &weight).unwrap();
            let dx = linear::partial_backward_input(&dy, &weight).unwrap();
            assert_eq!((output.dtype(), dx.dtype()), (DType::F32, DType::F32));
            let expected = reference::linear(&x_wide, &weight_wide, None, inputs);
            // The sums have the precision of f32 for all types of operands.
            case.single().close("output", &read(&output), &expected);
            let column = |row: usize, input: usize| -> f64 {
                (0..outputs).map(|o| dy_wide[row * outputs + o] * weight_wide[o * inputs + input]).sum()
            };
            let expected: Vec<f64> =
                (0..rows * inputs).map(|index| column(index / inputs, index % inputs)).collect();
            case.single().close("dx", &read(&dx), &expected);
            // A further matmul is added without rounding.
            linear::add_backward_input(&dy, &weight, &dx).unwrap();
            case.single().close("dx", &read(&dx), &expected.iter().map(|dx| 2.0 * dx).collect::<Vec<_>>());
            linear::add(&x, &weight, None, &output).unwrap();
            let expected = reference::linear(&x_wide, &weight_wide, None, inputs);
            case.single().close("sum", &read(&output), &expected.iter().map(|y| 2.0 * y).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_sum_is_rounded_once_after_its_bias() {
    for case in devices() {
        for [rows, width] in [[1, 1], [5, 33], [40, 128]] {
            let sum = case.single().operand("sum", [rows, width]);
            let (bias, bias_wide) = case.operand("bias", [width]);
            for bias in [None, Some(&bias)] {
                let (whole, wide) = &sum;
                let parts = [whole.clone()];
                let rounded = rounded_sum::forward(&parts, bias, case.dtype, TEST).unwrap();
                let bias_value = |index: usize| bias.map_or(0.0, |_| bias_wide[index % width] as f32);
                let expected: Vec<f64> = wide
                    .iter()
                    .enumerate()
                    .map(|(index, sum)| f64::from(case.round(*sum as f32 + bias_value(index))))
                    .collect();
                assert_eq!(read(&rounded), expected, "{}", case.name());
                assert_eq!(rounded.shares_storage(whole), case.dtype == DType::F32 && bias.is_none());
            }
        }
    }
}

#[test]
fn neighbours_are_added_in_pairs_level_by_level() {
    for case in devices() {
        for (count, [rows, width]) in
            [(2, [3, 7]), (3, [40, 1]), (4, [70, 64]), (7, [1, 5000]), (19, [9, 12])]
        {
            let parts: Vec<_> = (0..count)
                .map(|part| case.single().operand(&format!("part {part}"), [rows, width]))
                .collect();
            let (arrays, wide): (Vec<Tensor>, Vec<Vec<f64>>) = parts.into_iter().unzip();
            let mut level: Vec<Vec<f32>> =
                wide.iter().map(|part| part.iter().map(|x| *x as f32).collect()).collect();
            while level.len() > 1 {
                let sum = |pair: &[Vec<f32>]| match pair {
                    [left, right] => left.iter().zip(right).map(|(left, right)| left + right).collect(),
                    single => single[0].clone(),
                };
                level = level.chunks(2).map(sum).collect();
            }
            let (bias, bias_wide) = case.operand("bias", [width]);
            let sum = rounded_sum::forward(&arrays, Some(&bias), case.dtype, TEST).unwrap();
            let tree_sum =
                |(index, sum): (usize, &f32)| f64::from(case.round(*sum + bias_wide[index % width] as f32));
            let expected: Vec<f64> = level[0].iter().enumerate().map(tree_sum).collect();
            assert_eq!(read(&sum), expected, "{} {count} of {rows} x {width}", case.name());
        }
    }
}

/// The rows of a table's shards add up to the bits of the whole table's, and so do the gradients.
#[test]
fn parts_of_a_table_have_the_rows_and_gradients_of_the_whole() {
    for case in devices() {
        for ([batch, time, rows, width], parts) in
            [([2, 3, 4, 9], 2), ([3, 111, 10, 65], 3), ([4, 70, 50, 16], 4)]
        {
            let vocabulary = rows * parts;
            let ids = case.indices("tokens", batch * time, vocabulary);
            let tokens = tensor(&case.device, &ids, [batch, time]);
            let (table, _) = case.operand("table", [vocabulary, width]);
            let (positions, _) = case.operand("positions", [time, width]);
            let (dy, _) = case.operand("dy", [batch, time, width]);
            let whole = embedding::forward(&tokens, &table, Some(&positions)).unwrap();
            let of_whole = case.target("dtable", [vocabulary, width], true);
            embedding::backward_weight(&dy, &tokens, &of_whole, None).unwrap();
            let in_parts = case.target("dtable", [vocabulary, width], true);
            let mut sum: Option<Tensor> = None;
            for part in 0..parts {
                let shard = |array: &Tensor| array.view(part * rows * width, [rows, width]).unwrap();
                let local = embedding::local_tokens(&tokens, part * rows, rows).unwrap();
                let positions = (part == 0).then_some(&positions);
                let own = embedding::forward(&local, &shard(&table), positions).unwrap();
                sum = Some(match sum {
                    Some(sum) => tensor::ops::add::forward(&sum, &own).unwrap(),
                    None => own,
                });
                let target =
                    tensor::ops::GradientTarget { tensor: shard(&in_parts.tensor), accumulate: true };
                embedding::backward_weight(&dy, &local, &target, None).unwrap();
            }
            assert_eq!(bits(&sum.unwrap()), bits(&whole), "{}", case.name());
            assert_eq!(bits(&in_parts.tensor), bits(&of_whole.tensor), "{}", case.name());
        }
    }
}

/// Returns targets as a tensor and on the host; every fifth is ignored.
fn targets(case: &Case, rows: usize, vocabulary: usize) -> (Tensor, Vec<u32>) {
    let mut ids = case.indices("targets", rows, vocabulary);
    ids.iter_mut().skip(2).step_by(5).for_each(|target| *target = IGNORED);
    (tensor(&case.device, &ids, [rows]), ids)
}

#[test]
fn runs_of_classes_have_the_loss_and_gradient_of_all() {
    for case in devices() {
        for ([rows, classes, runs], cap) in
            [([3, 5, 2], None), ([70, 64, 4], Some(3.0)), ([11, 1031, 3], None), ([2, 12_608, 4], Some(30.0))]
        {
            let vocabulary = classes * runs;
            let (target, ids) = targets(&case, rows, vocabulary);
            let parts: Vec<_> =
                (0..runs).map(|run| case.operand(&format!("scores {run}"), [rows, classes])).collect();
            let all = Tensor::empty(&case.device, [runs, 3, rows], DType::F32, TEST).unwrap();
            let run = |number: usize| ClassRun { first: number * classes, classes, vocabulary };
            for (number, (scores, _)) in parts.iter().enumerate() {
                let own = all.view(number * 3 * rows, [3, rows]).unwrap();
                statistics(scores, &target, run(number), cap, &own).unwrap();
            }
            let settings = Settings { scale: 0.5, soft_cap: cap, pieces: 1 };
            let merged = merge(&all, &target, classes, Mean::of_rows(settings.scale)).unwrap();
            let capped = |x: f64| cap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh());
            let score = |row: usize, class: usize| {
                let (_, wide) = &parts[class / classes];
                capped(wide[row * classes + class % classes])
            };
            let row = |row: usize| (0..vocabulary).map(move |class| score(row, class)).collect::<Vec<_>>();
            let counted: Vec<usize> = (0..rows).filter(|row| ids[*row] != IGNORED).collect();
            let own: Vec<f64> = counted.iter().flat_map(|index| row(*index)).collect();
            let own_ids: Vec<u32> = counted.iter().map(|row| ids[*row]).collect();
            let loss = 0.5 * reference::cross_entropy(&own, &own_ids);
            case.close("loss", &read(&merged.loss), &[loss]);
            let factor = tensor(&case.device, &[1.5f32], [1]);
            let weight = 1.5 * 0.5 / counted.len() as f64;
            for (number, (scores, _)) in parts.iter().enumerate() {
                let of_run = run(number);
                gradient(scores, &target, &merged.statistics, of_run, &settings, &factor).unwrap();
                let expected: Vec<f64> = (0..rows)
                    .flat_map(|index| {
                        let all = row(index);
                        let largest = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        let total: f64 = all.iter().map(|x| (x - largest).exp()).sum();
                        let is_counted = ids[index] != IGNORED;
                        let ids = &ids;
                        (number * classes..(number + 1) * classes).map(move |class| {
                            let hot = f64::from(u8::from(class == ids[index] as usize));
                            let slope = cap.map_or(1.0, |cap| 1.0 - (all[class] / f64::from(cap)).powi(2));
                            let own = weight * ((all[class] - largest).exp() / total - hot) * slope;
                            if is_counted { own } else { 0.0 }
                        })
                    })
                    .collect();
                case.close(&format!("gradient of run {number}"), &read(scores), &expected);
            }
        }
    }
}

/// Scores of a run of classes that are computed slice by slice give the loss and gradients of whole scores.
#[test]
fn pieces_of_runs_of_classes_have_the_loss_and_gradients_of_whole_runs() {
    for case in devices() {
        let [rows, inputs, classes, runs] = [7, 40, 136, 2];
        let pieces = 2;
        let settings = Settings { scale: 0.5, soft_cap: Some(3.0), pieces };
        let (x, _) = case.operand("x", [rows, inputs]);
        let (targets, _) = targets(&case, rows, classes * runs);
        let weights: Vec<_> =
            (0..runs).map(|run| case.operand(&format!("weight {run}"), [classes, inputs]).0).collect();
        let vocabulary = classes * runs;
        let run = |number: usize| ClassRun { first: number * classes, classes, vocabulary };
        let slice_operands =
            |weight: &Tensor| Operands { x: x.clone(), weight: weight.clone(), targets: targets.clone() };
        let scores: Vec<_> = weights
            .iter()
            .map(|weight| linear::forward(&x, weight, None, Activation::None).unwrap().output)
            .collect();
        let [whole, in_pieces] = [false, true].map(|is_in_pieces| {
            let all = Tensor::empty(&case.device, [runs, 3, rows], DType::F32, TEST).unwrap();
            for (number, (scores, weight)) in scores.iter().zip(&weights).enumerate() {
                let own = all.view(number * 3 * rows, [3, rows]).unwrap();
                match is_in_pieces {
                    true => statistics_of(&slice_operands(weight), run(number), &settings, &own).unwrap(),
                    false => statistics(scores, &targets, run(number), Some(3.0), &own).unwrap(),
                }
            }
            merge(&all, &targets, classes, Mean::of_rows(settings.scale)).unwrap()
        });
        case.close("loss", &read(&in_pieces.loss), &read(&whole.loss));
        let factor = tensor(&case.device, &[1.5f32], [1]);
        for (number, (scores, weight)) in scores.iter().zip(&weights).enumerate() {
            gradient(scores, &targets, &whole.statistics, run(number), &settings, &factor).unwrap();
            let expected = case.target("dweight", [classes, inputs], true);
            linear::backward_weight(scores, &x, &expected, None).unwrap();
            let target = case.target("dweight", [classes, inputs], true);
            let call = (run(number), &settings);
            let dx = gradients_of(
                &slice_operands(weight),
                &in_pieces.statistics,
                call,
                &factor,
                true,
                Some(&target),
            )
            .unwrap();
            let of_input = linear::partial_backward_input(scores, weight).unwrap();
            case.close("dx", &read(&dx.unwrap()), &read(&of_input));
            case.close("dweight", &read(&target.tensor), &read(&expected.tensor));
        }
    }
}
