//! One of this rank's stages, with its key-value caches.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use autograd::SequenceState;
use nn::{LayerCache, Model};
use parallel::data::WeightUnits;

use crate::options::GeneratorOptions;
use worker::build;
use worker::engine::Engine;
use worker::{Result, WorkerError};

/// One of this rank's pipeline stages.
pub(crate) struct OwnStage {
    pub(crate) number: usize,
    pub(crate) model: Box<dyn Model>,
    /// This rank's shards of the weights, if weights are sharded.
    pub(crate) units: Option<WeightUnits>,
    /// Caches or states for each lane of each layer; empty if the model has none.
    pub(crate) caches: Rc<[SequenceState]>,
}

impl OwnStage {
    /// Builds the stage `number`; `read` are the parameters that are read before they are used.
    pub(crate) fn new(
        engine: &Engine,
        number: usize,
        options: GeneratorOptions,
        read: &Arc<BTreeSet<String>>,
    ) -> Result<Self> {
        let Engine { setup, device, grid, .. } = engine;
        let config = &setup.config;
        let stage = &setup.blueprint.stages[number];
        let host = build::host_pool(device, config)?;
        let devices = (device, host.as_ref());
        let (model, units) = build::sharded_model(config, devices, *grid, stage, read)?;
        let lanes = config.parallel.layer_shards();
        // The parts of a layer follow each other, and the lanes of a part.
        let parts = stage
            .layers
            .clone()
            .flat_map(|layer| config.model.layer_caches(layer).into_iter().map(move |part| (layer, part)));
        let caches = parts.flat_map(|(layer, part)| {
            let lane = part.into_iter().map(move |cache| (layer, cache.divided(lanes.all)));
            (0..lanes.here).flat_map(move |_| lane.clone())
        });
        let allocate = |(layer, cache): (usize, LayerCache)| -> Result<SequenceState> {
            let _scope = device.module(&format!("cache.{layer}"));
            Ok(cache.allocate(device, [options.slots, options.capacity], config.precision.compute)?)
        };
        let caches = caches.map(allocate).collect::<Result<Rc<[SequenceState]>>>()?;
        Ok(OwnStage { number, model, units, caches })
    }

    /// Returns the bytes of weights that this rank holds between uses.
    pub(crate) fn weight_bytes(&self) -> u64 {
        let whole = || self.model.parameters().list().iter().map(|parameter| parameter.weight.bytes()).sum();
        self.units.as_ref().map_or_else(whole, WeightUnits::bytes) as u64
    }

    pub(crate) fn cache_bytes(&self) -> u64 {
        self.caches.iter().map(|cache| cache.bytes() as u64).sum()
    }
}

/// Returns the error for a stage without its input.
pub(crate) fn no_stage() -> WorkerError {
    WorkerError::Refused("a stage has no input".to_owned())
}
