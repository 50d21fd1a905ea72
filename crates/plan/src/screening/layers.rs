//! Seconds of a model's layers for one micro-batch, from the calls that they make on Meta.

use std::collections::BTreeMap;

use config::{RecomputePolicy, RunConfig};
use device::{CallLog, Description};
use nn::Stage;
use worker::build;
use worker::dataset::{self, DataScope};
use worker::setup::blueprint;

use crate::call_times::CallTimes;
use crate::costs::with_recompute;
use crate::error::Result;
use crate::measure::{self, LayerMeasure};
use crate::timed_step::call_times;

use super::Screen;

/// Times of a model's layers on one rank, for one micro-batch. The first layer includes everything before the
/// layers, the last everything after them.
#[derive(Clone, Debug)]
pub(crate) struct TimedLayers {
    layers: Vec<TimedLayer>,
    /// For each layer, the index of the first layer with the same work.
    pub(super) alike: Vec<usize>,
}

#[derive(Clone, Debug)]
struct TimedLayer {
    /// Seconds of the forward pass, the input half of backward, and the weight half.
    passes: [f64; 3],
    /// Additional seconds of backward if it recomputes the layer.
    again: f64,
    /// Name and number of elements of each parameter, so that a stage counts shared parameters once.
    parameters: Vec<(String, usize)>,
    /// Bytes of the activation sent to the next layer.
    output: f64,
    measure: LayerMeasure,
}

impl TimedLayers {
    /// Times the layers of a configuration on Meta. If `alike` is known, equal layers are timed once.
    pub(super) fn from_config(
        config: &RunConfig,
        screen: &Screen<'_>,
        alike: Option<&[usize]>,
    ) -> Result<Self> {
        let times = call_times(config, screen.device, &screen.rates);
        let dataset = dataset::open(config, DataScope::Shapes)?;
        let rate = |flops: u64| flops as f64 / screen.rates.flops_f32;
        let [whole, again] = [RecomputePolicy::None, RecomputePolicy::Block]
            .map(|recompute| with_recompute(config, recompute));
        let mut layers: Vec<TimedLayer> = Vec::with_capacity(config.layers());
        let mut before = None;
        for layer in 0..config.layers() {
            let timed = match alike.and_then(|alike| layers.get(*alike.get(layer)?)) {
                Some(same) => same.clone(),
                None => {
                    let run = |config: &RunConfig| {
                        measure::logged_layer(config, &dataset, &screen.description, (layer, before))
                    };
                    let (measure, logs) = run(&whole)?;
                    let passes =
                        [0, 1, 2].map(|part| seconds(&times, &logs[part], rate(measure.flops[part])));
                    let (recomputed, logs) = run(&again)?;
                    let with = [1, 2].map(|part| seconds(&times, &logs[part], rate(recomputed.flops[part])));
                    TimedLayer {
                        passes,
                        again: (with[0] + with[1] - passes[1] - passes[2]).max(0.0),
                        parameters: parameters(config, &screen.description, layer)?,
                        output: measure
                            .output
                            .map_or(0.0, |cut| (cut.shape.elements() * cut.dtype.bytes()) as f64),
                        measure,
                    }
                }
            };
            before = timed.measure.output;
            layers.push(timed);
        }
        let first_alike = |one: &TimedLayer| {
            let same = |other: &TimedLayer| {
                other.measure == one.measure && (other.again - one.again).abs() <= 1e-9 * one.again.abs()
            };
            layers.iter().position(same).unwrap_or_default()
        };
        let alike = layers.iter().map(first_alike).collect();
        Ok(TimedLayers { layers, alike })
    }

    fn of_stage(&self, stage: &Stage) -> &[TimedLayer] {
        self.layers.get(stage.layers.clone()).unwrap_or_default()
    }

    /// Returns the seconds of a stage's passes: forward, the input half of backward, the weight half.
    pub(super) fn passes(&self, stage: &Stage) -> [f64; 3] {
        [0, 1, 2].map(|part| self.of_stage(stage).iter().map(|layer| layer.passes[part]).sum())
    }

    /// Returns the additional seconds of backward if it recomputes the first `layers` layers of a stage.
    pub(super) fn again(&self, stage: &Stage, layers: usize) -> f64 {
        self.of_stage(stage).iter().take(layers).map(|layer| layer.again).sum()
    }

    pub(super) fn parameters(&self, stage: &Stage) -> f64 {
        let all = self.of_stage(stage).iter().flat_map(|layer| &layer.parameters);
        let by_name: BTreeMap<_, _> = all.map(|(name, elements)| (name, elements)).collect();
        by_name.values().map(|elements| **elements as f64).sum()
    }

    /// Returns the largest number of bytes that a layer sends to the next.
    pub(super) fn output_bytes(&self) -> f64 {
        self.layers.iter().map(|layer| layer.output).fold(0.0, f64::max)
    }
}

/// Returns the seconds of a pass's calls on the device or on the host, whichever is longer; `otherwise` if
/// the log is empty.
fn seconds(times: &CallTimes, log: &CallLog, otherwise: f64) -> f64 {
    let known = times.known(log);
    let (mut device, mut host) = (0.0, 0.0);
    log.for_each(|call| {
        device += times.device(call, &known);
        host += times.host(call);
    });
    match log.calls.is_empty() {
        true => otherwise,
        false => device.max(host),
    }
}

fn parameters(config: &RunConfig, description: &Description, layer: usize) -> Result<Vec<(String, usize)>> {
    let stage = Stage { layers: layer..layer + 1, model_layers: config.layers() };
    let device = blueprint::meta(description)?;
    let model = build::model(config, &device, config.parallel.grid().seen_from(0)?, &stage)?;
    let list = model.parameters().list();
    Ok(list.iter().map(|one| (one.name.clone(), one.elements())).collect())
}
