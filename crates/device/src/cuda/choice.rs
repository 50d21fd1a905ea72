//! The choice of a cuBLASLt algorithm for a matmul: the table's entry, or else the library's first choice.
//! Also lists the available algorithms.
#![allow(unsafe_code)] // cuBLASLt's queries and untyped attributes

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use cudarc::cublaslt::{result, sys};

use super::blas::{Blas, Plan};
use super::error::{CudaError, Named, Result};
use crate::device::{Device, OnDevice};
use crate::matmul::WORKSPACE_BYTES;
use crate::matmul_table::{Choice, MatmulKey, MatmulTable};

/// cuBLASLt's status for a matmul without an algorithm.
const NOT_SUPPORTED: i64 = sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED as i64;

/// A matmul that a device has computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedMatmul {
    /// Sizes, types, transposition and epilogue.
    pub key: MatmulKey,
    /// Number of calls.
    pub calls: u64,
    /// Whether the algorithm came from the table.
    pub from_table: bool,
}

impl Device {
    /// Returns the matmuls computed since the device was created or since [`Device::set_matmul_table`], in
    /// order of first use.
    pub fn planned_matmuls(&self) -> crate::Result<Vec<PlannedMatmul>> {
        let plans = self.gpu_or_refuse("planned_matmuls")?.blas.plans.borrow();
        let planned = plans.iter().map(|(key, plan)| {
            let calls = plan.calls;
            let from_table = plan.from_table;
            PlannedMatmul { key: *key, calls, from_table }
        });
        let mut planned: Vec<_> = planned.collect();
        planned.sort_unstable_by_key(|planned| planned.key);
        Ok(planned)
    }

    /// Returns the table from which algorithms are chosen.
    pub fn matmul_table(&self) -> crate::Result<MatmulTable> {
        Ok(self.gpu_or_refuse("matmul_table")?.blas.table.borrow().clone())
    }

    /// Replaces the table of algorithms, for measurements.
    pub fn set_matmul_table(&self, table: MatmulTable) -> crate::Result<()> {
        let blas = &self.gpu_or_refuse("set_matmul_table")?.blas;
        blas.plans.borrow_mut().clear();
        *blas.table.borrow_mut() = table;
        Ok(())
    }

    /// Returns at most `most` algorithms for a matmul, in cuBLASLt's order of preference.
    ///
    /// # Errors
    /// The device is not a GPU, the library does not support the matmul.
    pub fn matmul_choices(&self, key: MatmulKey, most: usize) -> crate::Result<Vec<Choice>> {
        let blas = &self.gpu_or_refuse("matmul_choices")?.blas;
        let algorithms = Plan::new(key, blas.compute_type(&key))
            .and_then(|plan| plan.library_choices(blas.handle.raw(), &key, most))
            .on(self)?;
        let choice = |algorithm| Choice { note: described(&algorithm), algorithm: algorithm.data };
        Ok(algorithms.into_iter().map(choice).collect())
    }
}

impl Plan {
    pub(super) fn choose(&mut self, blas: &Blas, key: &MatmulKey) -> Result<()> {
        // The table is measured without TF32.
        let measured = blas.compute_type(key) == sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        if let Some(choice) = blas.table.borrow().choices.get(key).filter(|_| measured) {
            let algorithm = sys::cublasLtMatmulAlgo_t { data: choice.algorithm };
            if self.is_possible(blas.handle.raw(), &algorithm) {
                (self.algorithm, self.from_table) = (algorithm, true);
                return Ok(());
            }
        }
        let algorithms = self.library_choices(blas.handle.raw(), key, 1)?;
        let missing = || CudaError {
            call: "cublasLtMatmulAlgoGetHeuristic",
            code: NOT_SUPPORTED,
            text: "no algorithm".to_owned(),
        };
        self.algorithm = *algorithms.first().ok_or_else(missing)?;
        Ok(())
    }

