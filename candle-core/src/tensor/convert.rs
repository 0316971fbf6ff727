//! Conversions: between dtypes, between devices, and from and to Rust types.

use std::borrow::Cow;
use std::io::Write;

use float8::F8E4M3;
use half::{bf16, f16};

use crate::op::{BackpropOp, Op};
use crate::{
    CpuStorage, DType, Device, Error, Result, Shape, Storage, StridedBlocks, Tensor, WithDType,
};

/// Matches a storage: one expression for elements of several bytes, one for single bytes.
macro_rules! match_storage {
    ($value:expr, |$data:ident| $numbers:expr, $bytes:expr) => {
        match $value {
            CpuStorage::U8($data)
            | CpuStorage::F6E2M3($data)
            | CpuStorage::F6E3M2($data)
            | CpuStorage::F4($data)
            | CpuStorage::F8E8M0($data) => $bytes,
            CpuStorage::U32($data) => $numbers,
            CpuStorage::I16($data) => $numbers,
            CpuStorage::I32($data) => $numbers,
            CpuStorage::I64($data) => $numbers,
            CpuStorage::BF16($data) => $numbers,
            CpuStorage::F16($data) => $numbers,
            CpuStorage::F32($data) => $numbers,
            CpuStorage::F64($data) => $numbers,
            CpuStorage::F8E4M3($data) => $numbers,
        }
    };
}

/// Elements as little-endian bytes, the format of files.
trait LittleEndian: Sized {
    fn write(&self, out: &mut Vec<u8>);
    fn read_all(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! little_endian {
    ($($ty:ty),+) => {$(
        impl LittleEndian for $ty {
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read_all(bytes: &[u8]) -> Vec<Self> {
                let chunks = bytes.chunks_exact(size_of::<Self>());
                let element = |chunk: &[u8]| chunk.try_into().map(Self::from_le_bytes);
                chunks.flat_map(element).collect()
            }
        }
    )+};
}

little_endian!(u32, i16, i32, i64, bf16, f16, f32, f64);

impl LittleEndian for F8E4M3 {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(self.to_bits());
    }

    fn read_all(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|&bits| Self::from_bits(bits)).collect()
    }
}

/// The elements of a storage as little-endian bytes.
pub(crate) fn bytes_of(storage: &CpuStorage) -> Cow<'_, [u8]> {
    match_storage!(
        storage,
        |data| {
            let mut out = Vec::with_capacity(size_of_val(data.as_slice()));
            data.iter().for_each(|x| x.write(&mut out));
            Cow::Owned(out)
        },
        Cow::Borrowed(data.as_slice())
    )
}

/// # Errors
/// If there are fewer or more bytes than `shape` needs.
fn check_bytes(bytes: &[u8], dtype: DType, shape: &Shape) -> Result<()> {
    let bits = match dtype {
        DType::F4 => 4,
        DType::F6E2M3 | DType::F6E3M2 => 6,
        dtype => 8 * dtype.size_in_bytes(),
    };
    let needed = shape.elem_count().checked_mul(bits);
    if needed.map(|bits| bits.div_ceil(8)) != Some(bytes.len()) {
        crate::bail!(
            "{} bytes do not match a {} tensor of shape {shape:?}",
            bytes.len(),
            dtype.as_str()
        )
    }
    Ok(())
}

/// Copies little-endian bytes to a device's storage. A GPU's memory is filled from where they are, such as a mapped file.
///
/// # Errors
/// If there are fewer or more bytes than `shape` needs, or the device refuses the dtype.
pub(crate) fn storage_from_bytes(
    bytes: &[u8],
    dtype: DType,
    shape: &Shape,
    device: &Device,
) -> Result<Storage> {
    check_bytes(bytes, dtype, shape)?;
    let is_packed = matches!(
        dtype,
        DType::F4 | DType::F6E2M3 | DType::F6E3M2 | DType::F8E8M0
    );
    let plain = cfg!(target_endian = "little") && !is_packed;
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) if plain => device.storage_from_bytes(bytes, dtype).map(Storage::Cuda),
        #[cfg(feature = "webgpu")]
        Device::WebGpu(device) if plain => {
            device.upload_parts(&[bytes], dtype).map(Storage::WebGpu)
        }
        _ => {
            let _ = plain;
            device.storage_from_cpu_owned(decoded(bytes, dtype))
        }
    }
}

