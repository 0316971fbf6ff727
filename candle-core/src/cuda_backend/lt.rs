//! cuBLASLt, with its choice of algorithm cached for each shape.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver::{CudaSlice, DevicePtr};
use parking_lot::Mutex;

use super::error::{CudaError, WrapErr};
use super::libraries::Library;
use crate::{DType, Result};

/// Size in bytes of cuBLASLt's workspace; NVIDIA's recommendation for Hopper.
pub(super) const WORKSPACE: usize = 32 << 20;

const BIAS_POINTER: sys::cublasLtMatmulDescAttributes_t =
    sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;

/// A product in cuBLASLt's column-major order, where its first operand is our right one: everything that an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Problem {
    pub(super) operands: DType,
    pub(super) result: DType,
    pub(super) reduced: bool,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) batch: usize,
    pub(super) transposed: [bool; 2],
    /// Strides between columns, and between matrices.
    pub(super) steps: [(usize, usize); 2],
    pub(super) bias: bool,
    /// Stride between columns of the residual, if there is one.
    pub(super) residual: Option<usize>,
    /// Whether the factors are on the card.
    pub(super) scaled: bool,
    /// The greatest powers of two up to 256 that divide the addresses.
    pub(super) alignment: [u32; 3],
}

/// Addresses on the card of a product's operands and result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addresses {
    pub(super) rhs: u64,
    pub(super) lhs: u64,
    pub(super) bias: Option<u64>,
    pub(super) residual: Option<u64>,
    /// Three f32: the factor of the product, 0 and 1.
    pub(super) scales: Option<u64>,
    pub(super) dst: u64,
}

/// cuBLASLt's descriptions for a product, created once.
struct Plan {
    product: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 4],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

// SAFETY: cuBLASLt reads descriptions from any thread; the only one that changes, the bias's address, changes under the lock.
unsafe impl Send for Plan {}

/// cuBLASLt on one device.
pub(super) struct Lt {
    handle: sys::cublasLtHandle_t,
    /// Memory of the stream in which all products are computed.
    workspace: CudaSlice<u8>,
    /// `None` if cuBLASLt has no algorithm.
    plans: Mutex<HashMap<Problem, Option<Plan>>>,
}

// SAFETY: the handle may be used from any thread.
unsafe impl Send for Lt {}
// SAFETY: as above; plans are behind a lock.
unsafe impl Sync for Lt {}

impl Lt {
    /// cuBLASLt in the stream of the memory that `workspace` allocates, of [`WORKSPACE`] bytes. `None` if it is not installed: this backend
    /// has kernels for that case.
    pub(super) fn new(workspace: impl FnOnce() -> Result<CudaSlice<u8>>) -> Result<Option<Self>> {
        if let Err(missing) = Library::CublasLt.open() {
            static TOLD: AtomicBool = AtomicBool::new(false);
            if !TOLD.swap(true, Ordering::Relaxed) {
                tracing::warn!(%missing, "large matrix products are slower without cuBLASLt");
            }
            return Ok(None);
        }
        let workspace = workspace()?;
        let context = workspace.context();
        context.bind_to_thread().w()?;
        // cuBLASLt keeps state of the context, which therefore stays open until the process ends.
        std::mem::forget(context.clone());
        Ok(Some(Self {
            handle: lt::create_handle().map_err(blas_error)?,
            workspace,
            plans: Mutex::default(),
        }))
    }