    /// Returns whether cuBLASLt can run this matmul with the algorithm in the fixed workspace.
    fn is_possible(&self, handle: sys::cublasLtHandle_t, algorithm: &sys::cublasLtMatmulAlgo_t) -> bool {
        let [first, second, output] = self.layouts;
        let mut answer = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        // SAFETY: every description is alive; the library writes the answer.
        let status = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                handle,
                self.description,
                first,
                second,
                output,
                output,
                std::ptr::from_ref(algorithm),
                answer.as_mut_ptr(),
            )
        };
        // SAFETY: all zeros are a valid value (status 0), and the library wrote only valid values.
        let answer = unsafe { answer.assume_init() };
        status.result().is_ok() && answer.state.result().is_ok() && answer.workspaceSize <= WORKSPACE_BYTES
    }

    /// Returns at most `most` algorithms that fit the workspace, cuBLASLt's first choice first. Without one,
    /// returns algorithms that need no workspace: cuBLASLt 13.1 supports none for FP8 with factors of rows, a
    /// bias and few rows of 6,144 or more values, unless the workspace is empty.
    fn library_choices(
        &self,
        handle: sys::cublasLtHandle_t,
        key: &MatmulKey,
        most: usize,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>> {
        let found = self.choices_within(WORKSPACE_BYTES, handle, key, most);
        let is_unsupported = |error: &CudaError| error.code == NOT_SUPPORTED;
        if found.as_ref().map_or_else(is_unsupported, Vec::is_empty) {
            let without = self.choices_within(0, handle, key, most);
            return without.or(found);
        }
        found
    }

    fn choices_within(
        &self,
        workspace: usize,
        handle: sys::cublasLtHandle_t,
        key: &MatmulKey,
        most: usize,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>> {
        let wishes = Wishes::new(workspace, key.operand_alignments())?;
        let [first, second, output] = self.layouts;
        let mut answers = vec![MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed(); most];
        let mut count: c_int = 0;
        // SAFETY: every description is alive; the buffer has room for the requested number of answers.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                self.description,
                first,
                second,
                output,
                output,
                wishes.0,
                c_int::try_from(most).unwrap_or(c_int::MAX),
                answers.as_mut_ptr().cast(),
                &raw mut count,
            )
        };
        status.result().named("cublasLtMatmulAlgoGetHeuristic")?;
        let answers = answers.into_iter().take(usize::try_from(count).unwrap_or(0));
        // SAFETY: the library reported that it wrote this many answers.
        let answers = answers.map(|answer| unsafe { answer.assume_init() });
        Ok(answers.filter(|answer| answer.state.result().is_ok()).map(|answer| answer.algo).collect())
    }
}

/// Preferences for cuBLASLt's search for an algorithm.
struct Wishes(sys::cublasLtMatmulPreference_t);

impl Wishes {
    /// Creates the preferences: the most bytes of workspace, and the alignments of operands a, b and output
    /// in bytes. cuBLASLt's first operand is our right one.
    fn new(workspace: usize, [a, b, out]: [u32; 3]) -> Result<Self> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        let wishes = Wishes(result::create_matmul_pref().named("cublasLtMatmulPreferenceCreate")?);
        let bytes = workspace as u64;
        wishes.set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes)?;
        // Partial sums are added in f32; by default the library might add them in the output's type.
        let reduction = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        wishes.set(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction)?;
        wishes.set(Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b)?;
        wishes.set(Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a)?;
        wishes.set(Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out)?;
        wishes.set(Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out)?;
        Ok(wishes)
    }

    fn set<T>(&self, which: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<()> {
        let value: *const c_void = std::ptr::from_ref(value).cast();
        // SAFETY: the preference is alive; callers give each attribute a value of its type, which is copied.
        unsafe { result::set_matmul_pref_attribute(self.0, which, value, size_of::<T>()) }
            .named("cublasLtMatmulPreferenceSetAttribute")
    }
}

impl Drop for Wishes {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// Describes an algorithm by the attributes that cuBLASLt reports.
fn described(algorithm: &sys::cublasLtMatmulAlgo_t) -> String {
    use sys::cublasLtMatmulAlgoConfigAttributes_t as Attribute;
    let number = |attribute, bytes: usize| {
        // All attributes are integers of 2 or 4 bytes, and the machine is little-endian.
        let mut value = 0_u32;
        let mut written = 0_usize;
        // SAFETY: the value has room for the attribute, whose size is `bytes`.
        let status = unsafe {
            sys::cublasLtMatmulAlgoConfigGetAttribute(
                std::ptr::from_ref(algorithm),
                attribute,
                (&raw mut value).cast(),
                bytes,
                &raw mut written,
            )
        };
        status.result().map_or_else(|_| "?".to_owned(), |()| value.to_string())
    };
    format!(
        "id {}, tile {}, stages {}, inner {}, cluster {}, split {} ({}), swizzle {}, option {}",
        number(Attribute::CUBLASLT_ALGO_CONFIG_ID, 4),
        number(Attribute::CUBLASLT_ALGO_CONFIG_TILE_ID, 4),
        number(Attribute::CUBLASLT_ALGO_CONFIG_STAGES_ID, 4),
        number(Attribute::CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2),
        number(Attribute::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2),
        number(Attribute::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4),
        number(Attribute::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4),
        number(Attribute::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4),
        number(Attribute::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4),
    )
}
