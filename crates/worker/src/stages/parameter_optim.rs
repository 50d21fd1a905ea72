//! The settings with which each parameter is updated, and the groups of parameters that share them.

use std::collections::BTreeSet;

use config::{Optim, OptimGroup, OptimKind, RunConfig};
use device::DType;
use nn::{Lora, Parameter, ParameterRole, WidthScaling};
use optim::UpdateRule;
use serde::Serialize;
use telemetry::units::{counted, grouped};
use tensor::Shape;

use crate::build;
use crate::setup::blueprint::{Blueprint, Entry};

/// Properties of a parameter on which its settings depend.
#[derive(Clone, Copy, Debug)]
pub struct OptimizedParameter<'a> {
    /// Name.
    pub name: &'a str,
    /// Shape of the whole parameter.
    pub shape: Shape,
    /// Role in the model.
    pub role: ParameterRole,
}

impl<'a> From<&'a Parameter> for OptimizedParameter<'a> {
    fn from(parameter: &'a Parameter) -> Self {
        let Parameter { name, sharding, role, .. } = parameter;
        OptimizedParameter { name, shape: sharding.whole(), role: *role }
    }
}

impl<'a> From<&'a Entry> for OptimizedParameter<'a> {
    fn from(entry: &'a Entry) -> Self {
        OptimizedParameter { name: &entry.name, shape: entry.shape(), role: entry.role }
    }
}

/// The rule that updates a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParameterRule {
    /// A rule of single elements.
    Elements(UpdateRule),
    /// Muon: the momentum of whole matrices, orthogonalised.
    Muon {
        /// Fraction of the running mean of gradients that an update keeps.
        momentum: f32,
        /// An update subtracts this times the learning rate times the weight.
        weight_decay: f32,
    },
}

impl ParameterRule {
    /// Returns the rule that keeps state.
    pub fn with_state(&self) -> UpdateRule {
        match *self {
            ParameterRule::Elements(rule) => rule,
            ParameterRule::Muon { momentum, .. } => UpdateRule::MuonMomentum { momentum },
        }
    }
}

/// The settings with which a parameter is updated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParameterOptim {
    /// Index of the parameter's group in [`group_names`].
    pub group: usize,
    /// Update rule.
    pub rule: ParameterRule,
    /// Factor of the learning rate.
    pub rate_factor: f32,
    /// Storage type of the rule's states.
    pub states: DType,
    /// Whether the rule's weight decay applies.
    pub decays: bool,
}

impl ParameterOptim {
    /// Returns the settings of a parameter of a run of `config`: of the first group of `optim.groups` that
    /// matches its name, or else of a default group.
    pub fn new<'a>(config: &RunConfig, parameter: impl Into<OptimizedParameter<'a>>) -> Self {
        let OptimizedParameter { name, role, .. } = parameter.into();
        let groups = &config.optim.groups;
        let default = || groups.len() + DefaultGroup::find(config, name, role) as usize;
        let own = groups.iter().position(|group| group.matches(name));
        Self::in_group(config, own.unwrap_or_else(default), role, config.model.width_scaling())
    }

    /// Returns the settings of a matrix that no group of `optim.groups` matches.
    pub fn default_of(config: &RunConfig) -> Self {
        let group = config.optim.groups.len() + DefaultGroup::Decayed as usize;
        Self::in_group(config, group, ParameterRole::Embedding, WidthScaling::NONE)
    }

    /// Returns the settings of a parameter in the group with index `group`, in a model scaled by `scaling`.
    fn in_group(config: &RunConfig, group: usize, role: ParameterRole, scaling: WidthScaling) -> Self {
        let optim = &config.optim;
        let is_own = group < optim.groups.len();
        let own = optim.groups.get(group).cloned().unwrap_or_default();
        let rule = update_rule(optim, &own, role, scaling.weight_decay(role));
        let is_beside_muon = optim.kind == OptimKind::Muon && matches!(rule, ParameterRule::Elements(_));
        let is_faster_b = group == optim.groups.len() + DefaultGroup::LoraB as usize;
        let of_default = match is_faster_b {
            true => config.lora.b_learning_rate,
            false if is_beside_muon && !is_own => optim.muon_adamw_rate,
            false => 1.0,
        };
        ParameterOptim {
            group,
            rule,
            rate_factor: (own.learning_rate.unwrap_or(of_default) * scaling.rate(role)) as f32,
            states: build::state_dtype(config),
            decays: own.weight_decay.is_some() || optim.decay_norms || !role.is_vector(),
        }
    }

    /// Returns whether one launch may update this parameter together with `other`, which may differ in weight
    /// decay.
    pub fn is_updated_with(&self, other: &Self) -> bool {
        (self.rule, self.rate_factor, self.states) == (other.rule, other.rate_factor, other.states)
    }
}

