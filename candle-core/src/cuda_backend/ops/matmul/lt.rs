//! Products by cuBLASLt, with its choice of algorithm cached for each shape.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::cublaslt::{result as lt, sys};
use parking_lot::Mutex;

use super::Product;
use crate::backend::BackendStorage;
use crate::cuda_backend::error::WrapErr;
use crate::cuda_backend::libraries::Library;
use crate::cuda_backend::{CudaDevice, CudaError, CudaStorage};
use crate::{DType, Result};

/// Size in bytes of cuBLASLt's workspace; NVIDIA's recommendation for Hopper.
const WORKSPACE: usize = 32 << 20;

const BIAS_POINTER: sys::cublasLtMatmulDescAttributes_t =
    sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;

/// Everything that an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    operands: DType,
    result: DType,
    reduced: bool,
    /// In cuBLASLt's column-major order: its first operand is our right one.
    m: usize,
    n: usize,
    k: usize,
    batch: usize,
    transposed: [bool; 2],
    /// Strides between columns, and between matrices.
    steps: [(usize, usize); 2],
    bias: bool,
    residual: Option<usize>,
    /// Whether the factors are on the card.
    scaled: bool,
    /// The greatest powers of two up to 256 that divide the addresses.
    alignment: [u32; 3],
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
pub(in crate::cuda_backend) struct Lt {
    handle: sys::cublasLtHandle_t,
    workspace: CudaStorage,
    /// `None` if cuBLASLt has no algorithm.
    plans: Mutex<HashMap<Key, Option<Plan>>>,
}

// SAFETY: the handle may be used from any thread.
unsafe impl Send for Lt {}
// SAFETY: as above; plans are behind a lock.
unsafe impl Sync for Lt {}

impl Lt {
    /// `None` if it is not installed: this backend has kernels for that case.
    pub(in crate::cuda_backend) fn new(device: &CudaDevice) -> Result<Option<Self>> {
        if let Err(missing) = Library::CublasLt.open() {
            static TOLD: AtomicBool = AtomicBool::new(false);
            if !TOLD.swap(true, Ordering::Relaxed) {
                tracing::warn!(%missing, "large matrix products are slower without cuBLASLt");
            }
            return Ok(None);
        }
        device.context().bind_to_thread().w()?;
        Ok(Some(Self {
            handle: lt::create_handle().map_err(blas_error)?,
            workspace: device.new_storage(WORKSPACE, DType::U8, "matmul workspace")?,
            plans: Mutex::default(),
        }))
    }

