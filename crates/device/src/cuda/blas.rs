//! Matmuls by cuBLASLt. A plan is created once per shape, strides, types, epilogue and alignment, and is
//! cached.
//!
//! The algorithm comes from the built-in table, or else is the library's first choice (`choice.rs`). It is a
//! function of shapes, types, device and library version, never of a timing. f32 matmuls use TF32 only if the
//! device's options enable it.
#![allow(unsafe_code)] // cuBLASLt's handles and untyped attributes

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;

use cudarc::cublaslt::{result, sys};
use cudarc::driver;

use super::error::{CudaError, Named, Result};
use super::handles::Handle;
use crate::buffer::Region;
use crate::dtype::DType;
use crate::matmul::{Epilogue, Matmul, Scales, WORKSPACE_BYTES};
use crate::matmul_table::{EpilogueKind, MatmulKey, MatmulTable, Scaling};

/// The library's descriptors of a matmul, and the chosen algorithm.
pub(super) struct Plan {
    pub(super) description: sys::cublasLtMatmulDesc_t,
    /// Layouts of cuBLASLt's first operand (our right one), its second operand, and the output.
    pub(super) layouts: [sys::cublasLtMatrixLayout_t; 3],
    pub(super) algorithm: sys::cublasLtMatmulAlgo_t,
    /// Whether the algorithm came from the table.
    pub(super) from_table: bool,
    pub(super) calls: u64,
}

impl Drop for Plan {
    fn drop(&mut self) {
        for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
            // SAFETY: made once in `Plan::new`, destroyed once.
            let _ = unsafe { result::destroy_matrix_layout(layout) };
        }
        // SAFETY: likewise.
        let _ = unsafe { result::destroy_matmul_desc(self.description) };
    }
}

/// The cuBLASLt handle and the plans created so far.
pub(crate) struct Blas {
    // Plans are dropped before the handle.
    pub(super) plans: RefCell<HashMap<MatmulKey, Plan>>,
    pub(super) handle: Handle,
    pub(super) table: RefCell<MatmulTable>,
    /// Whether f32 operands are rounded to TF32.
    pub(super) tf32: bool,
}

impl Blas {
    /// Takes a handle on GPU `ordinal`, whose context is current and whose model is `model`.
    pub(crate) fn new(ordinal: usize, model: &str, tf32: bool) -> Result<Self> {
        let handle = Handle::open(ordinal)?;
        let table = RefCell::new(MatmulTable::embedded(model, version()));
        Ok(Blas { handle, plans: RefCell::default(), table, tf32 })
    }

    /// Returns the compute type of a matmul: TF32 if the device enables it and both operands are f32.
    pub(super) fn compute_type(&self, key: &MatmulKey) -> sys::cublasComputeType_t {
        match self.tf32 && key.types[..2] == [DType::F32; 2] {
            true => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        }
    }
}

pub(crate) fn version() -> usize {
    // SAFETY: the library is open (checked before); the call has no arguments and changes nothing.
    unsafe { sys::cublasLtGetVersion() }
}

/// Enqueues a matmul whose operands have been checked.
pub(super) fn multiply(
    blas: &Blas,
    call: &Matmul<'_>,
    workspace: u64,
    stream: driver::sys::CUstream,
) -> Result<()> {
    let key = MatmulKey::from_call(call);
    let mut plans = blas.plans.borrow_mut();
    let plan = match plans.entry(key) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(index) => {
            let named = |error: CudaError| CudaError { text: format!("{} for {key}", error.text), ..error };
            let mut plan = Plan::new(key, blas.compute_type(&key)).map_err(named)?;
            plan.choose(blas, &key).map_err(named)?;
            index.insert(plan)
        }
    };
    plan.calls += 1;
    plan.point_to(&call.epilogue)?;
    plan.scale_by([call.a.scales, call.b.scales])?;
    let address = |region: Region<'_>| region.buffer.address() + region.offset as u64;
    let a = address(call.a.region);
    let b = address(call.b.region);
    let out = address(call.out.region);
    // The library adds a multiple of one matrix: the output before the call, or another.
    let (alpha, beta, added) = match call.epilogue {
        Epilogue::BiasResidualRelu { residual, .. } => (1.0_f32, 1.0_f32, address(residual)),
        Epilogue::Combined { product, own, added } => (product, own, address(added)),
        _ => (1.0, if call.accumulate { 1.0 } else { 0.0 }, out),
    };
    let [first, second, output] = plan.layouts;
    // SAFETY: `check` checked every region against its buffer; layouts describe them; the workspace is the
    // device's own, of the plan's size; the stream belongs to the device.
    unsafe {
        result::matmul(
            blas.handle.raw(),
            plan.description,
            (&raw const alpha).cast(),
            (&raw const beta).cast(),
            b as *const c_void,
            first,
            a as *const c_void,
            second,
            added as *const c_void,
            output,
            out as *mut c_void,
            output,
            &raw const plan.algorithm,
            workspace as *mut c_void,
            WORKSPACE_BYTES,
            stream.cast(),
        )
    }
    .named("cublasLtMatmul")
}