/// Groups of the parameters that no group of `optim.groups` matches, in the order of their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DefaultGroup {
    /// Matrices B of adapters with a learning rate of their own.
    LoraB,
    /// Matrices of hidden layers that Muon updates.
    Matrices,
    /// All others that are decayed.
    Decayed,
    /// Norms and biases that are not decayed.
    Undecayed,
}

impl DefaultGroup {
    /// Names of the groups, in the order of their indices.
    const NAMES: [&'static str; 4] =
        [Optim::LORA_GROUP, Optim::MATRICES_GROUP, Optim::DEFAULT_GROUP, Optim::UNDECAYED_GROUP];

    /// Returns the group of the parameter `name`.
    fn find(config: &RunConfig, name: &str, role: ParameterRole) -> Self {
        let is_faster_b =
            config.tuning.lora().is_some() && config.lora.b_learning_rate != 1.0 && Lora::is_b(name);
        match role.is_vector() && !config.optim.decay_norms {
            _ if is_faster_b => DefaultGroup::LoraB,
            _ if config.optim.kind == OptimKind::Muon && role == ParameterRole::Hidden => {
                DefaultGroup::Matrices
            }
            true => DefaultGroup::Undecayed,
            false => DefaultGroup::Decayed,
        }
    }
}

/// Returns the names of all groups that parameters may have, in the order of their indices.
pub fn group_names(config: &RunConfig) -> Vec<String> {
    let own = config.optim.groups.iter().map(|group| group.name().to_owned());
    own.chain(DefaultGroup::NAMES.map(str::to_owned)).collect()
}

/// The groups whose gradient norms a run reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedGroups {
    /// Names of the groups, in the order of their indices.
    pub names: Vec<String>,
    /// (number of elements, index of the group in `names`) of each entry of
    /// [`Blueprint::gradient_sizes`](crate::setup::blueprint::Blueprint::gradient_sizes).
    pub parameters: Vec<(usize, u32)>,
}

impl ReportedGroups {
    /// Returns the groups of a run of `config`; `None` without `optim.groups`, or if one group has all
    /// trained parameters.
    pub fn new(config: &RunConfig, blueprint: &Blueprint) -> Option<Self> {
        if config.optim.groups.is_empty() {
            return None;
        }
        let firsts = || blueprint.wholes().iter().map(|parts| &blueprint.parameters[parts[0]]);
        let group = |entry: &Entry| ParameterOptim::new(config, entry).group;
        let used: BTreeSet<_> = firsts().filter(|entry| entry.trained).map(group).collect();
        if used.len() < 2 {
            return None;
        }
        let parts = firsts().flat_map(|entry| {
            // A frozen parameter has no chunk sums, so its group has no effect.
            let index = used.iter().position(|used| *used == group(entry)).unwrap_or(0);
            vec![index as u32; entry.sharding.parts()]
        });
        let parameters = blueprint.gradient_sizes().into_iter().zip(parts).collect();
        let all = group_names(config);
        Some(ReportedGroups { names: used.iter().map(|index| all[*index].clone()).collect(), parameters })
    }
}

/// Returns the update rule of parameters of `group`, with `decay_factor` times its weight decay.
fn update_rule(optim: &Optim, group: &OptimGroup, role: ParameterRole, decay_factor: f64) -> ParameterRule {
    let weight_decay = (group.weight_decay.unwrap_or(optim.weight_decay) * decay_factor) as f32;
    let beta1 = group.beta1.unwrap_or(optim.beta1) as f32;
    let beta2 = group.beta2.unwrap_or(optim.beta2) as f32;
    ParameterRule::Elements(match group.kind_or(optim.kind) {
        OptimKind::Muon if role == ParameterRole::Hidden => {
            return ParameterRule::Muon { momentum: optim.muon_momentum as f32, weight_decay };
        }
        OptimKind::AdamW | OptimKind::Muon => {
            UpdateRule::AdamW { beta1, beta2, epsilon: optim.epsilon as f32, weight_decay }
        }
        OptimKind::Lion => UpdateRule::Lion { beta1, beta2, weight_decay },
        OptimKind::Sgd => UpdateRule::Sgd { momentum: optim.momentum as f32, weight_decay },
    })
}

