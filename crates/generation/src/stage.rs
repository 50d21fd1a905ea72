//! One of this rank's stages, with its key-value caches.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use nn::Model;
use parallel::data::WeightUnits;
use tensor::ops::cached_attention::Cache;

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
    /// A cache for each lane of each layer; empty if the model has none.
    pub(crate) caches: Rc<[Cache]>,
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
        let layers = config.model.cache().map_or(0..0, |_| stage.layers.clone());
        let lanes = config.parallel.layer_shards();
        let layers = layers.flat_map(|layer| (0..lanes.here).map(move |_| layer));
        let cache = |layer: usize| -> Result<Cache> {
            let _scope = device.module(&format!("cache.{layer}"));
            let heads = config.model.cache().ok_or_else(no_stage)?.divided(lanes.all);
            Ok(Cache::new(device, options.slots, heads, options.capacity, config.precision.compute)?)
        };
        let caches = layers.map(cache).collect::<Result<Rc<[Cache]>>>()?;
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
