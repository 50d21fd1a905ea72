//! Language models with their options: dropout, packed documents, positions, tied and untied heads.

mod packed;

use std::path::Path;
use std::rc::Rc;

use autograd::{CachedPass, Gradients, Mode, Pass, SequenceState, Tape};
use device::{Category, DType, Device, DeviceOptions};
use keys::{Key, RawValues, Section, Table};
use nn::layers::Embedding;
use nn::models::{Gpt, GptSizes, Llama, LlamaSizes};
use nn::{Init, Input, Model, ModelSpec, Parameters, Recompute, Stage};
use tensor::Tensor;

const BATCH: usize = 2;
const TIME: usize = 12;
const VOCABULARY: usize = 11;
const SIZES: &str = "[model]\nlayers = 2\nheads = 2\nwidth = 16\ncontext = 12\nvocabulary = 11\n";

/// The tested models: family and options.
const MODELS: &[(&str, &[&str])] = &[
    ("gpt", &[]),
    ("gpt", &["model.positions=\"sinusoidal\"", "model.biases=false", "model.tied=false"]),
    ("gpt", &["model.activation=\"gelu-erf\"", "model.positions=\"sinusoidal\""]),
    ("gpt", &["model.activation=\"relu-squared\""]),
    ("llama", &["model.key_value_heads=1"]),
    ("llama", &["model.tied=true", "model.qk_norm=true", "model.qkv_bias=true"]),
    ("llama", &["model.activation=\"gelu\"", "model.rope_scaling=\"linear\"", "model.head_width=6"]),
    ("gpt", &["model.logit_soft_cap=0.5"]),
    ("gpt", &["model.loss_pieces=2", "model.logit_soft_cap=0.5"]),
    ("llama", &["model.tied=true", "model.loss_pieces=8"]),
    ("llama", &["model.window=3", "model.attention_sinks=true", "model.attention_soft_cap=2.0"]),
    ("llama", &["model.activation=\"quick-gelu\"", "model.gate_limit=7.0", "model.gate_offset=1.0"]),
    ("llama", &["model.norm_position=\"both\"", "model.norms_less_one=true", "model.qk_norm=true", GEMMA]),
    ("llama", &["model.norm_position=\"after\"", "model.qk_norm=true", "model.qk_norm_span=\"all\"", OLMO]),
    (
        "llama",
        &["model.qk_norm=true", "model.rope_width=2", "model.rope_layers=[1, 0]", "model.mlp_bias=true"],
    ),
    (
        "llama",
        &[
            "model.residual_scale=0.3",
            "model.logit_scale=0.5",
            "model.output_bias=true",
            "model.value_width=5",
        ],
    ),
    ("llama", &["model.rope_interleaved=true", "model.qkv_bias=true", "model.qk_norm=true", LAST]),
    ("llama", &["model.rope_interleaved=true", "model.rope_width=2", "model.rope_layers=[1, 0]"]),
    ("llama", LATENTS),
    (
        "llama",
        &["model.latent_width=6", "model.rope_width=2", "model.window=3", "model.attention_sinks=true"],
    ),
    (
        "llama",
        &["model.latent_width=6", "model.rope_width=2", "model.qkv_bias=true", "model.latent_epsilon=0.1"],
    ),
    ("llama", NANOCHAT),
    ("llama", COHERE),
    ("llama", &["model.query_growth=0.4", "model.rope_original_context=3", "model.qk_norm=true"]),
    ("llama", &["model.query_growth=0.4", "model.rope_original_context=3", "model.rope_layers=[1, 0]"]),
    ("llama", GEMMA_4),
    ("llama", SHARED_KEYS),
    ("llama", &["model.value_norm=true", "model.layer_factors=true", "model.key_value_heads=1"]),
    ("llama", CONVOLUTIONS),
    ("llama", STATE_SPACES),
    ("llama", LINEAR_ATTENTION),
    ("llama", OLMO_HYBRID),
    ("llama", KIMI_LINEAR),
    ("llama", SINGLE_BRANCHES),
];

