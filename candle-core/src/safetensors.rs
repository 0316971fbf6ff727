//! Tensors in files of the [safetensors](https://github.com/huggingface/safetensors) format.
//!
//! [`load`] and [`save`] read and write a whole file. [`MmapedSafetensors`] maps one or several files and reads single tensors;
//! [`BufferedSafetensors`] and [`SliceSafetensors`] do the same for bytes in memory, as in a browser. A truncated file, or one whose header
//! does not match it, returns an error that names the file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ::safetensors::tensor::{Metadata, SafeTensors, TensorInfo, TensorView};
use ::safetensors::{Dtype as StDtype, SafeTensorError, View};
use serde_json::Value;

use crate::bounded_read::shown;
use crate::op::BackpropOp;
use crate::tensor::{bytes_of, storage_from_bytes};
use crate::{bail, DType, Device, Error, Result, Shape, Tensor};

impl View for Tensor {
    fn dtype(&self) -> StDtype {
        self.dtype().into()
    }

    fn shape(&self) -> &[usize] {
        self.dims()
    }

    /// The elements on the host.
    ///
    /// # Panics
    /// If reading back from the device fails, because the trait cannot return an error; [`save`] checks first.
    fn data(&self) -> Cow<'_, [u8]> {
        match self.to_cpu_elements() {
            Ok(storage) => Cow::Owned(bytes_of(&storage).into_owned()),
            Err(err) => panic!("cannot read a tensor to save it: {err}"),
        }
    }

    fn data_len(&self) -> usize {
        packed_len(self)
    }
}

impl View for &Tensor {
    fn dtype(&self) -> StDtype {
        View::dtype(*self)
    }

    fn shape(&self) -> &[usize] {
        self.dims()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        View::data(*self)
    }

    fn data_len(&self) -> usize {
        packed_len(self)
    }
}

/// Number of bytes of a tensor's elements in a file.
fn packed_len(t: &Tensor) -> usize {
    let bits = StDtype::from(t.dtype()).bitsize();
    t.elem_count().saturating_mul(bits).div_ceil(8)
}

impl Tensor {
    /// Writes a file that contains only this tensor, under `name`.
    ///
    /// # Errors
    /// When the file cannot be written; the error names it.
    pub fn save_safetensors<P: AsRef<Path>>(&self, name: &str, filename: P) -> Result<()> {
        save(&HashMap::from([(name, self.clone())]), filename)
    }
}

/// A tensor's bytes on the host, with its dtype and shape in the format's terms.
struct HostTensor<'a> {
    tensor: &'a Tensor,
    bytes: Vec<u8>,
}

impl View for HostTensor<'_> {
    fn dtype(&self) -> StDtype {
        self.tensor.dtype().into()
    }

    fn shape(&self) -> &[usize] {
        self.tensor.dims()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Writes tensors to a file, each under its name. Tensors on a device are read back first.
///
/// # Errors
/// When a tensor cannot be read back or the file not be written; the error names the tensor or the file.
pub fn save<K: AsRef<str> + Ord + std::fmt::Display, P: AsRef<Path>>(
    tensors: &HashMap<K, Tensor>,
    filename: P,
) -> Result<()> {
    let mut on_host = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let storage = tensor
            .to_cpu_elements()
            .map_err(|err| of_tensor(err, name.as_ref()))?;
        let bytes = bytes_of(&storage).into_owned();
        on_host.push((name.as_ref(), HostTensor { tensor, bytes }));
    }
    let path = filename.as_ref();
    ::safetensors::serialize_to_file(on_host, None, path)
        .map_err(|err| Error::from(err).with_path(path))
}

/// Adds the tensor that an error concerns.
fn of_tensor(err: Error, name: &str) -> Error {
    err.context(format!("tensor {}", shown(name)))
}

/// A tensor in the format's representation, which can be loaded onto a device.
pub trait Load {
    /// The tensor on `device`. Booleans become u8 and 16-bit unsigned integers u32.
    ///
    /// # Errors
    /// If the dtype has no counterpart here, or the device cannot hold the tensor.
    fn load(&self, device: &Device) -> Result<Tensor>;
}