    /// Queues the product in the stream; returns false if cuBLASLt does not support it.
    pub(super) fn run(&self, problem: &Problem, at: Addresses) -> Result<bool> {
        self.workspace.context().bind_to_thread().w()?;
        let stream = self.workspace.stream();
        let mut plans = self.plans.lock();
        let plan = match plans.entry(*problem) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(Plan::new(self.handle, problem, at.bias)?)
            }
        };
        let Some(planned) = plan else {
            return Ok(false);
        };
        if let Some(address) = at.bias {
            planned.set(BIAS_POINTER, &address)?;
        }
        let beta = f64::from(u8::from(at.residual.is_some()));
        let factors = [1., beta].map(|factor| Factor::new(factor, problem.result));
        let [alpha, beta] = match at.scales {
            None => factors.each_ref().map(Factor::address),
            Some(first) => {
                let beta = if at.residual.is_some() { 8 } else { 4 };
                [first, first + beta].map(|address| address as *const c_void)
            }
        };
        let residual = at.residual.unwrap_or(at.dst);
        let [rhs_l, lhs_l, residual_l, dst_l] = planned.layouts;
        // Without event tracking the guard does nothing.
        let (workspace, _guard) = self.workspace.device_ptr(stream);
        // SAFETY: descriptions and algorithm are for these operands, which the stream frees after the product.
        let done = unsafe {
            lt::matmul(
                self.handle,
                planned.product,
                alpha,
                beta,
                at.rhs as *const c_void,
                rhs_l,
                at.lhs as *const c_void,
                lhs_l,
                residual as *const c_void,
                residual_l,
                at.dst as *mut c_void,
                dst_l,
                &planned.algorithm,
                workspace as *mut c_void,
                planned.workspace,
                stream.cu_stream().cast(),
            )
        };
        match done {
            // cuBLASLt may suggest an algorithm that it then rejects.
            Err(error) if error.0 == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => {
                *plan = None;
                Ok(false)
            }
            done => done.map(|()| true).map_err(blas_error).w(),
        }
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        // Products in the stream may still use the handle's resources.
        let _ = self.workspace.stream().synchronize();
        // SAFETY: created by `create_handle`, destroyed once. A failure leaks the handle.
        let _ = unsafe { lt::destroy_handle(self.handle) };
    }
}

fn blas_error(error: lt::CublasError) -> CudaError {
    CudaError::CublasLt(error)
}

/// A factor of the product, in cuBLASLt's accumulator type.
enum Factor {
    F32(f32),
    F64(f64),
}

impl Factor {
    fn new(value: f64, result: DType) -> Self {
        match result {
            DType::F64 => Self::F64(value),
            _ => Self::F32(value as f32),
        }
    }

    fn address(&self) -> *const c_void {
        match self {
            Self::F32(value) => std::ptr::from_ref(value).cast(),
            Self::F64(value) => std::ptr::from_ref(value).cast(),
        }
    }
}

fn data_type(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::F16 => sys::cudaDataType_t::CUDA_R_16F,
        DType::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        DType::F64 => sys::cudaDataType_t::CUDA_R_64F,
        _ => sys::cudaDataType_t::CUDA_R_32F,
    }
}

