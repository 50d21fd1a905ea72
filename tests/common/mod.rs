//! Helpers shared by several test programs.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

pub(crate) mod devices;
pub(crate) mod jobs;
pub(crate) mod library;
pub(crate) mod ports;
pub(crate) mod python;
pub(crate) mod random;
pub(crate) mod runs;
pub(crate) mod scripts;
pub(crate) mod sizes;
pub(crate) mod token_files;
pub(crate) mod wrapped;

use std::path::PathBuf;

use device::{Category, Device};
use nn::Parameters;
use safetensors::{Dtype, SafeTensors};
use tensor::Tensor;

/// Returns the root of the source tree; tests run in the folder of their package.
pub(crate) fn root() -> PathBuf {
    std::env::current_dir().unwrap()
}

/// Returns the path of the program under test. `CARGO_BIN_EXE_plimsoll` overrides it for bundled tests on
/// another machine.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("CARGO_BIN_EXE_plimsoll")
        .map_or_else(|| env!("CARGO_BIN_EXE_plimsoll").into(), PathBuf::from)
}

/// Returns the path of a recorded file. Registers all families first, since tests run in any order.
pub(crate) fn golden(name: &str) -> PathBuf {
    vision::register().unwrap();
    root().join("tests/golden").join(name)
}

/// Arrays recorded from PyTorch's tiny GPT-2 and MLP.
pub(crate) struct Recording(Vec<u8>);

impl Recording {
    pub(crate) fn open() -> Self {
        Self::read("gpt_tiny.safetensors")
    }

    /// Reads a file of recordings.
    pub(crate) fn read(file: &str) -> Self {
        Recording(std::fs::read(golden(file)).unwrap())
    }

    /// Returns a recorded array of any type as f64.
    pub(crate) fn values(&self, name: &str) -> Vec<f64> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let bytes = view.data();
        match view.dtype() {
            Dtype::F32 => {
                bytes.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
            }
            Dtype::F64 => bytes.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
            other => panic!("{name} is {other:?}"),
        }
    }

    /// Returns a recorded integer array.
    pub(crate) fn integers(&self, name: &str) -> Vec<u32> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let bytes = file.tensor(name).unwrap().data().to_vec();
        bytes.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect()
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        self.values(name).into_iter().map(|v| v as f32).collect()
    }

    /// Sets every parameter to the recorded array `{prefix}{name}`.
    pub(crate) fn load(&self, parameters: &Parameters, prefix: &str) {
        for parameter in parameters.list() {
            parameter
                .weight
                .tensor()
                .unwrap()
                .set(&self.floats(&format!("{prefix}{}", parameter.name)))
                .unwrap();
        }
    }
}

/// Returns ‖actual − expected‖ / ‖expected‖.
pub(crate) fn relative(actual: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let difference: f64 = actual.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    let size: f64 = expected.iter().map(|b| b * b).sum();
    (difference / size).sqrt()
}

/// Returns a tensor of tokens or classes.
pub(crate) fn tokens(device: &Device, values: &[u32], rows: usize, columns: usize) -> Tensor {
    Tensor::from_host(device, values, [rows, columns], Category::Input).unwrap()
}