impl Load for TensorView<'_> {
    fn load(&self, device: &Device) -> Result<Tensor> {
        let (dims, data) = (self.shape(), self.data());
        match self.dtype() {
            StDtype::BOOL => Tensor::from_raw_buffer(data, DType::U8, dims, device),
            StDtype::U16 => {
                let widened = data
                    .chunks_exact(2)
                    .map(|b| u16::from_le_bytes([b[0], b[1]]).into());
                Tensor::from_vec(widened.collect::<Vec<u32>>(), dims, device)
            }
            dtype => {
                let shape = Shape::from(dims);
                let storage = storage_from_bytes(data, dtype.try_into()?, &shape, device)?;
                Ok(Tensor::from_storage(
                    storage,
                    shape,
                    BackpropOp::none(),
                    false,
                ))
            }
        }
    }
}

/// Loads `ranges` of dimension `dim` of a tensor, concatenated, onto `device`; nothing else of a mapped file is read. Not in upstream's
/// interface.
///
/// # Errors
/// If the tensor lacks the dimension or a range, or as [`Load::load`].
pub fn load_ranges(
    view: &TensorView<'_>,
    dim: usize,
    ranges: &[Range<usize>],
    device: &Device,
) -> Result<Tensor> {
    let mut dims = view.shape().to_vec();
    let Some(&size) = dims.get(dim) else {
        bail!("a tensor of shape {dims:?} has no dimension {dim}")
    };
    if let Some(range) = ranges.iter().find(|r| r.start > r.end || r.end > size) {
        bail!("{range:?} of dimension {dim} of a tensor of shape {dims:?}")
    }
    let bits = view.dtype().bitsize();
    if !bits.is_multiple_of(8) {
        bail!("elements of {bits} bits cannot be split")
    }
    dims[dim] = ranges.iter().map(Range::len).sum();
    let inner = dims[dim + 1..].iter().product::<usize>() * bits / 8;
    let mut data = Vec::with_capacity(dims.iter().product::<usize>() * bits / 8);
    if size * inner > 0 {
        for row in view.data().chunks_exact(size * inner) {
            for range in ranges {
                data.extend_from_slice(&row[range.start * inner..range.end * inner]);
            }
        }
    }
    let part = TensorView::new(view.dtype(), dims, &data)?;
    part.load(device)
}

/// Reads all tensors of a file.
///
/// # Errors
/// When the file cannot be read, is damaged, or holds a dtype without a counterpart here; the error names the file.
pub fn load<P: AsRef<Path>>(filename: P, device: &Device) -> Result<HashMap<String, Tensor>> {
    let path = filename.as_ref();
    let data = std::fs::read(path).map_err(|err| Error::from(err).with_path(path))?;
    load_buffer(&data, device).map_err(|err| err.with_path(path))
}

/// Reads all tensors of a file's content.
///
/// # Errors
/// When the content is damaged or holds a dtype without a counterpart here.
pub fn load_buffer(data: &[u8], device: &Device) -> Result<HashMap<String, Tensor>> {
    let parsed = Parsed::new(data)?;
    let names = parsed.header.offset_keys();
    names
        .into_iter()
        .map(|name| Ok((name.clone(), parsed.load(&name, device)?)))
        .collect()
}

/// A file's content and its header.
struct Parsed<B> {
    bytes: B,
    header: Metadata,
    /// Offset of the elements in the content.
    data_start: usize,
}

/// Maximum length of a header in the format, in bytes.
const MAX_HEADER_LEN: u64 = 100_000_000;

/// An error about a part of the file.
fn in_part(err: SafeTensorError, part: String) -> Error {
    Error::from(err).bt().context(part)
}