impl Plan {
    /// `None` if cuBLASLt has no algorithm for it.
    fn new(
        handle: sys::cublasLtHandle_t,
        problem: &Problem,
        bias: Option<u64>,
    ) -> Result<Option<Self>> {
        use sys::cublasComputeType_t as Compute;
        use sys::cublasLtMatmulDescAttributes_t as Of;
        let (compute, scale) = match problem.operands {
            DType::F64 => (Compute::CUBLAS_COMPUTE_64F, DType::F64),
            DType::F32 if problem.reduced => (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, DType::F32),
            _ => (Compute::CUBLAS_COMPUTE_32F, DType::F32),
        };
        let product = lt::create_matmul_desc(compute, data_type(scale)).map_err(blas_error)?;
        let [(rhs_step, rhs_batch), (lhs_step, lhs_batch)] = problem.steps;
        let (m, n, k) = (problem.m, problem.n, problem.k);
        let stored = |transposed: bool, rows: usize, columns: usize| {
            if transposed {
                (columns, rows)
            } else {
                (rows, columns)
            }
        };
        let [rhs_t, lhs_t] = problem.transposed;
        let layout = |dtype, (rows, columns), step, batch| {
            layout(dtype, rows, columns, step, problem.batch, batch)
        };
        let residual_step = problem.residual.unwrap_or(m).max(m);
        let plan = Self {
            product,
            layouts: [
                layout(problem.operands, stored(rhs_t, m, k), rhs_step, rhs_batch)?,
                layout(problem.operands, stored(lhs_t, k, n), lhs_step, lhs_batch)?,
                layout(problem.result, (m, n), residual_step, residual_step * n)?,
                layout(problem.result, (m, n), m, m * n)?,
            ],
            // Replaced below, or the plan is dropped.
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspace: 0,
        };
        let operation = |transposed: bool| i32::from(transposed);
        plan.set(Of::CUBLASLT_MATMUL_DESC_TRANSA, &operation(rhs_t))?;
        plan.set(Of::CUBLASLT_MATMUL_DESC_TRANSB, &operation(lhs_t))?;
        if problem.scaled {
            let on_the_card = sys::cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_DEVICE as u32;
            plan.set(Of::CUBLASLT_MATMUL_DESC_POINTER_MODE, &on_the_card)?;
        }
        if let Some(bias) = bias {
            plan.set(BIAS_POINTER, &bias)?;
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            plan.set(Of::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        }
        plan.choose(handle, problem)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        let (place, size) = (std::ptr::from_ref(value).cast(), size_of::<T>());
        // SAFETY: the attributes that are set here have values of this type.
        unsafe { lt::set_matmul_desc_attribute(self.product, attribute, place, size) }
            .map_err(blas_error)
            .w()
    }

    /// Queries the algorithm.
    fn choose(mut self, handle: sys::cublasLtHandle_t, problem: &Problem) -> Result<Option<Self>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Of;
        let preference = Preference(lt::create_matmul_pref().map_err(blas_error)?);
        preference.set(Of::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE)?;
        let [rhs, lhs, last] = problem.alignment;
        preference.set(Of::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &rhs)?;
        preference.set(Of::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &lhs)?;
        preference.set(Of::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &last)?;
        preference.set(Of::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &last)?;
        let [a, b, c, d] = self.layouts;
        // SAFETY: all descriptions are alive.
        let found = unsafe {
            lt::get_matmul_algo_heuristic(handle, self.product, a, b, c, d, preference.0)
        };
        match found {
            Ok(found) => {
                self.algorithm = found.algo;
                self.workspace = found.workspaceSize;
                Ok(Some(self))
            }
            Err(error) if error.0 == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => Ok(None),
            Err(error) => Err(blas_error(error).into()),
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: created by this module, destroyed once. A failure leaks the object.
        unsafe {
            let _ = lt::destroy_matmul_desc(self.product);
            for layout in self.layouts {
                let _ = lt::destroy_matrix_layout(layout);
            }
        }
    }
}

struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn set<T>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<()> {
        let (place, size) = (std::ptr::from_ref(value).cast(), size_of::<T>());
        // SAFETY: the attributes that are set here have values of this type.
        unsafe { lt::set_matmul_pref_attribute(self.0, attribute, place, size) }
            .map_err(blas_error)
            .w()
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created by `create_matmul_pref`, destroyed once.
        let _ = unsafe { lt::destroy_matmul_pref(self.0) };
    }
}

fn layout(
    dtype: DType,
    rows: usize,
    columns: usize,
    step: usize,
    batch: usize,
    batch_step: usize,
) -> Result<sys::cublasLtMatrixLayout_t> {
    use sys::cublasLtMatrixLayoutAttribute_t as Of;
    let made = lt::create_matrix_layout(data_type(dtype), rows as u64, columns as u64, step as i64);
    let made = made.map_err(blas_error)?;
    let set = |attribute, place: *const c_void, size| {
        // SAFETY: the attributes that are set here have values of this size.
        unsafe { lt::set_matrix_layout_attribute(made, attribute, place, size) }
            .map_err(blas_error)
            .w()
    };
    let (count, batch_step) = (batch as i32, batch_step as i64);
    set(
        Of::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
        (&raw const count).cast(),
        4,
    )?;
    set(
        Of::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
        (&raw const batch_step).cast(),
        8,
    )?;
    Ok(made)
}
