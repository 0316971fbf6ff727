//! NumPy's files: `.npy` holds one array, `.npz` is a zip archive of them.
//!
//! The format is that of [NEP 1](https://numpy.org/neps/nep-0001-npy-format.html), versions 1.0 to 3.0. Arrays in column-major order and
//! big-endian arrays can be read as well. NumPy's `b1` becomes `u8`; it has no `bf16` and no `f8e4m3`.
//!
//! ```
//! use candle_core::{npy::NpzTensors, Device, Tensor};
//! # fn main() -> candle_core::Result<()> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("weights.npz");
//! let a = Tensor::arange(0f32, 6., &Device::Cpu)?.reshape((2, 3))?;
//! Tensor::write_npz(&[("a", &a)], &path)?;
//!
//! // In Python: numpy.load("weights.npz")["a"]
//! let arrays = NpzTensors::new(&path)?;
//! assert_eq!(arrays.names(), ["a"]);
//! let back = arrays.get("a")?.expect("written above");
//! assert_eq!(back.to_vec2::<f32>()?, a.to_vec2::<f32>()?);
//! # Ok(())
//! # }
//! ```

mod header;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::CompressionMethod;

use crate::bounded_read::{read_bytes, reverse_elements};
use crate::tensor::bytes_of;
use crate::zip_archive::{Archive, Entry};
use crate::{DType, Device, Error, Result, Shape, Tensor};
use header::{npy_error, Header};

const SUFFIX: &str = ".npy";
/// The first bytes of an array.
const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads an array from the content of a `.npy` file, onto the CPU.
///
/// ```
/// use candle_core::{npy, Device, Tensor};
/// # fn main() -> candle_core::Result<()> {
/// let mut bytes = vec![];
/// npy::to_writer(&Tensor::new(&[1u32, 2, 3], &Device::Cpu)?, &mut bytes)?;
/// assert_eq!(npy::from_reader(&mut bytes.as_slice())?.to_vec1::<u32>()?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// When the content is damaged, or the dtype has no counterpart here; the error names the part of the file.
pub fn from_reader<R: Read>(reader: &mut R) -> Result<Tensor> {
    read_array(reader, 0)
}

/// Writes a tensor as the content of a `.npy` file.
///
/// # Errors
/// If NumPy does not have the dtype, the tensor cannot be read back from its device, or the writer fails.
pub fn to_writer<W: Write>(tensor: &Tensor, writer: &mut W) -> Result<()> {
    Header::write(tensor.dtype(), tensor.shape(), writer)?;
    writer.write_all(&bytes_of(&tensor.to_cpu_elements()?))?;
    Ok(())
}

/// Reads an array; `known` bytes are certain to exist.
fn read_array<R: Read>(reader: &mut R, known: usize) -> Result<Tensor> {
    let header = Header::read(reader)?;
    let (shape, dtype) = (&header.shape, header.dtype);
    let of_data = |message: String| {
        npy_error(format!(
            "data of shape {shape:?}, {}: {message}",
            dtype.as_str()
        ))
    };
    let len = shape.elem_count().checked_mul(dtype.size_in_bytes());
    let too_large = || "the size in bytes overflows".to_string();
    let bytes = len.ok_or_else(too_large);
    let bytes = bytes.and_then(|len| read_bytes(reader, len, known));
    let mut bytes = bytes.map_err(of_data)?;
    if header.big_endian {
        reverse_elements(&mut bytes, dtype.size_in_bytes());
    }
    let mut dims = shape.dims().to_vec();
    if !header.fortran_order {
        return Tensor::from_raw_buffer(&bytes, dtype, &dims, &Device::Cpu);
    }
    // Column-major order is row-major order with reversed dimensions.
    dims.reverse();
    let reversed: Vec<usize> = (0..dims.len()).rev().collect();
    Tensor::from_raw_buffer(&bytes, dtype, &dims, &Device::Cpu)?.permute(reversed)
}

/// Whether an entry of an archive is an array, by its name or by its first bytes. NumPy returns other entries as bytes. An unreadable entry
/// counts as an array, so that reading it returns the error.
fn holds_array(archive: &Archive, entry: &str) -> bool {
    let begins_as_array = |entry: &mut Entry<'_>| {
        let mut start = vec![];
        entry.take(MAGIC.len() as u64).read_to_end(&mut start)?;
        Ok(start == MAGIC)
    };
    entry.ends_with(SUFFIX) || archive.read(entry, begins_as_array).unwrap_or(true)
}

/// Reads the array in an entry of an archive.
fn read_entry(entry: &mut Entry<'_>) -> Result<Tensor> {
    let tensor = read_array(entry, entry.known)?;
    entry.check_end()?;
    Ok(tensor)
}

/// Adds the file to an error.
fn in_file<T>(path: &Path, result: Result<T>) -> Result<T> {
    result.map_err(|err| err.with_path(path))
}

impl Tensor {
    /// Reads a `.npy` file onto the CPU. Booleans become u8.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or its dtype has no counterpart here; the error names the file and its part.
    pub fn read_npy<T: AsRef<Path>>(path: T) -> Result<Self> {
        let read = |path: &Path| {
            let mut file = File::open(path)?;
            let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
            read_array(&mut file, len)
        };
        in_file(path.as_ref(), read(path.as_ref()))
    }

    /// Writes the tensor to a `.npy` file, which `numpy.load` reads.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.npy");
    /// let a = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// a.write_npy(&path)?;
    /// assert_eq!(Tensor::read_npy(&path)?.to_vec2::<f32>()?, [[1., 2.], [3., 4.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If NumPy does not have the dtype (bf16, f8e4m3 and smaller), or the file cannot be written.
    pub fn write_npy<T: AsRef<Path>>(&self, path: T) -> Result<()> {
        let write = |path: &Path| {
            let mut file = BufWriter::new(File::create(path)?);
            to_writer(self, &mut file)?;
            Ok(file.flush()?)
        };
        in_file(path.as_ref(), write(path.as_ref()))
    }