/// Reads and checks a header; returns the offset of the elements, and the tensors. Every offset is within the file, tensors do not overlap,
/// no bytes are unused, and the length of each tensor matches its shape and dtype.
///
/// The `safetensors` crate checks most of this as well, but it adds sizes without an overflow check, and some of its errors do not name the
/// tensor.
///
/// `bytes` may be only the first of the file's `file_len` bytes, if they contain the header, so that a file can be read in parts.
///
/// # Errors
/// When the header is damaged, or does not fit a file of this length.
pub fn read_header(bytes: &[u8], file_len: u64) -> Result<(usize, Metadata)> {
    const LEN: usize = size_of::<u64>();
    let part = || "safetensors header length".to_string();
    let Some((len, rest)) = bytes.split_first_chunk::<LEN>() else {
        return Err(in_part(SafeTensorError::HeaderTooSmall, part()));
    };
    let len = u64::from_le_bytes(*len);
    if len > MAX_HEADER_LEN {
        let part = format!("{} of {len} bytes", part());
        return Err(in_part(SafeTensorError::HeaderTooLarge, part));
    }
    // It fits: it is at most `MAX_HEADER_LEN`.
    let Some((header, _)) = rest.split_at_checked(len as usize) else {
        let part = format!(
            "{} of {len} bytes, but only {} are present",
            part(),
            rest.len()
        );
        return Err(in_part(SafeTensorError::InvalidHeaderLength, part));
    };
    let data_start = LEN + header.len();
    let data_len = usize::try_from(file_len.saturating_sub(data_start as u64))?;
    let part = || "safetensors header".to_string();
    let header = std::str::from_utf8(header)
        .map_err(|err| in_part(SafeTensorError::InvalidHeader(err), part()))?;
    let json =
        |part: String| move |err| in_part(SafeTensorError::InvalidHeaderDeserialization(err), part);
    let mut entries: HashMap<String, Value> = serde_json::from_str(header).map_err(json(part()))?;
    let metadata = match entries.remove("__metadata__") {
        Some(metadata) => {
            serde_json::from_value(metadata).map_err(json(format!("{}, __metadata__", part())))?
        }
        None => None,
    };
    let tensors = entries.into_iter().map(|(name, entry)| {
        let info = serde_json::from_value::<TensorInfo>(entry);
        let info = info.map_err(json(format!("{}, tensor {}", part(), shown(&name))))?;
        Ok((name, info))
    });
    let mut tensors = tensors.collect::<Result<Vec<_>>>()?;
    tensors.sort_by_key(|(_, info)| info.data_offsets);

    let mut covered = 0;
    for (name, info) in &tensors {
        let (start, end) = info.data_offsets;
        let part = || {
            format!(
                "safetensors header, tensor {} of shape {:?} and dtype {:?} at bytes {start} to {end} of {}",
                shown(name),
                Shape::from(info.shape.as_slice()),
                info.dtype,
                data_len
            )
        };
        if start != covered || end < start || end > data_len {
            let err = SafeTensorError::InvalidOffset(shown(name));
            return Err(in_part(err, part()));
        }
        covered = end;
        let mut sizes = info.shape.iter().copied().chain([info.dtype.bitsize()]);
        let bits = sizes.try_fold(1usize, usize::checked_mul);
        match bits {
            None => return Err(in_part(SafeTensorError::ValidationOverflow, part())),
            Some(bits) if bits % 8 != 0 => {
                return Err(in_part(SafeTensorError::MisalignedSlice, part()))
            }
            Some(bits) if bits / 8 != end - start => {
                return Err(in_part(SafeTensorError::TensorInvalidInfo, part()))
            }
            Some(_) => {}
        }
    }
    if covered != data_len {
        let part = format!(
            "{}: tensors take {covered} bytes, but {} follow",
            part(),
            data_len
        );
        return Err(in_part(SafeTensorError::MetadataIncompleteBuffer, part));
    }
    let header = Metadata::new(metadata, tensors).map_err(|err| in_part(err, part()))?;
    Ok((data_start, header))
}

impl<B: AsRef<[u8]>> Parsed<B> {
    fn new(bytes: B) -> Result<Self> {
        let all = bytes.as_ref();
        let (data_start, header) = read_header(all, all.len() as u64)?;
        Ok(Self {
            bytes,
            header,
            data_start,
        })
    }

