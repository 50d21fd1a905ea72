//! Modules that predict later tokens, against a reference in f64 of the same definition.

use std::collections::BTreeMap;
use std::path::Path;

use autograd::{Gradients, LaterTokens, Mode, Pass, Tape};
use device::{Category, DType, Device, DeviceOptions};
use keys::{RawValues, Section, Table};
use nn::models::{Llama, LlamaSizes};
use nn::{Input, Model, Parameters, PredictionModules, Recompute, Stage};
use tensor::Tensor;
use tensor::ops::cross_entropy::IGNORED;

const TIME: usize = 6;
const WIDTH: usize = 4;
const HIDDEN: usize = 5;
const MODULES: usize = 2;
const WEIGHT: f64 = 0.6;
const EPSILON: f64 = 1e-5;
const SIZES: &str = "[model]\nheads = 1\nwidth = 4\ncontext = 6\nvocabulary = 7\nrope_layers = [0]\n";
const TWO_BRANCHES: &str = "layers = 1\nfeed_forward = 5\n";
/// A layer with attention, and one with experts of latents.
const SINGLE_BRANCHES: &str = "layers = 2\nsingle_branches = true\n\
                               layer_types = [\"full_attention\", \"feed_forward\"]\n\
                               gated = false\nactivation = \"relu-squared\"\nexperts = 3\nexpert_width = 5\n\
                               expert_latent_width = 3\nshared_expert_width = 2\nrouter_scale = 1.5\n\
                               router_scores = \"sigmoid\"\nrouter_correction = true\n";
const EXPERTS: usize = 3;
const LATENTS: usize = 3;
/// One sequence of two documents.
const TOKENS: [u32; TIME + 1] = [1, 5, 2, 0, 3, 6, 4];
const STARTS: [u32; TIME] = [0, 0, 0, 0, 4, 4];

type Values = BTreeMap<String, Vec<f64>>;
type Rows = Vec<Vec<f64>>;

/// Parameters of the reference, and the number of layers before its modules: 2 if they have one branch each.
struct Reference<'a>(&'a Values, usize);