const CONVOLUTIONS: &[&str] = &[
    "model.layer_types=['convolution', 'full_attention']",
    "model.convolution_width=4",
    "model.convolution_bias=true",
];

const LINEAR_ATTENTION: &[&str] = &[
    "model.layer_types=['linear_attention', 'full_attention']",
    "model.linear_key_heads=1",
    "model.linear_value_heads=2",
    "model.linear_key_width=6",
    "model.linear_value_width=5",
    "model.attention_gate=true",
    "model.qk_norm=true",
    "model.rope_width=2",
];

const STATE_SPACES: &[&str] = &[
    "model.layer_types=['state_space', 'full_attention']",
    "model.state_heads=4",
    "model.state_head_width=3",
    "model.state_width=5",
    "model.state_groups=2",
    "model.state_norm_groups=2",
    "model.state_norm_first=true",
];

const SINGLE_BRANCHES: &[&str] = &[
    "model.single_branches=true",
    "model.layer_types=['state_space', 'feed_forward']",
    "model.gated=false",
    "model.experts=3",
    "model.expert_latent_width=6",
    "model.shared_expert_width=5",
    "model.state_heads=2",
    "model.state_head_width=3",
    "model.state_width=5",
];

const NANOCHAT: &[&str] = &[
    "model.gated=false",
    "model.activation=\"relu-squared\"",
    "model.norm_weights=false",
    "model.embedding_norm=true",
    "model.qk_norm=true",
    "model.qk_norm_last=true",
    "model.rope_reversed=true",
];

/// Norms before linear attention and after attention, and rates up to 2.
const OLMO_HYBRID: &[&str] = &[
    "model.layer_types=['linear_attention', 'full_attention']",
    "model.linear_key_width=4",
    "model.linear_value_width=6",
    "model.linear_negative_eigenvalues=true",
    "model.linear_epsilon=0.1",
    "model.linear_norm_position=\"before\"",
    "model.norm_position=\"after\"",
    "model.qk_norm=true",
    "model.qk_norm_span=\"all\"",
];

/// Decays of channels, gates from two layers, and latents that do not rotate.
const KIMI_LINEAR: &[&str] = &[
    "model.layer_types=['linear_attention', 'full_attention']",
    "model.linear_key_width=4",
    "model.linear_value_width=6",
    "model.linear_channel_decays=true",
    "model.linear_gate_rank=3",
    "model.linear_gate=\"sigmoid\"",
    "model.latent_width=6",
    "model.rope_width=2",
    "model.rope_layers=[0]",
];

const COHERE: &[&str] = &[
    "model.parallel_branches=true",
    "model.norm_kind=\"layer\"",
    "model.window=3",
    "model.layer_types=[\"sliding_attention\", \"full_attention\"]",
    "model.rope_layers=[1, 0]",
];

const GEMMA_4: &[&str] = &[
    "model.window=3",
    "model.layer_types=[\"sliding_attention\", \"full_attention\"]",
    "model.full_head_width=12",
    "model.full_key_value_heads=1",
    "model.keys_as_values=true",
    "model.value_norm=true",
    "model.qk_norm=true",
    "model.rope_share=0.5",
    "model.layer_embedding_width=6",
    "model.layer_factors=true",
    "model.norm_position=\"both\"",
];

const LATENTS: &[&str] = &[
    "model.latent_width=6",
    "model.query_latent_width=5",
    "model.head_width=10",
    "model.rope_width=4",
    "model.value_width=7",
    "model.rope_interleaved=true",
    "model.attention_scale=0.4",
];

const LAST: &str = "model.qk_norm_last=true";
const GEMMA: &str = "model.embedding_scale=3.0";
const OLMO: &str = "model.attention_scale=0.7";

/// Options of layers that share keys and values, which are not recomputed.
const SHARED_KEYS: &[&str] = &[
    "model.shared_layers=1",
    "model.shared_layers_feed_forward=24",
    "model.qk_norm=true",
    "model.value_norm=true",
    "model.query_growth=0.4",
    "model.rope_original_context=3",
];