    fn view(&self, name: &str) -> Result<Option<TensorView<'_>>> {
        let Some(info) = self.header.info(name) else {
            return Ok(None);
        };
        let (start, end) = info.data_offsets;
        let elements = &self.bytes.as_ref()[self.data_start..];
        // The header was checked against the length when it was read.
        let view = TensorView::new(info.dtype, info.shape.clone(), &elements[start..end]);
        view.map(Some).map_err(|err| of_tensor(err.into(), name))
    }

    fn get(&self, name: &str) -> Result<TensorView<'_>> {
        self.view(name)?.ok_or_else(|| cannot_find(name))
    }

    fn load(&self, name: &str, device: &Device) -> Result<Tensor> {
        self.get(name)?
            .load(device)
            .map_err(|err| of_tensor(err, name))
    }

    fn tensors(&self) -> Vec<(String, TensorView<'_>)> {
        let names = self.header.offset_keys().into_iter();
        let view = |name: String| self.view(&name).ok().flatten().map(|view| (name, view));
        names.filter_map(view).collect()
    }
}

fn cannot_find(name: &str) -> Error {
    Error::CannotFindTensor {
        path: name.to_string(),
    }
    .bt()
}

/// A file mapped into memory and its path.
struct MappedFile {
    path: PathBuf,
    map: memmap2::Mmap,
}

impl MappedFile {
    /// # Safety
    /// The file must not be changed while it is mapped.
    unsafe fn new(path: &Path) -> Result<Self> {
        let map = std::fs::File::open(path).and_then(|file| {
            // SAFETY: the caller guarantees that the file does not change.
            unsafe { memmap2::MmapOptions::new().map(&file) }
        });
        Ok(Self {
            map: map.map_err(|err| Error::from(err).with_path(path))?,
            path: path.to_path_buf(),
        })
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

/// One or several files mapped into memory; tensors are read on demand.
///
/// ```no_run
/// use candle_core::{safetensors::MmapedSafetensors, Device};
/// # fn main() -> candle_core::Result<()> {
/// let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
/// // SAFETY: nobody changes the files while they are mapped.
/// let tensors = unsafe { MmapedSafetensors::multi(&files)? };
/// let weight = tensors.load("lm_head.weight", &Device::Cpu)?;
/// # Ok(())
/// # }
/// ```
pub struct MmapedSafetensors {
    files: Vec<Parsed<MappedFile>>,
    /// Index of the file that holds a tensor, by the tensor's name.
    file_of: HashMap<String, usize>,
}

impl MmapedSafetensors {
    /// Maps one file.
    ///
    /// # Safety
    /// The file must not be changed while it is mapped.
    ///
    /// # Errors
    /// When the file cannot be mapped or is damaged; the error names it.
    pub unsafe fn new<P: AsRef<Path>>(p: P) -> Result<Self> {
        unsafe { Self::multi(&[p]) }
    }

    /// Maps several files. If two tensors have the same name, that of the later file counts.
    ///
    /// # Safety
    /// The files must not be changed while they are mapped.
    ///
    /// # Errors
    /// When a file cannot be mapped or is damaged; the error names it.
    pub unsafe fn multi<P: AsRef<Path>>(paths: &[P]) -> Result<Self> {
        let mut files = Vec::with_capacity(paths.len());
        let mut file_of = HashMap::new();
        for (i, path) in paths.iter().enumerate() {
            let path = path.as_ref();
            let file = Parsed::new(unsafe { MappedFile::new(path)? });
            let file = file.map_err(|err| err.with_path(path))?;
            file_of.extend(file.header.offset_keys().into_iter().map(|name| (name, i)));
            files.push(file);
        }
        Ok(Self { files, file_of })
    }

    fn file(&self, name: &str) -> Result<&Parsed<MappedFile>> {
        match self.file_of.get(name) {
            Some(&i) => Ok(&self.files[i]),
            None => Err(match self.files.as_slice() {
                [file] => cannot_find(name).with_path(&file.bytes.path),
                _ => cannot_find(name),
            }),
        }
    }

    /// The tensor on a device.
    ///
    /// # Errors
    /// If no file has a tensor of this name, its dtype has no counterpart here, or the device cannot hold it; the error names the file and
    /// the tensor.
    pub fn load(&self, name: &str, dev: &Device) -> Result<Tensor> {
        let file = self.file(name)?;
        file.load(name, dev)
            .map_err(|err| err.with_path(&file.bytes.path))
    }

    /// All tensors, as views of the files.
    pub fn tensors(&self) -> Vec<(String, TensorView<'_>)> {
        self.files.iter().flat_map(Parsed::tensors).collect()
    }

    /// A tensor, as a view of its file.
    ///
    /// # Errors
    /// When no file has a tensor of this name.
    pub fn get(&self, name: &str) -> Result<TensorView<'_>> {
        let file = self.file(name)?;
        file.get(name)
            .map_err(|err| err.with_path(&file.bytes.path))
    }
}

/// Methods of a reader over one block of bytes.
macro_rules! reader {
    ($bytes:ty) => {
        /// Reads the header.
        ///
        /// # Errors
        /// When the bytes are damaged.
        pub fn new(buffer: $bytes) -> Result<Self> {
            Ok(Self {
                content: Parsed::new(buffer)?,
            })
        }

        /// The tensor on a device.
        ///
        /// # Errors
        /// If there is no tensor of this name, its dtype has no counterpart here, or the device cannot hold it.
        pub fn load(&self, name: &str, dev: &Device) -> Result<Tensor> {
            self.content.load(name, dev)
        }

        /// All tensors, as views of the bytes.
        pub fn tensors(&self) -> Vec<(String, TensorView<'_>)> {
            self.content.tensors()
        }

        /// A tensor, as a view of the bytes.
        ///
        /// # Errors
        /// When there is no tensor of this name.
        pub fn get(&self, name: &str) -> Result<TensorView<'_>> {
            self.content.get(name)
        }
    };
}

