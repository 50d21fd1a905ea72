//! The choice of a cuDNN algorithm for a pass of a convolution.
#![allow(unsafe_code)] // cuDNN's queries

use std::ffi::c_int;

use cudarc::cudnn::{result, sys};

use super::dnn::{Algorithm, Key, Plan};
use super::error::{CudaError, Named, Result};
use crate::convolution::ConvolutionPass;

/// Maximum number of algorithms requested from cuDNN.
const CHOICES: usize = 10;

impl Plan {
    /// Chooses cuDNN's first deterministic algorithm whose workspace fits.
    pub(super) fn choose(&mut self, handle: sys::cudnnHandle_t, key: &Key) -> Result<()> {
        let first = self.possible(handle, key)?.next();
        self.algorithm = first;
        if self.algorithm.is_some() {
            return Ok(());
        }
        Err(CudaError {
            call: "cudnnGetConvolutionAlgorithm",
            code: sys::cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED as i64,
            text: format!("no deterministic algorithm with at most {} bytes of workspace", key.workspace),
        })
    }

    /// Returns the deterministic algorithms whose workspace fits, with the bytes of their workspaces.
    pub(super) fn possible(
        &self,
        handle: sys::cudnnHandle_t,
        key: &Key,
    ) -> Result<impl Iterator<Item = (Algorithm, usize)>> {
        // An algorithm that the library lists but does not have for this shape has no workspace's size.
        let with_bytes = move |algorithm| Some((algorithm, self.workspace(handle, algorithm).ok()?));
        let candidates = self.candidates(handle, key.pass)?.into_iter().filter_map(with_bytes);
        let most = key.workspace;
        Ok(candidates.filter(move |(_, bytes)| *bytes <= most))
    }

    /// Returns the deterministic algorithms of a pass: those that cuDNN recommends, then further ones that
    /// support most shapes.
    fn candidates(&self, handle: sys::cudnnHandle_t, pass: ConvolutionPass) -> Result<Vec<Algorithm>> {
        use sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC as DETERMINISTIC;
        let mut count: c_int = 0;
        let most = c_int::try_from(CHOICES).unwrap_or(c_int::MAX);
        /// Calls one of cuDNN's queries and keeps the deterministic answers.
        macro_rules! ask {
            ($query:path, $name:literal, $kind:ident, $first:expr, $second:expr, $third:expr) => {{
                // SAFETY: the answers are plain numbers, for which zeros are valid.
                let mut answers = vec![unsafe { std::mem::zeroed() }; CHOICES];
                // SAFETY: every descriptor is alive; the buffer has room for the requested number of answers.
                let status = unsafe {
                    $query(
                        handle,
                        $first,
                        $second,
                        self.convolution,
                        $third,
                        most,
                        &raw mut count,
                        answers.as_mut_ptr(),
                    )
                };
                status.named($name)?;
                answers.truncate(usize::try_from(count).unwrap_or(0));
                let usable = answers
                    .iter()
                    .filter(|answer| answer.status.result().is_ok() && answer.determinism == DETERMINISTIC);
                usable.map(|answer| Algorithm::$kind(answer.algo)).collect::<Vec<_>>()
            }};
        }
        let input = self.input;
        let output = self.output;
        let weight = self.weight;
        use sys::cudnnConvolutionBwdDataAlgo_t as Input;
        use sys::cudnnConvolutionBwdFilterAlgo_t as Weight;
        use sys::cudnnConvolutionFwdAlgo_t as Forward;
        Ok(match pass {
            ConvolutionPass::Forward => {
                let mut all = ask!(
                    result::get_convolution_forward_algorithm,
                    "cudnnGetConvolutionForwardAlgorithm_v7",
                    Forward,
                    input,
                    weight,
                    output
                );
                all.push(Algorithm::Forward(Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM));
                all.push(Algorithm::Forward(Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM));
                all
            }
            ConvolutionPass::BackwardInput => {
                let mut all = ask!(
                    result::get_convolution_backward_data_algorithm,
                    "cudnnGetConvolutionBackwardDataAlgorithm_v7",
                    Input,
                    weight,
                    output,
                    input
                );
                all.push(Algorithm::Input(Input::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1));
                all
            }
            ConvolutionPass::BackwardWeight => {
                let mut all = ask!(
                    result::get_convolution_backward_filter_algorithm,
                    "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
                    Weight,
                    input,
                    output,
                    weight
                );
                all.push(Algorithm::Weight(Weight::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1));
                all
            }
        })
    }

    /// Returns the bytes of an algorithm's workspace.
    ///
    /// # Errors
    /// An algorithm that does not support this shape.
    fn workspace(&self, handle: sys::cudnnHandle_t, algorithm: Algorithm) -> Result<usize> {
        let input = self.input;
        let output = self.output;
        let weight = self.weight;
        let convolution = self.convolution;
        let bytes = match algorithm {
            // SAFETY: every descriptor is alive, and the call writes one number.
            Algorithm::Forward(algorithm) => unsafe {
                result::get_convolution_forward_workspace_size(
                    handle,
                    input,
                    weight,
                    convolution,
                    output,
                    algorithm,
                )
            },
            // SAFETY: as above.
            Algorithm::Input(algorithm) => unsafe {
                result::get_convolution_backward_data_workspace_size(
                    handle,
                    weight,
                    output,
                    convolution,
                    input,
                    algorithm,
                )
            },
            // SAFETY: as above.
            Algorithm::Weight(algorithm) => unsafe {
                result::get_convolution_backward_filter_workspace_size(
                    handle,
                    input,
                    output,
                    convolution,
                    weight,
                    algorithm,
                )
            },
        };
        bytes.named("cudnnGetConvolutionWorkspaceSize")
    }
}