/// Returns the recomputation of all layers, as far as the options allow it.
fn recomputed(options: &[&str]) -> Recompute {
    if options == SHARED_KEYS { Recompute::NONE } else { Recompute::EACH }
}

fn raw(keys: Vec<&'static Key>, set: &[&str]) -> RawValues {
    let table = Table::new(keys.into_iter().cloned().collect());
    let set: Vec<String> = set.iter().map(ToString::to_string).collect();
    RawValues::parse(&table, SIZES, "model.toml", Path::new("/"), &set).unwrap()
}

fn model(device: &Device, family: &str, set: &[&str], recompute: Recompute) -> Box<dyn Model> {
    model_in(Parameters::new(device, 1, DType::F32), family, set, recompute)
}

fn model_in(parameters: Parameters, family: &str, set: &[&str], recompute: Recompute) -> Box<dyn Model> {
    let stage = Stage::whole(2);
    match family {
        "gpt" => {
            let sizes = GptSizes::read(&raw(GptSizes::keys(), set)).unwrap();
            Box::new(Gpt::new(parameters, sizes, &stage).unwrap().recomputing(recompute))
        }
        _ => {
            let sizes = LlamaSizes::read(&raw(LlamaSizes::keys(), set)).unwrap();
            Box::new(Llama::new(parameters, &sizes, &stage).unwrap().recomputing(recompute))
        }
    }
}

fn spec(family: &str, set: &[&str]) -> Box<dyn ModelSpec> {
    match family {
        "gpt" => Box::new(GptSizes::read(&raw(GptSizes::keys(), set)).unwrap()),
        _ => Box::new(LlamaSizes::read(&raw(LlamaSizes::keys(), set)).unwrap()),
    }
}

fn device() -> Device {
    Device::cpu(0, &DeviceOptions::default()).unwrap()
}

fn tokens(device: &Device, values: &[u32], time: usize) -> Tensor {
    Tensor::from_host(device, values, [values.len() / time, time], Category::Input).unwrap()
}

fn numbers(count: usize) -> Vec<u32> {
    (0..count).map(|at| (at * at + at / 3) as u32 % VOCABULARY as u32).collect()
}

/// Returns the bits of the loss, and of the gradients of all uses.
fn step(model: &dyn Model, mode: Mode, pass: Pass) -> (u32, Vec<Vec<u32>>) {
    let device = model.parameters().device();
    let tape = Tape::new(device, mode).with_pass(pass);
    let inputs = tokens(device, &numbers(BATCH * TIME), TIME);
    let targets = tokens(device, &numbers(BATCH * TIME + 1)[1..], TIME);
    let prediction = model.forward(&tape, Input::Batch(inputs)).unwrap();
    let loss = model.loss(&tape, prediction, &targets, 1.0).unwrap();
    let value = loss.tensor().to_vec::<f32>().unwrap()[0].to_bits();
    let mut gradients = Gradients::default();
    if mode != Mode::Evaluate {
        tape.backward(loss, &mut gradients).unwrap();
    }
    let bits = |tensor: &Tensor| tensor.to_vec::<f32>().unwrap().iter().map(|v| v.to_bits()).collect();
    (value, gradients.iter().map(|(_, gradient)| bits(gradient)).collect())
}

fn pass(micro_batch: u64) -> Pass {
    Pass { micro_batch, ..Pass::default() }
}

#[test]
fn dropout_depends_on_the_micro_batch_and_is_absent_outside_training() {
    for (family, options) in MODELS {
        let device = device();
        let set = [&["model.dropout=0.3"], *options].concat();
        let dropping = model(&device, family, &set, Recompute::NONE);
        let plain = model(&device, family, options, Recompute::NONE);
        let what = format!("{family} {options:?}");
        let (first, gradients) = step(&*dropping, Mode::Train, pass(0));
        assert_eq!((first, gradients.clone()), step(&*dropping, Mode::Train, pass(0)), "{what}");
        assert_eq!(gradients.len(), dropping.parameters().uses().len(), "{what}");
        assert_ne!(first, step(&*dropping, Mode::Train, pass(1)).0, "{what}");
        assert_ne!(first, step(&*plain, Mode::Train, pass(0)).0, "{what}");
        let evaluated = step(&*dropping, Mode::Evaluate, pass(0));
        assert_eq!(evaluated, step(&*plain, Mode::Evaluate, pass(1)), "{what}");
        let again = model(&device, family, &set, recomputed(options));
        assert_eq!((first, gradients), step(&*again, Mode::Train, pass(0)), "{what}: recomputed");
    }
}

