//! The table holds for every operator: the dtypes of results, and the arithmetic on half operands.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use autograd::precision::{Arithmetic, Autocast, Operands, OperatorPrecision, PrecisionTable};
use autograd::{Call, Direction, Gradients, Mode, Observer, ObserverError, Observers};
use autograd::{Pass, Pieces, SequencePiece, Tape, Var};
use collective::{Axis, AxisGroups, Communicator};
use device::{DType, bf16};
use tensor::Tensor;

use super::{CALLS, Operand, Run};
use crate::common::cpu;

/// Records the operators of forward calls.
#[derive(Default)]
struct Names(RefCell<Vec<&'static str>>);

impl Observer for Names {
    fn before(&self, call: &Call) -> std::result::Result<(), ObserverError> {
        if call.direction == Direction::Forward {
            self.0.borrow_mut().push(call.operator);
        }
        Ok(())
    }

    fn after(&self, _: &Call, _: &[Option<&Tensor>]) -> std::result::Result<(), ObserverError> {
        Ok(())
    }
}

fn autocast(table: PrecisionTable) -> Option<Arc<Autocast>> {
    Some(Arc::new(Autocast { half: DType::Bf16, table }))
}

/// Runs a call and its backward, without autocast or with a table. Returns the results and the last
/// operator's name.
fn results(operand: &Operand, run: Run, table: Option<PrecisionTable>) -> (Vec<Tensor>, &'static str) {
    let names = Rc::new(Names::default());
    let observers = Observers::new([Rc::<Names>::clone(&names) as Rc<dyn Observer>]);
    // Collectives are recorded where there are several ranks.
    let groups = AxisGroups::default().with(Axis::Data, Communicator::counted(0, 2).group);
    let piece = |number| SequencePiece { number, share: 0.5, documents: None };
    let pieces = Some(Pieces {
        all: 2,
        here: vec![piece(0), piece(1)],
        masks_documents: false,
        sums_over_ranks: true,
    });
    let pass = Pass { autocast: table.and_then(autocast), groups, observers, pieces, ..Pass::default() };
    let tape = Tape::new(&operand.device, Mode::Train).with_pass(pass);
    operand.count.replace(0);
    let outputs: Vec<Var> = run(&tape, operand).unwrap().into_iter().flat_map(Var::into_blocks).collect();
    let tensors: Vec<Tensor> = outputs.iter().map(|output| output.tensor().clone()).collect();
    let ones = |output: &Var| {
        let shape = output.tensor().shape();
        let ones = operand.tensor(shape.dims(), output.tensor().dtype(), 2);
        (output.source(), ones)
    };
    let seeds: Vec<_> = outputs.iter().filter(|output| output.wants_gradient()).map(ones).collect();
    let mut sink = Gradients::default();
    tape.backward_from(seeds, &mut sink).unwrap();
    let finite = |gradient: &Tensor| gradient.to_vec::<f32>().unwrap().iter().all(|value| value.is_finite());
    assert!(sink.iter().all(|(_, gradient)| finite(gradient)));
    let mut called = names.0.borrow().clone();
    called.retain(|name| *name != "cast");
    (tensors, called.last().copied().unwrap_or("cast"))
}

fn types(results: &[Tensor]) -> Vec<DType> {
    results.iter().map(Tensor::dtype).collect()
}

/// Rounds the values to bf16.
fn rounded(tensor: &Tensor) -> Vec<bf16> {
    match tensor.dtype() {
        DType::F32 => tensor.to_vec::<f32>().unwrap().into_iter().map(bf16::from_f32).collect(),
        _ => tensor.to_vec().unwrap(),
    }
}

#[test]
fn every_operator_takes_the_types_of_its_row() {
    const HALF: DType = DType::Bf16;
    const F32: DType = DType::F32;
    let device = cpu();
    let table = PrecisionTable::default();
    assert!(table.rows().map(|row| row.operator).eq(CALLS.iter().map(|(name, _)| *name)));
    for (row, (name, run)) in table.rows().zip(CALLS) {
        let run_in = |variables| results(&Operand::new(&device, variables, F32), *run, Some(table.clone()));
        let ((half, called), (single, _)) = (run_in([HALF; 2]), run_in([F32; 2]));
        assert_eq!(called, *name);
        // Losses are f32, and so are results that are weights or casts to f32.
        let is_f32 = row.in_f32.contains("loss")
            || ["cast", "divided_embedding", "embedding", "parameter", "router", "routing"].contains(name);
        let [of_half, of_single] = match row.operands {
            _ if is_f32 => [F32; 2],
            Operands::Half => [HALF; 2],
            Operands::F32 => [F32; 2],
            Operands::Widest | Operands::Unchanged => [HALF, F32],
        };
        assert!(types(&half).iter().all(|dtype| *dtype == of_half), "{name}: {:?}", types(&half));
        assert!(types(&single).iter().all(|dtype| *dtype == of_single), "{name}: {:?}", types(&single));
        if row.operands == Operands::Widest {
            let (mixed, _) = run_in([HALF, F32]);
            assert_eq!(types(&mixed), [F32], "{name}");
        }
        if matches!(row.operands, Operands::Half | Operands::F32) {
            // The same values in another type are cast to the same operands.
            assert!(half.iter().map(rounded).eq(single.iter().map(rounded)), "{name}");
        }
    }
}

#[test]
fn arithmetic_in_f32_is_rounded_once() {
    let device = cpu();
    for (row, (name, run)) in PrecisionTable::default().rows().zip(CALLS) {
        let results_in = |dtype| results(&Operand::new(&device, [dtype; 2], dtype), *run, None).0;
        let half = results_in(DType::Bf16);
        let single = results_in(DType::F32);
        if row.arithmetic != Arithmetic::Half {
            assert!(half.iter().map(rounded).eq(single.iter().map(rounded)), "{name}");
        }
    }
}

#[test]
fn rows_can_be_replaced() {
    let device = cpu();
    let default = PrecisionTable::default();
    let operand = Operand::new(&device, [DType::F32; 2], DType::F32);
    for name in ["layer_norm", "residual_rms_norm", "batch_norm", "qk_norm", "softmax", "embedding"] {
        let row = OperatorPrecision { operands: Operands::Half, ..*default.find(name).unwrap() };
        let run = CALLS.iter().find(|(own, _)| *own == name).unwrap().1;
        let types_with = |table| types(&results(&operand, run, Some(table)).0);
        assert!(types_with(default.clone()).iter().all(|dtype| *dtype == DType::F32), "{name}");
        assert!(types_with(default.clone().with(row)).iter().all(|dtype| *dtype == DType::Bf16), "{name}");
    }
}