/// A storage of little-endian bytes.
fn decoded(bytes: &[u8], dtype: DType) -> CpuStorage {
    match dtype {
        DType::U8 => CpuStorage::U8(bytes.to_vec()),
        DType::U32 => CpuStorage::U32(LittleEndian::read_all(bytes)),
        DType::I16 => CpuStorage::I16(LittleEndian::read_all(bytes)),
        DType::I32 => CpuStorage::I32(LittleEndian::read_all(bytes)),
        DType::I64 => CpuStorage::I64(LittleEndian::read_all(bytes)),
        DType::BF16 => CpuStorage::BF16(LittleEndian::read_all(bytes)),
        DType::F16 => CpuStorage::F16(LittleEndian::read_all(bytes)),
        DType::F32 => CpuStorage::F32(LittleEndian::read_all(bytes)),
        DType::F64 => CpuStorage::F64(LittleEndian::read_all(bytes)),
        DType::F8E4M3 => CpuStorage::F8E4M3(LittleEndian::read_all(bytes)),
        DType::F6E2M3 => CpuStorage::F6E2M3(bytes.to_vec()),
        DType::F6E3M2 => CpuStorage::F6E3M2(bytes.to_vec()),
        DType::F4 => CpuStorage::F4(bytes.to_vec()),
        DType::F8E8M0 => CpuStorage::F8E8M0(bytes.to_vec()),
    }
}

/// Splits row-major elements into rows of `len`.
fn rows<S: WithDType>(data: &[S], count: usize, len: usize) -> Vec<Vec<S>> {
    (0..count)
        .map(|i| data[i * len..(i + 1) * len].to_vec())
        .collect()
}

/// Splits row-major elements into matrices.
fn matrices<S: WithDType>(data: &[S], (d1, d2, d3): (usize, usize, usize)) -> Vec<Vec<Vec<S>>> {
    (0..d1)
        .map(|i| rows(&data[i * d2 * d3..(i + 1) * d2 * d3], d2, d3))
        .collect()
}

fn only<S: WithDType>(data: Vec<S>) -> Result<S> {
    match data[..] {
        [value] => Ok(value),
        _ => crate::bail!("a scalar has one element, got {}", data.len()),
    }
}