#[test]
fn noise_depends_on_the_micro_batch_and_is_absent_outside_training() {
    for (family, options) in MODELS {
        let device = device();
        let noisy = |alpha: f64, recompute| {
            let parameters = Parameters::new(&device, 1, DType::F32).with_embedding_noise(alpha);
            model_in(parameters, family, options, recompute)
        };
        let (plain, with_noise) =
            (model(&device, family, options, Recompute::NONE), noisy(5.0, Recompute::NONE));
        let what = format!("{family} {options:?}");
        let (first, gradients) = step(&*with_noise, Mode::Train, pass(0));
        assert_eq!((first, gradients.clone()), step(&*with_noise, Mode::Train, pass(0)), "{what}");
        assert_ne!(first, step(&*with_noise, Mode::Train, pass(1)).0, "{what}");
        let without = step(&*plain, Mode::Train, pass(0));
        assert_ne!(first, without.0, "{what}");
        assert_eq!(without, step(&*noisy(0.0, Recompute::NONE), Mode::Train, pass(0)), "{what}: alpha of 0");
        let evaluated = step(&*with_noise, Mode::Evaluate, pass(0));
        assert_eq!(evaluated, step(&*plain, Mode::Evaluate, pass(1)), "{what}");
        assert_eq!(
            (first, gradients),
            step(&*noisy(5.0, recomputed(options)), Mode::Train, pass(0)),
            "{what}"
        );
    }
}

/// Noise is uniform within alpha / √(tokens of a sequence × width), and its gradient is that of the result.
#[test]
fn noise_of_embeddings_has_the_range_of_its_definition() {
    const ALPHA: f64 = 5.0;
    let device = device();
    let [batch, time, width] = [8, 32, 48];
    let mut parameters = Parameters::new(&device, 1, DType::F32).with_embedding_noise(ALPHA);
    let embedding =
        Embedding::new(&mut parameters, "table", [VOCABULARY, width], Init::Normal(0.02)).unwrap();
    let inputs = tokens(&device, &numbers(batch * time), time);
    let rows = |mode| {
        let tape = Tape::new(&device, mode);
        let rows = embedding.forward(&tape, &inputs).unwrap();
        let values = rows.tensor().to_vec::<f32>().unwrap();
        let mut gradients = Gradients::default();
        if mode == Mode::Train {
            let loss = autograd::ops::sum(&tape, rows, 2).unwrap();
            let loss = autograd::ops::reshape(&tape, loss, [batch * time]).unwrap();
            let loss = autograd::ops::sum(&tape, loss, 0).unwrap();
            tape.backward(loss, &mut gradients).unwrap();
        }
        (values, gradients.iter().map(|(_, gradient)| gradient.to_vec::<f32>().unwrap()).collect::<Vec<_>>())
    };
    let ((noisy, gradients), (plain, _)) = (rows(Mode::Train), rows(Mode::Evaluate));
    let magnitude = ALPHA / ((time * width) as f64).sqrt();
    let noise: Vec<f64> = noisy.iter().zip(&plain).map(|(a, b)| f64::from(a - b) / magnitude).collect();
    let largest = noise.iter().fold(0.0, |largest: f64, noise| largest.max(noise.abs()));
    assert!((0.999..1.0001).contains(&largest), "{largest}");
    let mean = |power: i32| noise.iter().map(|noise| noise.powi(power)).sum::<f64>() / noise.len() as f64;
    assert!(mean(1).abs() < 0.03, "{}", mean(1));
    assert!((mean(2) - 1.0 / 3.0).abs() < 0.015, "{}", mean(2));
    let uses = |token: u32| numbers(batch * time).iter().filter(|other| **other == token).count() as f32;
    let expected: Vec<f32> = (0..VOCABULARY).flat_map(|token| vec![uses(token as u32); width]).collect();
    assert_eq!(gradients, [expected]);
}