/// A file's content, borrowed.
pub struct SliceSafetensors<'a> {
    content: Parsed<&'a [u8]>,
}

impl<'a> SliceSafetensors<'a> {
    reader!(&'a [u8]);
}

/// A file's content in memory.
pub struct BufferedSafetensors {
    content: Parsed<Vec<u8>>,
}

impl BufferedSafetensors {
    reader!(Vec<u8>);
}

/// One file mapped into memory, to be read with the `safetensors` crate.
pub struct MmapedFile {
    file: MappedFile,
}

impl MmapedFile {
    /// Maps a file.
    ///
    /// # Safety
    /// The file must not be changed while it is mapped.
    ///
    /// # Errors
    /// When the file cannot be mapped; the error names it.
    pub unsafe fn new<P: AsRef<Path>>(p: P) -> Result<Self> {
        Ok(Self {
            file: unsafe { MappedFile::new(p.as_ref())? },
        })
    }

    /// The file's tensors.
    ///
    /// # Errors
    /// When the file is damaged; the error names it.
    pub fn deserialize(&self) -> Result<SafeTensors<'_>> {
        // Checked first, because the crate's own checks may overflow.
        read_header(self.file.as_ref(), self.file.as_ref().len() as u64)
            .and_then(|_| Ok(SafeTensors::deserialize(self.file.as_ref())?))
            .map_err(|err| err.with_path(&self.file.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("t.safetensors");
        let a = Tensor::arange(0f32, 6., &Device::Cpu)?.reshape((2, 3))?;
        let b = Tensor::new(&[1u32, 2], &Device::Cpu)?;
        save(&HashMap::from([("a", a.t()?), ("b", b.clone())]), &path)?;

        let loaded = load(&path, &Device::Cpu)?;
        assert_eq!(loaded["a"].to_vec2::<f32>()?, a.t()?.to_vec2::<f32>()?);
        let mapped = unsafe { MmapedSafetensors::new(&path)? };
        assert_eq!(mapped.load("b", &Device::Cpu)?.to_vec1::<u32>()?, [1, 2]);
        assert_eq!(mapped.tensors().len(), 2);
        let missing = mapped.load("c", &Device::Cpu).unwrap_err().to_string();
        assert!(
            missing.contains("tensor c") && missing.contains("t.safetensors"),
            "{missing}"
        );

        let bytes = std::fs::read(&path)?;
        for len in [0, 4, 9, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..len])?;
            let err = load(&path, &Device::Cpu).unwrap_err().to_string();
            assert!(err.contains("t.safetensors"), "{err}");
            // SAFETY: nothing else uses the file.
            assert!(unsafe { MmapedSafetensors::new(&path) }.is_err());
        }
        Ok(())
    }
}
