//! Adds an operator to a program: forward, backward, and a test of the gradients against finite differences.
//!
//! `cargo run -p plimsoll-autograd --example operator`
//!
//! The operator is `√(a² + b²)`, element by element. It needs no change of this crate: a rule is a struct of
//! the program, and is recorded on the tape as built-in rules are.

use std::io::Write;

use autograd::{Gradients, Mode, Result, Rule, Saved, Tape, ValueGradients, Var, map};
use device::{Category, Device, DeviceOptions};
use tensor::Tensor;
use tensor::ops::pointwise::{self, Pair, Pointwise};

/// Name on the tape, in profiles and in errors.
const NAME: &str = "hypotenuse";

/// Backward of [`hypotenuse`]. Its fields are the tensors that live until backward.
struct Hypotenuse {
    a: Tensor,
    b: Tensor,
    output: Tensor,
}

/// Returns `√(a² + b²)` of tensors of one shape. `map` calls the closure for each block of a value that ranks
/// divide, so the operator needs no code for them.
fn hypotenuse(tape: &Tape, a: Var, b: Var) -> Result<Var> {
    map(tape, [a, b], |_, [a, b]| {
        tape.begin(NAME)?;
        let squares = [a.tensor(), b.tensor()].map(|x| pointwise::forward(x, Pointwise::Square));
        let [a_squared, b_squared] = squares;
        let sum = pointwise::pair(&a_squared?, &b_squared?, Pair::Add)?;
        let output = pointwise::forward(&sum, Pointwise::Sqrt)?;
        tape.record_one(&[a.source(), b.source()], output.clone(), || Hypotenuse {
            a: a.tensor().clone(),
            b: b.tensor().clone(),
            output,
        })
    })
}

impl Rule for Hypotenuse {
    fn operator(&self) -> &'static str {
        NAME
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("a", &self.a), Saved::new("b", &self.b), Saved::new("output", &self.output)]
    }

    /// The gradients of a and b are gradient · a / output and gradient · b / output.
    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let Some(Some(gradient)) = outputs.into_iter().next() else { return Ok(vec![None; wanted.len()]) };
        let scaled = pointwise::pair(&gradient, &self.output, Pair::Divide)?;
        let inputs = [&self.a, &self.b].into_iter().zip(wanted);
        let gradient_of = |(input, wanted): (&Tensor, &bool)| match wanted {
            true => Ok(Some(pointwise::pair(&scaled, input, Pair::Multiply)?)),
            false => Ok(None),
        };
        inputs.map(gradient_of).collect()
    }
}

/// Returns `Σ weight · hypotenuse(a, b)` and its gradients by a and b.
fn weighted_sum(device: &Device, [a, b, weight]: [&[f32]; 3]) -> Result<(f32, [Vec<f32>; 2])> {
    let tensor = |values: &[f32]| Tensor::from_host(device, values, [values.len()], Category::Input);
    let tape = Tape::new(device, Mode::Train);
    let a = tape.leaf(tensor(a)?);
    let b = tape.leaf(tensor(b)?);
    let [of_a, of_b] = [a.source(), b.source()];
    let output = hypotenuse(&tape, a, b)?;
    let values = output.tensor().to_vec::<f32>()?;
    let sum = values.iter().zip(weight).map(|(value, weight)| value * weight).sum();
    // The gradient of the sum by each output is its weight.
    let mut leaves =
        tape.backward_from(vec![(output.source(), tensor(weight)?)], &mut Gradients::default())?;
    let mut gradient = |leaf| match leaves.take(leaf) {
        Some(gradient) => gradient.to_vec::<f32>(),
        None => Ok(Vec::new()),
    };
    Ok((sum, [gradient(of_a)?, gradient(of_b)?]))
}

fn main() -> Result<()> {
    let device = Device::cpu(0, &DeviceOptions::default())?;
    let (sum, [of_a, of_b]) = weighted_sum(&device, [&[3.0, 5.0], &[4.0, 12.0], &[1.0, 2.0]])?;
    let text = format!("5 + 2 · 13 = {sum}; gradients {of_a:?} of a, {of_b:?} of b\n");
    // A closed terminal is no error of the example.
    std::io::stdout().write_all(text.as_bytes()).unwrap_or_default();
    Ok(())
}

#[test]
fn gradients_are_those_of_finite_differences() {
    const STEP: f32 = 1e-2;
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let a = [0.5, -1.5, 2.0];
    let b = [1.0, 0.25, -3.0];
    let weight = [1.0, -0.5, 2.0];
    let (_, gradients) = weighted_sum(&device, [&a, &b, &weight]).unwrap();
    for (operand, gradient) in gradients.iter().enumerate() {
        for index in 0..a.len() {
            let moved = |by: f32| {
                let mut operands = [a, b];
                operands[operand][index] += by;
                weighted_sum(&device, [&operands[0], &operands[1], &weight]).unwrap().0
            };
            let difference = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            let error = (difference - gradient[index]).abs();
            assert!(error < 1e-3, "operand {operand}, element {index}: {} or {difference}", gradient[index]);
        }
    }
}
