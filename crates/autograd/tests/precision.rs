//! The autocast table holds for every operator: the dtypes of results, and the arithmetic on half operands.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use autograd::precision::{Arithmetic, Autocast, Operands, OperatorPrecision, PrecisionTable};
use autograd::{Call, Direction, Gradients, Mode, Observer, ObserverError, Observers};
use autograd::{Dimension, Pass, Pieces, Placement, Result, SequencePiece, Tape, UseId, Var, Weight, ops};
use collective::{Axis, AxisGroups, Communicator};
use device::{Category, DType, Device, bf16};
use ops::{
    Adapter, BatchNorm, CausalConvolution, ConvolutionOptions, DeltaGates, Dropout, ExpertWeights,
    FeedForwardWeights, GatedFeedForwardWeights, LinearCrossEntropy, Noise, Pair, PartialSums, Pointwise,
    Positions, QkNormWeights, Rotary, RouterState, RouterWeights, StateHeads, StateSpaceScan, Statistics,
    TokenTable, Windows,
};
use tensor::Tensor;
use tensor::ops::Activation;
use tensor::ops::attention::{Heads, Qkv};
use tensor::ops::gated_delta_rule::{DeltaHeads, DeltaSettings};
use tensor::ops::gated_rms_norm::{self, GateFunction};
use tensor::ops::latent_qkv::LatentHeads;
use tensor::ops::routing::{Routing, ScoreFunction};

use crate::common::cpu;

/// Operands of one call, with chosen dtypes.
struct Operand {
    device: Device,
    /// Dtypes of the first variable and of all others.
    variables: [DType; 2],
    weights: DType,
    count: RefCell<u32>,
}

impl Operand {
    fn new(device: &Device, variables: [DType; 2], weights: DType) -> Self {
        Operand { device: device.clone(), variables, weights, count: RefCell::new(0) }
    }

    /// Creates a tensor of values that are exact in bf16, a different pattern for each number.
    fn tensor(&self, shape: &[usize], dtype: DType, number: u32) -> Tensor {
        let shape = tensor::Shape::from_dims(shape).unwrap();
        let wave = |i: usize| bf16::from_f32(((i as f32 * 1.7 + number as f32) * 0.7).sin());
        let values: Vec<bf16> = (0..shape.elements()).map(wave).collect();
        let wide: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
        match dtype {
            DType::F32 => Tensor::from_host(&self.device, &wide, shape, Category::Input).unwrap(),
            _ => Tensor::from_host(&self.device, &values, shape, Category::Input).unwrap(),
        }
    }

    fn next(&self) -> u32 {
        self.count.replace_with(|count| *count + 1)
    }

    fn x(&self, tape: &Tape, shape: &[usize]) -> Var {
        let number = self.next();
        tape.leaf(self.tensor(shape, self.variables[usize::from(number > 0)], number))
    }

    fn weight(&self, shape: &[usize]) -> Weight {
        let number = self.next();
        Weight::new(self.tensor(shape, self.weights, number), UseId(number))
    }

    fn indices(&self, shape: [usize; 2], values: &[u32]) -> Tensor {
        Tensor::from_host(&self.device, values, shape, Category::Input).unwrap()
    }

    fn targets(&self) -> Tensor {
        Tensor::from_host(&self.device, &[1u32, 0, 4, 2], [4], Category::Input).unwrap()
    }

    /// Creates logits of four rows for three experts, in f32 as a router returns them.
    fn logits(&self, tape: &Tape) -> Var {
        tape.leaf(self.tensor(&[4, 3], DType::F32, 4))
    }

    fn rotary(&self) -> Rotary {
        Rotary {
            table: self.tensor(&[4, 8], DType::F32, 9),
            head_width: None,
            documents: None,
            interleaved: false,
            measures: false,
        }
    }
}

/// Chooses two of three experts.
const ROUTING: Routing = Routing {
    experts: 3,
    per_token: 2,
    scores: ScoreFunction::Softmax,
    normalised: true,
    least_sum: 0.0,
    scale: 1.0,
    groups: 1,
    groups_per_token: 1,
    alignment: 1,
};

type Run = fn(&Tape, &Operand) -> Result<Vec<Var>>;

fn one(result: Result<Var>) -> Result<Vec<Var>> {
    result.map(|var| vec![var])
}