#[test]
fn names_identify_tied_parameters_and_buffers() {
    let device = device();
    let names = |family, set: &[&str]| {
        let model = model(&device, family, set, Recompute::NONE);
        let parameters = model.parameters().list().iter().map(|parameter| parameter.name.clone());
        let buffers = model.buffers().iter().map(|buffer| format!("buffer {}", buffer.name()));
        parameters.chain(buffers).collect::<Vec<_>>()
    };
    let has = |names: &[String], name: &str| names.iter().any(|candidate| candidate == name);
    let (gpt, other) = (names("gpt", &[]), names("gpt", MODELS[1].1));
    assert!(has(&gpt, "wpe.weight") && has(&gpt, "h.1.mlp_fc.bias") && !has(&gpt, "lm_head.weight"));
    assert!(has(&other, "buffer wpe") && has(&other, "lm_head.weight"));
    assert!(!other.iter().any(|name| name.ends_with(".bias") || name == "wpe.weight"), "{other:?}");
    let untied = names("llama", &[]);
    let tied = names("llama", MODELS[5].1);
    assert!(has(&untied, "lm_head.weight") && !has(&untied, "model.layers.0.self_attn.q_norm.weight"));
    assert!(!has(&tied, "lm_head.weight") && has(&tied, "model.layers.1.self_attn.k_norm.weight"));
    assert!(has(&tied, "model.layers.0.self_attn.qkv_proj.bias"));
}

#[test]
fn a_cache_gives_what_the_whole_sequence_gives() {
    for (family, options) in MODELS {
        let device = device();
        let time = 9;
        let model = model(&device, family, options, Recompute::NONE);
        let spec = spec(family, options);
        let values = numbers(time);
        let run = |pass: Pass, values: &[u32], time: usize| {
            let tape = Tape::new(&device, Mode::Evaluate).with_pass(pass);
            let output = model.forward(&tape, Input::Batch(tokens(&device, values, time))).unwrap();
            match tape.pass().fills_cache() {
                true => output.into_tensor(),
                false => model.scores(&tape, output).unwrap().into_tensor(),
            }
        };
        let whole = run(Pass::default(), &values, time).to_vec::<f32>().unwrap();
        let vocabulary = whole.len() / time;
        let cache = |slots| {
            let all = (0..spec.layers()).flat_map(|layer| spec.layer_caches(layer).concat());
            all.map(|cache| cache.allocate(&device, [slots, time], DType::F32).unwrap())
                .collect::<Rc<[SequenceState]>>()
        };
        // The sequence alone, and in the last of three cache entries; four tokens at once, then one by one.
        let mut all = Vec::new();
        for (slots, slot) in [(1, 0), (3, 2)] {
            let caches = cache(slots);
            let filled = Pass { cache: Some(CachedPass::filling(&caches, slot)), ..Pass::default() };
            let hidden = run(filled, &values[..4], 4);
            assert_ne!(hidden.shape().columns(), vocabulary, "{family}: no head");
            let mut rows = Vec::new();
            for (position, value) in values.iter().enumerate().skip(4) {
                let mut next = vec![0; 4];
                let mut documents = vec![0; 4];
                (next[slot], documents[slot]) = (*value, (position as u32).wrapping_neg());
                let pass = Pass {
                    documents: Some(tokens(&device, &documents, 1)),
                    cache: Some(CachedPass::extending(&caches)),
                    ..Pass::default()
                };
                let logits = run(pass, &next, 1).to_vec::<f32>().unwrap();
                rows.extend_from_slice(&logits[slot * vocabulary..][..vocabulary]);
            }
            let wide = whole[4 * vocabulary..].iter().zip(&rows);
            let worst = wide.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-4, "{family} {options:?}: {worst}");
            all.push(rows.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
        }
        assert_eq!(all[0], all[1], "{family}: neither slots nor other rows change a bit");
    }
}