impl Tensor {
    /// The elements converted to another dtype, as `as` does in Rust: to integers it truncates and saturates.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[-1.5f32, 2.7, f32::NAN], &Device::Cpu)?;
    /// assert_eq!(t.to_dtype(DType::I64)?.to_vec1::<i64>()?, [-1, 2, 0]);
    /// assert_eq!(t.to_dtype(DType::U8)?.to_vec1::<u8>()?, [0, 2, 0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        let storage = self.storage().to_dtype(self.layout(), dtype)?;
        let op = BackpropOp::new1(self, Op::ToDType);
        Ok(Self::from_storage(storage, self.shape(), op, false))
    }

    /// Copies the tensor to another device.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device().same_device(device) {
            return Ok(self.clone());
        }
        let op = BackpropOp::new1(self, Op::ToDevice);
        // Only the viewed part is copied.
        let src = self.without_unused()?;
        let storage = src.storage().transfer(device)?;
        let moved = Self::from_storage(storage, src.storage_len, BackpropOp::none(), false);
        Ok(moved.view(src.layout().clone(), op))
    }

    /// The same elements in a storage without unused parts, to be read as a whole.
    pub(super) fn without_unused(&self) -> Result<Self> {
        if self.elem_count() >= self.storage_len {
            return Ok(self.clone());
        }
        Ok(Self::from((self.copied_storage()?, self.shape())))
    }

    /// The elements in row-major order.
    fn elements<S: WithDType>(&self) -> Result<Vec<S>> {
        self.check_dtype::<S>()?;
        if let Storage::Cpu(storage) = &*self.storage() {
            return Ok(self.elements_in(S::cpu_storage_as_slice(storage)?));
        }
        let src = self.without_unused()?;
        let storage = src.storage().to_cpu_storage()?;
        src.elements_read(storage)
    }

    /// Like [`Tensor::elements`], without blocking the thread while the device works.
    async fn elements_async<S: WithDType>(&self) -> Result<Vec<S>> {
        self.begin_elements()?.finish().await
    }

    /// The elements in row-major order, from a storage that has been read back.
    pub(super) fn elements_read<S: WithDType>(&self, storage: CpuStorage) -> Result<Vec<S>> {
        let data = S::cpu_storage_data(storage)?;
        match self.layout().contiguous_offsets() {
            Some((0, end)) if end == data.len() => Ok(data),
            _ => Ok(self.elements_in(&data)),
        }
    }

    fn elements_in<S: WithDType>(&self, data: &[S]) -> Vec<S> {
        match self.strided_blocks() {
            StridedBlocks::SingleBlock { start_offset, len } => {
                data[start_offset..start_offset + len].to_vec()
            }
            _ => self.strided_index().map(|i| data[i]).collect(),
        }
    }

    /// Checks before the readback, which may take long.
    pub(super) fn check_dtype<S: WithDType>(&self) -> Result<()> {
        if S::DTYPE != self.dtype() {
            return Err(Error::UnexpectedDType {
                msg: "reading a tensor's elements",
                expected: S::DTYPE,
                got: self.dtype(),
            }
            .bt());
        }
        Ok(())
    }

    /// The value of a scalar.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let sum = Tensor::new(&[1f32, 2.], &Device::Cpu)?.sum_all()?;
    /// assert_eq!(sum.to_scalar::<f32>()?, 3.);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the tensor has a dimension, or another dtype.
    pub fn to_scalar<S: WithDType>(&self) -> Result<S> {
        self.to_vec0()
    }

    /// The value of a scalar.
    ///
    /// # Errors
    /// If the tensor has a dimension, or another dtype.
    pub fn to_vec0<S: WithDType>(&self) -> Result<S> {
        self.dims0()?;
        only(self.elements()?)
    }

    /// The elements of a vector.
    ///
    /// # Errors
    /// If the rank is not 1, or the dtype is another one.
    pub fn to_vec1<S: WithDType>(&self) -> Result<Vec<S>> {
        self.dims1()?;
        self.elements()
    }

    /// The rows of a matrix.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::arange(0u32, 6, &Device::Cpu)?.reshape((2, 3))?;
    /// assert_eq!(t.t()?.to_vec2::<u32>()?, [[0, 3], [1, 4], [2, 5]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the rank is not 2, or the dtype is another one.
    pub fn to_vec2<S: WithDType>(&self) -> Result<Vec<Vec<S>>> {
        let (d1, d2) = self.dims2()?;
        Ok(rows(&self.elements()?, d1, d2))
    }

    /// The elements of a tensor of three dimensions.
    ///
    /// # Errors
    /// If the rank is not 3, or the dtype is another one.
    pub fn to_vec3<S: WithDType>(&self) -> Result<Vec<Vec<Vec<S>>>> {
        let dims = self.dims3()?;
        Ok(matrices(&self.elements()?, dims))
    }

    /// Like [`Tensor::to_scalar`], without blocking the thread: the form for browsers.
    pub async fn to_scalar_async<S: WithDType>(&self) -> Result<S> {
        self.to_vec0_async().await
    }

    /// Like [`Tensor::to_vec0`], without blocking the thread: the form for browsers.
    pub async fn to_vec0_async<S: WithDType>(&self) -> Result<S> {
        self.dims0()?;
        only(self.elements_async().await?)
    }

    /// Like [`Tensor::to_vec1`], without blocking the thread: the form for browsers.
    pub async fn to_vec1_async<S: WithDType>(&self) -> Result<Vec<S>> {
        self.dims1()?;
        self.elements_async().await
    }

    /// Like [`Tensor::to_vec2`], without blocking the thread: the form for browsers.
    pub async fn to_vec2_async<S: WithDType>(&self) -> Result<Vec<Vec<S>>> {
        let (d1, d2) = self.dims2()?;
        Ok(rows(&self.elements_async().await?, d1, d2))
    }

    /// Like [`Tensor::to_vec3`], without blocking the thread: the form for browsers.
    pub async fn to_vec3_async<S: WithDType>(&self) -> Result<Vec<Vec<Vec<S>>>> {
        let dims = self.dims3()?;
        Ok(matrices(&self.elements_async().await?, dims))
    }

    /// The elements in row-major order, on the host.
    pub(crate) fn to_cpu_elements(&self) -> Result<CpuStorage> {
        // Row-major and without unused parts: no copy is needed.
        let src = self.contiguous()?.without_unused()?;
        let storage = src.storage();
        storage.to_cpu_storage()
    }

    /// Writes the elements in row-major order as little-endian bytes.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let mut bytes = vec![];
    /// Tensor::new(&[1u32, 258], &Device::Cpu)?.write_bytes(&mut bytes)?;
    /// assert_eq!(bytes, [1, 0, 0, 0, 2, 1, 0, 0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_bytes<W: Write>(&self, f: &mut W) -> Result<()> {
        f.write_all(&bytes_of(&self.to_cpu_elements()?))?;
        Ok(())
    }
}

