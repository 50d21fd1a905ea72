//! Packed documents: the results of each alone, and gradients of their sum.

use super::*;
use tensor::ops::cross_entropy::IGNORED;

#[test]
fn packed_documents_give_the_same_results_as_each_alone() {
    for (family, options) in MODELS {
        let device = device();
        let model = model(&device, family, options, Recompute::NONE);
        let logits = |values: &[u32], first: &[u32]| {
            let time = values.len();
            let documents = Some(tokens(&device, first, time));
            let tape = Tape::new(&device, Mode::Evaluate).with_pass(Pass { documents, ..Pass::default() });
            let inputs = Input::Batch(tokens(&device, values, time));
            let prediction = model.forward(&tape, inputs).unwrap();
            model.scores(&tape, prediction).unwrap().tensor().to_vec::<f32>().unwrap()
        };
        let values = numbers(TIME);
        let together = logits(&values, &[0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5]);
        let alone = [logits(&values[..5], &[0; 5]), logits(&values[5..], &[0; 7])].concat();
        let worst = together.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{family} {options:?}: {worst}");
        let unpacked = logits(&values, &[0; TIME]);
        assert!(together.iter().zip(&unpacked).any(|(a, b)| (a - b).abs() > 1e-4), "{family} {options:?}");
    }
}

/// Lengths of the documents in two packed sequences. The second sequence has padding, whose targets are
/// ignored.
const PACKED: [&[usize]; BATCH] = [&[5, 7], &[4, 6]];

/// Loss and gradients in float64.
type Learned = (f64, Vec<Vec<f64>>);

/// Returns loss and gradients of `values` and their targets; the document of each token begins at `first`.
fn learned(model: &dyn Model, time: usize, [values, targets, first]: [&[u32]; 3], scale: f32) -> Learned {
    let device = model.parameters().device();
    let documents = Some(tokens(device, first, time));
    let tape = Tape::new(device, Mode::Train).with_pass(Pass { documents, ..Pass::default() });
    let prediction = model.forward(&tape, Input::Batch(tokens(device, values, time))).unwrap();
    let loss = model.loss(&tape, prediction, &tokens(device, targets, time), scale).unwrap();
    let value = f64::from(loss.tensor().to_vec::<f32>().unwrap()[0]);
    let mut gradients = Gradients::default();
    tape.backward(loss, &mut gradients).unwrap();
    let values = |tensor: &Tensor| tensor.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect();
    (value, gradients.iter().map(|(_, gradient)| values(gradient)).collect())
}

#[test]
fn a_packed_batch_learns_what_its_documents_teach_alone() {
    let values = numbers(BATCH * TIME + 1);
    let mut targets = values[1..].to_vec();
    let mut first = Vec::new();
    let mut documents = Vec::new();
    for (row, lengths) in PACKED.into_iter().enumerate() {
        for length in lengths {
            let start = first.len();
            documents.push(start..start + length);
            first.resize(start + length, (start - row * TIME) as u32);
        }
        // A token of padding is a document of its own.
        let padding = first.len()..(row + 1) * TIME;
        first.extend(padding.clone().map(|position| (position - row * TIME) as u32));
        targets[padding].fill(IGNORED);
    }
    let values = &values[..BATCH * TIME];
    let counted: usize = documents.iter().map(ExactSizeIterator::len).sum();
    for (family, options) in MODELS {
        let device = device();
        let what = format!("{family} {options:?}");
        let model = model(&device, family, options, Recompute::NONE);
        let together = learned(&*model, TIME, [values, &targets, &first], 1.0);
        let alone = documents.iter().map(|document| {
            let scale = document.len() as f32 / counted as f32;
            let own = [&values[document.clone()], &targets[document.clone()], &vec![0; document.len()]];
            learned(&*model, document.len(), own, scale)
        });
        let add = |sum: Vec<Vec<f64>>, each: Vec<Vec<f64>>| {
            let pairs = sum.into_iter().zip(each);
            pairs.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect()).collect()
        };
        let summed = alone.reduce(|sum, each| (sum.0 + each.0, add(sum.1, each.1))).unwrap();
        assert!((together.0 - summed.0).abs() < 1e-5 * summed.0, "{what}: {} {}", together.0, summed.0);
        let largest = summed.1.concat().into_iter().map(f64::abs).fold(0.0, f64::max);
        let worst = |learned: &Learned| {
            let differences =
                learned.1.concat().into_iter().zip(summed.1.concat()).map(|(a, b)| (a - b).abs());
            differences.fold(0.0, f64::max) / largest
        };
        assert!(worst(&together) < 1e-5, "{what}: {}", worst(&together));
        let open = learned(&*model, TIME, [values, &targets, &[0; BATCH * TIME]], 1.0);
        assert!(worst(&open) > 1e-3, "{what}: borders make a difference of {} only", worst(&open));
    }
}