    /// Computes the product; returns false if cuBLASLt does not support it.
    pub(super) fn run(&self, product: &Product<'_>, dst: &CudaStorage) -> Result<bool> {
        let Some(key) = key(product, dst) else {
            return Ok(false);
        };
        let device = dst.device();
        device.context().bind_to_thread().w()?;
        let mut plans = self.plans.lock();
        let plan = match plans.entry(key) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let bias = product.extras.bias.map(|bias| bias.address());
                entry.insert(Plan::new(self.handle, &key, bias)?)
            }
        };
        let Some(planned) = plan else {
            return Ok(false);
        };
        if let Some(bias) = product.extras.bias {
            let address = bias.address();
            planned.set(BIAS_POINTER, &address)?;
        }
        let beta = f64::from(u8::from(product.extras.residual.is_some()));
        let factors = [1., beta].map(|factor| Factor::new(factor, key.result));
        let [alpha, beta] = match product.scales {
            None => factors.each_ref().map(Factor::address),
            Some(scales) => {
                let first = scales.address();
                let beta = if product.extras.residual.is_some() {
                    8
                } else {
                    4
                };
                [first, first + beta].map(|address| address as *const c_void)
            }
        };
        let [rhs, lhs] = product.addresses();
        let dst = dst.address();
        let residual = product
            .extras
            .residual
            .map_or(dst, |residual| residual.address());
        let [rhs_l, lhs_l, residual_l, dst_l] = planned.layouts;
        // SAFETY: descriptions and algorithm are for these operands, which the stream frees after the product.
        let done = unsafe {
            lt::matmul(
                self.handle,
                planned.product,
                alpha,
                beta,
                rhs as *const c_void,
                rhs_l,
                lhs as *const c_void,
                lhs_l,
                residual as *const c_void,
                residual_l,
                dst as *mut c_void,
                dst_l,
                &planned.algorithm,
                self.workspace.address() as *mut c_void,
                planned.workspace,
                device.stream().cu_stream().cast(),
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

/// A matrix in cuBLASLt's view: whether its memory holds the transpose, and the stride between columns of its memory. `None` if neither
/// rows nor columns are contiguous.
fn leading(
    (row, column): (usize, usize),
    (rows, columns): (usize, usize),
) -> Option<(bool, usize)> {
    // A single row or column may have any stride.
    let by_rows = (column == 1 || columns == 1) && (rows == 1 || row >= columns);
    let by_columns = (row == 1 || rows == 1) && (columns == 1 || column >= rows);
    if by_rows {
        Some((false, if rows == 1 { columns } else { row }))
    } else if by_columns {
        Some((true, if columns == 1 { rows } else { column }))
    } else {
        None
    }
}

fn key(product: &Product<'_>, dst: &CudaStorage) -> Option<Key> {
    let operands = product.lhs.storage.dtype();
    let result = dst.dtype();
    let fits = match operands {
        DType::F16 | DType::BF16 => result == operands || result == DType::F32,
        DType::F32 | DType::F64 => result == operands,
        _ => false,
    };
    let batch = product.batches.len();
    if !fits || product.batches.rank > 1 {
        return None;
    }
    let sizes = (product.m, product.n, product.k);
    let (m, n, k) = sizes;
    let (lhs_t, lhs_step) = leading((product.lhs.row, product.lhs.column), (m, k))?;
    let (rhs_t, rhs_step) = leading((product.rhs.row, product.rhs.column), (k, n))?;
    let step = |side: usize| match product.batches.rank {
        0 => 1,
        _ => product.batches.views.strides[side][0] as usize,
    };
    let limit = i32::MAX as usize;
    if [m, n, k, batch, lhs_step, rhs_step]
        .iter()
        .any(|size| *size > limit)
    {
        return None;
    }
    let power = |address: u64| 1 << address.trailing_zeros().min(8);
    let [rhs, lhs] = product.addresses().map(power);
    let mut last = power(dst.address());
    for addend in [product.extras.bias, product.extras.residual]
        .into_iter()
        .flatten()
    {
        last = last.min(power(addend.address()));
    }
    Some(Key {
        operands,
        result,
        reduced: super::reduced_precision(operands),
        m: n,
        n: m,
        k,
        batch,
        transposed: [rhs_t, lhs_t],
        steps: [(rhs_step, step(1)), (lhs_step, step(0))],
        bias: product.extras.bias.is_some(),
        residual: product.extras.residual.map(|residual| residual.row),
        scaled: product.scales.is_some(),
        alignment: [rhs, lhs, last],
    })
}

impl Product<'_> {
    /// Addresses of the first elements, the right operand's first.
    pub(super) fn addresses(&self) -> [u64; 2] {
        let [lhs, rhs] = self.batches.views.offsets;
        let at = |storage: &CudaStorage, offset: u64| {
            storage.address() + offset * storage.dtype().size_in_bytes() as u64
        };
        [at(self.rhs.storage, rhs), at(self.lhs.storage, lhs)]
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
    fn new(handle: sys::cublasLtHandle_t, key: &Key, bias: Option<u64>) -> Result<Option<Self>> {
        use sys::cublasComputeType_t as Compute;
        use sys::cublasLtMatmulDescAttributes_t as Of;
        let (compute, scale) = match key.operands {
            DType::F64 => (Compute::CUBLAS_COMPUTE_64F, DType::F64),
            DType::F32 if key.reduced => (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, DType::F32),
            _ => (Compute::CUBLAS_COMPUTE_32F, DType::F32),
        };
        let product = lt::create_matmul_desc(compute, data_type(scale)).map_err(blas_error)?;
        let [(rhs_step, rhs_batch), (lhs_step, lhs_batch)] = key.steps;
        let (m, n, k) = (key.m, key.n, key.k);
        let stored = |transposed: bool, rows: usize, columns: usize| {
            if transposed {
                (columns, rows)
            } else {
                (rows, columns)
            }
        };
        let [rhs_t, lhs_t] = key.transposed;
        let layout = |dtype, (rows, columns), step, batch| {
            layout(dtype, rows, columns, step, key.batch, batch)
        };
        let residual_step = key.residual.unwrap_or(m).max(m);
        let plan = Self {
            product,
            layouts: [
                layout(key.operands, stored(rhs_t, m, k), rhs_step, rhs_batch)?,
                layout(key.operands, stored(lhs_t, k, n), lhs_step, lhs_batch)?,
                layout(key.result, (m, n), residual_step, residual_step * n)?,
                layout(key.result, (m, n), m, m * n)?,
            ],
            // Replaced below, or the plan is dropped.
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspace: 0,
        };
        let operation = |transposed: bool| i32::from(transposed);
        plan.set(Of::CUBLASLT_MATMUL_DESC_TRANSA, &operation(rhs_t))?;
        plan.set(Of::CUBLASLT_MATMUL_DESC_TRANSB, &operation(lhs_t))?;
        if key.scaled {
            let on_the_card = sys::cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_DEVICE as u32;
            plan.set(Of::CUBLASLT_MATMUL_DESC_POINTER_MODE, &on_the_card)?;
        }
        if let Some(bias) = bias {
            plan.set(BIAS_POINTER, &bias)?;
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            plan.set(Of::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        }
        plan.choose(handle, key)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        let (place, size) = (std::ptr::from_ref(value).cast(), size_of::<T>());
        // SAFETY: the attributes that are set here have values of this type.
        unsafe { lt::set_matmul_desc_attribute(self.product, attribute, place, size) }
            .map_err(blas_error)
            .w()
    }

    /// Queries the algorithm.
    fn choose(mut self, handle: sys::cublasLtHandle_t, key: &Key) -> Result<Option<Self>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Of;
        let preference = Preference(lt::create_matmul_pref().map_err(blas_error)?);
        preference.set(Of::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE)?;
        let [rhs, lhs, last] = key.alignment;
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

#[cfg(test)]
mod tests {
    use super::leading;

    #[test]
    fn matrices_are_seen_by_columns() {
        // Contiguous rows, with or without a gap between them.
        assert_eq!(leading((4, 1), (3, 4)), Some((false, 4)));
        assert_eq!(leading((9, 1), (3, 4)), Some((false, 9)));
        // Contiguous columns.
        assert_eq!(leading((1, 3), (3, 4)), Some((true, 3)));
        // Neither.
        assert_eq!(leading((8, 2), (3, 4)), None);
        // Rows that repeat.
        assert_eq!(leading((0, 1), (3, 4)), None);
        // One row or one column.
        assert_eq!(leading((77, 1), (1, 4)), Some((false, 4)));
        assert_eq!(leading((77, 3), (1, 4)), Some((true, 3)));
        assert_eq!(leading((2, 5), (3, 1)), Some((false, 2)));
    }
}