impl Plan {
    /// Creates a plan. cuBLASLt is column-major, so it computes the transposed matmul with exchanged
    /// operands.
    pub(super) fn new(key: MatmulKey, compute: sys::cublasComputeType_t) -> Result<Self> {
        let [m, n, k] = key.sizes;
        let epilogue = library_epilogue(key.epilogue);
        let description = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F)
            .named("cublasLtMatmulDescCreate")?;
        let mut plan = Plan {
            description,
            layouts: [std::ptr::null_mut(); 3],
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            from_table: false,
            calls: 0,
        };
        let [a_transposed, b_transposed] = key.transposed;
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        // CUBLAS_OP_N and CUBLAS_OP_T.
        let operation = |transposed: bool| i32::from(transposed);
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &operation(b_transposed))?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &operation(a_transposed))?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        // The choice depends on which epilogue addresses are set; any non-null address will do here. An
        // address that the epilogue does not use stays unset.
        let (bias, pre) = operands_of(key.epilogue);
        if bias {
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &data_type(key.types[2]))?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &0x1000_u64)?;
        }
        if pre {
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &(n as i64))?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &0x1000_u64)?;
        }
        if let Scaling::Tensor { fast } | Scaling::Outer { fast } = key.scaling {
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &i8::from(fast))?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &0x1000_u64)?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &0x1000_u64)?;
        }
        if let Scaling::Outer { .. } = key.scaling {
            let mode = sys::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode)?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode)?;
        }
        let stored = |rows: usize, columns: usize, transposed: bool| match transposed {
            true => (columns, rows),
            false => (rows, columns),
        };
        let [a_stride, b_stride, out_stride] = key.strides;
        plan.layouts = [
            layout(key.types[1], stored(n, k, b_transposed), b_stride)?,
            layout(key.types[0], stored(k, m, a_transposed), a_stride)?,
            layout(key.types[2], (n, m), out_stride)?,
        ];
        Ok(plan)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        // SAFETY: the description is alive; callers give each attribute a value of its type, which is copied.
        unsafe {
            result::set_matmul_desc_attribute(
                self.description,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        }
        .named("cublasLtMatmulDescSetAttribute")
    }

    /// Sets the addresses of the scaling factors of our left and right operand.
    fn scale_by(&self, scales: [Option<Scales<'_>>; 2]) -> Result<()> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let ours = [
            Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
            Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
        ];
        for (attribute, scales) in ours.into_iter().zip(scales) {
            if let Some(Scales::Tensor(region) | Scales::Outer(region)) = scales {
                self.set(attribute, &(region.buffer.address() + region.offset as u64))?;
            }
        }
        Ok(())
    }

    fn point_to(&self, epilogue: &Epilogue<'_>) -> Result<()> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let address = |region: &Region<'_>| region.buffer.address() + region.offset as u64;
        let (bias, pre) = match epilogue {
            Epilogue::None | Epilogue::Combined { .. } => (None, None),
            Epilogue::Bias(bias)
            | Epilogue::BiasRelu(bias)
            | Epilogue::BiasResidualRelu { bias, .. }
            | Epilogue::BiasGradient(bias) => (Some(bias), None),
            Epilogue::GeluBias { bias, pre } => (Some(bias), Some(pre)),
            Epilogue::GeluGradient { pre } => (None, Some(pre)),
        };
        if let Some(bias) = bias {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &address(bias))?;
        }
        if let Some(pre) = pre {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &address(pre))?;
        }
        Ok(())
    }
}

/// Returns whether an epilogue reads a bias, and whether it reads GELU's input.
fn operands_of(epilogue: EpilogueKind) -> (bool, bool) {
    match epilogue {
        EpilogueKind::None | EpilogueKind::Combined => (false, false),
        EpilogueKind::Bias
        | EpilogueKind::BiasRelu
        | EpilogueKind::BiasResidualRelu
        | EpilogueKind::BiasGradient => (true, false),
        EpilogueKind::GeluBias => (true, true),
        EpilogueKind::GeluGradient => (false, true),
    }
}

fn library_epilogue(epilogue: EpilogueKind) -> sys::cublasLtEpilogue_t {
    match epilogue {
        EpilogueKind::None | EpilogueKind::Combined => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
        EpilogueKind::Bias => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
        EpilogueKind::BiasRelu | EpilogueKind::BiasResidualRelu => {
            sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS
        }
        EpilogueKind::GeluBias => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        EpilogueKind::GeluGradient => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DGELU,
        // The library sees the transposed matmul, where our left operand is its second.
        EpilogueKind::BiasGradient => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BGRADB,
    }
}

fn data_type(dtype: DType) -> sys::cudaDataType_t {
    match dtype {
        DType::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType_t::CUDA_R_16F,
        DType::F32 => sys::cudaDataType_t::CUDA_R_32F,
        DType::U32 => sys::cudaDataType_t::CUDA_R_32U,
        DType::E4m3 => sys::cudaDataType_t::CUDA_R_8F_E4M3,
        DType::E5m2 => sys::cudaDataType_t::CUDA_R_8F_E5M2,
        DType::U8 => sys::cudaDataType_t::CUDA_R_8U,
    }
}

/// Creates the layout of a column-major matrix whose columns begin `stride` elements apart.
fn layout(
    dtype: DType,
    (rows, columns): (usize, usize),
    stride: usize,
) -> Result<sys::cublasLtMatrixLayout_t> {
    result::create_matrix_layout(data_type(dtype), rows as u64, columns as u64, stride as i64)
        .named("cublasLtMatrixLayoutCreate")
}
