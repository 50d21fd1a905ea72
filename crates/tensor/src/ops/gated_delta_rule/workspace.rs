//! Workspaces of the gated delta rule.
//!
//! On the CPU, each task has one piece of an f32 array: the tiles of a chunk, and results that are moved to
//! the order of the outputs at the end. On a GPU, arrays of all chunks lie behind each other.

use device::{Category, Device, Request};

use super::operands::{CHUNK, DeltaHeads, Geometry};
use crate::{DType, Result, Tensor};

/// Allocates the workspace of the forward pass.
pub(super) fn forward(device: &Device, operator: &'static str, geometry: &Geometry) -> Result<Tensor> {
    let words = match device.is_cuda_like() {
        true => gpu(geometry).forward,
        false => geometry.batch * geometry.settings.heads.value * HostTask::forward(geometry).words,
    };
    allocate(device, operator, words)
}

/// Allocates the workspace of the backward pass.
pub(super) fn backward(device: &Device, operator: &'static str, geometry: &Geometry) -> Result<Tensor> {
    let words = match device.is_cuda_like() {
        true => gpu(geometry).backward,
        false => geometry.batch * geometry.settings.heads.key * HostTask::backward(geometry).words,
    };
    allocate(device, operator, words)
}

fn allocate(device: &Device, operator: &'static str, words: usize) -> Result<Tensor> {
    Tensor::empty(device, [words], DType::F32, Request::new(Category::Workspace, operator))
}

/// Workspace of one task on the CPU: results, then the states of its heads, then tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostTask {
    /// Size of the task's workspace in f32 elements.
    pub(super) words: usize,
    /// Elements of the results of a key head: gradients of its queries and keys.
    pub(super) shared: usize,
    /// Elements of the results of a value head.
    pub(super) own: usize,
}

impl HostTask {
    /// Returns the workspace of a value head in the forward pass: its output and its state.
    pub(super) fn forward(geometry: &Geometry) -> Self {
        let DeltaHeads { width, value_width, .. } = geometry.settings.heads;
        let own = geometry.time * value_width + width * value_width;
        HostTask { words: own + tiles(geometry), shared: 0, own }
    }

    /// Returns the workspace of a key head in the backward pass: gradients of its queries, keys and value
    /// heads, and the states of its value heads at the start of each chunk.
    pub(super) fn backward(geometry: &Geometry) -> Self {
        let DeltaHeads { width, value_width, .. } = geometry.settings.heads;
        let channels = geometry.settings.channels();
        let state = width * value_width;
        let shared = 2 * geometry.time * width;
        let own = geometry.time * (value_width + channels + 1) + state;
        let states = geometry.chunks() * state;
        let more = CHUNK * (3 * width + 2 * value_width + 2 * CHUNK + channels + 1) + state;
        let words = shared + geometry.group() * (own + states) + tiles(geometry) + more;
        HostTask { words, shared, own }
    }
}

/// Returns the elements of a chunk's tiles: queries, keys, values, rates, three forms of decays, two matrices
/// of pairs of tokens, and corrections.
fn tiles(geometry: &Geometry) -> usize {
    let DeltaHeads { width, value_width, .. } = geometry.settings.heads;
    let channels = geometry.settings.channels();
    CHUNK * (2 * width + 2 * value_width + 1 + 3 * channels + 2 * CHUNK)
}

/// Elements of the workspace on a GPU, and of its arrays.
#[derive(Clone, Copy, Debug)]
pub(super) struct GpuArrays {
    /// Normalised queries, and keys, of all key heads.
    pub(super) keys: usize,
    /// Sums of decays of all value heads.
    pub(super) decays: usize,
    /// Elements of an array of a value's width for each token and value head.
    pub(super) values: usize,
    /// Elements of an array of a key's width for each token and value head.
    pub(super) weights: usize,
    /// States of all chunks and value heads.
    pub(super) states: usize,
    /// Elements of the workspace of the forward pass.
    pub(super) forward: usize,
    /// Elements of the workspace of the backward pass.
    pub(super) backward: usize,
}

/// Returns the elements of the arrays on a GPU.
pub(super) fn gpu(geometry: &Geometry) -> GpuArrays {
    let DeltaHeads { key, value, width, value_width } = geometry.settings.heads;
    let tokens = geometry.batch * geometry.time;
    let keys = tokens * key * width;
    let decays = tokens * geometry.settings.decays();
    let values = tokens * value * value_width;
    let weights = tokens * value * width;
    let states = geometry.batch * geometry.chunks() * geometry.settings.heads.state_elements();
    let forward = 2 * keys + decays + values + weights + states;
    let backward = forward + 2 * keys + values + states;
    GpuArrays { keys, decays, values, weights, states, forward, backward }
}
