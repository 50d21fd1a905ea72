//! Errors of the CUDA driver and libraries.

use cudarc::cublaslt::result::CublasError;
use cudarc::cudnn::result::CudnnError;
use cudarc::driver::DriverError;
use cudarc::nvrtc::result::NvrtcError;

/// A CUDA call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {code}: {text}")]
pub struct CudaError {
    /// The function that was called.
    pub call: &'static str,
    /// Error number.
    pub code: i64,
    /// Error text.
    pub text: String,
}

pub(crate) type Result<T> = std::result::Result<T, CudaError>;

pub(crate) trait Named<T> {
    fn named(self, call: &'static str) -> Result<T>;
}

impl<T> Named<T> for std::result::Result<T, DriverError> {
    fn named(self, call: &'static str) -> Result<T> {
        self.map_err(|error| {
            let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
            CudaError {
                call,
                code: error.0 as i64,
                text: text.unwrap_or_else(|_| "unknown error".to_owned()),
            }
        })
    }
}

impl<T> Named<T> for std::result::Result<T, NvrtcError> {
    fn named(self, call: &'static str) -> Result<T> {
        self.map_err(|error| CudaError { call, code: error.0 as i64, text: format!("{:?}", error.0) })
    }
}

impl<T> Named<T> for std::result::Result<T, CudnnError> {
    fn named(self, call: &'static str) -> Result<T> {
        self.map_err(|error| CudaError { call, code: error.0 as i64, text: format!("{:?}", error.0) })
    }
}

impl<T> Named<T> for std::result::Result<T, CublasError> {
    fn named(self, call: &'static str) -> Result<T> {
        self.map_err(|error| CudaError { call, code: error.0 as i64, text: format!("{:?}", error.0) })
    }
}