impl<T: WithDType> TryFrom<&[T]> for Tensor {
    type Error = Error;

    fn try_from(v: &[T]) -> Result<Self> {
        Self::from_slice(v, v.len(), &Device::Cpu)
    }
}

impl<T: WithDType> TryFrom<Vec<T>> for Tensor {
    type Error = Error;

    fn try_from(v: Vec<T>) -> Result<Self> {
        let len = v.len();
        Self::from_vec(v, len, &Device::Cpu)
    }
}

/// `TryFrom` for a tensor and for a reference to one.
macro_rules! from_tensor {
    ([$($generic:tt)*] $ty:ty, $read:ident) => {
        impl $($generic)* TryFrom<&Tensor> for $ty {
            type Error = Error;

            fn try_from(tensor: &Tensor) -> Result<Self> {
                tensor.$read()
            }
        }

        impl $($generic)* TryFrom<Tensor> for $ty {
            type Error = Error;

            fn try_from(tensor: Tensor) -> Result<Self> {
                tensor.$read()
            }
        }
    };
}

from_tensor!([<T: WithDType>] Vec<T>, to_vec1);
from_tensor!([<T: WithDType>] Vec<Vec<T>>, to_vec2);
from_tensor!([<T: WithDType>] Vec<Vec<Vec<T>>>, to_vec3);

macro_rules! scalar_conversions {
    ($($ty:ty),+) => {$(
        from_tensor!([] $ty, to_vec0);

        impl TryFrom<$ty> for Tensor {
            type Error = Error;

            fn try_from(value: $ty) -> Result<Self> {
                Self::new(value, &Device::Cpu)
            }
        }
    )+};
}

scalar_conversions!(u8, u32, i16, i32, i64, f16, bf16, f32, f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() -> Result<()> {
        let t = Tensor::new(&[[1i64, -2, 3], [4, 5, 1 << 40]], &Device::Cpu)?.t()?;
        for dtype in [
            DType::I64,
            DType::F32,
            DType::F16,
            DType::BF16,
            DType::U8,
            DType::F8E4M3,
        ] {
            let t = t.to_dtype(dtype)?;
            let mut bytes = vec![];
            t.write_bytes(&mut bytes)?;
            assert_eq!(bytes.len(), 6 * dtype.size_in_bytes());
            let back = Tensor::from_raw_buffer(&bytes, dtype, t.dims(), &Device::Cpu)?;
            let as_f64 = |t: &Tensor| t.to_dtype(DType::F64)?.to_vec2::<f64>();
            assert_eq!(as_f64(&back)?, as_f64(&t)?, "{dtype:?}");
        }
        assert!(Tensor::from_raw_buffer(&[0; 7], DType::F32, &[2], &Device::Cpu).is_err());
        assert!(Tensor::from_raw_buffer(&[], DType::F32, &[usize::MAX, 2], &Device::Cpu).is_err());
        Ok(())
    }
}