/// A group of trained parameters with its settings, as logs and plans show it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupSummary {
    /// Name.
    pub name: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of elements of all tensors.
    pub parameters: u64,
    /// Name of the update rule.
    pub kind: &'static str,
    /// Factor of the learning rate.
    pub rate_factor: f32,
    /// Weight decay; 0 if it applies to no tensor.
    pub weight_decay: f32,
    /// Number of norms and biases to which the weight decay does not apply.
    pub undecayed: usize,
    /// Decay rates of the rule, or its momentum.
    pub decay_rates: Vec<f32>,
    /// Factor of the learning rate of the group's matrices, and divisor of their weight decay, by
    /// `model.base_width`; 1 without matrices.
    pub matrix_factor: f64,
}

impl GroupSummary {
    /// Returns the groups that have parameters, in the order of their indices.
    pub fn all(config: &RunConfig, blueprint: &Blueprint) -> Vec<Self> {
        let mut summaries: Vec<Option<Self>> = Vec::new();
        let names = group_names(config);
        // Of a group of Muon, matrices and others have different rules.
        summaries.resize_with(2 * names.len(), || None);
        for parts in blueprint.wholes() {
            let entry = &blueprint.parameters[parts[0]];
            if !entry.trained {
                continue;
            }
            let optim = ParameterOptim::new(config, entry);
            let is_muon = matches!(optim.rule, ParameterRule::Muon { .. });
            let unscaled = || ParameterOptim::in_group(config, optim.group, entry.role, WidthScaling::NONE);
            let summary = summaries[2 * optim.group + usize::from(is_muon)]
                .get_or_insert_with(|| Self::empty(&names[optim.group], &unscaled()));
            let by_width = config.model.width_scaling().rate(entry.role);
            if by_width != 1.0 {
                summary.matrix_factor = by_width;
            }
            summary.tensors += 1;
            summary.parameters += entry.elements as u64;
            summary.undecayed += usize::from(!optim.decays);
        }
        let mut summaries: Vec<_> = summaries.into_iter().flatten().collect();
        for summary in summaries.iter_mut().filter(|summary| summary.undecayed == summary.tensors) {
            summary.weight_decay = 0.0;
            summary.undecayed = 0;
        }
        summaries
    }

    /// Returns the settings of the group `name`, without parameters.
    fn empty(name: &str, optim: &ParameterOptim) -> Self {
        let (kind, weight_decay, decay_rates) = match optim.rule {
            ParameterRule::Muon { momentum, weight_decay } => (OptimKind::Muon, weight_decay, vec![momentum]),
            ParameterRule::Elements(UpdateRule::AdamW { beta1, beta2, weight_decay, .. }) => {
                (OptimKind::AdamW, weight_decay, vec![beta1, beta2])
            }
            ParameterRule::Elements(UpdateRule::Lion { beta1, beta2, weight_decay }) => {
                (OptimKind::Lion, weight_decay, vec![beta1, beta2])
            }
            ParameterRule::Elements(UpdateRule::Sgd { momentum, weight_decay }) => {
                (OptimKind::Sgd, weight_decay, vec![momentum])
            }
            // The halves of Muon are no rules of parameters.
            ParameterRule::Elements(UpdateRule::MuonMomentum { .. } | UpdateRule::MuonStep { .. }) => {
                (OptimKind::Muon, 0.0, Vec::new())
            }
        };
        let rate_factor = optim.rate_factor;
        let name = name.to_owned();
        let kind = kind.name();
        GroupSummary {
            name,
            tensors: 0,
            parameters: 0,
            kind,
            rate_factor,
            weight_decay,
            undecayed: 0,
            decay_rates,
            matrix_factor: 1.0,
        }
    }
}

impl std::fmt::Display for GroupSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GroupSummary { name, tensors, parameters, kind, rate_factor, weight_decay, .. } = self;
        let GroupSummary { undecayed, matrix_factor, .. } = self;
        let tensors = counted(*tensors as u64, "tensor");
        write!(f, "optimizer group {name}: {tensors}, {} parameters, {kind}", grouped(*parameters))?;
        if *rate_factor != 1.0 {
            write!(f, ", {rate_factor} times the learning rate")?;
        }
        write!(f, ", weight decay {weight_decay}")?;
        if *undecayed > 0 {
            write!(f, " except of {undecayed} norms and biases")?;
        }
        match self.decay_rates.as_slice() {
            [momentum] => write!(f, ", momentum {momentum}"),
            [beta1, beta2] => write!(f, ", betas {beta1} and {beta2}"),
            _ => Ok(()),
        }?;
        match *matrix_factor {
            1.0 => Ok(()),
            factor => write!(f, ", matrices {factor} times that rate and {} times that decay", 1.0 / factor),
        }
    }
}