/// A call of every operator of the table.
const CALLS: &[(&str, Run)] = &[
    ("activation", |t, o| one(ops::activation(t, o.x(t, &[4, 8]), Activation::Gelu))),
    ("adapted_linear", |t, o| {
        let x = o.x(t, &[4, 8]);
        let weight = o.weight(&[6, 8]);
        let a = o.weight(&[2, 8]);
        let b = o.weight(&[6, 2]);
        let parts = std::iter::once(0..6).collect();
        let sums = PartialSums::default();
        let adapter = Adapter { a, b, parts, scale: 2.0, dropout: None, sums };
        one(ops::adapted_linear(t, x, &weight, None, &adapter))
    }),
    ("add", |t, o| one(ops::add(t, o.x(t, &[4, 8]), o.x(t, &[4, 8])))),
    ("all_gather", |t, o| one(ops::all_gather(t, o.x(t, &[4, 8]), Axis::Data))),
    ("all_reduce", |t, o| one(ops::all_reduce(t, o.x(t, &[4, 8]), Axis::Data))),
    ("attention", |t, o| {
        let qkv = Qkv::Packed(o.x(t, &[1, 4, 96]));
        one(ops::attention(t, qkv, Heads::multi(1, 32), None, ops::AttentionMeasures::default()))
    }),
    ("average_pool", |t, o| one(ops::average_pool(t, o.x(t, &[1, 4, 4, 2]), WINDOWS))),
    ("batch_norm", |t, o| {
        let x = o.x(t, &[4, 2, 2, 3]);
        let weight = o.weight(&[3]);
        let bias = o.weight(&[3]);
        let norm = BatchNorm { weight, bias, epsilon: 1e-5, relu: true };
        one(ops::batch_norm(t, x, None, &norm, Statistics::Batch { record: None }))
    }),
    ("cast", |t, o| one(ops::cast(t, o.x(t, &[4, 8]), DType::F32))),
    ("causal_convolution", |t, o| {
        let weight = o.weight(&[8, 1, 3]);
        let layer = CausalConvolution { weight, bias: Some(o.weight(&[8])), silu: true };
        one(ops::causal_convolution(t, o.x(t, &[2, 4, 8]), &layer))
    }),
    ("concatenate", |t, o| one(ops::concatenate(t, &[o.x(t, &[4, 8]), o.x(t, &[4, 8])], 1))),
    ("convolution", |t, o| {
        let x = o.x(t, &[1, 4, 4, 2]);
        one(ops::convolution(t, x, &o.weight(&[3, 2, 2, 2]), ConvolutionOptions::default()))
    }),
    ("copy_to_shards", |t, o| one(o.x(t, &[4, 8]).copied(t, 1))),
    ("cross_entropy", |t, o| one(ops::cross_entropy(t, o.x(t, &[4, 8]), &o.targets(), 1.0))),
    ("delta_gates", |t, o| {
        let layer = DeltaGates { log_speed: o.weight(&[2]), bias: o.weight(&[2]), factor: 1.0 };
        ops::delta_gates(t, [o.x(t, &[1, 4, 2]), o.x(t, &[1, 4, 2])], &layer).map(Vec::from)
    }),
    ("dropout", |t, o| one(ops::dropout(t, o.x(t, &[4, 8]), &Dropout::new(1, "here", 0.5)))),
    ("embedding", |t, o| {
        let table = o.weight(&[5, 8]);
        let positions = o.weight(&[2, 8]);
        let tokens = o.indices([2, 2], &[1, 0, 4, 2]);
        let table = TokenTable::Whole(&table);
        one(ops::embedding(t, &tokens, table, Some(Positions::Learned(&positions)), None))
    }),
    ("exchange", |t, o| one(ops::exchange(t, o.x(t, &[4, 8]), Axis::Data, 1))),
    ("experts", |t, o| {
        let x = o.x(t, &[4, 8]);
        let gate_up = o.weight(&[36, 8]);
        let down = o.weight(&[24, 6]);
        let choices = ops::routing(t, o.logits(t), &ROUTING, RouterState::default())?;
        let gate_up_bias = Some(o.weight(&[36]));
        let down_bias = None;
        let adapters = [None, None];
        let is_first = true;
        let is_partial = false;
        let fp8 = [None, None];
        let layers =
            ExpertWeights { gate_up, down, gate_up_bias, down_bias, adapters, fp8, is_first, is_partial };
        one(ops::experts(t, x, choices, &layers, Activation::Silu.into()))
    }),
    ("feed_forward", |t, o| {
        let x = o.x(t, &[4, 8]);
        let expand = o.weight(&[16, 8]);
        let project = o.weight(&[8, 16]);
        let expand_bias = Some(o.weight(&[16]));
        let project_bias = Some(o.weight(&[8]));
        let weights = FeedForwardWeights { expand, expand_bias, project, project_bias };
        one(ops::feed_forward(t, x, &weights, Activation::Gelu))
    }),
    ("folded_convolution", |t, o| {
        let x = o.x(t, &[1, 4, 4, 2]);
        let weight = o.weight(&[3, 2, 2, 2]);
        let norm = BatchNorm { weight: o.weight(&[3]), bias: o.weight(&[3]), epsilon: 1e-5, relu: true };
        let averages = [
            o.tensor(&[3], DType::F32, 1),
            Tensor::from_host(&o.device, &[1.0_f32; 3], [3], Category::Input)?,
        ];
        let convolution = (&weight, ConvolutionOptions::default());
        one(ops::folded_convolution(t, x, None, convolution, (&norm, averages.each_ref())))
    }),
    ("gated_delta_rule", |t, o| {
        let heads = DeltaHeads { key: 1, value: 2, width: 4, value_width: 2 };
        let settings = DeltaSettings { heads, by_channel: false, epsilon: 1e-6 };
        let qkv = o.x(t, &[1, 4, 12]);
        let single = |number| t.leaf(o.tensor(&[1, 4, 2], DType::F32, number));
        one(ops::gated_delta_rule(t, [qkv, single(1), single(2)], settings))
    }),
    ("gated_feed_forward", |t, o| {
        let x = o.x(t, &[4, 8]);
        let gate_up = o.weight(&[16, 8]);
        let down = o.weight(&[8, 8]);
        let biases = [None, None];
        let adapters = [None, None];
        let weights = GatedFeedForwardWeights { gate_up, down, biases, adapters, is_partial: false };
        one(ops::gated_feed_forward(t, x, &weights, Activation::Silu))
    }),
    ("gated_rms_norm", |t, o| {
        let settings = gated_rms_norm::Settings { epsilon: 1e-5, function: GateFunction::Silu };
        let weight = o.weight(&[4]);
        one(ops::gated_rms_norm(t, o.x(t, &[1, 4, 8]), o.x(t, &[1, 4, 8]), &weight, settings))
    }),
    ("gather", |t, o| one(ops::gather(t, o.x(t, &[5, 8]), &o.indices([2, 2], &[1, 0, 4, 2])))),
    ("join_pieces", |t, o| {
        let pieces = o.x(t, &[4, 8]).redistribute(t, Axis::Context, PIECES)?;
        one(pieces.redistribute(t, Axis::Context, Placement::Replicate))
    }),
    ("latent_qkv", |t, o| {
        let operands = [o.x(t, &[1, 4, 16]), o.x(t, &[1, 4, 20]), o.x(t, &[1, 4, 4])];
        let heads =
            LatentHeads { query: 2, key_value: 2, rotated: 4, plain: 4, value_width: 6, interleaved: true };
        one(ops::latent_qkv(t, operands, heads))
    }),
    ("layer_norm", |t, o| {
        let x = o.x(t, &[4, 8]);
        let weight = o.weight(&[8]);
        let bias = o.weight(&[8]);
        one(ops::layer_norm(t, x, &weight, Some(&bias), 1e-5))
    }),
    ("linear", |t, o| {
        let x = o.x(t, &[4, 8]);
        let weight = o.weight(&[6, 8]);
        let bias = o.weight(&[6]);
        one(ops::linear(t, x, &weight, Some(&bias), Activation::None))
    }),
    ("linear_cross_entropy", |t, o| {
        let x = o.x(t, &[4, 8]);
        let weight = o.weight(&[6, 8]);
        let settings = LinearCrossEntropy { scale: 1.0, soft_cap: None, pieces: 2 };
        one(ops::linear_cross_entropy(t, x, (&[weight], 1), &o.targets(), settings))
    }),
    ("matmul", |t, o| one(ops::matmul(t, o.x(t, &[4, 8]), o.x(t, &[8, 4])))),
    ("max_pool", |t, o| one(ops::max_pool(t, o.x(t, &[1, 4, 4, 2]), WINDOWS))),
    ("maximum", |t, o| one(ops::maximum(t, o.x(t, &[4, 8]), 1))),
    ("mse", |t, o| one(ops::mse(t, o.x(t, &[4, 8]), &o.tensor(&[4, 8], t_type(t, o), 7), 1.0))),
    ("noise", |t, o| one(ops::noise(t, o.x(t, &[4, 8]), &Noise::new(1, "here"), 0.5))),
    ("pair", |t, o| one(ops::pair(t, o.x(t, &[4, 8]), o.x(t, &[4, 8]), Pair::Multiply))),
    ("parameter", |t, o| one(ops::parameter(t, &o.weight(&[4, 8])))),
    ("pointwise", |t, o| one(ops::pointwise(t, o.x(t, &[4, 8]), Pointwise::Square))),
    ("qk_norm", |t, o| {
        let qkv = o.x(t, &[1, 4, 24]);
        let heads = Heads::multi(1, 8);
        let weights = QkNormWeights { query: o.weight(&[8]), key: o.weight(&[8]) };
        one(ops::qk_norm(t, qkv, heads, &weights, &o.rotary(), 1e-5))
    }),
    ("reduce_scatter", |t, o| one(ops::reduce_scatter(t, o.x(t, &[4, 8]), Axis::Data))),
    ("reshape", |t, o| one(ops::reshape(t, o.x(t, &[4, 8]), [8, 4]))),
    ("residual_layer_norm", |t, o| {
        let x = o.x(t, &[4, 8]);
        let weight = o.weight(&[8]);
        let bias = o.weight(&[8]);
        let (sum, normalised) = ops::residual_layer_norm(t, x, None, &weight, Some(&bias), 1e-5)?;
        Ok(vec![sum, normalised])
    }),
    ("residual_rms_norm", |t, o| {
        let x = o.x(t, &[4, 8]);
        let weight = o.weight(&[8]);
        let (sum, normalised) = ops::residual_rms_norm(t, x, None, &weight, 1e-5)?;
        Ok(vec![sum, normalised])
    }),
    ("rms_norm", |t, o| {
        let x = o.x(t, &[4, 8]);
        let weight = o.weight(&[8]);
        one(ops::rms_norm(t, x, &weight, 1e-5))
    }),
    ("rotary", |t, o| one(ops::rotary(t, o.x(t, &[1, 4, 8]), 1, &o.rotary()))),
    ("router", |t, o| {
        let x = o.x(t, &[4, 8]);
        let weight = o.weight(&[3, 8]);
        let router = RouterWeights { weight, bias: None };
        one(ops::router(t, x, &router))
    }),
    ("routing", |t, o| {
        let (weights, _) = ops::routing(t, o.logits(t), &ROUTING, RouterState::default())?;
        Ok(vec![weights])
    }),
    ("row_linear", |t, o| one(ops::row_linear(t, o.x(t, &[4, 8]), &o.weight(&[6, 8]).over_rows(2)))),
    ("row_qk_norm", |t, o| {
        let qkv = o.x(t, &[1, 4, 48]);
        let heads = Heads::multi(2, 8);
        let weights = QkNormWeights { query: o.weight(&[16]), key: o.weight(&[16]) };
        one(ops::row_qk_norm(t, qkv, heads, &[weights], [16, 16], 1e-5))
    }),
    ("sigmoid_gate", |t, o| one(ops::sigmoid_gate(t, o.x(t, &[4, 8]), o.x(t, &[4, 8])))),
    ("slice", |t, o| one(ops::slice(t, o.x(t, &[4, 8]), 1, 2, 3))),
    ("softmax", |t, o| one(ops::softmax(t, o.x(t, &[4, 8])))),
    ("split", |t, o| ops::split(t, o.x(t, &[4, 8]), 1, &[3, 5])),
    ("split_pieces", |t, o| one(o.x(t, &[4, 8]).redistribute(t, Axis::Context, PIECES))),
    ("state_space_scan", |t, o| {
        let heads = StateHeads { heads: 2, groups: 1, width: 4, states: 3 };
        let layer = StateSpaceScan {
            a_log: o.weight(&[2]),
            d: o.weight(&[2]),
            bias: o.weight(&[2]),
            heads,
            limits: [0.0, f32::INFINITY],
        };
        one(ops::state_space_scan(t, [o.x(t, &[2, 4, 14]), o.x(t, &[2, 4, 2])], &layer))
    }),
    ("sum", |t, o| one(ops::sum(t, o.x(t, &[4, 8]), 1))),
    ("sum_pieces", |t, o| {
        let pieces = o.x(t, &[2, 1]).redistribute(t, Axis::Context, PIECES)?;
        let pieces = pieces.with_placement(Axis::Context, Placement::Partial);
        one(pieces.redistribute(t, Axis::Context, Placement::Replicate))
    }),
    ("sum_shards", |t, o| {
        let sums = PartialSums { output: true, input_gradient: false };
        let x = o.x(t, &[4, 8]);
        let weight = o.weight(&[6, 8]);
        let dtype = x.tensor().dtype();
        let part = ops::partial_linear(t, x, &weight, None, Activation::None, sums)?;
        one(part.with_placement(Axis::Tensor, Placement::Partial).summed(t, (None, dtype), false))
    }),
    ("transpose", |t, o| one(ops::transpose(t, o.x(t, &[4, 8]), 0, 1))),
];

/// Placement of sequence pieces.
const PIECES: Placement = Placement::Shard(Dimension::Time);

const WINDOWS: Windows = Windows { size: [2, 2], stride: [2, 2], padding: [0, 0], counts_padding: false };

/// Returns the dtype of a regression target, which the data has in the prediction's dtype.
fn t_type(tape: &Tape, operand: &Operand) -> DType {
    if tape.pass().autocast.is_some() { DType::F32 } else { operand.variables[0] }
}

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