    /// Reads all arrays of a `.npz` file, in its order, onto the CPU.
    ///
    /// # Errors
    /// As [`NpzTensors::get`].
    pub fn read_npz<T: AsRef<Path>>(path: T) -> Result<Vec<(String, Self)>> {
        let npz = NpzTensors::new(path)?;
        let mut budget = npz.archive.budget();
        let read = |name: &String| {
            let tensor = npz.expect(name)?;
            let charged = budget.charge(tensor.elem_count(), tensor.dtype());
            charged.map_err(|err| npz.archive.in_file(err))?;
            Ok((name.clone(), tensor))
        };
        npz.names.iter().map(read).collect()
    }

    /// Reads the arrays of these names from a `.npz` file, onto the CPU.
    ///
    /// # Errors
    /// As [`NpzTensors::get`], and if there is no array of a name.
    pub fn read_npz_by_name<T: AsRef<Path>>(path: T, names: &[&str]) -> Result<Vec<Self>> {
        let npz = NpzTensors::new(path)?;
        names.iter().map(|name| npz.expect(name)).collect()
    }

    /// Writes tensors to a `.npz` file, each under its name, without compression, as `numpy.savez` does.
    ///
    /// # Errors
    /// If a name appears twice, NumPy does not have the dtype, or the file cannot be written; the error names file and tensor.
    pub fn write_npz<S: AsRef<str>, T: AsRef<Tensor>, P: AsRef<Path>>(
        ts: &[(S, T)],
        path: P,
    ) -> Result<()> {
        let write = |path: &Path| Ok(write_npz(ts, BufWriter::new(File::create(path)?))?.flush()?);
        in_file(path.as_ref(), write(path.as_ref()))
    }
}

fn write_npz<S: AsRef<str>, T: AsRef<Tensor>, W: Write + Seek>(
    ts: &[(S, T)],
    writer: W,
) -> Result<W> {
    let mut zip = zip::ZipWriter::new(writer);
    for (name, tensor) in ts {
        let (name, tensor) = (name.as_ref(), tensor.as_ref());
        // Sizes of 4 GiB and more need wider fields in the archive; the threshold of half that size reserves space for the header.
        let len = tensor
            .elem_count()
            .saturating_mul(tensor.dtype().size_in_bytes());
        let large = len > (u32::MAX / 2) as usize;
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(large);
        zip.start_file(format!("{name}{SUFFIX}"), options)
            .map_err(Error::from)
            .and_then(|()| to_writer(tensor, &mut zip))
            .map_err(|err| err.context(format!("tensor {name}")))?;
    }
    Ok(zip.finish()?)
}

/// The arrays of a `.npz` file, read on request.
pub struct NpzTensors {
    archive: Archive,
    /// Names of the arrays, in the file's order.
    names: Vec<String>,
    /// The entry of the archive that holds an array, by the array's name.
    entries: HashMap<String, String>,
}

impl NpzTensors {
    /// Opens a `.npz` file and reads the list of its arrays.
    ///
    /// # Errors
    /// If the file cannot be read or is not a zip archive; the error names it.
    pub fn new<T: AsRef<Path>>(path: T) -> Result<Self> {
        Ok(Self::over(Archive::open(path.as_ref())?))
    }

    /// Reads the list of arrays from a `.npz` file's content, for environments without files such as browsers.
    ///
    /// # Errors
    /// If the content is not a zip archive.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Ok(Self::over(Archive::from_bytes(bytes)?))
    }

    fn over(archive: Archive) -> Self {
        let mut names = vec![];
        let mut entries = HashMap::new();
        // Folders and other files are entries as well.
        for entry in archive.names() {
            if entry.ends_with('/') || !holds_array(&archive, entry) {
                continue;
            }
            let name = entry.strip_suffix(SUFFIX).unwrap_or(entry);
            if entries.insert(name.to_string(), entry.clone()).is_none() {
                names.push(name.to_string());
            }
        }
        Self {
            archive,
            names,
            entries,
        }
    }

    /// Names of the arrays, in the file's order.
    pub fn names(&self) -> Vec<&String> {
        self.names.iter().collect()
    }

    /// Shape and dtype of an array, without reading its elements.
    ///
    /// # Errors
    /// If there is no array of this name, or its header is damaged; the error names file and array.
    pub fn get_shape_and_dtype(&self, name: &str) -> Result<(Shape, DType)> {
        let header = self.read(self.entry(name)?, |entry| Header::read(entry))?;
        Ok((header.shape, header.dtype))
    }

    /// The array of this name on the CPU, or `None` if there is none.
    ///
    /// # Errors
    /// When the array is damaged or its dtype has no counterpart here; the error names the file, the entry and its part.
    pub fn get(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(entry) = self.entries.get(name) else {
            return Ok(None);
        };
        self.read(entry, read_entry).map(Some)
    }

    fn read<T>(&self, entry: &str, f: impl FnOnce(&mut Entry<'_>) -> Result<T>) -> Result<T> {
        let read = self.archive.read(entry, f);
        read.map_err(|err| self.archive.in_file(err))
    }

    fn entry(&self, name: &str) -> Result<&str> {
        let missing = || {
            let path = name.to_string();
            self.archive.in_file(Error::CannotFindTensor { path }.bt())
        };
        self.entries
            .get(name)
            .map(String::as_str)
            .ok_or_else(missing)
    }

    fn expect(&self, name: &str) -> Result<Tensor> {
        self.read(self.entry(name)?, read_entry)
    }
}