impl Reference<'_> {
    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        matmul(&self.0[&format!("{name}.weight")], x)
    }

    /// Applies the feed-forward layers, or the two experts of the highest scores and the shared one.
    fn feed_forward(&self, mlp: &str, x: &[f64]) -> Vec<f64> {
        let at = |part: &str| format!("{mlp}.{part}");
        if self.1 == 1 {
            let both = self.linear(&at("gate_up_proj"), x);
            let (gate, up) = both.split_at(HIDDEN);
            let hidden: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            return self.linear(&at("down_proj"), &hidden);
        }
        let scores: Vec<f64> =
            self.linear(&at("router"), x).iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect();
        let worst = (0..EXPERTS).min_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap();
        let sum: f64 = scores.iter().sum::<f64>() - scores[worst];
        let latents = self.linear(&at("fc1_latent_proj"), x);
        let [up, down] = ["up", "down"].map(|part| &self.0[&at(&format!("experts.{part}_proj.weight"))]);
        let mut routed = vec![0.0; LATENTS];
        for expert in (0..EXPERTS).filter(|expert| *expert != worst) {
            let size = HIDDEN * LATENTS;
            let hidden =
                matmul(&up[expert * size..][..size], &latents).into_iter().map(squared).collect::<Vec<_>>();
            let result = matmul(&down[expert * size..][..size], &hidden);
            let weight = 1.5 * scores[expert] / sum;
            routed.iter_mut().zip(result).for_each(|(routed, result)| *routed += weight * result);
        }
        let hidden: Vec<f64> =
            self.linear(&at("shared_experts.up_proj"), x).into_iter().map(squared).collect();
        let shared = self.linear(&at("shared_experts.down_proj"), &hidden);
        added(&self.linear(&at("fc2_latent_proj"), &routed), &shared)
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let weight = &self.0[&format!("{name}.weight")];
        x.iter().zip(weight).map(|(x, w)| x * w / (square + EPSILON).sqrt()).collect()
    }

    fn embedding(&self, token: u32) -> Vec<f64> {
        self.0["model.embed_tokens.weight"][token as usize * WIDTH..][..WIDTH].to_vec()
    }

    /// Applies attention of the layer `name`, and feed-forward layers of the layer `second`.
    fn block(&self, [name, second]: [&str; 2], x: &Rows) -> Rows {
        let at = |part: &str| format!("{name}.{part}");
        let qkv: Rows = x
            .iter()
            .map(|x| self.linear(&at("self_attn.qkv_proj"), &self.norm(&at("input_layernorm"), x)))
            .collect();
        let rows = x.iter().enumerate().map(|(query, x)| {
            let keys = STARTS[query] as usize..=query;
            let dot = |key: usize| (0..WIDTH).map(|c| qkv[query][c] * qkv[key][WIDTH + c]).sum::<f64>();
            let scores: Vec<f64> = keys.clone().map(|key| (dot(key) / (WIDTH as f64).sqrt()).exp()).collect();
            let sum: f64 = scores.iter().sum();
            let value =
                |c: usize| keys.clone().zip(&scores).map(|(key, p)| p / sum * qkv[key][2 * WIDTH + c]).sum();
            let mixed: Vec<f64> = (0..WIDTH).map(value).collect();
            let x = added(x, &self.linear(&at("self_attn.o_proj"), &mixed));
            let normalised = self.norm(&format!("{second}.post_attention_layernorm"), &x);
            added(&x, &self.feed_forward(&format!("{second}.mlp"), &normalised))
        });
        rows.collect()
    }

    /// Returns the mean loss of rows that predict the `distance`-th token after the next one.
    fn loss(&self, rows: &Rows, distance: usize) -> f64 {
        let counted: Vec<usize> = (0..TIME).filter(|at| is_counted(*at, distance)).collect();
        let loss = |at: &usize| {
            let scores = self.linear("lm_head", &rows[*at]);
            let sum: f64 = scores.iter().map(|score| score.exp()).sum();
            sum.ln() - scores[TOKENS[at + 1 + distance] as usize]
        };
        counted.iter().map(loss).sum::<f64>() / counted.len() as f64
    }

    /// Returns the losses of the head and of all modules.
    fn losses(&self) -> Vec<f64> {
        let rows: Rows = TOKENS[..TIME].iter().map(|token| self.embedding(*token)).collect();
        let last = format!("model.layers.{}", self.1 - 1);
        let rows = self.block(["model.layers.0", &last], &rows);
        let mut hidden: Rows = rows.iter().map(|row| self.norm("model.norm", row)).collect();
        let mut losses = vec![self.loss(&hidden, 0)];
        for module in 1..=MODULES {
            let name = format!("model.layers.{}", self.1 - 1 + module);
            let at = |part: &str| format!("{name}.{part}");
            let start: Rows = (0..TIME)
                .map(|row| {
                    let token = if row + module < TIME { TOKENS[row + module] } else { 0 };
                    let embedding = self.norm(&at("enorm"), &self.embedding(token));
                    let both = [embedding, self.norm(&at("hnorm"), &hidden[row])].concat();
                    self.linear(&at("eh_proj"), &both)
                })
                .collect();
            let rows = self.block([&name; 2], &start);
            hidden = rows.iter().map(|row| self.norm(&at("shared_head.norm"), row)).collect();
            losses.push(self.loss(&hidden, module));
        }
        losses
    }

    fn objective(&self) -> f64 {
        let losses = self.losses();
        losses[0] + WEIGHT * losses[1..].iter().sum::<f64>() / MODULES as f64
    }
}

