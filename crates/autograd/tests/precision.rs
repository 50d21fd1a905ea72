//! A call of every operator of the autocast table, and tests of the table.

mod table;

use std::cell::RefCell;

use autograd::{Dimension, Placement, Result, Tape, UseId, Var, Weight, ops};
use collective::Axis;
use device::{Category, DType, Device, bf16};
use ops::{
    Adapter, BatchNorm, CausalConvolution, ConvolutionOptions, DeltaGates, Dropout, ExpertWeights,
    FeedForwardWeights, GatedFeedForwardWeights, LinearCrossEntropy, Noise, NormSpan, Pair, PartialSums,
    Pointwise, Positions, QkNormWeights, Rotary, RouterState, RouterWeights, StateHeads, StateSpaceScan,
    Statistics, TokenTable, Windows,
};
use tensor::Tensor;
use tensor::ops::Activation;
use tensor::ops::attention::{Heads, Qkv};
use tensor::ops::gate::Gate;
use tensor::ops::gated_delta_rule::{DeltaHeads, DeltaSettings};
use tensor::ops::gated_rms_norm::{self, GateFunction};
use tensor::ops::latent_qkv::LatentHeads;
use tensor::ops::routing::{Routing, ScoreFunction};

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
    ("divided_rms_norm", |t, o| {
        let span = NormSpan { groups: 1, columns: 8, shards: 1 };
        one(ops::divided_rms_norm(t, o.x(t, &[1, 4, 8]), &[&o.weight(&[8])], span, 1e-5))
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
        one(ops::experts(t, x, choices, &layers, Gate::from(Activation::Silu)))
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
    ("join_losses", |t, o| {
        let loss = || ops::mse(t, o.x(t, &[4, 8]), &o.tensor(&[4, 8], t_type(t, o), 7), 1.0);
        one(ops::join_losses(t, vec![loss()?, loss()?], &[1.0, 0.5]))
    }),
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
    ("share_groups", |t, o| {
        let heads = StateHeads { heads: 2, groups: 1, width: 4, states: 3 };
        one(ops::share_groups(t, o.x(t, &[2, 4, 14]), heads, 1))
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