fn matmul(weight: &[f64], x: &[f64]) -> Vec<f64> {
    weight.chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

fn squared(x: f64) -> f64 {
    x.max(0.0).powi(2)
}

fn added(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// Returns whether a target `distance` tokens after the next one counts.
fn is_counted(at: usize, distance: usize) -> bool {
    at + distance < TIME && STARTS[at] == STARTS[at + distance]
}

fn model(device: &Device, options: &str, recompute: Recompute) -> Llama {
    let table = Table::new(LlamaSizes::keys().into_iter().cloned().collect());
    let text = format!("{SIZES}{options}");
    let raw = RawValues::parse(&table, &text, "model.toml", Path::new("/"), &[]).unwrap();
    let modules = PredictionModules { count: MODULES, weight: WEIGHT };
    let parameters = Parameters::new(device, 1, DType::F32).predicting(modules);
    let sizes = LlamaSizes::read(&raw).unwrap();
    Llama::new(parameters, &sizes, &Stage::whole(sizes.layers)).unwrap().recomputing(recompute)
}

/// Sets all parameters to numbers around 0, or around 1 for norms, and returns them.
fn filled(model: &Llama) -> Values {
    let device = model.parameters().device().clone();
    let fill = |parameter: &nn::Parameter| {
        let tensor = parameter.weight.tensor().unwrap();
        let middle = if tensor.shape().dims().len() == 1 { 1.0 } else { 0.0 };
        let salt = parameter.name.bytes().map(usize::from).sum::<usize>();
        let number = |at: usize| middle + ((at * 37 + salt * 11) % 41) as f32 / 50.0 - 0.4;
        let values: Vec<f32> = (0..tensor.elements()).map(number).collect();
        let own = Tensor::from_host(&device, &values, tensor.shape(), Category::Input).unwrap();
        tensor.copy_from(&own).unwrap();
        (parameter.name.clone(), values.iter().map(|value| f64::from(*value)).collect())
    };
    model.parameters().list().iter().map(fill).collect()
}

fn tokens(device: &Device, values: Vec<u32>) -> Tensor {
    Tensor::from_host(device, &values, [1, TIME], Category::Input).unwrap()
}

/// Returns the losses, and the sum of the gradients of each parameter's uses.
fn step(model: &Llama) -> (Vec<f32>, BTreeMap<String, Vec<f32>>) {
    let device = model.parameters().device();
    let later = |distance: usize| LaterTokens {
        inputs: tokens(
            device,
            (0..TIME).map(|at| TOKENS[..TIME].get(at + distance).copied().unwrap_or(0)).collect(),
        ),
        targets: tokens(
            device,
            (0..TIME)
                .map(|at| if is_counted(at, distance) { TOKENS[at + 1 + distance] } else { IGNORED })
                .collect(),
        ),
        shares: Vec::new(),
    };
    let later_tokens = (1..=MODULES).map(later).collect();
    let documents = Some(tokens(device, STARTS.to_vec()));
    let tape = Tape::new(device, Mode::Train).with_pass(Pass { later_tokens, documents, ..Pass::default() });
    let output = model.forward(&tape, Input::Batch(tokens(device, TOKENS[..TIME].to_vec()))).unwrap();
    let loss = model.loss(&tape, output, &tokens(device, TOKENS[1..].to_vec()), 1.0).unwrap();
    let losses = loss.tensor().to_vec::<f32>().unwrap();
    let mut gradients = Gradients::default();
    tape.backward(loss, &mut gradients).unwrap();
    let mut sums = BTreeMap::<String, Vec<f32>>::new();
    for (used, gradient) in gradients.iter() {
        let parameter = model.parameters().uses()[used.0 as usize].parameter;
        let values = gradient.to_vec::<f32>().unwrap();
        let sum = sums.entry(model.parameters().list()[parameter.0].name.clone()).or_default();
        sum.resize(values.len(), 0.0);
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    (losses, sums)
}

#[test]
fn losses_and_gradients_are_those_of_a_reference_in_f64() {
    for (layers, options) in [(1, TWO_BRANCHES), (2, SINGLE_BRANCHES)] {
        let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
        let model = self::model(&device, options, Recompute::NONE);
        let values = filled(&model);
        let (losses, gradients) = step(&model);
        let expected = Reference(&values, layers).losses();
        assert_eq!(losses.len(), 1 + MODULES);
        for (loss, expected) in losses.iter().zip(&expected) {
            assert!((f64::from(*loss) - expected).abs() < 2e-6, "{losses:?} of {expected:?}");
        }
        assert_eq!(gradients.len(), values.len());
        for (name, own) in &gradients {
            for (at, gradient) in own.iter().enumerate() {
                let objective = |step: f64| {
                    let mut values = values.clone();
                    values.get_mut(name).unwrap()[at] += step;
                    Reference(&values, layers).objective()
                };
                let expected = (objective(1e-5) - objective(-1e-5)) / 2e-5;
                assert!(
                    (f64::from(*gradient) - expected).abs() < 2e-6,
                    "{name} {at}: {gradient} of {expected}"
                );
            }
        }
        let again = self::model(&device, options, Recompute::EACH);
        filled(&again);
        assert_eq!(step(&again), (losses, gradients));
    }
}
